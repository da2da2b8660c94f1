//! What people type before they have read anything, and the commands that do what they mean. These commands do not run, but
//! errors print them. Only `kpack FILE` runs: it shows the file.
//!
//! [`words`] lists words of other tools, [`given`] finds out what arguments contain, and [`mod@plan`] makes command lines.

mod given;
mod plan;
mod words;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::Path;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind as Misuse};
use kpack_core::finding::with_id;
use kpack_core::words::list;
use kpack_core::{Error, Id, ids};

use super::{explain, show, split};
use given::{Given, Kind};
use plan::{Line, PIPE, Plan, accepts, plan};
use words::{Intent, is_near};

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

/// What is wrong with arguments that `kpack` rejects with `error`, and what to type. Without a better sentence, `said` says
/// what is wrong.
pub(super) fn instead_of_misuse(
    error: &clap::Error,
    said: Option<String>,
    arguments: &[OsString],
    kpack: &Command,
) -> Option<String> {
    // The error says what is wrong with the value, and a command without the option would do something else. Only targets can be
    // written in another way.
    let option = error.get(ContextKind::InvalidArg);
    let is_arch =
        matches!(option, Some(ContextValue::String(option)) if option.starts_with("--arch"));
    if matches!(error.kind(), Misuse::ValueValidation | Misuse::InvalidValue) && !is_arch {
        return None;
    }
    if !may_be_printed(arguments) {
        return None;
    }
    let about_file = about_file(arguments);
    let arguments = about_file.as_deref().unwrap_or(arguments);
    let of_file = "`explain` explains IDs; for a file, `kpack doctor` says why code does not load";
    let said = about_file.as_ref().map(|_| of_file.to_owned()).or(said);
    let given = Given::read(arguments, kpack);
    if let Some(text) = in_artifact(error, &given, arguments, kpack) {
        return Some(text);
    }
    if let (None, Some(word)) = (given.intent, &given.word)
        && let Some(line) = respelled(word, arguments, kpack)
    {
        return Some(with_lines(&format!("there is no command `{word}`; run"), &[vec![line]]));
    }
    let (Plan { instead, mut lines }, in_the_way) = plan(&given, kpack);
    if lines.iter().all(|line| lacks_required(error, &given, &line[line.len() - 1])) {
        lines.clear();
    }
    let wrong = match instead {
        // The wrong value is what is wrong, whatever else is.
        _ if error.kind() == Misuse::ValueValidation => said.or_else(|| wrong(error, &given))?,
        Some(instead) if lines.is_empty() && in_the_way.is_none() => return Some(instead),
        Some(instead) => instead,
        None => said.or_else(|| wrong(error, &given))?,
    };
    let is_missing = |word: &&String| {
        word.contains(['/', '.'])
            && (given.inputs.is_empty() || lines.is_empty())
            && !Path::new(word).exists()
            && !lines.iter().flatten().flatten().any(|own| own.contains(*word))
    };
    let missing = given.rest.iter().find(is_missing).filter(|_| given.intent.is_some());
    let is_typed = |path: &str| {
        let path = path.trim_end_matches('/');
        let is_it =
            |typed: &OsString| typed.to_string_lossy().trim_end_matches('/').ends_with(path);
        arguments.iter().any(is_it)
    };
    let is_cause_known = missing.is_some() || in_the_way.is_some();
    let wrong = match (missing, in_the_way) {
        (Some(missing), _) => format!("{wrong}, and `{missing}` does not exist"),
        (_, Some(path)) if Path::new(&path).exists() && is_typed(&path) => {
            format!("{wrong}, and `{path}` exists")
        }
        (_, Some(path)) if Path::new(&path).exists() => {
            format!("{wrong}, and `{path}`, which would be the output, exists")
        }
        (_, Some(path)) => format!("{wrong}, and `{path}` cannot be the output"),
        _ => wrong,
    };
    if lines.is_empty() {
        if is_cause_known {
            return Some(wrong);
        }
        let command = given.commands.join(" ");
        let advice = match error.get(ContextKind::SuggestedArg) {
            Some(ContextValue::String(similar)) => format!("did you mean {similar}?"),
            _ => format!("`kpack {command} --help` lists its options"),
        };
        return (!given.unknown.is_empty()).then(|| format!("{wrong}; {advice}"));
    }
    let shows =
        given.intent.is_none() && lines[0][0].get(1).is_some_and(|command| command == "show");
    let is_unknown = given.word.as_ref().is_some_and(|word| words::note(word).is_none());
    let help = if shows && is_unknown { "; `kpack help` lists them" } else { "" };
    Some(with_lines(&format!("{wrong}{help}; run"), &lines))
}

