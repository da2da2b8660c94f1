//! An artifact directory as data: its role, which its name tells, and its entries, read once.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kpack_format::names::{Group, is_manifest};
use kpack_format::tensile::Library;
use kpack_format::{TargetId, target_names};
use walkdir::{DirEntry, WalkDir};

use super::manifest_txt;
use super::mark;
use super::names;
use kpack_core::platform::SharedInode;
use kpack_core::publish::is_leftover;
use kpack_core::{Error, Finding, Id, Spirv};
use kpack_split::input::{ClosedBinary, LinkedBinary, or_refused, walk};
use kpack_split::leftover::{directories, is_leftover_entry};
use kpack_tree::databases::for_all;
use kpack_tree::gaps::DatabaseFile;
use kpack_tree::place::{ForAll, Merge};
use kpack_tree::{
    Class, Classified, EntryPath, KPACK, Node, Only, Parsed, Selection, Walk, mark_empty,
    no_more_kept,
};

/// What belongs in an artifact directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Host files.
    Generic,
    /// Device code of one target.
    Target(TargetId),
    /// Device code of several targets.
    Group,
    /// Unsplit: everything.
    Unsplit,
}

/// The directories in one directory, sorted by path, and what they are by their names.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Siblings {
    /// Artifact directories: path, component and role.
    pub artifacts: Vec<(PathBuf, String, Role)>,
    /// Leftovers of interrupted runs.
    pub leftovers: Vec<PathBuf>,
    /// Directories without a list of prefixes; hidden ones are somebody's work in progress.
    pub others: Vec<PathBuf>,
}

/// Whether a directory is an artifact directory: whether it lists its prefixes.
pub(crate) fn is_artifact(path: &Path) -> bool {
    path.join(manifest_txt::FILE_NAME).is_file()
}

/// How deep to look for artifact directories: a directory of shards contains directories of
/// artifacts.
const DEPTH: usize = 3;

/// The artifact directories at and below `path`, and the leftover directories of interrupted runs, which
/// are not looked into. `failed` gets what cannot be listed.
pub(crate) fn find_artifacts(
    path: &Path,
    failed: impl Fn(walkdir::Error) -> Result<(), Error>,
) -> Result<(Vec<PathBuf>, Vec<PathBuf>), Error> {
    let (mut found, mut leftovers) = (Vec::new(), Vec::new());
    let mut walk = walk(path).max_depth(DEPTH).into_iter();
    while let Some(entry) = walk.next() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                failed(error)?;
                continue;
            }
        };
        let is_leftover = entry.file_type().is_dir() && is_leftover_entry(&entry);
        if is_leftover || is_artifact(entry.path()) {
            let list = if is_leftover { &mut leftovers } else { &mut found };
            list.push(entry.into_path());
            walk.skip_current_dir();
        }
    }
    Ok((found, leftovers))
}

impl Siblings {
    /// Reads the names in `directory`.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn read(directory: &Path) -> Result<Self, Error> {
        let mut found = Self::default();
        let mut artifacts = Vec::new();
        for path in directories(directory)? {
            let name = path.file_name().unwrap_or_default();
            if is_leftover(name) {
                found.leftovers.push(path);
            } else if is_artifact(&path) {
                artifacts.push(path);
            } else {
                found.others.push(path);
            }
        }
        for path in &artifacts {
            let (component, role) = role(path, &artifacts);
            found.artifacts.push((path.clone(), component, role));
        }
        Ok(found)
    }

    /// The artifacts of a component, the generic one first.
    pub(crate) fn of(&self, component: &str) -> Vec<(PathBuf, Role)> {
        let own = self.artifacts.iter();
        let own = own.filter(|(_, own, role)| own == component && *role != Role::Unsplit);
        let own = own.map(|(path, _, role)| (path.clone(), role.clone()));
        let mut own: Vec<(PathBuf, Role)> = own.collect();
        own.sort_by_key(|(_, role)| *role != Role::Generic);
        own
    }
}

