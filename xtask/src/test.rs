//! `cargo xtask test`: the tests of the workspace, or those that are ignored since they need packages or minutes.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::ValueEnum;
use xshell::{Cmd, cmd};

use crate::bootstrap::{self, Choice, Needs};
use crate::{dist, log, process, repository};

/// How many lines of failed tests are repeated at the end.
const MOST_LINES: usize = 400;

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

/// Runs `cargo test`. A failure does not stop it.
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
    if !names.is_empty() {
        prepare()?;
    }
    let which = if names.is_empty() {
        "the tests of the workspace".to_owned()
    } else {
        format!("the tests {}", names.join(", "))
    };
    process::step(&format!("Compiling and running {which}"));
    let (packages, own) = arguments(names);
    let cargo = cmd!(
        process::shell(),
        "cargo test --locked --all-features --no-fail-fast {packages...} {rest...} {own...}"
    );
    let started = Instant::now();
    let mut tests = Tests::default();
    let ended =
        log::watch(kpack_tools::process::cargo_variables().fold(cargo, Cmd::env_remove), |line| {
            if let Some(done) = tests.read(line) {
                println!("   [{:>3} s] {done}", started.elapsed().as_secs());
            }
        });
    for (why, names) in &tests.skipped {
        println!("   skipped: {why}: {}", bootstrap::skipped(why, names));
        for name in names {
            process::note_not_run(name, why)?;
        }
    }
    tests.finish();
    if tests.failed.is_empty() {
        // Without a failed test, something else failed, such as the compiler.
        ended?;
        println!("\n{} tests passed", tests.passed);
        return Ok(());
    }
    let repeated = tests.failures.len().min(MOST_LINES);
    println!("\n{}", tests.failures[..repeated].join("\n"));
    if repeated < tests.failures.len() {
        println!("… the log has the rest");
    }
    bail!(
        "{} tests passed, {} failed:\n   {}",
        tests.passed,
        tests.failed.len(),
        tests.failed.join("\n   ")
    )
}

/// The tools of the tests with such names: a module may be a task of its own.
fn needs(names: &[String], choice: Choice) -> Vec<Needs> {
    let modules = names.iter().map(|name| name.split("::").next().unwrap_or_default());
    let needs = modules.map(|module| Needs::from_str(&module.replace('_', "-"), true));
    if names.is_empty() {
        choice.needs()
    } else {
        needs.map(|needs| needs.unwrap_or(Needs::Test)).collect()
    }
}

/// Arguments for cargo, and those for the test programs.
fn arguments(names: &[String]) -> (Vec<&str>, Vec<String>) {
    if names.is_empty() {
        return (vec!["--workspace"], Vec::new());
    }
    let mut own: Vec<String> = ["--", "--ignored"].map(str::to_owned).into();
    if !names.iter().any(|name| name.contains("extra")) {
        own.extend(["--skip", "::extra::"].map(str::to_owned));
    }
    let module =
        |name: &String| if name.contains("::") { name.clone() } else { format!("{name}::") };
    own.extend(names.iter().map(module));
    // With the features of all tests, or cargo would compile most dependencies for another set.
    let mut packages = vec!["--workspace", "--test=system"];
    // Some of these are beside the fast tests that do the same for fewer cases.
    if names.iter().any(|name| name.contains("faults") || name.contains("extra")) {
        packages.push("--test=it");
    }
    (packages, own)
}

/// Makes what all ignored tests use, unless somebody has made it: kpack as it is installed.
fn prepare() -> Result<()> {
    let shell = process::shell();
    if env::var_os("KPACK_TEST_PREFIX").is_none() {
        let prefix = repository::target_directory().join("xtask/kpack");
        dist::install(&prefix, "lib".as_ref(), crate::build::Profile::Dev, None)?;
        shell.set_var("KPACK_TEST_PREFIX", prefix);
    }
    if env::var_os("KPACK_TEST_XTASK").is_none() {
        shell.set_var("KPACK_TEST_XTASK", env::current_exe()?);
    }
    Ok(())
}

