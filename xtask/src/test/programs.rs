//! The test programs: cargo compiles and lists them, and libtest reports in JSON what their tests do.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use kpack_tools::process::{cargo, remove_cargo_variables, unstable_rustdoc};
use serde_json::Value;
use xshell::cmd;

use crate::log::{self, Stream};
use crate::{process, repository};

/// What selects the packages and features of all tests. With others, cargo would compile most dependencies again.
pub(super) const SELECTION: [&str; 3] = ["--locked", "--workspace", "--all-features"];

/// How libtest prints JSON. It also demands the variable `RUSTC_BOOTSTRAP`.
const JSON: [&str; 3] = ["-Zunstable-options", "--format=json", "--report-time"];

/// How long none of the tests of a program may begin, end or print something. The longest takes about a minute.
const SILENCE: Duration = Duration::from_secs(15 * 60);

/// A program with tests.
#[derive(Debug)]
pub(super) struct Program {
    /// The package, and the target if it has others with tests: `kpack-cli it`.
    name: String,
    file: PathBuf,
    /// The directory of the package, in which cargo runs the tests.
    directory: PathBuf,
    /// Cargo's option that selects it: `--test=it`.
    option: String,
}

/// Compiles test programs, those that the arguments of `cargo test` select, and lists them.
///
/// # Errors
/// A program cannot be compiled.
pub(super) fn compile(arguments: &[String]) -> Result<Vec<Program>> {
    let mut command =
        cargo(&["test", "--no-run", "--no-fail-fast", "--message-format=json-render-diagnostics"]);
    command.args(SELECTION).args(arguments).current_dir(repository::root());
    let mut programs = Vec::new();
    log::listen(command, |stream, line| {
        if stream == Stream::Error {
            return Some(line.to_owned());
        }
        let message: Value = serde_json::from_str(line).unwrap_or_default();
        programs.extend(Program::of(&message));
        None
    })?;
    Ok(programs)
}

impl Program {
    /// From cargo's message about what it compiled, if that is a test program.
    fn of(message: &Value) -> Option<Self> {
        let file = message["executable"].as_str()?;
        let is_test = message["profile"]["test"].as_bool()?;
        let manifest = Path::new(message["manifest_path"].as_str()?);
        let (directory, target) = (manifest.parent()?, &message["target"]);
        let (kind, target) = (target["kind"][0].as_str()?, target["name"].as_str()?);
        let mut package = message["package_id"].as_str()?.rsplit(['/', '#']);
        let package = package.find(|part| !part.starts_with(|c: char| c.is_ascii_digit()));
        let package = package?.split('@').next()?;
        let (option, name) = match kind {
            "test" | "bin" => (format!("--{kind}={target}"), format!("{package} {target}")),
            _ => ("--lib".to_owned(), package.to_owned()),
        };
        let (file, directory) = (file.into(), directory.to_owned());
        is_test.then_some(Self { name, file, directory, option })
    }

    /// Runs its tests.
    fn run(&self, arguments: &[String], report: &mut Report) -> Result<()> {
        let file = &self.file;
        let mut command = Command::from(cmd!(process::shell(), "{file}"));
        command.args(JSON).args(arguments).current_dir(&self.directory);
        remove_cargo_variables(&mut command);
        command.env("RUSTC_BOOTSTRAP", "1");
        report.watch(command, &self.name, &self.option)
    }
}

/// Runs these programs one after the other, each to its end. The names are those by which somebody chose ignored tests.
///
/// # Errors
/// A program cannot be started. Failed tests are part of the report.
pub(super) fn run(programs: &[Program], arguments: &[String], names: &[String]) -> Result<Report> {
    let are_ignored = arguments.iter().any(|argument| argument == "--ignored");
    let mut report = Report { are_ignored, names: names.to_vec(), ..Report::default() };
    for program in programs {
        program.run(arguments, &mut report)?;
    }
    Ok(report)
}

/// Runs the examples of the documentation as well.
///
/// # Errors
/// Cargo cannot be started.
pub(super) fn run_documentation(arguments: &[String], report: &mut Report) -> Result<()> {
    let mut command = cargo(&["test", "--doc", "--quiet", "--no-fail-fast"]);
    command.args(SELECTION).arg("--").args(JSON).args(arguments);
    command.env("RUSTDOC", unstable_rustdoc()?).current_dir(repository::root());
    report.watch(command, "examples in the documentation", "--doc")
}

