//! Decompresses frames into memory that is not written yet, whoever allocated it.

use kpack_format::archive::DecodeError;
use zstd::zstd_safe::{DCtx, WriteBuf, get_error_name};

/// Returned by zstd if memory cannot be allocated (`ZSTD_error_memory_allocation`).
const NO_MEMORY: usize = 64usize.wrapping_neg();

/// Decompresses frames, one after another. Its memory is allocated for the first one.
// The decoder of kpack-format fills a `Vec`. The C interface gives away malloc's memory, and setting that to
// zero first would take up to 7% longer.
#[derive(Default)]
pub(crate) struct Decoder(Option<DCtx<'static>>);

impl Decoder {
    /// Decompresses `frame`, which was checked, into `out`, which has room for `original_size` bytes.
    pub(crate) fn decode(
        &mut self,
        frame: &[u8],
        original_size: u64,
        out: &mut impl WriteBuf,
    ) -> Result<(), DecodeError> {
        let context = match &mut self.0 {
            Some(context) => context,
            empty => empty.insert(DCtx::try_create().ok_or(DecodeError::OutOfMemory)?),
        };
        match context.decompress(out, frame) {
            Ok(size) if size as u64 == original_size => Ok(()),
            Ok(size) => Err(DecodeError::Damaged(format!(
                "the frame holds {size} bytes; the TOC says {original_size}"
            ))),
            Err(NO_MEMORY) => Err(DecodeError::OutOfMemory),
            Err(code) => Err(DecodeError::Damaged(format!(
                "the frame cannot be decompressed: {}",
                get_error_name(code)
            ))),
        }
    }
}
