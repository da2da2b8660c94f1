//! The files that stay as they are, and the host binaries: copied with modes and times, linked where
//! they were linked.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File, FileTimes, Metadata, Permissions};
use std::io;
use std::ops::AddAssign;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use kpack_format::TargetId;
use walkdir::WalkDir;

use super::plan::{Item, Plan};
use super::stage::Stage;
use crate::Error;
use crate::artifact::classify::{Node, walk_error};
use crate::artifact::staged_tree::copy_symlink;
use crate::elf::{self, ElfError};
use crate::input;
use crate::install::Progress;
use crate::store::{copy_range, make_directories, write_manifest};

/// How many files an artifact has, and their size.
#[derive(Default, Clone, Copy)]
pub(super) struct Count {
    pub(super) files: u64,
    pub(super) size: u64,
    pub(super) archives: u64,
}

/// By target; `None` is the generic artifact.
pub(super) type Counts = BTreeMap<Option<TargetId>, Count>;

impl AddAssign for Count {
    fn add_assign(&mut self, more: Self) {
        self.files += more.files;
        self.size += more.size;
        self.archives += more.archives;
    }
}

/// Copies everything that stays as it is into the stage.
pub(super) fn copy(plan: &Plan, stage: &Stage, progress: &dyn Progress) -> Result<Counts, Error> {
    copy_some(plan, stage, progress, None)
}

/// Writes the host binaries of the module with this index, by the plans of its binaries.
pub(super) fn hosts(
    plan: &Plan,
    stage: &Stage,
    progress: &dyn Progress,
    module: (usize, Vec<elf::Plan>),
) -> Result<Counts, Error> {
    copy_some(plan, stage, progress, Some(module))
}

fn copy_some(
    plan: &Plan,
    stage: &Stage,
    progress: &dyn Progress,
    module: Option<(usize, Vec<elf::Plan>)>,
) -> Result<Counts, Error> {
    let (index, hosts) = module.unzip();
    let mut copier = Copier {
        plan,
        stage,
        counts: Counts::new(),
        links: HashMap::new(),
        hosts: hosts.unwrap_or_default(),
        directories: HashSet::new(),
    };
    let of_module = |item: &&Item| item.fat.map(|(module, _)| module) == index;
    for item in plan.items.iter().filter(of_module) {
        progress.file(&item.path);
        let read = copier.item(item)?;
        progress.advance(read.saturating_sub(plan.device_share(item)));
    }
    Ok(copier.counts)
}

/// A file with several names, which is copied once: for a target, for a module, and its inode.
type Copied = (Option<TargetId>, Option<usize>, (u64, u64));

fn inode(item: &Item) -> Option<Copied> {
    let module = item.fat.map(|(module, _)| module);
    match item.node {
        Node::File { shared_inode, .. } => {
            shared_inode.map(|inode| (item.target.clone(), module, inode))
        }
        _ => None,
    }
}

/// How many bytes of the input there are: of a file with several names once.
pub(super) fn bytes(items: &[Item]) -> u64 {
    let mut seen = HashSet::new();
    let once = items
        .iter()
        .filter(|item| inode(item).is_none_or(|copied| seen.insert(copied)));
    once.map(Item::size).fold(0, u64::saturating_add)
}

struct Copier<'a> {
    plan: &'a Plan,
    stage: &'a Stage,
    counts: Counts,
    /// Where a file with several names is already, by target, and for a fat binary by module: its
    /// marker leads to the archives of one.
    links: HashMap<Copied, PathBuf>,
    /// The plans of the host binaries of one module.
    hosts: Vec<elf::Plan>,
    /// What is there already.
    directories: HashSet<PathBuf>,
}

