//! Code objects into archives: one thread reads, some compress, one writes. What is held is the
//! code objects in flight.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use kpack_format::TargetId;
use kpack_format::archive::{ArchiveError, ArchiveWriter, Encoded, Encoder, Scheme};
use kpack_format::digest::{Sha256, sha256};

use super::DeviceCode;
use crate::Error;
use crate::input;
use crate::interrupt;
use crate::report::Progress;
use crate::store::scratch_file;

/// Uncompressed code objects that may be in flight, in bytes. One that is larger goes alone.
const IN_FLIGHT: u64 = 96 << 20;

/// How code objects are compressed.
pub struct Compression<'a> {
    /// Module and component.
    pub group: &'a str,
    /// How the archives store code objects.
    pub scheme: Scheme,
    /// The level of compression.
    pub level: i32,
    /// How many threads compress.
    pub jobs: NonZeroUsize,
    /// A directory on the file system of the archives, for scratch files without a name.
    pub scratch: &'a Path,
    /// What may be in flight, of this and of whatever else shares it.
    pub budget: &'a Budget,
}

/// A code object to be compressed.
struct Job<'a> {
    file: &'a DeviceCode,
    kernels: Vec<String>,
    target: TargetId,
    bytes: Vec<u8>,
    _permit: Permit<'a>,
}

/// A code object to be stored; `None` where an identical one comes or came another way.
struct Done {
    kernels: Vec<String>,
    target: TargetId,
    checksum: Sha256,
    encoded: Option<Encoded>,
}

/// Compresses the code objects of `files` for the targets that are `wanted`, into an archive for
/// each target. The kernels of a file are named after its path in the prefix.
///
/// # Errors
/// [`Error::Refused`] for device code that is damaged or not what it is said to be.
pub fn compress(
    files: &[(String, &DeviceCode)],
    wanted: &(dyn Fn(&TargetId) -> bool + Sync),
    compression: &Compression<'_>,
    progress: &dyn Progress,
) -> Result<BTreeMap<TargetId, ArchiveWriter<File>>, Error> {
    let claimed = Mutex::new(HashSet::new());
    let jobs = compression.jobs.get();
    thread::scope(|scope| {
        let (job_sender, job_receiver) = sync_channel::<Job<'_>>(jobs);
        let (done_sender, done_receiver) = sync_channel(2 * jobs);
        let collector = scope.spawn(move || collect(done_receiver, compression));
        let job_receiver = std::sync::Arc::new(Mutex::new(job_receiver));
        for _ in 0..jobs {
            let (receiver, sender, claimed) = (job_receiver.clone(), done_sender.clone(), &claimed);
            scope.spawn(move || work(&receiver, &sender, claimed, compression));
        }
        drop((job_receiver, done_sender));

        let read = read(files, wanted, compression.budget, &job_sender, progress);
        drop(job_sender);
        let collected = match collector.join() {
            Ok(collected) => collected,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        // Where a later stage failed, the first noticed only that nobody takes its jobs.
        let archives = collected?;
        read?;
        Ok(archives)
    })
}

/// Reads code objects and hands them on.
fn read<'a>(
    files: &'a [(String, &'a DeviceCode)],
    wanted: &dyn Fn(&TargetId) -> bool,
    budget: &'a Budget,
    jobs: &SyncSender<Job<'a>>,
    progress: &dyn Progress,
) -> Result<(), Error> {
    for (name, file) in files {
        file.code_objects(wanted, |wrappers, target, bytes| {
            let size = bytes.len() as u64;
            interrupt::check(&file.path, "read")?;
            let job = Job {
                file,
                kernels: wrappers
                    .iter()
                    .map(|index| format!("{name}#{index}"))
                    .collect(),
                target,
                bytes,
                _permit: budget.take(size),
            };
            progress.advance(size);
            jobs.send(job)
                .map_err(|_| Error::refused(&file.path, "splitting was given up"))
        })?;
    }
    Ok(())
}

