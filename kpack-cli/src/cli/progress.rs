//! Shows progress, on a terminal only.

use std::path::Path;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::output;
use super::print::print;
use kpack_core::report::Progress;
use kpack_core::shown;

/// Template of a bar that counts device code.
pub(super) const DEVICE_CODE: &str =
    "{bar:40} {binary_bytes}/{binary_total_bytes} of device code, {eta} left";
/// Template of a bar that counts all bytes.
pub(super) const ALL: &str = "{bar:40} {binary_bytes}/{binary_total_bytes}, {eta} left {wide_msg}";

/// A progress bar that counts bytes. Each `start` adds to its length.
pub(super) struct Bar {
    bar: ProgressBar,
}

impl Bar {
    /// A bar with this template, unless it is hidden.
    pub(super) fn new(template: &str) -> Self {
        let bar = ProgressBar::new(0);
        bar.set_draw_target(draw_target());
        bar.set_style(style(template));
        Self { bar }
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Progress for Bar {
    fn start(&self, total: u64) {
        self.bar.inc_length(total);
    }

    fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    fn file(&self, path: &Path) {
        output::processing(path);
        let name = path.file_name().unwrap_or_default();
        self.bar.set_message(shown(Path::new(name)).to_string());
    }
}

/// Where progress is shown: nowhere, if the options say so.
pub(super) fn draw_target() -> ProgressDrawTarget {
    if print().hides_progress() {
        ProgressDrawTarget::hidden()
    } else {
        ProgressDrawTarget::stderr()
    }
}

pub(super) fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
