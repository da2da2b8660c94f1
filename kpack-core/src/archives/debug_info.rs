//! Debug information in code objects: whether it stays, and where else it goes.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kpack_format::archive::{ArchiveWriter, Encoder};
use kpack_format::code_object::CodeObjectError;
use kpack_format::debug_sections::build_id;

use super::Storage;
use super::content::{Content, Failure};
use crate::publish::{Directory, StagedFile, make_directories};
use crate::{Error, Finding, Severity, ids};

/// How to treat the debug sections of code objects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum DebugInfo {
    /// Keep them.
    #[default]
    Keep,
    /// Remove them.
    Strip,
    /// Remove them, and write the complete code objects into this directory, named after their build IDs as
    /// debuggers look for them.
    StripTo(PathBuf),
}

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
    /// How many code objects have debug sections.
    count: AtomicU64,
    /// How many of these got no debug file, because they have no build ID.
    without_build_id: AtomicU64,
}

impl DebugTotals {
    fn add(to: &AtomicU64, number: u64) {
        to.fetch_add(number, Ordering::Relaxed);
    }

    /// Counts a code object.
    pub(super) fn count(&self, treated: &Treated) {
        let Treated { before, after, .. } = *treated;
        Self::add(&self.code, before);
        Self::add(&self.debug, before.saturating_sub(after));
        Self::add(&self.count, u64::from(after < before));
        Self::add(&self.without_build_id, u64::from(treated.is_nameless));
    }

    /// Adds a sample: a code object, and its stored size.
    pub(super) fn sample(&self, content: &Content, stored: u64, encoder: &mut Encoder) {
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
                counted(count),
                bytes(debug_size),
                bytes(size)
            ),
        };
        if count > 0 {
            let id = ids::DEBUG_INFORMATION;
            findings.push(Finding::new(Severity::Note, id, path, text));
        }
        if let DebugInfo::StripTo(directory) = debug
            && nameless > 0
        {
            let text = format!(
                "has no debug files of {nameless} of {}, which have no build ID; link device code with -Xoffload-linker --build-id",
                counted(count)
            );
            let id = ids::NO_BUILD_ID;
            findings.push(Finding::new(Severity::Warning, id, directory, text));
        }
        findings
    }
}

fn counted(count: u64) -> String {
    match count {
        1 => "1 code object".to_owned(),
        count => format!("{count} code objects"),
    }
}

fn bytes(size: u64) -> String {
    const KIB: u64 = 1 << 10;
    match size as f64 / KIB as f64 {
        kib if kib < KIB as f64 => format!("{kib:.2} KiB"),
        kib => format!("{:.2} MiB", kib / KIB as f64),
    }
}

/// The share of `part` in percent.
fn share(part: u64, whole: u64) -> u64 {
    part.saturating_mul(100).checked_div(whole).unwrap_or(0)
}

/// What to say about `stored` bytes in archives in `path`, `debug` of which are of debug sections, if that is
/// worth a note.
pub fn debug_advice(path: &Path, debug: u64, stored: u64) -> Option<Finding> {
    let share = share(debug, stored);
    let text = format!(
        "debug information is about {share}% of the stored device code; --strip-debug leaves it out"
    );
    let finding = Finding::new(Severity::Note, ids::DEBUG_INFORMATION, path, text);
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
        let Storage {
            scheme,
            level,
            debug,
            ..
        } = self.storage;
        let content = Content::Held(code_object);
        let (content, treated) = treat(content, debug, path, self.scratch)?;
        self.totals.count(&treated);
        let failed = |error| Error::archive(path, "merge", error);
        let mut encoder = Encoder::new(*scheme, *level).map_err(failed)?;
        let stored = content.encode(&mut encoder, None, self.scratch);
        let stored = stored.map_err(|failure| match failure {
            Failure::Archive(error) => failed(error),
            Failure::Scratch(error) => error,
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
    /// Its size without them.
    after: u64,
    /// Whether it got no debug file because it has no build ID.
    is_nameless: bool,
}

/// Removes the debug sections of a code object of the file at `path`, if that is asked for.
pub(super) fn treat(
    content: Content,
    debug: &DebugInfo,
    path: &Path,
    scratch: &Path,
) -> Result<(Content, Treated), Error> {
    let size = content.size();
    let mut treated = Treated {
        before: size,
        after: size,
        is_nameless: false,
    };
    if *debug == DebugInfo::Keep {
        return Ok((content, treated));
    }
    let Some(stripped) = content.without_debug(path, scratch)? else {
        return Ok((content, treated));
    };
    treated.after = stripped.size();
    if let DebugInfo::StripTo(directory) = debug {
        match content.read_with(|mut source| build_id(&mut source, size)) {
            Ok(Some(id)) => write(&content, directory, &id)?,
            Ok(None) => treated.is_nameless = true,
            Err(error) => return Err(failed(path, error)),
        }
    }
    Ok((stripped, treated))
}

/// Adds the path to an error.
pub(super) fn failed(path: &Path, error: CodeObjectError) -> Error {
    match error {
        CodeObjectError::Io(error) => Error::io(path, "read", error),
        CodeObjectError::Unsupported(_) => {
            let reason = format!("{error}; run without --strip-debug");
            Error::rejected(ids::DEBUG_NOT_REMOVABLE, path, reason)
        }
        error => Error::rejected(ids::DAMAGED_CODE_OBJECT, path, error.to_string()),
    }
}

/// Writes the complete code object as `.build-id/xx/yy….debug`.
fn write(content: &Content, directory: &Path, id: &[u8]) -> Result<(), Error> {
    let hex = |bytes: &[u8]| {
        let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
        digits.collect::<String>()
    };
    let (first, rest) = id.split_at(1);
    let directory = directory.join(".build-id").join(hex(first));
    make_directories(&directory)?;
    let path = directory.join(format!("{}.debug", hex(rest)));
    let name = path.file_name().unwrap_or_default();
    let directory = Arc::new(Directory::open(&directory)?);
    let staged = StagedFile::create(directory, name)?;
    let written = content.write_to(&mut staged.file());
    written.map_err(|error| Error::io(&path, "write", error))?;
    staged.sync()?;
    staged.commit().map(drop)
}
