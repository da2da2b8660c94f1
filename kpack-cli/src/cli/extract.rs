//! `kpack extract`.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use kpack_core::archives::Content;
use kpack_format::TargetId;
use kpack_format::names::KernelName;

use super::output::{self, Text};
use crate::inspect::CodeObjects;
use kpack_core::Error;
use kpack_core::publish::{StagedFile, make_directories};

/// Extract code objects from a binary, object, static library, archive or offload bundle
#[derive(Debug, Args)]
#[command(
    visible_alias = "unbundle",
    after_help = "\
Examples:
  Extract one code object:
    kpack extract lib/.kpack/vec_lib_gfx1100.kpack --kernel lib/libvec.so#0 --arch gfx1100 -o vec.hsaco
  Extract all code objects for one GPU:
    kpack unbundle lib/librccl.so --gfx-arch gfx1250 --output-dir unbundled"
)]
pub(super) struct Arguments {
    /// Binary, object, static library, archive, offload bundle or code object
    file: PathBuf,
    /// Kernel, as `kpack list` names it. In files other than archives: the file name and the index of the
    /// wrapper (libvec.so#0)
    #[arg(long, value_name = "NAME")]
    kernel: Option<String>,
    /// GPU target. gfx90a stands for gfx90a:xnack+ and gfx90a:xnack- too; gfx90a:xnack+ takes plain gfx90a
    /// along
    #[arg(long, visible_alias = "gfx-arch", value_name = "TARGET")]
    arch: Option<TargetId>,
    /// File to write, if only one code object is selected; `-` is standard output
    #[arg(
        long,
        short,
        value_name = "OUT",
        required_unless_present = "output_dir"
    )]
    output: Option<PathBuf>,
    /// Directory for the selected code objects, one file each
    #[arg(long, value_name = "DIR", conflicts_with = "output")]
    output_dir: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let mut found = CodeObjects::find(
        &arguments.file,
        arguments.kernel.as_deref(),
        arguments.arch.as_ref(),
    )?;
    match (&arguments.output_dir, &arguments.output) {
        (Some(directory), _) => write_all(found, directory)?,
        (None, output) => {
            if let Some(target) = &arguments.arch {
                found.prefer(target);
            }
            if let [_, _, ..] = found.selected() {
                let count = found.selected().len();
                let reason = format!(
                    "{count} code objects are selected; name one with --kernel and --arch, or write all \
                     of them with --output-dir"
                );
                return Err(Error::refused(&arguments.file, reason));
            }
            let output = output.clone().unwrap_or_default();
            found.read(&std::env::temp_dir(), &mut |_, _, code_object| {
                write_one(&output, code_object)
            })?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn write_all(found: CodeObjects, directory: &Path) -> Result<(), Error> {
    let mut names = BTreeSet::new();
    for (kernel, target) in found.selected() {
        let path = directory.join(file_name(kernel, target));
        if !names.insert(path.clone()) {
            let reason = "it would hold two code objects; select fewer with --kernel";
            return Err(Error::refused(&path, reason));
        }
    }
    make_directories(directory)?;
    let mut text = Text::default();
    found.read(directory, &mut |kernel, target, code_object| {
        let path = directory.join(file_name(kernel, target));
        text.line(format_args!("{}: {kernel}, {target}", path.display()));
        write_one(&path, code_object)
    })?;
    text.write()
}

/// `lib_libvec.so-0-gfx1100.hsaco`.
fn file_name(kernel: &str, target: &TargetId) -> String {
    let name = kernel.replace('/', "_");
    let KernelName { binary, index } = KernelName::parse(&name);
    format!("{binary}-{}-{target}.hsaco", index.unwrap_or(0))
}

fn write_one(path: &Path, code_object: &Content) -> Result<(), Error> {
    if path.as_os_str() == "-" {
        let mut out = std::io::stdout().lock();
        return code_object
            .write_to(&mut out)
            .and_then(|()| out.flush())
            .map_err(|e| Error::io(Path::new(output::STDOUT), "write to", e));
    }
    let failed = |e| Error::io(path, "write", e);
    if path.exists() && !path.is_file() {
        // A device such as /dev/null; it cannot be replaced.
        let device = std::fs::File::create(path);
        return device
            .and_then(|mut device| code_object.write_to(&mut device))
            .map_err(failed);
    }
    let (staged, ()) = StagedFile::write(path, |staged| {
        code_object.write_to(&mut staged.file()).map_err(failed)
    })?;
    staged.commit().map(drop)
}
