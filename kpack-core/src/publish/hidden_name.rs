//! What kpack calls output that is not complete. Whoever makes such a name, and
//! whoever looks for leftovers of interrupted runs, asks this module.

use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

use crate::platform::{OsStrExt, OsStringExt};

/// Maximum length of a file name in bytes, on every Linux file system.
const NAME_MAX: usize = 255;

/// Digits of the number in the hidden name of a file.
const DIGITS: usize = 16;

/// A hidden name is a dot, the final name, and this. The hidden name of a single file, as
/// [`StagedFile`](super::StagedFile) makes it, also has a number: `.NAME.<16 hexadecimal digits>.tmp`.
const ENDING: &str = ".tmp";

/// In the hidden directory of a run: how the name of its directory for what it replaces begins, after the dot. A number
/// follows.
const ASIDE: &str = "old-";

/// The hidden name of the directory `name`.
pub fn hidden(name: impl AsRef<OsStr>) -> OsString {
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(ENDING);
    hidden
}

/// The hidden path beside the directory `path`.
pub(super) fn hidden_beside(path: &Path) -> PathBuf {
    path.with_file_name(hidden(path.file_name().unwrap_or_default()))
}

/// The name of a directory for what a run replaces, in its hidden directory. What is in it has its own names, so no
/// output can be mistaken for something that was replaced.
pub(super) fn aside(number: usize) -> OsString {
    hidden(format!("{ASIDE}{number}"))
}

/// Whether this is the name of such a directory.
pub(super) fn is_aside(name: &OsStr) -> bool {
    let number = hidden_stem(name).and_then(|stem| stem.as_bytes().strip_prefix(ASIDE.as_bytes()));
    number.is_some_and(|number| number.iter().all(u8::is_ascii_digit))
}

/// Whether kpack uses this name for what it has not finished.
pub fn is_leftover(name: &OsStr) -> bool {
    hidden_stem(name).is_some()
}

/// Whether kpack calls its own directories like this, and trusts what is in them. Nothing that others made may have such
/// a name. Some file systems ignore case.
pub fn is_own(name: &OsStr) -> bool {
    const OWN: &[u8] = b".kpack";
    let bytes = name.as_bytes();
    let begins = bytes.get(..OWN.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(OWN));
    begins && bytes.to_ascii_lowercase().ends_with(ENDING.as_bytes())
}

/// The part of a hidden name between the dot and the ending; `None` if it is no such name.
fn hidden_stem(hidden: &OsStr) -> Option<&OsStr> {
    let inside = hidden.as_bytes().strip_prefix(b".")?;
    let stem = inside.strip_suffix(ENDING.as_bytes())?;
    (!stem.is_empty()).then(|| OsStr::from_bytes(stem))
}

/// A hidden name for the file `name`, with a number; a long name loses its beginning.
pub(crate) fn numbered(name: &OsStr) -> OsString {
    let number = RandomState::new().hash_one(std::process::id());
    let mut inside = stem_of(name);
    inside.push(format!(".{number:0DIGITS$x}"));
    hidden(inside)
}

/// The part of a file's name that its hidden name keeps.
pub fn stem_of(name: &OsStr) -> OsString {
    let bytes = name.as_bytes();
    let mut start = (bytes.len() + 2 + DIGITS + ENDING.len()).saturating_sub(NAME_MAX);
    // Do not cut a UTF-8 character in half.
    while bytes.get(start).is_some_and(|byte| byte & 0xc0 == 0x80) {
        start += 1;
    }
    OsString::from_vec(bytes[start..].to_vec())
}

/// The part of a file's name kept in its hidden name, with or without a number.
pub(super) fn leftover_stem(hidden: &OsStr) -> Option<&OsStr> {
    numbered_stem(hidden).or(hidden_stem(hidden))
}

/// The part of a file's name kept in its hidden name with a number.
pub(super) fn numbered_stem(hidden: &OsStr) -> Option<&OsStr> {
    let inside = hidden_stem(hidden)?.as_bytes();
    let (stem, number) = inside.split_at_checked(inside.len().checked_sub(DIGITS + 1)?)?;
    let is_number = number[0] == b'.' && number[1..].iter().all(u8::is_ascii_hexdigit);
    (is_number && !stem.is_empty()).then(|| OsStr::from_bytes(stem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_names_are_recognised_and_fit() {
        for name in ["a", ".a", &"x".repeat(255), &"ü".repeat(127)] {
            let hidden = numbered(name.as_ref());
            assert!(hidden.len() <= NAME_MAX, "{hidden:?}");
            assert!(hidden.to_str().is_some(), "{hidden:?}");
            assert_eq!(leftover_stem(&hidden), Some(&*stem_of(name.as_ref())));
            assert!(is_leftover(&hidden), "{hidden:?}");
        }
        assert_eq!(leftover_stem(".vec.kpm.tmp".as_ref()), Some("vec.kpm".as_ref()));
        let name = hidden("blas_lib");
        assert!(is_leftover(&name), "{name:?}");
        assert_eq!(hidden_beside(Path::new("out/blas_lib")), Path::new("out").join(&name));
        assert!(is_aside(&aside(0)) && is_aside(&aside(12)));
        assert!(!is_aside("old.blas_lib".as_ref()) && !is_aside(".old-mine.tmp".as_ref()));
        let others = ["vec.kpm.tmp", ".vec.kpm", ".tmp", "..tmp", ".kpack-stage"];
        for other in others.map(OsStr::new) {
            assert_eq!(leftover_stem(other), None, "{other:?}");
        }
        let others = ["vec.kpm.tmp", ".vec.kpm", ".tmp", ".kpack-stage", ".vec.old"];
        for other in others {
            assert!(!is_leftover(other.as_ref()), "{other}");
        }
    }
}
