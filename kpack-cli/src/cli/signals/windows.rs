//! Handles what asks the process to end on Windows: it removes unfinished output first.

use std::io;
use std::process::{self, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use kpack_core::interrupt;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// STATUS_CONTROL_C_EXIT, with which Windows ends programs.
const ENDED: i32 = 0xc000_013a_u32.cast_signed();

/// Makes the first Ctrl-C stop the current write, and a second one end the process at once.
pub(super) fn watch() -> io::Result<()> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, ENDED, Arc::clone(&asked))?;
        flag::register(signal, Arc::clone(&asked))?;
        flag::register_usize(signal, interrupt::signal(), signal as usize)?;
    }
    Ok(())
}

/// If the process was asked to end, ends it.
pub(super) fn end() {
    if received().is_some() {
        process::exit(ENDED);
    }
}

/// What asked the process to end.
pub(super) fn received() -> Option<i32> {
    let signal = interrupt::signal().load(Ordering::Relaxed);
    i32::try_from(signal).ok().filter(|signal| *signal > 0)
}

/// A console ends the compiler as well.
pub(super) fn pass_on(_compiler: Arc<AtomicU32>) -> io::Result<()> {
    Ok(())
}

/// As [`pass_on`].
pub(super) fn end_if_asked(_compiler: u32) {}

/// The exit code for that of the compiler.
pub(super) fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or(1)
}
