//! `kpack documents`, a hidden command: what packages and the handbook contain that only kpack knows.

mod manual;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Command, Subcommand};
use kpack_core::Error;
use kpack_format::code_object::processors;
use kpack_format::{Delivery, TargetId};

use super::output;

/// Print what packages of kpack and its handbook contain
///
/// The tasks that make these run this command, so that they need not link kpack.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    document: Document,
}

#[derive(Debug, Subcommand)]
enum Document {
    /// The manual pages, as a JSON object: names of files with their contents
    Manual {
        /// Scripts that get a page as well, made of their first here-document
        #[arg(value_name = "SCRIPT")]
        scripts: Vec<PathBuf>,
    },
    /// The handbook's page with the help of all commands, in Markdown
    Options,
    /// Each processor, followed by the generic targets whose code runs on it, and its families
    Processors,
}

/// Prints a document about this command.
pub(super) fn run(arguments: &Arguments, command: Command) -> Result<ExitCode, Error> {
    match &arguments.document {
        Document::Manual { scripts } => output::json(&manual::pages(command, scripts)?)?,
        Document::Options => output::lines(&options(command))?,
        Document::Processors => output::lines(&table_of_processors())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn options(command: Command) -> String {
    let mut page = "# All options\n\nWhat `kpack COMMAND --help` prints.\n".to_owned();
    let mut command = command.term_width(100);
    command.build();
    describe(&mut command, "kpack", &mut page);
    page
}

fn describe(command: &mut Command, name: &str, page: &mut String) {
    let help = command.render_long_help().to_string();
    let _ = write!(page, "\n## {name}\n\n```text\n{}\n```\n", help.trim_end());
    for inner in command.get_subcommands_mut() {
        if !inner.is_hide_set() && inner.get_name() != "help" {
            let name = format!("{name} {}", inner.get_name());
            describe(inner, &name, page);
        }
    }
}

fn table_of_processors() -> String {
    let mut lines = String::new();
    let gpus = processors().filter(|name| !name.ends_with("-generic"));
    for gpu in gpus.filter_map(|name| name.parse::<TargetId>().ok()) {
        let deliveries = [Delivery::Bundle, Delivery::Archive].into_iter();
        let generic: BTreeSet<String> = deliveries
            .filter_map(|delivery| Some(gpu.generic(delivery)?.target.processor().to_owned()))
            .collect();
        let families = Vec::from_iter(gpu.families());
        lines.push_str(gpu.processor());
        let names = families.iter().map(TargetId::plain_name);
        for other in generic.iter().map(String::as_str).chain(names) {
            lines.push(' ');
            lines.push_str(other);
        }
        lines.push('\n');
    }
    lines
}
