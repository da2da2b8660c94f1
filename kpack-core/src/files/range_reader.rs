//! Reads a part of a file that threads share.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;

use crate::platform::FileExt;

/// Reads a range of a file without moving the file's position.
#[derive(Debug)]
pub struct RangeReader<'a> {
    file: &'a File,
    range: Range<u64>,
    /// From the start of the range.
    at: u64,
}

impl<'a> RangeReader<'a> {
    /// From the start of `range`.
    pub fn new(file: &'a File, range: Range<u64>) -> Self {
        Self { file, range, at: 0 }
    }

    fn size(&self) -> u64 {
        self.range.end - self.range.start
    }
}

impl Read for RangeReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let size = self.size().saturating_sub(self.at).min(buffer.len() as u64) as usize;
        let start = self.range.start + self.at;
        let read = self.file.read_at(&mut buffer[..size], start)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for RangeReader<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.size().checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}
