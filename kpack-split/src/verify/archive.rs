//! An archive, whole: header and table, and each stored code object once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use kpack_format::TargetId;
use kpack_format::names::Group;

use super::{Report, Subject};
use crate::Error;
use crate::inspect::{self, open_archive};

/// How many ordinals a fault lists.
const MOST_ORDINALS: usize = 8;

/// Verifies the archive at `path`; tells whether it is whole.
pub(super) fn verify(path: &Path, report: &mut Report) -> Result<bool, Error> {
    let faults = report.count(super::Outcome::Fault);
    let mut archive = match open_archive(path) {
        Ok(archive) => archive,
        Err(Error::Refused { reason, .. }) => {
            report.fault(Subject::Archive, path, reason.to_string());
            return Ok(false);
        }
        Err(error) => return Err(error),
    };
    let toc = archive.toc().clone();

    let expected = Group::from(toc.group_name.as_str()).archive(&toc.gfx_arch_family);
    if path
        .file_name()
        .is_none_or(|name| name != expected.as_str())
    {
        let text = format!("holds `{expected}` under another name");
        report.note(Subject::Archive, path, text);
    }
    let entries: usize = toc.kernels.values().map(BTreeMap::len).sum();
    if entries == 0 {
        report.note(Subject::Archive, path, "is empty");
    }

    let named: BTreeSet<u32> = toc
        .kernels
        .values()
        .flat_map(|targets| targets.values().map(|entry| entry.ordinal))
        .collect();
    let unnamed: Vec<String> = (0..archive.count())
        .filter(|ordinal| u32::try_from(*ordinal).is_ok_and(|o| !named.contains(&o)))
        .take(MOST_ORDINALS + 1)
        .map(|ordinal| ordinal.to_string())
        .collect();
    if !unnamed.is_empty() {
        let more = if unnamed.len() > MOST_ORDINALS {
            " and more"
        } else {
            ""
        };
        let text = format!(
            "{} of {} belong to no kernel: ordinal {}{more}",
            archive.count() - named.len(),
            counted(archive.count(), "stored code object"),
            unnamed[..unnamed.len().min(MOST_ORDINALS)].join(", "),
        );
        report.fault(Subject::Archive, path, text);
    }

    let mut seen = BTreeSet::new();
    for (kernel, targets) in &toc.kernels {
        for (target, entry) in targets {
            if !toc.gfx_arches.contains(target) {
                let listed = toc.gfx_arches.join(", ");
                let text = format!("`{kernel}` is for {target}, but `gfx_arches` lists {listed}");
                report.fault(Subject::Archive, path, text);
            }
            // An identical code object is for the same target, or the same header is wrong twice.
            if !seen.insert((entry.ordinal, target)) {
                continue;
            }
            let bytes = match archive.read(kernel, target) {
                Ok(bytes) => bytes,
                Err(e) => {
                    let text = format!("`{kernel}` for {target}: {e}");
                    report.fault(Subject::Archive, path, text);
                    continue;
                }
            };
            if let Err(reason) = agrees(&bytes, target) {
                let text = format!("`{kernel}` for {target}: {reason}");
                report.fault(Subject::Archive, path, text);
            }
        }
    }

    let holds = report.count(super::Outcome::Fault) == faults;
    if holds {
        let what = if toc.checksums.is_some() {
            "sizes, checksums"
        } else {
            "sizes"
        };
        let text = format!(
            "{} for {}, {} stored: {what} and targets hold",
            counted(entries, "kernel"),
            toc.gfx_arch_family,
            seen.iter()
                .map(|(ordinal, _)| ordinal)
                .collect::<BTreeSet<_>>()
                .len(),
        );
        report.ok(Subject::Archive, path, text);
    }
    Ok(holds)
}

/// Whether a code object is for `target`, by what its own header says.
pub(super) fn agrees(code_object: &[u8], target: &str) -> Result<(), String> {
    let target: TargetId = target.parse().map_err(|e| format!("{e}"))?;
    inspect::check_code_object(code_object, &target)
}

/// `1 kernel`, `2 kernels`.
pub(super) fn counted(number: usize, noun: &str) -> String {
    if number == 1 {
        format!("1 {noun}")
    } else {
        format!("{number} {noun}s")
    }
}
