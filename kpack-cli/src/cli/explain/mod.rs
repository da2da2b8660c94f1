//! `kpack explain`.

mod catalogue;
mod programs;

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::exit_codes::{ExitCodeEntry, explained};
use super::output::{self, Text};
use super::print::print;
use catalogue::{CatalogueEntry, SECTIONS};
use kpack_core::Error;
use programs::ProgramError;

/// Say what a finding, an exit code or a HIP error means, and what to do
///
/// Warnings, faults and errors end with their ID: [stale-archive]. IDs are stable; the words of a message are not.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kpack explain stale-archive
  kpack explain 3
  kpack explain hipErrorNoBinaryForGpu

Exit codes:
  0  success
  2  there is no such ID, exit code or error")]
pub(super) struct Arguments {
    /// IDs of findings, exit codes, or names, numbers or texts of HIP errors. Without one, kpack lists all IDs
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// Print the page of all findings, in Markdown
    #[arg(long, hide = true, conflicts_with = "ids")]
    markdown: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    // As in "exit code 3", which is how messages of build systems name it.
    let mut words = Vec::from_iter(arguments.ids.iter().flat_map(|id| id.split_whitespace()));
    let is_exit_code = words.first() == Some(&"code")
        || words.iter().any(|word| ["exit", "exit-code"].contains(word));
    words.retain(|word| !is_exit_code || !["exit", "code", "exit-code"].contains(word));
    if words.is_empty() && !arguments.ids.is_empty() {
        return Err(Error::usage("name the exit code as well, as in `kpack explain 3`"));
    }
    let each = words.iter().map(|word| match known(word) {
        Err(error) if !is_exit_code => {
            ProgramError::find(word).map(Explained::Program).ok_or(error)
        }
        found => found,
    });
    // Without IDs, it is the text of one error.
    let whole = || ProgramError::find(&words.join(" ")).filter(|_| !is_exit_code);
    let chosen: Vec<Explained> = match each.collect::<Result<_, _>>() {
        Ok(chosen) => chosen,
        Err(error) => match whole() {
            Some(program) => vec![Explained::Program(program)],
            None => vec![in_message(&words).ok_or(error)?],
        },
    };
    if print().json {
        let all = || catalogue::entries().map(Explained::finding).collect();
        output::json(&if chosen.is_empty() { all() } else { chosen })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = Text::default();
    if arguments.markdown {
        page(&mut text);
    } else if chosen.is_empty() {
        for section in SECTIONS {
            let rows = section
                .entries
                .iter()
                .map(|entry| vec![entry.id.to_string(), entry.meaning.to_owned()]);
            text.table(0, &[section.title, ""], rows);
        }
    }
    for (index, explained) in chosen.into_iter().enumerate() {
        if index > 0 {
            text.line("");
        }
        explained.print(&mut text);
    }
    text.write()?;
    Ok(ExitCode::SUCCESS)
}

/// An explanation, as it is printed in JSON.
#[derive(Serialize)]
#[serde(untagged)]
enum Explained {
    Finding { id: String, meaning: &'static str, why: &'static str, help: &'static str },
    ExitCode { exit_code: u32, meaning: &'static str, help: &'static str },
    Program(&'static ProgramError),
}

impl Explained {
    fn finding(entry: &CatalogueEntry) -> Self {
        let &CatalogueEntry { id, meaning, why, help } = entry;
        Self::Finding { id: id.to_string(), meaning, why, help }
    }

    fn print(&self, text: &mut Text) {
        let (Self::Finding { meaning, help, .. }
        | Self::ExitCode { meaning, help, .. }
        | Self::Program(ProgramError { meaning, help, .. })) = self;
        match self {
            Self::Finding { id, .. } => text.line(id),
            Self::Program(ProgramError { error, code, text: said, .. }) => {
                text.line(format_args!("{error} ({code}): {said}"));
            }
            Self::ExitCode { exit_code, .. } => text.line(format_args!("exit code {exit_code}")),
        }
        text.line(format_args!("  {meaning}"));
        if let Self::Finding { why, .. } = self {
            text.line(format_args!("  Why it matters: {why}"));
        }
        text.line(format_args!("  What to do: {help}"));
    }
}

/// The explanation of the ID at the end of one of kpack's messages.
fn in_message(words: &[&str]) -> Option<Explained> {
    words.iter().rfind(|word| word.starts_with('[')).and_then(|word| known(word).ok())
}

/// Whether `kpack explain TEXT` explains something.
pub(super) fn knows(text: &str) -> bool {
    ProgramError::find(text).is_some()
        || in_message(&Vec::from_iter(text.split_whitespace())).is_some()
        || !text.is_empty() && text.split_whitespace().all(|word| known(word).is_ok())
}

/// The explanation of an ID, or of an exit code.
fn known(word: &str) -> Result<Explained, Error> {
    // As they are written: no code is called `+3` or `03`.
    let exit_code = word.parse().ok().filter(|code: &u32| code.to_string() == word);
    if let Some(exit_code) = exit_code {
        let Some(ExitCodeEntry { meaning, help }) = explained(exit_code) else {
            let text =
                format!("{exit_code} is not an exit code of kpack; `kpack --help` lists them");
            return Err(Error::usage(text));
        };
        return Ok(Explained::ExitCode { exit_code, meaning, help });
    }
    let name = word.trim_start_matches('[').trim_end_matches(']');
    let entry = catalogue::entries().find(|entry| entry.id.as_str() == name);
    entry.map(Explained::finding).ok_or_else(|| {
        let not_known = format!("`{word}` is not the ID of a finding");
        // Whoever has a file asks why its code does not load.
        let doctor = shlex::try_join(["kpack", "doctor", word]).ok();
        match doctor.filter(|_| Path::new(word).exists()) {
            Some(doctor) => Error::usage(format!("{not_known}; for a file, run `{doctor}`")),
            None => Error::usage(format!("{not_known}; `kpack explain` lists them")),
        }
    })
}

/// docs/findings.md.
fn page(text: &mut Text) {
    text.line("# Error and warning messages");
    text.line("");
    text.line("Every finding has a stable ID, which is in brackets at the end of a message, and `id` in JSON. Scripts can");
    text.line("compare IDs, but the words of messages change. `kpack explain ID` prints an entry of this page.");
    for section in SECTIONS {
        text.line("");
        text.line(format_args!("## {}", section.title));
        for entry in section.entries {
            text.line("");
            text.line(format_args!("### {}", entry.id));
            text.line("");
            text.line(entry.meaning);
            text.line("");
            text.line(format_args!("- Why it matters: {}", entry.why));
            text.line(format_args!("- What to do: {}", entry.help));
        }
    }
}
