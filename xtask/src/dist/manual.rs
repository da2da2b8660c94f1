//! The manual pages and the completions of the helper, from its own description of its arguments.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use flate2::{Compression, GzBuilder};
use kpack_cli::cli;

use super::files::{link_file, write_file};
use crate::repository;

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

/// The pages of a command and of the commands in it, by name. An alias has a page that includes the command's.
fn pages(command: &Command) -> Result<Vec<(String, Vec<u8>)>> {
    let name = |command: &Command| command.get_display_name().unwrap_or("kpack").to_owned();
    let mut pages = Vec::new();
    let parts = command.get_subcommands();
    let parts: Vec<&Command> = parts.filter(|part| !part.is_hide_set()).collect();
    for part in &parts {
        pages.extend(pages_of(part, &name(command))?);
        for alias in part.get_visible_aliases() {
            let include = format!(".so man1/{}.1\n", name(part));
            pages.push((format!("{}-{alias}", name(command)), include.into_bytes()));
        }
    }
    let others = parts.iter().map(|part| name(part)).collect();
    pages.push((name(command), page(command, others)?));
    Ok(pages)
}

/// The pages of a command that is part of another.
fn pages_of(command: &Command, parent: &str) -> Result<Vec<(String, Vec<u8>)>> {
    if command.has_subcommands() {
        return pages(command);
    }
    let name = command.get_display_name().unwrap_or_default();
    Ok(vec![(name.to_owned(), page(command, vec![parent.to_owned()])?)])
}

/// The first line of a page, without a date. `Man` would leave out the quotes, and with them the argument.
fn title(name: &str) -> Vec<u8> {
    let (name, version) = (name.to_uppercase(), env!("CARGO_PKG_VERSION"));
    format!(".TH {name} 1 \"\" \"kpack {version}\" \"kpack manual\"\n").into_bytes()
}

/// A page, which refers to these others.
fn page(command: &Command, others: Vec<String>) -> Result<Vec<u8>> {
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
    Ok(page)
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
fn page_of_script(script: &Path) -> Result<(String, Vec<u8>)> {
    let source = fs::read_to_string(script).with_context(|| script.display().to_string())?;
    let name = script.file_name().context("a script has a name")?;
    let name = name.to_string_lossy().into_owned();
    let help = source.split_once("<<'EOF'\n").map(|(_, help)| help);
    let help = help.and_then(|help| help.split_once("\nEOF\n"));
    let (help, _) = help.with_context(|| format!("{name} has no description"))?;
    let (summary, help) = help.split_once("\n\n").context("it has two paragraphs")?;
    let mut page = title(&name);
    let mut more = Roff::new();
    more.control("SH", ["NAME"]);
    more.text([roman(format!("{name} - {summary}"))]);
    verbatim(&mut more, "DESCRIPTION", help);
    more.control("SH", ["SEE ALSO"]);
    more.text([roman("kpack-targets(1)")]);
    more.to_writer(&mut page)?;
    Ok((name, page))
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

/// The shells, and where each looks for completions of installed programs.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "share/bash-completion/completions/kpack"),
    (Shell::Zsh, "share/zsh/vendor-completions/_kpack"),
    (Shell::Fish, "share/fish/vendor_completions.d/kpack.fish"),
];

/// Installs them into `prefix`.
///
/// # Errors
/// A file cannot be written.
pub(super) fn install(prefix: &Path) -> Result<()> {
    let mut command = cli::command().disable_help_subcommand(true);
    command.build();
    let script = repository::root().join("packaging/kpack-gpu-package");
    let script = page_of_script(&script)?;
    for (name, page) in pages(&command)?.into_iter().chain([script]) {
        // Without a name and time of its own, the compressed page is the same each time.
        let mut compressed = GzBuilder::new().write(Vec::new(), Compression::best());
        compressed.write_all(&page)?;
        let to = prefix.join(format!("share/man/man1/{name}.1.gz"));
        write_file(&to, &compressed.finish()?)?;
    }
    for (shell, file) in COMPLETIONS {
        write_file(&prefix.join(file), &cli::completions(shell))?;
    }
    // Where zsh looks on other distributions than Debian.
    let link = prefix.join("share/zsh/site-functions/_kpack");
    link_file("../vendor-completions/_kpack", &link)
}
