//! `kpack explain`.

mod catalogue;

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::output::{self, Text};
use super::print::print;
use catalogue::{CatalogueEntry, SECTIONS};
use kpack_core::Error;

/// Say what a finding means, why it matters, and what to do
///
/// Warnings, faults and errors end with their ID: [stale-archive]. IDs are stable; the words of a message are not.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  success
  2  there is no such ID")]
pub(super) struct Arguments {
    /// IDs of findings. Without one, kpack lists all
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// Print the page of all findings, in Markdown
    #[arg(long, hide = true, conflicts_with = "ids")]
    markdown: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let entries: Vec<&'static CatalogueEntry> =
        arguments.ids.iter().map(|id| known(id)).collect::<Result<_, _>>()?;
    if print().json {
        let chosen = if entries.is_empty() { catalogue::entries().collect() } else { entries };
        output::json(&Vec::from_iter(chosen.into_iter().map(Explained::from)))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = Text::default();
    if arguments.markdown {
        page(&mut text);
    } else if entries.is_empty() {
        for section in SECTIONS {
            let rows = section
                .entries
                .iter()
                .map(|entry| vec![entry.id.to_string(), entry.meaning.to_owned()]);
            text.table(0, &[section.title, ""], rows);
        }
    }
    for (index, entry) in entries.into_iter().enumerate() {
        if index > 0 {
            text.line("");
        }
        text.line(entry.id);
        text.line(format_args!("  {}", entry.meaning));
        text.line(format_args!("  Why it matters: {}", entry.why));
        text.line(format_args!("  What to do: {}", entry.help));
    }
    text.write()?;
    Ok(ExitCode::SUCCESS)
}

/// An entry in JSON.
#[derive(Serialize)]
struct Explained {
    id: String,
    meaning: &'static str,
    why: &'static str,
    help: &'static str,
}

impl From<&'static CatalogueEntry> for Explained {
    fn from(entry: &'static CatalogueEntry) -> Self {
        Self { id: entry.id.to_string(), meaning: entry.meaning, why: entry.why, help: entry.help }
    }
}

fn known(id: &str) -> Result<&'static CatalogueEntry, Error> {
    let name = id.trim_start_matches('[').trim_end_matches(']');
    catalogue::entries().find(|entry| entry.id.as_str() == name).ok_or_else(|| {
        let text = format!("`{id}` is not the ID of a finding; `kpack explain` lists them");
        Error::usage(text)
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
