//! How busy other programs keep the processors.

use std::fs;

use anyhow::{Context, Result};

/// Processor time up to now, in ticks of the system's clock.
pub(super) struct Ticks {
    /// Of all processors, also idle.
    all: u64,
    /// Idle, or waiting for a disk.
    idle: u64,
    /// Of this program and of all commands that it has run.
    own: u64,
}

impl Ticks {
    /// # Errors
    /// There is no `/proc`.
    pub(super) fn now() -> Result<Self> {
        // user nice system idle iowait irq softirq steal; what follows is part of the first two.
        let stat = fs::read_to_string("/proc/stat").context("/proc/stat")?;
        let cpu: Vec<u64> = numbers(stat.lines().next().unwrap_or_default());
        let own = fs::read_to_string("/proc/self/stat").context("/proc/self/stat")?;
        // After the name in brackets: the state, then numbers.
        let own = numbers(own.rsplit_once(") ").unwrap_or_default().1);
        Ok(Self {
            all: cpu.iter().take(8).sum(),
            idle: cpu.iter().skip(3).take(2).sum(),
            own: own.iter().skip(10).take(4).sum(),
        })
    }
}

/// The numbers after the first word.
fn numbers(line: &str) -> Vec<u64> {
    let words = line.split_whitespace().skip(1);
    // Some of a process's are negative, and of no interest.
    words.map(|word| word.parse().unwrap_or(0)).collect()
}

/// What other programs took of the processors' time.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Load {
    others: u64,
    all: u64,
}

impl Load {
    /// Adds what happened between two moments.
    pub(super) fn add(&mut self, before: &Ticks, after: &Ticks) {
        let busy = (after.all - before.all).saturating_sub(after.idle - before.idle);
        self.others += busy.saturating_sub(after.own - before.own);
        self.all += after.all - before.all;
    }

    /// Adds another measurement.
    pub(super) fn join(&mut self, other: Self) {
        self.others += other.others;
        self.all += other.all;
    }

    /// In per cent of all processors.
    pub(super) fn percent(self) -> f64 {
        100.0 * self.others as f64 / self.all.max(1) as f64
    }
}

/// The average number of programs that were ready to run in the last minute.
///
/// # Errors
/// There is no `/proc`.
pub(super) fn average() -> Result<String> {
    let text = fs::read_to_string("/proc/loadavg").context("/proc/loadavg")?;
    Ok(text.split(' ').next().unwrap_or_default().to_owned())
}