/// The component and role of an artifact directory, by its name, its manifests and those `beside` it.
/// The component of one that is not split is its whole name.
fn role(path: &Path, beside: &[PathBuf]) -> (String, Role) {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let parsed = names::parse(&name);
    if let Some((component, None)) = parsed {
        return (component.to_owned(), Role::Generic);
    }
    // A group may be called after one of its targets; its own manifests say so.
    let manifests = manifest_names(path);
    for (at, _) in name.rmatch_indices('_') {
        let (component, suffix) = (&name[..at], &name[at + 1..]);
        let has_generic = || {
            let generic = format!("{component}_{}", names::GENERIC);
            beside.iter().any(|path| path.ends_with(&generic))
        };
        if manifests.iter().any(|name| is_part(name, suffix))
            || target_names::exact(suffix).is_none() && has_generic()
        {
            return (component.to_owned(), Role::Group);
        }
    }
    match parsed {
        Some((component, Some(target))) => (component.to_owned(), Role::Target(target)),
        _ => (name.into_owned(), Role::Unsplit),
    }
}

/// Whether an artifact directory is a group's, by its name and the manifests in it.
pub(crate) fn is_of_group(artifact: &Path) -> bool {
    role_of(artifact) == Role::Group
}

/// The role of an artifact directory, by its name and the manifests in it.
pub(crate) fn role_of(artifact: &Path) -> Role {
    let real = artifact.canonicalize();
    role(real.as_deref().unwrap_or(artifact), &[]).1
}

/// The targets that the artifact of a group has code for.
///
/// # Errors
/// [`Error::Refused`] for a list of prefixes that is invalid; [`Error::Io`].
pub fn targets_of_group(artifact: &Path) -> Result<BTreeSet<TargetId>, Error> {
    let entries = Tree::read("", artifact, &Role::Group)?.entries.into_values();
    let targets = entries.filter_map(|item| match &*item.class {
        Class::Target { target, .. } => Some(target.clone()),
        _ => None,
    });
    Ok(targets.collect())
}

/// Whether the manifest with this name is the part of a group: `rocblas_lib.gfx110X.kpm`.
fn is_part(manifest: &str, group: &str) -> bool {
    manifest.ends_with(&Group::from("").fragment(group))
}

/// The names of the manifests in an artifact directory.
pub(crate) fn manifest_names(artifact: &Path) -> Vec<String> {
    let files = WalkDir::new(artifact).into_iter().flatten();
    let files = files.filter(|entry| is_manifest(entry.path()));
    files.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// An artifact directory and its content.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tree {
    /// Its shard, for messages.
    pub(crate) shard: Arc<str>,
    pub(crate) root: PathBuf,
    pub(crate) prefixes: Vec<String>,
    /// Listed prefixes that do not exist.
    pub(crate) missing: Vec<String>,
    /// By path in the artifact directory. Parents of the prefixes are included.
    pub(crate) entries: BTreeMap<EntryPath, Item>,
    /// What is in no prefix: files, and directories that do not lead to one.
    pub(crate) unlisted: Vec<DirEntry>,
    /// Observations about the files in the prefixes, with full paths.
    pub(crate) observations: Vec<Finding>,
    /// Files that cannot be classified, and why. The prefix of such a file is left empty.
    pub(crate) rejected: Vec<Finding>,
}

#[derive(Debug, Clone)]
pub(crate) struct Item {
    /// Shared with the others of its prefix.
    pub(crate) origin: Arc<Origin>,
    pub(crate) from: Arc<Path>,
    pub(crate) node: Node,
    pub(crate) shared_inode: Option<Box<SharedInode>>,
    /// Shared with others of its class.
    pub(crate) class: Arc<Class>,
    /// What was read of it, if it is a binary with device code, split or not.
    pub(crate) binary: Option<Arc<ClosedBinary>>,
    /// That of the [entry](super::classify::Entry).
    pub(crate) library: Option<Arc<Library>>,
}

/// Where an entry was found.
#[derive(Debug)]
pub(crate) struct Origin {
    /// The shard of its tree.
    pub(crate) shard: Arc<str>,
    /// The prefix that it is in, of those of the artifact; empty for what is in none.
    pub(crate) prefix: Arc<str>,
}

impl Item {
    pub(crate) fn is_directory(&self) -> bool {
        matches!(self.node, Node::Directory { .. })
    }

    /// The binary, opened again.
    ///
    /// # Errors
    /// [`Error::Changed`] if it was replaced or modified.
    pub(crate) fn linked(&self) -> Result<LinkedBinary, Error> {
        match &self.binary {
            Some(closed) => closed.open(),
            None => LinkedBinary::open(&self.from),
        }
    }

    /// Size in bytes; 0 if it is not a file.
    pub(crate) fn size(&self) -> u64 {
        match self.node {
            Node::File { size } => size,
            _ => 0,
        }
    }

