//! `kpack extract`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use kpack_format::TargetId;

use super::output;
use crate::Error;
use crate::inspect;
use crate::store::StagedFile;

/// Extract a code object from an archive
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  kpack extract lib/.kpack/vec_lib_gfx1100.kpack --kernel lib/libvec.so#0 --arch gfx1100 -o vec.hsaco")]
pub(super) struct Arguments {
    /// Archive
    #[arg(value_name = "FILE.kpack")]
    file: PathBuf,
    /// Kernel, as `kpack list` names it
    #[arg(long, value_name = "NAME")]
    kernel: String,
    /// GPU target
    #[arg(long, value_name = "TARGET")]
    arch: TargetId,
    /// File to write; `-` is standard output
    #[arg(long, short, value_name = "OUT")]
    output: PathBuf,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let code_object = inspect::extract(&arguments.file, &arguments.kernel, &arguments.arch)?;
    let path = &arguments.output;
    if path.as_os_str() == "-" {
        let mut out = std::io::stdout().lock();
        out.write_all(&code_object)
            .and_then(|()| out.flush())
            .map_err(|e| Error::io(Path::new(output::STDOUT), "write to", e))?;
        return Ok(ExitCode::SUCCESS);
    }
    if path.exists() && !path.is_file() {
        // A device such as /dev/null; it cannot be replaced.
        std::fs::write(path, &code_object).map_err(|e| Error::io(path, "write", e))?;
        return Ok(ExitCode::SUCCESS);
    }
    let (staged, ()) = StagedFile::write(path, |staged| {
        staged
            .file()
            .write_all(&code_object)
            .map_err(|e| Error::io(path, "write", e))
    })?;
    staged.commit()?;
    Ok(ExitCode::SUCCESS)
}
