//! Names and links that stay in the artifact that they are of: the same rules for what is packed and unpacked.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::hash::{BuildHasher, RandomState};
use std::path::{Component, MAIN_SEPARATOR, Path, PathBuf};

use kpack_core::files::MAX_DEPTH;
use kpack_core::platform::{OsStrExt, is_file_name};
use kpack_core::publish::is_own;

/// The longest path of a member in bytes. Linux has twice as much, for the directory that it is unpacked into.
const MAX_PATH: usize = 2048;

/// The longest name in bytes.
const MAX_NAME: usize = 255;

/// The most directories that an artifact may imply without listing them, and how many more it may imply for each member.
const MAX_IMPLIED: usize = 1000;
const IMPLIED_PER_MEMBER: usize = 8;

/// The bytes of a path in an archive, which are the same on every system.
pub(super) fn bytes(path: &Path) -> Cow<'_, [u8]> {
    let bytes = path.as_os_str().as_bytes();
    if MAIN_SEPARATOR == '/' {
        return bytes.into();
    }
    let with_slash = |byte: &u8| match char::from(*byte) {
        MAIN_SEPARATOR => b'/',
        _ => *byte,
    };
    bytes.iter().map(with_slash).collect()
}

/// A name in a path that files have on other systems alone.
pub(super) fn foreign_name(path: &Path) -> Option<&OsStr> {
    path.components().find_map(|part| match part {
        Component::Normal(name) if !is_file_name(name) => Some(name),
        _ => None,
    })
}

/// The path that the bytes name: relative, without `.` and `..`; or why it is none.
pub(super) fn plain(bytes: &[u8]) -> Result<PathBuf, String> {
    if bytes.first() == Some(&b'/') {
        return Err("an absolute path".to_owned());
    }
    if bytes.len() > MAX_PATH || bytes.contains(&0) {
        return Err(format!("not a valid path of at most {MAX_PATH} bytes ({})", bytes.len()));
    }
    let path = Path::new(OsStr::from_bytes(bytes));
    if let Some(name) = foreign_name(path) {
        let name = name.display();
        return Err(format!("a name that files cannot have on Windows: `{name}`"));
    }
    let depth = path.components().count();
    if depth > MAX_DEPTH {
        return Err(format!("a path of {depth} names (expected at most {MAX_DEPTH})"));
    }
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::Normal(name) if is_own(name) => return Err(own(name)),
            Component::Normal(name) if name.len() <= MAX_NAME => plain.push(name),
            Component::Normal(name) => {
                return Err(format!(
                    "a name of {} bytes (expected at most {MAX_NAME})",
                    name.len()
                ));
            }
            _ => return Err("a path with `..`".to_owned()),
        }
    }
    if plain.as_os_str().is_empty() {
        return Err("an empty path".to_owned());
    }
    Ok(plain)
}

/// A later run would take what is in such a directory for what a run of its own left there.
fn own(name: &OsStr) -> String {
    format!("a name that only directories of kpack have: `{}`", name.display())
}

/// The directories that an artifact implies: they are in the paths of its prefixes and members, and are no members
/// themselves. Nothing else bounds their number, since names compress well.
pub(super) struct Directories {
    /// Hashes of the paths of all directories: whole paths would take much memory.
    known: HashSet<u64>,
    hasher: RandomState,
    /// How many more may be implied.
    room: usize,
}

impl Directories {
    /// Those of an artifact with these prefixes; or why there are too many.
    pub(super) fn new(prefixes: &[String]) -> Result<Self, String> {
        let (known, hasher) = (HashSet::new(), RandomState::new());
        let mut directories = Self { known, hasher, room: MAX_IMPLIED };
        let mut names = prefixes.iter().flat_map(Path::new);
        if let Some(name) = names.find(|name| is_own(name)) {
            return Err(own(name));
        }
        prefixes.iter().try_for_each(|prefix| directories.imply(Path::new(prefix)))?;
        Ok(directories)
    }

    /// Adds a member, and the directories that it is in; or says why there are too many.
    pub(super) fn add(&mut self, path: &Path, is_directory: bool) -> Result<(), String> {
        self.room += IMPLIED_PER_MEMBER;
        if is_directory {
            self.known.insert(self.hasher.hash_one(path));
        }
        path.parent().map_or(Ok(()), |above| self.imply(above))
    }

