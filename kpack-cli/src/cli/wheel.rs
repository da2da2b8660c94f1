//! `kpack wheel`.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};

use kpack_format::TargetId;
use kpack_format::unstable::spelling;
use serde::Serialize;

use super::exit_codes::EXIT_CODES;
use super::kernel_files::KernelFilesArguments;
use super::output::{self, Text, size};
use super::print::print;
use super::progress::{Bar, DEVICE_CODE};
use super::storage::{StorageArguments, Variants};
use super::verify;
use kpack_core::{Error, Finding};
use kpack_wheel::{self as wheel, Description, Options, VerifyOptions, WheelReport};

/// Split Python wheels: a host wheel without device code, and a small device wheel for each GPU
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Split(Box<Split>),
    Verify(Verify),
    Show(Show),
}

/// Split wheels into host wheels and device wheels
///
/// Writes a host wheel with the name of each WHEEL, and device wheels with the code of one GPU processor each. Each
/// device wheel is an extra of the host wheel: `pip install 'NAME[device-gfx942]'` installs both, and device-all
/// installs all. Device code of binaries goes into archives in .kpack directories; files of kernel databases, and
/// those that --kernel-files matches, keep their paths. Name the wheels of all Pythons at once, so that they share
/// device wheels (py3-none-PLATFORM) if their device code is the same.
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Examples:
  Split the wheels of one version:
    kpack wheel split dist/vec-1.0-*.whl --output-dir split
  One device wheel for related processors:
    kpack wheel split vec-1.0-cp311-cp311-manylinux_2_28_x86_64.whl --output-dir split \\
        --group gfx11=gfx1100,gfx1101,gfx1102

The environment variable SOURCE_DATE_EPOCH sets the time of all members; the default is 1980.

", exit_codes!()))]
struct Split {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    kernel_files: KernelFilesArguments,
    #[command(flatten)]
    storage: StorageArguments,
    #[command(flatten)]
    variants: Variants,
}

/// Verify host wheels with their device wheels
///
/// Checks that each wheel is undamaged and agrees with its RECORD, that the extras of the host wheels require exactly
/// the other wheels, that no two wheels contain the same path, and that the binaries find their device code when all
/// are installed. --against compares every code object and every other member with the fat wheel, byte for byte.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
struct Verify {
    /// Fat wheel that the host wheel of the same name was split from
    #[arg(long, value_name = "FAT")]
    against: Option<PathBuf>,
    /// Require only the device wheels of this GPU; can be repeated. Default: all device wheels
    #[arg(long, value_name = "TARGET", value_parser = spelling::read_target, value_delimiter = ',')]
    arch: Vec<TargetId>,
    /// Number of threads. Default: the number of processors
    #[arg(long, short, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Host wheels, their device wheels, and source distributions (.tar.gz) whose extras require wheels, such as
    /// TheRock's rocm
    #[arg(value_name = "WHEEL", required = true)]
    wheels: Vec<PathBuf>,
}

/// Show which extra of a host wheel is for which GPU
///
/// Prints the name, version, tags, targets and size of each WHEEL. For a host wheel, lists its device wheels and
/// their extras. Name the device wheels too to see their sizes.
#[derive(Debug, Args)]
#[command(after_help = exit_codes!())]
struct Show {
    /// Wheels
    #[arg(value_name = "WHEEL", required = true)]
    wheels: Vec<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    match &arguments.command {
        Command::Split(arguments) => split(arguments),
        Command::Verify(arguments) => verify(arguments),
        Command::Show(arguments) => show(arguments),
    }
}

