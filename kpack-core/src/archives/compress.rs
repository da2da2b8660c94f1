//! Compresses code objects into archives. One thread at a time reads, all threads compress. Only
//! the code objects in flight are in memory.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::Seek;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use kpack_format::TargetId;
use kpack_format::archive::{ArchiveWriter, Encoder};
use kpack_format::digest::Blake3;
use kpack_format::names::{Group, KernelName};

use super::budget::{Budget, Permit};
use super::content::{EncodeFailure, Stored, UncompressedCode};
use super::debug_info::{DebugFiles, DebugTotals, treat};
use super::device_code::PackedCode;
use super::storage::Storage;
use super::variants;
use crate::interrupt;
use crate::parallel::{self, lock};
use crate::publish;
use crate::report::Progress;
use crate::{Error, ids};

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
    /// Whether the archives will be flushed to the disk, so that writing them may begin early.
    pub flushes: bool,
    /// Where debug information goes.
    pub debug_files: &'a DebugFiles,
}

/// Archives of compressed code objects.
pub struct CompressedArchives {
    /// One archive per target.
    pub archives: BTreeMap<TargetId, ArchiveWriter<File>>,
    /// The debug information that they have, or had.
    pub debug: DebugTotals,
}

/// Limit for compressed code objects in memory that wait for an earlier one, in bytes.
const EARLY: u64 = 8 << 20;

/// One in this many code objects is examined for debug information.
const SAMPLED: usize = 16;

/// A code object to compress.
struct Job<'a> {
    /// Its place in the order of reading.
    number: usize,
    file: &'a PackedCode,
    kernels: Vec<String>,
    target: TargetId,
    /// If it cannot be told from the target.
    entry_id: Option<String>,
    content: UncompressedCode,
    _permit: Permit<'a>,
}

/// Compresses the code objects of `files` for the `wanted` targets into one archive per target. A
/// file's kernels are named after its path in the prefix.
///
/// # Errors
/// [`Error::Refused`] for device code that is damaged or contradicts its bundle.
pub fn compress(
    files: &[(String, &PackedCode)],
    wanted: &(dyn Fn(&TargetId) -> bool + Sync),
    compression: &Compression<'_>,
    progress: &dyn Progress,
) -> Result<CompressedArchives, Error> {
    let run = Run {
        compression,
        debug: DebugTotals::default(),
        claimed: Mutex::default(),
        sizes: Mutex::default(),
        encoders: Mutex::default(),
        output: Mutex::default(),
    };
    // In the order of archives, so that these need not be sorted.
    let mut files: Vec<_> = files.iter().collect();
    files.sort_by_key(|(name, _)| name);
    let jobs = files
        .iter()
        .flat_map(|(name, file)| {
            file.code_objects(wanted, compression.scratch, compression.budget)
                .map(move |code| (name, file, code))
        })
        .enumerate()
        .map(|(number, (name, file, code))| {
            let (wrappers, id, content) = code?;
            let Some(target) = id.target().cloned() else {
                return Err(Error::rejected(
                    ids::DAMAGED_CODE_OBJECT,
                    &file.path,
                    "a code object without a target",
                ));
            };
            interrupt::check(&file.path, "read")?;
            progress.advance(content.size());
            Ok(Job {
                number,
                file,
                kernels: wrappers
                    .iter()
                    .map(|index| KernelName::new(name, *index).to_string())
                    .collect(),
                target,
                entry_id: id.unusual().map(str::to_owned),
                _permit: compression.budget.take(content.held()),
                content,
            })
        });
    let shared = parallel::try_map(jobs, |job: Result<Job<'_>, Error>| run.store(job?))?;
    let debug = run.debug;
    let output = run.output.into_inner();
    let mut archives = output.unwrap_or_else(PoisonError::into_inner).archives;
    for shared in shared.into_iter().flatten() {
        if let Some(archive) = archives.get_mut(&shared.target) {
            for kernel in &shared.kernels {
                archive
                    .add_stored(kernel, &shared.checksum)
                    .map_err(|error| Error::archive(compression.scratch, "write into", error))?;
                archive.set_entry_id(kernel, shared.entry_id.as_deref());
            }
        }
    }
    if compression.storage.complete_variants {
        variants::complete(&mut archives, compression.scratch)?;
    }
    Ok(CompressedArchives { archives, debug })
}

/// A code object identical to one that another thread handles or handled.
struct Shared {
    kernels: Vec<String>,
    target: TargetId,
    entry_id: Option<String>,
    checksum: Blake3,
}

/// State shared by the threads.
struct Run<'a> {
    compression: &'a Compression<'a>,
    debug: DebugTotals,
    /// Code objects that a thread compresses or has compressed.
    claimed: Mutex<HashSet<(TargetId, Blake3)>>,
    /// The sizes of large code objects, which are hashed while they are compressed.
    sizes: Mutex<HashSet<(TargetId, u64)>>,
    /// Idle encoders.
    encoders: Mutex<Vec<Encoder>>,
    output: Mutex<PendingArchives>,
}

