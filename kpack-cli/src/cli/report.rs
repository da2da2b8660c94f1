//! `kpack report`.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::output::{self, Text, size};
use super::print::print;
use kpack_artifact::sizes::{self, Depth, Row, Sizes};
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
    #[arg(long, value_enum, default_value_t = Depth::Binary)]
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
    let before = if sizes.before_was_measured { ">before" } else { ">unpacked" };
    let line = |module: &str, target: &str, what: &str, before: u64, after: u64| {
        let mut cells = vec![module.to_owned()];
        if depth != Depth::Module {
            cells.push(target.to_owned());
        }
        if depth == Depth::Binary {
            cells.push(what.to_owned());
        }
        cells.extend([size(before), size(after), change(before, after)]);
        cells
    };
    let row = |row: &Row| {
        let target = row.target.as_deref().unwrap_or("host");
        line(&row.module, target, &row.what, row.before, row.after)
    };
    let mut heading = vec!["module"];
    if depth != Depth::Module {
        heading.push("target");
    }
    if depth == Depth::Binary {
        heading.push("binary");
    }
    heading.extend([before, ">after", ">change"]);
    let (all_before, all_after) = sizes.total();
    let rows = sizes.by(depth);
    let total = line("total", "", "", all_before, all_after);
    let mut text = Text::default();
    text.table(0, &heading, rows.iter().map(row).chain([total]));
    let unpacked = if sizes.before_was_measured { "" } else { " unpacked" };
    for machine in &sizes.machines {
        let (before, after) = (machine.before, machine.after);
        text.line(format_args!(
            "a machine with {} has {} installed instead of {}{unpacked}: {}",
            machine.target,
            size(after),
            size(before),
            change(before, after)
        ));
    }
    text
}

fn change(before: u64, after: u64) -> String {
    match before {
        0 => String::new(),
        _ => format!("{:+.1}%", (after as f64 / before as f64 - 1.0) * 100.0),
    }
}
