//! Makes a tree of packed artifacts.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use serde::Serialize;

use super::extract::{Extractor, Made, link_in, open_in};
use super::index::{Entry, FILE_NAME, Index};
use super::member;
use super::select::{Choice, select};
use kpack_artifact::manifest_txt;
use kpack_core::files::{self, same_bytes};
use kpack_core::parallel;
use kpack_core::platform::MetadataExt;
use kpack_core::publish::{
    Directory, NewNames, Stage, check_output_directory, check_room, hidden, is_own, resolve,
};
use kpack_core::report::Progress;
use kpack_core::words::list_some;
use kpack_core::{Error, Reason, ids};

/// Each thread holds the window of a decompressor. More than this many would need too much memory, and no disk
/// is faster.
const MAX_JOBS: NonZeroUsize = NonZeroUsize::new(8).unwrap();

/// What to unpack, and where.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct UnpackOptions {
    /// The directory with the packed artifacts.
    pub store: PathBuf,
    /// Their index.
    pub index: PathBuf,
    /// Which of them to unpack.
    pub choice: Choice,
    /// The output directory.
    pub output_dir: PathBuf,
    /// Whether to make one installed tree of all prefixes, rather than a directory for each artifact.
    pub flatten: bool,
    /// Number of threads.
    pub jobs: NonZeroUsize,
}

impl UnpackOptions {
    /// Options with defaults for everything else: everything in the index of `store`, a directory for each
    /// artifact, one thread per processor.
    pub fn new(store: impl Into<PathBuf>, output_dir: impl Into<PathBuf>) -> Self {
        let store = store.into();
        Self {
            index: store.join(FILE_NAME),
            store,
            choice: Choice::default(),
            output_dir: output_dir.into(),
            flatten: false,
            jobs: parallel::processors(),
        }
    }
}

/// What was unpacked.
#[derive(Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Unpacked {
    /// The artifacts.
    pub artifacts: Vec<Entry>,
    /// Number of files, links and directories.
    pub files: u64,
    /// Size of the files in bytes.
    pub size: u64,
}

/// Unpacks artifacts under a hidden name. If all are what the index says, a new output directory gets its name, and an
/// existing one is filled: device code first, then the host's files and the index. An interrupted run leaves a tree in
/// which nothing needs a file that is not there, and the next one finishes it.
///
/// # Errors
/// [`Error::Refused`] for an index or an artifact that cannot be trusted, and for an output directory that is in
/// the way; [`Error::Usage`] for targets that are not there; [`Error::Io`].
pub fn unpack(options: &UnpackOptions, progress: &dyn Progress) -> Result<Unpacked, Error> {
    let index = Index::read(&options.index)?;
    let entries = select(&options.index, &index, &options.choice)?;
    check_fetched(&options.store, &entries)?;
    refuse_overlap(options)?;
    let output = OutputDirectory::lock(options)?;
    let size = total(&entries, |entry| entry.unpacked);
    check_room(&options.index, "unpack", output.stage.above().path(), size)?;
    progress.start(size);
    let tree = output.stage.make(output.name.as_deref().unwrap_or(OsStr::new("new")))?;
    let made = extract_all(options, &entries, &output.stage, &tree, progress)?;
    if !options.flatten {
        let own = index.with(entries.iter().map(|entry| (*entry).clone()).collect());
        let file = tree.create_open(FILE_NAME.as_ref(), false);
        let written = file.and_then(|mut file| file.write_all(&own.to_bytes()));
        written.map_err(|e| Error::io(&tree.path().join(FILE_NAME), "write", e))?;
    }
    output.publish(options, &entries, &tree, &made)?;
    Ok(Unpacked {
        files: total(&entries, |entry| entry.files),
        size,
        artifacts: entries.into_iter().cloned().collect(),
    })
}

/// The sum of a number of each entry, which is whatever the index says.
fn total(entries: &[&Entry], number: impl Fn(&Entry) -> u64) -> u64 {
    entries.iter().map(|entry| number(entry)).fold(0, u64::saturating_add)
}

/// The directory to unpack into.
struct OutputDirectory {
    /// Beside it if it is new, or in it.
    stage: Stage,
    /// Its name, if it is new.
    name: Option<OsString>,
    /// What an interrupted run was giving names, and what is replaced. `None` if an interrupted run may have made what is
    /// there, which then has to be what this one makes.
    earlier: Option<BTreeSet<PathBuf>>,
    /// What an interrupted run left beside it.
    _beside: Option<Stage>,
}