/// The arguments of `kpack doctor`, if these are for `kpack explain` and name a file.
fn about_file(arguments: &[OsString]) -> Option<Vec<OsString>> {
    let place = place_of_command(arguments).filter(|place| arguments[*place] == "explain")?;
    let is_file = |argument: &OsString| {
        Path::new(argument).exists() && !explain::knows(&argument.to_string_lossy())
    };
    if !arguments[place + 1..].iter().any(is_file) {
        return None;
    }
    let mut arguments = arguments.to_vec();
    arguments[place] = "doctor".into();
    Some(arguments)
}

/// Whether command lines can have these arguments: a shell must read them as they are, and after `--` nothing is a guess.
fn may_be_printed(arguments: &[OsString]) -> bool {
    arguments.iter().skip(1).all(|argument| {
        let is_plain = |text: &str| !text.chars().any(char::is_control);
        argument.to_str().is_some_and(is_plain) && argument != "--" && argument != PIPE
    })
}

/// The same with the command whose name is nearly the word.
fn respelled(word: &str, arguments: &[OsString], kpack: &Command) -> Option<Vec<String>> {
    let mut all = kpack.get_subcommands().filter(|command| !command.is_hide_set());
    let meant = all.find(|command| is_near(word, command.get_name()))?.get_name();
    let lossy = arguments.iter().skip(1).map(|argument| argument.to_string_lossy().into_owned());
    let replaced = lossy.map(|own| if own == word { meant.to_owned() } else { own });
    let words = Vec::from_iter(["kpack".to_owned()].into_iter().chain(replaced));
    accepts(kpack, &words).then_some(words)
}

/// Users of rocm-kpack, whose tools handle only artifacts, leave this word out.
fn in_artifact(
    error: &clap::Error,
    given: &Given,
    arguments: &[OsString],
    kpack: &Command,
) -> Option<String> {
    let place = place_of_command(arguments)?;
    let lossy = arguments.iter().map(|argument| argument.to_string_lossy().into_owned());
    let mut words = Vec::from_iter(lossy);
    "kpack".clone_into(words.first_mut()?);
    let word = words[place].clone();
    words.insert(place, "artifact".to_owned());
    let is_file =
        |input: &given::Input| Path::new(&input.path).is_file() && input.kind != Kind::Other;
    if given.inputs.iter().any(is_file) || !accepts(kpack, &words) {
        return None;
    }
    let what = match (kpack.find_subcommand(&word), error.get(ContextKind::InvalidArg)) {
        (None, _) => format!("`{word}` is a command of `kpack artifact`"),
        (Some(_), Some(ContextValue::String(option))) => {
            format!("`{option}` is an option of `kpack artifact {word}`")
        }
        _ => return None,
    };
    Some(with_lines(&format!("{what}; run"), &[vec![words]]))
}

/// What to type instead of a command that rejected what it got, after the error, if there is anything.
pub(super) fn instead_of_error(
    error: &Error,
    arguments: &[OsString],
    kpack: &Command,
) -> Option<String> {
    const IDS: &[Id] = &[
        ids::CODE_IN_ARCHIVES,
        ids::UNKNOWN_FILE,
        ids::NOT_A_FILE,
        ids::SEVERAL_SELECTED,
        ids::OUTPUT_IN_THE_WAY,
    ];
    if !may_be_printed(arguments) {
        return None;
    }
    let given = Given::read(arguments, kpack);
    // `kpack FILE` shows the file.
    let intent = given.intent.or(given.commands.is_empty().then_some(Intent::Show))?;
    if intent == Intent::Explain || given.inputs.is_empty() {
        return None;
    }
    let is_missing = matches!(error, Error::Io { source, .. } if source.kind() == ErrorKind::NotFound)
        && given.rest.is_empty();
    if !(is_missing || matches!(error, Error::Usage(_)) || IDS.contains(&error.id())) {
        return None;
    }
    let Plan { instead, mut lines } = plan(&given, kpack).0;
    let typed = sorted(arguments.iter().skip(1).map(|word| word.to_string_lossy().into_owned()));
    lines.retain(|line| match &line[..] {
        [only] => only[1] != "help" && sorted(only.iter().skip(1).cloned()) != typed,
        _ => true,
    });
    let said = error.without_id();
    let said = match instead {
        Some(instead) => format!("{said}; {instead}"),
        None => said,
    };
    let run = if said.contains("run `kpack") { "" } else { "\n  instead, run:" };
    // The ID ends the first line, as in other errors.
    let text = format!("{}{run}", with_id(&said, error.id()));
    (!lines.is_empty()).then(|| with_lines(&text, &lines))
}

