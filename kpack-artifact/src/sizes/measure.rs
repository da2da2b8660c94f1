//! Measures how many bytes the files of trees take.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kpack_core::platform::{MetadataExt, SharedInode};
use kpack_format::names::{Group, KernelName, SearchPath, is_manifest};

use super::debug;
use crate::directories::{find_artifacts, role_of};
use crate::manifest_txt;
use crate::{mark, names};
use kpack_core::files::{directory_of, with_slashes};
use kpack_core::{Error, Finding, ids};
use kpack_split::elf::{DeviceCode, FatBinary};
use kpack_split::input::{self, LinkedBinary, by_bundle, walk_error};
use kpack_tree::databases::for_all;
use kpack_tree::place::{ForAll, Merge};
use kpack_tree::{
    Class, DatabaseSelection, Entry, KPACK, Node, Only, Parsed, Tree, Walk, kernel_cache,
};

/// Measures install prefixes, artifact directories, and directories of artifact directories. Adds
/// leftover directories of interrupted runs to `leftovers`.
pub(super) fn trees(paths: &[PathBuf], leftovers: &mut Vec<PathBuf>) -> Result<Measured, Error> {
    let mut tree = Measured::default();
    for path in paths {
        let metadata = path.metadata().map_err(|e| Error::io(path, "read", e))?;
        if !metadata.is_dir() {
            let text = "not a directory (expected an install prefix, an artifact directory, or a \
                        directory of them)";
            return Err(Error::rejected(ids::UNKNOWN_FILE, path, text));
        }
        let (artifacts, own) = find_artifacts(path, |e| Err(walk_error(path, e)))?;
        leftovers.extend(own);
        if artifacts.is_empty() {
            tree.prefix(&files(path, &DatabaseSelection::default())?, None, leftovers)?;
        }
        let mut shard = None;
        for artifact in artifacts {
            if shard.as_deref() != artifact.parent() {
                tree.end_shard();
                shard = artifact.parent().map(Path::to_owned);
            }
            for name in [manifest_txt::FILE_NAME, names::MARK] {
                let path = artifact.join(name);
                if let Ok(metadata) = path.metadata() {
                    tree.add(RowKey::other("artifacts", "lists of prefixes"), metadata.len());
                }
            }
            let databases = mark::databases(&artifact, &role_of(&artifact))?;
            for prefix in manifest_txt::read(&artifact)? {
                let directory = artifact.join(&prefix);
                if directory.is_dir() {
                    let module = manifest_txt::module_name(&prefix);
                    tree.prefix(&files(&directory, &databases)?, Some(&module), &[])?;
                }
            }
        }
        tree.end_shard();
    }
    Ok(tree)
}

/// Measures an install prefix.
pub(super) fn tree(tree: &Tree) -> Result<Measured, Error> {
    let mut measured = Measured::default();
    measured.prefix(tree, None, &[])?;
    measured.end_shard();
    Ok(measured)
}

/// What has bytes in a prefix.
fn files(prefix: &Path, databases: &DatabaseSelection) -> Result<Tree, Error> {
    let parsed = Parsed::default();
    Walk { prefix, databases, parsed, only: Only::WithBytes }.collect()
}

/// Identifies a row.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RowKey {
    pub(super) module: String,
    pub(super) target: Option<String>,
    pub(super) what: String,
    /// Whether `what` is the path of a file.
    pub(super) is_file: bool,
}

/// Bytes stored in files, and bytes of the unpacked code objects.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Size {
    pub(super) stored: u64,
    pub(super) unpacked: u64,
}

impl RowKey {
    fn other(module: &str, what: &str) -> Self {
        Self { module: module.to_owned(), target: None, what: what.to_owned(), is_file: false }
    }
}

/// The sizes measured so far.
#[derive(Default)]
pub(super) struct Measured {
    pub(super) sizes: BTreeMap<RowKey, Size>,
    /// The largest size of each host row in any one shard: every shard has its own copy.
    hosts: BTreeMap<RowKey, u64>,
    /// The host rows of the current shard.
    of_shard: BTreeMap<RowKey, u64>,
    /// The latest modification time of any file, in seconds since 1970.
    pub(super) newest: i64,
    /// Inodes already counted: a file with several hard links counts once.
    inodes: BTreeSet<SharedInode>,
    /// Whether a binary has its device code in it.
    pub(super) has_fat_binaries: bool,
    /// Directories with an archive whose code objects were looked at: those of other targets are alike.
    sampled: BTreeSet<PathBuf>,
    /// What is worth saying about the archives.
    pub(super) findings: Vec<Finding>,
}

