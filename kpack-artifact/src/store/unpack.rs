//! Makes a tree of packed artifacts.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::num::NonZeroUsize;
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use serde::Serialize;

use super::extract::{Extractor, Made, open_in};
use super::index::{Entry, FILE_NAME, Index};
use super::member;
use super::select::{Choice, select};
use crate::manifest_txt;
use crate::split::resolve;
use crate::stage::Stage;
use kpack_core::files::same_bytes;
use kpack_core::parallel;
use kpack_core::platform::{MetadataExt, set_mode_at};
use kpack_core::publish::{Directory, check_room, make_directories};
use kpack_core::report::Progress;
use kpack_core::words::list_some;
use kpack_core::{Error, ids};

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

/// Unpacks artifacts under a hidden name beside the output directory. If all are what the index says, the
/// directory gets its name; before, there is nothing, or what was there.
///
/// # Errors
/// [`Error::Refused`] for an index or an artifact that cannot be trusted, and for an output directory that is in
/// the way; [`Error::Usage`] for targets that are not there; [`Error::Io`].
pub fn unpack(options: &UnpackOptions, progress: &dyn Progress) -> Result<Unpacked, Error> {
    let index = Index::read(&options.index)?;
    let entries = select(&options.index, &index, &options.choice)?;
    check_fetched(&options.store, &entries)?;
    let output = absolute(&options.output_dir)?;
    let (Some(parent), Some(name)) = (output.parent(), output.file_name()) else {
        let text = format!("{}: expected a new directory", options.output_dir.display());
        return Err(Error::usage(text));
    };
    refuse_overlap(options)?;
    check_replaceable(&options.output_dir, options.flatten)?;
    let name = name.to_str().ok_or_else(|| {
        let text = "its name is not UTF-8; choose another output directory";
        Error::rejected(ids::UNREPRESENTABLE_PATH, &options.output_dir, text)
    })?;
    let stage = Stage::lock(parent, name)?;
    let size: u64 = entries.iter().map(|entry| entry.unpacked).sum();
    check_room(&options.index, "unpack", stage.path(), size)?;
    progress.start(size);
    let hidden = stage.artifact(name);
    make_directories(&hidden)?;
    extract_all(options, &entries, &stage, &hidden, progress)?;
    if !options.flatten {
        let own = index.with(entries.iter().map(|entry| (*entry).clone()).collect());
        let path = hidden.join(FILE_NAME);
        fs::write(&path, own.to_bytes()).map_err(|e| Error::io(&path, "write", e))?;
        let set = set_mode_at(&path, 0o644);
        set.map_err(|e| Error::io(&path, "set the mode of", e))?;
    }
    stage.publish(&[name], None, &[])?;
    Ok(Unpacked {
        files: entries.iter().map(|entry| entry.files).sum(),
        size,
        artifacts: entries.into_iter().cloned().collect(),
    })
}

/// The path without `.` and a trailing `/`, so that it has a name.
fn absolute(path: &Path) -> Result<PathBuf, Error> {
    let path = std::path::absolute(path).map_err(|e| Error::io(path, "find", e))?;
    Ok(path.components().filter(|part| *part != Component::CurDir).collect())
}

/// Whether all artifacts are there, before one is unpacked.
fn check_fetched(store: &Path, entries: &[&Entry]) -> Result<(), Error> {
    let is_missing = |entry: &&&Entry| !store.join(&entry.file).exists();
    let missing: Vec<&str> = entries.iter().filter(is_missing).map(|e| &*e.file).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let text = format!(
        "{} of {} artifacts are not there: {}; fetch them (`kpack select` lists them)",
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

/// Refuses to replace anything but an empty directory, and what was unpacked before.
fn check_replaceable(output: &Path, flatten: bool) -> Result<(), Error> {
    let entries = match fs::read_dir(output) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return kpack_core::publish::check_output_directory(output);
        }
        entries => entries.map_err(|e| Error::io(output, "list", e))?,
    };
    let names: Result<BTreeSet<OsString>, io::Error> =
        entries.map(|entry| Ok(entry?.file_name())).collect();
    let names = names.map_err(|e| Error::io(output, "list", e))?;
    if names.is_empty() || !flatten && is_unpacked(output, &names) {
        return Ok(());
    }
    let text = "it is not empty, and not a directory that `kpack unpack` made without --flatten; \
                choose another output directory, or remove it";
    Err(Error::rejected(ids::OUTPUT_IN_THE_WAY, output, text))
}

/// Whether a directory has an index and directories of artifacts that it lists, and nothing else. Packed
/// artifacts have an index as well.
fn is_unpacked(directory: &Path, names: &BTreeSet<OsString>) -> bool {
    let Ok(index) = Index::read(&directory.join(FILE_NAME)) else {
        return false;
    };
    let artifacts = index.artifacts.iter().map(|entry| entry.artifact().into());
    let artifacts: BTreeSet<OsString> = artifacts.collect();
    names.iter().all(|name| {
        let list = || directory.join(name).join(manifest_txt::FILE_NAME);
        name == FILE_NAME || artifacts.contains(name) && list().is_file()
    })
}

fn extract_all(
    options: &UnpackOptions,
    entries: &[&Entry],
    stage: &Stage,
    hidden: &Path,
    progress: &dyn Progress,
) -> Result<(), Error> {
    let again = if options.flatten {
        let path = stage.path().join(".again");
        make_directories(&path)?;
        Some(Directory::open(&path)?)
    } else {
        None
    };
    let extract = |entry: &&Entry| {
        let root = match &again {
            Some(_) => hidden.to_owned(),
            None => hidden.join(entry.artifact()),
        };
        make_directories(&root)?;
        let archive = options.store.join(&entry.file);
        let root = Directory::open(&root)?;
        let mut own = Extractor::new(&archive, entry, root, again.as_ref(), progress);
        member::read(&archive, Some(entry), &mut own)?;
        Ok(own.made)
    };
    let all =
        parallel::with_jobs(options.jobs.min(MAX_JOBS), || parallel::try_map(entries, extract))?;
    let Some(again) = again else {
        for (entry, made) in entries.iter().zip(all) {
            let root = Directory::open(&hidden.join(entry.artifact()))?;
            finish(&made, &root, &options.store.join(&entry.file))?;
        }
        return Ok(());
    };
    let mut made = Made::default();
    all.into_iter().for_each(|own| made.add(own));
    let root = Directory::open(hidden)?;
    for (name, path) in &made.again {
        check_same(&again, name, &root, path, &options.index)?;
    }
    fs::remove_dir_all(again.path()).map_err(|e| Error::io(again.path(), "remove", e))?;
    finish(&made, &root, &options.index)
}

fn finish(made: &Made, root: &Directory, source: &Path) -> Result<(), Error> {
    if let Some(link) = made.link_out(root)? {
        let text = format!(
            "member `{}`: a symbolic link out of its prefix, by way of others; its publisher has to pack it again",
            link.display()
        );
        return Err(Error::rejected(ids::UNSAFE_MEMBER, source, text));
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
