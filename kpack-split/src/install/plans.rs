//! Plans of the host files. They are made before device code is read, so that unsupported files are
//! refused early, and completed with the IDs of the device code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::PathBuf;

use kpack_format::archive::ArchiveWriter;
use kpack_format::marker::Marker;
use kpack_format::names::Group;
use kpack_format::{CodeId, TargetId};

use super::host::Edits;
use super::{Binary, Report};
use crate::Error;
use crate::elf::Plan;
use crate::input::{KpackPath, Linked, Located, elf_error};
use crate::split::code_ids;

/// Changes to the host files, by path.
#[derive(Default)]
pub(super) struct Plans {
    /// For files linked from objects with device code.
    pub(super) plans: BTreeMap<PathBuf, Plan>,
    /// For files linked only from objects that were split before the link.
    pub(super) edits: BTreeMap<PathBuf, Edits>,
}

impl Plans {
    /// Plans the host files of `fat`, with room for the IDs of their device code for the `wanted`
    /// targets.
    pub(super) fn new(
        fat: &[&Binary],
        kpacks: &KpackPath,
        group: &Group,
        wanted: &BTreeSet<TargetId>,
    ) -> Result<Self, Error> {
        let mut new = Self::default();
        for binary in fat {
            let targets = binary.targets();
            let ids = code_ids::planned(targets.intersection(wanted));
            let marker = marker(binary, kpacks, group, ids);
            let placed = placed(binary, &marker)?;
            let path = binary.located.path.clone();
            match binary.fat() {
                Some(file) => {
                    let plan = file.plan_with(&marker, placed)?;
                    new.plans.insert(path, plan);
                }
                None => _ = new.edits.insert(path, placed),
            }
        }
        Ok(new)
    }

    /// Writes the IDs of the device code in `archives` into the markers.
    pub(super) fn set_code_ids(
        &mut self,
        fat: &[&Binary],
        kpacks: &KpackPath,
        group: &Group,
        archives: &BTreeMap<TargetId, ArchiveWriter<File>>,
    ) -> Result<(), Error> {
        for binary in fat {
            let path = &binary.located.path;
            let ids = code_ids::computed(archives, &binary.located.name);
            let marker = marker(binary, kpacks, group, ids);
            if let Some(plan) = self.plans.get_mut(path) {
                let set = plan.set_marker(&marker);
                set.map_err(|error| elf_error(path, error))?;
                plan.add(placed(binary, &marker)?);
            } else if let Some(edits) = self.edits.get_mut(path) {
                *edits = placed(binary, &marker)?;
            }
        }
        Ok(())
    }
}

/// Warns of host files that are already split and expect other device code than `archives` contain:
/// a run with `--only device` does not change them. Ignores unreadable host files: another run may
/// be copying them.
pub(super) fn warn_of_other_builds(
    fat: &[&Binary],
    archives: &BTreeMap<TargetId, ArchiveWriter<File>>,
    report: &mut Report,
) {
    for binary in fat {
        let Located { path, name } = &binary.located;
        let Ok(markers) = Linked::open(path).and_then(|host| host.markers()) else {
            continue;
        };
        let found = code_ids::computed(archives, name);
        let own = markers.iter().map(|group| &group.marker);
        let own = own.filter(|marker| marker.kernel_name.as_ref() == Some(name));
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
            report.warn(path, text);
        }
    }
}

fn marker(
    binary: &Binary,
    kpacks: &KpackPath,
    group: &Group,
    code_ids: BTreeMap<String, CodeId>,
) -> Marker {
    let marker = Marker {
        code_ids,
        ..kpacks.marker(&binary.located, group)
    };
    match binary.fat() {
        Some(fat) => fat.with_kept(marker),
        None => marker,
    }
}

/// The changes to a binary whose objects were split before the link.
fn placed(binary: &Binary, marker: &Marker) -> Result<Edits, Error> {
    match &binary.presplit {
        Some(presplit) => presplit.edits(&|_| marker.clone()),
        None => Ok(Edits::new()),
    }
}
