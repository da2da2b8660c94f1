//! Writes host binaries.

use std::fs::File;
use std::path::Path;

use kpack_core::platform::FileExt;

use crate::Error;
use crate::elf::BinaryError;
use crate::host::Plan;
use crate::input;
use crate::publish::copy_range;

/// How to change a binary into a host binary.
pub enum HostPlan {
    /// Device code is removed.
    Planned(Box<Plan>),
    /// It has no device code of its own, only objects that were split before the link; bytes at
    /// these offsets change.
    Edited(Vec<(u64, Vec<u8>)>),
}

impl HostPlan {
    /// Writes the host binary of `input`, found at `path`, to the empty file `output`.
    pub fn write(&self, path: &Path, input: &File, output: &File) -> Result<(), Error> {
        let failed = |e| Error::io(path, "write the host binary of", e);
        match self {
            Self::Planned(plan) => plan.apply(input, output).map_err(|error| match error {
                BinaryError::Io(error) => failed(error),
                error => input::binary_error(path, error),
            }),
            Self::Edited(edits) => {
                let size = input.metadata().map_err(failed)?.len();
                copy_range(input, output, 0..size, 0).map_err(failed)?;
                let mut edits = edits.iter();
                edits
                    .try_for_each(|(offset, bytes)| output.write_all_at(bytes, *offset))
                    .map_err(failed)
            }
        }
    }
}