/// The hidden directory in an existing output directory is called after this.
const INSIDE: &str = "kpack-unpack";

/// Whether an interrupted run may have left this directory. Anything else of that name belongs to somebody else, and so does
/// a directory that kpack may not read.
fn is_unfinished(beside: &Path) -> bool {
    let is_own =
        |entry: io::Result<fs::DirEntry>| entry.is_ok_and(|entry| is_own(&entry.file_name()));
    let is_directory = fs::symlink_metadata(beside).is_ok_and(|there| there.is_dir());
    is_directory && fs::read_dir(beside).is_ok_and(|mut entries| entries.all(is_own))
}

impl OutputDirectory {
    fn lock(options: &UnpackOptions) -> Result<Self, Error> {
        let path = absolute(&options.output_dir)?;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Self::inside(options, None);
        };
        if name.to_str().is_none() {
            let text = "its name is not UTF-8; choose another output directory";
            return Err(Error::rejected(ids::UNREPRESENTABLE_PATH, &options.output_dir, text));
        }
        let mut beside = None;
        if !files::is_there(&path)? || is_unfinished(&parent.join(hidden(name))) {
            let stage = Stage::lock(parent, name)?.obeying_umask();
            if !files::is_there(&path)? {
                let (name, earlier) = (Some(name.to_owned()), Some(BTreeSet::new()));
                return Ok(Self { stage, name, earlier, _beside: None });
            }
            // Another run made it: while this one waited, or before it was killed.
            beside = Some(stage);
        }
        Self::inside(options, beside)
    }

    fn inside(options: &UnpackOptions, beside: Option<Stage>) -> Result<Self, Error> {
        let path = &options.output_dir;
        if !files::metadata_of(path)?.is_some_and(|there| there.is_dir()) {
            check_output_directory(path)?;
        }
        let is_interrupted = beside.is_some() || files::is_there(&path.join(hidden(INSIDE)))?;
        // Nothing is made in the directories of others.
        if !is_interrupted {
            replaceable(&Directory::open(path)?, options, &BTreeSet::new())?;
        }
        let stage = Stage::lock(path, INSIDE)?.obeying_umask();
        let earlier = match replaceable(stage.above(), options, &stage.unfinished()?) {
            Err(Error::Refused { .. }) if is_interrupted && options.flatten => None,
            earlier => Some(earlier?),
        };
        Ok(Self { stage, name: None, earlier, _beside: beside })
    }

    fn publish(
        &self,
        options: &UnpackOptions,
        entries: &[&Entry],
        tree: &Directory,
        made: &Made,
    ) -> Result<(), Error> {
        let stage = &self.stage;
        let appeared = |path: &Path| {
            let text =
                "it appeared while kpack unpacked; remove it, or choose another output directory";
            Err(Error::rejected(ids::OUTPUT_IN_THE_WAY, &stage.output(path), text))
        };
        if let Some(name) = &self.name {
            return stage.publish(&NewNames::new(&[name]).where_allowed(&appeared));
        }
        // What it was made of was checked when this run began.
        let earlier = match &self.earlier {
            Some(earlier) => {
                replaceable(stage.above(), options, earlier)?;
                Cow::Borrowed(earlier)
            }
            None => Cow::Owned(finished(stage.above(), options, tree)?),
        };
        let (names, last): (Vec<PathBuf>, _) = if options.flatten {
            let content = tree.walk()?;
            let mut files = Vec::from_iter(content.files);
            files.sort_by_cached_key(|(path, is_link)| {
                let is_program = path.components().any(|part| part.as_os_str() == "bin");
                (made.host.contains(path), is_program, *is_link, path.clone())
            });
            (files.into_iter().map(|(path, _)| path).collect(), &[][..])
        } else {
            let mut entries = entries.to_vec();
            entries.sort_by_key(|entry| entry.is_generic());
            (entries.iter().map(|entry| entry.artifact().into()).collect(), &[FILE_NAME][..])
        };
        let new: BTreeSet<&Path> =
            names.iter().map(PathBuf::as_path).chain(last.iter().map(Path::new)).collect();
        let stale: Vec<PathBuf> =
            earlier.iter().filter(|path| !new.contains(path.as_path())).cloned().collect();
        let may_replace =
            |path: &Path| if earlier.contains(path) { Ok(()) } else { appeared(path) };
        let mut published = NewNames::new(&names).with_last(last).instead_of(&stale);
        if options.flatten {
            published = published.with_directories(made.times.keys());
        }
        stage.fill(tree, &published.where_allowed(&may_replace), &|output| match options.flatten {
            // Files were moved into them.
            true => made.set_times(output, SystemTime::UNIX_EPOCH),
            false => Ok(()),
        })
    }
}

