//! Stages releases of Rust programs with HIP kernels: a relocatable directory of programs,
//! libraries and archives, ready to pack and install.
//!
//! During development, device code stays where Cargo built it: in an archive in the `OUT_DIR` of
//! each package with kernels, to which the program's markers refer. Staging copies the code objects
//! that the programs use into one archive per module and GPU target, and changes the markers to
//! relative paths.

mod app;
mod build_paths;
mod libraries;
mod messages;
mod options;
mod output_dir;
mod places;
mod release;

use std::io::BufRead;
use std::path::Path;

use crate::module_name::default_module;
use kpack_core::Error;
use kpack_core::report::Report;
use output_dir::OutputDir;
use places::BuildDirectories;
use release::Release;

pub use app::{Also, AppOptions, Application, Machine, Part, StagedEntry, stage_application};
pub use options::Options;
pub(crate) use output_dir::{HOST, has_parts};

/// What to do about debug information in device code that staging splits or collects: there is no original to split again.
const STRIP: &str = "to remove it, stage with --strip-debug";

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
    libraries::warn_of_native_targets(&libraries, &mut report)?;
    BuildDirectories::of_build(&built, &libraries)?.check(options, &output, &mut report)?;
    debug_files.publish()?;
    output.commit()?;
    Ok(report)
}

/// The module of a binary that is split while it is staged. It has the device code of all packages in it, so its own name is
/// that of the module. Windows does not tell archives apart whose names differ only in case.
fn module_of(binary: &Path) -> String {
    default_module(binary).to_lowercase()
}
