//! Stages releases of Rust programs with HIP kernels: a relocatable directory of programs,
//! libraries and archives, ready to pack and install.
//!
//! During development, device code stays where Cargo built it: in an archive in the `OUT_DIR` of
//! each package with kernels, to which the program's markers refer. Staging copies the code objects
//! that the programs use into one archive per module and GPU target, and changes the markers to
//! relative paths.

mod build_paths;
mod libraries;
mod messages;
mod output_dir;
mod places;
mod release;

use std::io::BufRead;
use std::path::PathBuf;

use clap::Args;

use kpack_core::report::Report;
use kpack_core::{DebugInfo, Error, Spirv};
use output_dir::OutputDir;
use places::BuildDirectories;
use release::Release;

/// What to stage, and how: the arguments of `kpack stage`.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct Options {
    /// Directory to create. One that was staged before is replaced, unless something was added to it
    #[arg(long, value_name = "DIR")]
    pub output_dir: PathBuf,
    /// Only warn about files that contain paths of this machine
    // Markers never do.
    #[arg(long)]
    pub allow_build_paths: bool,
    /// What to do with debug sections.
    #[arg(skip)]
    pub debug: DebugInfo,
    /// What to do with kernels of Windows binaries that have SPIR-V. For others, the build script decides.
    #[arg(skip)]
    pub spirv: Spirv,
}

impl Options {
    /// Options for an output directory, without paths of the build machine.
    pub fn new(output_dir: impl Into<PathBuf>) -> Self {
        Self {
            output_dir: output_dir.into(),
            allow_build_paths: false,
            debug: DebugInfo::default(),
            spirv: Spirv::default(),
        }
    }
}

/// Stages the results of a build. `messages` is the output of `cargo build
/// --message-format=json-render-diagnostics`. Executables and DLLs go into `bin/`, other
/// libraries into `lib/`, archives into `lib/.kpack/`. With plain `json`, the messages include the compiler's
/// diagnostics; each is passed to `diagnostics`.
///
/// # Errors
/// [`Error::Refused`] for messages of a failed build, two packages with the same module, missing
/// archives, files with paths of the build machine, and an output directory with files that were
/// not staged; [`Error::Io`]. The output directory is unchanged then.
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
    let mut release = Release::begin(&output, options);
    for binary in built.binaries.iter().chain(&shared) {
        release.add(binary)?;
    }
    let (mut report, debug_files) = release.finish()?;
    BuildDirectories::of_build(&built, &libraries)?.check(options, &output, &mut report)?;
    debug_files.publish()?;
    output.commit()?;
    Ok(report)
}