/// A test that failed.
#[derive(Debug)]
pub(super) struct Failure {
    /// The program and the test.
    pub(super) test: String,
    /// What it printed.
    pub(super) output: String,
    /// The command that runs it alone.
    pub(super) again: String,
}

/// What all tests did.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// All that began.
    pub(super) begun: BTreeSet<String>,
    /// How many passed, without those that were skipped.
    passed: usize,
    /// How many were skipped, wholly or in part: to the harness, they passed.
    skipped_count: usize,
    pub(super) failures: Vec<Failure>,
    /// The tests that did not run, by the reason.
    pub(super) skipped: BTreeMap<String, BTreeSet<String>>,
    /// Whether these are the ignored tests, which this task runs by name.
    are_ignored: bool,
    /// The names by which somebody chose them.
    names: Vec<String>,
    /// How many seconds each test took.
    pub(super) times: Vec<(f64, String)>,
}

/// The state of a program.
#[derive(Debug, Default)]
struct Running {
    /// Its tests that have begun, and have not ended.
    tests: BTreeSet<String>,
    /// The suites that the harness announced, one for each crate with examples, and those whose result it printed.
    announced: usize,
    ended: usize,
    passed: Vec<String>,
    skipped: BTreeSet<String>,
    failed: usize,
}

impl Running {
    /// Whether all tests have a result. A program that ends before may exit with 0.
    fn has_result(&self) -> bool {
        self.announced > 0 && self.announced == self.ended
    }
}

impl Report {
    /// Runs a program whose standard output has JSON, and prints what it did.
    fn watch(&mut self, command: Command, name: &str, option: &str) -> Result<()> {
        let started = Instant::now();
        let mut running = Running::default();
        // Tests that somebody chose may be silent for as long as they like.
        let silence = if self.are_ignored { Duration::MAX } else { SILENCE };
        let limits = log::Limits { silence, ..log::Limits::default() };
        let ended = log::listen_for(limits, command, |stream, line| {
            let (shown, logged) = match stream {
                Stream::Output => self.read(line, name, option, &mut running),
                Stream::Error => (self.note(line, &mut running), Some(line.to_owned())),
            };
            if let Some(shown) = shown {
                println!("   [{:>3} s] {shown}", started.elapsed().as_secs());
            }
            logged
        });
        let skipped = running.passed.iter().filter(|test| running.skipped.contains(*test)).count();
        self.passed += running.passed.len() - skipped;
        self.skipped_count += skipped;
        let output = match ended {
            Ok(()) if running.has_result() => return Ok(()),
            Ok(()) => "its exit code was 0".to_owned(),
            // A failed test is why it failed.
            Err(_) if running.failed > 0 && running.has_result() => return Ok(()),
            Err(error) if error.is::<log::Failed>() => format!("{error:#}"),
            Err(error) => return Err(error),
        };
        let tests = Vec::from_iter(running.tests.iter().map(String::as_str));
        self.failures.push(Failure {
            test: format!(
                "{name}: ended without a result, while these tests ran: {}",
                tests.join(", ")
            ),
            output,
            again: self.again(option, &tests),
        });
        Ok(())
    }

    /// Reads a line of JSON. Returns what is shown, and what goes into the log.
    fn read(
        &mut self,
        line: &str,
        name: &str,
        option: &str,
        running: &mut Running,
    ) -> (Option<String>, Option<String>) {
        // A program that a test started may have printed the begin of a line.
        let start = line.find("{ \"type\": ").unwrap_or(0);
        let Ok(event) = serde_json::from_str::<Value>(&line[start..]) else {
            return (None, Some(line.to_owned()));
        };
        let text = |key: &str| event[key].as_str().unwrap_or_default();
        let count = |key: &str| event[key].as_u64().unwrap_or(0);
        let (test, what) = (text("name"), text("event"));
        match (text("type"), what) {
            ("suite", "started") => running.announced += 1,
            ("suite", "ok" | "failed") => {
                running.ended += 1;
                let [passed, failed, ignored] = ["passed", "failed", "ignored"].map(count);
                let others = [(failed, "failed"), (ignored, "ignored")];
                let others = others
                    .iter()
                    .filter(|(count, _)| *count > 0)
                    .map(|(count, name)| format!(", {count} {name}"));
                let shown = format!("{name}: {passed} passed{}", others.collect::<String>());
                return ((passed + failed + ignored > 0).then_some(shown.clone()), Some(shown));
            }
            ("test", "started") => {
                self.begun.insert(test.to_owned());
                running.tests.insert(test.to_owned());
            }
            ("test", "timeout") => {
                let shown = format!("{name}: takes over a minute: {test}");
                return (Some(shown.clone()), Some(shown));
            }
            ("test", "ok" | "failed" | "ignored") => {
                running.tests.remove(test);
                let time = event["exec_time"].as_f64();
                self.times.extend(time.map(|time| (time, format!("{name}: {test}"))));
                let time = time.map_or(String::new(), |time| format!(" ({time:.2} s)"));
                let mut logged = format!("test {test} ... {what}{time}");
                if what == "ok" {
                    running.passed.push(test.to_owned());
                }
                if what == "failed" {
                    running.failed += 1;
                    let output = [text("stdout"), text("message")].join("\n").trim().to_owned();
                    logged = format!("{logged}\n{output}");
                    self.failures.push(Failure {
                        test: format!("{name}: {test}"),
                        output,
                        again: self.again(option, &[test]),
                    });
                }
                return (None, Some(logged));
            }
            _ => {}
        }
        (None, (start > 0).then(|| line[..start].to_owned()))
    }

