//! Reads and writes `artifact_manifest.txt`: the prefixes of an artifact directory, one per line.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use walkdir::DirEntry;

use super::names::MARK;
use kpack_core::files::MAX_DEPTH;
use kpack_core::{Error, ids};
use kpack_split::input::{plain, read_text, walk, walk_error};

/// The name of the file.
pub const FILE_NAME: &str = "artifact_manifest.txt";

/// The most prefixes of an artifact. Real ones have a few, and each path of an artifact is compared with all of them.
const MAX_PREFIXES: usize = 1000;

/// The prefixes that the artifact directory lists, such as `math-libs/BLAS/rocBLAS/stage`, in the
/// order of the file, each once, with `/`. Empty lines are skipped.
///
/// # Errors
/// [`Error::Io`] where the file cannot be read; [`Error::Refused`], with the line, for a prefix
/// that is not a path within the artifact directory, or that is within another one.
pub fn read(artifact: &Path) -> Result<Vec<String>, Error> {
    let path = artifact.join(FILE_NAME);
    parse(&path, &read_text(&path)?)
}

/// The prefixes in `text`, which is that of `path`.
///
/// # Errors
/// [`Error::Refused`], as [`read`].
pub fn parse(path: &Path, text: &str) -> Result<Vec<String>, Error> {
    let mut prefixes: Vec<String> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let refuse = |reason: String| {
            Err(Error::rejected(
                ids::INVALID_PREFIX_LIST,
                path,
                format!("line {}: {reason}", index + 1),
            ))
        };
        let Some(prefix) = plain(Path::new(line)) else {
            return refuse(format!(
                "`{line}`: expected a path within the artifact directory, without `..`"
            ));
        };
        let depth = Path::new(&prefix).components().count();
        if depth > MAX_DEPTH {
            return refuse(format!("a path of {depth} names (expected at most {MAX_DEPTH})"));
        }
        if prefixes.contains(&prefix) {
            continue;
        }
        if prefixes.len() == MAX_PREFIXES {
            return refuse(format!("one prefix too many (expected at most {MAX_PREFIXES})"));
        }
        let nested = |known: &&String| {
            Path::new(known).starts_with(&prefix) || Path::new(&prefix).starts_with(known)
        };
        if let Some(known) = prefixes.iter().find(nested) {
            return refuse(format!("prefix `{prefix}` and prefix `{known}` overlap"));
        }
        prefixes.push(prefix);
    }
    Ok(prefixes)
}

/// The directory of a prefix; `None` if it does not exist.
///
/// # Errors
/// [`Error::Refused`] if it is not a directory, or its path has a symbolic link: its entries are then
/// somewhere else as well.
pub fn prefix_directory(artifact: &Path, prefix: &str) -> Result<Option<PathBuf>, Error> {
    let mut path = artifact.to_owned();
    for part in Path::new(prefix) {
        path.push(part);
        let metadata = match path.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            metadata => metadata.map_err(|e| Error::io(&path, "read", e))?,
        };
        let what = if metadata.is_symlink() {
            let to = fs::read_link(&path).map_err(|e| Error::io(&path, "read", e))?;
            format!("a symbolic link to {}", to.display())
        } else if metadata.is_dir() {
            continue;
        } else {
            "no directory".to_owned()
        };
        let reason = format!(
            "expected a directory, for the prefix `{prefix}` in {FILE_NAME}; it is {what}. List \
             where the files are, or copy them"
        );
        return Err(Error::rejected(ids::INVALID_PREFIX_LIST, &path, reason));
    }
    Ok(Some(path))
}

/// The text of the file that lists `prefixes`.
pub(crate) fn to_text<T: AsRef<str>>(prefixes: impl IntoIterator<Item = T>) -> String {
    prefixes.into_iter().map(|prefix| format!("{}\n", prefix.as_ref())).collect()
}

