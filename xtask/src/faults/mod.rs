//! `cargo xtask faults`: kpack is killed, or told of an error, at each system call that writes; then with
//! limits of the machine. Whatever happens, binaries find their code, and the next run does the rest. What only
//! reads, the doctor and the shim, is disturbed at each call that reads: it says what is true, or fails.

pub(crate) mod calls;
mod each;
mod limits;
mod place;
mod reader;
mod scenario;
mod short_writes;
mod trial;

use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::build::Profile;
use crate::dist::Built;
use crate::process;
use calls::{Call, Fault, Trace, errors_of_writes};
use each::at_each;
use place::Place;
use reader::{READERS, Reader};
use scenario::{SCENARIOS, Scenario};
use trial::{Expected, Trial};

/// Options of `cargo xtask faults`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Disturb only some system calls of each command, each with one error: the first and the last, renames
    /// and flushes, and some between them.
    #[arg(long)]
    quick: bool,
    /// Commands to disturb, such as `install`. Default: all
    commands: Vec<String>,
}

/// Disturbs each command in each way.
///
/// # Errors
/// A promise was broken. [`NotRun`](process::NotRun) if strace cannot trace here.
pub(crate) fn run(options: &Options) -> Result<()> {
    let scenarios = chosen(&options.commands)?;
    if let Some(problem) = calls::strace_problem()? {
        let reason = format!("strace cannot trace here: {problem}");
        bail!(process::NotRun(reason));
    }
    let built = Built::new(Profile::Release)?;
    let scratch = tempfile::tempdir()?;
    // Other users run a copy that they may read.
    let copy = limits::open_to_all(scratch.path(), &built.helper)?;
    let library = short_writes::build(scratch.path())?;
    let queue = Mutex::new(scenarios.iter());
    let work = |processor| -> Result<()> {
        // A command that has one processor starts no thread, so each run makes the same calls.
        let mut only = CpuSet::new();
        only.set(processor);
        sched_setaffinity(None, &only)?;
        let next = || queue.lock().map_or(None, |mut queue| queue.next());
        while let Some(scenario) = next() {
            let started = Instant::now();
            let name = scenario.name();
            let directory = scratch.path().join(name.replace([' ', ','], "-"));
            std::fs::create_dir(&directory)?;
            let place = Place::new(&directory, &copy)?;
            let done = match scenario {
                Disturbed::Command(scenario) => {
                    disturb(scenario, &place, &directory, &library, options.quick)
                }
                Disturbed::Reader(reader) => {
                    reader::disturb(reader, &place, &built, &directory, options.quick)
                }
            };
            let mut said = done.with_context(|| format!("`{name}` failed"))?;
            said.insert(0, name.to_owned());
            said.push(format!("{:.1} s", started.elapsed().as_secs_f64()));
            println!("{}", said.join("\n   "));
        }
        Ok(())
    };
    let allowed = sched_getaffinity(None)?;
    let processors = (0..CpuSet::MAX_CPU).filter(|processor| allowed.is_set(*processor));
    std::thread::scope(|scope| {
        let workers = processors.map(|processor| scope.spawn(move || work(processor)));
        let workers = Vec::from_iter(workers);
        let mut results = workers.into_iter().map(|worker| worker.join());
        results.try_for_each(|result| result.map_err(|_| anyhow!("a thread panicked"))?)
    })
}

/// What is disturbed.
enum Disturbed {
    Command(&'static Scenario),
    Reader(&'static Reader),
}

impl Disturbed {
    fn name(&self) -> &'static str {
        match self {
            Self::Command(scenario) => scenario.name,
            Self::Reader(reader) => reader.name,
        }
    }
}

fn chosen(names: &[String]) -> Result<Vec<Disturbed>> {
    let readers = READERS.iter().map(Disturbed::Reader);
    let mut all = Vec::from_iter(SCENARIOS.iter().map(Disturbed::Command).chain(readers));
    for name in names {
        ensure!(
            all.iter().any(|one| one.name() == name),
            "`{name}` is none of {:?}",
            Vec::from_iter(all.iter().map(Disturbed::name))
        );
    }
    all.retain(|one| names.is_empty() || names.iter().any(|name| name == one.name()));
    Ok(all)
}

/// Disturbs one command in each way, and returns what was done.
fn disturb(
    scenario: &Scenario,
    place: &Place,
    scratch: &Path,
    library: &Path,
    quick: bool,
) -> Result<Vec<String>> {
    let trial = Trial::new(scenario, place)?;
    let mut said = at_calls(&trial, scratch, quick)?;
    said.push(short_writes::check(&trial, library)?);
    let limited = limits::check(&trial)?;
    said.push(format!("{limited} runs with limits"));
    said.push(match limits::check_full(&trial)? {
        Some(runs) => format!("{runs} runs on file systems without enough room"),
        None => "NOT RUN, since no file system can be mounted here: a full file system".to_owned(),
    });
    said.push(match limits::check_read_only(&trial)? {
        true => "a run in read-only directories".to_owned(),
        false => {
            "NOT RUN, since other users cannot run a copy here: read-only directories".to_owned()
        }
    });
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
