//! `kpack install`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use kpack_format::TargetId;

use super::output::{self, Text, count, size};
use super::progress::{Bar, DEVICE_CODE};
use super::storage::{InstallHint, StorageArguments};
use crate::Error;
use crate::install::{self, Notice, Only, Options, Outcome, Report, Severity, Unexpected};
use crate::report_json::Json;

/// Split installed binaries: move device code into archives, and leave a marker
///
/// Replaces each FILE, an executable or shared object, by a host binary without device code. The device
/// code goes into PREFIX/KPACK_DIR/MODULE_COMPONENT_TARGET.kpack, one archive for each GPU target. Files
/// without device code and split files stay unchanged, so a second run changes nothing. kpack checks
/// everything before it changes the first file.
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Examples:
  Split two binaries of an install tree:
    kpack install --prefix /opt/rocm --module rocblas lib/librocblas.so.5.2 bin/rocblas-bench
  Split all binaries of an install tree:
    kpack install --prefix /opt/rocm --module rocm --all
  Keep two targets, and reject all others:
    kpack install --prefix stage --module vec \\
        --arch gfx1100 --arch gfx942 --unexpected error lib/libvec.so
  Write host part and one target's part separately, for packages of their own:
    kpack install --prefix host --module vec --only host lib/libvec.so
    kpack install --prefix gfx1100 --module vec --only device --arch gfx1100 \\
        --source build/libvec.so lib/libvec.so

", exit_codes!()))]
pub(super) struct Arguments {
    /// Install prefix: the directory that the binaries are in
    #[arg(long, value_name = "DIR")]
    prefix: PathBuf,
    /// Module that the binaries belong to, the first part of the archives' names
    #[arg(long, value_name = "NAME")]
    module: String,
    /// Component of the module, the second part of the archives' names
    #[arg(long, value_name = "NAME", default_value = "lib")]
    component: String,
    /// Directory of the archives, relative to the prefix
    #[arg(long, value_name = "REL", default_value = "lib/.kpack")]
    kpack_dir: PathBuf,
    /// Expected GPU target, such as gfx90a:xnack+. Can be repeated. If no file has code for it, that is
    /// an error. Default: keep every target
    #[arg(long, value_name = "TARGET", value_delimiter = ',')]
    arch: Vec<TargetId>,
    /// How to treat device code for targets that --arch does not list
    #[arg(long, value_enum, default_value_t = Unexpected::Drop)]
    unexpected: Unexpected,
    /// Do only half of the work. The two halves together write the same bytes as one plain run
    #[arg(long, value_enum)]
    only: Option<Only>,
    /// For `--only device`: the unsplit binary to read the device code from. Give one for each FILE, in
    /// the same order
    #[arg(long, value_name = "FILE")]
    source: Vec<PathBuf>,
    #[command(flatten)]
    hint: InstallHint,
    #[command(flatten)]
    storage: StorageArguments,
    #[command(flatten)]
    output: Output,
    /// Find all binaries with device code in the prefix, instead of naming them
    #[arg(long, conflicts_with_all = ["source", "files"])]
    all: bool,
    /// Binaries; paths are relative to the prefix, or else to the working directory
    #[arg(value_name = "FILE", required_unless_present = "all")]
    files: Vec<PathBuf>,
}

/// Arguments that select what to print of a report.
#[derive(Debug, Args)]
pub(super) struct Output {
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Print only errors and warnings
    #[arg(long, short, conflicts_with = "json")]
    quiet: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let mut options = Options::new(&arguments.prefix, &arguments.module, &arguments.files);
    options.component.clone_from(&arguments.component);
    options.kpack_dir.clone_from(&arguments.kpack_dir);
    options.architectures.clone_from(&arguments.arch);
    options.unexpected = arguments.unexpected;
    options.only = arguments.only;
    options.sources.clone_from(&arguments.source);
    options.all = arguments.all;
    options
        .install_hint
        .clone_from(&arguments.hint.install_hint);
    options.storage = arguments.storage.storage();

    let bar = Bar::new(arguments.output.is_hidden(), DEVICE_CODE);
    let report = install::install(&options, &bar)?;
    bar.finish();
    arguments.output.print(&report)
}

impl Output {
    /// Whether progress is hidden.
    pub(super) fn is_hidden(&self) -> bool {
        self.quiet || self.json
    }

    /// Prints what was done.
    pub(super) fn print(&self, report: &Report) -> Result<ExitCode, Error> {
        for notice in &report.notices {
            print_notice(notice, self.quiet);
        }
        if self.json {
            output::json(&Json(report))?;
        } else if !self.quiet {
            summary(report).write()?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

pub(super) fn print_notice(notice: &Notice, quiet: bool) {
    let kind = match notice.severity {
        Severity::Warning => "warning",
        Severity::Note if quiet => return,
        Severity::Note => "note",
    };
    output::complain(
        kind,
        format_args!("{}: {}", notice.path.display(), notice.text),
    );
}

/// What became of a binary.
fn outcome(outcome: &Outcome) -> String {
    let sizes = |before: u64, after: u64| format!("{} -> {}", size(before), size(after));
    let (what, wrappers, targets) = match outcome {
        Outcome::Split {
            wrappers,
            targets,
            size_before,
            size_after,
        } => {
            let what = match size_before == size_after {
                true => "device code archived".to_owned(),
                false => sizes(*size_before, *size_after),
            };
            (what, wrappers, count(targets.len(), "target"))
        }
        Outcome::Joined {
            wrappers,
            targets,
            size_before,
            size_after,
        } => (
            sizes(*size_before, *size_after),
            wrappers,
            targets.join(", "),
        ),
        Outcome::Relocated { wrappers, targets } => {
            let what = "split before the link, device code moved into the prefix".to_owned();
            (what, wrappers, count(targets.len(), "target"))
        }
        Outcome::AlreadySplit => return "already split".to_owned(),
        Outcome::LeftAlone { .. } => return "unchanged".to_owned(),
    };
    format!("{what} ({}, {targets})", count(*wrappers, "wrapper"))
}

fn summary(report: &Report) -> Text {
    let mut text = Text::default();
    for file in &report.files {
        text.line(format_args!("{}: {}", file.path, outcome(&file.outcome)));
    }
    let rows = report.archives.iter().map(|archive| {
        let name = archive.path.file_name().unwrap_or_default();
        let state = match archive.changed {
            true => "written",
            false => "unchanged",
        };
        vec![
            name.to_string_lossy().into_owned(),
            size(archive.size),
            count(archive.kernel_count, "kernel"),
            state.to_owned(),
        ]
    });
    if !report.archives.is_empty() {
        text.table(2, &["archive", ">size", ">kernels", "state"], rows);
    }
    for path in &report.removed {
        text.line(format_args!("{}: removed (empty)", path.display()));
    }
    text
}
