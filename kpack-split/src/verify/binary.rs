//! A split binary: its sections, wrappers and marker, and whether each of its code objects can be
//! had.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

use kpack_format::marker::{GFXARCH, Marker};

use super::archive::{agrees, counted};
use super::resolver::Resolver;
use super::{Context, Options, Outcome, Report, Subject};
use crate::Error;
use crate::elf::{DeviceCode, FAT_SECTION, FatBinary, Image, SplitBinary};
use crate::inspect::{Marked, elf_error, no_device_code, open, prefix_of, read_markers};
use crate::object_file::is_object;

/// Verifies a binary that the caller named: anything that cannot be read is an error. Archives
/// that are known to be whole were verified already.
pub(super) fn verify(path: &Path, context: &Context<'_>, report: &mut Report) -> Result<(), Error> {
    let image = Image::read(open(path)?).map_err(|e| elf_error(path, e))?;
    match image.device_code().map_err(|e| elf_error(path, e))? {
        DeviceCode::Split(split) => {
            return check(path, &image, &split, context, report);
        }
        DeviceCode::Fat(fat) => not_split(path, &fat, report),
        DeviceCode::None(reason) => {
            report.note(Subject::File, path, no_device_code(reason).explanation);
        }
    }
    Ok(())
}

/// Verifies a binary that was found in a directory: most of these have nothing to do with device
/// code.
pub(super) fn verify_found(
    path: &Path,
    context: &Context<'_>,
    report: &mut Report,
) -> Result<(), Error> {
    // Hosts that this program does not rewrite, and files without section headers.
    let Ok(image) = Image::read(open(path)?) else {
        return Ok(());
    };
    match image.device_code().map_err(|e| elf_error(path, e))? {
        DeviceCode::Split(split) => check(path, &image, &split, context, report)?,
        DeviceCode::Fat(fat) => not_split(path, &fat, report),
        DeviceCode::None(_) => {}
    }
    Ok(())
}

fn not_split(path: &Path, fat: &FatBinary, report: &mut Report) {
    let mut text = format!(
        "not split: a fat binary with {}",
        counted(fat.wrappers.len(), "wrapper")
    );
    if !fat.split_before.is_empty() {
        let more = counted(fat.split_before.len(), "wrapper");
        text.push_str(&format!(
            ", and {more} of objects that were split before the link; `kpack install` splits the rest, and brings all together"
        ));
    }
    report.note(Subject::File, path, text);
}

