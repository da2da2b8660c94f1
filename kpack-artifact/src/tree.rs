//! An artifact directory as data: its entries, read once, and what belongs in it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kpack_format::TargetId;
use walkdir::DirEntry;

use super::manifest_txt;
use super::mark;
use super::names::Role;
use kpack_core::platform::FileTypeExt;
use kpack_core::{Error, Finding, Id, Severity, Spirv, ids};
use kpack_split::input::or_refused;
use kpack_tree::{Class, DatabaseSelection, Entry, Node, Only, Origin, Parsed, Tree, Walk};

/// The targets that the artifact of a group has code for.
///
/// # Errors
/// [`Error::Refused`] for a list of prefixes that is invalid; [`Error::Io`].
pub fn targets_of_group(artifact: &Path) -> Result<BTreeSet<TargetId>, Error> {
    let tree = ArtifactTree::read("", artifact, &Role::Group, Parsed::default())?;
    let targets = tree.entries.into_iter().filter_map(|item| match &*item.class {
        Class::Target { target, .. } => Some(target.clone()),
        _ => None,
    });
    Ok(targets.collect())
}

/// An artifact directory and its content.
#[derive(Debug, Clone, Default)]
pub(crate) struct ArtifactTree {
    /// Its shard, for messages.
    pub(crate) shard: Arc<str>,
    pub(crate) root: PathBuf,
    pub(crate) prefixes: Vec<String>,
    /// Listed prefixes that do not exist.
    pub(crate) missing: Vec<String>,
    /// By path in the artifact directory. Parents of the prefixes are included.
    pub(crate) entries: BTreeSet<Entry>,
    /// What is in no prefix: files, and directories that do not lead to one.
    pub(crate) unlisted: Vec<DirEntry>,
    /// Observations about the files in the prefixes, with full paths.
    pub(crate) observations: Vec<Finding>,
    /// Files that cannot be classified, and why. The prefix of such a file is left empty.
    pub(crate) rejected: Vec<Finding>,
}

impl ArtifactTree {
    pub(crate) fn empty(shard: &str, root: &Path) -> Self {
        Self { shard: shard.into(), root: root.to_owned(), ..Self::default() }
    }

    /// Reads the artifact directory `root` of `shard`, whose databases are those of its mark, without parsing what is
    /// `parsed`.
    ///
    /// # Errors
    /// [`Error::Refused`] for an invalid list of prefixes or mark; [`Error::Io`].
    pub(crate) fn read(
        shard: &str,
        root: &Path,
        role: &Role,
        parsed: Parsed<'_>,
    ) -> Result<Self, Error> {
        Self::read_with(shard, root, &mark::databases(root, role)?, parsed, Spirv::Keep)
    }

    /// As [`read`](Self::read), with these databases. Binaries that stay because of their SPIR-V count as fat ones if
    /// that is dropped or archived.
    pub(crate) fn read_with(
        shard: &str,
        root: &Path,
        databases: &DatabaseSelection,
        parsed: Parsed<'_>,
        spirv: Spirv,
    ) -> Result<Self, Error> {
        let mut tree = Self::empty(shard, root);
        for prefix in manifest_txt::read(root)? {
            match manifest_txt::prefix_directory(root, &prefix)? {
                Some(_) => tree.prefixes.push(prefix),
                None => tree.missing.push(prefix),
            }
        }
        let unlisted = manifest_txt::walk_outside(root, &tree.prefixes);
        tree.unlisted = unlisted.collect::<Result<_, Error>>()?;
        for prefix in BTreeSet::from_iter(tree.prefixes.clone()) {
            let directory = root.join(&prefix);
            let walk = Walk { prefix: &directory, databases, parsed, only: Only::All };
            match or_refused(walk.collect())? {
                Ok(mut found) => {
                    found.treat_spirv(spirv);
                    tree.add(&prefix, found);
                }
                Err(refused) => tree.rejected.push(refused),
            }
        }
        Ok(tree)
    }

    /// The files and symbolic links in no prefix.
    pub(crate) fn unlisted_files(&self) -> impl Iterator<Item = &Path> {
        let unlisted = self.unlisted.iter();
        let files = unlisted.filter(|entry| !entry.file_type().is_dir());
        files.map(DirEntry::path)
    }

    /// Drops what library files name, which takes memory.
    pub(crate) fn forget_libraries(&mut self) {
        let libraries = self.entries.iter().filter(|entry| entry.library.is_some());
        for path in Vec::from_iter(libraries.map(|entry| entry.path.clone())) {
            if let Some(mut entry) = self.entries.take(&*path) {
                entry.library = None;
                self.entries.insert(entry);
            }
        }
    }

