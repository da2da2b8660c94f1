//! Verifies a split binary: its sections, wrappers and markers, and whether it finds its code
//! objects.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use kpack_core::platform::id_of;
use kpack_core::{Severity, ids};
use kpack_format::marker::Marker;
use kpack_format::names::{GFXARCH, SearchPath};
use kpack_format::{Delivery, TargetId, code_id};

use super::context::Context;
use super::device_code;
use super::report::VerifyReport;
use super::resolution;
use crate::elf::{DeviceCode, FatBinary, NoDeviceCode, SplitWrapper};
use crate::input::{LinkedBinary, MarkerGroup, prefix_of};
use crate::join;
use kpack_core::words::{counted, list};
use kpack_core::{Error, Reason};
use kpack_format::names::is_object;

/// Verifies a binary. Reports one without device code only if `asked_for`.
pub(super) fn verify(
    binary: &LinkedBinary,
    asked_for: bool,
    context: &Context<'_>,
    report: &mut VerifyReport,
) -> Result<(), Error> {
    let in_data = report.accepted(&binary.path, binary.bundles_in_data())?;
    if let Some(text) = in_data.flatten() {
        report.note(ids::BUNDLES_IN_DATA, &binary.path, text);
        device_code::in_data(binary, report)?;
    }
    match &binary.code {
        DeviceCode::Split(wrappers) => check(binary, wrappers, context, report)?,
        DeviceCode::Fat(fat) if fat.joined.is_some() => {
            loads(binary, report)?;
            joined(binary, fat, context, report)?;
        }
        DeviceCode::Fat(fat) => {
            let faults = report.count(Severity::Fault);
            not_split(&binary.path, fat, report);
            device_code::bundles(binary, &fat.wrappers, report)?;
            if report.count(Severity::Fault) == faults {
                wanted_are_there(binary, fat, context, report)?;
            }
        }
        DeviceCode::None(reason) if asked_for => {
            let id = match reason {
                NoDeviceCode::NoWrappers => ids::WITHOUT_WRAPPERS,
                _ => ids::NO_DEVICE_CODE,
            };
            report.note(id, &binary.path, reason.to_string());
        }
        DeviceCode::None(_) => {}
    }
    Ok(())
}

fn not_split(path: &Path, fat: &FatBinary, report: &mut VerifyReport) {
    let mut text =
        format!("not split: a fat binary with {}", counted(fat.wrappers.len(), "wrapper"));
    if !fat.split_before.is_empty() {
        let more = counted(fat.split_before.len(), "wrapper");
        text.push_str(&format!(
            ", and {more} of objects that were split before the link; `kpack split` splits the rest, and merges all device code"
        ));
    }
    report.note(ids::FAT_BINARY, path, text);
}

/// Reports targets that the caller names and an unsplit binary has no code for.
fn wanted_are_there(
    binary: &LinkedBinary,
    fat: &FatBinary,
    context: &Context<'_>,
    report: &mut VerifyReport,
) -> Result<(), Error> {
    let path = &binary.path;
    let Some(targets) = report.accepted(path, binary.targets(fat, &|_| true))? else {
        return Ok(());
    };
    let found: Vec<TargetId> = targets.iter().filter_map(|target| target.parse().ok()).collect();
    for wanted in &context.options.targets {
        // HIP runtimes compile SPIR-V for any GPU.
        let has = |found: &TargetId| found.is_spirv() || wanted.needs(found, Delivery::Bundle);
        if !found.iter().any(has) {
            let text =
                format!("not split, without code for {wanted}; it has code for {}", list(&targets));
            let reason = Reason::from(text).target(wanted);
            report.fault(ids::MISSING_TARGET, path, reason.differs(wanted, list(&targets)));
        }
    }
    Ok(())
}

fn check(
    binary: &LinkedBinary,
    wrappers: &[SplitWrapper],
    context: &Context<'_>,
    report: &mut VerifyReport,
) -> Result<(), Error> {
    let faults = report.count(Severity::Fault);
    let path = &binary.path;
    match &binary.kept {
        None => converted(binary, report)?,
        Some(fat) => {
            device_code::bundles(binary, &fat.wrappers, report)?;
            let count = counted(fat.wrappers.len(), "wrapper");
            let text = format!("the bundles of {count} stay in it, with SPIR-V");
            report.ok(ids::SPIRV_KEPT, path, text);
        }
    }
    loads(binary, report)?;
    let groups = report.accepted(path, binary.markers())?;
    let Some(groups) = groups else {
        return Ok(());
    };
    in_order(path, wrappers, &groups, binary.kept.is_some(), report);
    groups.iter().try_for_each(|group| check_group(binary, group, faults, context, report))
}

