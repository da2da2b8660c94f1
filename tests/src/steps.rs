//! The steps of a command, which are its system calls, and a command that is killed at them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::iter::successors;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::process::{copy_environment, run};

/// All that changes a file system, or waits for that. Of some of them only some calls do, as [`writes`] says.
pub const WRITING: [&str; 33] = [
    "openat",
    "write",
    "pwrite64",
    "writev",
    "mkdir",
    "mkdirat",
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "symlink",
    "symlinkat",
    "unlink",
    "unlinkat",
    "rmdir",
    "fsync",
    "fdatasync",
    "syncfs",
    "sync_file_range",
    "ftruncate",
    "fallocate",
    "chmod",
    "fchmod",
    "fchmodat",
    "fchown",
    "fchownat",
    "fsetxattr",
    "copy_file_range",
    "sendfile",
    "utimensat",
    "flock",
    "ioctl",
];

/// What gives files other names, or takes them away, and what waits until that is on the disk. Between these calls, files
/// with hidden names change, which nobody reads.
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

/// What writes, perhaps into a file that has its name, so that its content is neither the old nor the new one.
const CONTENT: [&str; 2] = ["write", "pwrite64"];

/// Whether a call in [`WRITING`] writes to a file of the user. Its arguments are shown with the paths of descriptors.
pub fn writes(name: &str, arguments: &str) -> bool {
    let descriptor = arguments.split(['<', ',', ')']).next().unwrap_or_default();
    match name {
        "openat" => ["O_CREAT", "O_TMPFILE", "O_WRONLY", "O_RDWR"]
            .iter()
            .any(|flag| arguments.contains(flag)),
        "ioctl" => arguments.contains("FICLONE"),
        "write" | "writev" => !["1", "2"].contains(&descriptor) && !arguments.contains("<pipe:"),
        _ => true,
    }
}

/// A system call, by its name and by its number among those of this name in its thread.
pub type Step = (String, usize);

/// Which of the calls of one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Steps {
    /// The first three and the last one, and fewer and fewer of those between them, which repeat the same for other files.
    Some,
    /// Each of them.
    All,
}

impl Steps {
    fn choose(self, numbers: &[usize]) -> Vec<usize> {
        let following = |index: &usize| Some(index + (*index).max(1));
        let some = successors(Some(0), following).take_while(|index| index + 1 < numbers.len());
        match self {
            Self::Some => some.map(|index| numbers[index]).chain(numbers.last().copied()).collect(),
            Self::All => numbers.to_vec(),
        }
    }
}

/// What to try at a step.
#[derive(Debug)]
pub struct Trial<T> {
    /// Where.
    pub step: Step,
    /// The ways to disturb the command, in this order.
    pub ways: Vec<T>,
    /// How many of them suffice if they did disturb it.
    pub enough: usize,
}

/// The calls of a command that are about files below its current directory, in their order.
#[derive(Debug)]
pub struct Trace(Vec<Call>);

#[derive(Debug)]
struct Call {
    thread: String,
    name: String,
    number: usize,
    arguments: String,
}

impl Trace {
    /// Runs a command, which must succeed. `follow` says whether strace watches its threads.
    ///
    /// # Panics
    /// It fails, or strace cannot run it.
    pub fn of(command: &Command, calls: &[&str], follow: &[&str]) -> Self {
        let log = tempfile::NamedTempFile::new().unwrap();
        // Not every processor has all of them.
        let calls = Vec::from_iter(calls.iter().map(|call| format!("?{call}")));
        let filter = format!("-etrace={}", calls.join(","));
        let options = [follow, &["-y", "-s", "0", "-esignal=none", &filter]].concat();
        run(&mut traced(command, log.path(), &options));
        let directory = command.get_current_dir().expect("a directory of files");
        let root = directory.canonicalize().unwrap();
        Self::read(&fs::read_to_string(log.path()).unwrap(), root.to_str().unwrap())
    }

    fn read(log: &str, root: &str) -> Self {
        let mut made = BTreeMap::<_, usize>::new();
        let mut calls = Vec::new();
        // `1234 renameat(3</a>, "a", 3</a>, "b") = 0`, and where another thread interrupts it, `1234 <... renameat resumed>`.
        for line in log.lines().filter(|line| !line.contains(" resumed>")) {
            let Some((start, arguments)) = line.split_once('(') else {
                continue;
            };
            let (thread, name) = start.split_once(' ').unwrap_or(("", start));
            let name = name.trim_start();
            let number = made.entry((thread, name)).or_default();
            *number += 1;
            if is_in(root, arguments) {
                calls.push(Call {
                    thread: thread.to_owned(),
                    name: name.to_owned(),
                    number: *number,
                    arguments: arguments.to_owned(),
                });
            }
        }
        Self(calls)
    }

