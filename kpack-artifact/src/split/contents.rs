//! What is in an artifact, read and not judged yet.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use kpack_format::manifest::Manifest;
use kpack_format::{Selection, TargetId};

use super::modules::Module;
use super::report::SplitReport;
use super::sources::Sources;
use super::{Layout, Options, Unknown};
use crate::directories::is_artifact;
use crate::names::Role;
use crate::tree::ArtifactTree;
use crate::{manifest_txt, mark, names};
use kpack_core::words::list;
use kpack_core::{Error, ids, shown};
use kpack_split::input::{Lookup, or_refused, read_manifest};
use kpack_split::split::{Presplit, Unexpected};
use kpack_tree::{Class, DatabaseSelection, Entry, Parsed};

/// What is in an artifact.
pub(super) struct Contents {
    /// With the target whose artifact it is; what is to be split, or the generic artifact, first.
    pub(super) trees: Vec<(Option<TargetId>, ArtifactTree)>,
    /// The generic artifact beside the input, if this run reads the artifact of a target only. It is
    /// looked at, and this run writes none.
    pub(super) generic_beside: Option<PathBuf>,
    /// The databases of the options, with the rules that an earlier split noted.
    pub(super) databases: DatabaseSelection,
    /// What is to be split.
    pub(super) modules: Vec<Module>,
    /// The manifests of what was split before.
    pub(super) manifests: Vec<InputManifest>,
    /// The targets that there is something for, and a file that has or names it.
    pub(super) found: BTreeMap<TargetId, PathBuf>,
    /// What is known of the result so far.
    pub(super) report: SplitReport,
}

/// A manifest of the input.
pub(super) struct InputManifest {
    pub(super) from: PathBuf,
    pub(super) manifest: Manifest,
}

impl Contents {
    pub(super) fn read(options: &Options, sources: &Sources) -> Result<Self, Error> {
        let mut report = SplitReport {
            artifact_prefix: options.artifact_prefix.clone(),
            artifact_dir: options.artifact_dir.clone(),
            ..SplitReport::default()
        };
        let (trees, databases, generic_beside) = read_trees(options, sources, &mut report)?;
        refuse_contradictions(&trees)?;
        refuse_uninstalled(&trees, &mut report)?;
        let manifests = manifests(&trees, &mut report)?;
        report.size_before = size_before(&trees);
        let modules = modules(&trees, options)?;
        let found = found(&trees, &modules, &manifests, options);
        Ok(Self { trees, generic_beside, databases, modules, manifests, found, report })
    }

    /// The entries with the targets whose artifacts they are in.
    pub(super) fn entries(&self) -> impl Iterator<Item = (Option<&TargetId>, &Entry)> {
        entries(&self.trees)
    }

    /// The prefixes, each once.
    pub(super) fn prefixes(&self) -> Vec<String> {
        let all = self.trees.iter().flat_map(|(_, tree)| &tree.prefixes);
        let mut known = BTreeSet::new();
        all.filter(|prefix| known.insert(*prefix)).cloned().collect()
    }

    /// The directory that the artifact of a target, or the generic one, is modelled on.
    pub(super) fn model(&self, target: Option<&TargetId>) -> &Path {
        let is_own = |own: &Option<TargetId>| own.as_ref().map(TargetId::plain).as_ref() == target;
        let own = self.trees.iter().find(|(own, _)| is_own(own));
        let tree = own.or(self.trees.first());
        tree.map_or(Path::new(""), |(_, tree)| &tree.root)
    }

    /// The targets that fat binaries have device code for.
    pub(super) fn of_binaries(&self) -> BTreeSet<TargetId> {
        self.modules.iter().flat_map(Module::found).collect()
    }

    /// Whether there is something for one of the targets that are expected, if any are.
    pub(super) fn has_expected(&self, options: &Options) -> bool {
        has_any(options, self.found.keys())
    }

    /// Refuses an artifact that would lose all of its device code: of its fat binaries, if there is no manifest to say
    /// that no archives are expected, and one that is split `alone`; see [`refuse_none_expected`].
    pub(super) fn refuse_all_left_out(&self, options: &Options, alone: bool) -> Result<(), Error> {
        let of_binaries = self.of_binaries();
        let has_binaries = !of_binaries.is_empty();
        let found: Vec<&TargetId> = if alone && !self.has_expected(options) {
            self.found.keys().collect()
        } else if options.layout == Layout::Artifact && !has_any(options, &of_binaries) {
            of_binaries.iter().collect()
        } else {
            return Ok(());
        };
        refuse_none_expected(&options.artifact_dir, options, found, has_binaries)
    }
}

/// Whether one of the targets that were `found` is expected, if any are.
fn has_any<'t>(options: &Options, found: impl IntoIterator<Item = &'t TargetId>) -> bool {
    let expected: Selection = options.targets.iter().collect();
    expected.is_empty() || found.into_iter().any(|found| expected.matches(found))
}

