//! Copies parts of files and keeps their holes; writes parts of files.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;

use crate::files::first_bytes;
use crate::interrupt;
use crate::platform::{self, FileExt};

/// Bytes copied at a time.
const PIECE: u64 = 64 << 20;

/// Bytes written at a time. With larger writes, Linux uses larger blocks of memory for the file, and
/// in virtual machines that can take several times as long.
const WRITTEN: usize = 64 << 10;

/// Writes large `bytes` at offset `at` of `output`.
///
/// # Errors
/// A write fails.
pub fn write_at(output: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    let mut pieces = bytes.chunks(WRITTEN).zip((at..).step_by(WRITTEN));
    pieces.try_for_each(|(piece, at)| output.write_all_at(piece, at))?;
    begin_flush(output, at, bytes.len() as u64);
    Ok(())
}

/// Starts to move the `size` bytes that were just written at `at` to the disk, if they are many, so that the
/// flush at the end has less to wait for.
pub fn begin_flush(file: &File, at: u64, size: u64) {
    if size >= WRITTEN as u64 {
        platform::begin_flush(file, at, size);
    }
}

/// Copies a range of `input` to offset `to` of `output`. Positions in both files may change. Unless the range is small,
/// holes of `input` past the end of `output` stay holes, and the kernel copies, if it can.
///
/// # Errors
/// [`io::ErrorKind::UnexpectedEof`] if `input` is shorter.
pub fn copy_range(
    mut input: &File,
    mut output: &File,
    range: Range<u64>,
    to: u64,
) -> io::Result<()> {
    let shorter = |copied| {
        let size = range.end - range.start;
        let text = format!("the file became shorter while it was read: {copied} of {size} bytes");
        io::Error::new(io::ErrorKind::UnexpectedEof, text)
    };
    let end = to + (range.end - range.start);
    if end - to <= WRITTEN as u64 {
        interrupt::asked()?;
        // Takes fewer calls than asking for holes.
        let mut bytes = vec![0; (end - to) as usize];
        let copied = first_bytes(input, &mut bytes, range.start)?.len();
        if copied < bytes.len() {
            return Err(shorter(copied as u64));
        }
        return output.write_all_at(&bytes, to);
    }
    let end_of_input = input.metadata()?.len();
    if end_of_input < range.end {
        return Err(shorter(end_of_input.saturating_sub(range.start)));
    }
    let mut at = range.start;
    while at < range.end {
        let data = match platform::next_data(input, at) {
            Ok(Some(data)) => data.min(range.end),
            // Only a hole up to the end.
            Ok(None) => range.end,
            // Not every file system reports holes.
            Err(_) => at,
        };
        let end = match platform::next_hole(input, data) {
            Ok(hole) => hole.min(range.end),
            Err(_) => range.end,
        };
        // Copy in pieces, so that signals are handled soon.
        let end = end.min(data + PIECE);
        if data < end {
            interrupt::asked()?;
            input.seek(SeekFrom::Start(data))?;
            output.seek(SeekFrom::Start(to + (data - range.start)))?;
            match io::copy(&mut input.take(end - data), &mut output) {
                Ok(copied) if copied == end - data => {}
                Ok(copied) => return Err(shorter(data + copied - range.start)),
                // The kernel may have copied a part. Continue after it.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    at = range.start + (output.stream_position()? - to);
                    continue;
                }
                Err(error) => return Err(error),
            }
        }
        at = end;
    }
    if output.metadata()?.len() < end {
        output.set_len(end)?;
    }
    Ok(())
}

/// As [`copy_range`], for an output that is flushed later: while a piece is copied, the one before it moves to the disk.
///
/// # Errors
/// Those of [`copy_range`].
pub fn copy_to_disk(input: &File, output: &File, range: Range<u64>, to: u64) -> io::Result<()> {
    let mut at = range.start;
    while at < range.end {
        let end = range.end.min(at + PIECE);
        let to = to + (at - range.start);
        copy_range(input, output, at..end, to)?;
        begin_flush(output, to, end - at);
        at = end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_became_shorter_is_an_error() {
        for size in [10, 10 * WRITTEN as u64] {
            let [input, output] = [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()];
            input.set_len(size).unwrap();
            copy_range(&input, &output, 0..size, 0).unwrap();
            let error = copy_range(&input, &output, 0..size + 1, 0).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{error}");
        }
    }
}
