//! Commands of `kpack artifact` without that word. Users of rocm-kpack, whose tools handle only artifacts, leave it out. They do
//! not run, but their errors say what to run.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

/// Why arguments that `kpack` rejects with `error` are wrong, and the whole command with the word, if they lack it.
pub(super) fn explain(
    error: &Error,
    arguments: impl Iterator<Item = OsString>,
    kpack: &Command,
) -> Option<String> {
    let mut words: Vec<String> =
        arguments.map(|argument| argument.to_string_lossy().into_owned()).collect();
    let place = (1..words.len())
        .find(|place| !words[*place].starts_with('-') && words[place - 1] != "--color")?;
    let own = kpack.find_subcommand("artifact")?.find_subcommand(&words[place])?;
    let name = own.get_name();
    let what = if kpack.find_subcommand(name).is_none() {
        format!("`{name}` is a command of `kpack artifact`")
    } else {
        let option = option_of(error, own)?;
        format!("`{option}` is an option of `kpack artifact {name}`")
    };
    words[0] = "kpack".to_owned();
    words.insert(place, "artifact".to_owned());
    let command = shlex::try_join(words.iter().map(String::as_str)).ok()?;
    Some(format!("{what}; run\n  {command}"))
}

/// The option that `kpack` rejects, if `command` has it.
fn option_of(error: &Error, command: &Command) -> Option<String> {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let name = option.strip_prefix("--").filter(|_| error.kind() == ErrorKind::UnknownArgument)?;
    let mut options = command.get_arguments().filter_map(|argument| argument.get_long());
    options.any(|long| long == name).then(|| option.clone())
}