    /// The numbers of some calls, by name, in the thread that makes most of these: strace counts the calls of each thread.
    fn numbers(&self, is_meant: impl Fn(&Call) -> bool) -> BTreeMap<String, Vec<usize>> {
        let mut made = BTreeMap::<_, Vec<usize>>::new();
        for call in self.0.iter().filter(|call| is_meant(call)) {
            made.entry((&call.name, &call.thread)).or_default().push(call.number);
        }
        let mut most = BTreeMap::<String, Vec<usize>>::new();
        for ((name, _), numbers) in made {
            let most = most.entry(name.clone()).or_default();
            if numbers.len() > most.len() {
                *most = numbers;
            }
        }
        most
    }

    /// The steps at which to kill the command.
    fn kills(&self, steps: Steps) -> Vec<Step> {
        let numbers = self.numbers(|call| {
            let is_some = [&NAMES[..], &CONTENT].concat().contains(&&*call.name);
            (steps == Steps::All || is_some) && writes(&call.name, &call.arguments)
        });
        let chosen = numbers.into_iter().flat_map(|(name, numbers)| {
            let mut chosen = steps.choose(&numbers);
            if steps == Steps::Some && CONTENT.contains(&&*name) {
                let last = numbers.len() - 1;
                chosen = Vec::from_iter([0, last / 2, last].map(|index| numbers[index]));
                chosen.dedup();
            }
            chosen.into_iter().map(move |number| (name.clone(), number))
        });
        chosen.collect()
    }

    /// The steps of some names, each with the ways to disturb the command there: until one of them does, first with
    /// another one at each step, or with each of them. Then the last steps before changes, each with all of `before_changes`.
    pub fn trials<T: Copy>(
        &self,
        steps: Steps,
        names: &[&str],
        ways: &[T],
        before_changes: &[T],
    ) -> Vec<Trial<T>> {
        let numbers = self.numbers(|call| names.contains(&&*call.name)).into_iter();
        let chosen = numbers.flat_map(|(name, numbers)| {
            steps.choose(&numbers).into_iter().map(move |number| (name.clone(), number))
        });
        let trials = chosen.enumerate().map(|(index, step)| {
            let mut ways = ways.to_vec();
            let count = ways.len();
            ways.rotate_left(index % count);
            Trial { step, ways, enough: if steps == Steps::All { count } else { 1 } }
        });
        let before = self.before_changes(steps).into_iter().map(|step| Trial {
            step,
            ways: before_changes.to_vec(),
            enough: before_changes.len(),
        });
        trials.chain(before.filter(|trial| trial.enough > 0)).collect()
    }

    /// The last calls before files and directories are made, get names or lose them, in each way that the command does so.
    /// After such a call, nothing is opened that could be noticed to be another one, so only a handle leads where it did.
    fn before_changes(&self, steps: Steps) -> BTreeSet<Step> {
        let mut last = BTreeMap::new();
        let mut before = BTreeMap::<_, Vec<usize>>::new();
        for (index, call) in self.0.iter().enumerate() {
            let opened = last.insert(&call.thread, index);
            if let Some(opened) = opened.filter(|_| call.changes_names()) {
                before.entry((&call.thread, &call.name)).or_default().push(opened);
            }
        }
        let chosen = before.values().flat_map(|indexes| steps.choose(indexes));
        chosen.map(|index| (self.0[index].name.clone(), self.0[index].number)).collect()
    }
}

impl Call {
    /// Whether it made a file or a directory, or gave one another name, or took that away.
    fn changes_names(&self) -> bool {
        let is_meant = match &*self.name {
            "openat" => self.arguments.contains("O_CREAT"),
            name => ["mkdir", "rename", "link", "symlink", "unlink", "rmdir"]
                .iter()
                .any(|kind| name.starts_with(kind)),
        };
        is_meant && !self.arguments.contains(" = -1 ")
    }
}

