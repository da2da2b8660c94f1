//! Debug information in code objects: whether it stays, and where else it goes.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use kpack_format::archive::{ArchiveWriter, Encoder};
use kpack_format::digest::{Blake3, hex};

use super::content::{EncodeFailure, UncompressedCode};
use super::debug_sections::build_id;
use super::storage::{DebugInfo, Storage};
use crate::parallel::lock;
use crate::publish::Batch;
use crate::words::{bytes, counted};
use crate::{Error, Finding, Severity, files, ids};

const CODE_OBJECT: &str = "code object";

/// The least share of debug information, in percent, that is worth a note.
const WORTH_A_NOTE: u64 = 20;

/// Debug information in the code objects of a run. Each distinct one counts once per target.
#[derive(Debug, Default)]
pub struct DebugTotals {
    /// Bytes of some code objects, as they are stored, and an estimate of how many of these are of debug
    /// sections.
    sampled: [AtomicU64; 2],
    /// Bytes of code objects, with debug sections.
    code: AtomicU64,
    /// Bytes of debug sections.
    debug: AtomicU64,
    /// How many code objects have debug sections that could be removed.
    count: AtomicU64,
    /// How many of these keep them, because they have no build ID.
    without_build_id: AtomicU64,
    /// How many keep them because they cannot be removed, by the file that they are from, and why.
    not_removable: Mutex<Vec<(PathBuf, String, u64)>>,
}

impl DebugTotals {
    fn add(to: &AtomicU64, number: u64) {
        to.fetch_add(number, Ordering::Relaxed);
    }

    /// Counts a code object.
    pub(super) fn count(&self, treated: Treated) {
        let Treated { before, after, .. } = treated;
        Self::add(&self.code, before);
        Self::add(&self.debug, before.saturating_sub(after));
        match treated.kept {
            None => Self::add(&self.count, u64::from(after < before)),
            Some(Kept::NoBuildId) => {
                Self::add(&self.count, 1);
                Self::add(&self.without_build_id, 1);
            }
            Some(Kept::NotRemovable(path, reason)) => {
                let mut files = lock(&self.not_removable);
                let mut known = files.iter_mut();
                match known.find(|known| (&known.0, &known.1) == (&path, &reason)) {
                    Some((.., count)) => *count += 1,
                    None => files.push((path, reason, 1)),
                }
            }
        }
    }

    /// Adds a sample: a code object, and its stored size.
    pub(super) fn sample(&self, content: &UncompressedCode, stored: u64, encoder: &mut Encoder) {
        if let Ok(debug) = content.stored_debug(encoder) {
            Self::add(&self.sampled[0], stored);
            Self::add(&self.sampled[1], debug.min(stored));
        }
    }

    /// What to say about the code objects in `path`.
    pub fn findings(&self, debug: &DebugInfo, path: &Path) -> Vec<Finding> {
        let [size, debug_size, count, nameless] =
            [&self.code, &self.debug, &self.count, &self.without_build_id]
                .map(|number| number.load(Ordering::Relaxed));
        let mut findings = Vec::new();
        let share = share(debug_size, size);
        let text = match debug {
            DebugInfo::Keep => {
                let [stored, debug] = &self.sampled;
                let [stored, debug] = [stored, debug].map(|n| n.load(Ordering::Relaxed));
                findings.extend(debug_advice(path, debug, stored));
                return findings;
            }
            DebugInfo::Strip | DebugInfo::StripTo(_) => format!(
                "removed the debug information of {}: {} of {} ({share}%)",
                counted(count - nameless.min(count), CODE_OBJECT),
                bytes(debug_size),
                bytes(size)
            ),
        };
        if count > nameless {
            let id = ids::DEBUG_INFORMATION;
            findings.push(Finding::new(Severity::Note, id, path, text));
        }
        match debug {
            DebugInfo::StripTo(directory) if nameless > 0 => {
                let text = format!(
                    "no debug files written for {nameless} of {} (no build ID); the archives keep their debug information; link device code with -Xoffload-linker --build-id",
                    counted(count, CODE_OBJECT)
                );
                let id = ids::NO_BUILD_ID;
                findings.push(Finding::new(Severity::Warning, id, directory, text));
            }
            _ => {}
        }
        for (path, reason, count) in &*lock(&self.not_removable) {
            let text = format!(
                "{} with debug information: {reason}; it stays",
                counted(*count, CODE_OBJECT)
            );
            let id = ids::DEBUG_NOT_REMOVABLE;
            findings.push(Finding::new(Severity::Warning, id, path, text));
        }
        findings
    }
}

