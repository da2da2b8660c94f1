//! Applies a plan: copies the kept bytes, then writes the changed ones over them.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::{ElfError, Plan, check};
use crate::store::copy_range;

impl Plan {
    /// Writes the host binary to the empty file `output`, then reads it back and checks it. `input`
    /// must be the planned file.
    pub fn apply(&self, input: &File, output: &File) -> Result<(), ElfError> {
        match &self.geometry.cut {
            None => copy_range(input, output, 0..self.kept_end, 0)?,
            Some(cut) => {
                copy_range(input, output, 0..cut.start, 0)?;
                copy_range(input, output, cut.end..self.kept_end, cut.start)?;
            }
        }
        for (offset, bytes) in &self.edits {
            output.write_all_at(bytes, *offset)?;
        }
        output.write_all_at(&self.tail, self.tail_offset)?;
        check::host_binary(output, self)
    }
}
