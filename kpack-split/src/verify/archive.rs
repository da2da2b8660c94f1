//! Verifies an archive: its header and table, and each stored code object once.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Seek};
use std::path::Path;

use kpack_core::{Severity, ids};
use kpack_format::archive::{Archive, Targets, Toc};
use kpack_format::names::Group;

use super::context::Context;
use super::report::VerifyReport;
use crate::input::{KernelNames, check};
use kpack_core::parallel::lock;
use kpack_core::words::{counted, list_some};
use kpack_core::{Error, Reason};

/// Maximum number of ordinals that a fault lists.
const MOST_ORDINALS: usize = 8;

/// Verifies the archive at `path`.
pub(super) fn verify(
    path: &Path,
    context: &Context<'_>,
    report: &mut VerifyReport,
) -> Result<(), Error> {
    let faults = report.count(Severity::Fault);
    let archive = report.accepted(path, context.lookup.archives.open(path))?;
    let Some(archive) = archive else {
        return Ok(());
    };
    let mut archive = lock(&archive);
    let toc = archive.toc().clone();
    let group = Group::from(toc.group_name.as_str());
    let expected = group.archive(&toc.gfx_arch_family);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let named = group.target_of(&name).map(|target| target.to_string());
    if name != expected && named.as_ref() != Some(&toc.gfx_arch_family) {
        let text = format!("holds `{expected}` under another name");
        report.note(ids::MISNAMED_ARCHIVE, path, text);
    }
    for text in toc.beyond_other_readers() {
        report.note(ids::BEYOND_OTHER_READERS, path, text);
    }
    let entries: usize = toc.kernels.values().map(Targets::len).sum();
    if entries == 0 {
        report.note(ids::WITHOUT_CODE, path, "is empty");
    }
    without_kernels(path, &toc, archive.count(), report);
    let kernels = code_objects(path, &toc, &mut archive, report)?;
    let stored = kernels.len();
    context.lookup.archives.remember_kernels(path, kernels);
    if report.count(Severity::Fault) == faults {
        let what = match toc.checksums {
            Some(_) => "sizes, checksums",
            None => "sizes",
        };
        let text = format!(
            "{} for {}, {stored} stored: {what} and targets match",
            counted(entries, "kernel"),
            toc.gfx_arch_family,
        );
        report.ok(ids::ARCHIVE_SOUND, path, text);
    }
    Ok(())
}

/// Reports stored code objects that no kernel names; `count` is the number of all.
fn without_kernels(path: &Path, toc: &Toc, count: usize, report: &mut VerifyReport) {
    let entries = toc.kernels.values().flat_map(Targets::values);
    let named: BTreeSet<usize> = entries.map(|entry| entry.ordinal as usize).collect();
    let unnamed: Vec<usize> = (0..count).filter(|ordinal| !named.contains(ordinal)).collect();
    if !unnamed.is_empty() {
        let text = format!(
            "{} of {} belong to no kernel: ordinal {}",
            unnamed.len(),
            counted(count, "stored code object"),
            list_some(unnamed, MOST_ORDINALS),
        );
        report.fault(ids::DAMAGED_ARCHIVE, path, text);
    }
}

