//! `cargo xtask faults`: kpack is killed, or told of an error, at each system call that writes; then with
//! limits of the machine. Whatever happens, binaries find their code, and the next run does the rest.

mod calls;
mod limits;
mod place;
mod scenario;
mod short_writes;
mod trial;

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::{process, repository};
use calls::{Call, ERRORS, Fault, Trace};
use place::Place;
use scenario::{SCENARIOS, Scenario};
use trial::{Expected, Trial};

/// Options of `cargo xtask faults`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Disturb about 30 system calls of each command instead of all, each with one error.
    #[arg(long)]
    quick: bool,
    /// Commands to disturb, such as `install`. Default: all
    commands: Vec<String>,
}

/// Calls of each command that a quick run disturbs.
const QUICK: usize = 30;

/// Disturbs each command in each way.
///
/// # Errors
/// A promise was broken, or strace cannot trace here.
pub(crate) fn run(options: &Options) -> Result<()> {
    calls::check_strace()?;
    let kpack = repository::build_helper()?;
    let scratch = tempfile::tempdir()?;
    // Other users run a copy that they may read.
    let copy = limits::open_to_all(scratch.path(), &kpack)?;
    let library = short_writes::build(scratch.path())?;
    for scenario in chosen(&options.commands)? {
        let started = Instant::now();
        process::step(&format!("kpack {}", scenario.arguments.join(" ")));
        let directory = scratch.path().join(scenario.name.replace(' ', "-"));
        std::fs::create_dir(&directory)?;
        let place = Place::new(&directory, &copy)?;
        disturb(scenario, &place, &directory, &library, options.quick)
            .with_context(|| scenario.name.to_owned())?;
        println!("   {:.1} s", started.elapsed().as_secs_f64());
    }
    Ok(())
}

fn chosen(names: &[String]) -> Result<Vec<&'static Scenario>> {
    for name in names {
        ensure!(
            SCENARIOS.iter().any(|scenario| scenario.name == name),
            "`{name}` is none of {:?}",
            Vec::from_iter(SCENARIOS.iter().map(|scenario| scenario.name))
        );
    }
    let is_chosen =
        |scenario: &&Scenario| names.is_empty() || names.iter().any(|name| name == scenario.name);
    Ok(SCENARIOS.iter().filter(is_chosen).collect())
}

fn disturb(
    scenario: &Scenario,
    place: &Place,
    scratch: &Path,
    library: &Path,
    quick: bool,
) -> Result<()> {
    let trial = Trial::new(scenario, place)?;
    let log = scratch.join("strace.log");
    place.restore()?;
    let trace = Trace::record(place, &log, scenario.arguments)?;
    let calls = trace.writing();
    ensure!(!calls.is_empty(), "strace showed no call");
    let renames = trace.check_flushes(place.root())?;
    println!("   {renames} renames, each of flushed content and flushed itself");
    let step = if quick {
        calls.len().div_ceil(QUICK)
    } else {
        1
    };
    let (mut killed, mut failed, mut missed, mut broken) = (0, 0, 0, 0);
    for (index, call) in calls.iter().enumerate().step_by(step) {
        // A quick run gives each call another error.
        let errors = if quick {
            &ERRORS[index / step % ERRORS.len()..][..1]
        } else {
            &ERRORS[..]
        };
        for fault in [Fault::Kill]
            .into_iter()
            .chain(errors.iter().copied().map(Fault::Error))
        {
            match at(&trial, call, fault, &log) {
                Ok(false) => missed += 1,
                Ok(true) if fault == Fault::Kill => killed += 1,
                Ok(true) => failed += 1,
                Err(error) => {
                    eprintln!("   {fault:?} at {call:?}: {error:#}");
                    broken += 1;
                }
            }
        }
    }
    ensure!(
        broken == 0,
        "{broken} of {} disturbed runs broke a promise",
        broken + killed + failed
    );
    ensure!(killed > 0 && failed > 0, "no run was disturbed");
    println!(
        "   {killed} runs killed and {failed} with an error, at {} calls",
        calls.len()
    );
    if missed > 0 {
        println!("   {missed} runs did not come to the call that was to fail");
    }
    short_writes::check(&trial, library)?;
    let limited = limits::check(&trial)?;
    println!("   {limited} runs with limits");
    match limits::check_full(&trial)? {
        Some(runs) => println!("   {runs} runs on file systems without enough room"),
        None => {
            println!("   NOT RUN, since no file system can be mounted here: a full file system")
        }
    }
    match limits::check_read_only(&trial)? {
        true => println!("   a run in read-only directories"),
        false => {
            println!("   NOT RUN, since other users cannot run a copy here: read-only directories")
        }
    }
    Ok(())
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
