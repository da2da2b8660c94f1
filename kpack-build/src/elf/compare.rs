//! Comparing the host code of a fat binary with that of the binary split from it.

use super::{ElfError, Image, ReadAt};

/// What differs between the host code of a fat binary and the binary split from it, beyond what
/// splitting changes. Empty where they agree. Only what is loaded is compared, so both may have
/// been stripped.
pub fn compare<A: ReadAt, B: ReadAt>(
    original: &Image<A>,
    split: &Image<B>,
) -> Result<Vec<String>, ElfError> {
    let _ = (original, split);
    todo!()
}
