//! The mark of artifact directories that kpack wrote: `.kpack-artifact`, beside the list of prefixes. A
//! directory with a mark may be replaced, and the mark says which databases were split.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::databases::Selection;
use super::manifest_txt;
use super::tree::Role;
use kpack_core::files;
use kpack_core::publish::Directory;
use kpack_core::{Error, Reason, ids};

/// The name of the file.
pub const FILE_NAME: &str = ".kpack-artifact";

/// The most bytes of a mark. Each of its rules is compared with each path of the artifact, which others may have made.
const MAX_SIZE: usize = 64 << 10;

#[derive(Serialize, Deserialize)]
struct Mark {
    format_version: u32,
    /// The databases whose files are in the artifacts of their targets, and rules for other kernel files. Databases
    /// are stored by name, because a later version of kpack may know more of them.
    databases: Vec<String>,
}

/// The bytes of the mark for an artifact whose databases in `selection` were split.
///
/// # Errors
/// [`Error::Usage`] if they are more than [`databases`] reads.
pub(crate) fn to_bytes(selection: &Selection) -> Result<Vec<u8>, Error> {
    let bytes = naming(selection.names());
    if bytes.len() > MAX_SIZE {
        let size = bytes.len();
        return Err(Error::usage(format!(
            "the rules for kernel files have {size} bytes as an artifact lists them (at most {MAX_SIZE}); write fewer rules"
        )));
    }
    Ok(bytes)
}

/// The bytes of the mark for an artifact whose databases of these names were split.
pub fn naming(databases: Vec<String>) -> Vec<u8> {
    let mark = Mark { format_version: 1, databases };
    let mut bytes = serde_json::to_vec(&mark).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// The databases that were split when the artifact with this role was written. Without a mark, nobody knows: other
/// tools write none, and some packers drop it. What is in the artifact of a target is there because its database was
/// split, so all databases count there; elsewhere the default ones do.
///
/// # Errors
/// As [`noted`].
pub(crate) fn databases(artifact: &Path, role: &Role) -> Result<Selection, Error> {
    Ok(noted(artifact)?.unwrap_or_else(|| match role {
        Role::Target(_) | Role::Group => Selection::all(),
        Role::Generic | Role::Unsplit => Selection::default(),
    }))
}

/// The databases that the mark of an artifact names; `None` if it has no mark.
///
/// # Errors
/// [`Error::Refused`] for a mark that this version does not understand; [`Error::Io`].
pub fn noted(artifact: &Path) -> Result<Option<Selection>, Error> {
    let path = artifact.join(FILE_NAME);
    let failed = |e| Error::io(&path, "read", e);
    let file = match fs::metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
        Ok(_) => files::open(&path)?,
    };
    let mut bytes = Vec::new();
    file.take(MAX_SIZE as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > MAX_SIZE {
        let text = format!(
            "larger than {MAX_SIZE} bytes; split the artifact with fewer rules for kernel files"
        );
        return Err(Error::rejected(ids::UNSUPPORTED_MARK, &path, text));
    }
    match serde_json::from_slice(&bytes) {
        Ok(Mark { format_version: 1, databases }) => Selection::from_names(databases)
            .map(Some)
            .map_err(|error| Error::rejected(ids::UNSUPPORTED_MARK, &path, error.to_string())),
        Ok(Mark { format_version, .. }) => Err(Error::rejected(
            ids::UNSUPPORTED_MARK,
            &path,
            Reason::mismatch("unsupported version", 1, format_version).then("; use a later kpack"),
        )),
        Err(error) => Err(Error::rejected(ids::UNSUPPORTED_MARK, &path, error.to_string())),
    }
}

/// Whether kpack wrote the artifact.
pub fn is_marked(artifact: &Path) -> bool {
    artifact.join(FILE_NAME).is_file()
}

/// Refuses to replace the entry `name` of the directory `above` unless kpack wrote it, or it is an empty directory, as
/// Ninja creates for a command's output.
pub(crate) fn check_replaceable(above: &Directory, name: &Path) -> Result<(), Error> {
    if !above.has(name.as_ref())? {
        return Ok(());
    }
    if let Ok(there) = above.below(name)
        && (there.has(FILE_NAME.as_ref())? || there.names()?.is_empty())
    {
        return Ok(());
    }
    let reason = format!(
        "is in the way: kpack replaces only directories that it wrote, which have a file {FILE_NAME}; \
         choose another output directory, or remove this one"
    );
    Err(Error::rejected(ids::OUTPUT_IN_THE_WAY, &above.path().join(name), reason))
}

/// Whether the entry `name` of the directory `above` is an artifact directory, whoever wrote it.
pub(crate) fn is_artifact(above: &Directory, name: &Path) -> Result<bool, Error> {
    if !above.has(name.as_ref())? {
        return Ok(false);
    }
    match above.below(name) {
        Ok(there) => there.has(manifest_txt::FILE_NAME.as_ref()),
        Err(_) => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_lists_no_more_rules_than_are_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let rules = |count: usize| {
            let rule = |index| format!("n{index}=lib/{{target}}/kernels.co");
            Selection::from_names((0..count).map(rule).collect()).unwrap()
        };
        let bytes = to_bytes(&rules(1000)).unwrap();
        fs::write(directory.path().join(FILE_NAME), bytes).unwrap();
        assert_eq!(noted(directory.path()).unwrap(), Some(rules(1000)));
        let error = to_bytes(&rules(3000)).unwrap_err().to_string();
        assert!(error.contains("(at most 65536)"), "{error}");
        let many = naming(rules(3000).names());
        fs::write(directory.path().join(FILE_NAME), many).unwrap();
        let error = noted(directory.path()).unwrap_err().to_string();
        assert!(error.contains("larger than 65536 bytes"), "{error}");
    }

    #[test]
    fn what_a_link_leads_to_is_not_replaceable() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for name in ["empty", "marked", "other"] {
            fs::create_dir(path(name)).unwrap();
        }
        fs::write(path("marked").join(FILE_NAME), "").unwrap();
        fs::write(path("other/thesis"), "").unwrap();
        fs::write(path("file"), "").unwrap();
        let above = Directory::open(directory.path()).unwrap();
        let link = |name: &str| std::os::unix::fs::symlink("marked", path(name)).unwrap();
        link("link");
        for (name, expected) in [
            ("none", true),
            ("empty", true),
            ("marked", true),
            ("other", false),
            ("file", false),
            ("link", false),
        ] {
            assert_eq!(check_replaceable(&above, name.as_ref()).is_ok(), expected, "{name}");
        }
        // The directory is asked that is open, whatever has its name by now.
        let moved = directory.path().with_extension("moved");
        fs::rename(directory.path(), &moved).unwrap();
        fs::create_dir(directory.path()).unwrap();
        assert!(check_replaceable(&above, "other".as_ref()).is_err());
        fs::remove_dir_all(&moved).unwrap();
    }
}
