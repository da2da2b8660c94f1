//! Puts chosen targets' device code back into split binaries, for HIP runtimes that do not read
//! markers.
//!
//! All binaries are read and planned before the first one changes. Each is then written under a hidden
//! name, read back, and renamed. The archives stay as they are.

mod binary;
mod code;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;

use crate::Error;
use crate::elf::DeviceCode;
use crate::input::Linked;
use crate::install::locate::{Located, Prefix};
use crate::parallel::{self, processors};
use crate::report::{FileReport, Outcome, Progress, Report};
use binary::{Binary, Input};
use code::Code;

/// What to join, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// The install prefix.
    pub prefix: PathBuf,
    /// The module whose binaries to join; `None` for any.
    pub module: Option<String>,
    /// The targets to put back. One without features stands for all of its variants.
    pub architectures: Vec<TargetId>,
    /// The binaries, relative to the prefix; if empty, all split binaries in it.
    pub files: Vec<PathBuf>,
    /// Where to write the joined binary; `None` to replace the split one.
    pub output: Option<PathBuf>,
    /// The unsplit original to compare the result with.
    pub against: Option<PathBuf>,
    /// Number of decompressing threads.
    pub jobs: NonZeroUsize,
}

impl Options {
    /// Options with defaults for everything else: any module, in place, one thread per processor.
    pub fn new(
        prefix: impl Into<PathBuf>,
        architectures: impl IntoIterator<Item = TargetId>,
        files: impl IntoIterator<Item = impl Into<PathBuf>>,
    ) -> Self {
        Self {
            prefix: prefix.into(),
            module: None,
            architectures: architectures.into_iter().collect(),
            files: files.into_iter().map(Into::into).collect(),
            output: None,
            against: None,
            jobs: processors(),
        }
    }

    fn validate(&self) -> Result<(), Error> {
        if self.architectures.is_empty() {
            return Err(Error::usage("no GPU target is named"));
        }
        let of_one = [("--output", &self.output), ("--against", &self.against)];
        let mut given = of_one.iter().filter(|(_, file)| file.is_some());
        match given.next() {
            Some((option, _)) if self.files.len() != 1 => {
                Err(Error::usage(format!("{option} needs exactly one binary")))
            }
            _ => Ok(()),
        }
    }
}

/// Puts device code back into split binaries of an install prefix.
///
/// ```no_run
/// use kpack_split::join::{Options, join};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let options = Options::new("/opt/rocm", ["gfx1030".parse()?], ["lib/librocsparse.so.1"]);
/// join(&options, &())?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`Error::Usage`] for invalid options; [`Error::Refused`] for a binary that is damaged, or whose
/// archives are missing, damaged or of another build, and if no binary has code for the targets;
/// [`Error::Io`]. A binary that was not joined is as it was before.
pub fn join(options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
    options.validate()?;
    parallel::with_jobs(options.jobs, || join_all(options, progress))
}

fn join_all(options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
    let prefix = Prefix::new(&options.prefix)?;
    let mut report = Report::default();
    let mut planned = Vec::new();
    let mut without = Vec::new();
    for located in binaries(&prefix, options)? {
        let path = located.path.clone();
        let binary = match Binary::read(located)? {
            Input::Binary(binary) => binary,
            Input::LeftAlone { name, reason } => {
                if !options.files.is_empty() {
                    left_alone(path, name, reason, &mut report);
                }
                continue;
            }
        };
        if let Some(module) = &options.module
            && !binary.is_of(module)
        {
            if options.files.is_empty() {
                continue;
            }
            let text = format!(
                "its marker refers to `{}`, not to module `{module}`",
                binary.marker.kpack_search_paths.join("`, `")
            );
            return Err(Error::refused(&path, text));
        }
        let code = Code::choose(&binary, &options.architectures)?;
        match code.lacking(&options.architectures) {
            lacking if lacking.is_empty() => {}
            lacking => {
                let there = code.known();
                let text = format!("has no device code for {lacking}, only for {there}");
                report.warn(&path, text);
            }
        }
        match code.targets().is_empty() {
            true => without.push((binary, code)),
            false => planned.push((binary, code)),
        }
    }
    if let (true, Some((first, code))) = (planned.is_empty(), without.first()) {
        let text = format!(
            "it has no device code for {}; there is device code for {}",
            code.lacking(&options.architectures),
            code.known()
        );
        return Err(Error::refused(&first.located.path, text));
    }
    if planned.is_empty() && report.files.is_empty() {
        let text = match &options.module {
            Some(module) => format!("no split binary of module `{module}` is in it"),
            None => "no split binary is in it".to_owned(),
        };
        return Err(Error::refused(&options.prefix, text));
    }
    for (binary, _) in without {
        let name = binary.located.name;
        let reason = "no device code for the chosen targets".to_owned();
        let outcome = Outcome::LeftAlone { reason };
        report.files.push(FileReport {
            path: name,
            outcome,
        });
    }
    // What does not fit is refused before anything changes.
    let plans = planned.iter().map(|(binary, code)| binary.plan(code));
    let plans = plans.collect::<Result<Vec<_>, Error>>()?;
    progress.start(planned.iter().map(|(_, code)| code.size()).sum());
    for ((binary, code), plan) in planned.into_iter().zip(plans) {
        progress.file(&binary.located.path);
        let outcome = binary.write(&code, &plan, options, progress, &mut report)?;
        let path = binary.located.name;
        report.files.push(FileReport { path, outcome });
    }
    Ok(report)
}

fn left_alone(path: PathBuf, name: String, reason: String, report: &mut Report) {
    report.note(path, format!("stays unchanged: {reason}"));
    let outcome = Outcome::LeftAlone { reason };
    report.files.push(FileReport {
        path: name,
        outcome,
    });
}

/// The binaries that are named, or every linked file in the prefix.
fn binaries(prefix: &Prefix, options: &Options) -> Result<Vec<Located>, Error> {
    let mut found: Vec<Located> = Vec::new();
    if !options.files.is_empty() {
        for file in &options.files {
            let located = prefix.binary(file)?;
            if !found.contains(&located) {
                found.push(located);
            }
        }
        return Ok(found);
    }
    for path in prefix.linked_files()? {
        if has_marker(&path)? {
            found.push(prefix.binary(&path)?);
        }
    }
    Ok(found)
}

/// Whether the file is a binary with a marker. Most files have nothing to do with device code, and those
/// that kpack does not read are not split.
fn has_marker(path: &Path) -> Result<bool, Error> {
    match Linked::open(path).map(|linked| linked.code) {
        Ok(DeviceCode::Split(_)) => Ok(true),
        Ok(DeviceCode::Fat(fat)) => Ok(fat.joined.is_some()),
        Ok(DeviceCode::None(_)) | Err(Error::Refused { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
