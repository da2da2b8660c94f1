//! `kpack completions`.

use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Args, Command};
use clap_complete::Shell;

use super::output;
use kpack_core::{Error, ids};
use kpack_format::code_object::processors;
use kpack_format::target_id::SPIRV;

/// Print the completions of a shell
///
/// Packages of kpack install them. Without a package, save them where the shell looks for them.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
    kpack completions bash > ~/.local/share/bash-completion/completions/kpack
    kpack completions zsh > ~/.zfunc/_kpack
    kpack completions fish > ~/.config/fish/completions/kpack.fish")]
pub(super) struct Arguments {
    /// Shell
    shell: Shell,
}

/// The command without those in it that users should not see, which clap's scripts would offer.
fn without_hidden(command: &Command) -> Command {
    let parts = command.get_subcommands().filter(|part| !part.is_hide_set());
    Command::new("kpack")
        .version(env!("CARGO_PKG_VERSION"))
        .args(command.get_arguments().cloned())
        .subcommands(parts.cloned())
}

/// The command and all in it, with the values that a shell can offer.
fn with_values(command: Command) -> Command {
    let command = command.mut_subcommands(with_values);
    let is_explain = command.get_name() == "explain";
    let is_join = command.get_name() == "join";
    command.mut_args(|argument| {
        if argument.get_long() == Some("arch") {
            let native = is_join.then_some("native").into_iter();
            argument
                .value_parser(PossibleValuesParser::new(native.chain(processors()).chain([SPIRV])))
        } else if is_explain && argument.get_id() == "ids" {
            argument.value_parser(PossibleValuesParser::new(ids::ALL.iter().map(|id| id.as_str())))
        } else {
            argument
        }
    })
}

/// What a shell reads to complete the arguments of a command.
fn script(shell: Shell, command: &Command) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut with_values(without_hidden(command)), "kpack", &mut script);
    if shell == Shell::Fish {
        // clap's script for fish offers values of options alone.
        let ids = Vec::from_iter(ids::ALL.iter().map(|id| id.as_str())).join(" ");
        let line = format!(
            "complete -c kpack -n \"__fish_kpack_using_subcommand explain\" -f -a \"{ids}\"\n"
        );
        script.extend(line.into_bytes());
    }
    script
}

/// Prints the completions of a command.
pub(super) fn run(arguments: &Arguments, command: Command) -> Result<ExitCode, Error> {
    let script = script(arguments.shell, &command);
    output::lines(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