fn split(arguments: &Split) -> Result<ExitCode, Error> {
    let mut options = arguments.options.clone();
    options.kernel_files = arguments.kernel_files.rules()?;
    options.storage = arguments.storage.storage();
    options.storage.complete_variants = arguments.variants.complete_variants;
    let bar = Bar::new(DEVICE_CODE);
    let report = wheel::split(&options, &bar)?;
    bar.finish();
    for finding in &report.findings {
        output::complain_finding(finding);
    }
    if print().json {
        output::json(&PrintedWheels::from(&report))?;
        return Ok(ExitCode::SUCCESS);
    }
    if print().quiet {
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = Text::default();
    let before: u64 = report.inputs.iter().map(|(_, size)| size).sum();
    let after: u64 = report.wheels.iter().map(|wheel| wheel.size).sum();
    text.line(format_args!("{} -> {} in all", size(before), size(after)));
    let rows = report.wheels.iter().map(|wheel| {
        let name = wheel.path.file_name().unwrap_or_default();
        let extra = wheel.extra.clone().unwrap_or_default();
        vec![name.to_string_lossy().into_owned(), size(wheel.size), extra]
    });
    text.table(2, &["wheel", ">size", "extra"], rows);
    text.write()?;
    Ok(ExitCode::SUCCESS)
}

/// The output of `--json`.
#[derive(Serialize)]
struct PrintedWheels<'a> {
    inputs: Vec<WheelFile<'a>>,
    wheels: Vec<WheelFile<'a>>,
    findings: &'a [Finding],
}

/// A wheel.
#[derive(Serialize)]
struct WheelFile<'a> {
    #[serde(serialize_with = "kpack_core::lossy::path")]
    path: &'a Path,
    size: u64,
    /// The extra that asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    extra: Option<&'a str>,
}

impl<'a> From<&'a WheelReport> for PrintedWheels<'a> {
    fn from(report: &'a WheelReport) -> Self {
        let inputs =
            report.inputs.iter().map(|(path, size)| WheelFile { path, size: *size, extra: None });
        let wheels = report.wheels.iter().map(|wheel| WheelFile {
            path: &wheel.path,
            size: wheel.size,
            extra: wheel.extra.as_deref(),
        });
        Self { inputs: inputs.collect(), wheels: wheels.collect(), findings: &report.findings }
    }
}

fn verify(arguments: &Verify) -> Result<ExitCode, Error> {
    let mut options = VerifyOptions::default();
    options.targets.clone_from(&arguments.arch);
    options.against.clone_from(&arguments.against);
    options.jobs = arguments.jobs;
    let report = wheel::verify(&arguments.wheels, &options)?;
    verify::report_checks(&report)
}

fn show(arguments: &Show) -> Result<ExitCode, Error> {
    let wheels = wheel::describe(&arguments.wheels)?;
    if print().json {
        output::json(&wheels)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = Text::default();
    for wheel in &wheels {
        describe(wheel, &mut text);
    }
    text.write()?;
    Ok(ExitCode::SUCCESS)
}

fn describe(wheel: &Description, text: &mut Text) {
    let kind = match (wheel.devices.is_empty(), wheel.targets.is_empty()) {
        _ if !wheel.findings.is_empty() => "split by another tool",
        (false, _) => "host wheel",
        (true, false) => "device wheel",
        (true, true) => "not split",
    };
    text.line(format_args!("{} {}: {kind}, {}", wheel.name, wheel.version, size(wheel.size)));
    text.line(format_args!("  tags:    {}", wheel.tags.join(", ")));
    for targets in [&wheel.targets, &wheel.fat_targets].into_iter().filter(|all| !all.is_empty()) {
        text.line(format_args!("  targets: {}", targets.join(", ")));
    }
    for library in &wheel.findings {
        text.line(format_args!("  {} [{}]", library.text, library.id));
    }
    let rows = wheel.devices.iter().map(|device| {
        let known = device.size.map(size).unwrap_or_else(|| "— (wheel not given)".to_owned());
        vec![device.extras.join(", "), device.name.clone(), known]
    });
    if !wheel.devices.is_empty() {
        text.table(2, &["extra", "device wheel", ">size"], rows);
    }
}
