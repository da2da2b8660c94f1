//! A host binary in the place of a fat one.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt, fchown};
use std::path::Path;

use crate::Error;
use crate::elf::{ElfError, Plan};
use crate::inspect;
use crate::kpack_dir::Staged;

/// Changed bytes by offset.
pub(crate) type Edits = Vec<(u64, Vec<u8>)>;

/// Writes the host binary beside the fat one that it is to replace, which `input` is: with its
/// mode, and with its owner where that is allowed.
pub(super) fn stage(path: &Path, input: &File, plan: &Plan) -> Result<Staged, Error> {
    write(path, input, |output| {
        plan.apply(input, output).map_err(|error| match error {
            ElfError::Io(error) => Error::io(path, "write the host binary of", error),
            error => inspect::elf_error(path, error),
        })
    })
}

/// Writes a copy of `input` with changed bytes beside `path`, which it is to become.
pub(crate) fn stage_edited(path: &Path, input: &File, edits: &Edits) -> Result<Staged, Error> {
    let failed = |e| Error::io(path, "write the host binary of", e);
    write(path, input, |mut output| {
        let mut source = input;
        source.seek(SeekFrom::Start(0)).map_err(failed)?;
        io::copy(&mut source, &mut output).map_err(failed)?;
        for (offset, bytes) in edits {
            output.write_all_at(bytes, *offset).map_err(failed)?;
        }
        Ok(())
    })
}

fn write(
    path: &Path,
    input: &File,
    fill: impl FnOnce(&File) -> Result<(), Error>,
) -> Result<Staged, Error> {
    let metadata = input.metadata().map_err(|e| Error::io(path, "read", e))?;
    let (staged, ()) = Staged::write(path, |output| {
        fill(output)?;
        // Only root may give files away. Before the mode, since it takes set-user-ID away.
        let _ = fchown(output, Some(metadata.uid()), Some(metadata.gid()));
        output
            .set_permissions(metadata.permissions())
            .map_err(|e| Error::io(path, "set the mode of the host binary of", e))
    })?;
    Ok(staged)
}

/// Whether `path` is still the file that was opened.
pub(super) fn is_same(path: &Path, opened: &File) -> Result<bool, Error> {
    let now = fs::metadata(path).map_err(|e| Error::io(path, "read", e))?;
    let then = opened.metadata().map_err(|e| Error::io(path, "read", e))?;
    let identity = |m: &fs::Metadata| (m.dev(), m.ino(), m.len(), m.mtime(), m.mtime_nsec());
    Ok(identity(&now) == identity(&then))
}
