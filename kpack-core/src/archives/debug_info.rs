//! Debug information in code objects: whether it stays, and where else it goes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kpack_format::archive::Encoder;
use kpack_format::code_object::CodeObjectError;
use kpack_format::debug_sections::build_id;

use super::content::Content;
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
        let mib = |size: u64| format!("{:.2} MiB", size as f64 / f64::from(1 << 20));
        let share = share(debug_size, size);
        let text = match debug {
            DebugInfo::Keep => {
                let [stored, debug] = &self.sampled;
                let [stored, debug] = [stored, debug].map(|n| n.load(Ordering::Relaxed));
                findings.extend(debug_advice(path, debug, stored));
                return findings;
            }
            DebugInfo::Strip | DebugInfo::StripTo(_) => format!(
                "removed the debug information of {count} code objects: {} of {} ({share}%)",
                mib(debug_size),
                mib(size)
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
                "has no debug files of {nameless} of {count} code objects: they have no build ID"
            );
            let finding = Finding::new(Severity::Warning, ids::NO_BUILD_ID, directory, text);
            let help = "link device code with a build ID (-Xoffload-linker --build-id)";
            findings.push(finding.with_help(help));
        }
        findings
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
    let text = format!("debug information is about {share}% of the stored device code");
    let finding = Finding::new(Severity::Note, ids::DEBUG_INFORMATION, path, text);
    let help = "leave it out with --strip-debug, or move it with --strip-debug=DIR";
    (share >= WORTH_A_NOTE).then(|| finding.with_help(help))
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
