//! The split artifacts as data: what is to be where. Nothing is written yet, and everything is read
//! that could be a reason to refuse.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use kpack_format::TargetId;

use super::contents::Contents;
use super::manifests::Rewritten;
use super::modules::{FatBinary, Module};
use super::report::Report;
use super::sources::{self, Owner, Read, Sources};
use super::targets::{Targets, list};
use super::{Options, Unknown};
use crate::Error;
use crate::artifact::classify::{Class, Entry, KPACK, Node};
use crate::artifact::code_ids::{self, Edits};
use crate::artifact::databases::{self, Place};
use crate::artifact::pairs::named_beside;
use crate::install::{FileReport, Outcome};

/// The split artifacts, before they are written.
pub(super) struct Plan {
    /// Where it was read.
    pub(super) sources: Sources,
    /// The prefixes that are there.
    pub(super) prefixes: Vec<String>,
    /// The prefixes of the generic artifact, if one is written.
    pub(super) generic: Option<Vec<String>>,
    /// What is copied, in the order of paths in each prefix.
    pub(super) items: Vec<Item>,
    /// What is split: one for each prefix with fat binaries.
    pub(super) modules: Vec<Module>,
    /// The targets that are kept.
    pub(super) targets: Targets,
}

/// An entry of the input, and where it goes.
pub(super) struct Item {
    pub(super) from: PathBuf,
    /// In the artifact, with the prefix.
    pub(super) path: PathBuf,
    /// `None` for the generic artifact.
    pub(super) target: Option<TargetId>,
    pub(super) node: Node,
    /// Which module, and which of its binaries, where it is to be split.
    pub(super) fat: Option<(usize, usize)>,
    /// Whether it is an archive of what was split before.
    pub(super) is_archive: bool,
    /// The manifest that is written in its place.
    pub(super) manifest: Option<Vec<u8>>,
    /// Bytes that change in the copy, by offset.
    pub(super) edits: Edits,
}

impl Item {
    /// How many bytes are read for it.
    pub(super) fn size(&self) -> u64 {
        match self.node {
            Node::File { size, .. } => size,
            _ => 0,
        }
    }
}

impl Plan {
    /// How many bytes of a file are device code, which modules read.
    pub(super) fn device_share(&self, item: &Item) -> u64 {
        let binary = item.fat.and_then(|(module, binary)| {
            let module = self.modules.get(module)?;
            module.binaries.get(binary)
        });
        binary.map_or(0, FatBinary::device_share)
    }
}

/// Plans what becomes of what was read.
pub(super) fn plan(
    options: &Options,
    contents: Contents,
    report: &mut Report,
) -> Result<Plan, Error> {
    let Contents {
        sources,
        reads,
        modules,
        fat_of,
        manifests,
        found,
    } = contents;
    report.device_code = !found.is_empty();
    let targets = Targets::choose(options, found, report)?;
    let mut rewritten: HashMap<&Path, Rewritten> = manifests
        .iter()
        .filter(|listed| !modules.iter().any(|module| listed.is_of(module)))
        .filter_map(|listed| Some((listed.from.as_path(), listed.rewritten(&targets)?)))
        .collect();

    let written_anew: HashSet<&Path> = modules
        .iter()
        .flat_map(|module| module.written_anew(&targets))
        .collect();
    let mut items = Vec::new();
    for read in &reads {
        for finding in &read.classification.unpaired {
            // The library file may be one for all targets.
            let generic = sources.generic().filter(|_| is_of_target(read));
            let beside = generic.map(|root| root.join(&read.prefix).join(&finding.path));
            if beside.is_some_and(|path| named_beside(&path)) {
                continue;
            }
            report.warn(read.root.join(&finding.path), &finding.text);
        }
        let damaged = read.classification.damaged.iter();
        for finding in damaged.chain(&read.classification.unreadable) {
            report.warn(read.root.join(&finding.path), &finding.text);
        }
        report.device_code |= !read.classification.for_all.is_empty();
        let for_all = read.classification.for_all.iter();
        for finding in for_all.chain(&read.classification.notices) {
            report.note(read.root.join(&finding.path), &finding.text);
        }
        for entry in &read.classification.entries {
            let from = read.root.join(&entry.path);
            let target = destination(options, &targets, read, entry, report)?;
            let Destination::Kept(target) = target else {
                continue;
            };
            if written_anew.contains(from.as_path()) {
                continue;
            }
            report.already_split += u64::from(entry.class == Class::Split);
            if target.is_none() && is_device_code(options, read, entry) {
                report.left_generic += 1;
            }
            let manifest = match rewritten.remove(from.as_path()) {
                Some(Rewritten::Gone) => continue,
                Some(Rewritten::Bytes(bytes)) => Some(bytes),
                None => None,
            };
            let edits = match entry.class {
                Class::Split => without_left_out(&from, &targets)?,
                _ => Edits::new(),
            };
            items.push(Item {
                fat: fat_of.get(&from).copied(),
                path: Path::new(&read.prefix).join(&entry.path),
                from,
                target,
                node: entry.node,
                is_archive: matches!(&entry.class, Class::Target { database, .. }
                    if *database == KPACK),
                manifest,
                edits,
            });
        }
    }
    drop((rewritten, written_anew));
    report.device_code |= report.already_split + report.left_generic > 0;
    refuse_two_of_one_path(&items)?;
    for module in &modules {
        for binary in &module.binaries {
            let own = binary.file.code.targets();
            if !own.is_empty() && !own.iter().any(|target| targets.keeps(target)) {
                let text = format!("skipping all of its device code: {}", list(&own));
                report.warn(&binary.file.code.path, text);
            }
            report.binaries.push(file_report(module, binary, &targets));
        }
    }
    let own = reads.iter().filter(|read| !is_of_target(read));
    Ok(Plan {
        prefixes: sources::prefixes(&reads),
        generic: sources.has_generic().then(|| sources::prefixes(own)),
        sources,
        items,
        modules,
        targets,
    })
}

