//! The `kpack` command.

#[macro_use]
mod exit_codes;

mod all_or;
mod artifact;
mod completions;
mod create;
mod doctor;
mod documents;
mod explain;
mod extract;
mod guesses;
mod join;
mod kernel_files;
mod launch;
mod list;
mod object;
mod output;
mod panics;
mod print;
mod progress;
mod report;
mod show;
#[cfg_attr(not(windows), path = "signals/linux.rs")]
#[cfg_attr(windows, path = "signals/windows.rs")]
mod signals;
mod split;
mod stage;
mod storage;
mod targets;
mod trim;
mod verify;
mod wheel;

use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser, Subcommand};
use kpack_format::TargetId;

use kpack_core::platform::raise_open_files;
use kpack_core::{Error, escaped};

use exit_codes::{EXIT_CODES, Failed, exit_code};
use print::{Print, print};

/// Moves the GPU code of ROCm/HIP binaries into one archive per GPU target
///
/// `kpack split` splits binaries. It moves their device code into one archive for each GPU target
/// (lib/.kpack/MODULE_lib_gfx1100.kpack) and leaves a marker that says where to look. The other commands
/// split what builds make, merge the results, and show and verify them.
#[derive(Debug, Parser)]
#[command(name = "kpack", version, after_help = EXIT_CODES, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    print: Print,
}

#[derive(Debug, Subcommand)]
enum Command {
    Split(split::Arguments),
    Join(join::Arguments),
    Trim(trim::Arguments),
    Object(object::Arguments),
    Launch(launch::Arguments),
    Stage(stage::Arguments),
    Show(show::Arguments),
    List(list::Arguments),
    Create(create::Arguments),
    Extract(extract::Arguments),
    Artifact(artifact::Arguments),
    Report(report::Arguments),
    Verify(verify::Arguments),
    Doctor(doctor::Arguments),
    Explain(explain::Arguments),
    Wheel(wheel::Arguments),
    Targets(targets::Arguments),
    Completions(completions::Arguments),
    #[command(hide = true)]
    Documents(documents::Arguments),
}

/// What `kpack` alone prints: what most people come for.
const OVERVIEW: &str = "\
Moves the GPU code of ROCm/HIP binaries into one archive per GPU target

Split:
  kpack split FILE                  a library or program
  kpack split --prefix DIR --module NAME --all
                                    every binary of an install prefix
  kpack wheel split WHEEL...        Python wheels
  kpack artifact split ...          the artifacts of a ROCm build
  kpack join --prefix DIR --arch native
                                    put the code for this machine back, for an older ROCm
  kpack trim --arch native DIR...   remove the code for other GPUs from what is installed
Check:
  kpack show FILE                   what a file is, and which GPUs it has code for
  kpack verify DIR                  find what is missing or damaged
  kpack doctor [PATH]               find out why kernels do not load, and what to do
  kpack report DIR                  see where the bytes are
Carry:
  kpack artifact pack, select, unpack
                                    artifacts, from the build to the machine that needs them
  kpack stage PROGRAM --output-dir DIR
                                    a program, with all that it needs on another machine

`kpack help` lists all commands, and `kpack COMMAND --help` describes one.
";

/// The description of the command's arguments, for manual pages and completions.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command that the process's arguments name.
pub fn main() -> ExitCode {
    panics::abort_without_memory();
    let arguments = Vec::from_iter(env::args_os());
    let parsed = match Cli::try_parse_from(&arguments) {
        Err(error) => {
            let shown = guesses::with_show(&arguments, &command());
            shown.and_then(|arguments| Cli::try_parse_from(arguments).ok()).ok_or(error)
        }
        parsed => parsed,
    };
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return misused(error, &arguments),
    };
    cli.print.set();
    allow_open_files();
    let reads_only = matches!(
        cli.command,
        Command::Show(_)
            | Command::List(_)
            | Command::Verify(_)
            | Command::Doctor(_)
            | Command::Explain(_)
            | Command::Targets(_)
            | Command::Completions(_)
            | Command::Documents(_)
    ) || matches!(&cli.command, Command::Report(report) if report.only_prints())
        || matches!(&cli.command, Command::Artifact(artifact) if artifact.reads_only());
    // These leave nothing to clean up, so signals may end them at any moment.
    if !reads_only && let Err(error) = signals::watch() {
        output::complain(
            "warning",
            format_args!(
                "cannot watch signals: {error}; an interrupted run may leave hidden files"
            ),
        );
    }
    targets::warn_of_unknown(named_targets(&cli.command));
    let result = run(&cli.command);
    if let Err(error) = &result
        && !is_broken_pipe(error)
    {
        match signals::received() {
            // It comes from the file that was next, and says nothing about that.
            Some(signal) if error.id() == kpack_core::ids::SYSTEM => output::complain(
                "error",
                format_args!("stopped by signal {signal}; unfinished files were removed [system]"),
            ),
            _ => match guesses::instead_of_error(error, &arguments, &command()) {
                Some(text) => output::complain("error", text),
                None => output::complain_error(error),
            },
        }
        if print().json && !reports_failures(&cli.command) {
            // The error itself decides about the exit code.
            let _ = output::json(&Failed::from(error));
        }
    }
    // Whatever the command made of it: shells and build systems stop only if a signal ended it.
    signals::end();
    match result {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => ExitCode::from(exit_code(&error)),
    }
}