/// Refuses an artifact, or a batch of them, where there is something for targets, but for none of
/// those that are expected: all device code would be left out. Kernel databases alone may be, unless the
/// options say otherwise, since they are often installed for all targets.
pub(super) fn refuse_none_expected<'a>(
    path: &Path,
    options: &Options,
    found: impl IntoIterator<Item = &'a TargetId>,
    has_binaries: bool,
) -> Result<(), Error> {
    let there = list(found);
    let loses_binaries = has_binaries && options.unexpected == Unexpected::Drop;
    let refuses =
        loses_binaries || options.require_targets || options.unexpected == Unexpected::Error;
    if there.is_empty() || !refuses {
        return Ok(());
    }
    let text = format!("no device code for {} (found {there})", list(&options.targets));
    Err(Error::rejected(ids::MISSING_TARGET, path, text))
}

/// With the target whose artifact each is.
type Trees = [(Option<TargetId>, ArtifactTree)];

/// What the directories of an artifact have; the databases that are split; and the generic artifact beside the input if
/// this run writes none.
type ReadTrees = (Vec<(Option<TargetId>, ArtifactTree)>, DatabaseSelection, Option<PathBuf>);

/// Reads the directories of an artifact, and reports what they lack and what is in none of their prefixes.
fn read_trees(
    options: &Options,
    sources: &Sources,
    report: &mut SplitReport,
) -> Result<ReadTrees, Error> {
    let split_before = match &sources[..] {
        [(_, path)] => of_earlier_split(path, &options.artifact_prefix)?,
        _ => None,
    };
    let marks = sources.iter().map(|(_, path)| mark::noted(path)).collect::<Result<Vec<_>, _>>()?;
    let databases = marks
        .iter()
        .flatten()
        .fold(options.databases.clone(), |databases, noted| databases.and_rules_of(noted));
    let read = |path: &Path, databases: &DatabaseSelection| {
        let spirv = options.storage.spirv;
        let mut tree = ArtifactTree::read_with("", path, databases, Parsed::default(), spirv)?;
        // Nobody knows where a file belongs that cannot be classified.
        match tree.rejected.pop() {
            Some(found) => Err(Error::rejected(found.id, found.file(), &*found.text)),
            None => Ok(tree),
        }
    };
    let (by_name, mut generic_beside) = split_before.unzip();
    let mut trees = Vec::new();
    for ((listed, path), noted) in sources.iter().zip(marks) {
        let mut target = listed.as_ref().or(by_name.as_ref()).cloned();
        let role = target.clone().map(Role::Target);
        let own = role.as_ref().map(|role| noted.unwrap_or_else(|| mark::without_mark(role)));
        let mut tree = read(path, own.as_ref().unwrap_or(&databases))?;
        let misplaced = role.and_then(|role| {
            let (file, reason) = tree.misplaced(&role).next()?;
            Some((file.full().to_owned(), reason))
        });
        match misplaced {
            None => {}
            Some((file, reason)) if listed.is_some() => {
                let text = format!(
                    "{reason}; several artifacts have this name, so builds seem to be mixed; split each build \
                     into a separate output directory"
                );
                return Err(Error::rejected(ids::SPLIT_ARTIFACT, &file, text));
            }
            // It is only called like the artifact of a target.
            Some(_) => {
                (target, generic_beside) = (None, None);
                tree = read(path, &databases)?;
            }
        }
        for prefix in &tree.missing {
            let text = "listed in artifact_manifest.txt, but missing; skipped";
            report.note(ids::MISSING_PREFIX, tree.root.join(prefix), text);
        }
        report.findings.extend(tree.add_unlisted(target.is_none())?);
        trees.push((target, tree));
    }
    Ok((trees, databases, generic_beside))
}

/// The target whose artifact a directory is by its name, and the generic artifact beside it, if an earlier split of the
/// component `prefix` wrote both.
fn of_earlier_split(path: &Path, prefix: &str) -> Result<Option<(TargetId, PathBuf)>, Error> {
    let real = path.canonicalize().map_err(|e| Error::io(path, "open", e))?;
    let name = real.file_name().unwrap_or_default().to_string_lossy();
    let generic = real.with_file_name(names::artifact(prefix, None));
    Ok(match names::parse(&name) {
        Some((component, Some(target))) if component == prefix && is_artifact(&generic) => {
            Some((target, generic))
        }
        _ => None,
    })
}

fn entries(trees: &Trees) -> impl Iterator<Item = (Option<&TargetId>, &Entry)> {
    trees
        .iter()
        .flat_map(|(target, tree)| tree.entries.iter().map(move |item| (target.as_ref(), item)))
}

