//! Reads bytes by position.

use std::fs::File;
use std::io;
use std::ops::Range;

use kpack_format::Reason;

use super::error::{BinaryError, refuse};
use crate::interrupt;
use crate::platform::FileExt;

/// A source of bytes that are read by position: a file or memory.
pub trait ReadAt {
    /// Size in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Fills `buf` from `offset`; fails with `UnexpectedEof` if there are fewer bytes.
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Whether one of `words`, which are not longer than 64 bytes, is in it.
    fn contains(&self, words: &[&[u8]]) -> io::Result<bool> {
        let size = self.size()?;
        let mut buffer = vec![0; CHUNK.min(size) as usize];
        let mut at = 0;
        while at < size {
            interrupt::asked()?;
            let some = &mut buffer[..CHUNK.min(size - at) as usize];
            self.read_exact_at(at, some)?;
            let found = |word: &&[u8]| some.windows(word.len()).any(|window| window == *word);
            if words.iter().any(found) {
                return Ok(true);
            }
            let end = at + some.len() as u64;
            // A word may cross the boundary between two chunks.
            at = if end == size { end } else { end - 64 };
        }
        Ok(false)
    }
}

/// Bytes read at a time.
const CHUNK: u64 = 64 << 10;

/// The offset of the first byte in `range` that is no padding: not zero.
pub fn find_content(source: &impl ReadAt, range: Range<u64>) -> io::Result<Option<u64>> {
    let mut at = range.start;
    while at < range.end {
        interrupt::asked()?;
        let mut bytes = vec![0; CHUNK.min(range.end - at) as usize];
        source.read_exact_at(at, &mut bytes)?;
        if let Some(position) = bytes.iter().position(|byte| *byte != 0) {
            return Ok(Some(at + position as u64));
        }
        at += bytes.len() as u64;
    }
    Ok(None)
}

/// Reads `size` bytes at `offset`, after checking that the file has them. `what` they are is for errors.
///
/// # Errors
/// [`BinaryError::Truncated`] where the file ends before them; [`BinaryError::Io`].
pub fn read_range<S: ReadAt>(
    source: &S,
    file_size: u64,
    offset: u64,
    size: u64,
    what: &str,
) -> Result<Vec<u8>, BinaryError> {
    if offset.checked_add(size).is_none_or(|end| end > file_size) {
        let text = format!(
            "{what} should cover {size:#x} bytes at offset {offset:#x}, but the file has only {file_size:#x}, so it is truncated; build or copy it again"
        );
        return Err(BinaryError::Truncated(Reason::from(text).at(offset)));
    }
    let Ok(length) = usize::try_from(size) else {
        refuse!("{what} is too large: {size:#x} bytes");
    };
    let mut bytes = vec![0; length];
    source.read_exact_at(offset, &mut bytes)?;
    Ok(bytes)
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
        let available = usize::try_from(offset).ok().and_then(|start| self.get(start..));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_also_where_two_chunks_meet() {
        let bytes = vec![b'_'; 3 * CHUNK as usize];
        let words: [&[u8]; 2] = [b"hip_fatbin", b"CCOB"];
        assert!(!ReadAt::contains(&bytes, &words).unwrap());
        for at in [CHUNK as usize - 5, 2 * CHUNK as usize, bytes.len() - 10] {
            let mut marked = bytes.clone();
            marked[at..at + 10].copy_from_slice(b"hip_fatbin");
            assert!(ReadAt::contains(&marked, &words).unwrap(), "{at}");
        }
    }

    #[test]
    fn a_range_is_within_the_file() {
        let (bytes, size) = (Vec::from_iter(0..8_u8), 8);
        for (offset, length, expected) in [
            (0, 0, Some(&[][..])),
            (0, 3, Some(&[0, 1, 2])),
            (6, 2, Some(&[6, 7])),
            (8, 0, Some(&[])),
            (6, 3, None),
            (9, 0, None),
            (u64::MAX, 2, None),
            (0, u64::MAX, None),
        ] {
            let what = format!("{length} at {offset}");
            match (read_range(&bytes, size, offset, length, "the table"), expected) {
                (Ok(read), Some(expected)) => assert_eq!(read, expected, "{what}"),
                (Err(BinaryError::Truncated(reason)), None) => {
                    assert!(reason.text.starts_with("the table should cover"), "{reason:?}");
                }
                (read, _) => panic!("{what}: {read:?}"),
            }
        }
    }
}
