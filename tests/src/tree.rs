//! A directory tree to compare before and after an action. If it cannot be read or written, the
//! test panics.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use walkdir::WalkDir;

/// The files of one directory, by name.
pub fn files_in(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    let named = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap();
        (name, fs::read(entry.path()).unwrap())
    };
    entries.map(named).collect()
}

/// The names in a directory, in order.
pub fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    let mut names = Vec::from_iter(entries.map(|entry| entry.file_name().into_string().unwrap()));
    names.sort();
    names
}

/// Writes a file, and makes the directories above it.
pub fn write(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
    let path = path.as_ref();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// Copies a file with its mode, and makes the directories above the copy.
pub fn copy_file(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let to = to.as_ref();
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::copy(from, to).unwrap();
}

/// Makes a directory that not even root can list: one below it has a path that is longer than paths may be.
pub fn unlistable(path: &Path) {
    let long = |top: &str| (0..12).fold(path.join(top), |path, _| path.join("n".repeat(200)));
    fs::create_dir_all(long("deep")).unwrap();
    fs::create_dir_all(long("deeper")).unwrap();
    fs::rename(path.join("deeper"), long("deep").join("deeper")).unwrap();
}

/// What is below a directory, without what is in an [unlistable] one and has too long a path.
fn walk(path: &Path) -> impl Iterator<Item = walkdir::DirEntry> {
    const PATH_MAX: usize = 4096;
    let too_long = |path: &Path| path.as_os_str().len() >= PATH_MAX;
    let entries = WalkDir::new(path).sort_by_file_name().into_iter();
    let entries = entries.filter(move |entry| match entry {
        Ok(entry) => !too_long(entry.path()),
        Err(error) => !error.path().is_some_and(too_long),
    });
    entries.map(Result::unwrap)
}

/// Every file, symbolic link and directory below a path, with its mode and bytes.
pub fn entries_below(path: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let entries = WalkDir::new(path).min_depth(1).into_iter().map(Result::unwrap);
    let described = entries.map(|entry| {
        let within = entry.path().strip_prefix(path).unwrap();
        (within.to_owned(), mode_and_bytes(entry.path()))
    });
    described.collect()
}

/// The mode of an entry, and the bytes of a file or where a symbolic link leads.
fn mode_and_bytes(path: &Path) -> (u32, Vec<u8>) {
    let metadata = path.symlink_metadata().unwrap();
    let bytes = if metadata.is_symlink() {
        fs::read_link(path).unwrap().into_os_string().into_encoded_bytes()
    } else if metadata.is_dir() {
        Vec::new()
    } else {
        fs::read(path).unwrap()
    };
    (metadata.mode(), bytes)
}

/// A temporary directory tree.
#[derive(Debug)]
pub struct Tree {
    directory: TempDir,
}

/// Mode and content of each file or symbolic link.
pub type Snapshot = BTreeMap<String, (u32, Vec<u8>)>;

impl Tree {
    /// An empty one.
    #[expect(clippy::new_without_default, reason = "it is a directory, not a value")]
    pub fn new() -> Self {
        Self { directory: TempDir::new().unwrap() }
    }

    /// An empty one in this directory. Temporary files may be in memory, where Linux keeps attributes of users only since
    /// version 6.6.
    pub fn new_in(directory: impl AsRef<Path>) -> Self {
        Self { directory: TempDir::new_in(directory).unwrap() }
    }

    /// Its root.
    pub fn root(&self) -> &Path {
        self.directory.path()
    }

    /// A path in the tree.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.root().join(relative)
    }

    /// Writes a file of it, and makes the directories above.
    pub fn write(&self, relative: &str, bytes: impl AsRef<[u8]>) {
        write(self.path(relative), bytes);
    }

    /// Copies a file of it with its mode, and makes the directories above the copy.
    pub fn copy_file(&self, from: &str, to: &str) {
        copy_file(self.path(from), self.path(to));
    }

    /// Copies the tree.
    pub fn copy(&self) -> Self {
        let copy = Self::new();
        self.copy_to(&copy);
        copy
    }

    /// Copies the tree into another one.
    pub fn copy_to(&self, other: &Self) {
        for (name, path) in self.entries() {
            copy_file(path, other.path(&name));
        }
    }

    /// Files and symbolic links, in order.
    pub fn files(&self) -> Vec<String> {
        self.entries().into_keys().collect()
    }

    /// Every file with its mode and bytes.
    pub fn snapshot(&self) -> Snapshot {
        let entries = self.entries().into_iter();
        entries.map(|(name, path)| (name, mode_and_bytes(&path))).collect()
    }

    /// Every file and directory, its bytes, its inode and its time of change.
    pub fn snapshot_with_times(&self) -> (Snapshot, Vec<(PathBuf, u64, i64, i64)>) {
        let times = walk(self.root()).map(|entry| {
            let metadata = entry.metadata().unwrap();
            // Locks and scratch files come and go in directories.
            let time =
                if metadata.is_dir() { (0, 0) } else { (metadata.mtime(), metadata.mtime_nsec()) };
            (entry.into_path(), metadata.ino(), time.0, time.1)
        });
        (self.snapshot(), times.collect())
    }

    /// Every directory below `relative`, and itself, with its time of change.
    pub fn directory_times(&self, relative: &str) -> BTreeMap<PathBuf, (i64, i64)> {
        let root = self.path(relative);
        let entries = WalkDir::new(&root).into_iter().map(Result::unwrap);
        entries
            .filter(|entry| entry.file_type().is_dir())
            .map(|entry| {
                let metadata = entry.metadata().unwrap();
                let within = entry.path().strip_prefix(&root).unwrap();
                (within.to_owned(), (metadata.mtime(), metadata.mtime_nsec()))
            })
            .collect()
    }

    fn entries(&self) -> BTreeMap<String, PathBuf> {
        walk(self.root())
            .filter(|entry| !entry.file_type().is_dir())
            .map(|entry| {
                let relative = entry.path().strip_prefix(self.root()).unwrap();
                (relative.to_str().unwrap().to_owned(), entry.path().to_owned())
            })
            .collect()
    }
}
