//! An archive, whole: header and table, and each stored code object once.

use std::collections::BTreeSet;
use std::io::{Read, Seek};
use std::path::Path;

use kpack_format::TargetId;
use kpack_format::archive::{Archive, Targets};
use kpack_format::code_object::HEAD_SIZE;
use kpack_format::names::{Group, KernelName};

use super::{Context, Report, Subject};
use crate::Error;
use crate::input;
use crate::input::open_archive;

/// How many ordinals a fault lists.
const MOST_ORDINALS: usize = 8;

/// Verifies the archive at `path`; tells whether it is whole.
pub(super) fn verify(
    path: &Path,
    context: &Context<'_>,
    report: &mut Report,
) -> Result<bool, Error> {
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
    let kernels = toc.kernels.keys();
    context.holds(
        path,
        kernels.map(|kernel| KernelName::parse(kernel).binary),
        None,
    );

    let expected = Group::from(toc.group_name.as_str()).archive(&toc.gfx_arch_family);
    if path
        .file_name()
        .is_none_or(|name| name != expected.as_str())
    {
        let text = format!("holds `{expected}` under another name");
        report.note(Subject::Archive, path, text);
    }
    let entries: usize = toc.kernels.values().map(Targets::len).sum();
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
            if let Some(reason) = damage(path, &mut archive, kernel, target)? {
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

/// Code objects that are larger are not held to be verified, in bytes.
const LARGE: u64 = 64 << 20;

/// What is wrong with a code object of the archive at `path`: it cannot be decompressed, has another
/// checksum, or is not for `target` by its own header.
///
/// # Errors
/// [`Error::Io`] where that cannot be told.
pub(super) fn damage<R: Read + Seek>(
    path: &Path,
    archive: &mut Archive<R>,
    kernel: &str,
    target: &str,
) -> Result<Option<String>, Error> {
    let id: TargetId = match target.parse() {
        Ok(id) => id,
        Err(error) => return Ok(Some(format!("{error}"))),
    };
    let entry = archive.toc().entry(kernel, target);
    let size = entry.map(|entry| entry.original_size);
    let checked = size.and_then(|size| match size <= LARGE {
        true => {
            let bytes = archive.read(kernel, target);
            bytes.map(|bytes| input::check_code_object(&bytes, &id))
        }
        false => {
            let head = archive.read_head(kernel, target, HEAD_SIZE);
            head.map(|head| input::check_code_object_head(&head, size, &id))
        }
    });
    match checked.map_err(|error| Error::archive(path, "read", error)) {
        Ok(checked) => Ok(checked.err()),
        Err(Error::Refused { reason, .. }) => Ok(Some(reason)),
        Err(error) => Err(error),
    }
}

/// `1 kernel`, `2 kernels`.
pub(super) fn counted(number: usize, noun: &str) -> String {
    if number == 1 {
        format!("1 {noun}")
    } else {
        format!("{number} {noun}s")
    }
}
