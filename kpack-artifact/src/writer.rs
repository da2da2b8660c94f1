//! Writes the files and directories of an artifact.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, Metadata};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use kpack_core::platform::{FileExt, MetadataExt, SharedInode, shared_inode};
use kpack_format::names::is_manifest;

use super::manifest_txt;
use super::names;
use super::output::{EntrySource, OutputTree};
use kpack_core::Error;
use kpack_core::publish::{Directory, Stage, StagedFile, copy_range, write_manifest};
use kpack_core::report::Progress;

/// Writes the entries of an artifact, except host binaries.
pub(super) fn write(
    stage: &Stage,
    output: &OutputTree,
    progress: &dyn Progress,
) -> Result<(), Error> {
    let mut writer = Writer::new(stage.make(&output.name)?);
    for (path, source) in &output.entries {
        match source {
            EntrySource::Host(_) => continue,
            EntrySource::Directory(_) => drop(writer.directory(path)?),
            EntrySource::Copy(from) => {
                progress.file(path);
                progress.advance(writer.copy(path, from, &[])?);
            }
            EntrySource::Edited(edited) => {
                progress.file(path);
                progress.advance(writer.copy(path, &edited.from, &edited.edits)?);
            }
            EntrySource::Bytes(new) => {
                progress.file(path);
                writer.bytes(path, &new.bytes, &new.like)?;
                progress.advance(new.bytes.len() as u64);
            }
        }
    }
    Ok(())
}

/// Adds the list of prefixes and the mark to an artifact that is otherwise complete, and sets the
/// modes and times of directories. Returns the number and the size of the files added. The list is
/// newer than what it was made of: builds know by it that the artifact is up to date.
pub(super) fn finish(stage: &Stage, output: &OutputTree) -> Result<(u64, u64), Error> {
    let root = stage.make(&output.name)?;
    let prefixes = output.prefixes.iter().filter(|prefix| root.below(Path::new(prefix)).is_ok());
    let list = manifest_txt::to_text(prefixes).into_bytes();
    let files = [(manifest_txt::FILE_NAME, &list), (names::MARK, &output.mark)];
    let mut size = 0;
    for (name, bytes) in files {
        // All is flushed at once before it is published.
        let directory = root.below(Path::new(""))?.without_flushes();
        let (staged, ()) = StagedFile::write_in(directory, name.as_ref(), |staged| {
            let written = staged.file().write_all(bytes);
            written.map_err(|e| Error::io(staged.path(), "write", e))
        })?;
        staged.commit()?;
        size += bytes.len() as u64;
    }
    set_directories(&root, output)?;
    Ok((files.len() as u64, size))
}

pub(super) struct Writer {
    root: Directory,
    /// The path of the last entry's directory, which is open.
    parent: Option<(PathBuf, Directory)>,
    /// The same, of the directory that the last file was copied from.
    source: Option<(PathBuf, Directory)>,
    /// The first copy of each file that has several names.
    first_names: HashMap<SharedInode, PathBuf>,
}

