//! Applying a plan: the kept bytes are copied, the changed ones written over them.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::{ElfError, Plan, check};

impl Plan {
    /// Writes the host binary into the empty file `output`, then reads it back and checks it.
    /// `input` is the file that the plan was made for.
    pub fn apply(&self, input: &File, output: &File) -> Result<(), ElfError> {
        match &self.geometry.cut {
            None => copy(input, output, 0..self.kept_end)?,
            Some(cut) => {
                copy(input, output, 0..cut.start)?;
                copy(input, output, cut.end..self.kept_end)?;
            }
        }
        for (offset, bytes) in &self.edits {
            output.write_all_at(bytes, *offset)?;
        }
        output.write_all_at(&self.tail, self.tail_offset)?;
        check::host_binary(output, self)
    }
}

/// Appends a range of `input` to `output`. The kernel copies, where it can.
fn copy(mut input: &File, mut output: &File, range: Range<u64>) -> io::Result<()> {
    let size = range.end - range.start;
    input.seek(SeekFrom::Start(range.start))?;
    let copied = io::copy(&mut input.take(size), &mut output)?;
    if copied != size {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("the file became shorter while it was read: {copied} of {size} bytes"),
        ));
    }
    Ok(())
}
