//! Prints lines, tables, sizes and JSON on standard output. All text for people is escaped here,
//! because it contains names that others have chosen.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};
use kpack::internal::Environment;
pub(super) use kpack_core::words::{bytes as size, counted as count};
use kpack_core::{escaped, shown};
use serde::Serialize;

use super::print::print;
use kpack_core::finding::with_id;
use kpack_core::publish::write_output;
use kpack_core::{Error, Finding, Severity};

/// The name of standard output in errors.
pub(super) const STDOUT: &str = "standard output";

/// Whether the reader of standard output closed it.
pub(super) fn is_closed(error: &io::Error) -> bool {
    /// ERROR_PIPE_NOT_CONNECTED.
    const NOT_CONNECTED: i32 = 233;
    error.kind() == io::ErrorKind::BrokenPipe
        || cfg!(windows) && error.raw_os_error() == Some(NOT_CONNECTED)
}

/// Lines for standard output.
#[derive(Debug, Default)]
pub(super) struct Text(String);

impl Text {
    /// Adds a line.
    pub(super) fn line(&mut self, text: impl Display) {
        self.0 += &format!("{}\n", escaped(&text.to_string()));
    }

    /// Adds a line that begins with the word for a severity, in its colour.
    pub(super) fn labelled(&mut self, severity: Severity, text: impl Display) {
        let text = escaped(&text.to_string()).to_string();
        self.0 += &format!("{} {text}\n", print().painted(severity, label(severity)));
    }

    /// Adds a heading and indented rows in aligned columns. Columns whose heading begins with `>`
    /// are numbers and align to the right.
    pub(super) fn table(
        &mut self,
        indent: usize,
        heading: &[&str],
        rows: impl IntoIterator<Item = Vec<String>>,
    ) {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_header(heading.iter().map(|name| name.trim_start_matches('>')));
        let rows = rows.into_iter();
        table.add_rows(rows.map(|cells| {
            let cells = cells.into_iter();
            cells.map(|cell| escaped(&cell).to_string())
        }));
        for (index, name) in heading.iter().enumerate() {
            if let Some(column) = table.column_mut(index) {
                column.set_padding((0, 2));
                if name.starts_with('>') {
                    column.set_cell_alignment(CellAlignment::Right);
                }
            }
        }
        for line in table.lines() {
            self.0 += &format!("{:indent$}{}\n", "", line.trim_end());
        }
    }

    /// Writes the lines to standard output.
    pub(super) fn write(&self) -> Result<(), Error> {
        lines(&self.0)
    }
}

/// Writes names, a line each, or as JSON.
pub(super) fn names(names: &[String]) -> Result<(), Error> {
    if print().json {
        return json(&names);
    }
    let mut text = Text::default();
    names.iter().for_each(|name| text.line(name));
    text.write()
}

/// A severity at the start of a line, as wide as the others.
fn label(severity: Severity) -> &'static str {
    match severity {
        Severity::Fault => "FAULT",
        Severity::Warning => "warn ",
        Severity::Note => "note ",
        Severity::Ok => "ok   ",
    }
}

/// Writes lines as they are.
pub(super) fn lines(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(failed)
}

/// The error of writing to standard output.
pub(super) fn failed(error: io::Error) -> Error {
    Error::io(Path::new(STDOUT), "write to", error)
}

/// Writes a message to standard error and ignores a failure to do so. Further lines are indented,
/// so that no file name can pass for a message.
pub(super) fn complain(kind: &str, text: impl Display) {
    complain_lines(kind, &text.to_string(), "\n  ");
}

/// Writes a message whose lines have `between` between them.
fn complain_lines(kind: &str, text: &str, between: &str) {
    let lines: Vec<String> = text.split(between).map(|line| escaped(line).to_string()).collect();
    let _ = writeln!(io::stderr().lock(), "kpack: {}: {}", painted(kind), lines.join(between));
}

/// Writes the file or component that is processed, with `--verbose`.
pub(super) fn processing(path: &Path) {
    if print().verbose {
        complain("processing", shown(path));
    }
}

/// The kind of a message, in its colour.
pub(super) fn painted(kind: &str) -> String {
    match kind {
        "error" => print().painted_error(Severity::Fault, kind),
        "warning" => print().painted_error(Severity::Warning, kind),
        kind => kind.to_owned(),
    }
}

/// The word for a finding on standard error.
pub(super) fn kind(severity: Severity) -> &'static str {
    match severity {
        Severity::Ok | Severity::Note => "note",
        Severity::Warning => "warning",
        Severity::Fault => "error",
    }
}

