//! kpack is killed, or told of an error, at each system call that writes; then with limits of the machine. Whatever
//! happens, binaries find their code, and the next run does the rest. What only reads, the doctor and the shim, is
//! disturbed at each call that reads: it says what is true, or fails.

mod calls;
mod each;
mod limits;
mod place;
mod reader;
mod scenario;
mod trial;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::panic;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use kpack_tests::require::{self, checked};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::support::{copy, prefix};
use calls::{Call, Fault, Trace, errors_of_writes};
use each::at_each;
use place::Place;
use reader::Reader;
use scenario::Scenario;
use trial::{Expected, Trial};

/// Two tests of each command: `quick` disturbs only some of its system calls, each with one error: the first and the
/// last, renames and flushes, and some between them. `extra` disturbs all.
macro_rules! tests {
    ($($name:ident: $case:expr;)*) => {
        mod quick {
            use super::*;
            $(
                #[test]
                #[ignore = "needs strace, and several seconds"]
                fn $name() -> Result<()> {
                    disturb(&$case, true)
                }
            )*
        }
        mod extra {
            use super::*;
            $(
                #[test]
                #[ignore = "needs strace, and up to a minute"]
                fn $name() -> Result<()> {
                    disturb(&$case, false)
                }
            )*
        }
    };
}

tests! {
    split: Disturbed::Command(scenario::SPLIT);
    split_of_another_version: Disturbed::Command(scenario::SPLIT_OF_ANOTHER_VERSION);
    split_with_debug_files: Disturbed::Command(scenario::SPLIT_WITH_DEBUG_FILES);
    split_of_a_dll: Disturbed::Command(scenario::SPLIT_OF_A_DLL);
    join: Disturbed::Command(scenario::JOIN);
    join_of_a_dll: Disturbed::Command(scenario::JOIN_OF_A_DLL);
    object: Disturbed::Command(scenario::OBJECT);
    stage: Disturbed::Command(scenario::STAGE);
    stage_into_an_empty_directory: Disturbed::Command(scenario::STAGE_INTO_AN_EMPTY_DIRECTORY);
    stage_program: Disturbed::Command(scenario::STAGE_PROGRAM);
    stage_program_in_parts: Disturbed::Command(scenario::STAGE_PROGRAM_IN_PARTS);
    artifact_split: Disturbed::Command(scenario::ARTIFACT_SPLIT);
    artifact_split_of_another_version:
        Disturbed::Command(scenario::ARTIFACT_SPLIT_OF_ANOTHER_VERSION);
    artifact_recombine: Disturbed::Command(scenario::ARTIFACT_RECOMBINE);
    artifact_pack_of_another_version: Disturbed::Command(scenario::ARTIFACT_PACK_OF_ANOTHER_VERSION);
    artifact_unpack_of_another_version: Disturbed::Command(scenario::ARTIFACT_UNPACK_OF_ANOTHER_VERSION);
    wheel_split_of_another_version: Disturbed::Command(scenario::WHEEL_SPLIT_OF_ANOTHER_VERSION);
    doctor: Disturbed::Reader(reader::DOCTOR);
    doctor_without_an_archive: Disturbed::Reader(reader::DOCTOR_WITHOUT_AN_ARCHIVE);
    shim_preloaded: Disturbed::Reader(reader::SHIM_PRELOADED);
    shim_linked: Disturbed::Reader(reader::SHIM_LINKED);
}

/// What is disturbed.
enum Disturbed {
    Command(Scenario),
    Reader(Reader),
}

fn disturb(what: &Disturbed, quick: bool) -> Result<()> {
    let tools = match what {
        Disturbed::Command(scenario) => scenario.tools,
        Disturbed::Reader(_) => &[],
    };
    if !(require::tracing() && require::tools(tools)) {
        return Ok(());
    }
    let prefix = prefix();
    let scratch = tempfile::tempdir()?;
    // Other users run a copy that they may read.
    fs::set_permissions(scratch.path(), Permissions::from_mode(0o755))?;
    let kpack = scratch.path().join("kpack");
    copy(prefix.join("bin/kpack"), &kpack);
    fs::set_permissions(&kpack, Permissions::from_mode(0o755))?;
    let place = Place::new(scratch.path(), &kpack)?;
    let said = on_one_processor(|| match what {
        Disturbed::Command(scenario) => in_each_way(scenario, &place, scratch.path(), quick),
        Disturbed::Reader(reader) => reader::disturb(reader, &place, prefix, scratch.path(), quick),
    })?;
    checked(&said.join("; "));
    Ok(())
}

