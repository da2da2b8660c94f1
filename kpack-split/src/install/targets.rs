//! The targets whose device code a run keeps, and whether the binaries have them.

use std::collections::BTreeSet;
use std::path::Path;

use kpack_core::words::list;
use kpack_format::names::Group;
use kpack_format::{Selection, TargetId};

use super::again;
use super::binary::{BinaryContent, InstallBinary};
use super::options::{InstallOptions, Only};
use crate::input::{KpackPath, Lookup};
use crate::report::Report;
use crate::split::Unexpected;
use crate::{Error, ids};

/// The first binary split by an earlier run, and the targets of all such binaries.
pub(super) type SplitAlready<'a> = Option<(&'a Path, BTreeSet<TargetId>)>;

/// Checks that binaries split by an earlier run match the current options.
pub(super) fn split_already<'a>(
    binaries: &'a [InstallBinary],
    kpacks: &KpackPath,
    group: &Group,
    options: &InstallOptions,
    lookup: &Lookup,
) -> Result<SplitAlready<'a>, Error> {
    let mut known: SplitAlready<'a> = None;
    for binary in binaries {
        if !binary.stays.is_empty() {
            let known = known.get_or_insert_with(|| (&binary.located.path, BTreeSet::new()));
            known.1.extend(binary.stays.iter().cloned());
        }
        let (BinaryContent::Split(markers), None) = (&binary.content, &binary.presplit) else {
            continue;
        };
        let path = &binary.located.path;
        let expected = kpacks.marker(&binary.located, group);
        // Not named, so it may be of another module.
        let mut all = markers.iter();
        if options.all && !all.all(|group| group.marker.refers_to(&expected)) {
            continue;
        }
        // Without evidence, assume that the targets match.
        let targets = again::targets(path, markers, &expected, kpacks, group, lookup)?
            .unwrap_or_else(|| options.architectures.iter().cloned().collect());
        let known = known.get_or_insert_with(|| (path, BTreeSet::new()));
        known.1.extend(targets);
    }
    Ok(known)
}

/// The targets whose device code to keep.
pub(super) enum WantedTargets {
    /// These; all that were found.
    All(BTreeSet<TargetId>),
    /// Those that the user's names mean.
    Selected(Selection),
}

impl WantedTargets {
    pub(super) fn wants(&self, target: &TargetId) -> bool {
        match self {
            Self::All(found) => found.contains(target),
            Self::Selected(selection) => selection.matches(target),
        }
    }

    /// Whether the run may write an archive for `target`, for which the binaries may have no code.
    pub(super) fn may_write(&self, target: &TargetId) -> bool {
        matches!(self, Self::All(_)) || self.wants(target)
    }
}

/// Finds out which device code to keep.
pub(super) fn wanted_targets(
    options: &InstallOptions,
    fat: &[&InstallBinary],
    already: SplitAlready<'_>,
    report: &mut Report,
) -> Result<WantedTargets, Error> {
    let found: BTreeSet<TargetId> = fat.iter().flat_map(|binary| binary.targets()).collect();
    let first = fat
        .first()
        .map(|binary| binary.located.path.as_path())
        .or(already.as_ref().map(|(path, _)| *path));
    let (false, Some(first)) = (options.architectures.is_empty(), first) else {
        return Ok(WantedTargets::All(found));
    };
    let expected: Selection = options.architectures.iter().collect();

    let mut known = found.clone();
    known.extend(already.into_iter().flat_map(|(_, targets)| targets));
    known.extend(fat.iter().flat_map(|binary| binary.elsewhere()));
    let missing = expected.unmatched(&Vec::from_iter(&known));
    if !missing.is_empty() {
        let others = match fat.len() {
            0 | 1 => String::new(),
            count => format!(" in this binary, or in the {} others", count - 1),
        };
        return Err(Error::rejected(
            ids::MISSING_TARGET,
            first,
            format!(
                "no device code for {}{others}; there is device code for {}",
                list(missing),
                list(&known)
            ),
        ));
    }
    for binary in fat {
        check_targets(binary, &expected, options, report)?;
    }
    let keeps_all = options.unexpected == Unexpected::Keep && options.only != Some(Only::Device);
    Ok(if keeps_all { WantedTargets::All(found) } else { WantedTargets::Selected(expected) })
}

/// Reports targets that a binary lacks, and targets that are not expected.
fn check_targets(
    binary: &InstallBinary,
    expected: &Selection,
    options: &InstallOptions,
    report: &mut Report,
) -> Result<(), Error> {
    let own = binary.targets();
    let path = &binary.located.path;
    let elsewhere = binary.elsewhere();
    let lacks = expected.unmatched(&Vec::from_iter(own.union(&elsewhere)));
    if !lacks.is_empty() {
        report.warn(
            ids::MISSING_TARGET,
            path,
            format!("has no device code for {}, only for {}", list(lacks), list(&own)),
        );
    }
    // A run for device code of some targets leaves the rest to other runs.
    let more: Vec<&TargetId> = own.iter().filter(|own| !expected.matches(own)).collect();
    if more.is_empty() || options.only == Some(Only::Device) {
        return Ok(());
    }
    match options.unexpected {
        Unexpected::Keep => {}
        Unexpected::Drop => report.warn(
            ids::UNEXPECTED_TARGET,
            path,
            format!(
                "skipping device code for {}, which --arch does not list; `kpack join` cannot put it back",
                list(more)
            ),
        ),
        Unexpected::Error => {
            return Err(Error::rejected(
                ids::UNEXPECTED_TARGET,
                path,
                format!(
                    "has device code for {}; expected only {}. Add it to --arch, or build without it",
                    list(more),
                    list(expected.iter())
                ),
            ));
        }
    }
    Ok(())
}
