//! `kpack object`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::progress::{Bar, DEVICE_CODE};
use super::split::report_done;
use super::storage::StorageArguments;
use kpack_build::object_file::{self, Options};
use kpack_core::Error;

/// Split objects and static libraries before they are linked
///
/// Writes each FILE without its device code, under its own name, into the output directory. The device code goes into
/// archives in .kpack in that directory, one for each GPU target. A binary that you link from these objects is a host
/// binary with markers, so the linker never sees device code. Files without device code are copied, so the directory
/// contains everything to link.
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Examples:
  Split two objects, and link them:
    kpack object --module vec --output-dir host add.o multiply.o
    c++ -shared -o host/libvec.so host/add.o host/multiply.o -lamdhip64
  Split a static library, and keep the archives in another place:
    kpack object --module vec --output-dir host libvec.a \\
        --search-path /opt/vec/lib/.kpack/vec_lib_@GFXARCH@.kpack

", exit_codes!()))]
pub(super) struct Arguments {
    /// Module that the objects belong to, the first part of the archives' names
    #[arg(long, value_name = "NAME")]
    module: String,
    /// Component of the module, the second part of the archives' names
    #[arg(long, value_name = "NAME", default_value = "lib")]
    component: String,
    /// Directory for the host-only objects; archives go into .kpack in it
    #[arg(long, value_name = "DIR")]
    output_dir: PathBuf,
    /// Where a linked binary looks for archives: absolute, or relative to its directory; @GFXARCH@ stands for the GPU
    /// target. Can be repeated. Default: .kpack/ next to the binary, then ../lib/.kpack/
    #[arg(long, value_name = "PATTERN")]
    search_path: Vec<String>,
    #[command(flatten)]
    storage: StorageArguments,
    /// Objects (.o) and static libraries (.a)
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let mut options = Options::new(&arguments.module, &arguments.output_dir, &arguments.files);
    options.component.clone_from(&arguments.component);
    options.search_paths.clone_from(&arguments.search_path);
    options.storage = arguments.storage.storage();
    let bar = Bar::new(DEVICE_CODE);
    let report = object_file::split(&options, &bar)?;
    bar.finish();
    report_done(&report)
}
