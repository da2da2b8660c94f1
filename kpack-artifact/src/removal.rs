//! What a tree has for other GPUs as a whole: files of kernel databases, kernel files, and archives.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use kpack_core::files::{self, with_slashes};
use kpack_core::publish::Identity;
use kpack_core::words::{bytes, list};
use kpack_core::{Error, Finding, Severity, ids, interrupt};
use kpack_format::names::{KernelName, archive_ends, is_archive, is_manifest};
use kpack_format::unstable::target_names;
use kpack_format::{Delivery, TargetId};
use kpack_split::trim::Keep;

use kpack_tree::databases::copy_of;
use kpack_tree::place::{ForAll, Merge, Place};
use kpack_tree::{Class, DatabaseSelection, Entry, Node, Tree, kernel_cache};

/// What goes.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Removal {
    /// Files and symbolic links.
    pub files: Vec<Going>,
    /// Directories to remove if they are empty then, each before those in it.
    pub directories: Vec<PathBuf>,
    /// Files of databases that stay as a whole, since nothing is for the chosen GPUs. The findings say so.
    pub left: BTreeSet<PathBuf>,
    /// Manifests, which may list archives that go.
    pub manifests: Vec<PathBuf>,
    /// What to say: what stays because nothing is for the chosen GPUs.
    pub findings: Vec<Finding>,
    /// Whether something that stays has code for the chosen GPUs, or may have.
    pub may_serve: bool,
    /// Whether something stays because its code is for other GPUs.
    pub lacks_code: bool,
    /// Why something could not be read. It stays.
    pub unread: Vec<Error>,
}

/// A file or symbolic link that goes.
#[derive(Debug)]
#[non_exhaustive]
pub struct Going {
    /// Where it is.
    pub path: PathBuf,
    /// What it is for.
    pub target: TargetId,
    /// The identity of the file that was read; `None` for a symbolic link.
    pub identity: Option<Identity>,
}

/// Plans what goes from `prefix`, of which `tree` is an [inventory](kpack_tree::Only::Inventory) with these `databases`;
/// `real` follows the symbolic links in a path, and gives `None` if they lead to nothing;
/// `open` opens a file of the tree.
///
/// # Errors
/// A signal asked the process to end.
pub fn plan(
    prefix: &Path,
    tree: &Tree,
    databases: &DatabaseSelection,
    keep: &Keep,
    real: &dyn Fn(&Path) -> Result<Option<PathBuf>, Error>,
    open: &dyn Fn(&Path) -> Result<File, Error>,
) -> Result<Removal, Error> {
    let mut removal = Removal::default();
    let faults = tree.observations.iter().filter(|found| found.severity == Severity::Fault);
    let (contradictory, refused): (Vec<_>, Vec<_>) = faults.partition(|found| {
        [ids::CONTRADICTORY_TARGET, ids::DAMAGED_DATABASE_FILE].contains(&found.id)
    });
    // Whatever is for a target by its name may be what nobody can read there.
    if let Some(refused) = refused.first() {
        let text = format!("all kernel databases stay as they are: {}", refused.text);
        let path = prefix.join(refused.file());
        removal.may_serve = true;
        removal.findings.push(Finding::new(Severity::Warning, refused.id, path, text));
    } else {
        removal.databases(prefix, tree, databases, keep, &contradictory, real)?;
    }
    let is_decided =
        |entry: &Entry| refused.is_empty() && matches!(*entry.class, Class::Target { .. });
    removal.archives(prefix, tree, keep, &is_decided, open)?;
    Ok(removal)
}

/// Whether a tree, an inventory as for a [plan], has files that go or stay as a whole: those for one target, and archives.
pub fn has_any(tree: &Tree) -> bool {
    tree.entries.iter().any(|entry| {
        matches!(*entry.class, Class::Target { .. })
            || matches!(entry.node, Node::File { .. }) && is_archive(&entry.path)
    })
}

