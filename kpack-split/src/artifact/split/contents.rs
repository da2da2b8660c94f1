//! What is in an artifact, read and not judged yet.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::PathBuf;

use kpack_format::TargetId;

use super::manifests::{self, Listed};
use super::modules::{Module, module, refuse_collision};
use super::report::Report;
use super::sources::{Owner, Read, Sources};
use super::targets::is_for;
use super::{Options, Unknown};
use crate::Error;
use crate::artifact::classify::{Class, Finding, Node};
use crate::artifact::manifest_txt;
use crate::artifact::mark;
use crate::input::Linked;
use crate::install::presplit::Presplit;

/// What is in an artifact.
pub(super) struct Contents {
    /// Where it was read.
    pub(super) sources: Sources,
    /// What is below each prefix, and in none.
    pub(super) reads: Vec<Read>,
    /// What is to be split: one for each prefix with fat binaries.
    pub(super) modules: Vec<Module>,
    /// The module and the binary in it that a file is.
    pub(super) fat_of: HashMap<PathBuf, (usize, usize)>,
    /// The manifests of what was split before.
    pub(super) manifests: Vec<Listed>,
    /// The targets that there is something for, and a file that has or names it.
    pub(super) found: BTreeMap<TargetId, PathBuf>,
}

impl Contents {
    /// Reads what is in the artifact.
    pub(super) fn read(
        options: &Options,
        sources: Sources,
        report: &mut Report,
    ) -> Result<Self, Error> {
        let component = options.component()?;
        let reads = sources.read(options, report)?;
        refuse_disagreements(&reads)?;

        let mut modules = Vec::new();
        let mut fat_of = HashMap::new();
        for read in reads.iter().filter(|read| read.owner == Owner::Classes) {
            if let Some(module) = module(read, component, modules.len(), &mut fat_of)? {
                refuse_collision(&modules, &module, options)?;
                modules.push(module);
            }
        }
        let fat = modules.iter().flat_map(|module| &module.binaries).next();
        if let (Some(fat), Some((_, target))) = (fat, sources.targets.first()) {
            let text = format!(
                "it is a fat binary, beside what was split off before, such as {}; split it alone",
                target.display()
            );
            return Err(Error::refused(&fat.file.code.path, text));
        }
        not_installed(&reads, report)?;
        let manifests = manifests::read(&reads, report)?;
        let found = found(&reads, &modules, &manifests, options);
        report.size_before = size_before(&sources, &reads);
        Ok(Self {
            sources,
            reads,
            modules,
            fat_of,
            manifests,
            found,
        })
    }

    /// Whether there is something for one of the targets that are expected, if any are.
    pub(super) fn has_expected(&self, options: &Options) -> bool {
        let expected = &options.targets;
        expected.is_empty()
            || expected
                .iter()
                .any(|expected| self.found.keys().any(|found| is_for(found, expected)))
    }
}

/// A file that says two things could go wrong either way.
fn refuse_disagreements(reads: &[Read]) -> Result<(), Error> {
    let all = reads.iter().flat_map(|read| {
        let findings = read.classification.disagreements.iter();
        findings.map(move |finding| (read, finding))
    });
    let mut all: Vec<(&Read, &Finding)> = all.collect();
    let Some((read, first)) = all.first().copied() else {
        return Ok(());
    };
    let mut text = first.text.clone();
    for (read, finding) in all.drain(1..) {
        let path = read.root.join(&finding.path);
        text += &format!("\n  and {}: {}", path.display(), finding.text);
    }
    Err(Error::refused(&read.root.join(&first.path), text))
}

/// Refuses binaries that were split before the link and not installed: their device code is where
/// they were built.
fn not_installed(reads: &[Read], report: &mut Report) -> Result<(), Error> {
    for read in reads {
        let entries = read.classification.entries.iter();
        for entry in entries.filter(|entry| entry.class == Class::Split) {
            let path = read.root.join(&entry.path);
            match Linked::open(&path).and_then(|linked| Presplit::read(linked, false)) {
                Ok(Err(_)) => {}
                Ok(Ok(_)) => {
                    let text = "its device code was split before the link, and is where it was \
                                built; expected it in the artifact, where `kpack install` puts it";
                    return Err(Error::refused(&path, text));
                }
                Err(Error::Refused { path, reason }) => report.warn(path, reason),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// The targets that there is something for, and a file that has or names it.
fn found(
    reads: &[Read],
    modules: &[Module],
    manifests: &[Listed],
    options: &Options,
) -> BTreeMap<TargetId, PathBuf> {
    let mut found = BTreeMap::new();
    let mut add = |target: &TargetId, path: PathBuf| {
        found.entry(target.clone()).or_insert(path);
    };
    for binary in modules.iter().flat_map(|module| &module.binaries) {
        for target in binary.file.code.targets() {
            add(&target, binary.file.code.path.clone());
        }
    }
    for read in reads {
        for entry in &read.classification.entries {
            let target = match (&read.owner, &entry.class) {
                (Owner::Target(target), _) => Some(target),
                (Owner::Classes, Class::Target { target, .. }) => Some(target),
                (Owner::Classes, Class::Unknown { target, .. })
                    if options.unknown == Unknown::Move =>
                {
                    target.as_ref()
                }
                _ => None,
            };
            if let Some(target) = target.filter(|_| !matches!(entry.node, Node::Directory { .. })) {
                add(target, read.root.join(&entry.path));
            }
        }
    }
    for listed in manifests {
        for target in listed.targets() {
            add(&target, listed.from.clone());
        }
    }
    found
}

/// Size of all files in bytes, each inode once.
fn size_before(sources: &Sources, reads: &[Read]) -> u64 {
    let mut size = 0u64;
    for directory in sources.all() {
        for name in [manifest_txt::FILE_NAME, mark::FILE_NAME] {
            let own = fs::metadata(directory.join(name));
            size = size.saturating_add(own.map_or(0, |metadata| metadata.len()));
        }
    }
    let mut inodes = BTreeSet::new();
    let entries = reads.iter().flat_map(|read| &read.classification.entries);
    let sizes = entries.map(|entry| match entry.node {
        Node::File {
            shared_inode: Some(inode),
            ..
        } if !inodes.insert(inode) => 0,
        Node::File { size, .. } => size,
        _ => 0,
    });
    sizes.fold(size, u64::saturating_add)
}
