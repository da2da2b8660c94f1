//! The manual pages, from the description of the arguments.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use kpack_core::{Error, shown};

/// Variables that every command obeys, and those of some.
const ENVIRONMENT: [(&str, &[&str], &str); 5] = [
    ("NO_COLOR", &[], "If it is set, --color=auto uses no colours."),
    (
        "ROCM_KPACK_PATH",
        &["kpack", "kpack-doctor"],
        "Where the loader searches for archives, instead of the paths in markers. Only kpack doctor obeys it; other commands ignore it, with a note.",
    ),
    (
        "ROCM_KPACK_PATH_PREFIX",
        &["kpack", "kpack-doctor"],
        "Where the loader searches for archives before the paths in markers, as above.",
    ),
    (
        "ROCM_KPACK_DISABLE",
        &["kpack", "kpack-doctor"],
        "If it is set and not 0, the loader finds nothing, as above.",
    ),
    (
        "SOURCE_DATE_EPOCH",
        &["kpack-report", "kpack-wheel-split"],
        "The time of what is written, in seconds since 1970, so that it is the same each time.",
    ),
];

/// The text of each page, by the name of its file.
type Pages = BTreeMap<String, String>;

/// The pages of a command, of the commands in it, and of scripts.
///
/// # Errors
/// A script cannot be read, or does not describe itself.
pub(super) fn pages(command: Command, scripts: &[PathBuf]) -> Result<Pages, Error> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = Pages::new();
    add_with_parts(&command, &mut pages).expect("writing to memory does not fail");
    for script in scripts {
        let (name, page) = page_of_script(script)?;
        pages.insert(file(&name), page);
    }
    Ok(pages)
}

fn file(name: &str) -> String {
    format!("{name}.1")
}

/// Adds the pages of a command and of the commands in it.
fn add_with_parts(command: &Command, pages: &mut Pages) -> io::Result<()> {
    let name = |command: &Command| command.get_display_name().unwrap_or("kpack").to_owned();
    let parts: Vec<&Command> =
        command.get_subcommands().filter(|part| !part.is_hide_set()).collect();
    for part in &parts {
        if part.has_subcommands() {
            add_with_parts(part, pages)?;
        } else {
            pages.insert(file(&name(part)), page(part, vec![name(command)])?);
        }
    }
    let others = parts.iter().map(|part| name(part)).collect();
    pages.insert(file(&name(command)), page(command, others)?);
    Ok(())
}

/// The first line of a page, without a date. `Man` would leave out the quotes, and with them the argument.
fn title(name: &str) -> Vec<u8> {
    let (name, version) = (name.to_uppercase(), env!("CARGO_PKG_VERSION"));
    format!(".TH {name} 1 \"\" \"kpack {version}\" \"kpack manual\"\n").into_bytes()
}

/// A page, which refers to these others.
fn page(command: &Command, others: Vec<String>) -> io::Result<String> {
    let name = command.get_display_name().unwrap_or("kpack").to_owned();
    let after = command.get_after_help().map(ToString::to_string);
    let man = Man::new(command.clone().after_help(""));
    let mut page = title(&name);
    man.render_name_section(&mut page)?;
    synopsis(command).to_writer(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut more = Roff::new();
    for part in after.unwrap_or_default().split("\n\n") {
        let (heading, text) = part.split_once(":\n").unwrap_or(("", part));
        match heading {
            "Examples" => verbatim(&mut more, "EXAMPLES", text),
            "Exit codes" => exit_status(&mut more, text),
            _ if part.trim().is_empty() => {}
            _ => verbatim(&mut more, "NOTES", part),
        }
    }
    more.control("SH", ["ENVIRONMENT"]);
    for (variable, commands, text) in ENVIRONMENT {
        if commands.is_empty() || commands.contains(&name.as_str()) {
            more.control("TP", []).text([bold(variable)]);
            more.text([roman(text)]);
        }
    }
    more.control("SH", ["SEE ALSO"]);
    let others = others.iter().map(|other| format!("{other}(1)"));
    more.text([roman(Vec::from_iter(others).join(", "))]);
    more.control("PP", []);
    more.text([roman("The handbook is in /usr/share/doc/kpack.")]);
    more.to_writer(&mut page)?;
    Ok(text(page))
}

fn text(page: Vec<u8>) -> String {
    String::from_utf8(page).expect("what is made of text is text")
}

/// The usage as `--help` has it, with the names of arguments, which `Man` leaves out.
fn synopsis(command: &Command) -> Roff {
    let usage = command.clone().render_usage().to_string();
    let mut section = Roff::new();
    section.control("SH", ["SYNOPSIS"]);
    let name = command.get_bin_name().unwrap_or("kpack");
    for line in usage.trim_start_matches("Usage:").lines().map(str::trim) {
        match line.strip_prefix(name) {
            Some(rest) => section.text([bold(name), roman(rest)]),
            None => section.text([roman(line)]),
        };
    }
    section
}

/// The page of a script, whose first here-document describes it.
fn page_of_script(script: &Path) -> Result<(String, String), Error> {
    let source = fs::read_to_string(script).map_err(|e| Error::io(script, "read", e))?;
    let name = script.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let help = source
        .split_once("<<'EOF'\n")
        .and_then(|(_, help)| help.split_once("\nEOF\n"))
        .and_then(|(help, _)| help.split_once("\n\n"));
    let (summary, help) = help.ok_or_else(|| {
        Error::usage(format!(
            "{}: no description (expected a here-document that ends with EOF, with a summary in its first paragraph)",
            shown(script)
        ))
    })?;
    let mut more = Roff::new();
    more.control("SH", ["NAME"]);
    more.text([roman(format!("{name} - {summary}"))]);
    verbatim(&mut more, "DESCRIPTION", help);
    more.control("SH", ["SEE ALSO"]);
    more.text([roman("kpack-targets(1)")]);
    let mut page = title(&name);
    more.to_writer(&mut page).expect("writing to memory does not fail");
    Ok((name, text(page)))
}

/// A section whose lines stay as they are.
fn verbatim(page: &mut Roff, heading: &str, text: &str) {
    page.control("SH", [heading]).control("nf", []);
    for line in text.lines() {
        page.text([roman(line)]);
    }
    page.control("fi", []);
}

/// Exit codes, a line each, which begins with the code, or continues the line before.
fn exit_status(page: &mut Roff, text: &str) {
    page.control("SH", ["EXIT STATUS"]);
    for line in text.lines() {
        match line.trim_start().split_once("  ") {
            Some((code, meaning)) if code.parse::<u8>().is_ok() => {
                page.control("TP", []).text([bold(code)]);
                page.text([roman(meaning)]);
            }
            _ => _ = page.text([roman(line.trim_start())]),
        }
    }
}
