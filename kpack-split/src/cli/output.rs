//! Words on standard output: tables, sizes, JSON.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};
use indicatif::BinaryBytes;
use serde::Serialize;

use crate::Error;

/// What standard output is called in errors.
pub(super) const STDOUT: &str = "standard output";

/// Writes to standard output.
pub(super) fn write(text: impl Display) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    write!(out, "{text}")
        .and_then(|()| out.flush())
        .map_err(|e| Error::io(Path::new(STDOUT), "write to", e))
}

/// Writes a line to standard error. Where that cannot be written, nobody can be told.
pub(super) fn complain(kind: &str, text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "kpack: {kind}: {text}");
}

/// Writes `value` as JSON, with a newline.
pub(super) fn json(value: &impl Serialize) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| Error::io(Path::new(STDOUT), "write to", e.into()))?;
    write(format_args!("{text}\n"))
}

/// A size for people: `1.25 GiB`.
pub(super) fn size(bytes: u64) -> String {
    BinaryBytes(bytes).to_string()
}

/// Rows under a heading, indented, with columns that line up. Those whose heading begins with `>`
/// are numbers, and line up on the right.
pub(super) fn table(
    indent: usize,
    heading: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(heading.iter().map(|name| name.trim_start_matches('>')));
    table.add_rows(rows);
    for (index, name) in heading.iter().enumerate() {
        if let Some(column) = table.column_mut(index) {
            column.set_padding((0, 2));
            if name.starts_with('>') {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
    }
    let lines = table.lines();
    lines
        .map(|line| format!("{:indent$}{}\n", "", line.trim_end()))
        .collect()
}

/// `1 kernel`, `2 kernels`.
pub(super) fn count(number: impl TryInto<u64>, what: &str) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}
