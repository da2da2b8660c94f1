//! `kpack completions`.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::Shell;

use super::output::STDOUT;
use kpack_core::Error;

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

/// Prints the completions of a command.
pub(super) fn run(arguments: &Arguments, mut command: Command) -> Result<ExitCode, Error> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "kpack", &mut script);
    io::Write::write_all(&mut io::stdout().lock(), &script)
        .map_err(|e| Error::io(Path::new(STDOUT), "write to", e))?;
    Ok(ExitCode::SUCCESS)
}
