//! An artifact directory that is written under a hidden name, and renamed when it is complete.

use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use filetime::FileTime;
use walkdir::WalkDir;

use super::mark;
use crate::Error;
use crate::input;
use crate::store::{Renames, copy_range, make_directories, write_manifest};

/// An artifact directory in the making: `.<name>.tmp` beside its final place. Dropped before it is
/// committed, it is removed.
#[derive(Debug)]
pub(crate) struct StagedTree {
    hidden: PathBuf,
    path: PathBuf,
    /// The first copy of each file that has more than one name.
    linked: BTreeMap<(u64, u64), PathBuf>,
    /// Modes and times of directories, set when nothing is written into them any more.
    directories: BTreeMap<PathBuf, Metadata>,
    /// What was made new. It gets the time of the newest file that was copied, so that the same input
    /// gives the same tree.
    written: Vec<PathBuf>,
    newest: SystemTime,
    done: bool,
}

impl StagedTree {
    /// Begins the directory `name` in `parent`, which is made where it is missing. What a run that
    /// was killed left behind is removed.
    pub(crate) fn begin(parent: &Path, name: &str) -> Result<Self, Error> {
        let hidden = parent.join(format!(".{name}.tmp"));
        remove_tree(&hidden)?;
        make_directories(&hidden)?;
        Ok(Self {
            hidden,
            path: parent.join(name),
            linked: BTreeMap::new(),
            directories: BTreeMap::new(),
            written: Vec::new(),
            newest: SystemTime::UNIX_EPOCH,
            done: false,
        })
    }

    /// Makes the directory `relative`, with the mode and times of the one that `metadata` is of.
    /// Directories above it that are missing are made, too.
    pub(crate) fn directory(&mut self, relative: &Path, metadata: Metadata) -> Result<(), Error> {
        let path = self.hidden.join(relative);
        make_directories(&path)?;
        self.directories.entry(path).or_insert(metadata);
        Ok(())
    }

    /// Copies a file or symbolic link with its mode and times. Files that are one file under
    /// several names stay so, and share nothing with the input (but blocks, where the file system
    /// copies on write).
    pub(crate) fn copy(&mut self, from: &Path, relative: &Path) -> Result<(), Error> {
        let to = self.hidden.join(relative);
        if let Some(directory) = to.parent() {
            make_directories(directory)?;
        }
        let metadata = from
            .symlink_metadata()
            .map_err(|e| Error::io(from, "read", e))?;
        if metadata.is_symlink() {
            return copy_symlink(from, &to, &metadata);
        }
        let inode = (metadata.dev(), metadata.ino());
        if let Some(first) = self.linked.get(&inode) {
            return fs::hard_link(first, &to).map_err(|e| Error::io(&to, "create", e));
        }
        let input = input::open(from)?;
        let output = File::create_new(&to).map_err(|e| Error::io(&to, "create", e))?;
        copy_range(&input, &output, 0..metadata.len(), 0)
            .map_err(|e| Error::io(&to, "write", e))?;
        keep(&to, &metadata)?;
        let modified = metadata
            .modified()
            .map_err(|e| Error::io(from, "read", e))?;
        self.newest = self.newest.max(modified);
        if metadata.nlink() > 1 {
            self.linked.insert(inode, to);
        }
        Ok(())
    }

    /// Writes a new file.
    pub(crate) fn write(&mut self, relative: &Path, bytes: &[u8]) -> Result<(), Error> {
        let path = self.hidden.join(relative);
        if let Some(directory) = path.parent() {
            make_directories(directory)?;
        }
        fs::write(&path, bytes).map_err(|e| Error::io(&path, "write", e))?;
        self.written.push(path);
        Ok(())
    }

