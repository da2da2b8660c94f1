//! Reads bytes by position.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// A source of bytes that are read by position: a file or memory.
pub trait ReadAt {
    /// Size in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Fills `buf` from `offset`; fails with `UnexpectedEof` if there are fewer bytes.
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
}

/// Bytes read at a time.
const CHUNK: u64 = 64 << 10;

/// The offset of the first byte in `range` that is no padding: not zero.
pub(crate) fn find_content(source: &impl ReadAt, range: Range<u64>) -> io::Result<Option<u64>> {
    let mut at = range.start;
    while at < range.end {
        let mut bytes = vec![0; CHUNK.min(range.end - at) as usize];
        source.read_exact_at(at, &mut bytes)?;
        if let Some(position) = bytes.iter().position(|byte| *byte != 0) {
            return Ok(Some(at + position as u64));
        }
        at += bytes.len() as u64;
    }
    Ok(None)
}

impl ReadAt for File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        FileExt::read_exact_at(self, buf, offset)
    }
}

impl ReadAt for [u8] {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let available = usize::try_from(offset)
            .ok()
            .and_then(|start| self.get(start..));
        match available.and_then(|bytes| bytes.get(..buf.len())) {
            Some(bytes) => {
                buf.copy_from_slice(bytes);
                Ok(())
            }
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl ReadAt for Vec<u8> {
    fn size(&self) -> io::Result<u64> {
        self.as_slice().size()
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.as_slice().read_exact_at(offset, buf)
    }
}

impl<T: ReadAt + ?Sized> ReadAt for &T {
    fn size(&self) -> io::Result<u64> {
        (**self).size()
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        (**self).read_exact_at(offset, buf)
    }
}
