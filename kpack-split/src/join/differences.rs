//! Whether joined binaries have the device code that they should have.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufReader, Seek, SeekFrom};

use kpack_format::TargetId;
use kpack_format::digest::{Blake3, Hasher};
use kpack_format::offload_bundle::Entry;

use crate::elf::{DeviceCode, FatBinary};
use crate::host;
use crate::input::{LinkedBinary, SharedFile, by_bundle, open_bundle, wrapper_error};
use crate::split::{Budget, PackedCode, Spirv, variants};
use crate::{Error, ids};

/// The BLAKE3 digests of code objects, by target and code object index.
pub type Checksums = BTreeMap<String, BTreeMap<u32, Blake3>>;

/// The differences between a joined binary and the unsplit original: in host code, and in code objects for
/// the joined targets.
///
/// # Errors
/// [`Error::Refused`] if one of them cannot be read, or the original is no fat binary.
pub fn differences(binary: &LinkedBinary, unsplit: &LinkedBinary) -> Result<Vec<String>, Error> {
    let (DeviceCode::Fat(joined), DeviceCode::Fat(fat)) = (&binary.code, &unsplit.code) else {
        let reason = "the original is not a fat binary";
        return Err(Error::rejected(ids::NO_DEVICE_CODE, &unsplit.path, reason));
    };
    let kept = binary.with_spirv(joined, binary.kept_marker()?.as_ref())?;
    let mut differences = kept_differences((binary, joined), (unsplit, fat), &kept)?;
    let found = digests(binary, joined, &|index, _| !kept.contains(&index))?;
    let targets: BTreeSet<&String> = found.keys().collect();
    let expected = digests(unsplit, fat, &|index, target| {
        !kept.contains(&index) && targets.contains(&target.to_string())
    })?;
    let mut of_code = compare(&found, &expected);
    if !of_code.is_empty() {
        let stripped = stripped_digests(unsplit, fat, &|index, target| {
            !kept.contains(&index) && targets.contains(&target.to_string())
        })?;
        let equal = without_debug(&found, expected, &stripped);
        of_code = compare(&found, &equal);
    }
    differences.extend(of_code);
    let expected = entry_ids(unsplit, fat)?;
    for (entry, found) in entry_ids(binary, joined)? {
        let (index, target) = &entry;
        if let Some(expected) = expected.get(&entry).filter(|id| **id != found) {
            differences.push(format!(
                "index {index} for {target}: the entry's ID is `{found}`, the original's is `{expected}`"
            ));
        }
    }
    let host = host::compare(&unsplit.image, &binary.image).map_err(|e| binary.error(e))?;
    differences.extend(host);
    Ok(differences)
}

/// The differences between bundles with SPIR-V, which a split keeps, and those of the original.
pub fn kept_differences(
    (binary, fat): (&LinkedBinary, &FatBinary),
    (unsplit, original): (&LinkedBinary, &FatBinary),
    kept: &BTreeSet<u32>,
) -> Result<Vec<String>, Error> {
    let found = digests(binary, fat, &|index, _| kept.contains(&index))?;
    let expected = digests(unsplit, original, &|index, _| kept.contains(&index))?;
    Ok(compare(&found, &expected))
}

fn compare(found: &Checksums, expected: &Checksums) -> Vec<String> {
    let mut differences = Vec::new();
    let targets: BTreeSet<&String> = found.keys().chain(expected.keys()).collect();
    for target in targets {
        let nothing = BTreeMap::new();
        let [found, expected] = [found, expected].map(|all| all.get(target).unwrap_or(&nothing));
        let indices: BTreeSet<&u32> = found.keys().chain(expected.keys()).collect();
        let differ = indices.into_iter().filter(|i| found.get(i) != expected.get(i));
        for index in differ {
            differences
                .push(format!("index {index} for {target}: the code object is not the original's"));
        }
    }
    differences
}

/// The digests of the code objects for `target`, and of those for less specific targets where it has none: an archive
/// for a variant may have been completed with these, which a join puts back once.
pub fn completed(digests: &Checksums, target: &str) -> BTreeMap<u32, Blake3> {
    let mut completed = digests.get(target).cloned().unwrap_or_default();
    let target: Option<TargetId> = target.parse().ok();
    for plain in target.iter().flat_map(variants::less_specific) {
        for (index, digest) in digests.get(&plain.to_string()).into_iter().flatten() {
            completed.entry(*index).or_insert(*digest);
        }
    }
    completed
}