    /// Reads a line past the harness; returns what a test found to be true.
    fn note(&mut self, line: &str, running: &mut Running) -> Option<String> {
        let (what, rest) = line.split_once(": ")?;
        if what == "skipped" {
            let (test, why) = rest.split_once(": ")?;
            self.skipped.entry(why.to_owned()).or_default().insert(test.to_owned());
            running.skipped.insert(test.to_owned());
        }
        (what == "checked").then(|| rest.to_owned())
    }

    /// How many tests passed, failed and were skipped.
    pub(super) fn counts(&self) -> String {
        let others = [(self.failures.len(), "failed"), (self.skipped_count, "skipped")];
        let others = others
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!(", {count} {what}"));
        format!("{} tests passed{}", self.passed, others.collect::<String>())
    }

    /// The longest tests, a line each.
    pub(super) fn slowest(&self, count: usize) -> String {
        let mut times = Vec::from_iter(&self.times);
        times.sort_by(|one, other| other.0.total_cmp(&one.0));
        let lines = times.into_iter().take(count);
        lines.map(|(time, test)| format!("{time:9.2} s  {test}\n")).collect()
    }

    /// The command that runs these tests alone, or without any, all that ran.
    fn again(&self, option: &str, tests: &[&str]) -> String {
        if self.are_ignored {
            let tests = if tests.is_empty() { self.names.join(" ") } else { tests.join(" ") };
            return format!("cargo xtask test {tests}");
        }
        let tests = tests.iter().map(|test| format!(" '{test}'")).collect::<String>();
        let filter = if tests.is_empty() { tests } else { format!(" -- --exact{tests}") };
        format!("cargo test {} {option}{filter}", SELECTION.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Program, Report, Running};

    #[test]
    fn test_programs_are_found_in_messages_of_cargo() {
        let message = |kind: &str, test: bool| {
            json!({
                "reason": "compiler-artifact",
                "package_id": "path+file:///kpack/tests#kpack-tests@0.1.0",
                "manifest_path": "/kpack/tests/Cargo.toml",
                "target": { "kind": [kind], "name": "it" },
                "profile": { "test": test },
                "executable": "/target/debug/deps/it-1",
            })
        };
        let program = Program::of(&message("test", true)).unwrap();
        assert_eq!((&*program.name, &*program.option), ("kpack-tests it", "--test=it"));
        assert_eq!(program.directory.to_str(), Some("/kpack/tests"));
        let library = Program::of(&message("lib", true)).unwrap();
        assert_eq!((&*library.name, &*library.option), ("kpack-tests", "--lib"));
        assert!(Program::of(&message("bin", false)).is_none());
        // As cargo writes it where the directory has the package's name.
        let mut message = message("bin", true);
        message["package_id"] = "path+file:///kpack/xtask#0.1.0".into();
        assert_eq!(Program::of(&message).unwrap().name, "xtask it");
        message["executable"] = json!(null);
        assert!(Program::of(&message).is_none());
    }

    #[test]
    fn what_failed_and_what_did_not_run_is_kept_to_the_end() {
        let (mut report, mut running) = (Report::default(), Running::default());
        let mut read = |report: &mut Report, line: &str| {
            report.read(line, "kpack-cli it", "--test=it", &mut running)
        };
        let lines = r#"{ "type": "suite", "event": "started", "test_count": 4 }
            { "type": "test", "event": "started", "name": "a::one" }
            { "type": "test", "event": "started", "name": "a::two" }
            half a line{ "type": "test", "name": "a::one", "event": "ok", "exec_time": 0.25 }
            { "type": "test", "name": "a::two", "event": "failed", "exec_time": 1.5, "stdout": "assertion failed\n" }
            { "type": "test", "name": "b", "event": "ignored", "message": "needs minutes" }
            { "type": "suite", "event": "failed", "passed": 1, "failed": 1, "ignored": 1, "measured": 0, "filtered_out": 1, "exec_time": 1.6 }"#;
        let shown = lines.lines().map(|line| read(&mut report, line.trim()).0);
        let shown = Vec::from_iter(shown.collect::<Vec<_>>().into_iter().flatten());
        assert_eq!(shown, ["kpack-cli it: 1 passed, 1 failed, 1 ignored"]);
        let [failure] = &report.failures[..] else { panic!("{report:?}") };
        assert_eq!(
            (&*failure.test, &*failure.output),
            ("kpack-cli it: a::two", "assertion failed")
        );
        assert_eq!(
            failure.again,
            "cargo test --locked --workspace --all-features --test=it -- --exact 'a::two'"
        );
        assert_eq!(report.slowest(1).trim(), "1.50 s  kpack-cli it: a::two");
        assert!(running.has_result() && running.tests.is_empty());
        assert_eq!(running.passed, ["a::one"]);

        let mut note = |line| report.note(line, &mut running);
        assert_eq!(note("checked: one: 3 programs").unwrap(), "one: 3 programs");
        assert_eq!(note("skipped: two: `wine` is missing"), None);
        assert!(report.skipped["`wine` is missing"].iter().eq(["two"]));
    }

    /// What a script reports that stands for a test program.
    fn watched(script: &str) -> Report {
        let mut report = Report::default();
        let mut program = std::process::Command::new("sh");
        program.args(["-c", script]);
        report.watch(program, "kpack-tests it", "--test=it").unwrap();
        report
    }

    #[test]
    fn a_program_that_crashes_names_the_tests_that_ran() {
        let report = watched(
            r#"
            echo '{ "type": "suite", "event": "started", "test_count": 2 }'
            echo '{ "type": "test", "event": "started", "name": "crash" }'
            echo 'no memory' >&2
            kill -ABRT $$"#,
        );
        let [failure] = &report.failures[..] else { panic!("{report:?}") };
        assert!(failure.test.ends_with("while these tests ran: crash"), "{}", failure.test);
        assert!(failure.output.contains("no memory"), "{}", failure.output);
    }

    /// A test may call `exit`, or a program may have no harness.
    #[test]
    fn a_program_that_ends_early_fails_whatever_its_exit_code() {
        let started = r#"{ "type": "suite", "event": "started", "test_count": 2 }
{ "type": "test", "event": "started", "name": "faults::leaves" }"#;
        let tests = r#"{ "type": "suite", "event": "started", "test_count": 0 }
{ "type": "suite", "event": "ok", "passed": 0, "failed": 0, "ignored": 0 }"#;
        let and_others = format!("{started}\n{tests}");
        for (printed, failed) in [(started, true), (&and_others, true), ("", true), (tests, false)]
        {
            let mut report = Report { are_ignored: true, ..Report::default() };
            let mut program = std::process::Command::new("printf");
            program.args(["%s", printed]);
            report.watch(program, "kpack-tests system", "--test=system").unwrap();
            assert_eq!(report.failures.len(), usize::from(failed), "{printed}: {report:?}");
            if printed == started {
                assert_eq!(report.failures[0].again, "cargo xtask test faults::leaves");
            }
        }
        let names = vec!["faults".to_owned()];
        let report = Report { are_ignored: true, names, ..Report::default() };
        assert_eq!(report.again("--test=system", &[]), "cargo xtask test faults");
    }

    #[test]
    fn a_skipped_test_does_not_count_as_passed() {
        let report = watched(
            r#"
            echo '{ "type": "suite", "event": "started", "test_count": 2 }'
            echo 'skipped: two: `wine` is missing' >&2
            echo 'skipped: two: `dnf` is missing' >&2
            echo '{ "type": "test", "event": "ok", "name": "one" }'
            echo '{ "type": "test", "event": "ok", "name": "two" }'
            echo '{ "type": "suite", "event": "ok", "passed": 2 }'"#,
        );
        assert_eq!(report.counts(), "1 tests passed, 1 skipped");
    }
}
