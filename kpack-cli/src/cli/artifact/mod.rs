//! `kpack artifact`.

mod pack;
mod recombine;
mod select;
mod split;
mod unpack;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use kpack_core::Error;
use kpack_format::TargetId;

/// Split, merge and publish the artifacts of a ROCm build
///
/// An artifact is a directory that a ROCm build makes, with files for an install prefix. kpack splits it into a generic
/// artifact and one for each GPU target, merges what several machines built, and packs the result for a server.
#[derive(Debug, Args)]
#[command(after_help = exit_codes!())]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Split(Box<split::Arguments>),
    Recombine(recombine::Arguments),
    Pack(pack::Arguments),
    Select(select::Arguments),
    Unpack(unpack::Arguments),
}

impl Arguments {
    /// Whether it writes nothing.
    pub(super) fn reads_only(&self) -> bool {
        matches!(self.command, Command::Select(_))
    }

    /// Whether its own JSON says why it failed.
    pub(super) fn reports_failures(&self) -> bool {
        matches!(self.command, Command::Split(_) | Command::Recombine(_))
    }

    /// The targets that it names.
    pub(super) fn named_targets(&self) -> &[TargetId] {
        match &self.command {
            Command::Split(arguments) => &arguments.gpu_targets,
            Command::Select(arguments) => &arguments.choice.arch,
            Command::Unpack(arguments) => &arguments.choice.arch,
            Command::Recombine(_) | Command::Pack(_) => &[],
        }
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    match &arguments.command {
        Command::Split(arguments) => split::run(arguments),
        Command::Recombine(arguments) => recombine::run(arguments),
        Command::Pack(arguments) => pack::run(arguments),
        Command::Select(arguments) => select::run(arguments),
        Command::Unpack(arguments) => unpack::run(arguments),
    }
}