/// Whether arguments are about a file below a directory, which is the current one.
fn is_in(root: &str, arguments: &str) -> bool {
    // `"a"`, or `AT_FDCWD</root>, "a"`.
    let current = format!("AT_FDCWD<{root}>");
    let path = arguments.strip_prefix(&current).or_else(|| arguments.strip_prefix("AT_FDCWD"));
    let path = path.map_or(arguments, |path| path.trim_start_matches(", "));
    path.starts_with('"') && !path.starts_with("\"/") || path.replace(&current, "").contains(root)
}

/// Runs a command to its end, and then kills it before each of its steps, in a run for each. It does so from each of
/// `states`.
///
/// `command` prepares each run, and `check` looks at what it left; both get the number of the state to start from. `content`
/// is what the command changes.
///
/// # Panics
/// The command cannot be run by strace, few runs were killed, or none after it had changed something.
pub fn kill_at_steps<S: PartialEq>(
    steps: Steps,
    states: usize,
    mut command: impl FnMut(usize) -> Command,
    content: impl Fn() -> S,
    mut check: impl FnMut(usize),
) {
    run(&mut command(0));
    let (mut runs, mut killed, mut killed_at_work) = (0, 0, 0);
    for state in 0..states {
        let trace = Trace::of(&command(state), &WRITING, &["-f"]);
        for (call, number) in trace.kills(steps) {
            runs += 1;
            let command = command(state);
            let before = content();
            let filter = format!("-etrace={call}");
            let fault = format!("-einject={call}:signal=KILL:when={number}");
            let mut strace = traced(&command, "/dev/null".as_ref(), &["-f", &filter, &fault]);
            strace.stdout(Stdio::null()).stderr(Stdio::null());
            let is_killed = strace.status().unwrap().code().is_none();
            if is_killed {
                killed += 1;
                killed_at_work += usize::from(content() != before);
            }
            // This is shown where the check fails.
            println!(
                "state {state}, {call} {number}: {}",
                if is_killed { "killed" } else { "ended" }
            );
            check(state);
        }
    }
    println!("{killed} of {runs} runs were killed, {killed_at_work} at work");
    assert!(killed_at_work > 0, "no run was killed after it had changed something");
    // Where several threads work, one may make fewer calls than when they were counted.
    assert!(killed * 2 > runs, "only {killed} of {runs} runs were killed");
}

/// The command under strace, which logs to a file.
fn traced(command: &Command, log: &Path, options: &[&str]) -> Command {
    let mut strace = Command::new("strace");
    strace.args(["-qq", "-o"]).arg(log).args(options);
    strace.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    if let Some(directory) = command.get_current_dir() {
        strace.current_dir(directory);
    }
    copy_environment(command, &mut strace);
    strace
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_the_calls_in_the_tree() {
        let log = r#"7 openat(AT_FDCWD</tree>, "/etc/ld.so.cache", O_RDONLY|O_CLOEXEC) = 3</etc/ld.so.cache>
7 write(1<pipe:[1]>, ""..., 9) = 9
7 mkdirat(AT_FDCWD</tree>, "out", 0777) = 0
7 openat(AT_FDCWD</tree>, "out", O_PATH) = 3</tree/out>
8 openat(3</tree/out>, "a", O_PATH <unfinished ...>
7 write(4</tree/out/.a>, ""..., 9) = 9
8 <... openat resumed>) = 4</tree/out/a>
7 renameat(3</tree/out>, ".a", 3</tree/out>, "a") = 0
7 +++ exited with 0 +++
"#;
        let trace = Trace::read(log, "/tree");
        let step = |name: &str, number| (name.to_owned(), number);
        assert_eq!(trace.before_changes(Steps::Some), BTreeSet::from([step("write", 2)]));
        let numbers = trace.numbers(|call| call.name == "write");
        assert_eq!(numbers, BTreeMap::from([("write".to_owned(), vec![2])]));
        let trials = trace.trials(Steps::Some, &["mkdirat", "renameat"], &["a", "b"], &["c"]);
        let shown = trials.iter().map(|trial| (&*trial.step.0, &*trial.ways, trial.enough));
        assert_eq!(
            Vec::from_iter(shown),
            [("mkdirat", &["a", "b"][..], 1), ("renameat", &["b", "a"], 1), ("write", &["c"], 1),]
        );
    }

    #[test]
    fn some_steps() {
        let numbers = Vec::from_iter(5..=30);
        assert_eq!(Steps::Some.choose(&numbers), [5, 6, 7, 9, 13, 21, 30]);
        assert_eq!(Steps::Some.choose(&[4]), [4]);
        assert_eq!(Steps::All.choose(&numbers), numbers);
    }
}