impl Measured {
    fn add(&mut self, key: RowKey, bytes: u64) {
        self.add_code(key, bytes, bytes);
    }

    fn add_code(&mut self, key: RowKey, stored: u64, unpacked: u64) {
        if key.target.is_none() {
            *self.of_shard.entry(key.clone()).or_default() += stored;
        }
        let size = self.sizes.entry(key).or_default();
        size.stored += stored;
        size.unpacked += unpacked;
    }

    fn end_shard(&mut self) {
        for (key, size) in std::mem::take(&mut self.of_shard) {
            let most = self.hosts.entry(key).or_default();
            *most = size.max(*most);
        }
    }

    /// Bytes of all host rows in one installation.
    pub(super) fn host(&self) -> u64 {
        self.hosts.values().sum()
    }

    fn prefix(
        &mut self,
        tree: &Tree,
        module: Option<&str>,
        leftovers: &[PathBuf],
    ) -> Result<(), Error> {
        for entry in &tree.entries {
            let Node::File { size } = entry.node else {
                continue;
            };
            let path = entry.full();
            if leftovers.iter().any(|leftover| path.starts_with(leftover)) {
                continue;
            }
            if entry.shared_inode.as_deref().is_some_and(|inode| !self.inodes.insert(*inode)) {
                continue;
            }
            let metadata = path.symlink_metadata().map_err(|e| Error::io(path, "read", e))?;
            self.newest = self.newest.max(metadata.mtime());
            self.file(entry, size, module)?;
        }
        Ok(())
    }

    fn file(&mut self, entry: &Entry, size: u64, module: Option<&str>) -> Result<(), Error> {
        let path = entry.full();
        let (of_content, target, what) = match &*entry.class {
            Class::Fat | Class::Split => {
                return self.linked(path, &with_slashes(&entry.path), size, module);
            }
            Class::Target { database, .. } if *database == KPACK => {
                return self.archive(path, size, module);
            }
            Class::Target { target, database } => {
                let what = format!("{database} database");
                (database.to_string(), Some(target), what)
            }
            Class::Unknown { target, .. } => {
                let what = "device code in other files".to_owned();
                (String::new(), target.as_ref(), what)
            }
            Class::Host if is_manifest(&entry.path) => {
                let manifest = input::read_manifest(path);
                let group = manifest.map(|manifest| Group::from(manifest.component_name));
                let module =
                    group.map_or_else(|_| String::new(), |group| group.module().to_owned());
                (module, None, "kpack manifests".to_owned())
            }
            Class::Host => (String::new(), None, what_of_host(path, &entry.path)?),
        };
        let mut key = RowKey::other(module.unwrap_or(&of_content), &what);
        key.target = target.map(ToString::to_string);
        self.add(key, size);
        Ok(())
    }

    /// Adds a linked binary: the bytes that each bundle stores for each target, and the rest for
    /// the host. Code objects of a compressed bundle get proportional shares. If `module` is
    /// unknown, a split binary's marker names it.
    fn linked(
        &mut self,
        path: &Path,
        name: &str,
        size: u64,
        module: Option<&str>,
    ) -> Result<(), Error> {
        let linked = LinkedBinary::open(path)?;
        let (targets, from_marker) = match &linked.code {
            DeviceCode::Fat(fat) => {
                self.has_fat_binaries = true;
                (bundles(&linked, fat)?, None)
            }
            DeviceCode::Split(_) => {
                let kept = linked.kept.as_ref().map(|fat| bundles(&linked, fat));
                (kept.transpose()?.unwrap_or_default(), module_of(&linked))
            }
            DeviceCode::None(_) => (BTreeMap::new(), None),
        };
        let module = module.map(str::to_owned).or(from_marker);
        let key = |target| RowKey {
            module: module.clone().unwrap_or_default(),
            target,
            what: name.to_owned(),
            is_file: true,
        };
        let device: u64 = targets.values().map(|size| size.stored).sum();
        for (target, size) in targets {
            self.add_code(key(Some(target)), size.stored, size.unpacked);
        }
        self.add(key(None), size.saturating_sub(device));
        Ok(())
    }

