//! `kpack extract`.

use std::collections::BTreeSet;
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use kpack_core::interrupt::Watched;
use kpack_format::TargetId;
use kpack_format::names::KernelName;

use super::output::{self, Text};
use crate::inspect::{CodeObjects, SelectedCode};
use kpack_core::Error;
use kpack_core::publish::{
    CreatedDirectories, Directory, StagedFile, check_named_output, check_room, scratch_file,
    write_output,
};

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
    #[arg(long, visible_alias = "gfx-arch", value_name = "TARGET", value_parser = TargetId::named)]
    pub(super) arch: Option<TargetId>,
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
    /// Write nothing if the code objects have more bytes than this together; one that kernels share counts
    /// once
    #[arg(long, value_name = "N")]
    max_bytes: Option<u64>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let mut found = CodeObjects::find(
        &arguments.file,
        arguments.kernel.as_deref(),
        arguments.arch.as_ref(),
    )?;
    if arguments.output_dir.is_none() {
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
    }
    let size = found.size();
    if let Some(most) = arguments.max_bytes.filter(|most| *most < size) {
        let reason = format!(
            "the selected code objects have {size} bytes (expected at most {most}, as --max-bytes says)"
        );
        return Err(Error::refused(&arguments.file, reason));
    }
    let room = |directory: &Path| check_room(&arguments.file, "extract", directory, size);
    match (&arguments.output_dir, &arguments.output) {
        (Some(directory), _) => write_all(found, directory, &room)?,
        (None, Some(output)) if output.as_os_str() != "-" => {
            check_named_output(output)?;
            room(output.parent().unwrap_or(Path::new("")))?;
            found.read(&std::env::temp_dir(), &mut |_, code_object| {
                write_one(output, code_object)
            })?;
        }
        (None, _) => {
            let scratch = std::env::temp_dir();
            room(&scratch)?;
            found.read(&scratch, &mut |_, code_object| print(&scratch, code_object))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn write_all(
    found: CodeObjects,
    directory: &Path,
    room: &dyn Fn(&Path) -> Result<(), Error>,
) -> Result<(), Error> {
    let path_of = |kernel: &str, target: &TargetId| directory.join(file_name(kernel, target));
    let mut names = BTreeSet::new();
    for (kernel, target) in found.selected() {
        let path = path_of(kernel, target);
        if !names.insert(path.clone()) {
            let reason = "it would hold two code objects; select fewer with --kernel";
            return Err(Error::refused(&path, reason));
        }
    }
    let mut made = CreatedDirectories::default();
    let opened = Arc::new(Directory::make(directory, &mut made)?);
    names.iter().try_for_each(|path| check_named_output(path))?;
    room(directory)?;
    let mut text = Text::default();
    for (kernel, target) in found.selected() {
        let path = path_of(kernel, target);
        text.line(format_args!("{}: {kernel}, {target}", path.display()));
    }
    found.read(directory, &mut |names, code_object| {
        let mut paths = names.iter().map(|(kernel, target)| path_of(kernel, target));
        let Some(first) = paths.next() else {
            return Ok(());
        };
        write_one(&first, code_object)?;
        paths.try_for_each(|path| link(&opened, &first, &path))
    })?;
    made.keep();
    text.write()
}

/// `lib_libvec.so-0-gfx1100.hsaco`.
fn file_name(kernel: &str, target: &TargetId) -> String {
    let name = kernel.replace('/', "_");
    let KernelName { binary, index } = KernelName::parse(&name);
    format!("{binary}-{}-{target}.hsaco", index.unwrap_or(0))
}

fn write_one(path: &Path, code_object: SelectedCode<'_>) -> Result<(), Error> {
    write_output(path, |staged| {
        let failed = |e| Error::io(path, "write", e);
        code_object.write_to(&mut Watched(staged.file()), &failed)
    })
}

/// Gives the file at `first` a second name, in the same directory; copies it if the file system has no links.
fn link(directory: &Arc<Directory>, first: &Path, path: &Path) -> Result<(), Error> {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_owned();
    let Some(mut file) = directory.open_file(&name(first))? else {
        return Err(Error::changed(first));
    };
    if let Some(linked) = StagedFile::adopt(directory, &name(path), &file)? {
        return linked.commit().map(drop);
    }
    write_output(path, |staged| {
        let copied = io::copy(&mut file, &mut Watched(staged.file()));
        copied.map(drop).map_err(|e| Error::io(path, "write", e))
    })
}

/// Writes a code object to standard output, once it is verified.
fn print(scratch: &Path, code_object: SelectedCode<'_>) -> Result<(), Error> {
    let failed = |e| Error::io(scratch, "write a scratch file in", e);
    let mut file = scratch_file(scratch)?;
    code_object.write_to(&mut Watched(&file), &failed)?;
    file.rewind().map_err(failed)?;
    let mut out = io::stdout().lock();
    let copied = io::copy(&mut file, &mut out).and_then(|_| out.flush());
    copied.map_err(|e| Error::io(Path::new(output::STDOUT), "write to", e))
}