/// What is in the artifact directory and in none of `prefixes`, by name, without the list of prefixes
/// itself and the directories above prefixes.
///
/// # Errors
/// [`Error::Io`] for what cannot be listed.
pub fn walk_outside(
    artifact: &Path,
    prefixes: &[String],
) -> impl Iterator<Item = Result<DirEntry, Error>> {
    let all: Vec<PathBuf> = prefixes.iter().map(|p| artifact.join(p)).collect();
    let above = all.clone();
    let is_listed = move |entry: &DirEntry| {
        let within = entry.path().strip_prefix(artifact);
        let is_above = above.iter().any(|prefix| prefix.starts_with(entry.path()));
        !within.is_ok_and(is_of_artifact) && !is_above
    };
    walk(artifact)
        .min_depth(1)
        .into_iter()
        .filter_entry(move |entry| !all.iter().any(|prefix| entry.path() == prefix))
        .map(|entry| entry.map_err(|error| walk_error(artifact, error)))
        .filter(move |entry| entry.as_ref().map_or(true, &is_listed))
}

/// Whether a path in an artifact directory is the list of prefixes or kpack's mark, which are not
/// installed.
fn is_of_artifact(within: &Path) -> bool {
    within == Path::new(FILE_NAME) || within == Path::new(MARK)
}

/// The module that a prefix holds: the directory above `stage`, or the last one where there is no
/// `stage`, in lower case. `math-libs/BLAS/rocBLAS/stage` is `rocblas`.
pub(crate) fn module_name(prefix: &str) -> String {
    let parts: Vec<&str> = prefix.split('/').collect();
    let stage = parts.iter().rposition(|part| *part == "stage");
    let name = match stage {
        Some(index) if index > 0 => parts.get(index - 1),
        _ => parts.last(),
    };
    name.copied().unwrap_or_default().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Vec<String>, String> {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(FILE_NAME), text).unwrap();
        read(directory.path()).map_err(|error| match error {
            Error::Refused { reason, .. } => reason,
            other => other.to_string(),
        })
    }

    #[test]
    fn one_prefix_a_line_and_each_once() {
        let text =
            "math-libs/BLAS/rocBLAS/stage\n\n./core/hip/stage/\r\nmath-libs/BLAS/rocBLAS/stage";
        let prefixes = ["math-libs/BLAS/rocBLAS/stage", "core/hip/stage"];
        assert_eq!(read_text(text).unwrap(), prefixes);
        assert_eq!(read_text(&to_text(prefixes)).unwrap(), prefixes);
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_prefix() {
        assert_eq!(read_text("\u{feff}a/stage\n").unwrap(), ["a/stage"]);
    }

    #[test]
    fn what_leads_out_or_overlaps_is_refused_with_its_line() {
        for line in ["/opt/rocm", "../other", "a/../../b", "."] {
            let reason = read_text(&format!("good/stage\n{line}\n")).unwrap_err();
            assert!(reason.starts_with(&format!("line 2: `{line}`")), "{reason}");
        }
        let reason = read_text("a/stage\na/stage/lib\n").unwrap_err();
        assert!(reason.contains("`a/stage/lib` and prefix `a/stage` overlap"), "{reason}");
    }

    #[test]
    fn lists_that_would_take_long_are_refused() {
        let of = |count: usize| Vec::from_iter((0..count).map(|number| format!("{number}/stage")));
        assert_eq!(read_text(&to_text(of(1000))).unwrap().len(), 1000);
        let reason = read_text(&to_text(of(300_000))).unwrap_err();
        assert!(reason.starts_with("line 1001: one prefix too many"), "{reason}");
        assert!(read_text(&"d/".repeat(64)).is_ok());
        let reason = read_text(&"d/".repeat(20_000)).unwrap_err();
        assert_eq!(reason, "line 1: a path of 20000 names (expected at most 64)");
    }

    #[test]
    fn a_module_is_what_is_staged() {
        assert_eq!(module_name("math-libs/BLAS/hipBLASLt/stage"), "hipblaslt");
        assert_eq!(module_name("third-party/AOTriton"), "aotriton");
        assert_eq!(module_name("stage"), "stage");
    }
}
