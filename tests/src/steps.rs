//! The steps of a command, which are its system calls, and a command that is killed at them.

use std::collections::BTreeMap;
use std::fs;
use std::iter::successors;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::process::run;

/// What gives files other names, or takes them away, and what waits until that is on the disk. What is made under hidden
/// names between these calls makes little difference.
const NAMES: [&str; 10] = [
    "link",
    "linkat",
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "unlinkat",
    "fsync",
    "fdatasync",
    "syncfs",
];

/// What writes into files and makes directories.
const CONTENT: [&str; 4] = ["write", "pwrite64", "mkdir", "mkdirat"];

/// Which of the calls of one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Steps {
    /// The first three and the last one, and fewer and fewer of those between them, which repeat the same for other files.
    Some,
    /// Each of them.
    All,
}

impl Steps {
    /// Their numbers, where there are so many.
    pub fn of(self, last: usize) -> impl Iterator<Item = usize> {
        let following = move |number: &usize| match self {
            Self::Some => Some(number + (number - 1).max(1)),
            Self::All => Some(number + 1),
        };
        successors(Some(1), following).take_while(move |number| *number < last).chain([last])
    }

    /// The steps of a command that makes so many calls of each name, each with the ways to disturb it there: with one of
    /// these in turn, or with each of them.
    pub fn with_ways<T: Copy>(
        self,
        counted: BTreeMap<String, usize>,
        ways: &[T],
    ) -> impl Iterator<Item = (String, usize, Vec<T>)> {
        let steps = counted
            .into_iter()
            .flat_map(move |(call, last)| self.of(last).map(move |number| (call.clone(), number)));
        steps.enumerate().map(move |(index, (call, number))| {
            let ways = match self {
                Self::Some => vec![ways[index % ways.len()]],
                Self::All => ways.to_vec(),
            };
            (call, number, ways)
        })
    }
}

/// How often a command makes each of some calls, in the thread that does so most often: strace counts the calls of each
/// thread. It must succeed.
///
/// # Panics
/// It fails, or strace cannot run it.
pub fn count(command: &Command, calls: &[&str]) -> BTreeMap<String, usize> {
    let trace = tempfile::NamedTempFile::new().unwrap();
    // Not every processor has all of them.
    let calls = Vec::from_iter(calls.iter().map(|call| format!("?{call}")));
    run(&mut traced(command, trace.path(), &[&format!("-etrace={}", calls.join(","))]));
    let trace = fs::read_to_string(trace.path()).unwrap();
    let mut made = BTreeMap::<_, usize>::new();
    // `1234 renameat(3, "a", 3, "b") = 0`, and where another thread interrupts it, `1234 <... renameat resumed>`.
    let started = trace.lines().filter(|line| !line.contains(" resumed>"));
    for made_by in started.filter_map(|line| Some(line.split_once('(')?.0)) {
        *made.entry(made_by).or_default() += 1;
    }
    let mut most = BTreeMap::new();
    for (made_by, times) in made {
        let (_, call) = made_by.split_once(' ').unwrap();
        let most = most.entry(call.trim_start().to_owned()).or_default();
        *most = times.max(*most);
    }
    most
}

/// Runs a command once to its end, and then kills it before each of its steps, in a run for each.
///
/// `command` prepares each run, and `check` looks at what it left; both get its number, which is 0 for the first and 1 for
/// one in which the steps are counted. `state` is what the command changes.
///
/// # Panics
/// The command cannot be run by strace, or no run was killed after it had changed something.
pub fn kill_at_steps<S: PartialEq>(
    steps: Steps,
    mut command: impl FnMut(u32) -> Command,
    state: impl Fn() -> S,
    mut check: impl FnMut(u32),
) {
    run(&mut command(0));
    let mut calls = NAMES.to_vec();
    if steps == Steps::All {
        calls.extend(CONTENT);
    }
    let counted = count(&command(1), &calls);
    let (mut runs, mut killed, mut killed_at_work) = (1, 0, 0);
    for (call, last) in &counted {
        for number in steps.of(*last) {
            runs += 1;
            let command = command(runs);
            let before = state();
            let filter = format!("-etrace={call}");
            let fault = format!("-einject={call}:signal=KILL:when={number}");
            let mut strace = traced(&command, "/dev/null".as_ref(), &[&filter, &fault]);
            strace.stdout(Stdio::null()).stderr(Stdio::null());
            if strace.status().unwrap().code().is_none() {
                killed += 1;
                killed_at_work += u32::from(state() != before);
            }
            check(runs);
        }
    }
    println!("{killed} of {} runs were killed, {killed_at_work} at work: {counted:?}", runs - 1);
    assert!(killed_at_work > 0, "no run was killed after it had changed something: {counted:?}");
}

/// The command under strace, which logs to a file.
fn traced(command: &Command, log: &Path, options: &[&str]) -> Command {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-o"]).arg(log).args(options);
    strace.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    if let Some(directory) = command.get_current_dir() {
        strace.current_dir(directory);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => strace.env(name, value),
            None => strace.env_remove(name),
        };
    }
    strace
}
