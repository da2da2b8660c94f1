//! Signals that ask the process to end: what it was writing goes first.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kpack_build::shared::interrupt;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::low_level::emulate_default_handler;

/// Lets a signal stop what is being written; a second one ends the process at once. A file that
/// becomes larger than the user's limit is an error like any other.
pub(super) fn watch() -> io::Result<()> {
    flag::register(SIGXFSZ, Arc::default())?;
    let ignored = ignored();
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        // As `nohup` has it, or a shell for what it runs in the background.
        if ignored & 1 << (signal - 1) != 0 {
            continue;
        }
        flag::register_conditional_default(signal, Arc::clone(&asked))?;
        flag::register(signal, Arc::clone(&asked))?;
        flag::register_usize(signal, interrupt::signal(), signal as usize)?;
    }
    Ok(())
}

/// Ends the process by the signal that asked it to, if one did.
pub(super) fn end() {
    let signal = interrupt::signal().load(Ordering::Relaxed);
    if let Some(signal) = i32::try_from(signal).ok().filter(|signal| *signal > 0) {
        let _ = emulate_default_handler(signal);
    }
}

/// The signals that are ignored, from the lowest bit (Linux, "proc_pid_status(5)").
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
