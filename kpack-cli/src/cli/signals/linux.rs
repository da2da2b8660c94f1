//! Handles signals that ask the process to end: it removes unfinished output first.

use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use kpack_core::interrupt;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::Signals;
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
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Forwards SIGTERM to the compiler. If only the launcher gets the signal, the compiler would
/// otherwise go on and write the object. A terminal sends its signals to both.
pub(super) fn pass_on(compiler: Arc<AtomicU32>) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM])?;
    let watch = move || {
        for _ in &mut signals {
            end_compiler(compiler.load(Ordering::SeqCst));
        }
    };
    thread::Builder::new().spawn(watch).map(drop)
}

/// Ends the compiler if SIGTERM came before it was known.
pub(super) fn end_if_asked(compiler: u32) {
    if interrupt::signal().load(Ordering::SeqCst) == SIGTERM as usize {
        end_compiler(compiler);
    }
}

/// Ends the compiler. It may have ended meanwhile; then the signal stops the splitting, as it stops any write.
fn end_compiler(compiler: u32) {
    if let Some(compiler) = i32::try_from(compiler).ok().and_then(Pid::from_raw) {
        let _ = kill_process(compiler, Signal::TERM);
    }
}

/// The exit code for that of the compiler.
pub(super) fn exit_code(status: ExitStatus) -> i32 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code,
        // Shells use this exit code too.
        (None, signal) => 128 + signal.unwrap_or(0),
    }
}