/// The share of `part` in percent.
fn share(part: u64, whole: u64) -> u64 {
    part.saturating_mul(100).checked_div(whole).unwrap_or(0)
}

/// What to say about `stored` bytes in archives in `path`, `debug` of which are of debug sections, if that is
/// worth a note. What to do is in `help` alone: other commands than split have other advice.
pub fn debug_advice(path: &Path, debug: u64, stored: u64) -> Option<Finding> {
    let share = share(debug, stored);
    let text = format!("debug information is about {share}% of the stored device code");
    let help = "to remove it, split with --strip-debug (put the code back with `kpack join --arch all` first, if the original is gone)";
    let finding = Finding::new(Severity::Note, ids::DEBUG_INFORMATION, path, text).with_help(help);
    (share >= WORTH_A_NOTE).then_some(finding)
}

/// How code objects that were archived before are treated on their way into other archives.
pub struct Treatment<'a> {
    /// How these archives are stored.
    pub storage: &'a Storage,
    /// A directory for scratch files.
    pub scratch: &'a Path,
    /// Counts the debug information.
    pub totals: &'a DebugTotals,
    /// Where it goes.
    pub debug_files: &'a DebugFiles,
}

impl Treatment<'_> {
    /// Adds a code object, read from an archive at `path`, to another archive as these kernels, whose entries
    /// have the ID `entry_id`.
    ///
    /// # Errors
    /// [`Error::Refused`] for what is no code object, or laid out as no compiler does; [`Error::Io`].
    pub fn add(
        &self,
        archive: &mut ArchiveWriter<File>,
        kernels: &[String],
        entry_id: Option<&str>,
        code_object: Vec<u8>,
        path: &Path,
    ) -> Result<(), Error> {
        let Storage { scheme, level, debug, .. } = self.storage;
        let content = UncompressedCode::Held(code_object);
        let (content, treated) = treat(content, (debug, self.debug_files), path, self.scratch)?;
        self.totals.count(treated);
        let failed = |error| Error::archive(path, "merge", error);
        let mut encoder = Encoder::new(*scheme, *level).map_err(failed)?;
        let stored =
            content.encode(&mut encoder, None, self.scratch).map_err(|failure| match failure {
                EncodeFailure::Archive(error) => failed(error),
                EncodeFailure::Scratch(error) => error,
            })?;
        for kernel in kernels {
            stored.add_to(archive, kernel).map_err(failed)?;
            archive.set_entry_id(kernel, entry_id);
        }
        Ok(())
    }
}

/// What became of a code object's debug sections.
pub(super) struct Treated {
    /// Its size with them, in bytes.
    before: u64,
    /// Its size as it is archived.
    after: u64,
    /// Why it keeps the debug sections that it has, if they were to be removed.
    kept: Option<Kept>,
}

/// Why a code object keeps its debug sections.
enum Kept {
    /// No debugger would find its debug file.
    NoBuildId,
    /// They cannot be removed, in a code object of this file and for this reason.
    NotRemovable(PathBuf, String),
}

/// Removes the debug sections of a code object of the file at `path`, if that is asked for.
pub(super) fn treat(
    content: UncompressedCode,
    (debug, files): (&DebugInfo, &DebugFiles),
    path: &Path,
    scratch: &Path,
) -> Result<(UncompressedCode, Treated), Error> {
    let size = content.size();
    let mut treated = Treated { before: size, after: size, kept: None };
    if *debug == DebugInfo::Keep {
        return Ok((content, treated));
    }
    let stripped = match content.without_debug(path, scratch) {
        Ok(Some(stripped)) => stripped,
        Ok(None) => return Ok((content, treated)),
        Err(Error::Refused { id, reason, .. }) if id == ids::DEBUG_NOT_REMOVABLE => {
            treated.kept = Some(Kept::NotRemovable(path.to_owned(), reason));
            return Ok((content, treated));
        }
        Err(error) => return Err(error),
    };
    if let DebugInfo::StripTo(_) = debug {
        let id = content.read_with(|mut source| build_id(&mut source, size));
        let Some(id) = id.map_err(|error| files::failed_code_object(path, error))? else {
            treated.kept = Some(Kept::NoBuildId);
            return Ok((content, treated));
        };
        files.add(&content, id, path)?;
    }
    treated.after = stripped.size();
    Ok((stripped, treated))
}

