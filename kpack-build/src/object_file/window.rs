//! Reads and copies part of a file, such as a static library member.

use std::fs::File;
use std::io;
use std::ops::Range;

use kpack_core::elf::ReadAt;
use kpack_core::publish::copy_range;

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

    /// Copies a range to offset `to` of `output`.
    pub(super) fn copy(&self, range: &Range<u64>, output: &File, to: u64) -> io::Result<()> {
        let range = self.start + range.start..self.start + range.end;
        copy_range(self.file, output, range, to)
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
