//! Writes the files and directories of an artifact.

use std::collections::HashMap;
use std::fs::{self, File, FileTimes, Metadata};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use filetime::FileTime;
use kpack_core::platform::{FileExt, MetadataExt, SharedInode, set_mode_at, shared_inode, symlink};
use kpack_format::names::is_manifest;
use walkdir::WalkDir;

use super::output::{EntrySource, Output};
use kpack_core::Error;
use kpack_core::publish::{Directory, StagedFile, copy_range, make_directories, write_manifest};
use kpack_split::input::{self, walk_error};

pub(super) struct Writer {
    root: PathBuf,
    /// The directory of the last entry, which is there.
    directory: PathBuf,
    /// The first copy of each file that has several names.
    first_names: HashMap<SharedInode, PathBuf>,
}

impl Writer {
    /// Creates the artifact directory `root`.
    pub(super) fn new(root: PathBuf) -> Result<Self, Error> {
        make_directories(&root)?;
        Ok(Self { directory: root.clone(), root, first_names: HashMap::new() })
    }

    /// Copies a file or symbolic link with its mode and time, and changes bytes. Returns how many bytes
    /// were copied. Several names of one file stay so, and share nothing with the input (but blocks,
    /// if the file system copies on write).
    pub(super) fn copy(
        &mut self,
        path: &Path,
        from: &Path,
        edits: &[(u64, Vec<u8>)],
    ) -> Result<u64, Error> {
        let metadata = metadata(from)?;
        if metadata.is_symlink() {
            let to = self.place(path)?;
            return copy_symlink(from, &to, &metadata).map(|()| 0);
        }
        self.file(path, from, |from, output, to| {
            let size = metadata.len();
            let copied = copy_range(&input::open(from)?, output, 0..size, 0);
            copied.map_err(|e| Error::io(from, "copy", e))?;
            for (offset, bytes) in edits {
                let written = output.write_all_at(bytes, *offset);
                written.map_err(|e| Error::io(to, "write", e))?;
            }
            Ok(size)
        })
    }

    /// Writes the file at `path` with `fill`, which gets `from`, the new file and its path. It gets the
    /// mode and time of `from`. Returns what `fill` returns: a size, or 0 for another name of a file.
    pub(super) fn file(
        &mut self,
        path: &Path,
        from: &Path,
        fill: impl FnOnce(&Path, &File, &Path) -> Result<u64, Error>,
    ) -> Result<u64, Error> {
        let to = self.place(path)?;
        let metadata = metadata(from)?;
        let inode = shared_inode(&metadata);
        if let Some(first) = inode.and_then(|inode| self.first_names.get(&inode)) {
            let linked = fs::hard_link(first, &to);
            return linked.map(|()| 0).map_err(|e| Error::io(&to, "link", e));
        }
        let output = create(&to)?;
        let size = fill(from, &output, &to)?;
        set_metadata(&output, &metadata).map_err(|e| Error::io(&to, "set the mode of", e))?;
        self.first_names.extend(inode.map(|inode| (inode, to)));
        Ok(size)
    }

    /// Writes new bytes, with the mode and time of `like`. Manifests of archives are read back.
    pub(super) fn bytes(&mut self, path: &Path, bytes: &[u8], like: &Path) -> Result<(), Error> {
        let to = self.place(path)?;
        let mut output = create(&to)?;
        if is_manifest(path) {
            write_manifest(&to, &output, bytes)?
        } else {
            output.write_all(bytes).map_err(|e| Error::io(&to, "write", e))?
        }
        let like = fs::metadata(like).map_err(|e| Error::io(like, "read", e))?;
        set_metadata(&output, &like).map_err(|e| Error::io(&to, "set the mode of", e))
    }

    /// The path to write an entry to. Creates its directory.
    fn place(&mut self, path: &Path) -> Result<PathBuf, Error> {
        let to = self.root.join(path);
        if let Some(directory) = to.parent().filter(|directory| *directory != self.directory) {
            make_directories(directory)?;
            self.directory = directory.to_owned();
        }
        Ok(to)
    }
}

fn metadata(path: &Path) -> Result<Metadata, Error> {
    let metadata = path.symlink_metadata();
    metadata.map_err(|e| Error::io(path, "read", e))
}

pub(super) fn modified(path: &Path) -> Result<SystemTime, Error> {
    let modified = fs::metadata(path).and_then(|metadata| metadata.modified());
    modified.map_err(|e| Error::io(path, "read", e))
}

