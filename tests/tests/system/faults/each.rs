//! Faults at each system call of a program.

use anyhow::{Result, ensure};

use super::calls::{Call, Fault};

/// Number of system calls that a quick run disturbs, per command, besides renames and flushes.
const QUICK: usize = 10;

/// Lets `disturb` kill a program at each of the calls, and let it fail with each error. It returns whether the
/// program came to the call.
pub(super) fn at_each(
    calls: &[Call],
    errors: fn(&Call) -> &'static [&'static str],
    quick: bool,
    disturb: impl Fn(&Call, Fault) -> Result<bool>,
) -> Result<Vec<String>> {
    let (mut killed, mut failed, mut broken) = (0, 0, 0);
    let mut missed = Vec::new();
    let chosen = chosen_calls(calls, quick);
    for (index, call) in chosen.iter().enumerate() {
        // A quick run gives each call another error.
        let errors = errors(call);
        let errors = if quick { &errors[index % errors.len()..][..1] } else { errors };
        let faults = errors.iter().copied().map(Fault::Error);
        for fault in [Fault::Kill].into_iter().chain(faults) {
            match disturb(call, fault) {
                Ok(false) => missed.push(format!("{fault:?} at {call}")),
                Ok(true) if fault == Fault::Kill => killed += 1,
                Ok(true) => failed += 1,
                Err(error) => {
                    eprintln!("   {fault:?} at {call}: {error:#}");
                    broken += 1;
                }
            }
        }
    }
    ensure!(broken == 0, "{broken} of {} disturbed runs broke a promise", broken + killed + failed);
    // Pinned to a processor, hardly a run misses its call.
    ensure!(
        missed.len() * 10 < killed + failed,
        "{} of {} runs did not come to their call, such as {:?}",
        missed.len(),
        missed.len() + killed + failed,
        missed.first()
    );
    let mut said = Vec::from([format!(
        "{killed} runs killed and {failed} with an error, at {} of {} calls",
        chosen.len(),
        calls.len()
    )]);
    if !missed.is_empty() {
        said.push(format!(
            "{} runs did not come to their call, such as {}",
            missed.len(),
            missed[0]
        ));
    }
    Ok(said)
}

/// The calls to disturb. Those of a quick run are spread evenly.
fn chosen_calls(calls: &[Call], quick: bool) -> Vec<&Call> {
    let last = calls.len().saturating_sub(1);
    let step = last.div_ceil(QUICK).max(1);
    let is_chosen = |(index, call): &(usize, &Call)| {
        !quick || index % step == 0 || *index == last || call.orders()
    };
    let chosen = calls.iter().enumerate().filter(is_chosen);
    chosen.map(|(_, call)| call).collect()
}