/// Checks that the system would load it.
fn loads(binary: &LinkedBinary, report: &mut VerifyReport) -> Result<(), Error> {
    let path = &binary.path;
    if let Err(error) = binary.image.check_loaded() {
        report.fault(ids::DAMAGED_BINARY, path, error);
    }
    let sums = binary.image.stale_checksum();
    if let Some((stored, sum)) = sums.map_err(|e| Error::io(path, "read", e))? {
        let text = format!(
            "its checksum is {sum:#x}, the header has {stored:#x}: a tool changed the file, or it is damaged"
        );
        report.note(ids::STALE_CHECKSUM, path, text);
    }
    Ok(())
}

/// Verifies the device code in a joined binary against the IDs in its marker.
fn joined(
    binary: &LinkedBinary,
    fat: &FatBinary,
    context: &Context<'_>,
    report: &mut VerifyReport,
) -> Result<(), Error> {
    let path = &binary.path;
    let read = binary.kept_marker().and_then(|marker| {
        let kept = binary.with_spirv(fat, marker.as_ref())?;
        let digests = join::digests(binary, fat, &|index, _| !kept.contains(&index))?;
        Ok(marker.map(|marker| (marker, digests)))
    });
    let Some((marker, digests)) = report.accepted(path, read)?.flatten() else {
        return Ok(());
    };
    for (target, checksums) in &digests {
        let is_expected = |checksums| marker.accepts(target, code_id(checksums));
        if is_expected(checksums) || is_expected(&join::completed(&digests, target)) {
            let count = counted(checksums.len(), "code object");
            let text = format!("joined: {count} for {target}");
            report.ok(ids::CODE_MATCHES, path, text);
        } else {
            let text = format!(
                "the code for {target} is not what it was built with: damaged, or from another build; join it again, or install \
                 the unsplit binary"
            );
            report.fault(ids::CODE_DIFFERS, path, Reason::from(text).target(target));
        }
    }
    for target in &context.options.targets {
        let is_for = |found: &String| {
            let found: Result<TargetId, _> = found.parse();
            found.is_ok_and(|found| target.needs(&found, Delivery::Bundle))
        };
        if !digests.keys().any(is_for) {
            let text = format!("joined, but not for {target}");
            report.fault(ids::MISSING_TARGET, path, Reason::from(text).target(target));
        }
    }
    // Its archives may be gone: it does without them.
    if let Some(kernel_name) = &marker.kernel_name {
        let resolver = context.resolver(binary, &marker, kernel_name)?;
        context.reached(kernel_name, &resolver);
    }
    Ok(())
}

/// Whether both paths are names of one file: its kernels are named after one of them.
fn is_one_file(one: &Path, other: &Path) -> bool {
    let inode = |path: &Path| id_of(path, &path.metadata().ok()?).ok();
    inode(one).is_some_and(|own| inode(other) == Some(own))
}

/// Checks the wrappers of one marker; `faults` is the number of faults before.
fn check_group(
    binary: &LinkedBinary,
    group: &MarkerGroup,
    faults: usize,
    context: &Context<'_>,
    report: &mut VerifyReport,
) -> Result<(), Error> {
    let path = &binary.path;
    let marker = &group.marker;
    let indices: BTreeSet<u32> = group.wrappers.iter().map(|w| w.co_index).collect();
    let Some(kernel_name) = marker.kernel_name.clone() else {
        let text = "the marker is in the early plain-text form, which names directories but no \
                    kernels, so its code objects cannot be found";
        report.note(ids::EARLY_MARKER, path, text);
        return Ok(());
    };
    search_paths_hold(path, marker, &kernel_name, report);
    let prefix = prefix_of(&binary.loaded_as(), &kernel_name);
    if is_object(&kernel_name) {
        // An object's name does not tell where the binary is.
    } else if let Some((artifact, expected)) = context.surroundings.around_file(path) {
        let named = expected.join(&kernel_name);
        // Other splitters use the path in the artifact as the kernel name.
        let fits = prefix.is_some_and(|prefix| prefix == expected || prefix == artifact);
        if !fits && !is_one_file(path, &named) {
            let text = format!(
                "the kernels are named `{kernel_name}`, which is not its path in the install prefix \
                 {}",
                expected.display()
            );
            report.fault(ids::MOVED_BINARY, path, text);
        }
    } else if prefix.is_none() {
        let text = format!(
            "is not at `{kernel_name}` in an install prefix; only its relative search paths are \
             used"
        );
        report.note(ids::MOVED_BINARY, path, text);
    }
    if report.count(Severity::Fault) == faults {
        let text = format!("`{kernel_name}`, {}", counted(indices.len(), "wrapper"));
        report.ok(ids::MARKER_SOUND, path, text);
    }
    resolution::verify(binary, marker, &kernel_name, &indices, context, report)
}

