//! Commands under their earlier names. They do not run, but their errors say what to run.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};

/// The words of earlier commands, and those of today.
const RENAMED: [(&str, &[&str]); 5] = [
    ("install", &["split"]),
    ("recombine", &["artifact", "recombine"]),
    ("pack", &["artifact", "pack"]),
    ("select", &["artifact", "select"]),
    ("unpack", &["artifact", "unpack"]),
];

/// Why arguments that `kpack` rejects with `error` are wrong, and the whole command with today's words, if they are a
/// command under its earlier name.
pub(super) fn explain(
    error: &Error,
    arguments: impl Iterator<Item = OsString>,
    kpack: &Command,
) -> Option<String> {
    let mut words: Vec<String> =
        arguments.map(|argument| argument.to_string_lossy().into_owned()).collect();
    let place = (1..words.len())
        .find(|place| !words[*place].starts_with('-') && words[place - 1] != "--color")?;
    let renamed = RENAMED.iter().find(|(earlier, _)| *earlier == words[place]);
    let (earlier, today) = match renamed {
        Some((earlier, today)) => ((*earlier).to_owned(), *today),
        None if words[place] == "split" => {
            (format!("split {}", artifact_option(error, kpack)?), &["artifact", "split"][..])
        }
        None => return None,
    };
    words[0] = "kpack".to_owned();
    words.splice(place..=place, today.iter().map(|word| (*word).to_owned()));
    let command = shlex::try_join(words.iter().map(String::as_str)).ok()?;
    Some(format!("`kpack {earlier}` is now `kpack {}`; run\n  {command}", today.join(" ")))
}

/// The option that `kpack split` does not have, if `kpack artifact split` has it.
fn artifact_option(error: &Error, kpack: &Command) -> Option<String> {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let name = option.strip_prefix("--").filter(|_| error.kind() == ErrorKind::UnknownArgument)?;
    let split = kpack.find_subcommand("artifact")?.find_subcommand("split")?;
    let is_named = |argument: &Arg| {
        let aliases = argument.get_all_aliases().unwrap_or_default();
        argument.get_long() == Some(name) || aliases.contains(&name)
    };
    split.get_arguments().any(is_named).then(|| option.clone())
}
