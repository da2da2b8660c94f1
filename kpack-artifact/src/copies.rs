//! Copies of inputs, made while these are checked: each input is read once.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use kpack_core::Error;
use kpack_core::files::digest;
use kpack_core::parallel::lock;
use kpack_core::platform::{id_of, open_files};
use kpack_core::publish::{CreatedDirectories, Directory, copy_checked};
use kpack_format::Sha256;

/// Smaller files are read again: that costs less than a copy that stays open.
const LEAST: u64 = 64 << 10;

/// Copies without names in the output directory. Those that nobody takes are gone in the end, whatever happens.
#[derive(Default)]
pub(crate) struct Copies {
    directory: Option<Directory>,
    /// By device and inode of the input.
    made: Mutex<BTreeMap<(u64, u64), File>>,
    /// How many files may stay open.
    most: usize,
    /// Whether there was no room for one.
    gave_up: AtomicBool,
    /// The output directory, if it was created; removed if nothing is written.
    _created: CreatedDirectories,
}

impl fmt::Debug for Copies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Copies").finish_non_exhaustive()
    }
}

impl Copies {
    /// Copies are made in `output`, which is created if missing. Where it cannot be, none are made.
    pub(crate) fn within(output: &Path) -> Self {
        let mut created = CreatedDirectories::default();
        let most = open_files() / 2;
        Self {
            directory: Directory::make(output, &mut created).ok(),
            made: Mutex::default(),
            most: usize::try_from(most).unwrap_or(usize::MAX),
            gave_up: AtomicBool::new(false),
            _created: created,
        }
    }

    /// The SHA-256 of an input that will be output, which is copied in the same pass if it is large.
    pub(crate) fn digest(&self, path: &Path) -> Result<Sha256, Error> {
        let metadata = path.metadata().map_err(|e| Error::io(path, "read", e))?;
        let is_large = metadata.is_file() && metadata.len() >= LEAST;
        let has_room = lock(&self.made).len() < self.most && !self.gave_up.load(Ordering::Relaxed);
        let Some(directory) = self.directory.as_ref().filter(|_| is_large && has_room) else {
            return digest(path);
        };
        let (sum, copy) = copy_checked(path, directory)?;
        let copy = copy.and_then(|copy| Some((id_of(path, &metadata).ok()?, copy)));
        let mut made = lock(&self.made);
        match copy {
            Some((id, copy)) => drop(made.insert(id, copy)),
            // The room is for what is written, one component after the other.
            None => {
                made.clear();
                self.gave_up.store(true, Ordering::Relaxed);
            }
        }
        Ok(sum)
    }

    /// The copy of the input at `path`, for the first who needs one.
    pub(crate) fn take(&self, path: &Path) -> Option<File> {
        let metadata = path.symlink_metadata().ok()?;
        lock(&self.made).remove(&id_of(path, &metadata).ok()?)
    }
}