/// What `cargo test` said so far.
#[derive(Debug, Default)]
struct Tests {
    /// What the program that runs is made of.
    program: String,
    passed: usize,
    failed: Vec<String>,
    /// What failed tests printed.
    failures: Vec<String>,
    blocks_of_failures: usize,
    /// Whether the program that runs has not said its result.
    is_running: bool,
    /// The tests that did not run, by the reason.
    skipped: BTreeMap<String, BTreeSet<String>>,
}

impl Tests {
    /// Notes the program that ended without a result, as a crash does.
    fn finish(&mut self) {
        if std::mem::take(&mut self.is_running) {
            self.failed.push(format!("{}: ended without a result", self.program));
        }
    }

    /// Reads a line; returns what a test found to be true, and at the end of a program with tests how many passed.
    fn read(&mut self, line: &str) -> Option<String> {
        if line == "failures:" {
            // The first is before what they printed, the second before their names.
            self.blocks_of_failures += 1;
        } else if let Some(result) = line.strip_prefix("test result: ") {
            self.blocks_of_failures = 0;
            self.is_running = false;
            let (_, counts) = result.split_once(". ")?;
            let count = |name: &str| {
                let found = counts.split("; ").find_map(|count| count.strip_suffix(name));
                found.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
            };
            let (passed, failed, ignored): (usize, usize, usize) =
                (count("passed"), count("failed"), count("ignored"));
            self.passed += passed;
            let others = [(failed, "failed"), (ignored, "ignored")];
            let others = others.iter().filter(|(count, _)| *count > 0);
            let others = others.map(|(count, name)| format!(", {count} {name}"));
            return (passed + failed + ignored > 0).then(|| {
                format!("{}: {passed} passed{}", self.program, others.collect::<String>())
            });
        } else if self.blocks_of_failures == 1 {
            self.failures.push(line.to_owned());
        } else if let Some(name) = line.strip_prefix("    ").filter(|_| self.blocks_of_failures > 1)
        {
            self.failed.push(format!("{}: {name}", self.program));
        } else if let Some((name, why)) =
            line.strip_prefix("skipped: ").and_then(|l| l.split_once(": "))
        {
            self.skipped.entry(why.to_owned()).or_default().insert(name.to_owned());
        } else if let Some(checked) = line.strip_prefix("checked: ") {
            return Some(checked.to_owned());
        } else if let Some(program) = line.trim_start().strip_prefix("Running ") {
            self.finish();
            self.is_running = true;
            // `unittests src/lib.rs (target/debug/deps/kpack_core-0123)`
            let (source, file) = program.split_once(" (").unwrap_or((program, ""));
            let name = file.rsplit('/').next().and_then(|name| name.split('-').next());
            let name = name.filter(|_| source.starts_with("unittests ")).unwrap_or(source);
            self.program = name.to_owned();
        } else if let Some(crate_name) = line.trim_start().strip_prefix("Doc-tests ") {
            self.finish();
            self.program = format!("examples in the documentation of {crate_name}");
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::Tests;

    #[test]
    fn what_failed_and_what_did_not_run_is_kept_to_the_end() {
        let printed = "     Running tests/it/main.rs (target/debug/deps/it-1)\n\
            test one ... ok\n\
            skipped: two: `wine` is missing\n\
            test two ... ok\n\
            checked: one: 3 programs\n\
            test three ... FAILED\n\
            \n\
            failures:\n\
            \n\
            ---- three stdout ----\n\
            assertion failed\n\
            \n\
            failures:\n    three\n\
            \n\
            test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
            \n     Running tests/other/main.rs (target/debug/deps/other-1)\n\
            test crash ... \n\
            \n   Doc-tests kpack_build\n\
            test result: ok. 0 passed; 0 failed; 4 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";
        let mut tests = Tests::default();
        let shown = Vec::from_iter(printed.lines().filter_map(|line| tests.read(line)));
        assert_eq!(
            shown,
            [
                "one: 3 programs",
                "tests/it/main.rs: 2 passed, 1 failed",
                "examples in the documentation of kpack_build: 0 passed, 4 ignored"
            ]
        );
        assert_eq!(tests.passed, 2);
        assert_eq!(
            tests.failed,
            ["tests/it/main.rs: three", "tests/other/main.rs: ended without a result"]
        );
        assert_eq!(tests.failures, ["", "---- three stdout ----", "assertion failed", ""]);
        assert!(tests.skipped["`wine` is missing"].iter().eq(["two"]));
    }
}