/// Refuses an output directory with anything but what was unpacked before. Returns that, with the paths of `unfinished`.
fn replaceable(
    output: &Directory,
    options: &UnpackOptions,
    unfinished: &BTreeSet<PathBuf>,
) -> Result<BTreeSet<PathBuf>, Error> {
    let mut names: BTreeSet<OsString> = output.names()?.into_iter().collect();
    names.remove(&hidden(INSIDE));
    if names.is_empty() {
        return Ok(unfinished.clone());
    }
    if !options.flatten && is_unpacked(&output.anchor(), &names)? {
        let names = names.into_iter().map(PathBuf::from);
        return Ok(names.chain(unfinished.iter().cloned()).collect());
    }
    let is_known = |path: &PathBuf| path.ancestors().any(|path| unfinished.contains(path));
    let is_hidden = |path: &PathBuf| path.starts_with(hidden(INSIDE));
    let known = !unfinished.is_empty()
        && output.walk()?.files.keys().all(|path| is_known(path) || is_hidden(path));
    if known {
        return Ok(unfinished.clone());
    }
    Err(not_empty(options))
}

fn not_empty(options: &UnpackOptions) -> Error {
    let text = "it is not empty, and not a directory that `kpack artifact unpack` made without --flatten; \
                choose another output directory, or remove it";
    Error::rejected(ids::OUTPUT_IN_THE_WAY, &options.output_dir, text)
}

/// The files in an output directory that a run had filled before it was killed: the same ones are in `tree`. Refuses any
/// others.
fn finished(
    output: &Directory,
    options: &UnpackOptions,
    tree: &Directory,
) -> Result<BTreeSet<PathBuf>, Error> {
    let mut finished = BTreeSet::new();
    for (path, is_link) in output.walk()?.files {
        if path.starts_with(hidden(INSIDE)) {
            continue;
        }
        let (parent, name) =
            (path.parent().unwrap_or(Path::new("")), path.file_name().unwrap_or_default());
        let Some(made) = tree.find_below(parent)? else {
            return Err(not_empty(options));
        };
        let there = output.below(parent)?;
        let is_same = if is_link {
            link_in(&there, name)? == link_in(&made, name)?
        } else if let (Some(one), Some(other)) = (there.open_file(name)?, made.open_file(name)?) {
            same_file(one, other).map_err(|e| Error::io(&output.path().join(&path), "read", e))?
        } else {
            false
        };
        if !is_same {
            return Err(not_empty(options));
        }
        finished.insert(path);
    }
    Ok(finished)
}

/// The path without `.` and a trailing `/`, so that it has a name.
fn absolute(path: &Path) -> Result<PathBuf, Error> {
    let path = std::path::absolute(path).map_err(|e| Error::io(path, "find", e))?;
    Ok(path.components().filter(|part| *part != Component::CurDir).collect())
}

