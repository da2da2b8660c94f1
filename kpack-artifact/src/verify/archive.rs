//! Verifies an archive: its header and table, and each stored code object once.

use std::collections::BTreeSet;
use std::io::{Read, Seek};
use std::path::Path;

use kpack_format::archive::{Archive, Targets, Toc};
use kpack_format::names::Group;

use super::{Context, Outcome, Report, Subject};
use kpack_core::Error;
use kpack_core::parallel::lock;
use kpack_split::input::damage;
use kpack_split::words::{counted, list_some};

/// Maximum number of ordinals that a fault lists.
const MOST_ORDINALS: usize = 8;

/// Verifies the archive at `path` and returns whether it is undamaged.
pub(super) fn verify(
    path: &Path,
    context: &Context<'_>,
    report: &mut Report,
) -> Result<bool, Error> {
    let faults = report.count(Outcome::Fault);
    let archive = report.accepted(Subject::Archive, path, context.lookup.archives.open(path))?;
    let Some(archive) = archive else {
        return Ok(false);
    };
    let mut archive = lock(&archive);
    let toc = archive.toc().clone();
    let expected = Group::from(toc.group_name.as_str()).archive(&toc.gfx_arch_family);
    if path.file_name() != Some(expected.as_ref()) {
        let text = format!("holds `{expected}` under another name");
        report.note(Subject::Archive, path, text);
    }
    let entries: usize = toc.kernels.values().map(Targets::len).sum();
    if entries == 0 {
        report.note(Subject::Archive, path, "is empty");
    }
    without_kernels(path, &toc, archive.count(), report);
    let stored = code_objects(path, &toc, &mut archive, report)?;
    let holds = report.count(Outcome::Fault) == faults;
    if holds {
        let what = match toc.checksums {
            Some(_) => "sizes, checksums",
            None => "sizes",
        };
        let text = format!(
            "{} for {}, {stored} stored: {what} and targets match",
            counted(entries, "kernel"),
            toc.gfx_arch_family,
        );
        report.ok(Subject::Archive, path, text);
    }
    Ok(holds)
}

/// Reports stored code objects that no kernel names; `count` is the number of all.
fn without_kernels(path: &Path, toc: &Toc, count: usize, report: &mut Report) {
    let entries = toc.kernels.values().flat_map(Targets::values);
    let named: BTreeSet<usize> = entries.map(|entry| entry.ordinal as usize).collect();
    let unnamed = (0..count).filter(|ordinal| !named.contains(ordinal));
    let unnamed: Vec<usize> = unnamed.collect();
    if !unnamed.is_empty() {
        let text = format!(
            "{} of {} belong to no kernel: ordinal {}",
            unnamed.len(),
            counted(count, "stored code object"),
            list_some(unnamed, MOST_ORDINALS),
        );
        report.fault(Subject::Archive, path, text);
    }
}

/// Reads every stored code object once and returns how many there are.
fn code_objects<R: Read + Seek>(
    path: &Path,
    toc: &Toc,
    archive: &mut Archive<R>,
    report: &mut Report,
) -> Result<usize, Error> {
    let mut seen = BTreeSet::new();
    for (kernel, targets) in &toc.kernels {
        for (target, entry) in targets {
            if !toc.gfx_arches.contains(target) {
                let listed = toc.gfx_arches.join(", ");
                let text = format!("`{kernel}` is for {target}, but `gfx_arches` lists {listed}");
                report.fault(Subject::Archive, path, text);
            }
            // Check a shared code object once for each target that names it.
            if seen.insert((entry.ordinal, target))
                && let Some(reason) = damage(path, archive, kernel, target)?
            {
                let text = format!("`{kernel}` for {target}: {reason}");
                report.fault(Subject::Archive, path, text);
            }
        }
    }
    let ordinals: BTreeSet<u32> = seen.into_iter().map(|(ordinal, _)| ordinal).collect();
    Ok(ordinals.len())
}