/// What becomes of the manifest at `path`, which `source` reads, if some archives that it lists are gone; `None` if it lists
/// none of them.
///
/// # Errors
/// [`Error::Io`]; [`Error::Refused`].
pub fn without(
    path: &Path,
    source: impl Read,
    is_gone: &dyn Fn(&str) -> bool,
) -> Result<Option<Vec<u8>>, Error> {
    let mut manifest = files::parse_manifest(path, source)?;
    let before = manifest.kpack_files.len();
    manifest.kpack_files.retain(|_, file| !is_gone(&file.filename));
    Ok((manifest.kpack_files.len() < before).then(|| manifest.to_bytes()))
}

impl Removal {
    /// Files of kernel databases. Where a copy of a database has nothing for the GPUs, all of it stays.
    fn databases(
        &mut self,
        prefix: &Path,
        tree: &Tree,
        databases: &DatabaseSelection,
        keep: &Keep,
        contradictory: &[&Finding],
        real: &dyn Fn(&Path) -> Result<Option<PathBuf>, Error>,
    ) -> Result<(), Error> {
        let mut by_database: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let is_contradictory = BTreeSet::from_iter(contradictory.iter().map(|found| found.file()));
        let files =
            tree.entries.iter().filter(|entry| !matches!(entry.node, Node::Directory { .. }));
        for entry in files {
            let path: &Path = &entry.path;
            if let Class::Target { target, database } = &*entry.class
                && !is_contradictory.contains(path)
            {
                let copy = copy_of(database, &with_slashes(path)).to_owned();
                let files = by_database.entry((database.clone(), copy)).or_default();
                files.push((path, target, entry));
            }
        }
        // A file for another GPU may have a second name that is for a chosen one.
        let links = by_database
            .values()
            .flatten()
            .filter(|(_, target, entry)| entry.node == Node::Symlink && keep.matches(target));
        let (mut used, mut is_known) = (BTreeSet::new(), true);
        for (path, ..) in links {
            match self.keep(real(&prefix.join(path)))? {
                Some(real) => used.extend(real),
                None => is_known = false,
            }
        }
        for ((database, copy), files) in by_database {
            interrupt::check(prefix, "read")?;
            // It may have what a link leads to that cannot be followed.
            if !is_known {
                self.may_serve = true;
                self.left.extend(files.iter().map(|(path, ..)| prefix.join(path)));
                continue;
            }
            if !files.iter().any(|(_, target, _)| keep.matches(target)) {
                let targets = BTreeSet::from_iter(files.iter().map(|(_, target, _)| *target));
                self.left.extend(files.iter().map(|(path, ..)| prefix.join(path)));
                // MIOpen's files contain measurements, and no code.
                self.lacks_code |= &*database != "miopen";
                let what = format!("all files of {database} ({})", files.len());
                self.without_any(&prefix.join(copy), &what, "there are none", keep, targets);
                continue;
            }
            self.may_serve = true;
            let others = files.iter().filter(|(_, target, _)| !keep.matches(target));
            let mut last = None;
            for &(path, target, entry) in others {
                let path = prefix.join(path);
                if !used.is_empty() {
                    let Some(real) = self.keep(real(&path))? else { continue };
                    let mut above = real.iter().flat_map(|real| real.ancestors());
                    if above.any(|above| used.contains(above)) {
                        continue;
                    }
                }
                let parents = path.ancestors().skip(1).take_while(|parent| *parent != prefix);
                // Files come in the order of their paths.
                let new = parents.take_while(|parent| last.as_deref() != Some(*parent));
                self.directories.extend(new.map(Path::to_owned));
                last = path.parent().map(Path::to_owned);
                let identity = entry.identity.as_deref().copied();
                self.files.push(Going { path, target: target.clone(), identity });
            }
        }
        let host_files = tree.entries.iter().filter(|entry| *entry.class == Class::Host);
        for entry in host_files.filter(|entry| matches!(entry.node, Node::File { .. })) {
            let place = databases.recognise(&with_slashes(&entry.path)).map(|(_, place)| place);
            if let Some(Place::ForAll(ForAll::Merge(Merge::KernelCache))) = place {
                let read = self.kernel_cache(&prefix.join(&entry.path), keep);
                self.keep(read)?;
            }
        }
        self.may_serve |= !contradictory.is_empty();
        self.findings.extend(contradictory.iter().map(|found| {
            let (path, text) =
                (prefix.join(found.file()), format!("stays as it is: {}", found.text));
            Finding::new(Severity::Warning, found.id, path, text)
        }));
        Ok(())
    }

