//! The mark of artifact directories that kpack wrote: `.kpack-artifact`, beside the list of prefixes. A
//! directory with a mark may be replaced, and the mark says which databases were split.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::manifest_txt;
use super::names::{MARK, Role};
use kpack_core::files;
use kpack_core::publish::Directory;
use kpack_core::{Error, Reason, ids};
use kpack_split::input::or_refused;
use kpack_tree::DatabaseSelection;

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
pub(crate) fn to_bytes(selection: &DatabaseSelection) -> Result<Vec<u8>, Error> {
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

/// The databases that were split when the artifact with this role was written.
///
/// # Errors
/// As [`noted`].
pub(crate) fn databases(artifact: &Path, role: &Role) -> Result<DatabaseSelection, Error> {
    Ok(noted(artifact)?.unwrap_or_else(|| without_mark(role)))
}

/// The databases to expect in an artifact without a mark: other tools write none, and some packers drop it. What is in
/// the artifact of a target is there because its database was split, so all databases count there; elsewhere the
/// default ones do.
pub(crate) fn without_mark(role: &Role) -> DatabaseSelection {
    match role {
        Role::Target(_) | Role::Group => DatabaseSelection::all(),
        Role::Generic | Role::Unsplit => DatabaseSelection::default(),
    }
}

/// The databases that the mark of an artifact names; `None` if it has no mark.
///
/// # Errors
/// [`Error::Refused`] for a mark that this version does not understand; [`Error::Io`].
pub fn noted(artifact: &Path) -> Result<Option<DatabaseSelection>, Error> {
    let path = artifact.join(MARK);
    let failed = |e| Error::io(&path, "read", e);
    let file = match fs::metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
        Ok(found) if !found.is_file() => {
            let text = "not a regular file; remove it";
            return Err(Error::rejected(ids::UNSUPPORTED_MARK, &path, text));
        }
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
        Ok(Mark { format_version: 1, databases }) => DatabaseSelection::from_names(databases)
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
    artifact.join(MARK).is_file()
}

/// Refuses to replace the entry `name` of the directory `above` unless kpack wrote it, or it is an empty directory, as
/// Ninja creates for a command's output. With `replace_artifacts`, other tools' artifacts may be replaced as well.
pub(crate) fn check_replaceable_with(
    above: &Directory,
    name: &Path,
    replace_artifacts: bool,
) -> Result<(), Error> {
    let checked = check_replaceable(above, name);
    if checked.is_ok() || !is_artifact(above, name)? {
        return checked;
    }
    if replace_artifacts {
        return Ok(());
    }
    let advice = "choose another output directory, remove this one, or pass --replace-artifacts to replace it";
    Err(in_the_way(above, name, advice))
}

/// Checks that output may replace the entry `name` of the directory `above`: that it is missing, empty, or an artifact
/// directory with a mark.
pub(crate) fn check_replaceable(above: &Directory, name: &Path) -> Result<(), Error> {
    if !above.has(name.as_ref())? {
        return Ok(());
    }
    if let Ok(there) = above.below(name)
        && (there.open_file(MARK.as_ref())?.is_some() || there.names()?.is_empty())
    {
        return Ok(());
    }
    Err(in_the_way(above, name, "choose another output directory, or remove this one"))
}

/// The error about the entry `name` of the directory `above`, which stays.
fn in_the_way(above: &Directory, name: &Path, advice: &str) -> Error {
    let reason = format!(
        "is in the way: kpack replaces only directories that it wrote, which have a file {MARK}; {advice}"
    );
    Error::rejected(ids::OUTPUT_IN_THE_WAY, &above.path().join(name), reason)
}

/// Whether the entry `name` of the directory `above` is an artifact directory, whoever wrote it, and nothing else: a
/// user's files beside the prefixes, such as `.git`, must not be lost with them.
///
/// # Errors
/// [`Error::Io`].
fn is_artifact(above: &Directory, name: &Path) -> Result<bool, Error> {
    if !above.has(name.as_ref())? {
        return Ok(false);
    }
    let Ok(there) = above.below(name) else { return Ok(false) };
    let Some(mut file) = there.open_file(manifest_txt::FILE_NAME.as_ref())? else {
        return Ok(false);
    };
    let mut bytes = Vec::new();
    let path = there.path().join(manifest_txt::FILE_NAME);
    file.read_to_end(&mut bytes).map_err(|e| Error::io(&path, "read", e))?;
    let Ok(text) = String::from_utf8(bytes) else { return Ok(false) };
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let Ok(prefixes) = or_refused(manifest_txt::parse(&path, text))? else { return Ok(false) };
    let root = there.anchor();
    let mut has_prefix = prefixes.is_empty();
    for prefix in &prefixes {
        match or_refused(manifest_txt::prefix_directory(&root, prefix))? {
            Ok(directory) => has_prefix |= directory.is_some(),
            Err(_) => return Ok(false),
        }
    }
    let outside = manifest_txt::walk_outside(&root, &prefixes).next().transpose()?;
    Ok(has_prefix && outside.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_lists_no_more_rules_than_are_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let rules = |count: usize| {
            let rule = |index| format!("n{index}=lib/{{target}}/kernels.co");
            DatabaseSelection::from_names((0..count).map(rule).collect()).unwrap()
        };
        let bytes = to_bytes(&rules(1000)).unwrap();
        fs::write(directory.path().join(MARK), bytes).unwrap();
        assert_eq!(noted(directory.path()).unwrap(), Some(rules(1000)));
        let error = to_bytes(&rules(3000)).unwrap_err().to_string();
        assert!(error.contains("(at most 65536)"), "{error}");
        let many = naming(rules(3000).names());
        fs::write(directory.path().join(MARK), many).unwrap();
        let error = noted(directory.path()).unwrap_err().to_string();
        assert!(error.contains("larger than 65536 bytes"), "{error}");
    }

    #[test]
    fn only_directories_with_nothing_but_an_artifact_are_artifacts() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let make = |name: &str, list: &str| {
            fs::create_dir_all(path(name).join("a/stage/lib")).unwrap();
            fs::write(path(name).join(manifest_txt::FILE_NAME), list).unwrap();
        };
        for name in ["whole", "repository", "file", "marked"] {
            make(name, "a/stage\nb/stage\n");
        }
        fs::write(path("marked").join(MARK), "").unwrap();
        fs::create_dir(path("repository/.git")).unwrap();
        fs::write(path("file/a/thesis"), "").unwrap();
        make("other prefixes", "b/stage\n");
        fs::remove_dir_all(path("other prefixes/a")).unwrap();
        make("invalid", "../a\n");
        for name in ["directory", "dangling", "link", "fifo"] {
            fs::create_dir_all(path(name).join("a/stage")).unwrap();
        }
        let list = |name: &str| path(name).join(manifest_txt::FILE_NAME);
        fs::create_dir(list("directory")).unwrap();
        std::os::unix::fs::symlink("nowhere", list("dangling")).unwrap();
        std::os::unix::fs::symlink(list("whole"), list("link")).unwrap();
        let made = std::process::Command::new("mkfifo").arg(list("fifo")).status();
        assert!(made.unwrap().success());
        let above = Directory::open(directory.path()).unwrap();
        for name in fs::read_dir(directory.path()).unwrap() {
            let name = name.unwrap().file_name();
            let expected = name == "whole" || name == "marked";
            assert_eq!(is_artifact(&above, name.as_ref()).unwrap(), expected, "{name:?}");
        }
    }

    #[test]
    fn a_mark_that_is_no_file_is_neither_read_nor_trusted() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("a").join(MARK)).unwrap();
        let error = noted(&directory.path().join("a")).unwrap_err();
        assert_eq!(error.id(), ids::UNSUPPORTED_MARK);
        assert!(error.to_string().contains("not a regular file; remove it"), "{error}");
        let above = Directory::open(directory.path()).unwrap();
        assert!(check_replaceable(&above, "a".as_ref()).is_err());
    }

    #[test]
    fn what_a_link_leads_to_is_not_replaceable() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for name in ["empty", "marked", "other"] {
            fs::create_dir(path(name)).unwrap();
        }
        fs::write(path("marked").join(MARK), "").unwrap();
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
