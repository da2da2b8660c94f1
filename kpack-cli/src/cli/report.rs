//! `kpack report`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::output::{self, Text, size};
use super::print::print;
use crate::report::columns;
use kpack_artifact::sizes::{self, ARCHIVE_INDEX, Depth, MachineSizes, Row, Sizes};
use kpack_core::publish;
use kpack_core::{Error, Finding, Severity, ids};
use kpack_split::{leftover, source_date};

/// Report where the bytes are: by module, target and binary, before and after a split
///
/// Reads install prefixes, artifact directories, and directories of them. Each bundle of a fat binary
/// counts for its targets. Without --before, the sizes of the unpacked code objects take its place.
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Examples:
  Compare packages with the artifacts that they were made from:
    kpack report recombined --before artifacts
  Write a page with a treemap:
    kpack report /opt/rocm --html sizes.html

", exit_codes!()))]
pub(super) struct Arguments {
    /// Directories to measure
    #[arg(value_name = "DIR", required = true)]
    paths: Vec<PathBuf>,
    /// Unsplit tree to compare with. Can be repeated
    #[arg(long, value_name = "DIR")]
    before: Vec<PathBuf>,
    /// Level of detail of the table
    #[arg(long, value_enum, default_value_t = Depth::Target)]
    by: Depth,
    /// Write a self-contained page with a table and treemaps to FILE
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Title of the page; the default names the modules, or the directories
    #[arg(long, value_name = "TEXT", requires = "html")]
    title: Option<String>,
}

