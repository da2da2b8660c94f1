//! Copies of inputs, made while these are checked: each input is read once.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use kpack_core::Error;
use kpack_core::files::digest;
use kpack_core::parallel::lock;
use kpack_core::platform::{SharedInode, open_files, shared_inode};
use kpack_core::publish::{CreatedDirectories, Directory, Identity, copy_checked};
use kpack_format::Sha256;

/// Smaller files are read again: that costs less than a copy that stays open.
const LEAST: u64 = 64 << 10;

/// Copies without names in the output directory. Those that nobody takes are gone in the end, whatever happens.
#[derive(Default)]
pub(crate) struct Copies {
    directory: Option<Directory>,
    made: Mutex<Made>,
    /// How many files may stay open.
    most: usize,
    /// The digests of files with several names. Who reads one locks its digest.
    shared: Mutex<BTreeMap<SharedInode, Arc<Mutex<Option<Known>>>>>,
    /// The output directory, if it was created; removed if nothing is written.
    _created: CreatedDirectories,
}

#[derive(Default)]
struct Made {
    /// By path of the input: file systems may give several files one number. With what was at that path.
    copies: BTreeMap<PathBuf, (Identity, File)>,
    /// For other names of such an input, the first one.
    first_names: BTreeMap<PathBuf, PathBuf>,
    /// Whether there ever was one.
    any: bool,
    /// Whether there was no room for one.
    gave_up: bool,
}

/// The digest of a file, and the name by which it was read.
struct Known {
    sum: Sha256,
    path: PathBuf,
}

impl fmt::Debug for Copies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Copies").finish_non_exhaustive()
    }
}

impl Copies {
    /// Copies are made in `output`, which is created if missing. Where it cannot be, none are made.
    pub(crate) fn within(output: &Path) -> Self {
        let mut created = CreatedDirectories::default();
        let most = open_files() / 2;
        Self {
            directory: Directory::make(output, &mut created).ok(),
            most: usize::try_from(most).unwrap_or(usize::MAX),
            _created: created,
            ..Self::default()
        }
    }

    /// The SHA-256 of an input. With `copy`, it will be output, and is copied in the same pass if it is large. A file
    /// with several names is read once.
    pub(crate) fn digest(&self, path: &Path, copy: bool) -> Result<Sha256, Error> {
        let metadata = path.symlink_metadata();
        let metadata = metadata.map_err(|e| Error::io(path, "read", e))?;
        let read = || {
            if copy && metadata.is_file() && metadata.len() >= LEAST {
                self.copy(path)
            } else {
                digest(path)
            }
        };
        let Some(inode) = shared_inode(&metadata) else {
            return read();
        };
        let known = Arc::clone(lock(&self.shared).entry(inode).or_default());
        let mut known = lock(&known);
        if let Some(Known { sum, path: first }) = &*known {
            let (path, first) = (path.to_owned(), first.clone());
            lock(&self.made).first_names.insert(path, first);
            return Ok(*sum);
        }
        let sum = read()?;
        let path = path.to_owned();
        *known = Some(Known { sum, path });
        Ok(sum)
    }

    fn copy(&self, path: &Path) -> Result<Sha256, Error> {
        let has_room = || {
            let made = lock(&self.made);
            made.copies.len() < self.most && !made.gave_up
        };
        let Some(directory) = self.directory.as_ref().filter(|_| has_room()) else {
            return digest(path);
        };
        let (sum, copy) = copy_checked(path, directory)?;
        match copy {
            Some(copy) => self.keep(path, copy),
            // The room is for what is written, one component after the other.
            None => drop(self.give_up()),
        }
        Ok(sum)
    }

    /// Keeps a copy, unless another thread found no room for its own meanwhile.
    fn keep(&self, path: &Path, copy: (Identity, File)) {
        let mut made = lock(&self.made);
        if !made.gave_up {
            made.any = true;
            made.copies.insert(path.to_owned(), copy);
        }
    }

    /// Makes room: no copies are kept any more. Returns whether there ever were any, also such as were taken.
    pub(crate) fn give_up(&self) -> bool {
        let mut made = lock(&self.made);
        made.gave_up = true;
        made.copies.clear();
        made.any
    }

    /// The copy of the input at `path`, for the first who needs one. `None` also if it is another file now, or has
    /// other contents.
    pub(crate) fn take(&self, path: &Path) -> Option<File> {
        let (identity, copy) = {
            let mut made = lock(&self.made);
            let first = made.first_names.get(path).cloned();
            made.copies.remove(first.as_deref().unwrap_or(path))?
        };
        identity.open(path).is_ok().then_some(copy)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;

    use super::*;

    const SIZE: usize = LEAST as usize;

    fn bytes(mut file: File) -> Vec<u8> {
        let mut bytes = Vec::new();
        std::io::Seek::rewind(&mut file).unwrap();
        file.read_to_end(&mut bytes).unwrap();
        bytes
    }

    /// A tree with two large files, and copies of them, where the file system can have those.
    fn copied() -> Option<(tempfile::TempDir, Copies, [PathBuf; 2])> {
        let tree = tempfile::tempdir().unwrap();
        let paths = ["one", "other"].map(|name| tree.path().join(name));
        let copies = Copies::within(&tree.path().join("out"));
        for (path, byte) in paths.iter().zip(*b"12") {
            fs::write(path, vec![byte; SIZE]).unwrap();
            let sum = copies.digest(path, true).unwrap();
            assert_eq!(sum, digest(path).unwrap());
        }
        if lock(&copies.made).gave_up {
            eprintln!("skipped: this file system has no nameless files");
            return None;
        }
        Some((tree, copies, paths))
    }

    #[test]
    fn a_copy_belongs_to_a_path_whatever_its_number_is() {
        let Some((_tree, copies, [one, other])) = copied() else {
            return;
        };
        assert_eq!(lock(&copies.made).copies.keys().collect::<Vec<_>>(), [&one, &other]);
        assert!(bytes(copies.take(&other).unwrap()) == [b'2'; SIZE]);
        assert!(copies.take(&other).is_none());
        // Another file has the name now.
        fs::rename(&other, &one).unwrap();
        assert!(copies.take(&one).is_none());
    }

    #[test]
    fn a_second_name_makes_no_second_copy() {
        let Some((tree, copies, [one, _])) = copied() else {
            return;
        };
        let names = ["a", "b"].map(|name| tree.path().join(name));
        fs::write(&names[0], vec![b'3'; SIZE]).unwrap();
        fs::hard_link(&names[0], &names[1]).unwrap();
        for name in &names {
            let sum = copies.digest(name, true).unwrap();
            assert_eq!(sum, digest(&one.with_file_name("a")).unwrap());
        }
        assert_eq!(lock(&copies.made).copies.len(), 3);
        assert!(bytes(copies.take(&names[1]).unwrap()) == [b'3'; SIZE]);
        assert!(copies.take(&names[0]).is_none());
    }

    #[test]
    fn no_copy_is_kept_after_one_found_no_room() {
        let Some((_tree, copies, [one, other])) = copied() else {
            return;
        };
        // In flight in another thread.
        let late = lock(&copies.made).copies.remove(&one).unwrap();
        assert!(copies.give_up());
        copies.keep(&one, late);
        assert!(copies.take(&one).is_none() && copies.take(&other).is_none());
        copies.digest(&one, true).unwrap();
        assert!(lock(&copies.made).copies.is_empty());
    }
}
