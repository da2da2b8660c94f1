//! How much every command prints, in what form, and in which colours.

use std::env;
use std::io::{IsTerminal, stderr, stdout};
use std::sync::OnceLock;

use clap::builder::styling::{AnsiColor, Style};
use clap::{Args, ValueEnum};
use kpack_core::Severity;

/// The options that every command has.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct Print {
    /// Print the result, or the error, as JSON
    #[arg(long, global = true)]
    pub(super) json: bool,
    /// Print only errors and warnings
    #[arg(long, short, global = true, conflicts_with_all = ["json", "verbose"])]
    pub(super) quiet: bool,
    /// Print details: each file as it is processed, every check, every note
    #[arg(long, short, global = true)]
    pub(super) verbose: bool,
    /// Whether to use colours
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t)]
    color: Color,
}

/// Whether to use colours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Color {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Everywhere
    Always,
    /// Nowhere
    Never,
}

static PRINT: OnceLock<Print> = OnceLock::new();

/// The options of this process.
pub(super) fn print() -> &'static Print {
    PRINT.get_or_init(Print::default)
}

impl Print {
    /// Makes these the options of this process.
    pub(super) fn set(self) {
        let _ = PRINT.set(self);
    }

    /// Whether progress is hidden.
    pub(super) fn hides_progress(&self) -> bool {
        self.quiet || self.verbose || self.json
    }

    fn has_colors(&self, is_terminal: bool) -> bool {
        match self.color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => {
                let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
                is_terminal
                    && !is_set("NO_COLOR")
                    && env::var_os("TERM").is_none_or(|term| term != "dumb")
            }
        }
    }

    /// A word for standard output in the colour of its severity.
    pub(super) fn painted(&self, severity: Severity, word: &str) -> String {
        painted(self.has_colors(stdout().is_terminal()), severity, word)
    }

    /// The same for standard error.
    pub(super) fn painted_error(&self, severity: Severity, word: &str) -> String {
        painted(self.has_colors(stderr().is_terminal()), severity, word)
    }
}

fn painted(has_colors: bool, severity: Severity, word: &str) -> String {
    let color = match severity {
        Severity::Fault => AnsiColor::Red,
        Severity::Warning => AnsiColor::Yellow,
        Severity::Note => AnsiColor::Cyan,
        Severity::Ok => AnsiColor::Green,
    };
    if !has_colors {
        return word.to_owned();
    }
    let mut style = Style::new().fg_color(Some(color.into()));
    if severity == Severity::Fault {
        style = style.bold();
    }
    format!("{style}{word}{style:#}")
}
