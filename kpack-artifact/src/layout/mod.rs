//! Compares host binaries that were built for different targets. These may differ in their build IDs,
//! in addresses, since their device code had different sizes, and in IDs of compilation units.

pub(super) mod elf;
mod outcome;
pub(super) mod pe;
mod text;
mod unit_ids;

use std::collections::BTreeMap;
use std::ops::Range;

use kpack_core::Error;
use kpack_core::files::first_difference;
use kpack_core::platform::FileExt;
use kpack_format::marker::Marker;
use kpack_split::elf::DeviceCode;
use kpack_split::host::Image;
use kpack_split::input::LinkedBinary;

pub(super) use outcome::Same;
pub(super) use text::LEAST_TEXT;
pub(super) use unit_ids::UNIT_IDS;

/// Compares two host binaries.
///
/// They must have the same sections, symbols, relocations, dynamic entries and markers, and the same
/// bytes in all other sections. If sections have moved, addresses into them are compared by what they
/// refer to, in code, data and debug information.
pub(super) fn compare(one: &LinkedBinary, other: &LinkedBinary) -> Result<Same, Error> {
    let (Some(ours), Some(theirs)) = (markers(one)?, markers(other)?) else {
        return Ok(Same::No);
    };
    if ours != theirs || !has_same_spirv(one, other)? {
        return Ok(Same::No);
    }
    Ok(match (&one.image, &other.image) {
        (Image::Elf(one), Image::Elf(other)) => elf::compare(one, other),
        (Image::Pe(one), Image::Pe(other)) => pe::compare(one, other).unwrap_or(Same::No),
        _ => Same::No,
    })
}

/// Whether both have the same bundles with SPIR-V, which a split keeps.
pub(super) fn has_same_spirv(one: &LinkedBinary, other: &LinkedBinary) -> Result<bool, Error> {
    let bundles = |linked: &LinkedBinary| -> Result<Vec<(u32, Range<u64>)>, Error> {
        let Some(fat) = &linked.kept else {
            return Ok(Vec::new());
        };
        let wrappers = fat.wrappers.iter().zip(linked.bundles(&fat.wrappers));
        let ranges = wrappers.map(|(wrapper, bundle)| {
            let start = wrapper.bundle_offset;
            Ok((wrapper.co_index, start..start.saturating_add(bundle?.size)))
        });
        ranges.collect()
    };
    let (ours, theirs) = (bundles(one)?, bundles(other)?);
    if ours.len() != theirs.len() {
        return Ok(false);
    }
    // Wrappers that share a bundle usually follow each other.
    let mut last = None;
    for pair in ours.into_iter().zip(theirs) {
        let ((index, ours), (other_index, theirs)) = pair;
        if index != other_index || ours.end - ours.start != theirs.end - theirs.start {
            return Ok(false);
        }
        let ranges = Some((ours.clone(), theirs.clone()));
        if last != ranges && !has_same_bytes((one, ours), (other, theirs))? {
            return Ok(false);
        }
        last = ranges;
    }
    Ok(true)
}

/// Compares ranges of the same size.
fn has_same_bytes(
    (one, ours): (&LinkedBinary, Range<u64>),
    (other, theirs): (&LinkedBinary, Range<u64>),
) -> Result<bool, Error> {
    let read = |linked: &LinkedBinary, offset, out: &mut [u8]| {
        let read = linked.image.source().read_exact_at(out, offset);
        read.map_err(|e| Error::io(&linked.path, "read", e))
    };
    let found = first_difference(
        ours.end - ours.start,
        |at, out| read(one, ours.start + at, out),
        |at, out| read(other, theirs.start + at, out),
    );
    Ok(found?.is_none())
}

/// The markers of a binary, without IDs of device code, by the positions of their wrappers; `None`
/// for a fat binary.
fn markers(linked: &LinkedBinary) -> Result<Option<BTreeMap<Vec<u32>, Marker>>, Error> {
    if matches!(linked.code, DeviceCode::Fat(_)) {
        return Ok(None);
    }
    let groups = linked.markers()?.into_iter().map(|group| {
        let positions = group.wrappers.iter().map(|wrapper| wrapper.position);
        (positions.collect(), group.marker.without_additions())
    });
    Ok(Some(groups.collect()))
}