    /// Adds what is in none of the prefixes to the entries, with an empty prefix. It is not installed, and nobody knows
    /// what it is for. Returns what to say about it.
    ///
    /// # Errors
    /// [`Error::Refused`] for what cannot be copied: a pipe, a socket, a device.
    pub(crate) fn add_unlisted(&mut self, is_generic: bool) -> Result<Vec<Finding>, Error> {
        let root = self.root.clone();
        let (databases, parsed) = (&DatabaseSelection::default(), Parsed::default());
        let walk = Walk { prefix: &root, databases, parsed, only: Only::All };
        let (mut entries, mut findings) = (Vec::new(), Vec::new());
        for found in &self.unlisted {
            let kind = found.file_type();
            if kind.is_fifo() || kind.is_socket() || kind.is_block_device() || kind.is_char_device()
            {
                let reason = "not a file, directory or symbolic link, and in no prefix; remove it";
                return Err(Error::rejected(ids::NOT_A_FILE, found.path(), reason));
            }
            match or_refused(walk.entry(found))? {
                Ok(read) => entries.push(read.entry),
                // It is not installed, so its damage does not matter.
                Err(read) => {
                    let text = format!("in no prefix, and damaged: {}", read.text);
                    findings.push(Finding::new(Severity::Note, read.id, read.file(), text));
                    entries.push(walk.unread(found)?.entry);
                }
            }
        }
        let listed = manifest_txt::FILE_NAME;
        for (top, files) in tops(&entries) {
            let text = match files {
                None => format!("is in no prefix that {listed} lists"),
                Some(1) => format!("has a file that is in no prefix that {listed} lists"),
                Some(files) => {
                    format!("has {files} files that are in no prefix that {listed} lists")
                }
            };
            let to = if is_generic {
                "; copied unchanged to the generic artifact"
            } else {
                "; copied unchanged"
            };
            let (id, path) = (ids::IN_NO_PREFIX, root.join(top));
            findings.push(Finding::new(Severity::Warning, id, path, text + to));
        }
        for entry in &mut entries {
            (entry.class, entry.library) = (in_no_prefix(&entry.class).into(), None);
            entry.binary = None;
        }
        self.add("", entries.into());
        Ok(findings)
    }

    /// What must not be in an artifact with this role, and why not.
    pub(crate) fn misplaced(&self, role: &Role) -> impl Iterator<Item = (&Entry, String)> {
        self.entries.iter().filter_map(move |item| match belongs(role, item)? {
            Misplaced::Wrong(reason) => Some((item, reason)),
            Misplaced::Unexplained(_) => None,
        })
    }

    /// The damaged files, and what does not belong in an artifact with this role, with `advice`.
    pub(crate) fn damage(&self, role: &Role, advice: &str) -> Vec<Finding> {
        let misplaced = self.misplaced(role).map(|(item, reason)| {
            let text = format!("it {reason}{advice}");
            Finding::new(Severity::Fault, ids::MISPLACED_FILE, item.full(), text)
        });
        let damaged = self.rejected.iter().chain(self.about(ids::DAMAGED_DATABASE_FILE)).cloned();
        damaged.chain(misplaced).collect()
    }

    /// What the artifact has for each target; `own` is the target that it is for, which entries of no target belong to.
    pub(crate) fn by_target(&self, own: Option<&TargetId>) -> BTreeMap<TargetId, Self> {
        let mut parts: BTreeMap<TargetId, Self> = BTreeMap::new();
        let mut others = Vec::new();
        let empty = || Self::empty(&self.shard, &self.root);
        for item in &self.entries {
            let is_within = item.node == (Node::Directory { empty: false }) || item.is_manifest();
            // Another target's files are misplaced, and stay where they are.
            let is_own = |target: &&TargetId| own.is_none_or(|own| target.plain() == own.plain());
            match item.class.target().filter(is_own) {
                Some(target) => {
                    let part = parts.entry(target.clone()).or_insert_with(empty);
                    part.add_from(self, &item.path);
                }
                None if is_within => {}
                None => others.push(&item.path),
            }
        }
        let own = own.or(parts.keys().next()).cloned();
        if let Some(own) = own
            && (parts.is_empty() || !others.is_empty())
        {
            let part = parts.entry(own).or_insert_with(empty);
            for path in others {
                part.add_from(self, path);
            }
        }
        parts
    }

    pub(crate) fn about(&self, id: Id) -> impl Iterator<Item = &Finding> {
        self.observations.iter().filter(move |found| found.id == id)
    }

