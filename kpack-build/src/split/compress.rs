//! Compresses code objects into archives. One thread at a time reads, all threads compress. Only
//! the code objects in flight are in memory.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::path::Path;
use std::sync::{Condvar, Mutex, PoisonError};

use kpack_format::TargetId;
use kpack_format::archive::{ArchiveWriter, Encoder};
use kpack_format::digest::Sha256;
use kpack_format::names::{Group, KernelName};

use super::content::{Content, Failure, Stored};
use super::{DeviceCode, Storage};
use crate::Error;
use crate::interrupt;
use crate::parallel::{self, lock};
use crate::report::Progress;

/// Limit for uncompressed code objects in flight, in bytes. A larger one goes alone.
const IN_FLIGHT: u64 = 96 << 20;

/// Settings for compressing code objects.
pub struct Compression<'a> {
    /// Module and component.
    pub group: &'a Group,
    /// How the archives are stored.
    pub storage: Storage,
    /// A directory for nameless scratch files, on the file system of the archives.
    pub scratch: &'a Path,
    /// Limits the bytes in flight; may be shared with other runs.
    pub budget: &'a Budget,
}

/// A code object to compress.
struct Job<'a> {
    file: &'a DeviceCode,
    kernels: Vec<String>,
    target: TargetId,
    content: Content,
    _permit: Permit<'a>,
}

/// Compresses the code objects of `files` for the `wanted` targets into one archive per target. A
/// file's kernels are named after its path in the prefix.
///
/// # Errors
/// [`Error::Refused`] for device code that is damaged or contradicts its bundle.
pub fn compress(
    files: &[(String, &DeviceCode)],
    wanted: &(dyn Fn(&TargetId) -> bool + Sync),
    compression: &Compression<'_>,
    progress: &dyn Progress,
) -> Result<BTreeMap<TargetId, ArchiveWriter<File>>, Error> {
    let run = Run {
        compression,
        claimed: Mutex::default(),
        encoders: Mutex::default(),
        archives: Mutex::default(),
    };
    let jobs = files.iter().flat_map(|(name, file)| {
        file.code_objects(wanted, compression.scratch)
            .map(move |code| {
                let (wrappers, target, content) = code?;
                interrupt::check(&file.path, "read")?;
                progress.advance(content.size());
                Ok(Job {
                    file,
                    kernels: wrappers
                        .iter()
                        .map(|index| KernelName::new(name, *index).to_string())
                        .collect(),
                    target,
                    _permit: compression.budget.take(content.held()),
                    content,
                })
            })
    });
    let shared = parallel::try_map(jobs, |job: Result<Job<'_>, Error>| run.store(job?))?;
    let mut archives = run
        .archives
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    for shared in shared.into_iter().flatten() {
        if let Some(archive) = archives.get_mut(&shared.target) {
            for kernel in &shared.kernels {
                archive
                    .add_stored(kernel, &shared.checksum)
                    .map_err(|error| Error::archive(compression.scratch, "write into", error))?;
            }
        }
    }
    Ok(archives)
}

/// A code object identical to one that another thread handles or handled.
struct Shared {
    kernels: Vec<String>,
    target: TargetId,
    checksum: Sha256,
}

/// State shared by the threads.
struct Run<'a> {
    compression: &'a Compression<'a>,
    /// Code objects that a thread compresses or has compressed.
    claimed: Mutex<HashSet<(TargetId, Sha256)>>,
    /// Idle encoders.
    encoders: Mutex<Vec<Encoder>>,
    archives: Mutex<BTreeMap<TargetId, ArchiveWriter<File>>>,
}

impl Run<'_> {
    /// Checks a code object and stores it compressed in its target's archive.
    fn store(&self, job: Job<'_>) -> Result<Option<Shared>, Error> {
        let checksum = job.content.checksum();
        if !lock(&self.claimed).insert((job.target.clone(), checksum)) {
            return Ok(Some(Shared {
                kernels: job.kernels,
                target: job.target,
                checksum,
            }));
        }
        let path = &job.file.path;
        check_target(&job).map_err(|reason| Error::refused(path, reason))?;
        let stored = self.encode(&job.content, checksum);
        let stored = stored.map_err(|failure| match failure {
            Failure::Archive(error) => Error::archive(path, "compress", error),
            Failure::Scratch(error) => error,
        })?;
        self.add(&job, &stored)?;
        Ok(None)
    }

    fn encode(&self, content: &Content, checksum: Sha256) -> Result<Stored, Failure> {
        let Compression {
            storage, scratch, ..
        } = *self.compression;
        let idle = lock(&self.encoders).pop();
        let new = || Encoder::new(storage.scheme, storage.level);
        let mut encoder = idle.map_or_else(new, Ok)?;
        let stored = content.encode(&mut encoder, checksum, scratch)?;
        lock(&self.encoders).push(encoder);
        Ok(stored)
    }

    fn add(&self, job: &Job<'_>, stored: &Stored) -> Result<(), Error> {
        let Compression {
            group,
            storage,
            scratch,
            ..
        } = *self.compression;
        let (mut archives, target) = (lock(&self.archives), &job.target);
        let archive = storage.archive(&mut archives, target.clone(), (group, target), scratch)?;
        for kernel in &job.kernels {
            let added = stored.add_to(archive, kernel);
            added.map_err(|error| Error::archive(scratch, "write into", error))?;
        }
        Ok(())
    }
}

/// A bundle's entry and the code object in it must agree on the target.
fn check_target(job: &Job<'_>) -> Result<(), String> {
    let kernel = job.kernels.first().map_or("", String::as_str);
    job.content.check(&job.target).map_err(|reason| {
        format!(
            "the bundle has kernel `{kernel}` for {}, but {reason}",
            job.target
        )
    })
}

/// Limit for bytes in flight.
pub struct Budget {
    used: Mutex<u64>,
    freed: Condvar,
    limit: u64,
}

/// A share of the budget, returned on drop.
struct Permit<'a> {
    budget: &'a Budget,
    size: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            used: Mutex::new(0),
            freed: Condvar::new(),
            limit: IN_FLIGHT,
        }
    }
}

impl Budget {
    /// Waits until `size` bytes fit, or nothing else is in flight.
    fn take(&self, size: u64) -> Permit<'_> {
        let full = |used: &mut u64| *used > 0 && *used + size > self.limit;
        let used = lock(&self.used);
        let mut used = self
            .freed
            .wait_while(used, full)
            .unwrap_or_else(PoisonError::into_inner);
        *used += size;
        Permit { budget: self, size }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *lock(&self.budget.used) -= self.size;
        self.budget.freed.notify_all();
    }
}