/// Archives, and what is to be added to them.
#[derive(Default)]
struct PendingArchives {
    archives: BTreeMap<TargetId, ArchiveWriter<File>>,
    /// The number after that of the last job whose result was taken.
    next: usize,
    /// What later jobs stored, the first one last.
    early: Vec<(usize, Option<Addition>)>,
    early_size: u64,
}

/// A stored code object to add to an archive.
struct Addition {
    target: TargetId,
    entry_id: Option<String>,
    kernels: Vec<String>,
    stored: Stored,
}

impl Addition {
    fn size(&self) -> u64 {
        self.stored.held()
    }
}

impl PendingArchives {
    fn insert(&mut self, number: usize, addition: Option<Addition>) {
        self.early_size += addition.as_ref().map_or(0, Addition::size);
        let at = self.early.partition_point(|(other, _)| *other > number);
        self.early.insert(at, (number, addition));
    }

    /// Takes out what can be added now: in order, unless too much waits.
    fn ready(&mut self) -> Option<Option<Addition>> {
        let number = self.early.last()?.0;
        if number > self.next && self.early_size <= EARLY {
            return None;
        }
        let (_, addition) = self.early.pop()?;
        self.next = self.next.max(number + 1);
        self.early_size -= addition.as_ref().map_or(0, Addition::size);
        Some(addition)
    }
}