    /// The installed path for a path in the artifact; `None` for what is outside the prefix.
    pub(crate) fn installed<'p>(&self, path: &'p Path) -> Option<&'p Path> {
        path.strip_prefix(&*self.origin.prefix).ok()
    }

    /// How to merge the copies of a file that all targets share. `path` is its path in the artifact.
    pub(crate) fn for_all(&self, path: &Path) -> Option<ForAll> {
        let how = for_all(self.installed(path)?)?;
        match (how, self.node) {
            (_, Node::Directory { .. }) | (ForAll::Merge(_), Node::Symlink) => None,
            _ => Some(how),
        }
    }

    /// How to merge the copies of a file that each shard has a part of.
    pub(crate) fn shared(&self, path: &Path) -> Option<Merge> {
        match self.for_all(path)? {
            ForAll::Merge(merge) => Some(merge),
            ForAll::MustMatch(_) => None,
        }
    }

    /// The target that it is for: its own, or that of the artifact that it is in.
    pub(crate) fn target<'t>(&'t self, artifact: Option<&'t TargetId>) -> Option<&'t TargetId> {
        match &*self.class {
            Class::Target { target, .. } => Some(target),
            Class::Unknown { target, .. } => artifact.map(|own| target.as_ref().unwrap_or(own)),
            Class::Host | Class::Fat | Class::Split => artifact,
        }
    }

    /// Whether it is an archive of kernels.
    pub(crate) fn is_kpack(&self) -> bool {
        matches!(&*self.class, Class::Target { database, .. } if *database == KPACK)
    }

    /// Whether it is a manifest of kpacks.
    pub(crate) fn is_manifest(&self) -> bool {
        matches!(self.node, Node::File { .. }) && is_manifest(&self.from)
    }
}

impl Tree {
    pub(crate) fn empty(shard: &str, root: &Path) -> Self {
        Self { shard: shard.into(), root: root.to_owned(), ..Self::default() }
    }

    /// Reads the artifact directory `root` of `shard`, whose databases are those of its mark.
    ///
    /// # Errors
    /// [`Error::Refused`] for an invalid list of prefixes or mark; [`Error::Io`].
    pub(crate) fn read(shard: &str, root: &Path, role: &Role) -> Result<Self, Error> {
        Self::read_with(shard, root, &mark::databases(root, role)?)
    }

    /// As [`read`](Self::read), with these databases.
    pub(crate) fn read_with(
        shard: &str,
        root: &Path,
        databases: &Selection,
    ) -> Result<Self, Error> {
        Self::read_once(shard, root, databases, Parsed::default())
    }