/// Checks and compresses code objects until there are no more.
fn work(
    jobs: &Mutex<Receiver<Job<'_>>>,
    done: &SyncSender<Result<Done, Error>>,
    claimed: &Mutex<HashSet<(TargetId, Sha256)>>,
    compression: &Compression<'_>,
) {
    let mut encoder = None;
    loop {
        let job = lock(jobs).recv();
        let Ok(job) = job else { return };
        let path = job.file.path.clone();
        let result = encode(job, &mut encoder, claimed, compression);
        let result = result.map_err(|failure| match failure {
            Failure::Refused(reason) => Error::refused(&path, reason),
            Failure::Archive(error) => archive_error(&path, error),
        });
        let failed = result.is_err();
        if done.send(result).is_err() || failed {
            return;
        }
    }
}

enum Failure {
    Refused(String),
    Archive(ArchiveError),
}

fn encode(
    job: Job<'_>,
    encoder: &mut Option<Encoder>,
    claimed: &Mutex<HashSet<(TargetId, Sha256)>>,
    compression: &Compression<'_>,
) -> Result<Done, Failure> {
    let checksum: Sha256 = sha256(&job.bytes);
    let encoded = if lock(claimed).insert((job.target.clone(), checksum)) {
        check_target(&job).map_err(Failure::Refused)?;
        let encoder = match encoder {
            Some(encoder) => encoder,
            None => {
                let new = Encoder::new(compression.scheme, compression.level);
                encoder.insert(new.map_err(Failure::Archive)?)
            }
        };
        Some(
            encoder
                .encode(&job.bytes, checksum)
                .map_err(Failure::Archive)?,
        )
    } else {
        None
    };
    Ok(Done {
        kernels: job.kernels,
        target: job.target,
        checksum,
        encoded,
    })
}

/// A bundle's entry and the code object in it must agree on the target.
fn check_target(job: &Job<'_>) -> Result<(), String> {
    let kernel = job.kernels.first().map_or("", String::as_str);
    input::check_code_object(&job.bytes, &job.target).map_err(|reason| {
        format!(
            "the bundle has kernel `{kernel}` for {}, but {reason}",
            job.target
        )
    })
}

/// Stores compressed code objects, each in its target's archive.
fn collect(
    done: Receiver<Result<Done, Error>>,
    compression: &Compression<'_>,
) -> Result<BTreeMap<TargetId, ArchiveWriter<File>>, Error> {
    let failed = |error| archive_error(compression.scratch, error);
    let mut archives: BTreeMap<TargetId, ArchiveWriter<File>> = BTreeMap::new();
    let mut shared = Vec::new();
    for code_object in done {
        let code_object = code_object?;
        let Some(encoded) = &code_object.encoded else {
            shared.push(code_object);
            continue;
        };
        let archive = match archives.get_mut(&code_object.target) {
            Some(archive) => archive,
            None => {
                let spool = scratch_file(compression.scratch)?;
                let archive = ArchiveWriter::new(
                    spool,
                    compression.group,
                    &code_object.target,
                    compression.scheme,
                )
                .level(compression.level);
                archives
                    .entry(code_object.target.clone())
                    .or_insert(archive)
            }
        };
        for kernel in &code_object.kernels {
            archive.add(kernel, encoded).map_err(failed)?;
        }
    }
    for code_object in shared {
        if let Some(archive) = archives.get_mut(&code_object.target) {
            for kernel in &code_object.kernels {
                archive
                    .add_stored(kernel, &code_object.checksum)
                    .map_err(failed)?;
            }
        }
    }
    Ok(archives)
}

/// An archive's error, with the path that it lacks.
pub fn archive_error(path: &Path, error: ArchiveError) -> Error {
    match error {
        ArchiveError::Io(error) => Error::io(path, "write", error),
        error => Error::refused(path, error.to_string()),
    }
}

/// A thread that panics takes its work along; what the lock guards is whole at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes that may be in flight.
pub struct Budget {
    used: Mutex<u64>,
    freed: Condvar,
    limit: u64,
}

/// A share of the budget, given back when it is dropped.
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
    /// Waits until there is room for `size` bytes, or nothing else in flight.
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