/// Checks that the section of its device code is empty.
fn converted(binary: &LinkedBinary, report: &mut VerifyReport) -> Result<(), Error> {
    let left = binary.image.code_left().map_err(|e| binary.error(e))?;
    if let Some(text) = left {
        report.fault(ids::DEVICE_CODE_LEFT, &binary.path, text);
    }
    Ok(())
}

/// Checks that code object indices count up from 0 in order of address, since kernels are named by
/// position. Each marker of an object that was split before the link has its own count.
fn in_order(
    path: &Path,
    wrappers: &[SplitWrapper],
    groups: &[MarkerGroup],
    others_are_kept: bool,
    report: &mut VerifyReport,
) {
    let mut next_of_name: BTreeMap<&str, u32> = BTreeMap::new();
    let mut next_of_marker: BTreeMap<u64, u32> = BTreeMap::new();
    for wrapper in wrappers {
        let mut groups = groups.iter();
        let group = groups.find(|group| group.wrappers.contains(wrapper));
        let name = group.and_then(|group| group.marker.kernel_name.as_deref());
        let of_name = next_of_name.entry(name.unwrap_or_default()).or_default();
        let of_marker = next_of_marker.entry(wrapper.marker_offset).or_default();
        let expected = if name.is_some_and(is_object) {
            // The same object may be linked twice.
            *of_marker
        } else if others_are_kept {
            wrapper.position
        } else {
            *of_name
        };
        if wrapper.co_index != expected {
            let text = format!(
                "the wrapper at address {:#x} has code object index {}; by its position it is {expected}",
                wrapper.address, wrapper.co_index
            );
            let reason = Reason::from(text).differs(expected, wrapper.co_index);
            report.fault(ids::INCONSISTENT_MARKER, path, reason);
        }
        *of_name += 1;
        *of_marker += 1;
    }
}

/// Checks that search paths are relative, stay in the install prefix, and contain the target.
fn search_paths_hold(path: &Path, marker: &Marker, kernel_name: &str, report: &mut VerifyReport) {
    // An object's name is not a path.
    if !is_object(kernel_name) && !stays_inside(Path::new(""), Path::new(kernel_name)) {
        let text = format!("the kernel name `{kernel_name}` is not a path in an install prefix");
        report.fault(ids::INCONSISTENT_MARKER, path, text);
        return;
    }
    let directory = Path::new(kernel_name).parent().unwrap_or(Path::new(""));
    for search_path in &marker.kpack_search_paths {
        if !SearchPath::new(search_path).names_target() {
            let text = format!("search path `{search_path}` does not name the target ({GFXARCH})");
            report.fault(ids::INCONSISTENT_MARKER, path, text);
        } else if Path::new(search_path).is_absolute() {
            let text = format!("search path `{search_path}` is absolute: the prefix cannot move");
            report.note(ids::OUTSIDE_PREFIX, path, text);
        } else if !is_object(kernel_name) && !stays_inside(directory, Path::new(search_path)) {
            let text = format!("search path `{search_path}` leaves the install prefix");
            report.fault(ids::OUTSIDE_PREFIX, path, text);
        }
    }
}

/// Whether `path`, relative to `directory` in a prefix, never leaves the prefix.
fn stays_inside(directory: &Path, path: &Path) -> bool {
    let mut depth = directory.components().count();
    for component in path.components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir => match depth.checked_sub(1) {
                Some(up) => depth = up,
                None => return false,
            },
            Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    true
}
