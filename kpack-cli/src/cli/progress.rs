//! Shows progress, on a terminal only.

use std::fmt;
use std::path::Path;

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use super::output;
use super::print::print;
use kpack_core::report::Progress;
use kpack_core::shown;

/// Template of a bar that counts device code. All templates fit into 80 columns.
pub(super) const DEVICE_CODE: &str =
    "{bar:20} {binary_bytes}/{binary_total_bytes} of device code{left}";
/// Template of a bar that counts all bytes.
pub(super) const ALL: &str = "{bar:20} {binary_bytes}/{binary_total_bytes}{left} {wide_msg}";
/// Template of a bar that counts files.
pub(super) const FILES: &str = "{bar:20} {pos}/{len} files{left} {wide_msg}";
/// Template of a bar that counts components.
pub(super) const COMPONENTS: &str = "{bar:20} {pos}/{len} components read{left}";

/// A progress bar. Each `start` adds to its length.
pub(super) struct Bar {
    bar: ProgressBar,
}

impl Bar {
    /// A bar with this template, unless it is hidden.
    pub(super) fn new(template: &str) -> Self {
        Self::on(draw_target(), template)
    }

    fn on(target: ProgressDrawTarget, template: &str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), target);
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

    fn advance(&self, done: u64) {
        self.bar.inc(done);
    }

    fn waits(&self, path: &Path) {
        let text = format!("waiting for another program, which has locked {}", shown(path));
        self.bar.suspend(|| output::complain("note", text));
    }

    fn file(&self, path: &Path) {
        output::processing(path);
        let name = path.file_name().unwrap_or_default();
        self.bar.set_message(shown(Path::new(name)).to_string());
    }
}

/// Where progress is shown: nowhere, if the options say so.
fn draw_target() -> ProgressDrawTarget {
    if print().hides_progress() {
        ProgressDrawTarget::hidden()
    } else {
        ProgressDrawTarget::stderr()
    }
}

fn style(template: &str) -> ProgressStyle {
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    style.with_key("left", left)
}

/// The time that is left, once there is an estimate.
fn left(state: &ProgressState, text: &mut dyn fmt::Write) {
    let left = state.eta();
    if state.pos() > 0 && left.as_secs() > 0 {
        let _ = write!(text, ", {:#} left", HumanDuration(left));
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use indicatif::TermLike;

    use super::*;

    /// A terminal of 80 columns that keeps what is written.
    #[derive(Debug, Clone, Default)]
    struct Terminal(Arc<Mutex<Vec<String>>>);

    impl TermLike for Terminal {
        fn width(&self) -> u16 {
            80
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().push(text.trim_end().to_owned());
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn bars_fit_a_terminal_of_80_columns_and_begin_without_an_estimate() {
        for template in [DEVICE_CODE, ALL, FILES, COMPONENTS] {
            let terminal = Terminal::default();
            let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
            let bar = Bar::on(target, template);
            bar.start(1_023_999_999_999);
            bar.bar.set_message("a-name-of-a-file-that-is-".repeat(5));
            bar.bar.force_draw();
            let begun = terminal.0.lock().unwrap().join("");
            assert!(begun.contains("0/") || begun.contains("0 B/"), "{begun}");
            assert!(!begun.contains("left"), "{begun}");
            bar.advance(1_011_999_999_999);
            bar.bar.force_draw();
            for line in terminal.0.lock().unwrap().iter() {
                assert!(line.chars().count() <= 80, "{} columns: {line}", line.chars().count());
            }
        }
    }
}
