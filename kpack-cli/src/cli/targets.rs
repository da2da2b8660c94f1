//! `kpack targets`, and what the commands say of targets.

use std::process::ExitCode;

use clap::Args;
use kpack_format::TargetId;
use kpack_format::code_object::processors;
use kpack_format::unstable::spelling;

use super::output;
use kpack_core::{Error, Finding, Severity, ids};

/// List the GPU targets that kpack knows, or check the names of targets
///
/// Prints each name in its usual form, once, and warns of processors that this version of kpack does not know. An
/// impossible name is an error, with a suggestion. The CMake package uses this command.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  success
  2  a name is not a GPU target")]
pub(super) struct Arguments {
    /// Names of targets, such as gfx1100, gfx90a:xnack+ or gfx9-4-generic
    #[arg(value_name = "TARGET", value_delimiter = ',', required_unless_present = "list")]
    names: Vec<String>,
    /// List the processors and generic targets that kpack knows
    #[arg(long, conflicts_with = "names")]
    list: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    if arguments.list {
        let mut known = Vec::from_iter(processors().map(str::to_owned));
        // gfx90c before gfx1010.
        known.sort_by_key(|name| (name.len(), name.clone()));
        output::names(&known)?;
        return Ok(ExitCode::SUCCESS);
    }
    let named: Vec<TargetId> = arguments
        .names
        .iter()
        .map(|name| spelling::read_target(name))
        .collect::<Result<_, _>>()
        .map_err(|error| Error::usage(error.to_string()))?;
    warn_of_unknown(&named);
    let mut names: Vec<String> = Vec::new();
    for target in named.iter().map(TargetId::to_string) {
        if !names.contains(&target) {
            names.push(target);
        }
    }
    output::names(&names)?;
    Ok(ExitCode::SUCCESS)
}

/// Warns of targets that a user named, and that may be misspelled.
pub(super) fn warn_of_unknown<'a>(targets: impl IntoIterator<Item = &'a TargetId>) {
    for text in targets.into_iter().filter_map(spelling::unknown_warning) {
        output::complain_finding(&Finding::general(
            Severity::Warning,
            ids::UNKNOWN_PROCESSOR,
            text,
        ));
    }
}
