//! A release of Rust programs with HIP kernels: programs, libraries and archives in a directory that
//! can be moved, packed and installed.
//!
//! While a program is developed, its device code is where Cargo built it: an archive in the `OUT_DIR`
//! of each package with kernels, to which the markers in the program lead. Staging copies what the
//! program really has of them, of all packages that are linked into it, into one archive for each
//! module and GPU target, and changes the markers to relative paths.

mod build_paths;
mod libraries;
mod messages;
mod output_dir;
mod places;
mod release;

use std::io::BufRead;
use std::path::PathBuf;

use crate::Error;
use crate::report::Report;
use output_dir::OutputDir;
use places::Places;
use release::Release;

/// What to stage, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// The directory to make. One that an earlier run made is replaced, as long as it has nothing
    /// that was not staged; an empty one is filled.
    pub output_dir: PathBuf,
    /// Whether files may have paths of the machine that they were built on. Markers never do.
    pub allow_build_paths: bool,
}

impl Options {
    /// For an output directory, in which no file may have a path of the build machine.
    pub fn new(output_dir: impl Into<PathBuf>) -> Self {
        Self {
            output_dir: output_dir.into(),
            allow_build_paths: false,
        }
    }
}

/// Stages what a build made, of which Cargo told in `messages`: what `cargo build
/// --message-format=json-render-diagnostics` printed. Executables go into `bin/`, libraries into
/// `lib/`, archives into `lib/.kpack/`. With plain `json` the messages have what the compiler said;
/// each is given to `diagnostics`.
///
/// # Errors
/// [`Error::Refused`] for messages of a build that failed, for two packages with one module, for
/// archives that are gone, for files with paths of the build machine, and for an output directory
/// with anything that was not staged; [`Error::Io`]. The output directory is as it was then.
pub fn stage(
    options: &Options,
    messages: impl BufRead,
    diagnostics: &mut dyn FnMut(&str),
) -> Result<Report, Error> {
    let built = messages::read(messages, diagnostics)?;
    let libraries = libraries::of_build(&built);
    libraries::modules_are_unique(&libraries)?;
    let shared = libraries::shared(&libraries)?;
    let output = OutputDir::begin(&options.output_dir)?;
    let mut release = Release::begin(&output);
    for binary in built.binaries.iter().chain(&shared) {
        release.add(binary)?;
    }
    let mut report = release.finish()?;
    Places::of_build(&built, &libraries)?.check(options, &output, &mut report)?;
    output.commit()?;
    Ok(report)
}
