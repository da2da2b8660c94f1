//! `cargo xtask test`: the tests of the workspace, or those that are ignored since they need packages or minutes.

mod memory;
mod programs;

use std::collections::BTreeSet;
use std::env;

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;

use crate::bootstrap::{self, Choice, Needs};
use crate::{dist, log, process, repository};
use memory::Memory;
use programs::{Report, SELECTION};

/// How many lines of failed tests are repeated at the end, and how many of each at least.
const MOST_LINES: usize = 40;
const FEWEST_LINES: usize = 10;

/// How many of the longest tests are listed in the log.
const SLOWEST: usize = 25;

/// Options of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// First install the tools that the tests run, with apt-get: for the tests of Linux, CMake, Rust and Python wheels, or all.
    /// Without NAME, `basic` skips tests that lack a tool of `all`. Any other missing tool fails its test.
    #[arg(long, value_name = "TOOLS", value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "basic")]
    pub(crate) bootstrap: Option<Choice>,
    /// Run the ignored tests with such names, such as `faults`, `faults::quick::join` or `wheels::extra`, which need
    /// packages or minutes. A missing tool fails them. Default: all other tests
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Arguments for `cargo test`.
    #[arg(last = true)]
    pub(crate) rest: Vec<String>,
}

impl Options {
    /// The ignored tests of a module.
    pub(crate) fn of(module: &str, bootstrap: bool) -> Self {
        Self {
            bootstrap: bootstrap.then_some(Choice::All),
            names: vec![module.to_owned()],
            rest: Vec::new(),
        }
    }
}

/// Runs the tests, and prints what failed at the end. A failure does not stop it.
///
/// # Errors
/// A test fails, or a tool cannot be installed.
pub(crate) fn run(Options { bootstrap, names, rest }: &Options) -> Result<()> {
    if let Some(choice) = *bootstrap {
        bootstrap::install_missing(&needs(names, choice))?;
        if names.is_empty() {
            process::shell().set_var("KPACK_OPTIONAL_TOOLS", bootstrap::optional(choice).join(","));
        }
    }
    // A test that lacks a tool now fails, instead of being skipped.
    if (bootstrap.is_some() || !names.is_empty()) && env::var_os("KPACK_REQUIRE_TOOLS").is_none() {
        process::shell().set_var("KPACK_REQUIRE_TOOLS", "1");
    }
    let which = if names.is_empty() {
        "the tests of the workspace".to_owned()
    } else {
        format!("the tests {}", names.join(", "))
    };
    process::step(&format!("Compiling {which}"));
    let Arguments { compile, run } = arguments(names, rest);
    let programs = programs::compile(&compile)?;
    prepare(names)?;
    // What real libraries become may be larger than the memory.
    let is_small = names.iter().all(|name| name.starts_with("faults"));
    let memory = if is_small && env::var_os("TMPDIR").is_none() { Memory::new() } else { None };
    if let Some(memory) = &memory {
        process::shell().set_var("TMPDIR", memory.path());
    }
    process::step(&format!("Running {which}"));
    let mut report = programs::run(&programs, &run, names)?;
    // Their programs have no targets that somebody could name.
    if names.is_empty() && compile.is_empty() {
        programs::run_documentation(&run, &mut report)?;
    }
    finish(&report)?;
    ensure_each_ran(names, &report.begun)
}

/// Prints what did not run, what failed, and the commands that run it alone.
fn finish(report: &Report) -> Result<()> {
    for (why, names) in &report.skipped {
        println!("   skipped: {why}: {}", bootstrap::skipped(why, names));
        for name in names {
            process::note_not_run(name, why)?;
        }
    }
    log::note(&format!("\nThe longest tests:\n{}", report.slowest(SLOWEST)))?;
    let failures = &report.failures;
    if failures.is_empty() {
        println!("\n{}", report.counts());
        return Ok(());
    }
    let most = (MOST_LINES / failures.len()).max(FEWEST_LINES);
    for failure in failures {
        println!("\n---- {}", failure.test);
        let lines = Vec::from_iter(failure.output.lines());
        let first = lines.len().saturating_sub(most);
        if first > 0 {
            println!("… the log has {first} more lines");
        }
        lines[first..].iter().for_each(|line| println!("{line}"));
    }
    let list = failures
        .iter()
        .map(|failure| format!("   {}\n      run it alone: {}", failure.test, failure.again));
    bail!(
        "{}; the log is {}\n{}",
        report.counts(),
        log::path()?.display(),
        Vec::from_iter(list).join("\n")
    )
}

