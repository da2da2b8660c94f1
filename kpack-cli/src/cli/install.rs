//! `kpack install`.

use std::process::ExitCode;

use clap::Args;

use super::output::{self, Text, count, size};
use super::print::print;
use super::progress::{Bar, DEVICE_CODE};
use super::storage::{InstallHint, StorageArguments};
use kpack_core::Error;
use kpack_split::install::{self, InstallOptions, Outcome, Report};

/// Split installed binaries: move device code into archives, and leave a marker
///
/// Replaces each FILE, an executable or shared object, with a host binary without device code. The device
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
  Fail if there is code for any target but these two:
    kpack install --prefix stage --module vec \\
        --arch gfx1100 --arch gfx942 --unexpected error lib/libvec.so
  Write host part and one target's part, for separate packages:
    kpack install --prefix host --module vec --only host lib/libvec.so
    kpack install --prefix gfx1100 --module vec --only device --arch gfx1100 \\
        --source build/libvec.so lib/libvec.so

", exit_codes!()))]
pub(super) struct Arguments {
    #[command(flatten)]
    pub(super) options: InstallOptions,
    #[command(flatten)]
    hint: InstallHint,
    #[command(flatten)]
    storage: StorageArguments,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let mut options = arguments.options.clone();
    options.install_hint.clone_from(&arguments.hint.install_hint);
    options.storage = arguments.storage.storage();
    let bar = Bar::new(DEVICE_CODE);
    let report = install::install(&options, &bar)?;
    bar.finish();
    report_done(&report)
}

/// Prints what was done.
pub(super) fn report_done(report: &Report) -> Result<ExitCode, Error> {
    for finding in &report.findings {
        output::complain_finding(finding);
    }
    if print().json {
        output::json(report)?;
    } else if !print().quiet {
        summary(report).write()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What became of a binary.
fn outcome(outcome: &Outcome) -> String {
    let sizes = |before: u64, after: u64| format!("{} -> {}", size(before), size(after));
    let (what, wrappers, targets) = match outcome {
        Outcome::Split { wrappers, targets, size_before, size_after } => {
            let what = if size_before == size_after {
                "device code archived".to_owned()
            } else {
                sizes(*size_before, *size_after)
            };
            (what, wrappers, count(targets.len(), "target"))
        }
        Outcome::Joined { wrappers, targets, size_before, size_after } => {
            (sizes(*size_before, *size_after), wrappers, targets.join(", "))
        }
        Outcome::Relocated { wrappers, targets } => {
            let what = "split before the link, device code moved into the prefix".to_owned();
            (what, wrappers, count(targets.len(), "target"))
        }
        Outcome::AlreadySplit => return "already split".to_owned(),
        _ => return "unchanged".to_owned(),
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
        let state = if archive.changed { "written" } else { "unchanged" };
        vec![
            name.to_string_lossy().into_owned(),
            size(archive.size),
            archive.kernel_count.to_string(),
            state.to_owned(),
        ]
    });
    if !report.archives.is_empty() {
        text.table(2, &["archive", ">size", ">code objects", "state"], rows);
    }
    for path in &report.removed {
        text.line(format_args!("{}: removed (empty)", path.display()));
    }
    text
}