impl Copier<'_> {
    /// Tells how many bytes of the input this was: none for another name of a file.
    fn item(&mut self, item: &Item) -> Result<u64, Error> {
        let to = self.stage.artifact(item.target.as_ref()).join(&item.path);
        match item.node {
            Node::Directory { empty: true } => return make_directories(&to).map(|()| 0),
            // It is made for what is in it.
            Node::Directory { empty: false } => return Ok(0),
            _ => {}
        }
        if let Some(parent) = to.parent()
            && !self.directories.contains(parent)
        {
            make_directories(parent)?;
            self.directories.insert(parent.to_owned());
        }
        let mut read = 0;
        let size = match item.node {
            Node::File { .. } => {
                let key = inode(item);
                match key.as_ref().and_then(|key| self.links.get(key)) {
                    Some(first) => {
                        fs::hard_link(first, &to).map_err(|e| Error::io(&to, "link", e))?;
                        0
                    }
                    None => {
                        let size = self.file(item, &to)?;
                        read = item.size();
                        if let Some(key) = key {
                            self.links.insert(key, to);
                        }
                        size
                    }
                }
            }
            _ => {
                let metadata = item.from.symlink_metadata();
                let metadata = metadata.map_err(|e| Error::io(&item.from, "read", e))?;
                copy_symlink(&item.from, &to, &metadata)?;
                0
            }
        };
        let count = self.counts.entry(item.target.clone()).or_default();
        count.files += 1;
        count.size += size;
        count.archives += u64::from(item.is_archive);
        Ok(read)
    }

    /// Copies a file, or writes the host binary of a fat one.
    fn file(&self, item: &Item, to: &Path) -> Result<u64, Error> {
        let fat = item.fat.and_then(|(index, binary)| {
            let module = self.plan.modules.get(index)?;
            Some((module.binaries.get(binary)?, self.hosts.get(binary)?))
        });
        let input = match fat {
            Some((fat, _)) => fat.file.code.open()?,
            None => input::open(&item.from)?,
        };
        let metadata = input
            .metadata()
            .map_err(|e| Error::io(&item.from, "read", e))?;
        let output = create(to)?;
        let size = match (fat, &item.manifest) {
            (None, Some(bytes)) => {
                write_manifest(to, &output, bytes)?;
                bytes.len() as u64
            }
            (None, None) => {
                let size = metadata.len();
                let copied = copy_range(&input, &output, 0..size, 0);
                copied.map_err(|e| Error::io(&item.from, "copy", e))?;
                for (offset, bytes) in &item.edits {
                    let edited = output.write_all_at(bytes, *offset);
                    edited.map_err(|e| Error::io(to, "write", e))?;
                }
                size
            }
            (Some((_, plan)), _) => {
                let applied = plan.apply(&input, &output);
                applied.map_err(|error| match error {
                    ElfError::Io(error) => Error::io(to, "write", error),
                    error => input::elf_error(&item.from, error),
                })?;
                plan.output_size()
            }
        };
        set_metadata(&output, &metadata).map_err(|e| Error::io(to, "set the mode of", e))?;
        Ok(size)
    }
}

/// Creates a file that is not there.
fn create(path: &Path) -> Result<File, Error> {
    let mut options = File::options();
    options.read(true).write(true).create_new(true);
    options.open(path).map_err(|e| Error::io(path, "create", e))
}

/// Mode and time of change.
fn set_metadata(file: &File, metadata: &Metadata) -> io::Result<()> {
    file.set_permissions(metadata.permissions())?;
    set_time(file, metadata.modified()?)
}

/// Time of change.
pub(super) fn set_time(file: &File, time: SystemTime) -> io::Result<()> {
    file.set_times(FileTimes::new().set_modified(time))
}

/// Gives the directories of an artifact the modes and times that they have in the input. One that is
/// not there is as old as the newest of what is in it, so that the same input gives the same.
pub(super) fn directories(artifact: &Path, input: &Path) -> Result<(), Error> {
    for entry in WalkDir::new(artifact).contents_first(true) {
        let entry = entry.map_err(|error| walk_error(artifact, error))?;
        if !entry.file_type().is_dir() {
            continue;
        }
        let relative = entry.path().strip_prefix(artifact).unwrap_or(entry.path());
        let metadata = input.join(relative).metadata();
        let set = || {
            let directory = File::open(entry.path())?;
            let Ok(metadata) = metadata else {
                return set_time(&directory, newest_in(entry.path())?);
            };
            set_time(&directory, metadata.modified()?)?;
            // The artifact itself has to be renamed, which needs the right to write.
            let owner = if entry.depth() == 0 { 0o200 } else { 0 };
            directory.set_permissions(Permissions::from_mode(metadata.mode() & 0o7777 | owner))
        };
        set().map_err(|e| Error::io(entry.path(), "set the mode of", e))?;
    }
    Ok(())
}

/// When the newest entry of a directory changed.
fn newest_in(directory: &Path) -> io::Result<SystemTime> {
    let mut newest = SystemTime::UNIX_EPOCH;
    for entry in fs::read_dir(directory)? {
        newest = newest.max(entry?.metadata()?.modified()?);
    }
    Ok(newest)
}