/// Gives a file its name and its time.
pub(super) fn commit_with_time(staged: StagedFile, time: SystemTime) -> Result<(), Error> {
    let set = set_time(staged.file(), time);
    set.map_err(|e| Error::io(staged.path(), "set the time of", e))?;
    staged.commit().map(drop)
}

fn create(path: &Path) -> Result<File, Error> {
    let mut options = File::options();
    options.read(true).write(true).create_new(true);
    options.open(path).map_err(|e| Error::io(path, "create", e))
}

/// Sets mode and time of change.
fn set_metadata(file: &File, metadata: &Metadata) -> io::Result<()> {
    file.set_permissions(metadata.permissions())?;
    set_time(file, metadata.modified()?)
}

fn set_time(file: &File, time: SystemTime) -> io::Result<()> {
    file.set_times(FileTimes::new().set_modified(time))
}

/// Copies a symbolic link with its times; `metadata` is its own.
fn copy_symlink(from: &Path, to: &Path, metadata: &Metadata) -> Result<(), Error> {
    let target = fs::read_link(from).map_err(|e| Error::io(from, "read", e))?;
    symlink(target, to).map_err(|e| Error::io(to, "create symbolic link", e))?;
    let accessed = FileTime::from_last_access_time(metadata);
    let modified = FileTime::from_last_modification_time(metadata);
    filetime::set_symlink_file_times(to, accessed, modified)
        .map_err(|e| Error::io(to, "set the times of", e))
}

/// Gives the directories of an artifact the modes and times of those that they are like. A new one is
/// as old as its newest entry, so that the same input gives the same output.
pub(super) fn set_directories(root: &Path, output: &Output) -> Result<(), Error> {
    for entry in WalkDir::new(root).contents_first(true) {
        let entry = entry.map_err(|error| walk_error(root, error))?;
        if !entry.file_type().is_dir() {
            continue;
        }
        let relative = entry.path().strip_prefix(root).unwrap_or(entry.path());
        let like = match output.entries.get(relative) {
            Some(EntrySource::Directory(like)) => like.clone(),
            _ => output.model.join(relative),
        };
        let directory = Directory::open(entry.path())?;
        let set = || {
            let Ok(metadata) = like.metadata() else {
                return directory.set_modified(newest_in(entry.path())?);
            };
            directory.set_modified(metadata.modified()?)?;
            // Renaming the artifact itself needs write permission.
            let owner = if entry.depth() == 0 { 0o200 } else { 0 };
            set_mode_at(entry.path(), metadata.mode() & 0o7777 | owner)
        };
        set().map_err(|e| Error::io(entry.path(), "set the mode of", e))?;
    }
    Ok(())
}

/// Modification time of the newest entry of a directory.
fn newest_in(directory: &Path) -> io::Result<SystemTime> {
    let mut newest = SystemTime::UNIX_EPOCH;
    for entry in fs::read_dir(directory)? {
        newest = newest.max(entry?.metadata()?.modified()?);
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {

    use kpack_format::manifest::Manifest;

    use super::*;

    #[test]
    fn a_manifest_that_cannot_be_read_back_is_an_error() {
        let parent = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(parent.path().join("blas_lib_generic")).unwrap();
        let path = Path::new("stage/lib/.kpack/blas_lib.kpm");
        let manifest = Manifest::new("x".repeat(17 << 20), "lib");
        let error = writer.bytes(path, &manifest.to_bytes(), parent.path());
        let error = error.unwrap_err().in_one_line();
        assert!(
            error.contains("blas_lib_generic/stage/lib/.kpack/blas_lib.kpm")
                && error.contains("cannot be read back: larger than 16 MiB"),
            "{error}"
        );
    }

    #[test]
    fn new_bytes_have_the_mode_of_the_file_that_a_link_leads_to() {
        let tree = tempfile::tempdir().unwrap();
        let (file, link) = (tree.path().join("file"), tree.path().join("link"));
        fs::write(&file, "model").unwrap();
        kpack_core::platform::set_mode_at(&file, 0o640).unwrap();
        symlink("file", &link).unwrap();
        let mut writer = Writer::new(tree.path().join("artifact")).unwrap();
        writer.bytes(Path::new("new"), b"bytes", &link).unwrap();
        let written = fs::metadata(tree.path().join("artifact/new")).unwrap();
        assert_eq!(written.mode() & 0o7777, 0o640);
    }
}