/// Writes a finding to standard error, with its ID; with `--quiet`, only one that is more than a note.
pub(super) fn complain_finding(finding: &Finding) {
    complain_about(finding, "");
}

/// As [`complain_finding`], with `others` behind the finding's path.
fn complain_about(finding: &Finding, others: &str) {
    if finding.severity > Severity::Note || !print().quiet {
        let help = finding.help.iter().map(|help| format!("; {help}"));
        let text = finding.text.clone() + &String::from_iter(help);
        complain(kind(finding.severity), described_with(finding, others, &text));
    }
}

/// Writes findings as [`complain_finding`] does. Without `--verbose`, those that say the same about several files share a
/// line.
pub(super) fn complain_findings(findings: &[Finding]) {
    if print().verbose {
        return findings.iter().for_each(complain_finding);
    }
    let mut alike: BTreeMap<_, usize> = BTreeMap::new();
    let key = |finding: &Finding| {
        finding.path.is_some().then(|| {
            (
                finding.id.as_str(),
                kind(finding.severity),
                finding.text.clone(),
                finding.help.clone(),
            )
        })
    };
    for key in findings.iter().filter_map(key) {
        *alike.entry(key).or_default() += 1;
    }
    for finding in findings {
        // The first one stands for all.
        let Some(number) = key(finding).map_or(Some(1), |key| alike.remove(&key)) else {
            continue;
        };
        let others = match number - 1 {
            0 => String::new(),
            others => format!(" (and {}; --verbose lists them)", count(others, "other file")),
        };
        complain_about(finding, &others);
    }
}

/// A finding in words: its path, its text and its ID.
pub(super) fn described(finding: &Finding) -> String {
    described_with(finding, "", &finding.text)
}

fn described_with(finding: &Finding, others: &str, text: &str) -> String {
    let path =
        finding.path.as_ref().map_or(String::new(), |path| format!("{}{others}: ", shown(path)));
    match finding.severity {
        Severity::Ok => format!("{path}{text}"),
        _ => format!("{path}{}", with_id(text, finding.id)),
    }
}

/// Says which variables of the loader are set, for commands that ignore them: what is installed is the same
/// for everybody.
pub(super) fn note_ignored_variables() {
    let is_set = |name: &&&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    for name in Environment::VARIABLES.iter().filter(is_set) {
        if !print().quiet {
            let text = "is set, but only the loader and `kpack doctor` use it";
            complain("note", format_args!("{name} {text}"));
        }
    }
}

/// Writes an error to standard error. A compiler's output keeps its lines.
pub(super) fn complain_error(error: &Error) {
    let text = error.in_one_line();
    match error {
        Error::Compiler(_) => complain_lines("error", text.replace("\r\n", "\n").trim_end(), "\n"),
        _ => complain("error", text),
    }
}

/// Writes `value` as JSON, with a newline.
pub(super) fn json(value: &impl Serialize) -> Result<(), Error> {
    lines(&json_text(Path::new(STDOUT), value)?)
}

/// As [`json`], into a file.
pub(super) fn json_file(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let text = json_text(path, value)?;
    write_output(path, |staged| {
        let written = staged.file().write_all(text.as_bytes());
        written.map_err(|e| Error::io(path, "write", e))
    })
}

fn json_text(path: &Path, value: &impl Serialize) -> Result<String, Error> {
    let mut text =
        serde_json::to_string_pretty(value).map_err(|e| Error::io(path, "write to", e.into()))?;
    if cfg!(windows) {
        // Back-slashes are doubled.
        text = text.replace(r"\\\\?\\UNC\\", r"\\\\").replace(r"\\\\?\\", "");
    }
    Ok(format!("{}\n", without_controls(text)))
}

/// JSON with `\u` for characters that terminals obey or do not show. JSON lets them stand as they are in strings, and
/// has them nowhere else.
fn without_controls(json: String) -> String {
    let is_plain = |c: char| c.is_ascii_graphic() || matches!(c, ' ' | '\n');
    let is_hidden = |c: char| !is_plain(c) && c.escape_debug().len() > 1;
    if !json.contains(is_hidden) {
        return json;
    }
    let mut text = String::new();
    for c in json.chars() {
        if is_hidden(c) {
            let mut units = [0; 2];
            c.encode_utf16(&mut units).iter().for_each(|unit| text += &format!("\\u{unit:04x}"));
        } else {
            text.push(c);
        }
    }
    text
}