    /// Adds a directory, and those above it.
    fn imply(&mut self, path: &Path) -> Result<(), String> {
        for above in path.ancestors().filter(|above| *above != Path::new("")) {
            if !self.known.insert(self.hasher.hash_one(above)) {
                break;
            }
            self.room = self.room.checked_sub(1).ok_or_else(|| {
                format!(
                    "more directories than its members need (expected at most {MAX_IMPLIED} that are no members, and \
                     {IMPLIED_PER_MEMBER} per member)"
                )
            })?;
        }
        Ok(())
    }
}

/// Why a symbolic link at `path`, relative to its prefix, must not lead to `target`; `None` if it may. Whether
/// other links on its way lead out, only the file system can say.
pub(super) fn link_fault(path: &Path, target: &Path) -> Option<String> {
    let shown = target.display();
    let length = target.as_os_str().len();
    if length == 0 || length > MAX_PATH || target.as_os_str().as_bytes().contains(&0) {
        return Some(format!("a symbolic link whose {length} bytes are not a valid path"));
    }
    let mut depth = path.components().count().saturating_sub(1);
    for part in target.components() {
        match part {
            Component::Normal(_) => depth += 1,
            Component::ParentDir if depth == 0 => {
                return Some(format!("a symbolic link out of its prefix, to {shown}"));
            }
            Component::ParentDir => depth -= 1,
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => {
                return Some(format!("a symbolic link to the absolute path {shown}"));
            }
        }
    }
    None
}

/// The prefix that a path of an artifact is in, and the path in it.
pub(super) fn in_prefix<'p>(prefixes: &[String], path: &'p Path) -> Option<(usize, &'p Path)> {
    let mut prefixes = prefixes.iter().enumerate();
    prefixes.find_map(|(index, prefix)| {
        let within = path.strip_prefix(prefix).ok()?;
        (!within.as_os_str().is_empty()).then_some((index, within))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_stay_where_they_are() {
        for (bytes, expected) in [
            ("stage/lib/a.so", Some("stage/lib/a.so")),
            ("./stage//lib/", Some("stage/lib")),
            ("/etc/passwd", None),
            ("stage/../../etc", None),
            ("..", None),
            (".", None),
            ("", None),
            ("a\0b", None),
        ] {
            let plain = plain(bytes.as_bytes()).ok();
            assert_eq!(plain.as_deref(), expected.map(Path::new), "{bytes:?}");
        }
        assert!(plain("x".repeat(256).as_bytes()).is_err());
        assert!(plain("x/".repeat(2000).as_bytes()).is_err());
    }

    #[test]
    fn a_path_has_no_more_names_than_real_ones() {
        assert!(plain("d/".repeat(64).as_bytes()).is_ok());
        let text = plain("d/".repeat(65).as_bytes()).unwrap_err();
        assert_eq!(text, "a path of 65 names (expected at most 64)");
    }

    #[test]
    fn members_imply_some_directories_and_list_the_others() {
        let deep =
            |number: usize| Path::new("stage").join(number.to_string()).join("d/".repeat(60));
        let implied = |members: usize| {
            let mut directories = Directories::new(&["stage".to_owned()]).unwrap();
            (0..members).try_for_each(|number| directories.add(&deep(number).join("file"), false))
        };
        assert!(implied(10).is_ok() && implied(100).is_err());
        let mut directories = Directories::new(&["stage".to_owned()]).unwrap();
        for number in 0..100 {
            for path in deep(number).ancestors() {
                directories.add(path, true).unwrap();
            }
        }
        let prefixes = Vec::from_iter((0..100).map(|number| deep(number).display().to_string()));
        assert!(Directories::new(&prefixes).is_err());
    }

    #[test]
    fn links_that_stay_in_their_prefix() {
        for (path, target, stays) in [
            ("lib/liba.so", "liba.so.1", true),
            ("lib/liba.so", "../lib64/liba.so.1", true),
            ("lib/liba.so", "../../other", false),
            ("liba.so", "lib/../..", false),
            ("liba.so", "/usr/lib/liba.so", false),
            ("liba.so", "", false),
        ] {
            let fault = link_fault(Path::new(path), Path::new(target));
            assert_eq!(fault.is_none(), stays, "{path} {target}: {fault:?}");
        }
    }
}