    /// Adds what was `found` in a prefix, or with an empty prefix, what is in none.
    pub(crate) fn add(&mut self, prefix: &str, found: Tree) {
        let origin = Arc::new(Origin { tree: Arc::clone(&self.shard), prefix: prefix.into() });
        let entries = found.entries.into_iter().map(|entry| {
            let mut entry = entry.within(&self.root);
            entry.origin = Arc::clone(&origin);
            entry
        });
        // They come in order, so this compares far fewer paths than inserting each.
        let mut entries = BTreeSet::from_iter(entries);
        for above in Path::new(prefix).ancestors() {
            if above != Path::new("") && !self.entries.contains(above) {
                entries.insert(Entry::directory(&self.root, above, &origin));
            }
        }
        self.entries.append(&mut entries);
        let directory = self.root.join(prefix);
        self.observations.extend(found.observations.into_iter().map(|mut found| {
            found.path = Some(directory.join(found.file()));
            found
        }));
    }

    /// The entries in the prefixes, with their installed paths.
    pub(crate) fn in_prefixes(&self) -> impl Iterator<Item = (&Path, &Entry)> {
        self.entries
            .iter()
            .filter_map(|item| Some((item.installed()?, item)))
            .filter(|(at, _)| *at != Path::new(""))
    }

    /// The entry at `path`, and those below it.
    pub(crate) fn at_and_below(&self, path: &Path) -> impl Iterator<Item = &Entry> {
        let from = self.entries.range::<Path, _>((Bound::Included(path), Bound::Unbounded));
        from.take_while(move |entry| entry.path.starts_with(path))
    }

    /// Adds what only `other` has, without manifests.
    pub(crate) fn add_missing(&mut self, other: Self) {
        for prefix in other.prefixes {
            if !self.prefixes.contains(&prefix) {
                self.prefixes.push(prefix);
            }
        }
        for entry in other.entries {
            if !entry.is_manifest() && !self.entries.contains(&entry) {
                self.entries.insert(entry);
            }
        }
    }

    /// Adds an entry of another tree, with its parent directories.
    pub(crate) fn add_from(&mut self, other: &Self, path: &Path) {
        let Some(item) = other.entries.get(path) else {
            return;
        };
        if !self.prefixes.iter().any(|prefix| **prefix == *item.origin.prefix) {
            self.prefixes.push(item.origin.prefix.to_string());
        }
        for above in path.ancestors() {
            if let Some(entry) = other.entries.get(above)
                && !self.entries.contains(entry)
            {
                self.entries.insert(entry.clone());
            }
        }
    }
}

/// The topmost entries with files in them, and for a directory, how many.
fn tops(entries: &[Entry]) -> Vec<(&Path, Option<u64>)> {
    let mut tops: Vec<(&Path, Option<u64>)> = Vec::new();
    for entry in entries {
        let is_directory = matches!(entry.node, Node::Directory { .. });
        match tops.last_mut() {
            Some((top, files)) if entry.path.starts_with(&top) => {
                *files = files.map(|files| files + u64::from(!is_directory));
            }
            _ => tops.push((&entry.path, is_directory.then_some(0))),
        }
    }
    tops.retain(|(_, files)| *files != Some(0));
    tops
}

/// What looks architecture-specific is in no known place here, and stays generic.
fn in_no_prefix(class: &Class) -> Class {
    let (device_code, reason) = match class {
        Class::Fat => (true, "a fat binary".to_owned()),
        Class::Target { target, database } => (true, format!("for {target} ({database})")),
        Class::Unknown { device_code, reason, .. } => (*device_code, reason.clone()),
        Class::Host | Class::Split => return class.clone(),
    };
    Class::Unknown { target: None, device_code, reason: reason + " in no prefix" }
}

/// Why an entry does not belong in an artifact.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Misplaced {
    /// It must not be there.
    Wrong(String),
    /// It may be there, but its purpose is unknown.
    Unexplained(String),
}