fn run(given: &Command) -> Result<ExitCode, Error> {
    match given {
        Command::Split(arguments) => split::run(arguments),
        Command::Join(arguments) => join::run(arguments),
        Command::Trim(arguments) => trim::run(arguments),
        Command::Object(arguments) => object::run(arguments),
        Command::Launch(arguments) => launch::run(arguments),
        Command::Stage(arguments) => stage::run(arguments),
        Command::Show(arguments) => show::run(arguments),
        Command::List(arguments) => list::run(arguments),
        Command::Create(arguments) => create::run(arguments),
        Command::Extract(arguments) => extract::run(arguments),
        Command::Artifact(arguments) => artifact::run(arguments),
        Command::Report(arguments) => report::run(arguments),
        Command::Verify(arguments) => verify::run(arguments),
        Command::Doctor(arguments) => doctor::run(arguments),
        Command::Explain(arguments) => explain::run(arguments),
        Command::Wheel(arguments) => wheel::run(arguments),
        Command::Targets(arguments) => targets::run(arguments),
        Command::Completions(arguments) => completions::run(arguments, command()),
        Command::Documents(arguments) => documents::run(arguments, command()),
    }
}

/// Whether a command's own JSON says why it failed.
fn reports_failures(command: &Command) -> bool {
    matches!(command, Command::Artifact(artifact) if artifact.reports_failures())
}

/// Prints help, or what is wrong with the arguments, as other errors are printed.
fn misused(mut error: clap::Error, arguments: &[OsString]) -> ExitCode {
    if arguments.len() == 1 {
        let _ = io::stderr().write_all(OVERVIEW.as_bytes());
        return ExitCode::from(2);
    }
    if !error.use_stderr() {
        // Printing help is not an error, unless nobody can read it.
        let printed = error.print().and_then(|()| io::stdout().flush());
        return match printed.map_err(output::failed) {
            Err(error) if !is_broken_pipe(&error) => {
                output::complain_error(&error);
                ExitCode::from(exit_code(&error))
            }
            _ => ExitCode::SUCCESS,
        };
    }
    leave_hidden_commands_out(&mut error, &command());
    let repeated = error.context().filter_map(|(kind, value)| match value {
        ContextValue::String(text) => Some((kind, ContextValue::String(escaped(text).to_string()))),
        ContextValue::Strings(texts) => {
            let texts = texts.iter().map(|text| escaped(text).to_string());
            Some((kind, ContextValue::Strings(texts.collect())))
        }
        // A tip repeats the argument as well, and cannot be changed.
        ContextValue::StyledStrs(tips) => {
            let is_plain =
                |tip: &&StyledStr| tip.to_string() == escaped(&tip.to_string()).to_string();
            // Nobody means a file whose name begins with a hyphen.
            let helps = |tip: &&StyledStr| !tip.to_string().contains("as a value, use");
            let plain = tips.iter().filter(is_plain).filter(helps).cloned();
            Some((kind, ContextValue::StyledStrs(plain.collect())))
        }
        _ => None,
    });
    for (kind, value) in Vec::from_iter(repeated) {
        error.insert(kind, value);
    }
    // What the argument's own parser says repeats it once more.
    let invalid = match (std::error::Error::source(&error), error.get(ContextKind::InvalidArg)) {
        (Some(why), Some(ContextValue::String(argument))) => {
            match error.get(ContextKind::InvalidValue) {
                Some(ContextValue::String(value)) => {
                    let why = why.to_string();
                    Some(format!("invalid value '{value}' for '{argument}': {}", escaped(&why)))
                }
                _ => None,
            }
        }
        _ => None,
    };
    if let Some(text) = guesses::instead_of_misuse(&error, invalid.clone(), arguments, &command()) {
        output::complain("error", text);
        return ExitCode::from(2);
    }
    // Without a tip, its place is empty.
    let mut text = error.to_string().replace("\n\n\n", "\n\n");
    if let Some(invalid) = invalid {
        text = format!("error: {invalid}\n\nFor more information, try '--help'.\n");
    }
    match text.strip_prefix("error: ") {
        Some(text) => _ = write!(io::stderr(), "kpack: {}: {text}", output::painted("error")),
        None => _ = error.print(),
    }
    ExitCode::from(2)
}

/// Takes hidden commands out of the lists of an error: clap hides them only in help.
fn leave_hidden_commands_out(error: &mut clap::Error, kpack: &clap::Command) {
    let is_hidden = |name: &String| {
        kpack.get_subcommands().any(|command| command.is_hide_set() && command.get_name() == name)
    };
    for kind in [ContextKind::ValidSubcommand, ContextKind::SuggestedSubcommand] {
        let left = match error.remove(kind) {
            Some(ContextValue::Strings(names)) => {
                ContextValue::Strings(names.into_iter().filter(|name| !is_hidden(name)).collect())
            }
            Some(ContextValue::String(name)) if is_hidden(&name) => continue,
            Some(other) => other,
            None => continue,
        };
        if !matches!(&left, ContextValue::Strings(names) if names.is_empty()) {
            error.insert(kind, left);
        }
    }
}

/// The targets that the arguments name.
fn named_targets(command: &Command) -> Vec<&TargetId> {
    let targets = match command {
        Command::Split(arguments) => &arguments.options.architectures,
        Command::Artifact(arguments) => arguments.named_targets(),
        Command::Create(arguments) => arguments.arch.as_slice(),
        Command::Extract(arguments) => arguments.arch.as_slice(),
        Command::Verify(arguments) => return arguments.targets().collect(),
        Command::Doctor(arguments) => &arguments.arch,
        _ => &[],
    };
    targets.iter().collect()
}

/// Raises the limit for open files: kpack keeps one archive open per target while merging, and
/// binaries linked from objects that were split before the link. The default limit exists for
/// programs that use `select`.
fn allow_open_files() {
    raise_open_files();
}

/// Whether the reader of standard output closed the pipe.
fn is_broken_pipe(error: &Error) -> bool {
    matches!(error, Error::Io { path, source, .. }
        if path.as_os_str() == output::STDOUT && output::is_closed(source))
}
