//! What people type before they have read anything, and what they mean. These commands do not run, but their errors print the
//! command to run. Only `kpack FILE` runs: it shows the file.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

/// Words that are no commands, and the words to type instead.
const WORDS: &[(&str, &[&str])] = &[
    ("check", &["verify"]),
    ("diagnose", &["doctor"]),
    ("info", &["show"]),
    ("inspect", &["show"]),
    ("ls", &["list"]),
    ("prune", &["trim"]),
    ("restore", &["join", "--arch", "all"]),
    ("revert", &["join", "--arch", "all"]),
    ("shrink", &["trim"]),
    ("size", &["report"]),
    ("sizes", &["report"]),
    ("test", &["verify"]),
    ("unbundle", &["extract"]),
    ("undo", &["join", "--arch", "all"]),
    ("unsplit", &["join", "--arch", "all"]),
    ("validate", &["verify"]),
    ("version", &["--version"]),
];

/// Options that a command does not have, and the advice.
const OPTIONS: &[(&str, &str)] = &[
    ("dry-run", "`kpack show` shows what a file contains, and `kpack trim` has --dry-run"),
    ("gpu", "see --arch"),
    ("in-place", "it replaces FILE unless you choose another place"),
    ("offload-arch", "see --arch"),
    ("recursive", "see --all"),
    ("restore", "see `kpack join`"),
    ("revert", "see `kpack join`"),
    ("target", "see --arch"),
    ("undo", "see `kpack join`"),
    ("unsplit", "see `kpack join`"),
];

/// The arguments of `kpack show FILE`, if these are those of `kpack FILE`.
pub(super) fn with_show(arguments: &[OsString], kpack: &Command) -> Option<Vec<OsString>> {
    let place = place_of_command(arguments)?;
    let word = &arguments[place];
    let is_command = word.to_str().is_some_and(|word| kpack.find_subcommand(word).is_some());
    if is_command || !Path::new(word).exists() {
        return None;
    }
    let mut arguments = arguments.to_vec();
    arguments.insert(place, "show".into());
    Some(arguments)
}

/// What is wrong with arguments that `kpack` rejects with `error`, and what to type, if the tables say so.
pub(super) fn explain(error: &Error, arguments: &[OsString], kpack: &Command) -> Option<String> {
    let lossy = arguments.iter().map(|argument| argument.to_string_lossy().into_owned());
    let mut words = Vec::from_iter(lossy);
    *words.first_mut()? = "kpack".to_owned();
    let place = place_of_command(arguments)?;
    let word = words[place].clone();
    if let Some((_, instead)) = WORDS.iter().find(|(other, _)| *other == word) {
        words.splice(place..=place, instead.iter().map(|word| (*word).to_owned()));
        return Some(format!("there is no command `{word}`; run\n  {}", command_line(&words)?));
    }
    // Users of rocm-kpack, whose tools handle only artifacts, leave the word out.
    if let Some(own) = kpack.find_subcommand("artifact")?.find_subcommand(&word) {
        let what = match kpack.find_subcommand(&word) {
            None => Some(format!("`{word}` is a command of `kpack artifact`")),
            Some(_) => option_of(error)
                .filter(|option| has_option(own, option))
                .map(|option| format!("`--{option}` is an option of `kpack artifact {word}`")),
        };
        if let Some(what) = what {
            words.insert(place, "artifact".to_owned());
            return Some(format!("{what}; run\n  {}", command_line(&words)?));
        }
    }
    if word == "join"
        && error.kind() == ErrorKind::MissingRequiredArgument
        && place + 1 < words.len()
    {
        words.splice(place + 1..place + 1, ["--arch", "all"].map(str::to_owned));
        return Some(format!(
            "`join` needs --arch, the targets whose code to put back; for all, run\n  {}",
            command_line(&words)?
        ));
    }
    let option = option_of(error)?;
    let path = command_of(&words[place..], kpack);
    let command = path.last()?;
    let name = Vec::from_iter(path.iter().map(|command| command.get_name())).join(" ");
    let similar = match error.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(similar)) => Some(format!("did you mean {similar}?")),
        _ => None,
    };
    let known = OPTIONS.iter().find(|(other, _)| *other == option);
    let applies = |advice: &str| match advice.strip_prefix("see --") {
        Some(other) => has_option(command, other),
        None => true,
    };
    let advice = known.map(|(_, advice)| (*advice).to_owned()).filter(|advice| applies(advice));
    let advice = advice.or(similar).unwrap_or_else(|| {
        let help = [&["kpack"][..], &name.split(' ').collect::<Vec<_>>(), &["--help"]].concat();
        format!("`{}` lists its options", help.join(" "))
    });
    Some(format!("`{name}` has no --{option}; {advice}"))
}

/// The position of the first argument that is neither an option nor the value of one.
fn place_of_command(arguments: &[OsString]) -> Option<usize> {
    let is_option = |word: &OsStr| word.as_encoded_bytes().starts_with(b"-");
    (1..arguments.len())
        .find(|place| !is_option(&arguments[*place]) && arguments[place - 1] != "--color")
}

/// The command that these words name, after those that it is below.
fn command_of<'c>(words: &[String], kpack: &'c Command) -> Vec<&'c Command> {
    let mut path: Vec<&Command> = Vec::new();
    for word in words {
        let above = path.last().copied().unwrap_or(kpack);
        match above.find_subcommand(word) {
            Some(command) => path.push(command),
            None => break,
        }
    }
    path
}

/// The long option that is unknown, without hyphens.
fn option_of(error: &Error) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(option)) => option.strip_prefix("--").map(str::to_owned),
        _ => None,
    }
}

fn has_option(command: &Command, name: &str) -> bool {
    command.get_arguments().any(|argument| argument.get_long() == Some(name))
}

/// A command line for a shell.
fn command_line(words: &[String]) -> Option<String> {
    shlex::try_join(words.iter().map(String::as_str)).ok()
}
