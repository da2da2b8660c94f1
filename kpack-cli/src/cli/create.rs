//! `kpack create`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::num::NonZeroUsize;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use crate::create::{CreateOptions, Kernel, create};
use clap::Args;
use kpack_core::{Error, files, ids, shown};
use kpack_format::TargetId;
use kpack_format::unstable::spelling;
use serde::Deserialize;

use super::output::{self, Text, count, size};
use super::print::print;
use super::progress::{Bar, DEVICE_CODE};
use super::storage::Frames;

/// Create an archive of files, for programs that load their kernels themselves
///
/// Stores each FILE under its path: code objects (.co, .hsaco) or anything else. A program reads them by name
/// with `kpack_get_kernel`. The bytes of the archive depend only on names and contents.
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Examples:
  Store two code objects as add.hsaco and fast/add.hsaco:
    kpack create vec_kernels_gfx942.kpack --arch gfx942 --strip-prefix build \\
        build/add.hsaco build/fast/add.hsaco

", exit_codes!()))]
pub(super) struct Arguments {
    /// Archive to write. An existing file is replaced
    #[arg(value_name = "ARCHIVE.kpack")]
    archive: PathBuf,
    /// Target that the files are for
    #[arg(long, value_name = "TARGET", value_parser = spelling::read_target, required_unless_present = "from")]
    pub(super) arch: Option<TargetId>,
    /// Name of the group in the archive's index. Default: the file name without the target
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// Directory to remove from the start of names
    #[arg(long, value_name = "DIR")]
    strip_prefix: Option<PathBuf>,
    /// Read names, targets and metadata from this JSON file: {"group_name", "gfx_arch_family", "gfx_arches", "kernels":
    /// [{"name", "target", "file", "type", "metadata"}]}. Type and metadata may be left out. Files are relative to it
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["arch", "group", "strip_prefix", "files"])]
    from: Option<PathBuf>,
    #[command(flatten)]
    frames: Frames,
    /// Number of threads. Default: the number of processors
    #[arg(long, short, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Files to store
    #[arg(value_name = "FILE", required_unless_present = "from")]
    files: Vec<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let mut options = match (&arguments.from, &arguments.arch) {
        (Some(list), _) => listed(arguments, list)?,
        (None, Some(target)) => named(arguments, target)?,
        (None, None) => return Err(Error::usage("--arch or --from is missing".to_owned())),
    };
    options.storage = arguments.frames.storage();
    options.storage.jobs = arguments.jobs.unwrap_or(options.storage.jobs);
    let bar = Bar::new(DEVICE_CODE);
    let created = create(&options, &bar)?;
    bar.finish();
    if print().json {
        output::json(&created)?;
        return Ok(ExitCode::SUCCESS);
    }
    if print().quiet {
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = Text::default();
    text.line(format_args!(
        "{}: {} for {}, {} -> {}",
        shown(&created.archive),
        count(created.code_object_count as usize, "code object"),
        options.family,
        size(created.original_size),
        size(created.size),
    ));
    text.write()?;
    Ok(ExitCode::SUCCESS)
}

/// What the command line names.
fn named(arguments: &Arguments, target: &TargetId) -> Result<CreateOptions, Error> {
    let mut options = CreateOptions::new(&arguments.archive, target.clone());
    if let Some(group) = &arguments.group {
        options.group_name.clone_from(group);
    }
    for file in &arguments.files {
        let name = name(file, arguments.strip_prefix.as_deref())?;
        let kernel = Kernel::new(name, target.clone(), file);
        options.kernels.push(kernel);
    }
    Ok(options)
}

/// The name of a file in the archive.
fn name(file: &Path, prefix: Option<&Path>) -> Result<String, Error> {
    // Without `./`, which also comes first.
    let plain = |path: &Path| {
        let parts = path.components();
        PathBuf::from_iter(parts.filter(|part| *part != Component::CurDir))
    };
    let whole = plain(file);
    let prefix = plain(prefix.unwrap_or(Path::new("")));
    let rest = whole.strip_prefix(&prefix).map_err(|_| {
        let (file, prefix) = (shown(file), shown(&prefix));
        Error::usage(format!("{file} does not begin with {prefix}, which --strip-prefix names"))
    })?;
    if rest.as_os_str().is_empty() {
        return Err(Error::usage(format!(
            "{}: nothing is left of the name after --strip-prefix",
            shown(file)
        )));
    }
    if rest.is_absolute() {
        return Err(Error::usage(format!(
            "{}: an absolute path; use --strip-prefix DIR to shorten it",
            shown(file)
        )));
    }
    if rest.components().any(|part| part == Component::ParentDir) {
        return Err(Error::usage(format!(
            "{}: names have no `..`; use --strip-prefix DIR",
            shown(file)
        )));
    }
    let name = rest.to_str().map(str::to_owned);
    name.ok_or_else(|| {
        let reason = "the name is not UTF-8, and a kernel's name is";
        Error::rejected(ids::UNREPRESENTABLE_PATH, file, reason)
    })
}

/// The form of `--from`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KernelList {
    group_name: String,
    gfx_arch_family: String,
    gfx_arches: Vec<String>,
    kernels: Vec<ListedKernel>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListedKernel {
    name: String,
    target: String,
    file: PathBuf,
    #[serde(default, rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    metadata: BTreeMap<String, serde_json::Value>,
}

/// What the file of `--from` names.
fn listed(arguments: &Arguments, path: &Path) -> Result<CreateOptions, Error> {
    let refused = |reason: String| Error::rejected(ids::BAD_CONFIGURATION, path, reason);
    let target =
        |name: &String| spelling::read_target(name).map_err(|error| refused(error.to_string()));
    let file: File = files::open(path)?;
    let read = serde_json::from_reader(BufReader::new(file));
    let list: KernelList = read.map_err(|error| match error.io_error_kind() {
        Some(kind) => Error::io(path, "read", kind.into()),
        None => refused(error.to_string()),
    })?;
    let targets = list.gfx_arches.iter().map(target).collect::<Result<Vec<_>, _>>()?;
    let twice = |(index, target)| targets[..index].contains(target);
    if let Some((_, target)) = targets.iter().enumerate().find(|it| twice(*it)) {
        return Err(refused(format!("`gfx_arches` lists {target} twice")));
    }
    let Some(first) = targets.first() else {
        return Err(refused("`gfx_arches` lists no target".to_owned()));
    };
    let mut options = CreateOptions::new(&arguments.archive, first.clone());
    let directory = path.parent().unwrap_or(Path::new(""));
    for kernel in list.kernels {
        let encoded =
            (!kernel.metadata.is_empty()).then(|| rmp_serde::to_vec_named(&kernel.metadata));
        let own = target(&kernel.target)?;
        if !targets.contains(&own) {
            let name = kernel.name.escape_debug();
            return Err(refused(format!(
                "`{name}` is for {own}, which `gfx_arches` does not list"
            )));
        }
        let mut stored = Kernel::new(kernel.name, own, directory.join(&kernel.file));
        stored.kind = kernel.kind.filter(|kind| kind != "hsaco");
        stored.metadata = encoded.transpose().map_err(|error| refused(error.to_string()))?;
        options.kernels.push(stored);
    }
    options.group_name = list.group_name;
    options.family = list.gfx_arch_family;
    options.targets = targets;
    Ok(options)
}