/// What is to be split. Refuses fat binaries beside the artifacts of an earlier split.
fn modules(trees: &Trees, options: &Options) -> Result<Vec<Module>, Error> {
    let mut modules: Vec<Module> = Vec::new();
    for (_, tree) in trees.iter().filter(|(target, _)| target.is_none()) {
        let each = match options.layout {
            Layout::Module => 1,
            Layout::Artifact => tree.prefixes.len().max(1),
        };
        for prefixes in tree.prefixes.chunks(each) {
            let Some(module) = Module::read(tree, prefixes, options)? else {
                continue;
            };
            if let Some(other) = modules.iter().find(|other| other.collides(&module)) {
                let advice = "the directory above `stage` names the module";
                return Err(module.collision(&tree.root, &other.prefix, advice));
            }
            modules.push(module);
        }
    }
    let fat = modules.iter().flat_map(|module| &module.binaries).next();
    let split_off = trees.iter().find(|(target, _)| target.is_some());
    if let (Some(fat), Some((_, tree))) = (fat, split_off) {
        let text = format!(
            "a fat binary in an artifact that is partly split already (see {}); split it alone",
            tree.root.display()
        );
        return Err(Error::rejected(ids::SPLIT_ARTIFACT, &fat.file.code.path, text));
    }
    Ok(modules)
}

/// A file that says two things could go wrong either way.
fn refuse_contradictions(trees: &Trees) -> Result<(), Error> {
    let mut all = trees.iter().flat_map(|(_, tree)| tree.about(ids::CONTRADICTORY_TARGET));
    let Some(first) = all.next() else {
        return Ok(());
    };
    let more: String =
        all.map(|other| format!("\n  and {}: {}", shown(other.file()), other.text)).collect();
    let error = Error::rejected(first.id, first.file(), &*first.text);
    Err(error.about(|reason| reason.then(more)))
}

/// Refuses binaries that were split before the link and not installed: their device code is where
/// they were built.
fn refuse_uninstalled(trees: &Trees, report: &mut SplitReport) -> Result<(), Error> {
    let split = entries(trees).filter(|(.., item)| *item.class == Class::Split);
    let lookup = Lookup::default();
    for (.., item) in split {
        let read = item.linked().and_then(|linked| Presplit::read(linked, false, &lookup));
        match or_refused(read)? {
            Ok(None) => {}
            Ok(Some(_)) => {
                let text = "the device code was split before the link, and is where it was built; \
                            expected it in the artifact, where `kpack split` puts it";
                return Err(Error::rejected(ids::SPLIT_BEFORE_LINK, item.full(), text));
            }
            Err(found) => report.warn(found.id, found.file(), &found.text),
        }
    }
    Ok(())
}

/// The targets that there is something for, and a file that has or names it.
fn found(
    trees: &Trees,
    modules: &[Module],
    manifests: &[InputManifest],
    options: &Options,
) -> BTreeMap<TargetId, PathBuf> {
    let mut found = BTreeMap::new();
    let mut note = |target: &TargetId, path: &Path| {
        let entry = found.entry(target.clone());
        entry.or_insert_with(|| path.to_owned());
    };
    for binary in modules.iter().flat_map(|module| &module.binaries) {
        for target in binary.file.code.targets() {
            note(&target, &binary.file.code.path);
        }
    }
    for (owner, item) in entries(trees).filter(|(.., item)| !item.is_directory()) {
        let target = item.target(owner).or(match &*item.class {
            Class::Unknown { target, .. } if options.unknown == Unknown::Move => target.as_ref(),
            _ => None,
        });
        if let Some(target) = target {
            note(target, item.full());
        }
    }
    for listed in manifests {
        for target in listed.manifest.kpack_files.keys().filter_map(|name| name.parse().ok()) {
            note(&target, &listed.from);
        }
    }
    found
}

/// Size of all files in bytes, each inode once.
fn size_before(trees: &Trees) -> u64 {
    let mut size = 0u64;
    for (_, tree) in trees {
        for name in [manifest_txt::FILE_NAME, names::MARK] {
            let own = fs::metadata(tree.root.join(name));
            size = size.saturating_add(own.map_or(0, |metadata| metadata.len()));
        }
    }
    let mut inodes = BTreeSet::new();
    let sizes = entries(trees).map(|(.., item)| {
        let inode = item.shared_inode.as_deref();
        let is_new = inode.is_none_or(|inode| inodes.insert(inode));
        if is_new { item.size() } else { 0 }
    });
    sizes.fold(size, u64::saturating_add)
}

/// The manifests in the input. An unreadable one is copied like any other file.
fn manifests(trees: &Trees, report: &mut SplitReport) -> Result<Vec<InputManifest>, Error> {
    let mut manifests = Vec::new();
    for (owner, item) in entries(trees) {
        let is_listed = owner.is_some() || !item.origin.prefix.is_empty();
        if !is_listed || !item.is_manifest() {
            continue;
        }
        let from = item.full().to_path_buf();
        match or_refused(read_manifest(&from))? {
            Ok(manifest) => manifests.push(InputManifest { from, manifest }),
            Err(found) => {
                let text = format!("copied unchanged: {}", found.text);
                report.warn(found.id, found.file(), text);
            }
        }
    }
    Ok(manifests)
}
