//! What an archive stores.

use std::collections::BTreeMap;
use std::fs;
use std::io::Cursor;
use std::path::Path;

use anyhow::{Context, Result};
use kpack_format::archive::Archive;

/// A code object that an archive stores once, for however many kernels.
pub(crate) struct Stored {
    pub(crate) target: String,
    pub(crate) code: Vec<u8>,
    /// Its compressed form.
    pub(crate) frame: Vec<u8>,
}

/// Everything that an archive stores.
///
/// # Errors
/// The archive cannot be read, or is damaged.
pub(crate) fn read(path: &Path) -> Result<Vec<Stored>> {
    let bytes = fs::read(path).with_context(|| path.display().to_string())?;
    let mut archive = Archive::open(Cursor::new(&bytes))?;
    let mut names = BTreeMap::new();
    for (name, targets) in &archive.toc().kernels {
        for (target, entry) in targets.iter() {
            names.insert(entry.ordinal, (name.clone(), target.clone()));
        }
    }
    let mut found = Vec::new();
    for (ordinal, (name, target)) in names {
        let (offset, size) = archive.stored(ordinal)?;
        found.push(Stored {
            code: archive.read(&name, &target)?,
            frame: bytes[offset as usize..][..size as usize].to_vec(),
            target,
        });
    }
    Ok(found)
}
