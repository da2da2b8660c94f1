//! Handles signals that ask the process to end: it removes unfinished output first.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kpack_core::interrupt;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::low_level::emulate_default_handler;

/// Makes the first signal stop the current write, and a second one end the process at once.
/// Exceeding the user's file size limit is an ordinary error.
pub(super) fn watch() -> io::Result<()> {
    flag::register(SIGXFSZ, Arc::default())?;
    let ignored = ignored();
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        // `nohup` ignores signals, and so do shells for background jobs.
        if ignored & 1 << (signal - 1) != 0 {
            continue;
        }
        flag::register_conditional_default(signal, Arc::clone(&asked))?;
        flag::register(signal, Arc::clone(&asked))?;
        flag::register_usize(signal, interrupt::signal(), signal as usize)?;
    }
    Ok(())
}

/// If a signal asked the process to end, ends it by that signal.
pub(super) fn end() {
    if let Some(signal) = received() {
        let _ = emulate_default_handler(signal);
    }
}

/// The signal that asked the process to end.
pub(super) fn received() -> Option<i32> {
    let signal = interrupt::signal().load(Ordering::Relaxed);
    i32::try_from(signal).ok().filter(|signal| *signal > 0)
}

/// The ignored signals, one per bit, starting with the lowest (Linux, "proc_pid_status(5)").
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
