//! Splitting drops the bytes between the bundles of a fat section, so they must be padding.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use crate::elf::find_content;
use crate::{Error, ids};

/// Refuses a `section` of device code with non-zero bytes outside of `bundles`. Both are given as file ranges, the
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
        let content = find_content(file, at..bundle.start);
        if let Some(offset) = content.map_err(|error| Error::io(path, "read", error))? {
            return Err(Error::rejected(
                ids::UNACCOUNTED_CODE,
                path,
                format!(
                    "file offset {offset:#x} of the device code is neither padding nor in the bundle of a wrapper, so splitting would lose it"
                ),
            ));
        }
        at = at.max(bundle.end);
    }
    Ok(())
}