/// Whether all artifacts are there, before one is unpacked.
fn check_fetched(store: &Path, entries: &[&Entry]) -> Result<(), Error> {
    let mut missing: Vec<&str> = Vec::new();
    for entry in entries {
        if files::metadata_of(&store.join(&entry.file))?.is_none() {
            missing.push(&entry.file);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let text = format!(
        "{} of {} artifacts are not there: {}; fetch them (`kpack artifact select` lists them)",
        missing.len(),
        entries.len(),
        list_some(missing, 5)
    );
    Err(Error::rejected(ids::NOT_FETCHED, store, text))
}

/// Refuses an output directory that holds the packed artifacts. Symbolic links are followed.
fn refuse_overlap(options: &UnpackOptions) -> Result<(), Error> {
    let store = &options.store;
    let real = store.canonicalize().map_err(|e| Error::io(store, "find", e))?;
    if !real.starts_with(resolve(&options.output_dir)?) {
        return Ok(());
    }
    Err(Error::usage(format!(
        "the output in {} would replace the packed artifacts in {}; choose another output directory",
        options.output_dir.display(),
        store.display()
    )))
}

/// Whether a directory has an index and directories of artifacts that it lists, and nothing else. Packed
/// artifacts have an index as well.
fn is_unpacked(directory: &Path, names: &BTreeSet<OsString>) -> Result<bool, Error> {
    let path = directory.join(FILE_NAME);
    if !files::is_there(&path)? {
        return Ok(false);
    }
    let index = match Index::read(&path) {
        Err(Error::Refused { .. }) => return Ok(false),
        index => index?,
    };
    let artifacts: BTreeSet<OsString> =
        index.artifacts.iter().map(|entry| entry.artifact().into()).collect();
    for name in names.iter().filter(|name| *name != FILE_NAME) {
        let list = directory.join(name).join(manifest_txt::FILE_NAME);
        let has_list = || Ok(files::metadata_of(&list)?.is_some_and(|list| list.is_file()));
        if !artifacts.contains(name) || !has_list()? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Unpacks all artifacts into `tree`, and returns what was made where they are flattened.
fn extract_all(
    options: &UnpackOptions,
    entries: &[&Entry],
    stage: &Stage,
    tree: &Directory,
    progress: &dyn Progress,
) -> Result<Made, Error> {
    let again = options.flatten.then(|| stage.make(".again")).transpose()?;
    let extract = |entry: &&Entry| {
        let root = match &again {
            Some(_) => below(tree, "")?,
            None => below(tree, &entry.artifact())?,
        };
        let archive = options.store.join(&entry.file);
        let mut own = Extractor::new(&archive, entry, root, again.as_ref(), progress);
        member::read(&archive, Some(entry), &mut own)?;
        Ok(own.made)
    };
    let all =
        parallel::with_jobs(options.jobs.min(MAX_JOBS), || parallel::try_map(entries, extract))?;
    let mut made = Made::default();
    let Some(again) = again else {
        for (entry, made) in entries.iter().zip(all) {
            let root = below(tree, &entry.artifact())?;
            finish(&made, &root, &options.store.join(&entry.file))?;
        }
        return Ok(made);
    };
    all.into_iter().for_each(|own| made.add(own));
    for (name, path) in &made.again {
        check_same(&again, name, tree, path, &options.index)?;
    }
    finish(&made, tree, &options.index)?;
    Ok(made)
}

/// Opens a directory in `tree`, creating it if missing. The umask is for what is made in it.
fn below(tree: &Directory, name: &str) -> Result<Directory, Error> {
    tree.provide_below(name.as_ref())
}

fn finish(made: &Made, root: &Directory, source: &Path) -> Result<(), Error> {
    if let Some(link) = made.link_out(root)? {
        let text = "a symbolic link out of its prefix, by way of others; its publisher has to pack it again";
        let reason = Reason::from(text).in_member(link.display());
        return Err(Error::rejected(ids::UNSAFE_MEMBER, source, reason));
    }
    made.set_times(root, SystemTime::UNIX_EPOCH)
}

/// Whether the file `name` in `again` is the same as the one at `path`, which another artifact has.
fn check_same(
    again: &Directory,
    name: &OsStr,
    root: &Directory,
    path: &Path,
    index: &Path,
) -> Result<(), Error> {
    let parent = root.below(path.parent().unwrap_or(Path::new("")))?;
    let first = parent.open_file(path.file_name().unwrap_or_default())?;
    let second = open_in(again, name)?;
    let is_same = match first {
        Some(first) => {
            let same = same_file(first, second);
            same.map_err(|e| Error::io(&root.path().join(path), "read", e))?
        }
        None => false,
    };
    if is_same {
        return Ok(());
    }
    let text = format!(
        "two different files would be `{}`; unpack without --flatten, which keeps each artifact and prefix \
         apart, or leave one of the components out",
        path.display()
    );
    Err(Error::rejected(ids::CONFLICTING_FILES, index, text))
}

/// Whether two files have the same bytes, and both or none may be executed.
fn same_file(first: File, second: File) -> io::Result<bool> {
    let is_executable = |file: &File| Ok::<_, io::Error>(file.metadata()?.mode() & 0o100 != 0);
    Ok(is_executable(&first)? == is_executable(&second)? && same_bytes(&first, &second)?)
}
