//! `kpack extract`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use kpack_core::files::directory_of;
use kpack_core::interrupt::Watched;
use kpack_core::platform::{is_file_name, name_key};
use kpack_core::words::list_some;
use kpack_format::TargetId;
use kpack_format::names::{FileNames, KernelName};
use kpack_format::unstable::spelling;
use serde::Serialize;

use super::output::{self, Text};
use super::print::print;
use crate::inspect::{SelectedCode, SelectedCodeObjects};
use kpack_core::publish::{
    CreatedDirectories, Directory, NewNames, Stage, StagedFile, check_named_output, check_room,
    scratch_file,
};
use kpack_core::{Error, ids};

/// Extract code objects from a binary, object, static library, archive or offload bundle
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  Extract one code object:
    kpack extract lib/.kpack/vec_lib_gfx1100.kpack --kernel lib/libvec.so#0 --arch gfx1100 -o vec.hsaco
  Extract all code objects for one GPU:
    kpack extract lib/librccl.so --arch gfx1250 --output-dir code")]
pub(super) struct Arguments {
    /// Binary, object, static library, archive, offload bundle or code object
    file: PathBuf,
    /// Kernel, as `kpack list` names it. In files other than archives: the file name and the index of the
    /// wrapper (libvec.so#0)
    #[arg(long, value_name = "NAME")]
    kernel: Option<String>,
    /// GPU target. gfx90a also selects gfx90a:xnack+ and gfx90a:xnack-; gfx90a:xnack+ also selects plain gfx90a.
    /// Generic code for the processor is always selected
    #[arg(long, value_name = "TARGET", value_parser = spelling::read_target)]
    pub(super) arch: Option<TargetId>,
    /// File to write, if only one code object is selected; `-` is standard output
    #[arg(long, short, value_name = "OUT", required_unless_present = "output_dir")]
    output: Option<PathBuf>,
    /// Directory for the selected code objects, one file each
    #[arg(long, value_name = "DIR", conflicts_with = "output")]
    output_dir: Option<PathBuf>,
    /// Write nothing if the code objects together are larger than this. One that several kernels share counts once
    #[arg(long, value_name = "N")]
    max_bytes: Option<u64>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let mut found = SelectedCodeObjects::find(
        &arguments.file,
        arguments.kernel.as_deref(),
        arguments.arch.as_ref(),
    )?;
    if arguments.output_dir.is_none() {
        if let Some(target) = &arguments.arch {
            found.prefer(target);
        }
        if let [_, _, ..] = found.selected() {
            let reason = format!(
                "{} code objects are selected{}; choose one with {}, or write all of them with --output-dir",
                found.selected().len(),
                named(found.selected()),
                choosing(found.selected())
            );
            return Err(Error::rejected(ids::SEVERAL_SELECTED, &arguments.file, reason));
        }
    }
    let size = found.size();
    if let Some(most) = arguments.max_bytes.filter(|most| *most < size) {
        let reason = format!(
            "the selected code objects have {size} bytes (expected at most {most}, as --max-bytes says)"
        );
        return Err(Error::rejected(ids::SIZE_LIMIT, &arguments.file, reason));
    }
    let needed = size.saturating_add(found.scratch_size());
    let room = |directory: &Path| check_room(&arguments.file, "extract", directory, needed);
    match (&arguments.output_dir, &arguments.output) {
        (Some(directory), _) => write_all(&arguments.file, found, directory, &room)?,
        (None, Some(output)) if output.as_os_str() != "-" => {
            check_named_output(output)?;
            check_is_other(output, &arguments.file)?;
            let directory = directory_of(output);
            room(directory)?;
            let mut written = None;
            found.read(directory, &mut |_, code_object| {
                let staged = StagedFile::write(output, |staged| fill(staged, code_object))?;
                written = Some(staged.0);
                Ok(())
            })?;
            // By now, damage after the code object is also known.
            if let Some(staged) = written {
                staged.commit()?;
            }
        }
        (None, _) => {
            let scratch = std::env::temp_dir();
            room(&scratch)?;
            let mut file = scratch_file(&scratch)?;
            found.read(&scratch, &mut |_, code_object| {
                let failed = |e| Error::io(&scratch, "write a scratch file in", e);
                code_object.write_to(&mut Watched(&file), &failed)
            })?;
            write_out(&scratch, &mut file)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses to replace the file whose code is extracted.
fn check_is_other(output: &Path, input: &Path) -> Result<(), Error> {
    match (output.canonicalize(), input.canonicalize()) {
        (Ok(output_file), Ok(input_file)) if output_file == input_file => {
            let reason = "the code is extracted from this file; choose another name";
            Err(Error::rejected(ids::OUTPUT_IN_THE_WAY, output, reason))
        }
        _ => Ok(()),
    }
}

/// The targets of the code objects, in parentheses, if these differ in nothing else.
fn named(selected: &[(String, TargetId)]) -> String {
    let targets = BTreeSet::from_iter(selected.iter().map(|(_, target)| target.to_string()));
    let differ = targets.len() == selected.len();
    if differ { format!(" ({})", list_some(targets, 8)) } else { String::new() }
}

/// The options that choose one of several code objects.
fn choosing(selected: &[(String, TargetId)]) -> &'static str {
    let kernels = BTreeSet::from_iter(selected.iter().map(|(kernel, _)| kernel));
    let targets = BTreeSet::from_iter(selected.iter().map(|(_, target)| target));
    match (kernels.len(), targets.len()) {
        (1, _) => "--arch",
        (_, 1) => "--kernel",
        _ => "--kernel and --arch",
    }
}

fn write_all(
    archive: &Path,
    found: SelectedCodeObjects,
    directory: &Path,
    room: &dyn Fn(&Path) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut names = BTreeMap::new();
    for (kernel, target) in found.selected() {
        let name = file_name(kernel, target);
        if !is_file_name(name.as_ref()) {
            let reason = format!(
                "kernel `{kernel}`: no file can be named `{name}` on Windows; select it alone, and choose a file name with --output"
            );
            return Err(Error::rejected(ids::WINDOWS_NAME, archive, reason));
        }
        let path = directory.join(&name);
        if names.insert(name_key(&name).into_owned(), name).is_some() {
            let reason = "would hold two code objects; select fewer with --kernel";
            return Err(Error::rejected(ids::NAME_CLASH, &path, reason));
        }
    }
    let mut made = CreatedDirectories::default();
    let opened = Directory::make(directory, &mut made)?;
    let mut paths = names.values().map(|name| directory.join(name));
    paths.try_for_each(|path| check_named_output(&path))?;
    room(directory)?;
    let extracted = Vec::from_iter(found.selected().iter().map(|(kernel, target)| Extracted {
        path: directory.join(file_name(kernel, target)).display().to_string(),
        kernel: kernel.to_string(),
        target: target.to_string(),
    }));
    let stage = Stage::lock(directory, "kpack-extract")?;
    write_hidden(found, &opened, stage.directory())?;
    let files = Vec::from_iter(names.values());
    let may_replace = |name: &Path| check_named_output(&directory.join(name));
    stage.publish(&NewNames::new(&files).where_allowed(&may_replace))?;
    drop(stage);
    made.keep();
    report(&extracted)
}

/// A code object that was extracted into a file.
#[derive(Serialize)]
struct Extracted {
    path: String,
    kernel: String,
    target: String,
}

fn report(extracted: &[Extracted]) -> Result<(), Error> {
    if print().json {
        return output::json(&extracted);
    }
    let mut text = Text::default();
    for Extracted { path, kernel, target } in extracted.iter().filter(|_| !print().quiet) {
        text.line(format_args!("{path}: {kernel}, {target}"));
    }
    text.write()
}

/// Writes all code objects into the directory `hidden`, with the modes of the files of the same names in `output`.
fn write_hidden(
    found: SelectedCodeObjects,
    output: &Directory,
    hidden: &Directory,
) -> Result<(), Error> {
    let here = || hidden.below(Path::new(""));
    let opened = Arc::new(here()?);
    found.read(&hidden.anchor(), &mut |names, code_object| {
        let mut names = names.iter().map(|(kernel, target)| file_name(kernel, target));
        let Some(first) = names.next() else {
            return Ok(());
        };
        let (staged, ()) = StagedFile::write_in(here()?, first.as_ref(), |staged| {
            fill(staged, code_object)?;
            match output.open_file(first.as_ref())? {
                Some(there) => staged.keep_mode(&there),
                None => Ok(()),
            }
        })?;
        staged.commit()?;
        names.try_for_each(|name| link(&opened, &first, &name))
    })
}

/// `lib_libvec.so-0-gfx1100.hsaco`, or for a file that was stored by its name `add-gfx1100.co`.
fn file_name(kernel: &str, target: &TargetId) -> String {
    let target = FileNames::HERE.of(&target.to_string());
    let name = kernel.replace('/', "_");
    let KernelName { binary, index } = KernelName::parse(&name);
    match (index, name.rsplit_once('.')) {
        (Some(index), _) => format!("{binary}-{index}-{target}.hsaco"),
        (None, Some((stem, extension))) => format!("{stem}-{target}.{extension}"),
        (None, None) => format!("{name}-{target}"),
    }
}

fn fill(staged: &mut StagedFile, code_object: SelectedCode<'_>) -> Result<(), Error> {
    let failed = |e| Error::io(staged.path(), "write", e);
    code_object.write_to(&mut Watched(staged.file()), &failed)
}

/// Gives the file `first` a second name, in the same directory; copies it if the file system has no links.
fn link(directory: &Arc<Directory>, first: &str, name: &str) -> Result<(), Error> {
    let path = directory.path().join(name);
    let Some(mut file) = directory.open_file(first.as_ref())? else {
        return Err(Error::changed(&path));
    };
    if let Some(linked) = StagedFile::adopt(directory, name.as_ref(), &file)? {
        return linked.commit().map(drop);
    }
    let here = directory.below(Path::new(""))?;
    let (copy, ()) = StagedFile::write_in(here, name.as_ref(), |staged| {
        let copied = io::copy(&mut file, &mut Watched(staged.file()));
        copied.map(drop).map_err(|e| Error::io(&path, "write", e))
    })?;
    copy.commit().map(drop)
}

/// Writes a code object, which is complete in a scratch file, to standard output.
fn write_out(scratch: &Path, file: &mut File) -> Result<(), Error> {
    let failed = |e| Error::io(scratch, "read a scratch file in", e);
    file.rewind().map_err(failed)?;
    let mut out = io::stdout().lock();
    let copied = io::copy(file, &mut out).and_then(|_| out.flush());
    copied.map_err(output::failed)
}
