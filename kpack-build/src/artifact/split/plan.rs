//! The split artifacts as data: what is to be where. Nothing is written yet, and everything is read
//! that could be a reason to refuse.

use std::fs;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;

use super::contents::Contents;
use super::modules::{FatBinary, Module};
use super::report::Report;
use super::targets::{Targets, list};
use super::{Options, Unknown};
use crate::Error;
use crate::artifact::classify::{self, Class, Entry, Node};
use crate::artifact::manifest_txt;
use crate::install::{FileReport, Outcome};

/// The split artifacts, before they are written.
pub(super) struct Plan {
    /// The prefixes that are there.
    pub(super) prefixes: Vec<String>,
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

/// Plans what becomes of what was read.
pub(super) fn plan(
    options: &Options,
    contents: Contents,
    report: &mut Report,
) -> Result<Plan, Error> {
    let Contents {
        prefixes,
        modules,
        fat_of,
        found,
    } = contents;
    let targets = Targets::choose(options, found, report)?;

    let mut items = Vec::new();
    for read in &prefixes {
        for finding in &read.classification.unpaired {
            report.warn(read.root.join(&finding.path), &finding.text);
        }
        for finding in &read.classification.notices {
            report.note(read.root.join(&finding.path), &finding.text);
        }
        for entry in &read.classification.entries {
            let from = read.root.join(&entry.path);
            let target = destination(options, &targets, entry, &from, report)?;
            let Destination::Kept(target) = target else {
                continue;
            };
            if modules.iter().any(|module| module.writes(&from, &targets)) {
                continue;
            }
            items.push(Item {
                fat: fat_of.get(&from).copied(),
                path: Path::new(&read.prefix).join(&entry.path),
                from,
                target,
                node: entry.node,
            });
        }
    }
    for module in &modules {
        for binary in &module.binaries {
            let own = binary.file.code.targets();
            if !own.is_empty() && !own.iter().any(|target| targets.keeps(target)) {
                let text = format!("all of its device code is left out: {}", list(&own));
                report.warn(&binary.file.code.path, text);
            }
            report.binaries.push(file_report(module, binary, &targets)?);
        }
    }
    let prefixes: Vec<String> = prefixes.into_iter().map(|read| read.prefix).collect();
    strays(options, &prefixes, &mut items, report)?;
    Ok(Plan {
        prefixes,
        items,
        modules,
        targets,
    })
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
    entry: &Entry,
    from: &Path,
    report: &mut Report,
) -> Result<Destination, Error> {
    let target = match &entry.class {
        Class::Host | Class::Fat | Class::Split => None,
        Class::Target { target, .. } => Some(target),
        Class::Unknown { target, reason } => {
            let hint = "looks architecture-specific";
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

fn file_report(
    module: &Module,
    binary: &FatBinary,
    targets: &Targets,
) -> Result<FileReport, Error> {
    let path = &binary.file.code.path;
    let metadata = binary.file.code.file.metadata();
    let size = metadata.map_err(|e| Error::io(path, "read", e))?.len();
    let kept = binary
        .file
        .code
        .targets()
        .into_iter()
        .filter(|t| targets.keeps(t));
    Ok(FileReport {
        path: format!("{}/{}", module.prefix, binary.name),
        outcome: Outcome::Split {
            wrappers: binary.file.code.wrapper_count(),
            targets: kept.map(|target| target.to_string()).collect(),
            size_before: size,
            size_after: binary.plan.output_size(),
        },
    })
}

/// What is in the artifact directory and in none of its prefixes goes to the generic artifact as it
/// is, so that nothing is lost.
fn strays(
    options: &Options,
    prefixes: &[String],
    items: &mut Vec<Item>,
    report: &mut Report,
) -> Result<(), Error> {
    let root = &options.artifact_dir;
    for found in manifest_txt::outside(root, prefixes) {
        let found = found.map_err(|error| classify::walk_error(root, error))?;
        let from = found.into_path();
        let path = from.strip_prefix(root).unwrap_or(&from).to_owned();
        let metadata = fs::symlink_metadata(&from).map_err(|e| Error::io(&from, "read", e))?;
        let node = if metadata.is_symlink() {
            Node::Symlink
        } else if metadata.is_file() {
            Node::File {
                size: metadata.len(),
                shared_inode: None,
            }
        } else {
            // No place for a pipe or a device.
            continue;
        };
        report.warn(
            &from,
            format!(
                "is in no prefix that {} lists; copied to the generic artifact as it is",
                manifest_txt::FILE_NAME
            ),
        );
        items.push(Item {
            from,
            path,
            target: None,
            node,
            fat: None,
        });
    }
    Ok(())
}
