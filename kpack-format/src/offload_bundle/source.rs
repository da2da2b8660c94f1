//! Reads from a source that may have less than it says.

use std::io::Read;

/// Maximum number of bytes allocated before any of them were read.
const TRUSTED_SIZE: u64 = 16 << 20;

/// Reads up to `size` bytes; fewer if the source ends.
pub(super) fn read_up_to<R: Read>(source: &mut R, size: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    append_up_to(source, size, &mut bytes)?;
    Ok(bytes)
}

/// Appends up to `size` bytes and returns their number; fewer if the source ends.
pub(super) fn append_up_to<R: Read>(
    source: &mut R,
    size: u64,
    out: &mut Vec<u8>,
) -> std::io::Result<u64> {
    let mut read = 0;
    while read < size {
        let step = TRUSTED_SIZE.min(size - read);
        // Without memory for them, `read_to_end` could end the process.
        out.try_reserve(step as usize)?;
        match source.take(step).read_to_end(out)? {
            0 => break,
            more => read += more as u64,
        }
    }
    Ok(read)
}
