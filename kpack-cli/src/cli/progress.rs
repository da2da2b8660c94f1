//! Shows progress, on a terminal only.

use std::path::Path;

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::output::complain;
use kpack_core::report::Progress;
use kpack_core::shown;

/// How much to print.
#[derive(Debug, Args)]
pub(super) struct Verbosity {
    /// Print only errors and warnings
    #[arg(long, short, conflicts_with_all = ["json", "verbose"])]
    pub(super) quiet: bool,
    /// Name each file as it is processed, and print every note
    #[arg(long, short)]
    pub(super) verbose: bool,
}

impl Verbosity {
    /// Prints the file or component being processed, with `--verbose`.
    pub(super) fn name(&self, path: &Path) {
        if self.verbose {
            complain("processing", shown(path));
        }
    }

    /// Whether progress is hidden.
    pub(super) fn hides(&self, json: bool) -> bool {
        self.quiet || self.verbose || json
    }
}

/// Template of a bar that counts device code.
pub(super) const DEVICE_CODE: &str =
    "{bar:40} {binary_bytes}/{binary_total_bytes} of device code, {eta} left";
/// Template of a bar that counts all bytes.
pub(super) const ALL: &str = "{bar:40} {binary_bytes}/{binary_total_bytes}, {eta} left {wide_msg}";

/// A progress bar that counts bytes. Each `start` adds to its length.
pub(super) struct Bar<'a> {
    bar: ProgressBar,
    /// If set, files are printed as well.
    verbosity: Option<&'a Verbosity>,
}

impl<'a> Bar<'a> {
    /// A bar with this template, unless it is hidden.
    pub(super) fn new(hidden: bool, template: &str) -> Self {
        let bar = ProgressBar::new(0);
        bar.set_draw_target(draw_target(hidden));
        bar.set_style(style(template));
        Self {
            bar,
            verbosity: None,
        }
    }

    /// Prints files as well, with `--verbose`.
    pub(super) fn naming(mut self, verbosity: &'a Verbosity) -> Self {
        self.verbosity = Some(verbosity);
        self
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Progress for Bar<'_> {
    fn start(&self, total: u64) {
        self.bar.inc_length(total);
    }

    fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    fn file(&self, path: &Path) {
        if let Some(verbosity) = self.verbosity {
            verbosity.name(path);
        }
        let name = path.file_name().unwrap_or_default();
        self.bar.set_message(shown(Path::new(name)).to_string());
    }
}

pub(super) fn draw_target(hidden: bool) -> ProgressDrawTarget {
    match hidden {
        true => ProgressDrawTarget::hidden(),
        false => ProgressDrawTarget::stderr(),
    }
}

pub(super) fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
