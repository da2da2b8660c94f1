//! Splitting drops the bytes between the bundles of a fat section, so they must be padding.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::Error;

/// Bytes read at a time.
const CHUNK: u64 = 64 << 10;

/// Refuses a `section` with non-zero bytes outside of `bundles`. Both are given as file ranges, the
/// bundles in ascending order.
pub fn check(
    path: &Path,
    file: &File,
    section: Range<u64>,
    bundles: impl Iterator<Item = Range<u64>>,
) -> Result<(), Error> {
    let end = section.end;
    let mut at = section.start;
    for bundle in bundles.chain(std::iter::once(end..end)) {
        while at < bundle.start {
            let mut bytes = vec![0; CHUNK.min(bundle.start - at) as usize];
            file.read_exact_at(&mut bytes, at)
                .map_err(|error| Error::io(path, "read", error))?;
            if let Some(position) = bytes.iter().position(|byte| *byte != 0) {
                let offset = at + position as u64;
                return Err(Error::refused(
                    path,
                    format!(
                        "file offset {offset:#x} in `.hip_fatbin` is neither padding nor in the bundle of a wrapper, so splitting would lose it"
                    ),
                ));
            }
            at += bytes.len() as u64;
        }
        at = at.max(bundle.end);
    }
    Ok(())
}
