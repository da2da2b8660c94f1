//! Plans of the host files. They are made before device code is read, so that unsupported files are
//! refused early, and completed with the IDs of the device code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use kpack_core::platform::FileExt;
use kpack_format::archive::ArchiveWriter;
use kpack_format::marker::Marker;
use kpack_format::names::Group;
use kpack_format::{CodeId, TargetId};

use super::binary::InstallBinary;
use crate::elf::BinaryError;
use crate::host::SplitPlan;
use crate::input::{KpackPath, LinkedBinary, LocatedBinary, binary_error};
use crate::publish::copy_range;
use crate::report::Report;
use crate::split::code_ids;
use crate::{Error, ids};

/// How to change a binary into a host binary.
pub enum HostPlan {
    /// Device code is removed.
    Planned(Box<SplitPlan>),
    /// It has no device code of its own, only objects that were split before the link; bytes at
    /// these offsets change.
    Edited(Vec<(u64, Vec<u8>)>),
}

impl HostPlan {
    /// Writes the host binary of `input`, found at `path`, to the empty file `output`.
    pub fn write(&self, path: &Path, input: &File, output: &File) -> Result<(), Error> {
        let failed = |e| Error::io(path, "write the host binary of", e);
        match self {
            Self::Planned(plan) => plan.apply(input, output).map_err(|error| match error {
                BinaryError::Io(error) => failed(error),
                error => binary_error(path, error),
            }),
            Self::Edited(edits) => {
                let size = input.metadata().map_err(failed)?.len();
                copy_range(input, output, 0..size, 0).map_err(failed)?;
                let mut edits = edits.iter();
                edits
                    .try_for_each(|(offset, bytes)| output.write_all_at(bytes, *offset))
                    .map_err(failed)
            }
        }
    }
}

/// The plans of the host files, by path.
pub(super) type HostPlans = BTreeMap<PathBuf, HostPlan>;

/// Plans the host files of `fat`, with room for the IDs of their device code for the wanted targets.
pub(super) fn plan(
    fat: &[&InstallBinary],
    kpacks: &KpackPath,
    group: &Group,
    wants: &dyn Fn(&TargetId) -> bool,
) -> Result<HostPlans, Error> {
    let plans = fat.iter().map(|binary| {
        let ids = code_ids::planned(binary.targets().iter().filter(|target| wants(target)));
        let marker = marker(binary, kpacks, group, ids)?;
        let placed = placed(binary, &marker)?;
        let plan = match binary.fat() {
            Some(file) => HostPlan::Planned(Box::new(file.plan_with(&marker, placed)?)),
            None => HostPlan::Edited(placed),
        };
        Ok((binary.located.path.clone(), plan))
    });
    plans.collect()
}

/// Writes the IDs of the device code in `archives` into the markers.
pub(super) fn set_code_ids(
    plans: &mut HostPlans,
    fat: &[&InstallBinary],
    kpacks: &KpackPath,
    group: &Group,
    archives: &BTreeMap<TargetId, ArchiveWriter<File>>,
) -> Result<(), Error> {
    for binary in fat {
        let path = &binary.located.path;
        let ids = code_ids::computed(archives, &binary.located.name);
        let marker = marker(binary, kpacks, group, ids)?;
        match plans.get_mut(path) {
            Some(HostPlan::Planned(plan)) => {
                let set = plan.set_marker(&marker);
                set.map_err(|error| binary_error(path, error))?;
                plan.add(placed(binary, &marker)?);
            }
            Some(HostPlan::Edited(edits)) => *edits = placed(binary, &marker)?,
            None => {}
        }
    }
    Ok(())
}

/// Warns of host files that are already split and expect other device code than `archives` contain:
/// a run with `--only device` does not change them. Ignores unreadable host files: another run may
/// be copying them.
pub(super) fn warn_of_other_builds(
    fat: &[&InstallBinary],
    archives: &BTreeMap<TargetId, ArchiveWriter<File>>,
    report: &mut Report,
) {
    for binary in fat {
        let LocatedBinary { path, name } = &binary.located;
        let Ok(markers) = LinkedBinary::open(path).and_then(|host| host.markers()) else {
            continue;
        };
        let found = code_ids::computed(archives, name);
        let own = markers
            .iter()
            .map(|group| &group.marker)
            .filter(|marker| marker.kernel_name.as_ref() == Some(name));
        let others: BTreeSet<&str> = own
            .flat_map(|marker| {
                let ids = found.iter();
                ids.filter(|(target, id)| !marker.accepts(target, Some(**id)))
            })
            .map(|(target, _)| target.as_str())
            .collect();
        if !others.is_empty() {
            let text = format!(
                "expects other device code for {}, so it does not load this; install the host file of the same build",
                Vec::from_iter(others).join(", ")
            );
            report.warn(ids::STALE_ARCHIVE, path, text);
        }
    }
}

fn marker(
    binary: &InstallBinary,
    kpacks: &KpackPath,
    group: &Group,
    code_ids: BTreeMap<String, CodeId>,
) -> Result<Marker, Error> {
    let marker = kpacks.marker(&binary.located, group).with_code_ids(code_ids);
    match binary.fat() {
        Some(fat) => fat.complete(marker),
        None => Ok(marker),
    }
}

/// The changes to a binary whose objects were split before the link.
fn placed(binary: &InstallBinary, marker: &Marker) -> Result<Vec<(u64, Vec<u8>)>, Error> {
    match &binary.presplit {
        Some(presplit) => presplit.edits(&|_| marker.clone()),
        None => Ok(Vec::new()),
    }
}