/// The parts of words in any order, to compare command lines that say the same.
fn sorted(words: impl Iterator<Item = String>) -> BTreeSet<String> {
    let parts = |word: String| Vec::from_iter(word.split([',', '=']).map(str::to_owned));
    words.flat_map(parts).map(|part| part.trim_end_matches('/').to_owned()).collect()
}

/// What is wrong with the arguments.
fn wrong(error: &clap::Error, given: &Given) -> Option<String> {
    let command = given.commands.join(" ");
    if let Some(word) = &given.word {
        // Of a file, they are known.
        let asks = matches!(given.intent, Some(Intent::List)) && !given.inputs.is_empty();
        return Some(match (&*command, words::note(word).filter(|_| !asks)) {
            ("", Some(note)) => note.to_owned(),
            ("", None) => format!("there is no command `{word}`"),
            (above, _) => format!("`{above}` has no command `{word}`"),
        });
    }
    if !command.is_empty()
        && matches!(error.kind(), Misuse::InvalidSubcommand | Misuse::MissingSubcommand)
    {
        return Some(format!("`{command}` needs a command, such as `split`"));
    }
    if !given.unknown.is_empty() {
        return Some(format!("`{command}` has no {}", list(&given.unknown)));
    }
    let named = |kind| match error.get(kind) {
        Some(ContextValue::String(name)) => vec![name.clone()],
        Some(ContextValue::Strings(names)) => names.clone(),
        _ => Vec::new(),
    };
    let invalid = named(ContextKind::InvalidArg);
    let short = |name: &String| {
        let name = name.split([' ', '=']).next().unwrap_or_default();
        name.trim_matches(['<', '>', '.']).replace('|', " or ")
    };
    let note = given.names.iter().find_map(|name| words::note(name)).map(str::to_owned);
    match error.kind() {
        Misuse::MissingRequiredArgument if !invalid.is_empty() => {
            Some(format!("`{command}` needs {}", list(invalid.iter().map(short))))
        }
        _ if command.is_empty() => match &invalid[..] {
            _ if note.is_some() => note,
            [] => Some("a command is missing".to_owned()),
            _ => Some("the command comes first, as in `kpack show FILE`".to_owned()),
        },
        Misuse::UnknownArgument => {
            invalid.first().map(|word| format!("`{command}` does not take `{word}` here"))
        }
        Misuse::ArgumentConflict => {
            let others = named(ContextKind::PriorArg);
            let [first, ..] = &invalid[..] else { return None };
            Some(format!(
                "`{command}` does not take {} with {}",
                short(first),
                list(others.iter().map(short))
            ))
        }
        _ => None,
    }
}

/// Whether a command is the given one, and still lacks an option that kpack requires.
fn lacks_required(error: &clap::Error, given: &Given, line: &[String]) -> bool {
    let (Misuse::MissingRequiredArgument, Some(ContextValue::Strings(names))) =
        (error.kind(), error.get(ContextKind::InvalidArg))
    else {
        return false;
    };
    let option =
        |name: &String| name.strip_prefix("--")?.split([' ', '=']).next().map(str::to_owned);
    let mut required = names.iter().filter_map(option);
    let has = |name: &str| {
        line.iter().any(|word| word.strip_prefix("--").is_some_and(|own| own.starts_with(name)))
    };
    line[1..].starts_with(&given.commands) && required.any(|name| !has(&name))
}

/// A sentence, and command lines below it.
fn with_lines(text: &str, lines: &[Line]) -> String {
    let lines = lines.iter().map(|line| {
        let commands = line.iter().map(|words| {
            let quoted = words.iter().map(|word| match &**word {
                PIPE => word.clone(),
                // A comma in targets is plain for every shell.
                word if !word.is_empty()
                    && !word.starts_with('=')
                    && word.bytes().all(|byte| {
                        byte.is_ascii_alphanumeric() || b"_./=:+,-".contains(&byte)
                    }) =>
                {
                    word.to_owned()
                }
                word if !word.contains('\'') => format!("'{word}'"),
                word => shlex::try_quote(word).map_or_else(|_| word.to_owned(), Into::into),
            });
            Vec::from_iter(quoted).join(" ")
        });
        format!("\n  {}", Vec::from_iter(commands).join(" && "))
    });
    format!("{text}{}", String::from_iter(lines))
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
