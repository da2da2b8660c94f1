//! `kpack launch`.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::signals;
use super::storage::CompressionArguments;
use clap::Args;
use kpack_build::internal::launch_watched;
use kpack_build::object_file::Options;
use kpack_core::Error;

/// Run a compiler, and split the object that it writes
///
/// A compiler launcher for CMake and other build systems; other launchers, such as ccache, go after it. kpack
/// replaces the object with one without device code, and moves the device code into archives in the directory
/// OBJECT.kpack. A program that is linked from such objects runs where it is built, and `kpack split` moves its
/// device code into the prefix. Objects without device code, precompiled headers and assembly do not change. If the
/// compiler fails, its earlier output stays.
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Examples:
  kpack launch --module vec -- clang++ -x hip --offload-arch=gfx1100 -c add.hip -o add.o
  kpack launch --module vec -- ccache hipcc -c add.hip -o add.o

", exit_codes!(
    "  the compiler's own, if it fails; otherwise\n",
    "",
    "the object was rejected, or the compiler cannot be run"
)))]
pub(super) struct Arguments {
    /// Module that the object belongs to
    #[arg(long, value_name = "NAME")]
    module: String,
    /// Component of the module
    #[arg(long, value_name = "NAME", default_value = "lib")]
    component: String,
    #[command(flatten)]
    compression: CompressionArguments,
    /// Compiler and its arguments
    #[arg(value_name = "COMMAND", required = true, last = true)]
    command: Vec<OsString>,
}

/// No process has this ID.
const NONE: u32 = 0;

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let mut options = Options::new(&arguments.module, "", Vec::<OsString>::new());
    options.component.clone_from(&arguments.component);
    options.storage = arguments.compression.storage();
    // The build runs as many compilers as there are processors.
    options.storage.jobs = NonZeroUsize::MIN;
    let compiler = Arc::new(AtomicU32::new(NONE));
    signals::pass_on(compiler.clone())
        .map_err(|e| Error::Compiler(format!("cannot watch signals: {e}")))?;
    let status = launch_watched(&options, &arguments.command, &|running| {
        let running = running.unwrap_or(NONE);
        compiler.store(running, Ordering::SeqCst);
        // A signal that came before that has found no compiler.
        signals::end_if_asked(running);
    })?;
    let code = signals::exit_code(status);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}