/// What to expect of binaries whose debug information may be removed: the original's `stripped` code objects
/// where those were `found`.
fn without_debug(found: &Checksums, mut expected: Checksums, stripped: &Checksums) -> Checksums {
    for (target, stripped) in stripped {
        let (Some(found), Some(expected)) = (found.get(target), expected.get_mut(target)) else {
            continue;
        };
        for (index, stripped) in stripped {
            if found.get(index) == Some(stripped) {
                expected.insert(*index, *stripped);
            }
        }
    }
    expected
}

/// The digests of a fat binary's code objects with wanted indices and targets without their debug sections;
/// of those that have some. Large ones of compressed bundles are in temporary files meanwhile.
///
/// # Errors
/// As [`digests`].
pub fn stripped_digests(
    binary: &LinkedBinary,
    fat: &FatBinary,
    wanted: &(dyn Fn(u32, &TargetId) -> bool + Sync),
) -> Result<Checksums, Error> {
    let (path, source) = (&binary.path, binary.image.source());
    let code = PackedCode::read(path, source, &fat.wrappers, Spirv::Archive)?;
    let (scratch, budget) = (std::env::temp_dir(), Budget::default());
    let indices = Vec::from_iter(fat.wrappers.iter().map(|wrapper| wrapper.co_index));
    let is_wanted = |target: &TargetId| indices.iter().any(|index| wanted(*index, target));
    let mut digests = Checksums::new();
    for code_object in code.code_objects(&is_wanted, &scratch, &budget) {
        let (wrappers, id, content) = code_object?;
        let Some(target) = id.target().filter(|target| !target.is_spirv()) else {
            continue;
        };
        // What cannot be stripped was not.
        let Ok(Some(stripped)) = content.without_debug(path, &scratch) else {
            continue;
        };
        let digest = stripped.checksum().map_err(|e| Error::io(path, "read", e))?;
        let own = wrappers.iter().filter(|index| wanted(**index, target));
        let of_target = digests.entry(target.to_string()).or_default();
        of_target.extend(own.map(|index| (*index, digest)));
    }
    Ok(digests)
}

/// The entry IDs in the bundles of a fat binary, by code object index and target.
fn entry_ids(
    binary: &LinkedBinary,
    fat: &FatBinary,
) -> Result<BTreeMap<(u32, TargetId), String>, Error> {
    let mut ids = BTreeMap::new();
    for (wrapper, bundle) in fat.wrappers.iter().zip(binary.bundles(&fat.wrappers)) {
        for Entry { id, .. } in bundle?.entries {
            if let Some(target) = id.target() {
                ids.insert((wrapper.co_index, target.clone()), id.to_string());
            }
        }
    }
    Ok(ids)
}

/// The digests of a fat binary's code objects with wanted indices and targets.
///
/// # Errors
/// [`Error::Refused`] for damaged device code; [`Error::Io`].
pub fn digests(
    binary: &LinkedBinary,
    fat: &FatBinary,
    wanted: &dyn Fn(u32, &TargetId) -> bool,
) -> Result<Checksums, Error> {
    let mut digests = Checksums::new();
    let mut reader = BufReader::new(SharedFile::of(binary.image.source()));
    let mut buffer = Vec::new();
    for wrappers in by_bundle(fat.wrappers.iter()) {
        let (first, at) = (wrappers[0], wrappers[0].bundle_offset);
        let indices = Vec::from_iter(wrappers.iter().map(|wrapper| wrapper.co_index));
        let failed = |error| wrapper_error(&binary.path, first.co_index, at, error);
        let bundle = open_bundle(&mut reader, first).map_err(failed)?;
        let sought = reader.seek(SeekFrom::Start(at));
        sought.map_err(|e| Error::io(&binary.path, "read", e))?;
        let is_wanted = |target: &TargetId| indices.iter().any(|index| wanted(*index, target));
        let mut code_objects = bundle.code_objects(&mut reader, is_wanted).map_err(failed)?;
        while let Some(mut code_object) = code_objects.next_entry().map_err(failed)? {
            let targets = Vec::from_iter(code_object.targets().cloned());
            let mut hasher = Hasher::default();
            loop {
                buffer.clear();
                if code_object.append(&mut buffer, PIECE).map_err(failed)? == 0 {
                    break;
                }
                hasher.update(&buffer);
            }
            let digest = hasher.finish();
            for target in targets {
                let own = indices.iter().filter(|index| wanted(**index, &target));
                let of_target = digests.entry(target.to_string()).or_default();
                of_target.extend(own.map(|index| (*index, digest)));
            }
        }
    }
    Ok(digests)
}

const PIECE: u64 = 1 << 20;