/// Runs programs on one processor, which no other test uses. There a command starts no thread, so each run makes the
/// same calls.
fn on_one_processor<T: Send>(run: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    static IN_USE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let in_use = || IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
    let allowed = sched_getaffinity(None)?;
    let processors = || (0..CpuSet::MAX_CPU).filter(|processor| allowed.is_set(*processor));
    let processor = {
        let mut in_use = in_use();
        let free = processors().find(|processor| !in_use.contains(processor));
        let processor = free.or_else(|| processors().next()).context("a processor")?;
        in_use.push(processor);
        processor
    };
    let mut only = CpuSet::new();
    only.set(processor);
    let result = thread::scope(|scope| {
        let named =
            thread::Builder::new().name(thread::current().name().unwrap_or_default().into());
        let pinned = named.spawn_scoped(scope, || {
            sched_setaffinity(None, &only)?;
            run()
        });
        pinned.expect("a thread").join()
    });
    let mut in_use = in_use();
    let own = in_use.iter().position(|other| *other == processor);
    own.map(|own| in_use.swap_remove(own));
    drop(in_use);
    result.unwrap_or_else(|panicked| panic::resume_unwind(panicked))
}

/// Disturbs one command in each way, and returns what was done.
fn in_each_way(
    scenario: &Scenario,
    place: &Place,
    scratch: &Path,
    quick: bool,
) -> Result<Vec<String>> {
    let trial = Trial::new(scenario, place)?;
    let mut said = at_calls(&trial, scratch, quick)?;
    let writes = limits::check_short_writes(&trial, scratch)?;
    said.push(format!("{writes} writes cut short or interrupted in one run"));
    said.push(format!("{} runs with limits", limits::check(&trial)?));
    match limits::check_full(&trial)? {
        Some(runs) => said.push(format!("{runs} runs on file systems without enough room")),
        None => require::skip("a full file system: no file system can be mounted here"),
    }
    if limits::check_read_only(&trial)? {
        said.push("a run in read-only directories".to_owned())
    } else {
        require::skip("read-only directories: other users cannot run a copy here")
    }
    Ok(said)
}

/// Kills the command at its calls that write, and lets these fail.
fn at_calls(trial: &Trial<'_>, scratch: &Path, quick: bool) -> Result<Vec<String>> {
    let log = scratch.join("strace.log");
    trial.place.restore()?;
    let trace = Trace::record(trial.place, &log, trial.scenario.arguments)?;
    let renames = trace.check_flushes(trial.place.root())?;
    let calls = trace.writing();
    let mut said =
        at_each(&calls, errors_of_writes, quick, |call, fault| at(trial, call, fault, &log))?;
    let renames = format!("{renames} renames, each of flushed content and flushed itself");
    said.insert(0, renames);
    Ok(said)
}

/// Disturbs the command at one call. Returns whether it came to it.
fn at(trial: &Trial<'_>, call: &Call, fault: Fault, log: &Path) -> Result<bool> {
    let shown = log.to_str().context("the path is UTF-8")?;
    let words = calls::runner(call, fault, shown);
    let runner = Vec::from_iter(words.iter().map(String::as_str));
    let mut command = trial.place.command(&runner, trial.scenario.arguments);
    let removes = call.name.starts_with("unlink") || call.name == "rmdir";
    let expected = match fault {
        Fault::Kill => Expected::Killed,
        Fault::Error(_) => Expected::DoneOrFailed { leftovers: removes },
    };
    let result = trial.run(&mut command, expected);
    let reached = calls::was_reached(log, fault)?;
    if reached {
        result?;
        trial.rerun()?;
    }
    Ok(reached)
}
