//! Panics of a process that has no memory left.

use std::hint::black_box;
use std::panic;
use std::process;

/// More memory than a backtrace takes, in bytes.
const FOR_BACKTRACE: usize = 32 << 20;

/// Makes a panic abort the process if there is too little memory for its backtrace. The standard library panics
/// where a thread cannot start. If an allocation fails while it prints the backtrace, it waits for itself forever.
pub(super) fn abort_without_memory() {
    let default = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let mut room: Vec<u8> = Vec::new();
        if room.try_reserve_exact(FOR_BACKTRACE).is_err() {
            let payload = info.payload();
            let literal = payload.downcast_ref::<&str>().copied();
            let said = literal.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
            eprintln!("kpack: error: out of memory: {}", said.unwrap_or_default());
            process::abort();
        }
        drop(black_box(room));
        default(info);
    }));
}