/// What changes in a binary that was split before: its markers expect no device code that is left
/// out, as those of a binary that is split now do not.
fn without_left_out(from: &Path, targets: &Targets) -> Result<Edits, Error> {
    if targets.left_out.is_empty() {
        return Ok(Edits::new());
    }
    let left_out = |name: &str| {
        let target = name.parse();
        target.is_ok_and(|target: TargetId| targets.left_out.contains(&target))
    };
    code_ids::without(from, &left_out)
}

fn is_of_target(read: &Read) -> bool {
    matches!(read.owner, Owner::Target(_))
}

/// Whether an entry is device code, in a known place or not.
fn is_device_code(options: &Options, read: &Read, entry: &Entry) -> bool {
    let is_left_out = || {
        let path = entry.path.to_string_lossy();
        matches!(databases::recognise(&path), Some((database, place))
            if !options.databases.has(database) && !matches!(place, Place::ForAll(_)))
    };
    match &entry.class {
        Class::Unknown { device_code, .. } => *device_code,
        Class::Host => {
            read.owner == Owner::Classes && matches!(entry.node, Node::File { .. }) && is_left_out()
        }
        _ => false,
    }
}

/// What was split before is in several directories, and may be in two of them.
fn refuse_two_of_one_path(items: &[Item]) -> Result<(), Error> {
    let mut seen = HashMap::new();
    let files = items.iter();
    for item in files.filter(|item| !matches!(item.node, Node::Directory { .. })) {
        if let Some(other) = seen.insert((&item.target, &item.path), &item.from) {
            let reason = format!("it is in the place of {}", other.display());
            return Err(Error::refused(&item.from, reason));
        }
    }
    Ok(())
}

/// Where an entry goes.
enum Destination {
    /// To the generic artifact, or to a target's.
    Kept(Option<TargetId>),
    Dropped,
}

fn destination(
    options: &Options,
    targets: &Targets,
    read: &Read,
    entry: &Entry,
    report: &mut Report,
) -> Result<Destination, Error> {
    let target = match (&read.owner, &entry.class) {
        (Owner::Target(target), _) => Some(target),
        (_, Class::Host | Class::Fat | Class::Split) => None,
        (_, Class::Target { target, .. }) => Some(target),
        (_, Class::Unknown { target, reason, .. }) => {
            let hint = "looks architecture-specific";
            let from = &read.root.join(&entry.path);
            match (options.unknown, target) {
                (Unknown::Error, _) => {
                    return Err(Error::refused(
                        from,
                        format!("{hint}: {reason}; it is in no kernel database that is known"),
                    ));
                }
                (Unknown::Move, Some(target)) => {
                    report.note(from, format!("{hint}: {reason}; moved to {target}"));
                    Some(target)
                }
                (Unknown::Move, None) => {
                    report.warn(
                        from,
                        format!(
                            "{hint}: {reason}; it cannot be moved to one target, and stays generic"
                        ),
                    );
                    None
                }
                (Unknown::Report, _) => {
                    report.warn(from, format!("{hint}: {reason}; it stays generic"));
                    None
                }
            }
        }
    };
    Ok(match target {
        // An empty directory is no reason for an artifact.
        Some(target) if matches!(entry.node, Node::Directory { .. }) => {
            Destination::Kept(targets.keeps(target).then(|| target.clone()))
        }
        Some(target) if !targets.keeps(target) => Destination::Dropped,
        target => Destination::Kept(target.cloned()),
    })
}

fn file_report(module: &Module, binary: &FatBinary, targets: &Targets) -> FileReport {
    let kept = binary
        .file
        .code
        .targets()
        .into_iter()
        .filter(|t| targets.keeps(t));
    FileReport {
        path: format!("{}/{}", module.prefix, binary.name),
        outcome: Outcome::Split {
            wrappers: binary.file.code.wrapper_count(),
            targets: kept.map(|target| target.to_string()).collect(),
            size_before: binary.file.code.file_size(),
            size_after: binary.plan.output_size(),
        },
    }
}