/// Whether an entry belongs in an artifact with this role; `None` if it does.
pub(crate) fn belongs(role: &Role, item: &Entry) -> Option<Misplaced> {
    let artifact = match role {
        Role::Target(target) => format!("an artifact for {target}"),
        _ => "an artifact of targets".to_owned(),
    };
    let wrong = |text: String| Some(Misplaced::Wrong(text));
    let unexplained = |text: String| Some(Misplaced::Unexplained(text));
    match (role, &*item.class) {
        (Role::Unsplit, _) | (Role::Generic, Class::Host | Class::Split) => None,
        // Split leaves an empty one where it is.
        (Role::Generic, Class::Target { .. }) if item.is_directory() => None,
        (Role::Generic, Class::Target { target, database }) => {
            wrong(format!("is only for {target} ({database}), but in a generic artifact"))
        }
        (Role::Generic, Class::Fat) => wrong("is a fat binary in a generic artifact".to_owned()),
        (Role::Generic, Class::Unknown { reason, .. }) => {
            unexplained(format!("outside of the known places: {reason}"))
        }
        // Variants are in the artifact of their processor. ROCm's tool writes an artifact for each.
        (Role::Target(own), Class::Target { target, .. })
            if own != target && *own != target.plain() =>
        {
            wrong(format!("is for {target}, but in {artifact}"))
        }
        (_, Class::Unknown { target, reason, .. }) => match (role, target) {
            (Role::Target(own), Some(target)) if !own.agrees_with(target) => {
                wrong(format!("is for {target}, but in {artifact}: {reason}"))
            }
            (_, Some(_)) => None,
            (_, None) => unexplained(format!(
                "outside of the known places, and not for a single target: {reason}"
            )),
        },
        (_, Class::Target { .. }) => None,
        _ if item.is_manifest() => None,
        _ if item.node == (Node::Directory { empty: true }) => {
            unexplained("is an empty directory".to_owned())
        }
        _ if item.is_directory() => None,
        _ => wrong(format!("is for the host, but in {artifact}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given an entry and the role of its artifact, then it belongs there (no text), must not be there (`!`), or may be there
    /// for an unknown purpose (`?`).
    #[test]
    fn what_belongs_in_an_artifact() {
        const FILE: Node = Node::File { size: 1 };
        const EMPTY: Node = Node::Directory { empty: true };
        let id = |target: &str| target.parse::<TargetId>().unwrap();
        let of = |target| Class::Target { target: id(target), database: "rocBLAS".into() };
        let unknown = |target: Option<&str>| Class::Unknown {
            target: target.map(id),
            device_code: true,
            reason: "code".into(),
        };
        let gfx942 = || Role::Target(id("gfx942"));
        let unplaced = "? outside of the known places: code";
        let single = "? outside of the known places, and not for a single target: code";
        for (role, class, node, path, expected) in [
            (Role::Unsplit, Class::Fat, FILE, "lib", ""),
            (Role::Generic, Class::Host, FILE, "lib", ""),
            (Role::Generic, Class::Split, FILE, "lib", ""),
            (Role::Generic, Class::Fat, FILE, "lib", "! is a fat binary in a generic artifact"),
            (
                Role::Generic,
                of("gfx942"),
                FILE,
                "lib",
                "! is only for gfx942 (rocBLAS), but in a generic artifact",
            ),
            (Role::Generic, of("gfx942"), EMPTY, "lib", ""),
            (Role::Generic, unknown(Some("gfx942")), FILE, "lib", unplaced),
            (gfx942(), of("gfx942"), FILE, "lib", ""),
            (gfx942(), of("gfx942:xnack+"), FILE, "lib", ""),
            (
                Role::Target(id("gfx942:xnack+")),
                of("gfx942"),
                FILE,
                "lib",
                "! is for gfx942, but in an artifact for gfx942:xnack+",
            ),
            (gfx942(), of("gfx90a"), FILE, "lib", "! is for gfx90a, but in an artifact for gfx942"),
            (gfx942(), unknown(Some("gfx942")), FILE, "lib", ""),
            (
                gfx942(),
                unknown(Some("gfx90a")),
                FILE,
                "lib",
                "! is for gfx90a, but in an artifact for gfx942: code",
            ),
            (gfx942(), unknown(None), FILE, "lib", single),
            (
                gfx942(),
                Class::Host,
                FILE,
                "lib",
                "! is for the host, but in an artifact for gfx942",
            ),
            (gfx942(), Class::Host, FILE, "vec_lib.kpm", ""),
            (gfx942(), Class::Host, EMPTY, "lib", "? is an empty directory"),
            (gfx942(), Class::Host, Node::Directory { empty: false }, "lib", ""),
            (Role::Group, of("gfx90a"), FILE, "lib", ""),
            (Role::Group, unknown(None), FILE, "lib", single),
            (
                Role::Group,
                Class::Fat,
                FILE,
                "lib",
                "! is for the host, but in an artifact of targets",
            ),
        ] {
            let mut entry = Entry::directory(Path::new("root"), Path::new(path), &Arc::default());
            (entry.class, entry.node) = (Arc::new(class.clone()), node);
            let found = match belongs(&role, &entry) {
                None => String::new(),
                Some(Misplaced::Wrong(text)) => format!("! {text}"),
                Some(Misplaced::Unexplained(text)) => format!("? {text}"),
            };
            assert_eq!(found, expected, "{role:?} {class:?} {node:?}");
        }
    }
}