/// The debug files of a run: complete code objects as `.build-id/xx/yy….debug`. They get their names with the rest
/// that the run writes. If dropped before, none is left.
#[derive(Debug, Default)]
pub struct DebugFiles {
    /// Where they are written; nowhere if another run writes them.
    directory: Option<PathBuf>,
    flushes: bool,
    files: Mutex<DebugFileIndex>,
}

#[derive(Debug, Default)]
struct DebugFileIndex {
    /// The code objects, by build ID.
    known: HashMap<Vec<u8>, Blake3>,
    /// Whether leftovers of interrupted runs are gone.
    is_clean: bool,
    batch: Option<Batch>,
}

impl DebugFiles {
    /// Those that `debug` asks for. `flushes`: whether they are made durable.
    pub fn new(debug: &DebugInfo, flushes: bool) -> Self {
        let directory = match debug {
            DebugInfo::StripTo(directory) => Some(directory.clone()),
            DebugInfo::Keep | DebugInfo::Strip => None,
        };
        Self { directory, flushes, files: Mutex::default() }
    }

    /// The files, to be published before the archives that lack what they have.
    pub fn into_batch(self) -> Option<Batch> {
        let files = self.files.into_inner();
        files.unwrap_or_else(PoisonError::into_inner).batch
    }

    /// Gives them their names, if there are any.
    ///
    /// # Errors
    /// As [`Batch::publish`].
    pub fn publish(self) -> Result<(), Error> {
        self.into_batch().map_or(Ok(()), Batch::publish)
    }

    /// Adds a code object of the file at `path`, unless its debug file is there.
    fn add(&self, content: &UncompressedCode, id: Vec<u8>, path: &Path) -> Result<(), Error> {
        let Some(directory) = &self.directory else {
            return Ok(());
        };
        // Its lock is that of no other directory that this run or another has locked.
        let directory = &directory.join(".build-id");
        let (first, rest) = id.split_at(1);
        let relative = Path::new(&hex(first)).join(format!("{}.debug", hex(rest)));
        let there = directory.join(&relative);
        let clash = |other: &str| {
            let reason = format!(
                "a code object has the build ID {} of {other}, which differs; link device code with -Xoffload-linker --build-id, which gives each its own build ID, or name another directory",
                hex(&id)
            );
            Err(Error::rejected(ids::SHARED_BUILD_ID, path, reason))
        };
        let checksum = content.checksum().map_err(|error| Error::io(path, "read", error))?;
        let mut files = lock(&self.files);
        match files.known.insert(id.clone(), checksum) {
            Some(known) if known == checksum => return Ok(()),
            Some(_) => return clash("another one"),
            None => {}
        }
        // Also if all files are there, and no batch begins.
        if !files.is_clean {
            Batch::remove_leftovers(directory)?;
            files.is_clean = true;
        }
        // Once no run takes it back.
        let is_there = || there.is_file();
        if is_there() && (Batch::settled(directory)?, is_there()).1 {
            return if files::digest(&there)? == checksum {
                Ok(())
            } else {
                clash(&format!("`{}`", there.display()))
            };
        }
        let batch = match &mut files.batch {
            Some(batch) => batch,
            None => files.batch.insert(Batch::begin(directory, self.flushes)?),
        };
        let mut file = batch.create(relative)?;
        drop(files);
        let written = content.write_to(&mut file);
        let synced = written.and_then(|()| if self.flushes { file.sync_all() } else { Ok(()) });
        synced.map_err(|error| Error::io(&there, "write", error))
    }
}