    /// Adds an archive: the bytes stored for each binary, and the rest as its index. A code object
    /// that several kernels share counts for the first one.
    fn archive(&mut self, path: &Path, size: u64, module: Option<&str>) -> Result<(), Error> {
        let mut archive = input::open_archive(path)?;
        let toc = archive.toc().clone();
        let module = match module {
            Some(module) => module.to_owned(),
            None => Group::from(toc.group_name.as_str()).module().to_owned(),
        };
        let key = |target: &str, what: &str, is_file| RowKey {
            module: module.clone(),
            target: Some(target.to_owned()),
            what: what.to_owned(),
            is_file,
        };
        let mut counted = BTreeSet::new();
        let mut used = 0;
        for (kernel, targets) in &toc.kernels {
            let binary = KernelName::parse(kernel).binary;
            for (target, entry) in targets {
                let (mut stored, mut unpacked) = (0, 0);
                if counted.insert(entry.ordinal) {
                    let place = archive.stored(entry.ordinal);
                    (_, stored) = place.map_err(|e| Error::archive(path, "read", e))?;
                    unpacked = entry.original_size;
                }
                used += stored;
                self.add_code(key(target, binary, true), stored, unpacked);
            }
        }
        let index = key(&toc.gfx_arch_family, super::ARCHIVE_INDEX, false);
        self.add_code(index, size.saturating_sub(used), 0);
        if self.sampled.insert(directory_of(path).to_owned()) {
            // Damage is for `kpack verify` to report.
            let note = input::or_refused(debug::note(path, &mut archive))?;
            self.findings.extend(note.ok().flatten());
        }
        Ok(())
    }
}

/// The row name of the host file at `path`, whose path in the prefix is `within`. Every machine
/// gets all of rocFFT's kernel cache, so the cache counts for the host.
fn what_of_host(path: &Path, within: &Path) -> Result<String, Error> {
    Ok(match for_all(within) {
        Some(ForAll::Merge(Merge::KernelCache)) => match kernel_cache::targets(path)? {
            Ok(targets) if !targets.is_empty() => {
                let targets: Vec<String> = targets.into_iter().collect();
                format!("kernel cache for {}", targets.join(", "))
            }
            _ => "files for all targets".to_owned(),
        },
        Some(ForAll::Merge(_)) => "files for all targets".to_owned(),
        _ => "other files".to_owned(),
    })
}

/// The module that the first marker of a split binary names.
fn module_of(linked: &LinkedBinary) -> Option<String> {
    let markers = linked.markers().ok()?;
    let path = markers.first()?.marker.kpack_search_paths.first()?;
    let group = SearchPath::new(path).split()?.group()?;
    Some(group.module().to_owned())
}

/// The bytes that the bundles of a fat binary store for each target. Several wrappers can share a
/// bundle.
fn bundles(linked: &LinkedBinary, fat: &FatBinary) -> Result<BTreeMap<String, Size>, Error> {
    let mut sizes: BTreeMap<String, Size> = BTreeMap::new();
    let shared = by_bundle(fat.wrappers.iter()).into_iter();
    let wrappers = Vec::from_iter(shared.map(|sharing| sharing[0].clone()));
    for bundle in linked.bundles(&wrappers) {
        let bundle = bundle?;
        let used = bundle.entries.iter().filter(|entry| entry.size > 0);
        let entries: Vec<(String, u64)> =
            used.filter_map(|entry| Some((entry.id.target()?.to_string(), entry.size))).collect();
        let unpacked: u64 = entries.iter().map(|(_, size)| size).sum();
        for (target, size) in entries {
            // Padding in a plain bundle counts for no target. A compressed bundle is smaller than
            // its code objects.
            let stored =
                if unpacked > bundle.size { share(bundle.size, size, unpacked) } else { size };
            let sum = sizes.entry(target).or_default();
            sum.stored += stored;
            sum.unpacked += size;
        }
    }
    Ok(sizes)
}

/// The share of `size` that `part` has in `whole`.
fn share(size: u64, part: u64, whole: u64) -> u64 {
    (u128::from(size) * u128::from(part) / u128::from(whole.max(1))) as u64
}
