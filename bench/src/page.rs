//! The results in Markdown, and `docs/dev/performance.md`, which shows them.

use std::fmt::Write;
use std::fs;
use std::thread;

use anyhow::{Context, Result};
use kpack_tests::page::repository;

use crate::comparison::{Outcome, Spread};

/// Parts of the page, by name; each stands between two comments, `<!-- NAME -->` and `<!-- end -->`.
pub(crate) type Parts = Vec<(&'static str, String)>;

/// Replaces parts of `docs/dev/performance.md`.
///
/// # Errors
/// The page cannot be written, or has no such part.
pub(crate) fn write(parts: &Parts) -> Result<()> {
    let path = repository().join("docs/dev/performance.md");
    let mut page = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    for (name, text) in parts {
        page = replaced(&page, name, text)
            .with_context(|| format!("{}: no part `{name}`", path.display()))?;
    }
    fs::write(&path, page)?;
    println!("\nWrote {}.", path.display());
    Ok(())
}

fn replaced(page: &str, name: &str, text: &str) -> Option<String> {
    let start = format!("<!-- {name} -->\n");
    let (before, rest) = page.split_once(&start)?;
    let (_, after) = rest.split_once("<!-- end -->")?;
    Some(format!("{before}{start}\n{text}\n<!-- end -->{after}"))
}

/// What is measured on, and how busy it is.
///
/// # Errors
/// There is no `/proc`.
pub(crate) fn machine(rounds: u32) -> Result<String> {
    let info = fs::read_to_string("/proc/cpuinfo").context("/proc/cpuinfo")?;
    let field = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(": ")).unwrap_or_default().1
    };
    let flags = Vec::from_iter(field("flags").split(' '));
    // What SHA-256, BLAKE3 and zstd choose code by.
    let used = ["sha_ni", "avx512f", "avx2", "bmi2"].map(|flag| {
        let with = if flags.contains(&flag) { "with" } else { "without" };
        format!("{with} {flag}")
    });
    let load = fs::read_to_string("/proc/loadavg").context("/proc/loadavg")?;
    Ok(format!(
        "{}, {} processors, {}; {rounds} rounds. Load average when they began: {}.\n",
        field("model name"),
        thread::available_parallelism()?,
        used.join(", "),
        load.split(' ').next().unwrap_or_default(),
    ))
}

/// A table of comparisons; empty without any.
pub(crate) fn table<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> String {
    let mut outcomes = outcomes.into_iter().peekable();
    if outcomes.peek().is_none() {
        return String::new();
    }
    let mut text = "| | against | wall time | ratio | CPU time | ratio | wall and CPU ratio without SHA, AVX2 and AVX-512 | peak MB | bounds |\n\
        | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n"
        .to_owned();
    for outcome in outcomes {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {:.0} | {} |",
            outcome.row.what,
            outcome.against,
            pair(outcome.wall()),
            ratio(&outcome.wall_ratio()),
            pair(outcome.cpu()),
            ratio(&outcome.cpu_ratio()),
            portable(outcome),
            outcome.memory()[1],
            bounds(outcome),
        );
    }
    text
}

/// What was read and written, where that was counted; empty without any.
pub(crate) fn transfers(outcomes: &[Outcome]) -> String {
    let mut rows = String::new();
    for outcome in outcomes {
        if let Some([read, written]) = outcome.per_byte() {
            let pair = |[own, reference]: [f64; 2]| format!("{own:.2} : {reference:.2}");
            let (what, reference) = (outcome.row.what, outcome.against);
            let (read, written) = (pair(read), pair(written));
            let _ = writeln!(rows, "| {what} | {reference} | {read} | {written} |");
        }
    }
    if rows.is_empty() {
        return rows;
    }
    format!(
        "| per byte of output | against | bytes read | bytes written |\n| --- | --- | ---: | ---: |\n{rows}"
    )
}

/// Which bounds hold.
pub(crate) fn bounds(outcome: &Outcome) -> String {
    let bounds = outcome.bounds.iter();
    let judged = bounds.map(|bound| match outcome.judge(*bound) {
        (words, true) => format!("{words}: holds"),
        (words, false) => format!("{words}: **missed**"),
    });
    judged.collect::<Vec<_>>().join("<br>")
}

/// kpack's time and the reference's.
fn pair([reference, own]: [f64; 2]) -> String {
    match own.min(reference) {
        0.1.. => format!("{own:.2} : {reference:.2} s"),
        _ => format!("{:.2} : {:.2} ms", own * 1e3, reference * 1e3),
    }
}

/// What it would take without the instructions that hash fast; empty if that was not measured.
pub(crate) fn portable(outcome: &Outcome) -> String {
    let ratios = outcome.portable_ratios();
    ratios.map_or_else(String::new, |[wall, cpu]| format!("{:.2}, {:.2}", wall.median, cpu.median))
}

pub(crate) fn ratio(Spread { median, least, most }: &Spread) -> String {
    format!("{median:.2} ({least:.2}–{most:.2})")
}