impl Writer {
    /// Writes into the artifact directory `root`.
    pub(super) fn new(root: Directory) -> Self {
        Self { root, parent: None, source: None, first_names: HashMap::new() }
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
        let Some((input, metadata)) = self.open(from)? else {
            let metadata = metadata(from)?;
            if !metadata.is_symlink() {
                return Err(Error::changed(from));
            }
            let (parent, name) = self.place(path)?;
            return copy_symlink(from, parent, name, &metadata).map(|()| 0);
        };
        self.file_like(path, from, &metadata, |from, output, to| {
            let size = metadata.len();
            let copied = copy_range(&input, output, 0..size, 0);
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
        self.file_like(path, from, &metadata(from)?, fill)
    }

    fn file_like(
        &mut self,
        path: &Path,
        from: &Path,
        metadata: &Metadata,
        fill: impl FnOnce(&Path, &File, &Path) -> Result<u64, Error>,
    ) -> Result<u64, Error> {
        let to = self.root.path().join(path);
        let inode = shared_inode(metadata);
        if let Some(first) = inode.and_then(|inode| self.first_names.get(&inode)) {
            let other = self.root.below(first.parent().unwrap_or(Path::new("")))?;
            let first = first.file_name().unwrap_or_default().to_owned();
            let (parent, name) = self.place(path)?;
            let linked = parent.hard_link(name, &other, &first);
            return linked.map(|()| 0).map_err(|e| Error::io(&to, "link", e));
        }
        let (parent, name) = self.place(path)?;
        let output = create(parent, name)?;
        let size = fill(from, &output, &to)?;
        set_metadata(&output, metadata).map_err(|e| Error::io(&to, "set the mode of", e))?;
        self.first_names.extend(inode.map(|inode| (inode, path.to_owned())));
        Ok(size)
    }

    /// Writes new bytes, with the mode and time of `like`. Manifests of archives are read back.
    pub(super) fn bytes(&mut self, path: &Path, bytes: &[u8], like: &Path) -> Result<(), Error> {
        let to = self.root.path().join(path);
        let (parent, name) = self.place(path)?;
        let mut output = create(parent, name)?;
        if is_manifest(path) {
            write_manifest(&to, &output, bytes)?
        } else {
            output.write_all(bytes).map_err(|e| Error::io(&to, "write", e))?
        }
        let like = fs::metadata(like).map_err(|e| Error::io(like, "read", e))?;
        set_metadata(&output, &like).map_err(|e| Error::io(&to, "set the mode of", e))
    }

    /// The directory and the name to write an entry to. Creates the directory.
    fn place<'p>(&mut self, path: &'p Path) -> Result<(&Directory, &'p OsStr), Error> {
        let above = path.parent().unwrap_or(Path::new(""));
        if !is_at(&self.parent, above) {
            self.parent = Some((above.to_owned(), self.directory(above)?));
        }
        let parent = self.parent.as_ref().map_or(&self.root, |(_, parent)| parent);
        Ok((parent, path.file_name().unwrap_or_default()))
    }

    /// Opens a file to copy; `None` if it is no regular file.
    fn open(&mut self, from: &Path) -> Result<Option<(File, Metadata)>, Error> {
        let above = from.parent().unwrap_or(Path::new(""));
        if !is_at(&self.source, above) {
            self.source = Some((above.to_owned(), Directory::open(above)?));
        }
        match &self.source {
            Some((_, source)) => source.open_with_metadata(from.file_name().unwrap_or_default()),
            None => Ok(None),
        }
    }

    /// Opens a directory of the artifact, creating it if missing.
    fn directory(&self, path: &Path) -> Result<Directory, Error> {
        self.root.provide_below(path)
    }
}

/// Whether the open directory is that of this path. Comparing the components would take longer.
fn is_at(open: &Option<(PathBuf, Directory)>, path: &Path) -> bool {
    open.as_ref().is_some_and(|(known, _)| known.as_os_str() == path.as_os_str())
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

fn create(parent: &Directory, name: &OsStr) -> Result<File, Error> {
    parent.create(name).map_err(|e| Error::io(&parent.path().join(name), "create", e))
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
fn copy_symlink(
    from: &Path,
    parent: &Directory,
    name: &OsStr,
    metadata: &Metadata,
) -> Result<(), Error> {
    let to = parent.path().join(name);
    let target = fs::read_link(from).map_err(|e| Error::io(from, "read", e))?;
    parent.symlink(name, &target).map_err(|e| Error::io(&to, "create symbolic link", e))?;
    let set = || parent.set_symlink_times(name, metadata.accessed()?, metadata.modified()?);
    set().map_err(|e| Error::io(&to, "set the times of", e))
}

/// Gives the directories of an artifact the modes and times of those that they are like. A new one is
/// as old as its newest entry, so that the same input gives the same output.
fn set_directories(root: &Directory, output: &OutputTree) -> Result<(), Error> {
    let mut directories = root.directories()?;
    directories.insert(PathBuf::new());
    // What is in a directory comes before it.
    for path in directories.iter().rev() {
        let like = match output.entries.get(&**path) {
            Some(EntrySource::Directory(like)) => like.clone(),
            _ => output.model.join(path).into(),
        };
        let directory = root.below(path)?;
        let set = || {
            let Ok(metadata) = like.metadata() else {
                return directory.set_modified(directory.newest()?);
            };
            directory.set_modified(metadata.modified()?)?;
            // Renaming the artifact itself needs write permission.
            let owner = if path.as_os_str().is_empty() { 0o200 } else { 0 };
            directory.set_mode(metadata.mode() & 0o7777 | owner)
        };
        set().map_err(|e| Error::io(directory.path(), "set the mode of", e))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use kpack_format::manifest::Manifest;

    use super::*;

    fn writer(root: &Path) -> Writer {
        fs::create_dir(root).unwrap();
        Writer::new(Directory::open(root).unwrap())
    }

    #[test]
    fn a_manifest_that_cannot_be_read_back_is_an_error() {
        let parent = tempfile::tempdir().unwrap();
        let mut writer = writer(&parent.path().join("blas_lib_generic"));
        let path = Path::new("stage/lib/.kpack/blas_lib.kpm");
        let manifest = Manifest::new("x".repeat(17 << 20), "lib");
        let error =
            writer.bytes(path, &manifest.to_bytes(), parent.path()).unwrap_err().in_one_line();
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
        kpack_core::platform::symlink("file", &link).unwrap();
        let mut writer = writer(&tree.path().join("artifact"));
        writer.bytes(Path::new("new"), b"bytes", &link).unwrap();
        let written = fs::metadata(tree.path().join("artifact/new")).unwrap();
        assert_eq!(written.mode() & 0o7777, 0o640);
    }
}