/// The tools of the tests with such names: a module may be a task of its own.
fn needs(names: &[String], choice: Choice) -> Vec<Needs> {
    let modules = names.iter().map(|name| name.split("::").next().unwrap_or_default());
    let needs = modules.map(|module| Needs::from_str(&module.replace('_', "-"), true));
    if names.is_empty() {
        choice.needs()
    } else if names.iter().any(|name| name == "extra") {
        // Such tests are in most modules.
        Vec::new()
    } else {
        needs.flat_map(|needs| needs.map_or_else(|_| choice.needs(), |needs| vec![needs])).collect()
    }
}

/// Arguments for cargo, which compiles the test programs, and for these.
#[derive(Debug, Default)]
struct Arguments {
    compile: Vec<String>,
    run: Vec<String>,
}

/// The arguments for the tests with such names, and those that the user gave for `cargo test`.
fn arguments(names: &[String], rest: &[String]) -> Arguments {
    let mut given = rest.splitn(2, |argument| argument == "--").map(<[String]>::to_vec);
    let mut given = || given.next().unwrap_or_default();
    let mut arguments = Arguments { compile: given(), run: given() };
    if names.is_empty() {
        return arguments;
    }
    arguments.compile.push("--test=system".to_owned());
    arguments.run.push("--ignored".to_owned());
    if names.iter().any(|name| name.contains("extra")) {
        // Some campaigns are beside the tests that represent them.
        arguments.compile.push("--test=it".to_owned());
    } else {
        arguments.run.extend(["--skip", "::extra::"].map(str::to_owned));
    }
    arguments.run.extend(names.iter().map(|name| filter(name)));
    arguments
}

/// What the tests of a module, or a single one, have in their names.
fn filter(name: &str) -> String {
    if name.contains("::") { name.to_owned() } else { format!("{name}::") }
}

/// A misspelt name would run nothing, and that would look like success.
fn ensure_each_ran(names: &[String], tests: &BTreeSet<String>) -> Result<()> {
    for filter in names.iter().map(|name| filter(name)) {
        ensure!(
            tests.iter().any(|test| test.contains(&filter)),
            "no test ran whose name contains `{filter}`: `cargo test {} --test=system --test=it -- --ignored --list` lists the ignored tests; those in modules `extra` run only if NAME contains `extra`",
            SELECTION.join(" ")
        );
    }
    Ok(())
}

/// Makes what many tests use, unless somebody has made it: kpack as it is installed. For `e2e` alone, which a newcomer runs
/// first, it consists of what is compiled anyway.
fn prepare(names: &[String]) -> Result<()> {
    let shell = process::shell();
    if env::var_os("KPACK_TEST_PREFIX").is_none() {
        let is_e2e = names == ["e2e"];
        let directory = repository::target_directory().join("xtask");
        let prefix = directory.join(if is_e2e { "e2e" } else { "kpack" });
        if is_e2e {
            dist::install_for_tests(&prefix)?;
        } else {
            dist::install(&prefix, "lib".as_ref(), crate::build::Profile::Dev, None)?;
        }
        shell.set_var("KPACK_TEST_PREFIX", prefix);
    }
    if env::var_os("KPACK_TEST_XTASK").is_none() {
        shell.set_var("KPACK_TEST_XTASK", env::current_exe()?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Choice, Needs, arguments, ensure_each_ran, needs};

    #[test]
    fn tests_by_name_compile_and_install_what_they_need() {
        let names = |names: &str| Vec::from_iter(names.split(' ').map(str::to_owned));
        let compiled = |list: &str| arguments(&names(list), &[]).compile;
        assert_eq!(compiled("faults real"), ["--test=system"]);
        for extra in ["extra", "faults::extra::join", "trim_faults::extra"] {
            assert_eq!(compiled(extra), ["--test=system", "--test=it"]);
        }
        assert_eq!(needs(&names("faults::quick"), Choice::All), [Needs::Faults]);
        assert_eq!(needs(&names("trim_faults"), Choice::All), Choice::All.needs());
        assert_eq!(needs(&names("trim_faults"), Choice::Basic), [Needs::Test]);
    }

    #[test]
    fn a_name_without_tests_is_an_error() {
        let names = ["faults", "real::windows", "reel"].map(str::to_owned);
        let tests = ["faults::quick::join", "real::windows::one"].map(str::to_owned).into();
        ensure_each_ran(&names[..2], &tests).unwrap();
        let error = ensure_each_ran(&names, &tests).unwrap_err().to_string();
        assert!(error.contains("`reel::`"), "{error}");
    }
}
