//! Reading and copying part of a file, such as a static library member.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::elf::{ElfError, ReadAt};

/// Bytes copied at a time.
const CHUNK: u64 = 1 << 20;

/// Part of a file, such as a static library member.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window<'a> {
    file: &'a File,
    start: u64,
    size: u64,
}

impl<'a> Window<'a> {
    pub(super) fn new(file: &'a File, start: u64, size: u64) -> Self {
        Self { file, start, size }
    }

    pub(super) fn start(&self) -> u64 {
        self.start
    }
}

impl ReadAt for Window<'_> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.size)
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64);
        if end.is_none_or(|end| end > self.size) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        ReadAt::read_exact_at(self.file, self.start + offset, buffer)
    }
}

/// Copies a range of `source` to `output`.
pub(super) fn copy<S: ReadAt>(
    source: &S,
    range: &Range<u64>,
    output: &File,
    mut to: u64,
) -> Result<(), ElfError> {
    let mut at = range.start;
    let mut buffer = vec![0; CHUNK.min(range.end - range.start) as usize];
    while at < range.end {
        let some = (range.end - at).min(CHUNK) as usize;
        source.read_exact_at(at, &mut buffer[..some])?;
        output.write_all_at(&buffer[..some], to)?;
        at += some as u64;
        to += some as u64;
    }
    Ok(())
}
