//! Progress on a terminal, and none elsewhere.

use std::path::Path;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::install::Progress;
use kpack_build::shared::shown;

/// How far the device code is.
pub(super) const DEVICE_CODE: &str =
    "{bar:40} {binary_bytes}/{binary_total_bytes} of device code, {eta} left";
/// How far everything is.
pub(super) const ALL: &str = "{bar:40} {binary_bytes}/{binary_total_bytes}, {eta} left {wide_msg}";

/// A bar of bytes. Each piece of work that begins adds to its length.
pub(super) struct Bar(ProgressBar);

impl Bar {
    /// Shown in the way of `template`, unless it is hidden.
    pub(super) fn new(hidden: bool, template: &str) -> Self {
        let bar = ProgressBar::new(0);
        bar.set_draw_target(draw_target(hidden));
        bar.set_style(style(template));
        Self(bar)
    }

    /// Takes it away.
    pub(super) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

impl Progress for Bar {
    fn start(&self, total: u64) {
        self.0.inc_length(total);
    }

    fn advance(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    fn file(&self, path: &Path) {
        let name = path.file_name().unwrap_or_default();
        self.0.set_message(shown(Path::new(name)).to_string());
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
