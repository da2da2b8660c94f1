//! The path of an entry in its tree, kept once with its path in the file system.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::ops::Deref;
use std::path::{Path, PathBuf, is_separator};
use std::str;
use std::sync::Arc;

/// The path of an entry in its tree: the end of its path in the file system, unless it is made from another path alone.
/// Clones share it.
///
/// They are in the order of [`Path`], and comparing them is faster. The paths must have no `.` and no needless
/// separators.
#[derive(Debug, Clone)]
pub struct EntryPath {
    full: Arc<Path>,
    /// Where the path in the tree begins.
    start: usize,
}

impl EntryPath {
    /// Of what is at `path` in the directory `root`.
    pub fn new(root: &Path, path: &Path) -> Self {
        let full = root.join(path);
        let start = full.as_os_str().len() - path.as_os_str().len();
        Self { full: full.into(), start }
    }

    /// Of what is at `full`, in the directory `root`.
    pub fn below(root: &Path, full: impl Into<Arc<Path>>) -> Self {
        Self { full: full.into(), start: 0 }.within(root)
    }

    /// The same in another directory above.
    pub fn within(self, root: &Path) -> Self {
        let path = self.full.strip_prefix(root).unwrap_or(&self.full);
        let start = self.full.as_os_str().len() - path.as_os_str().len();
        Self { start, ..self }
    }

    /// The path in the file system, if it was made of that.
    pub fn full(&self) -> &Arc<Path> {
        &self.full
    }

    fn bytes(&self) -> &[u8] {
        &self.full.as_os_str().as_encoded_bytes()[self.start..]
    }
}

impl From<&Path> for EntryPath {
    fn from(path: &Path) -> Self {
        Self { full: path.into(), start: 0 }
    }
}

impl From<PathBuf> for EntryPath {
    fn from(path: PathBuf) -> Self {
        Self { full: path.into(), start: 0 }
    }
}

impl Deref for EntryPath {
    type Target = Path;

    fn deref(&self) -> &Path {
        let bytes = self.bytes();
        if let Ok(path) = str::from_utf8(bytes) {
            return Path::new(path);
        }
        // A name need not be Unicode, and no system-independent function makes one of bytes.
        let mut rest = self.full.components();
        while rest.as_path().as_os_str().len() > bytes.len() {
            rest.next();
        }
        rest.as_path()
    }
}

impl AsRef<Path> for EntryPath {
    fn as_ref(&self) -> &Path {
        self
    }
}

impl Borrow<Path> for EntryPath {
    fn borrow(&self) -> &Path {
        self
    }
}

impl PartialEq for EntryPath {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for EntryPath {}

impl PartialOrd for EntryPath {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for EntryPath {
    fn cmp(&self, other: &Self) -> Ordering {
        const PIECE: usize = 16;
        let (own, other) = (self.bytes(), other.bytes());
        let pieces = own.chunks(PIECE).zip(other.chunks(PIECE));
        let same = pieces.take_while(|(own, other)| own == other).count() * PIECE;
        let [own, other] = [own, other].map(|bytes| bytes.get(same..).unwrap_or_default());
        // Separators are equal, and come before all else.
        let key = |byte: &u8| Some(*byte).filter(|byte| !is_separator((*byte).into()));
        own.iter().map(key).cmp(other.iter().map(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn a_name_need_not_be_unicode() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;

        let path = Path::new(OsStr::from_bytes(b"lib/\xff/a"));
        for root in ["/", "/root", "root/\u{e9}"].map(Path::new) {
            let own = EntryPath::new(root, path);
            assert_eq!((&*own, &**own.full()), (path, &*root.join(path)));
        }
    }

    #[test]
    fn the_order_is_that_of_paths() {
        let long = "a/directory/with/a/long/name";
        let paths =
            ["a", "a.b", "a/b", "a/b/c", "a/b-c", "a-b/c", "b", long, &format!("{long}.dat")];
        for one in paths.map(Path::new) {
            let own = EntryPath::new(Path::new("root"), one);
            assert_eq!((&*own, &**own.full()), (one, &*Path::new("root").join(one)));
            let below = EntryPath::below(Path::new("root"), Arc::clone(own.full()));
            assert_eq!(&*below, one);
            assert_eq!(&*below.within(Path::new("")), &**own.full());
            for other in paths.map(Path::new) {
                assert_eq!(own.cmp(&EntryPath::from(other)), one.cmp(other), "{one:?} {other:?}");
            }
        }
    }
}
