//! Whether joined binaries have the device code that they should have.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufReader, Seek, SeekFrom};
use std::path::Path;

use kpack_format::TargetId;
use kpack_format::digest::{Hasher, Sha256};

use crate::Error;
use crate::elf::{self, DeviceCode, FatBinary};
use crate::input::{Linked, wrapper_error};

/// The SHA-256 of code objects, by target and code object index.
pub type Checksums = BTreeMap<String, BTreeMap<u32, Sha256>>;

/// The differences between a joined binary and the unsplit original: in host code, and in code objects for
/// the joined targets.
///
/// # Errors
/// [`Error::Refused`] if one of them cannot be read, or the original is no fat binary.
pub fn differences(binary: &Linked, original: &Path) -> Result<Vec<String>, Error> {
    let unsplit = Linked::open(original)?;
    let (DeviceCode::Fat(joined), DeviceCode::Fat(fat)) = (&binary.code, &unsplit.code) else {
        return Err(Error::refused(original, "the original is not a fat binary"));
    };
    let found = digests(binary, joined, &|_| true)?;
    let targets: BTreeSet<&String> = found.keys().collect();
    let expected = digests(&unsplit, fat, &|target| {
        targets.contains(&target.to_string())
    })?;
    let mut differences = Vec::new();
    for target in targets {
        let nothing = BTreeMap::new();
        let (found, expected) = (&found[target], expected.get(target).unwrap_or(&nothing));
        let indices: BTreeSet<&u32> = found.keys().chain(expected.keys()).collect();
        let differ = indices
            .into_iter()
            .filter(|i| found.get(i) != expected.get(i));
        for index in differ {
            differences.push(format!(
                "index {index} for {target}: the code object is not the original's"
            ));
        }
    }
    let host = elf::compare(&unsplit.image, &binary.image).map_err(|e| binary.error(e))?;
    differences.extend(host);
    Ok(differences)
}

/// The digests of a fat binary's code objects for the wanted targets.
///
/// # Errors
/// [`Error::Refused`] for damaged device code; [`Error::Io`].
pub fn digests(
    binary: &Linked,
    fat: &FatBinary,
    wanted: &dyn Fn(&TargetId) -> bool,
) -> Result<Checksums, Error> {
    let mut digests = Checksums::new();
    let mut reader = BufReader::new(binary.image.source());
    let mut buffer = Vec::new();
    for (wrapper, bundle) in fat.wrappers.iter().zip(binary.bundles(&fat.wrappers)) {
        let (index, at) = (wrapper.co_index, wrapper.bundle_offset);
        let failed = |error| wrapper_error(&binary.path, index, at, error);
        let sought = reader.seek(SeekFrom::Start(at));
        sought.map_err(|e| Error::io(&binary.path, "read", e))?;
        let code_objects = bundle?.code_objects(&mut reader, wanted);
        let mut code_objects = code_objects.map_err(failed)?;
        while let Some(mut code_object) = code_objects.next_entry().map_err(failed)? {
            let targets = code_object.targets().to_vec();
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
                digests
                    .entry(target.to_string())
                    .or_default()
                    .insert(index, digest);
            }
        }
    }
    Ok(digests)
}

const PIECE: u64 = 1 << 20;
