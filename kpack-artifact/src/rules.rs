//! What several artifacts may have together, by rules that split, recombine and verify share: no two files at one path,
//! and no kernels without their host file.

use std::collections::hash_map;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use kpack_format::archive::Toc;
use kpack_format::names::KernelName;

use super::compare::{Difference, entry_differences, same_bytes};
use kpack_core::Error;
use kpack_format::names::is_object;
use kpack_tree::{Class, Entry, Node};

/// An entry of an artifact that is installed.
#[derive(Clone, Copy)]
pub(crate) struct InstalledEntry<'a> {
    /// Its path in the installation.
    pub(crate) at: &'a Path,
    pub(crate) component: &'a str,
    pub(crate) artifact: &'a Path,
    /// Whether the artifact is of a group that may have a target in common with others.
    pub(crate) may_share: bool,
    /// Its path in the artifact.
    pub(crate) path: &'a Path,
    pub(crate) content: EntryContent<'a>,
}

/// What an entry is.
#[derive(Clone, Copy)]
pub(crate) enum EntryContent<'a> {
    Directory,
    /// A file or symbolic link, with bytes that change, by offset.
    File(&'a Path, &'a [(u64, Vec<u8>)]),
    /// The bytes of a file that is to be written.
    Bytes(&'a [u8]),
}

/// Two entries that would be installed at one path.
pub(crate) struct Conflict<'a> {
    pub(crate) entry: InstalledEntry<'a>,
    pub(crate) other: InstalledEntry<'a>,
    /// Whether it is harmless: two components install the same file.
    pub(crate) is_harmless: bool,
    /// What to say of the entry.
    pub(crate) text: String,
}

/// The conflicts between entries that are installed into one prefix.
///
/// Directories may be in several artifacts. One artifact may have the same file in several prefixes,
/// and a target may be in several groups.
pub(crate) fn conflicts<'a>(
    entries: impl Iterator<Item = InstalledEntry<'a>> + Clone,
) -> Result<Vec<Conflict<'a>>, Error> {
    // Few places are taken twice, and remembering what is in each would take much memory.
    let mut taken = HashSet::new();
    let places = entries.clone().map(|entry| entry.at);
    let twice: HashSet<&Path> = places.filter(|at| !taken.insert(*at)).collect();
    drop(taken);
    let mut first: HashMap<&Path, InstalledEntry<'a>> = HashMap::new();
    let mut found = Vec::new();
    for entry in entries.filter(|entry| twice.contains(entry.at)) {
        let other = *match first.entry(entry.at) {
            hash_map::Entry::Vacant(free) => {
                free.insert(entry);
                continue;
            }
            hash_map::Entry::Occupied(ref other) => other.get(),
        };
        if let (EntryContent::Directory, EntryContent::Directory) = (other.content, entry.content) {
            continue;
        }
        let is_one_artifact = other.artifact == entry.artifact;
        let is_one_component = other.component == entry.component;
        let may_share = other.may_share && entry.may_share;
        let may_be_same = is_one_artifact || !is_one_component || may_share;
        let same = may_be_same && other.content.is_same(entry.content)?;
        if is_one_component && same {
            continue;
        }
        let (artifact, at) = (other.artifact.display(), entry.at.display());
        let path = other.artifact.join(other.path);
        let file = path.display();
        let text = match (is_one_artifact, is_one_component) {
            (true, _) => format!("is not the same as {file}, and both are installed as {at}"),
            (_, true) => format!("is in {artifact} as well; expected it in one artifact only"),
            _ if same => format!(
                "is the same as {file} of another component, and both are installed as {at}"
            ),
            _ => format!(
                "is not the same as {file} of another component, and both are installed as {at}; \
                 let one component have it"
            ),
        };
        found.push(Conflict { entry, other, is_harmless: same, text });
    }
    Ok(found)
}

impl EntryContent<'_> {
    fn is_same(self, other: EntryContent<'_>) -> Result<bool, Error> {
        use EntryContent::{Bytes, Directory, File};
        match (self, other) {
            (Directory, Directory) => Ok(true),
            (Bytes(one), Bytes(other)) => Ok(one == other),
            (Bytes(bytes), File(path, edits)) | (File(path, edits), Bytes(bytes)) => {
                let failed = |e| Error::io(path, "read", e);
                let metadata = fs::symlink_metadata(path).map_err(failed)?;
                let has_size = !metadata.is_symlink() && metadata.len() == bytes.len() as u64;
                let may_be = edits.is_empty() && has_size;
                Ok(may_be && fs::read(path).map_err(failed)? == bytes)
            }
            (File(one, edits), File(other, other_edits)) => {
                let same_bytes = || Ok(edits == other_edits && same_bytes(one, other)?);
                for found in entry_differences(one, other, same_bytes)? {
                    if !matches!(found?, Difference::Mode(_) | Difference::Names(_)) {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            (Directory, _) | (_, Directory) => Ok(false),
        }
    }
}

/// What is found instead of the host file that kernels belong to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HostFault {
    /// Nothing.
    Missing,
    /// A file that loads no kernels, at this path in the artifact: truncated, for example.
    NotSplit(PathBuf),
}

/// The binaries that the archive at `path` in an artifact has kernels for, but that are missing or not
/// split. `prefixes` are those of the artifact; `entry` finds what is at a path, in any of the artifacts.
pub(crate) fn kernels_without_host<'t>(
    path: &Path,
    toc: &Toc,
    prefixes: &[String],
    entry: &dyn Fn(&Path) -> Option<&'t Entry>,
) -> BTreeMap<String, HostFault> {
    let kernels = toc.kernels.keys();
    let binaries: BTreeSet<&str> =
        kernels.filter_map(|kernel| KernelName::binary_of(kernel)).collect();
    let mut found = BTreeMap::new();
    for binary in binaries.into_iter().filter(|binary| !is_object(binary)) {
        let mut host = Some(HostFault::Missing);
        // The archive is somewhere in the prefix that its kernels are named in, or in the first of several.
        let around = path.ancestors().skip(1);
        for prefix in around.chain(prefixes.iter().map(Path::new)) {
            let place = prefix.join(binary);
            match entry(&place) {
                None => {}
                Some(item) if *item.class == Class::Split || item.node == Node::Symlink => {
                    host = None;
                    break;
                }
                Some(_) => host = Some(HostFault::NotSplit(place)),
            }
        }
        found.extend(host.map(|host| (binary.to_owned(), host)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_entry_in_a_taken_place_conflicts_but_directories_do_not() {
        use EntryContent::{Bytes, Directory};
        let entry = |artifact: &'static str, at: &'static str, content| InstalledEntry {
            at: Path::new(at),
            component: "blas",
            artifact: Path::new(artifact),
            may_share: false,
            path: Path::new(at),
            content,
        };
        let entries = [
            entry("one", "lib", Directory),
            entry("one", "lib/a", Bytes(b"1")),
            entry("one", "lib/b", Bytes(b"1")),
            entry("two", "lib", Directory),
            entry("two", "lib/a", Bytes(b"1")),
            entry("three", "lib", Bytes(b"1")),
            entry("three", "lib/a", Directory),
        ];
        let found = conflicts(entries.into_iter()).unwrap();
        let found = found.iter().map(|found| {
            let [entry, other] =
                [found.entry, found.other].map(|one| one.artifact.to_str().unwrap());
            (entry, other, found.entry.at.to_str().unwrap())
        });
        let expected =
            [("two", "one", "lib/a"), ("three", "one", "lib"), ("three", "one", "lib/a")];
        assert_eq!(Vec::from_iter(found), expected);
    }
}