    /// What was read of something; `None` if it stays as it is: a finding says so if it was refused, and an error is kept.
    ///
    /// # Errors
    /// A signal asked the process to end.
    pub fn keep<T>(&mut self, read: Result<T, Error>) -> Result<Option<T>, Error> {
        match read {
            Err(Error::Refused { id, path, reason, .. }) if id != ids::CHANGED => {
                let text = format!("stays as it is: {reason}");
                self.may_serve = true;
                self.findings.push(Finding::new(Severity::Warning, id, path, text));
                Ok(None)
            }
            Err(error) => {
                if interrupt::check(Path::new(""), "read").is_err() {
                    return Err(error);
                }
                self.unread.push(error);
                Ok(None)
            }
            read => read.map(Some),
        }
    }

    /// Says what rocFFT's kernel cache has for other GPUs. All of it stays.
    fn kernel_cache(&mut self, path: &Path, keep: &Keep) -> Result<(), Error> {
        let text = match kernel_cache::sizes(path)? {
            Ok(mut sizes) => {
                let stays = |target: &str| target.parse().is_ok_and(|target| keep.matches(&target));
                self.may_serve |= sizes.keys().any(|target| stays(target));
                sizes.retain(|target, _| !stays(target));
                if sizes.is_empty() {
                    return Ok(());
                }
                format!(
                    "stays as it is, with {} of code for {}: kpack removes nothing from rocFFT's kernel cache",
                    bytes(sizes.values().sum()),
                    list(sizes.keys())
                )
            }
            Err(unreadable) => {
                self.may_serve = true;
                format!("stays as it is: {}", unreadable.reason)
            }
        };
        self.findings.push(Finding::new(Severity::Note, ids::UNCHANGED, path, text));
        Ok(())
    }

    /// Archives of either tool, without those that a database decided on. Those of one directory, or of directories
    /// per target, whose names differ only in their targets belong together.
    fn archives(
        &mut self,
        prefix: &Path,
        tree: &Tree,
        keep: &Keep,
        is_decided: &dyn Fn(&Entry) -> bool,
        open: &dyn Fn(&Path) -> Result<File, Error>,
    ) -> Result<(), Error> {
        let mut groups: BTreeMap<_, ArchiveGroup> = BTreeMap::new();
        let files = tree.entries.iter().filter(|entry| matches!(entry.node, Node::File { .. }));
        for entry in files {
            let path = &*prefix.join(&entry.path);
            if is_manifest(path) {
                self.manifests.push(path.to_owned());
            }
            if !is_archive(path) || is_decided(entry) {
                continue;
            }
            let read = || {
                let file = open(path)?;
                Ok((Identity::of(path, &file)?, files::read_archive(path, file)?))
            };
            let Some((identity, archive)) = self.keep(read())? else {
                continue;
            };
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let target = match &archive.toc().gfx_arches[..] {
                [target] => target.parse().ok(),
                _ => None,
            };
            let Some(target): Option<TargetId> = target else {
                self.may_serve = true;
                let text = "stays as it is: an archive for several targets, or for none";
                self.findings.push(Finding::new(Severity::Note, ids::UNCHANGED, path, text));
                continue;
            };
            let mut ends = archive_ends(&target.to_string());
            let group = ends.find_map(|end| name.strip_suffix(&*end).map(str::to_owned));
            let directory = directory_of_group(path, prefix, &target).to_owned();
            let group = groups.entry((directory, group.unwrap_or(name))).or_default();
            for kernel in archive.toc().kernels.keys() {
                group.kernels.entry(kernel.clone()).or_default().insert(target.clone());
            }
            group.archives.push((path.to_owned(), target, identity));
        }
        for ((directory, name), group) in groups {
            let mut stays = group.stays(keep);
            if stays.is_empty() {
                self.lacks_code = true;
                let (what, there) = (format!("the archives of {name}"), group.targets());
                self.without_any(&directory, &what, "there are none", keep, there);
                continue;
            }
            self.may_serve = true;
            for (binary, there) in group.binaries_without(&stays) {
                let what = format!("the archives of {binary}");
                self.without_any(&directory, &what, "it has no code", keep, &there);
                stays.extend(there);
            }
            for (path, target, identity) in group.archives {
                if !stays.contains(&target) {
                    let own = path.parent().filter(|own| *own != directory);
                    self.directories.extend(own.map(Path::to_owned));
                    self.files.push(Going { path, target, identity: Some(identity) });
                }
            }
        }
        self.directories.sort();
        self.directories.dedup();
        Ok(())
    }