    /// As [`read_with`](Self::read_with), without parsing what is `parsed`.
    pub(crate) fn read_once(
        shard: &str,
        root: &Path,
        databases: &Selection,
        parsed: Parsed<'_>,
    ) -> Result<Self, Error> {
        let mut tree = Self::empty(shard, root);
        for prefix in manifest_txt::read(root)? {
            match manifest_txt::directory(root, &prefix)? {
                Some(_) => tree.prefixes.push(prefix),
                None => tree.missing.push(prefix),
            }
        }
        let unlisted = manifest_txt::walk_outside(root, &tree.prefixes);
        tree.unlisted = unlisted.collect::<Result<_, Error>>()?;
        for prefix in BTreeSet::from_iter(tree.prefixes.clone()) {
            let directory = root.join(&prefix);
            let mut content = PrefixContent::new(&tree.shard, root, &prefix);
            let add = |classified| content.add(classified);
            let walk = Walk { prefix: &directory, databases, parsed, only: Only::All };
            match or_refused(walk.each(add))? {
                Ok(_) => tree.add(content),
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

    /// Takes binaries that stay because of their SPIR-V for fat ones, if that is dropped or archived.
    pub(crate) fn treat_spirv(&mut self, spirv: Spirv) {
        let fat = no_more_kept(&mut self.observations, spirv);
        let items = self.entries.values_mut();
        let items = items.filter(|item| fat.contains(&*item.from));
        let class = Arc::new(Class::Fat);
        items.for_each(|item| item.class = Arc::clone(&class));
    }

    pub(crate) fn about(&self, id: Id) -> impl Iterator<Item = &Finding> {
        let observations = self.observations.iter();
        observations.filter(move |found| found.id == id)
    }

    pub(crate) fn add(&mut self, mut content: PrefixContent<'_>) {
        let host = content.classes.share(Class::Host);
        let entries = content.entries.iter_mut();
        let entries = entries.map(|(path, item)| (&**path, &mut item.node, &mut item.class));
        mark_empty(entries, &host);
        // They come in order, so this compares far fewer paths than inserting each.
        let mut entries = BTreeMap::from_iter(std::mem::take(&mut content.entries));
        for above in Path::new(content.prefix).ancestors() {
            if above != Path::new("") && !self.entries.contains_key(above) {
                let above = EntryPath::new(&self.root, above);
                let directory = content.item(&above, Node::Directory { empty: false }, Class::Host);
                entries.insert(above, directory);
            }
        }
        self.entries.append(&mut entries);
        self.observations.append(&mut content.observations);
    }

    /// The entries in the prefixes, with their installed paths.
    pub(crate) fn in_prefixes(&self) -> impl Iterator<Item = (&Path, &Path, &Item)> {
        let entries = self.entries.iter();
        let installed =
            entries.filter_map(|(path, item)| Some((item.installed(path)?, &**path, item)));
        installed.filter(|(at, ..)| *at != Path::new(""))
    }

    /// The entry at `path`, and those below it.
    pub(crate) fn at_and_below(&self, path: &Path) -> impl Iterator<Item = &Item> {
        let from = self.entries.range::<Path, _>((Bound::Included(path), Bound::Unbounded));
        from.take_while(move |(at, _)| at.starts_with(path)).map(|(_, item)| item)
    }

    /// Adds what only `other` has, without manifests.
    pub(crate) fn add_missing(&mut self, other: Self) {
        for prefix in other.prefixes {
            if !self.prefixes.contains(&prefix) {
                self.prefixes.push(prefix);
            }
        }
        for (path, item) in other.entries {
            if !item.is_manifest() {
                self.entries.entry(path).or_insert(item);
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
            if let Some((path, item)) = other.entries.get_key_value(above)
                && !self.entries.contains_key(path)
            {
                self.entries.insert(path.clone(), item.clone());
            }
        }
    }
}

/// The files of an artifact.
pub(crate) fn files_of(tree: &Tree) -> impl Iterator<Item = DatabaseFile<'_>> {
    let files = tree.entries.iter().filter(|(_, item)| !item.is_directory());
    files.map(|(path, item)| DatabaseFile {
        path,
        is_link: item.node == Node::Symlink,
        class: &item.class,
        library: item.library.as_deref(),
    })
}

/// The classes of entries, each once.
#[derive(Default)]
struct Classes(BTreeSet<Arc<Class>>);

impl Classes {
    fn share(&mut self, class: Class) -> Arc<Class> {
        self.0.get(&class).cloned().unwrap_or_else(|| {
            let class = Arc::new(class);
            self.0.insert(Arc::clone(&class));
            class
        })
    }
}

/// The content of a prefix, or with an empty prefix, what is in none.
pub(crate) struct PrefixContent<'a> {
    root: &'a Path,
    prefix: &'a str,
    origin: Arc<Origin>,
    entries: Vec<(EntryPath, Item)>,
    observations: Vec<Finding>,
    classes: Classes,
}

impl<'a> PrefixContent<'a> {
    pub(crate) fn new(shard: &Arc<str>, root: &'a Path, prefix: &'a str) -> Self {
        Self {
            root,
            prefix,
            origin: Origin { shard: Arc::clone(shard), prefix: prefix.into() }.into(),
            entries: Vec::new(),
            observations: Vec::new(),
            classes: Classes::default(),
        }
    }

    fn item(&mut self, path: &EntryPath, node: Node, class: Class) -> Item {
        Item {
            origin: Arc::clone(&self.origin),
            from: Arc::clone(path.full()),
            node,
            shared_inode: None,
            class: self.classes.share(class),
            binary: None,
            library: None,
        }
    }

    pub(crate) fn add(&mut self, Classified { entry, observations, binary }: Classified) {
        let directory = Path::new(self.prefix);
        let path = EntryPath::new(self.root, &directory.join(&entry.path));
        let item = self.item(&path, entry.node, entry.class);
        let (shared_inode, library) = (entry.shared_inode.map(Box::new), entry.library);
        self.entries.push((path, Item { shared_inode, binary, library, ..item }));
        for mut observation in observations {
            let within = directory.join(observation.file());
            observation.path = Some(self.root.join(within));
            self.observations.push(observation);
        }
    }
}
