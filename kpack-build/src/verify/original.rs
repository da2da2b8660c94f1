//! A split binary against the unsplit original: every code object byte for byte, and the host code.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufReader, Seek, SeekFrom};
use std::path::Path;

use super::archive::counted;
use super::resolver::Resolver;
use super::{Context, Options, Outcome, Report, Subject};
use crate::Error;
use crate::elf::{self, DeviceCode, FatBinary, Image};
use crate::inspect::{elf_error, open, open_bundle, read_marker};

/// Compares the split binary at `path` with `original`.
pub(super) fn compare(
    path: &Path,
    original: &Path,
    context: &Context<'_>,
    report: &mut Report,
) -> Result<(), Error> {
    let fat_image = Image::read(open(original)?).map_err(|e| elf_error(original, e))?;
    let fat = match fat_image
        .device_code()
        .map_err(|e| elf_error(original, e))?
    {
        DeviceCode::Fat(fat) => fat,
        DeviceCode::Split(_) => {
            return Err(Error::refused(original, "the original is split already"));
        }
        DeviceCode::None(_) => {
            return Err(Error::refused(original, "the original has no device code"));
        }
    };
    let image = Image::read(open(path)?).map_err(|e| elf_error(path, e))?;
    let DeviceCode::Split(split) = image.device_code().map_err(|e| elf_error(path, e))? else {
        let text = "is not split, so there is nothing to compare with the original";
        report.fault(Subject::CodeObjects, path, text);
        return Ok(());
    };

    let indices: BTreeSet<u32> = split
        .wrappers
        .iter()
        .map(|wrapper| wrapper.co_index)
        .collect();
    if !indices.iter().copied().eq((0..).take(fat.wrappers.len())) {
        let text = format!(
            "has {} with index {}; the original has {}",
            counted(split.wrappers.len(), "wrapper"),
            Vec::from_iter(indices.iter().map(u32::to_string)).join(", "),
            counted(fat.wrappers.len(), "wrapper"),
        );
        report.fault(Subject::CodeObjects, path, text);
    }
    // A marker that cannot be read is a fault that was reported already.
    if let Ok(marker) = read_marker(path, &image, &split)
        && let Some(kernel_name) = &marker.kernel_name
    {
        let overlay = context.artifacts.overlay();
        let resolver = Resolver::open(overlay, path, &marker, kernel_name)?;
        let options = context.options;
        compare_code(path, original, &fat_image, &fat, resolver, options, report)?;
    }
    compare_host(path, &fat_image, &image, report)
}

fn compare_code(
    path: &Path,
    original: &Path,
    image: &Image<File>,
    fat: &FatBinary,
    mut resolver: Resolver,
    options: &Options,
    report: &mut Report,
) -> Result<(), Error> {
    let faults = report.count(Outcome::Fault);
    let mut in_original = BTreeSet::new();
    let (mut equal, mut left_out) = (0, 0);
    for (index, wrapper) in (0u32..).zip(&fat.wrappers) {
        let refused = |e: kpack_format::offload_bundle::BundleError| {
            let offset = wrapper.bundle_offset;
            let text = format!("wrapper {index}, bundle at file offset {offset:#x}: {e}");
            Error::refused(original, text)
        };
        let mut reader = BufReader::new(image.source());
        let bundle = open_bundle(&mut reader, wrapper).map_err(refused)?;
        reader
            .seek(SeekFrom::Start(wrapper.bundle_offset))
            .map_err(|e| Error::io(original, "read", e))?;
        for target in bundle.entries.iter().filter_map(|entry| entry.id.target()) {
            in_original.insert((index, target.to_string()));
            left_out += usize::from(!options.wants(&target.to_string()));
        }
        let wanted = |target: &kpack_format::TargetId| options.wants(&target.to_string());
        for code in bundle.code_objects(reader, wanted).map_err(refused)? {
            let code = code.map_err(refused)?;
            let target = code.target.to_string();
            let mut fault = |what: String| {
                let text = format!("index {index} for {target}: {what}");
                report.fault(Subject::CodeObjects, path, text);
            };
            let Some(place) = resolver.find(index, &target) else {
                fault(
                    "the original has a code object, the kpacks have none (to leave targets out, \
                     name those to verify)"
                        .to_owned(),
                );
                continue;
            };
            let holders = resolver.holders(index, &target);
            if holders.len() > 1 {
                let names: Vec<String> = holders
                    .iter()
                    .map(|path| format!("`{}`", path.display()))
                    .collect();
                fault(format!("is in several kpacks: {}", names.join(", ")));
            }
            match resolver.read(place, index, &target) {
                Ok(bytes) if bytes == code.bytes => equal += 1,
                Ok(bytes) => fault(difference(&code.bytes, &bytes)),
                Err(e) => fault(format!("`{}`: {e}", resolver.path(place).display())),
            }
        }
    }
    for (index, target) in resolver.entries().difference(&in_original) {
        if (*index as usize) < fat.wrappers.len() && options.wants(target) {
            let text = format!(
                "index {index} for {target}: the kpacks have a code object, the original has none"
            );
            report.fault(Subject::CodeObjects, path, text);
        }
    }
    if report.count(Outcome::Fault) == faults {
        let limited = match left_out {
            0 => String::new(),
            n => format!(", {n} for targets that were not asked for"),
        };
        let text = format!(
            "{} of {} equal to the original's{limited}",
            counted(equal, "code object"),
            counted(fat.wrappers.len(), "wrapper"),
        );
        report.ok(Subject::CodeObjects, path, text);
    }
    Ok(())
}

/// In what two code objects differ.
fn difference(original: &[u8], stored: &[u8]) -> String {
    let at = original.iter().zip(stored).position(|(a, b)| a != b);
    match at {
        Some(at) => format!("differs from the original's at byte {at:#x}"),
        None => format!(
            "has {} bytes; the original's has {}",
            stored.len(),
            original.len()
        ),
    }
}

fn compare_host(
    path: &Path,
    original: &Image<File>,
    split: &Image<File>,
    report: &mut Report,
) -> Result<(), Error> {
    let differences = elf::compare(original, split).map_err(|e| elf_error(path, e))?;
    if differences.is_empty() {
        report.ok(
            Subject::HostImage,
            path,
            "what is loaded is the original's, device code apart",
        );
    }
    for difference in differences {
        report.fault(Subject::HostImage, path, difference);
    }
    Ok(())
}
