//! What is in an artifact, read and not judged yet.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use kpack_format::manifest::Manifest;
use kpack_format::{Selection, TargetId};

use super::modules::{Module, module};
use super::report::Report;
use super::sources::{Sources, Trees};
use super::targets::{Targets, refuse_none_expected};
use super::{Layout, Options, Unknown};
use crate::manifest_txt;
use crate::mark;
use kpack_core::{Error, ids, shown};
use kpack_split::input::{Lookup, or_refused, read_manifest};
use kpack_split::split::Presplit;
use kpack_tree::Class;

/// What is in an artifact.
pub(super) struct Contents {
    pub(super) trees: Trees,
    /// What is to be split.
    pub(super) modules: Vec<Module>,
    /// The manifests of what was split before.
    pub(super) manifests: Vec<Listed>,
    /// The targets that there is something for, and a file that has or names it.
    pub(super) found: BTreeMap<TargetId, PathBuf>,
}

impl Contents {
    pub(super) fn read(
        options: &Options,
        sources: &Sources,
        report: &mut Report,
    ) -> Result<Self, Error> {
        let trees = Trees::read(sources, options, report)?;
        refuse_contradictions(&trees)?;

        let mut modules: Vec<Module> = Vec::new();
        for (_, tree) in trees.all.iter().filter(|(target, _)| target.is_none()) {
            let each = match options.layout {
                Layout::Module => 1,
                Layout::Artifact => tree.prefixes.len().max(1),
            };
            for prefixes in tree.prefixes.chunks(each) {
                let Some(module) = module(tree, prefixes, options)? else {
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
        let mut split_off = trees.all.iter().filter(|(target, _)| target.is_some());
        if let (Some(fat), Some((_, tree))) = (fat, split_off.next()) {
            let text = format!(
                "a fat binary in an artifact that is partly split already (see {}); split it alone",
                tree.root.display()
            );
            let path = &fat.file.code.path;
            return Err(Error::rejected(ids::SPLIT_ARTIFACT, path, text));
        }
        refuse_uninstalled(&trees, report)?;
        let manifests = manifests(&trees, report)?;
        report.size_before = size_before(&trees);
        Ok(Self { found: found(&trees, &modules, &manifests, options), trees, modules, manifests })
    }

    /// The targets that fat binaries have device code for.
    pub(super) fn of_binaries(&self) -> BTreeSet<TargetId> {
        self.modules.iter().flat_map(Module::found).collect()
    }

    /// Refuses fat binaries that would lose all of their device code. Without a manifest, nothing would say
    /// that no archives are expected.
    pub(super) fn refuse_all_left_out(&self, options: &Options) -> Result<(), Error> {
        let expected: Selection = options.targets.iter().collect();
        let found = self.of_binaries();
        if expected.is_empty() || found.iter().any(|found| expected.matches(found)) {
            return Ok(());
        }
        refuse_none_expected(&options.artifact_dir, options, &found, true)
    }

    /// Whether there is something for one of the targets that are expected, if any are.
    pub(super) fn has_expected(&self, options: &Options) -> bool {
        let expected: Selection = options.targets.iter().collect();
        expected.is_empty() || self.found.keys().any(|found| expected.matches(found))
    }
}

/// A file that says two things could go wrong either way.
fn refuse_contradictions(trees: &Trees) -> Result<(), Error> {
    let trees = trees.all.iter();
    let mut all = trees.flat_map(|(_, tree)| tree.about(ids::CONTRADICTORY_TARGET));
    let Some(first) = all.next() else {
        return Ok(());
    };
    let more = all.map(|other| format!("\n  and {}: {}", shown(other.file()), other.text));
    let more: String = more.collect();
    let error = Error::rejected(first.id, first.file(), &*first.text);
    Err(error.about(|reason| reason.then(more)))
}

/// Refuses binaries that were split before the link and not installed: their device code is where
/// they were built.
fn refuse_uninstalled(trees: &Trees, report: &mut Report) -> Result<(), Error> {
    let split = trees.entries().filter(|(.., item)| *item.class == Class::Split);
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
    manifests: &[Listed],
    options: &Options,
) -> BTreeMap<TargetId, PathBuf> {
    let mut found = BTreeMap::new();
    let mut add = |target: &TargetId, path: &Path| {
        let entry = found.entry(target.clone());
        entry.or_insert_with(|| path.to_owned());
    };
    for binary in modules.iter().flat_map(|module| &module.binaries) {
        for target in binary.file.code.targets() {
            add(&target, &binary.file.code.path);
        }
    }
    for (owner, item) in trees.entries().filter(|(.., item)| !item.is_directory()) {
        let target = item.target(owner).or(match &*item.class {
            Class::Unknown { target, .. } if options.unknown == Unknown::Move => target.as_ref(),
            _ => None,
        });
        if let Some(target) = target {
            add(target, item.full());
        }
    }
    for listed in manifests {
        for target in listed.targets() {
            add(&target, &listed.from);
        }
    }
    found
}

/// Size of all files in bytes, each inode once.
fn size_before(trees: &Trees) -> u64 {
    let mut size = 0u64;
    for (_, tree) in &trees.all {
        for name in [manifest_txt::FILE_NAME, mark::FILE_NAME] {
            let own = fs::metadata(tree.root.join(name));
            size = size.saturating_add(own.map_or(0, |metadata| metadata.len()));
        }
    }
    let mut inodes = BTreeSet::new();
    let sizes = trees.entries().map(|(.., item)| {
        let inode = item.shared_inode.as_deref();
        let is_new = inode.is_none_or(|inode| inodes.insert(inode));
        if is_new { item.size() } else { 0 }
    });
    sizes.fold(size, u64::saturating_add)
}

/// A manifest of the input.
pub(super) struct Listed {
    pub(super) from: PathBuf,
    manifest: Manifest,
}

impl Listed {
    /// The targets that it lists.
    pub(super) fn targets(&self) -> impl Iterator<Item = TargetId> {
        let names = self.manifest.kpack_files.keys();
        names.filter_map(|name| name.parse().ok())
    }

    /// Its new bytes; `None` if everything in it is kept. An empty list is kept as well: it tells that
    /// no archives are expected.
    pub(super) fn rewritten(&self, targets: &Targets) -> Option<Vec<u8>> {
        let mut manifest = self.manifest.clone();
        retain(&mut manifest, targets);
        let is_changed = manifest.kpack_files.len() != self.manifest.kpack_files.len();
        is_changed.then(|| manifest.to_bytes())
    }
}

/// Removes skipped archives from a manifest.
pub(super) fn retain(manifest: &mut Manifest, targets: &Targets) {
    let kept = |name: &str| name.parse().is_ok_and(|target| targets.keeps(&target));
    manifest.kpack_files.retain(|name, _| kept(name));
}

/// The manifests in the input. An unreadable one is copied like any other file.
fn manifests(trees: &Trees, report: &mut Report) -> Result<Vec<Listed>, Error> {
    let mut manifests = Vec::new();
    for (owner, item) in trees.entries() {
        let is_listed = owner.is_some() || !item.origin.prefix.is_empty();
        if !is_listed || !item.is_manifest() {
            continue;
        }
        let from = item.full().to_path_buf();
        match or_refused(read_manifest(&from))? {
            Ok(manifest) => manifests.push(Listed { from, manifest }),
            Err(found) => {
                let text = format!("copied unchanged: {}", found.text);
                report.warn(found.id, found.file(), text);
            }
        }
    }
    Ok(manifests)
}