impl Arguments {
    /// Whether it writes no file.
    pub(super) fn only_prints(&self) -> bool {
        self.html.is_none()
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let mut sizes = sizes::measure(&arguments.paths, &arguments.before)?;
    for leftover in &sizes.leftovers {
        let note = Finding::new(Severity::Note, ids::LEFTOVER, leftover, leftover::TEXT);
        output::complain_finding(&note);
    }
    for note in sizes.findings.iter().filter(|_| !print().json) {
        output::complain_finding(note);
    }
    // Makes the page reproducible.
    if let Some(seconds) = source_date(Some)? {
        sizes.newest = seconds;
    }
    if let Some(path) = &arguments.html {
        let page = crate::report::page(&sizes, &title(arguments, &sizes));
        publish::write_output(path, |staged| {
            let written = staged.file().write_all(page.as_bytes());
            written.map_err(|e| Error::io(path, "write", e))
        })?;
    }
    if print().json {
        output::json(&sizes)?;
    } else if !print().quiet {
        text(&sizes, arguments.by).write()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The most modules that a title names.
const MOST_MODULES: usize = 3;

/// The title of the page: of few modules, their names. Of a path, only its end: pages are published, and directories of one
/// machine do not belong there.
fn title(arguments: &Arguments, sizes: &Sizes) -> String {
    if let Some(title) = &arguments.title {
        return title.clone();
    }
    let split = sizes.rows.iter().filter(|row| row.target.is_some());
    let modules = BTreeSet::from_iter(split.map(|row| row.module.as_str()));
    if (1..=MOST_MODULES).contains(&modules.len()) {
        return format!("Sizes of {}", Vec::from_iter(modules).join(", "));
    }
    let name = |path: &PathBuf| {
        let real = path.canonicalize();
        let known = real.as_deref().unwrap_or(path);
        let name = known.file_name().unwrap_or(known.as_os_str());
        kpack_core::shown(Path::new(name)).to_string()
    };
    let names = Vec::from_iter(arguments.paths.iter().map(name));
    format!("Sizes of {}", names.join(", "))
}

fn text(sizes: &Sizes, depth: Depth) -> Text {
    let rows = sizes.by(depth);
    let mut text = match depth {
        Depth::Binary => by_binary(sizes, &rows),
        Depth::Module | Depth::Target => by_module(sizes, &rows, depth),
    };
    of_machines(sizes).into_iter().for_each(|sentence| text.line(sentence));
    text
}

fn target_name(row: &Row) -> &str {
    row.target.as_deref().unwrap_or("host")
}

fn by_module(sizes: &Sizes, rows: &[Row], depth: Depth) -> Text {
    let [before, after] = columns(sizes).map(|column| format!(">{column}"));
    let mut heading = vec!["module", "target", &before, &after, ">change"];
    let line = |module: &str, target: &str, before, after| {
        let words = [module, target].map(str::to_owned);
        let mut cells = Vec::from([size(before), size(after), change(before, after)]);
        cells.splice(0..0, words.into_iter().take(if depth == Depth::Module { 1 } else { 2 }));
        cells
    };
    if depth == Depth::Module {
        heading.remove(1);
    }
    let row = |row: &Row| line(&row.module, target_name(row), row.before, row.after);
    let (before, after) = sizes.total();
    let total = line("total", "", before, after);
    let mut text = Text::default();
    text.table(0, &heading, rows.iter().map(row).chain([total]));
    text
}

/// The bytes before and after.
type ByTarget<'a> = BTreeMap<&'a str, (u64, u64)>;

const INDENT: &str = "  ";

/// The rows of each binary below its path, which may be as long as a line.
fn by_binary(sizes: &Sizes, rows: &[Row]) -> Text {
    let mut binaries: BTreeMap<(&str, &str), ByTarget<'_>> = BTreeMap::new();
    for row in rows {
        let target = if row.what == ARCHIVE_INDEX { "all targets" } else { target_name(row) };
        let of_binary = binaries.entry((&row.module, &row.what)).or_default();
        let sum = of_binary.entry(target).or_default();
        *sum = (sum.0 + row.before, sum.1 + row.after);
    }
    let targets = binaries.values().flat_map(BTreeMap::keys);
    let width = INDENT.len() + targets.map(|target| target.len()).max().unwrap_or_default();
    let mut text = Text::default();
    let line = |text: &mut Text, name: &str, [before, after, change]: [&str; 3]| {
        let line = format!("{name:width$}{before:>13}{after:>13}{change:>10}");
        text.line(line.trim_end());
    };
    let sizes_of = |text: &mut Text, name: &str, (before, after)| {
        line(text, name, [&size(before), &size(after), &change(before, after)]);
    };
    let [before, after] = columns(sizes);
    line(&mut text, "", [before, after, "change"]);
    for ((module, what), targets) in &binaries {
        text.line(format_args!("{what} ({})", module.trim_matches(['(', ')'])));
        // The host comes first.
        let (host, device): (Vec<_>, Vec<_>) =
            targets.iter().partition(|(target, _)| **target == "host");
        for (target, sum) in host.into_iter().chain(device) {
            sizes_of(&mut text, &format!("{INDENT}{target}"), *sum);
        }
    }
    sizes_of(&mut text, "total", sizes.total());
    text
}

/// Up to so many sentences about machines are printed.
const MOST_SENTENCES: usize = 3;

/// Says what machines have installed. Those that have the same share a sentence. If that leaves many, one gives the range.
fn of_machines(sizes: &Sizes) -> Vec<String> {
    let (start, have) = match sizes.has_fat_binaries {
        true => ("if split, a machine", "would have"),
        false => ("a machine", "has"),
    };
    let (all_before, all_after) = sizes.total();
    // Most fat binaries are as large as their code, and archives are much smaller.
    let is_plain = sizes.has_fat_binaries && !sizes.before_was_measured && all_before == all_after;
    let installed = if is_plain { "installed (before compression)" } else { "installed" };
    let unpacked = if sizes.before_was_measured { "" } else { " unpacked" };
    let facts = |machine: &MachineSizes| {
        let MachineSizes { before, after, .. } = *machine;
        (size(after), size(before), change(before, after))
    };
    let mut alike: Vec<(_, Vec<&str>)> = Vec::new();
    for machine in &sizes.machines {
        let facts = facts(machine);
        match alike.iter_mut().find(|(known, _)| *known == facts) {
            Some((_, targets)) => targets.push(&machine.target),
            None => alike.push((facts, vec![&machine.target])),
        }
    }
    let least = sizes.machines.iter().min_by_key(|machine| machine.after);
    let most = sizes.machines.iter().max_by_key(|machine| machine.after);
    if let (Some(least), Some(most)) = (least, most)
        && alike.len() > MOST_SENTENCES
        && !print().verbose
    {
        let [(after, before, change), (most_after, _, most_change)] = [facts(least), facts(most)];
        let (small, large) = (&least.target, &most.target);
        return vec![format!(
            "{start} {have} {after} ({small}) to {most_after} ({large}) {installed} instead of \
             {before}{unpacked}: {change} to {most_change}; --verbose lists all GPUs"
        )];
    }
    let sentence = |((after, before, change), targets): (_, Vec<&str>)| {
        let targets = either(&targets);
        format!(
            "{start} with {targets} {have} {after} {installed} instead of {before}{unpacked}: {change}"
        )
    };
    alike.into_iter().map(sentence).collect()
}

/// `a`, `a or b`, `a, b or c`.
fn either(words: &[&str]) -> String {
    match words.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => words.concat(),
    }
}

fn change(before: u64, after: u64) -> String {
    match before {
        0 => String::new(),
        _ => format!("{:+.1}%", (after as f64 / before as f64 - 1.0) * 100.0),
    }
}