/// Reads every stored code object once and returns the kernels of each.
fn code_objects<R: Read + Seek>(
    path: &Path,
    toc: &Toc,
    archive: &mut Archive<R>,
    report: &mut VerifyReport,
) -> Result<Vec<(u32, Option<KernelNames>)>, Error> {
    // The first kernel that shares a code object, for each target that lists it.
    let mut shared: BTreeMap<u32, BTreeMap<&str, &str>> = BTreeMap::new();
    let listed = BTreeSet::from_iter(toc.gfx_arches.iter().map(String::as_str));
    let mut unlisted = Vec::new();
    for (kernel, targets) in &toc.kernels {
        for (target, entry) in targets {
            if !listed.contains(target.as_str()) {
                unlisted.push((kernel, target));
            }
            if let Some(kind) = &entry.kind {
                let (kernel, kind) = (kernel.escape_debug(), kind.escape_debug());
                let text = format!("`{kernel}` for {target} is of type `{kind}`, not `hsaco`");
                report.note(ids::OTHER_TYPE, path, text);
            }
            let kernels = shared.entry(entry.ordinal).or_default();
            kernels.entry(target).or_insert(kernel);
        }
    }
    // One fault, because an archive may have very many of them.
    if let Some((kernel, target)) = unlisted.first() {
        let listed = list_some(&listed, MOST_ORDINALS);
        let others = match unlisted.len() - 1 {
            0 => String::new(),
            others => format!(" (and {others} more like this)"),
        };
        let text = format!(
            "`{kernel}` is for {target}, which `gfx_arches` ({listed}) does not list{others}"
        );
        let reason = Reason::from(text).kernel(kernel).target(target);
        report.fault(ids::DAMAGED_ARCHIVE, path, reason.differs(listed, target));
    }
    let mut found = Vec::new();
    for (ordinal, kernels) in &shared {
        let entries: Vec<_> = kernels.iter().map(|(target, kernel)| (*kernel, *target)).collect();
        let checked = check(path, archive, &entries)?;
        found.push((*ordinal, checked.kernels));
        for (kernel, target, reason) in checked.wrong {
            report.fault(ids::DAMAGED_ARCHIVE, path, of_kernel(reason, kernel, target));
        }
    }
    Ok(found)
}

/// A reason that says which kernel it is about. The errors of `kpack-format` may name it already.
pub(super) fn of_kernel(reason: Reason, kernel: &str, target: &str) -> Reason {
    let names_it = reason.text.contains(&format!("`{kernel}` for {target}"));
    let prefix = if names_it { String::new() } else { format!("`{kernel}` for {target}: ") };
    reason.after(prefix).kernel(kernel).target(target)
}

#[cfg(test)]
mod tests {
    use std::io::{self, Cursor, SeekFrom};

    use super::*;

    /// Counts the bytes read.
    struct Counting(Cursor<Vec<u8>>, u64);

    impl Read for Counting {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let read = self.0.read(buffer)?;
            self.1 += read as u64;
            Ok(read)
        }
    }

    impl Seek for Counting {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.0.seek(to)
        }
    }

    #[test]
    fn a_code_object_for_many_targets_is_read_once() {
        // Given an archive that has one code object of 1000 bytes, for 200 targets.
        let text = |text: &str| [&[0xd9, text.len() as u8], text.as_bytes()].concat();
        let uint = |number: u64| [&[0xcf][..], &number.to_be_bytes()].concat();
        let targets: Vec<_> = (1000..1200).map(|number| format!("gfx{number}")).collect();
        let mut toc = [&[0x83][..], &text("gfx_arches"), &[0xdc, 0, 200]].concat();
        for target in &targets {
            toc.extend(text(target));
        }
        let place = [text("offset"), uint(64), text("size"), uint(1000)].concat();
        toc.extend([text("blobs"), vec![0x91, 0x82], place].concat());
        toc.extend([&text("toc")[..], &[0x81], &text("a#0"), &[0xde, 0, 200]].concat());
        for target in &targets {
            let entry = [text("ordinal"), uint(0), text("original_size"), uint(1000)].concat();
            toc.extend([&text(target)[..], &[0x82], &entry].concat());
        }
        let head = [b"KPAK\x01\0\0\0", &1064u64.to_le_bytes()[..]].concat();
        let bytes = [&head[..], &[0; 48], &[7; 1000], &toc].concat();
        let mut counting = Counting(Cursor::new(bytes), 0);
        let mut archive = Archive::open(&mut counting).unwrap();
        let (toc, mut report) = (archive.toc().clone(), VerifyReport::default());

        // When it is verified.
        let path = Path::new("vec.kpack");
        let opened = archive.count();
        let stored = code_objects(path, &toc, &mut archive, &mut report).unwrap();

        // Then each target is a fault, and the code object was read once.
        assert_eq!((opened, stored.len()), (1, 1));
        assert_eq!(report.count(Severity::Fault), 200);
        drop(archive);
        assert!(counting.1 < 20_000, "{} bytes", counting.1);
    }
}
