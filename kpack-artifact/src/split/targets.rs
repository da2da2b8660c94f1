//! Chooses the targets to keep.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kpack_format::{Selection, TargetId};

use super::Options;
use super::report::Report;
use kpack_core::words::list;
use kpack_core::{Error, ids};
use kpack_split::split::Unexpected;

/// The targets that there is something for.
#[derive(Debug, Default)]
pub(super) struct Targets {
    pub(super) kept: BTreeSet<TargetId>,
    pub(super) left_out: BTreeSet<TargetId>,
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

impl Targets {
    /// Chooses from the targets that were `found`, each with a file that is for it.
    pub(super) fn choose(
        options: &Options,
        found: BTreeMap<TargetId, PathBuf>,
        report: &mut Report,
    ) -> Result<Self, Error> {
        let expected: Selection = options.targets.iter().collect();
        if expected.is_empty() || found.is_empty() {
            return Ok(Self { kept: found.into_keys().collect(), left_out: BTreeSet::new() });
        }
        let there = list(found.keys());
        let lacks = expected.unmatched(&Vec::from_iter(found.keys()));
        if !lacks.is_empty() {
            let text = format!("no device code for {} (found {there})", list(lacks));
            report.warn(ids::MISSING_TARGET, &options.artifact_dir, text);
        }
        let mut targets = Self::default();
        for (target, path) in found {
            if expected.matches(&target) {
                targets.kept.insert(target);
                continue;
            }
            match options.unexpected {
                Unexpected::Keep => {
                    targets.kept.insert(target);
                }
                Unexpected::Drop => {
                    report.warn(
                        ids::UNEXPECTED_TARGET,
                        path,
                        format!(
                            "skipping code for {target}, which --gpu-targets does not list (first found \
                             here)"
                        ),
                    );
                    report.left_out.push(target.to_string());
                    targets.left_out.insert(target);
                }
                Unexpected::Error => {
                    return Err(Error::rejected(
                        ids::UNEXPECTED_TARGET,
                        &path,
                        format!(
                            "is for {target}; expected only {}. Add it to --gpu-targets, or build without it",
                            list(expected.iter())
                        ),
                    ));
                }
            }
        }
        Ok(targets)
    }

    pub(super) fn keeps(&self, target: &TargetId) -> bool {
        self.kept.contains(target)
    }
}