impl Run<'_> {
    /// Checks a code object and stores it compressed in its target's archive.
    fn store(&self, mut job: Job<'_>) -> Result<Option<Shared>, Error> {
        let number = job.number;
        let path = &job.file.path;
        let mut treated = None;
        if !job.target.is_spirv() {
            let Compression { storage, scratch, debug_files, .. } = self.compression;
            let (content, done) = treat(job.content, (&storage.debug, debug_files), path, scratch)?;
            job.content = content;
            treated = Some(done);
        }
        let checksum = self.checksum(&job)?;
        let is_claimed =
            |checksum: &_| !lock(&self.claimed).insert((job.target.clone(), *checksum));
        if let Some(checksum) = checksum.filter(is_claimed) {
            self.add(number, None)?;
            return Ok(Some(Shared {
                kernels: job.kernels,
                target: job.target,
                entry_id: job.entry_id,
                checksum,
            }));
        }
        if let Some(treated) = treated {
            self.debug.count(treated);
        }
        check_target(&job)
            .map_err(|reason| Error::rejected(ids::DAMAGED_CODE_OBJECT, path, reason))?;
        let is_sample = number % SAMPLED == 0 && !job.target.is_spirv();
        let stored =
            self.encode(&job.content, checksum, is_sample).map_err(|failure| match failure {
                EncodeFailure::Archive(error) => Error::archive(path, "compress", error),
                EncodeFailure::Scratch(error) => error,
            })?;
        lock(&self.claimed).insert((job.target.clone(), stored.checksum()));
        let addition =
            Addition { target: job.target, entry_id: job.entry_id, kernels: job.kernels, stored };
        self.add(number, Some(addition))?;
        Ok(None)
    }

    /// The BLAKE3 digest of a code object before it is compressed. A large one of a size that no other has is
    /// read only once: `None`.
    fn checksum(&self, job: &Job<'_>) -> Result<Option<Blake3>, Error> {
        let known = job.content.known_checksum();
        let size = (job.target.clone(), job.content.size());
        if known.is_some() || lock(&self.sizes).insert(size) {
            return Ok(known);
        }
        let read = job.content.checksum();
        read.map(Some).map_err(|e| Error::io(&job.file.path, "read", e))
    }

    fn encode(
        &self,
        content: &UncompressedCode,
        checksum: Option<Blake3>,
        is_sample: bool,
    ) -> Result<Stored, EncodeFailure> {
        let Compression { ref storage, scratch, .. } = *self.compression;
        let idle = lock(&self.encoders).pop();
        let new = || Encoder::new(storage.scheme, storage.level);
        let mut encoder = idle.map_or_else(new, Ok)?;
        let stored = content.encode(&mut encoder, checksum, scratch)?;
        if is_sample {
            self.debug.sample(content, stored.size(), &mut encoder);
        }
        lock(&self.encoders).push(encoder);
        Ok(stored)
    }

    /// Adds what job `number` stored to its archive, and what waited for it.
    fn add(&self, number: usize, addition: Option<Addition>) -> Result<(), Error> {
        let Compression { group, ref storage, scratch, flushes, .. } = *self.compression;
        let mut output = lock(&self.output);
        output.insert(number, addition);
        while let Some(ready) = output.ready() {
            let Some(Addition { target, entry_id, kernels, stored }) = ready else {
                continue;
            };
            let key = target.clone();
            let archive = storage.archive(&mut output.archives, key, (group, &target), scratch)?;
            for kernel in &kernels {
                let added = stored.add_to(archive, kernel);
                added.map_err(|error| Error::archive(scratch, "write into", error))?;
                archive.set_entry_id(kernel, entry_id.as_deref());
            }
            if flushes {
                let (mut spool, size) = (archive.spool(), stored.size());
                let end = spool
                    .stream_position()
                    .map_err(|error| Error::io(scratch, "write into", error))?;
                publish::begin_flush(spool, end.saturating_sub(size), size);
            }
        }
        Ok(())
    }
}

/// A bundle's entry and the code object in it must agree on the target.
fn check_target(job: &Job<'_>) -> Result<(), String> {
    let kernel = job.kernels.first().map_or("", String::as_str);
    job.content.check(&job.target).map_err(|reason| {
        format!("the bundle has kernel `{kernel}` for {}, but {reason}", job.target)
    })
}

#[cfg(test)]
mod tests {
    use kpack_format::archive::Encoded;

    use super::*;

    /// What job 0, 1 … stored, of these sizes, in the order in which the jobs end: the jobs whose code
    /// objects are added after each.
    fn added(jobs: &[(usize, u64)]) -> Vec<Vec<String>> {
        let mut output = PendingArchives::default();
        let add = |(number, size): &(usize, u64)| {
            let encoded =
                Encoded { bytes: vec![0; *size as usize], original_size: 1, checksum: [0; 32] };
            output.insert(
                *number,
                Some(Addition {
                    target: "gfx1100".parse().unwrap(),
                    entry_id: None,
                    kernels: vec![number.to_string()],
                    stored: Stored::Held(encoded),
                }),
            );
            let ready = std::iter::from_fn(|| output.ready());
            ready.flatten().flat_map(|ready| ready.kernels).collect()
        };
        jobs.iter().map(add).collect()
    }

    #[test]
    fn what_ends_early_waits_for_its_turn() {
        let jobs = [(1, 1), (3, 1), (0, 1), (2, 1)];
        let expected = [vec![], vec![], vec!["0", "1"], vec!["2", "3"]];
        assert_eq!(added(&jobs), expected);
    }

    #[test]
    fn little_waits() {
        let jobs = [(1, EARLY), (2, 1), (0, 1), (3, 1)];
        let expected = [vec![], vec!["1", "2"], vec!["0"], vec!["3"]];
        assert_eq!(added(&jobs), expected);
    }
}