    /// Says that something stays, for what reason, since it has nothing for the GPUs.
    fn without_any(
        &mut self,
        path: &Path,
        what: &str,
        why: &str,
        keep: &Keep,
        targets: impl IntoIterator<Item = impl ToString>,
    ) {
        let targets = targets.into_iter().map(|target| target.to_string());
        let text = format!(
            "{what} stay as they are: {why} for {}, only for {}",
            list(&keep.gpus),
            list(targets)
        );
        self.findings.push(Finding::new(Severity::Warning, ids::MISSING_TARGET, path, text));
    }
}

/// Archives that belong together.
#[derive(Default)]
struct ArchiveGroup {
    archives: Vec<(PathBuf, TargetId, Identity)>,
    /// The targets that they have code for, by kernel.
    kernels: BTreeMap<String, BTreeSet<TargetId>>,
}

impl ArchiveGroup {
    fn targets(&self) -> BTreeSet<&TargetId> {
        self.archives.iter().map(|(_, target, _)| target).collect()
    }

    /// The targets whose archives stay: what a GPU needs by its name, and what it takes for one of the kernels.
    fn stays(&self, keep: &Keep) -> BTreeSet<TargetId> {
        let is_needed =
            |target: &&TargetId| keep.gpus.iter().any(|gpu| gpu.needs(target, Delivery::Archive));
        let mut stays = BTreeSet::from_iter(self.targets().into_iter().filter(is_needed).cloned());
        // Thousands of kernels have code for the same targets.
        for there in BTreeSet::from_iter(self.kernels.values()) {
            stays.extend(keep.stays(&Vec::from_iter(there.iter().cloned())));
        }
        stays
    }

    /// The binaries that none of these targets are for, and the targets that they have code for.
    fn binaries_without(&self, stays: &BTreeSet<TargetId>) -> BTreeMap<&str, BTreeSet<TargetId>> {
        let mut binaries: BTreeMap<_, BTreeSet<TargetId>> = BTreeMap::new();
        for (kernel, there) in &self.kernels {
            if let Some(binary) = KernelName::binary_of(kernel) {
                binaries.entry(binary).or_default().extend(there.iter().cloned());
            }
        }
        binaries.retain(|_, there| there.is_disjoint(stays));
        binaries
    }
}

/// The directory of the group that the archive at `path` belongs to: the one that it is in, or the one above if that is
/// named after the target, as the directories of hipDNN's engines are.
fn directory_of_group<'p>(path: &'p Path, prefix: &'p Path, target: &TargetId) -> &'p Path {
    let directory = path.parent().unwrap_or(prefix);
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    let is_named = target_names::of_directory(&name).is_some_and(|named| named.agrees_with(target));
    match directory.parent() {
        Some(above) if is_named && directory != prefix => above,
        _ => directory,
    }
}
