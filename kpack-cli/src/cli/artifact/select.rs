//! `kpack artifact select`, and the choice of artifacts that `kpack artifact unpack` shares with it.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use kpack_format::TargetId;
use kpack_format::unstable::spelling;

use crate::cli::output;
use crate::cli::print::print;
use kpack_core::Error;
use kpack_store::{Choice, Entry, Index, Part, in_url, select, there};

/// List the packed artifacts that a GPU needs
///
/// Reads an index that `kpack artifact pack` wrote, and prints the files to fetch: the host files of each component,
/// and the files for the targets. kpack fetches nothing itself. Use `curl` or any other program.
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Examples:
  Fetch the files for gfx942, and resume after an interruption:
    kpack artifact select index.json --arch gfx942 --format curl --base-url https://example.org/12345-linux \\
        --have fetched > list
    [ ! -s list ] || (cd fetched && curl -fZ -C - --retry 5 -K ../list)
  Then `kpack artifact unpack` checks the files.

", exit_codes!()))]
pub(super) struct Arguments {
    /// The index
    #[arg(value_name = "INDEX")]
    index: PathBuf,
    #[command(flatten)]
    pub(super) choice: ChoiceArguments,
    /// What to print
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Address of the files, for `curl` and `urls`
    #[arg(long, value_name = "URL", required_if_eq_any = [("format", "curl"), ("format", "urls")])]
    base_url: Option<String>,
    /// Skip files that are already in DIR with the right checksum
    #[arg(long, value_name = "DIR")]
    have: Option<PathBuf>,
}

/// Which artifacts.
#[derive(Debug, Args)]
pub(super) struct ChoiceArguments {
    /// Targets of the GPUs, such as gfx942 or gfx90a:xnack+. Default: all
    #[arg(long, value_name = "TARGETS", value_delimiter = ',', value_parser = spelling::read_target)]
    pub(super) arch: Vec<TargetId>,
    /// Component, such as blas_lib. Can be repeated. Default: all
    #[arg(long, value_name = "NAME")]
    component: Vec<String>,
    /// Select only host files, or only device code, for layers of an image or for packages
    #[arg(long, value_enum, value_name = "PART", default_value_t, hide_default_value = true)]
    only: Part,
}

impl ChoiceArguments {
    pub(super) fn choice(&self) -> Choice {
        let mut choice = Choice::default();
        choice.architectures.clone_from(&self.arch);
        choice.components.clone_from(&self.component);
        choice.part = self.only;
        choice
    }
}

/// What to print.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// File names
    #[default]
    Names,
    /// A configuration file for curl (-K)
    Curl,
    /// URLs
    Urls,
    /// SHA-256 and file name, for `sha256sum --check`
    Sha256sum,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let index = Index::read(&arguments.index)?;
    let mut entries = select(&arguments.index, &index, &arguments.choice.choice())?;
    if let Some(directory) = &arguments.have {
        let (there, findings) = there(directory, &entries)?;
        for finding in &findings {
            output::complain_finding(finding);
        }
        let mut there = there.into_iter();
        entries.retain(|_| !there.next().unwrap_or_default());
    }
    let base = base_url(arguments)?;
    if print().json {
        output::json(&entries)?;
        return Ok(ExitCode::SUCCESS);
    }
    let line = |entry: &Entry| match arguments.format {
        Format::Names => entry.file.clone(),
        Format::Curl => {
            format!("url = \"{base}{}\"\noutput = \"{}\"", in_url(&entry.file), entry.file)
        }
        Format::Urls => format!("{base}{}", in_url(&entry.file)),
        Format::Sha256sum => format!("{}  {}", entry.sha256, entry.file),
    };
    let lines: String = entries.iter().map(|entry| line(entry) + "\n").collect();
    output::lines(&lines)?;
    Ok(ExitCode::SUCCESS)
}

/// The URL that file names are added to.
fn base_url(arguments: &Arguments) -> Result<String, Error> {
    let mut base = arguments.base_url.clone().unwrap_or_default();
    // It is written between quotes, and on one line.
    if base.contains(|c: char| c.is_whitespace() || c.is_control() || "\"\\".contains(c)) {
        let text = "--base-url: expected an URL, without spaces, quotes and backslashes";
        return Err(Error::usage(text));
    }
    if !base.is_empty() && !base.ends_with('/') {
        base.push('/');
    }
    Ok(base)
}
