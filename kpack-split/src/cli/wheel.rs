//! `kpack wheel`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::install::print_notice;
use super::output::{Text, size};
use super::progress::{Bar, DEVICE_CODE};
use super::storage::StorageArguments;
use crate::Error;
use crate::wheel::{self, DeviceGroup, Options};

/// Split Python wheels: a host wheel without device code, and a small device wheel for each GPU
#[derive(Debug, Args)]
#[command(after_help = super::EXIT_CODES)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Split(Split),
}

/// Split wheels into host wheels and device wheels
///
/// Writes a host wheel with the name of each WHEEL, and device wheels with the code of one GPU processor
/// each. The host wheel has an extra for each: `pip install 'NAME[device-gfx942]'` installs both, and
/// device-all asks for all. Device code of binaries goes into archives in .kpack directories; files of
/// kernel databases keep their paths. Give the wheels of all Pythons at once: they share device wheels
/// (py3-none-PLATFORM) if their device code is the same.
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
    /// Directory to write the wheels to
    #[arg(long, value_name = "DIR")]
    output_dir: PathBuf,
    /// Name of a device wheel: {dist} stands for the host's name, {target} for the processor or group
    #[arg(long, value_name = "PATTERN", default_value = wheel::DEVICE_NAME)]
    device_name: String,
    /// Processors that share a device wheel, such as gfx11=gfx1100,gfx1101. Can be repeated
    #[arg(long, value_name = "NAME=PROCESSORS")]
    group: Vec<DeviceGroup>,
    #[command(flatten)]
    storage: StorageArguments,
    /// Print only errors and warnings
    #[arg(long, short)]
    quiet: bool,
    /// Wheels with device code
    #[arg(value_name = "WHEEL", required = true)]
    wheels: Vec<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    match &arguments.command {
        Command::Split(arguments) => split(arguments),
    }
}

fn split(arguments: &Split) -> Result<ExitCode, Error> {
    let mut options = Options::new(&arguments.wheels, &arguments.output_dir);
    options.device_name.clone_from(&arguments.device_name);
    options.groups.clone_from(&arguments.group);
    options.storage = arguments.storage.storage();
    let bar = Bar::new(arguments.quiet, DEVICE_CODE);
    let report = wheel::split(&options, &bar)?;
    bar.finish();
    for notice in &report.notices {
        print_notice(notice, arguments.quiet);
    }
    if arguments.quiet {
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