    /// Writes a manifest of archives, and reads it back.
    pub(crate) fn manifest(&mut self, relative: &Path, bytes: &[u8]) -> Result<(), Error> {
        let path = self.hidden.join(relative);
        if let Some(directory) = path.parent() {
            make_directories(directory)?;
        }
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).open(&path);
        let file = file.map_err(|e| Error::io(&path, "create", e))?;
        write_manifest(&self.path.join(relative), &file, bytes)?;
        self.written.push(path);
        Ok(())
    }

    /// Writes a new file with the mode and times of the one that `metadata` is of.
    pub(crate) fn write_like(
        &mut self,
        relative: &Path,
        bytes: &[u8],
        metadata: &Metadata,
    ) -> Result<(), Error> {
        self.write(relative, bytes)?;
        // Its time is not to be set to another one.
        self.written.pop();
        keep(&self.hidden.join(relative), metadata)
    }

    /// Changes bytes of the copy of `from`, which keeps its times.
    pub(crate) fn edit(
        &mut self,
        from: &Path,
        relative: &Path,
        edits: &[(u64, Vec<u8>)],
    ) -> Result<(), Error> {
        let path = self.hidden.join(relative);
        let failed = |e| Error::io(&path, "write", e);
        // The mode may forbid to write.
        let metadata = from.metadata().map_err(|e| Error::io(from, "read", e))?;
        fs::set_permissions(&path, Permissions::from_mode(metadata.mode() | 0o200))
            .map_err(failed)?;
        let file = File::options().write(true).open(&path).map_err(failed)?;
        for (offset, bytes) in edits {
            file.write_all_at(bytes, *offset).map_err(failed)?;
        }
        keep(&path, &metadata)
    }

    /// Sets what is left to set; nothing is written any more.
    pub(crate) fn finish(&mut self) -> Result<(), Error> {
        let times = FileTimes::new()
            .set_accessed(self.newest)
            .set_modified(self.newest);
        let set = |path: &Path, mode: u32| {
            let file = File::open(path)?;
            file.set_permissions(Permissions::from_mode(mode))?;
            // Where nothing was copied, there is no time to go by.
            match self.newest > SystemTime::UNIX_EPOCH {
                true => file.set_times(times),
                false => Ok(()),
            }
        };
        for path in &self.written {
            set(path, 0o644).map_err(|e| Error::io(path, "set the times of", e))?;
        }
        // The deepest first: what is set in one changes the times of the one above.
        for entry in WalkDir::new(&self.hidden).contents_first(true) {
            let entry = entry.map_err(|e| Error::io(&self.hidden, "list", e.into()))?;
            let path = entry.path();
            match self.directories.get(path) {
                Some(metadata) => keep(path, metadata)?,
                None if entry.file_type().is_dir() => {
                    set(path, 0o755).map_err(|e| Error::io(path, "set the times of", e))?;
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Refuses to replace what has its final name and is no artifact.
    pub(crate) fn check(&self) -> Result<(), Error> {
        mark::check_replaceable(&self.path)
    }

    /// Puts what has its final name aside.
    pub(crate) fn make_way(&self, renames: &mut Renames) -> Result<(), Error> {
        remove_tree(&self.old())?;
        renames.set_aside(&self.path, &self.old())
    }

    /// Gives it its final name, which is free.
    pub(crate) fn commit(&self, renames: &mut Renames) -> Result<(), Error> {
        renames.rename(&self.hidden, &self.path)
    }

    /// It has its final name; removes what was put aside.
    pub(crate) fn done(mut self) -> Result<(), Error> {
        self.done = true;
        remove_tree(&self.old())
    }

    fn old(&self) -> PathBuf {
        self.hidden.with_extension("old")
    }
}

impl Drop for StagedTree {
    fn drop(&mut self) {
        if !self.done {
            let _ = remove_tree(&self.hidden);
        }
    }
}

/// Copies a symbolic link with its times; `metadata` is its own.
pub(super) fn copy_symlink(from: &Path, to: &Path, metadata: &Metadata) -> Result<(), Error> {
    let target = fs::read_link(from).map_err(|e| Error::io(from, "read", e))?;
    symlink(target, to).map_err(|e| Error::io(to, "create symbolic link", e))?;
    let accessed = FileTime::from_last_access_time(metadata);
    let modified = FileTime::from_last_modification_time(metadata);
    filetime::set_symlink_file_times(to, accessed, modified)
        .map_err(|e| Error::io(to, "set the times of", e))
}

/// Mode and times.
fn keep(path: &Path, metadata: &Metadata) -> Result<(), Error> {
    let failed = |error| Error::io(path, "set the mode and times of", error);
    let times = metadata
        .accessed()
        .and_then(|accessed| Ok((accessed, metadata.modified()?)))
        .map(|(accessed, modified)| {
            FileTimes::new()
                .set_accessed(accessed)
                .set_modified(modified)
        });
    let mode = Permissions::from_mode(metadata.mode() & 0o7777);
    // Opened before the mode may forbid it.
    let file = File::open(path).map_err(failed)?;
    file.set_permissions(mode).map_err(failed)?;
    file.set_times(times.map_err(failed)?).map_err(failed)
}

/// Removes a directory that may be missing, with directories in it that may not be written to; or
/// a file.
pub(super) fn remove_tree(path: &Path) -> Result<(), Error> {
    let removed = match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            for entry in WalkDir::new(path).into_iter().flatten() {
                if entry.file_type().is_dir() {
                    let _ = fs::set_permissions(entry.path(), Permissions::from_mode(0o700));
                }
            }
            fs::remove_dir_all(path)
        }
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => fs::remove_file(path),
        other => other,
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(path, "remove", error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use kpack_format::manifest::Manifest;

    use super::*;

    #[test]
    fn a_manifest_that_nobody_can_read_is_not_published() {
        let parent = tempfile::tempdir().unwrap();
        let mut tree = StagedTree::begin(parent.path(), "blas_lib_generic").unwrap();
        let path = Path::new("stage/lib/.kpack/blas_lib.kpm");
        let manifest = Manifest {
            component_name: "x".repeat(17 << 20),
            prefix: "lib".to_owned(),
            kpack_files: BTreeMap::new(),
        };
        let error = tree.manifest(path, &manifest.to_bytes()).unwrap_err();
        let error = error.in_one_line();
        assert!(
            error.contains("blas_lib_generic/stage/lib/.kpack/blas_lib.kpm")
                && error.contains("cannot be read back: larger than 16 MiB"),
            "{error}"
        );
        drop(tree);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