fn check(
    path: &Path,
    image: &Image<File>,
    split: &SplitBinary,
    context: &Context<'_>,
    report: &mut Report,
) -> Result<(), Error> {
    let faults = report.count(Outcome::Fault);
    converted(path, image, report)?;
    let groups = match read_markers(path, image, split) {
        Ok(groups) => groups,
        Err(Error::Refused { reason, .. }) => {
            report.fault(Subject::Marker, path, reason.to_string());
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    in_order(path, split, &groups, report);
    for group in &groups {
        check_group(path, group, split, faults, context, report)?;
    }
    Ok(())
}

/// Whether two paths are names of one file, whose kernels have one of them.
fn is_one_file(one: &Path, other: &Path) -> bool {
    let inode = |path: &Path| path.metadata().map(|file| (file.dev(), file.ino())).ok();
    inode(one).is_some_and(|own| inode(other) == Some(own))
}

/// Checks the wrappers of one marker; `faults` is how many the binary had before.
fn check_group(
    path: &Path,
    group: &Marked,
    split: &SplitBinary,
    faults: usize,
    context: &Context<'_>,
    report: &mut Report,
) -> Result<(), Error> {
    let marker = &group.marker;
    let indices: BTreeSet<u32> = group.indices(split).collect();
    let Some(kernel_name) = marker.kernel_name.clone() else {
        let text = "its marker is in the early plain-text form, which names directories and no \
                    kernels: what it resolves to cannot be told";
        report.note(Subject::Marker, path, text);
        return Ok(());
    };
    search_paths_hold(path, marker, &kernel_name, report);
    let prefix = prefix_of(path, &kernel_name);
    if is_object(&kernel_name) {
        // Its name says nothing of where the binary is.
    } else if let Some(expected) = context.artifacts.prefix_around(path) {
        let named = expected.join(&kernel_name);
        if prefix.as_ref() != Some(&expected) && !is_one_file(path, &named) {
            let text = format!(
                "its kernels are named `{kernel_name}`, which is not its path in the install prefix \
                 {}",
                expected.display()
            );
            report.fault(Subject::Marker, path, text);
        }
    } else if prefix.is_none() {
        let text = format!(
            "does not stand at `{kernel_name}` of an install prefix; it resolves by its relative \
             search paths alone"
        );
        report.note(Subject::Marker, path, text);
    }
    if report.count(Outcome::Fault) == faults {
        let text = format!("`{kernel_name}`, {}", counted(indices.len(), "wrapper"));
        report.ok(Subject::Marker, path, text);
    }
    resolves(path, marker, &kernel_name, &indices, context, report)
}

/// Whether `.hip_fatbin` holds nothing any more: neither as a section nor in what is loaded.
fn converted(path: &Path, image: &Image<File>, report: &mut Report) -> Result<(), Error> {
    let found = image.section(FAT_SECTION);
    let Some((_, section)) = found.map_err(|e| elf_error(path, e))? else {
        return Ok(());
    };
    if section.has_bytes() {
        let text = format!(
            "`{FAT_SECTION}` still has {} bytes in the file; expected none (NOBITS)",
            section.size
        );
        report.fault(Subject::Marker, path, text);
        return Ok(());
    }
    let (start, end) = (section.addr, section.addr_end());
    let backed = image.segments.iter().find(|segment| {
        segment.is_load() && start < segment.file_backed_end().min(end) && segment.vaddr < end
    });
    if let Some(segment) = backed.filter(|_| section.is_alloc()) {
        let text = format!(
            "`{FAT_SECTION}` ({start:#x}..{end:#x}) is NOBITS, but the file still has bytes for \
             addresses {:#x}..{:#x}",
            segment.vaddr.max(start),
            segment.file_backed_end().min(end)
        );
        report.fault(Subject::Marker, path, text);
    }
    Ok(())
}

/// Whether the code object indices of the wrappers count from 0 in order of address, as kernels are
/// named by position. Objects that were split before the link have a marker, and a count, each.
fn in_order(path: &Path, split: &SplitBinary, groups: &[Marked], report: &mut Report) {
    let mut next_of_name: BTreeMap<&str, u32> = BTreeMap::new();
    let mut next_of_marker: BTreeMap<u64, u32> = BTreeMap::new();
    for (position, wrapper) in split.wrappers.iter().enumerate() {
        let group = groups
            .iter()
            .find(|group| group.wrappers.contains(&position));
        let name = group.and_then(|group| group.marker.kernel_name.as_deref());
        let of_name = next_of_name.entry(name.unwrap_or_default()).or_default();
        let of_marker = next_of_marker.entry(wrapper.marker_offset).or_default();
        let expected = match name.is_some_and(is_object) {
            // The same object may have been linked twice.
            true => *of_marker,
            false => *of_name,
        };
        if wrapper.co_index != expected {
            let text = format!(
                "the wrapper at address {:#x} has code object index {}; by its position it is {expected}",
                wrapper.address, wrapper.co_index
            );
            report.fault(Subject::Marker, path, text);
        }
        *of_name += 1;
        *of_marker += 1;
    }
}

/// Search paths that are relative, stay in the install prefix, and name the target.
fn search_paths_hold(path: &Path, marker: &Marker, kernel_name: &str, report: &mut Report) {
    // Where an object is linked into, its name does not tell.
    if !is_object(kernel_name) && !stays_inside(Path::new(""), Path::new(kernel_name)) {
        let text = format!("the kernel name `{kernel_name}` is no path in an install prefix");
        report.fault(Subject::Marker, path, text);
        return;
    }
    let directory = Path::new(kernel_name).parent().unwrap_or(Path::new(""));
    for search_path in &marker.kpack_search_paths {
        if !search_path.contains(GFXARCH) {
            let text = format!("search path `{search_path}` does not name the target ({GFXARCH})");
            report.fault(Subject::Marker, path, text);
        } else if Path::new(search_path).is_absolute() {
            let text = format!("search path `{search_path}` is absolute: the prefix cannot move");
            report.note(Subject::Marker, path, text);
        } else if !is_object(kernel_name) && !stays_inside(directory, Path::new(search_path)) {
            let text = format!("search path `{search_path}` leaves the install prefix");
            report.fault(Subject::Marker, path, text);
        }
    }
}

/// Whether `path`, followed from `directory` of a prefix, is relative and never leaves the prefix.
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

fn resolves(
    path: &Path,
    marker: &Marker,
    kernel_name: &str,
    indices: &BTreeSet<u32>,
    context: &Context<'_>,
    report: &mut Report,
) -> Result<(), Error> {
    let faults = report.count(Outcome::Fault);
    let options = context.options;
    let mut resolver = Resolver::open(context.artifacts.overlay(), path, marker, kernel_name)?;
    for (archive, reason) in &resolver.damaged {
        let text = format!("`{}` is damaged: {reason}", archive.display());
        report.fault(Subject::Resolution, path, text);
    }
    required_are_there(path, marker, &resolver, options, report);
    let targets: Vec<String> = resolver
        .targets()
        .into_iter()
        .filter(|target| options.wants(target))
        .collect();

    // What each target lacks, and how much there is for each index.
    let mut count_by_index: BTreeMap<u32, usize> = indices.iter().map(|i| (*i, 0)).collect();
    let mut places = BTreeMap::new();
    for target in &targets {
        let mut absent = Vec::new();
        for &index in indices {
            match resolver.find(index, target) {
                Some(place) => {
                    *count_by_index.entry(index).or_default() += 1;
                    places.entry(place).or_insert((index, target));
                }
                None => absent.push(index.to_string()),
            }
        }
        if absent.len() == indices.len() {
            let text = format!("the kpack for {target} has no code object of this binary");
            report.note(Subject::Resolution, path, text);
        } else if !absent.is_empty() {
            let text = format!("no code object for {target} at index {}", absent.join(", "));
            report.note(Subject::Resolution, path, text);
        }
    }
    let nowhere: Vec<String> = count_by_index
        .iter()
        .filter(|(_, n)| **n == 0)
        .map(|(i, _)| i.to_string())
        .collect();
    if !nowhere.is_empty() && !targets.is_empty() {
        let text = format!("no kpack has a code object at index {}", nowhere.join(", "));
        // Asked for some targets only, the code object can be in another's archive.
        let outcome = if options.targets.is_empty() {
            Outcome::Fault
        } else {
            Outcome::Note
        };
        report.add(outcome, Subject::Resolution, path, text);
    }
    let stale: BTreeSet<String> = resolver
        .entries()
        .into_iter()
        .filter(|(index, _)| !indices.contains(index))
        .map(|(index, _)| index.to_string())
        .collect();
    if !stale.is_empty() {
        let text = format!(
            "the kpacks have entries at index {} that no wrapper asks for",
            Vec::from_iter(stale).join(", ")
        );
        report.note(Subject::Resolution, path, text);
    }

    for (&place, &(index, target)) in &places {
        if resolver
            .path(place)
            .canonicalize()
            .is_ok_and(|real| context.whole.contains(&real))
        {
            continue;
        }
        let result = resolver
            .read(place, index, target)
            .map_err(|e| e.to_string())
            .and_then(|bytes| agrees(&bytes, target));
        if let Err(reason) = result {
            let archive = resolver.path(place).display();
            let text = format!("`{kernel_name}#{index}` for {target} in `{archive}`: {reason}");
            report.fault(Subject::Resolution, path, text);
        }
    }
    if report.count(Outcome::Fault) == faults {
        let found: usize = count_by_index.values().sum();
        let text = format!(
            "{} for {}",
            counted(found, "code object"),
            targets.join(", ")
        );
        report.ok(Subject::Resolution, path, text);
    }
    Ok(())
}

/// Whether each target that is promised, or that the caller asks for, has an archive.
fn required_are_there(
    path: &Path,
    marker: &Marker,
    resolver: &Resolver,
    options: &Options,
    report: &mut Report,
) {
    let damaged = |target: &str| {
        let mut files = resolver
            .kpacks
            .files
            .iter()
            .filter(|kpack| kpack.target == target);
        files.any(|kpack| {
            resolver
                .damaged
                .iter()
                .any(|(damaged, _)| *damaged == kpack.path)
        })
    };
    let required: Vec<String> = if options.targets.is_empty() {
        resolver.kpacks.targets().map(str::to_owned).collect()
    } else {
        options.targets.iter().map(ToString::to_string).collect()
    };
    if required.is_empty() {
        let text = format!(
            "no kpack is there; its search path is `{}`",
            marker.kpack_search_paths.join("`, `")
        );
        report.fault(Subject::Resolution, path, text);
    }
    for target in required {
        if resolver.has_archive(&target) || damaged(&target) {
            continue;
        }
        let promised = resolver
            .kpacks
            .files
            .iter()
            .find(|kpack| kpack.target == target);
        let text = match promised {
            Some(kpack) => format!(
                "the manifest promises a kpack for {target}, but `{}` is not there",
                kpack.path.display()
            ),
            None => format!("there is no kpack for {target}"),
        };
        report.fault(Subject::Resolution, path, text);
    }
}
