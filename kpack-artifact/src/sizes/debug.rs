//! How much of an archive is debug information.

use std::collections::BTreeMap;
use std::path::Path;

use kpack_core::archives::{UncompressedCode, debug_advice};
use kpack_core::{Error, Finding};
use kpack_format::archive::Encoder;
use kpack_split::input::{ArchiveFile, open_archive};

/// zstd's default level.
const LEVEL: i32 = 3;
/// The largest code object that is read, in bytes: each is held in memory.
const LARGEST: u64 = 8 << 20;
/// Bytes of code objects that are read. How much of one is debug information differs from kernel to kernel.
const SAMPLE: u64 = 32 << 20;
/// The number of these code objects.
const SAMPLES: usize = 32;

/// A note on the archive at `path` if much of it is debug information, estimated from a sample.
///
/// # Errors
/// [`Error::Refused`] for damage; [`Error::Io`].
pub fn debug_note(path: &Path) -> Result<Option<Finding>, Error> {
    note(path, &mut open_archive(path)?)
}

pub(super) fn note(path: &Path, archive: &mut ArchiveFile) -> Result<Option<Finding>, Error> {
    let failed = |error| Error::archive(path, "read", error);
    let toc = archive.toc().clone();
    let mut entries = BTreeMap::new();
    for (kernel, targets) in &toc.kernels {
        for (target, entry) in targets {
            if entry.original_size <= LARGEST {
                let known = entries.entry(entry.ordinal);
                known.or_insert((kernel, target, entry));
            }
        }
    }
    let step = entries.len().div_ceil(SAMPLES).max(1);
    let mut encoder = Encoder::new(toc.scheme, LEVEL).map_err(failed)?;
    let (mut left, mut stored, mut debug) = (SAMPLE, 0, 0);
    for (kernel, target, entry) in entries.into_values().step_by(step) {
        let Some(rest) = left.checked_sub(entry.original_size) else {
            continue;
        };
        left = rest;
        let size = archive.stored(entry.ordinal).map_err(failed)?.1;
        let code = UncompressedCode::Held(archive.read(kernel, target).map_err(failed)?);
        // What is no code object has no debug sections.
        let of_debug = code.stored_debug(&mut encoder).unwrap_or(0);
        stored += size;
        debug += of_debug.min(size);
    }
    Ok(debug_advice(path, debug, stored))
}
