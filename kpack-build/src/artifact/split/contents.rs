//! What is in an artifact directory, read and not judged yet.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::PathBuf;

use kpack_format::TargetId;

use super::modules::{Module, module, refuse_collision};
use super::report::Report;
use super::targets::is_for;
use super::{Options, Unknown};
use crate::Error;
use crate::artifact::classify::{self, Class, Classification, Finding, Node};
use crate::artifact::manifest_txt;

/// What is in an artifact directory.
pub(super) struct Contents {
    /// The prefixes that are there.
    pub(super) prefixes: Vec<Read>,
    /// What is to be split: one for each prefix with fat binaries.
    pub(super) modules: Vec<Module>,
    /// The module and the binary in it that a file is.
    pub(super) fat_of: HashMap<PathBuf, (usize, usize)>,
    /// The targets that there is something for, and a file that has it.
    pub(super) found: BTreeMap<TargetId, PathBuf>,
}

/// A prefix that was read.
pub(super) struct Read {
    pub(super) prefix: String,
    pub(super) root: PathBuf,
    pub(super) classification: Classification,
}

impl Contents {
    /// Reads what is in the artifact directory.
    pub(super) fn read(options: &Options, report: &mut Report) -> Result<Self, Error> {
        let component = options.component()?;
        let mut prefixes = Vec::new();
        for prefix in manifest_txt::read(&options.artifact_dir)? {
            let Some(root) = manifest_txt::directory(&options.artifact_dir, &prefix)? else {
                let root = options.artifact_dir.join(&prefix);
                report.note(root, "listed, but not there; skipped");
                continue;
            };
            let classification = classify::classify(&root, &options.databases)?;
            prefixes.push(Read {
                prefix,
                root,
                classification,
            });
        }
        refuse_disagreements(&prefixes)?;

        let mut modules = Vec::new();
        let mut fat_of = HashMap::new();
        for read in &prefixes {
            if let Some(module) = module(read, component, modules.len(), &mut fat_of)? {
                refuse_collision(&modules, &module, options)?;
                modules.push(module);
            }
        }
        let found = found(&prefixes, &modules, options);
        report.device_code = !found.is_empty();
        report.size_before = size_before(options, &prefixes)?;
        Ok(Self {
            prefixes,
            modules,
            fat_of,
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
fn refuse_disagreements(prefixes: &[Read]) -> Result<(), Error> {
    let all = prefixes.iter().flat_map(|read| {
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

/// The targets that there is something for, and a file that has it.
fn found(prefixes: &[Read], modules: &[Module], options: &Options) -> BTreeMap<TargetId, PathBuf> {
    let mut found = BTreeMap::new();
    for binary in modules.iter().flat_map(|module| &module.binaries) {
        for target in binary.file.code.targets() {
            found
                .entry(target)
                .or_insert_with(|| binary.file.code.path.clone());
        }
    }
    for read in prefixes {
        for entry in &read.classification.entries {
            let target = match &entry.class {
                Class::Target { target, .. } => Some(target),
                Class::Unknown { target, .. } if options.unknown == Unknown::Move => {
                    target.as_ref()
                }
                _ => None,
            };
            if let Some(target) = target.filter(|_| !matches!(entry.node, Node::Directory { .. })) {
                let path = || read.root.join(&entry.path);
                found.entry(target.clone()).or_insert_with(path);
            }
        }
    }
    found
}

/// Size of all files in bytes, each inode once.
fn size_before(options: &Options, prefixes: &[Read]) -> Result<u64, Error> {
    let listed = options.artifact_dir.join(manifest_txt::FILE_NAME);
    let metadata = fs::metadata(&listed).map_err(|e| Error::io(&listed, "read", e))?;
    let mut inodes = BTreeSet::new();
    let entries = prefixes
        .iter()
        .flat_map(|read| &read.classification.entries);
    let sizes = entries.map(|entry| match entry.node {
        Node::File {
            shared_inode: Some(inode),
            ..
        } if !inodes.insert(inode) => 0,
        Node::File { size, .. } => size,
        _ => 0,
    });
    Ok(sizes.fold(metadata.len(), u64::saturating_add))
}
