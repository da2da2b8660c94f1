//! A joined binary: whether its device code is that of its build, and that of the unsplit original.

use kpack_format::code_id;
use kpack_format::{Delivery, TargetId};

use super::context::Context;
use super::report::Report;
use kpack_core::words::counted;
use kpack_core::{Error, ids};
use kpack_split::elf::FatBinary;
use kpack_split::input::LinkedBinary;
use kpack_split::join;

/// Verifies the device code in a joined binary against the IDs in its marker.
pub(super) fn verify(
    binary: &LinkedBinary,
    fat: &FatBinary,
    context: &Context<'_>,
    report: &mut Report,
) -> Result<(), Error> {
    let path = &binary.path;
    let read = binary.kept_marker().and_then(|marker| {
        let kept = binary.with_spirv(fat, marker.as_ref())?;
        let digests = join::digests(binary, fat, &|index, _| !kept.contains(&index))?;
        Ok(marker.map(|marker| (marker, digests)))
    });
    let read = report.accepted(path, read)?;
    let Some((marker, digests)) = read.flatten() else {
        return Ok(());
    };
    for (target, checksums) in &digests {
        if marker.accepts(target, code_id(checksums)) {
            let count = counted(checksums.len(), "code object");
            let text = format!("joined: {count} for {target}");
            report.ok(ids::CODE_MATCHES, path, text);
        } else {
            let text = format!(
                "the code for {target} is not what it was built with; join it again, or install the unsplit binary"
            );
            report.fault(ids::CODE_DIFFERS, path, text);
        }
    }
    for target in &context.options.targets {
        let is_for = |found: &String| {
            let found: Result<TargetId, _> = found.parse();
            found.is_ok_and(|found| target.needs(&found, Delivery::Bundle))
        };
        if !digests.keys().any(is_for) {
            let text = format!("joined, but not for {target}");
            report.fault(ids::MISSING_TARGET, path, text);
        }
    }
    // Its archives may be gone: it does without them.
    if let Some(kernel_name) = &marker.kernel_name {
        let resolver = context.resolver(binary, &marker, kernel_name)?;
        context.reached(kernel_name, &resolver);
    }
    Ok(())
}
