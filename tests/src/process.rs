//! Programs that tests run.

use std::env;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// What a command printed, and how it ended.
///
/// # Panics
/// The program cannot be started.
pub fn output(command: &mut Command) -> Output {
    try_output(command).unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn try_output(command: &mut Command) -> io::Result<Output> {
    loop {
        match command.output() {
            // This process wrote the program. A child process that another thread started meanwhile
            // holds the descriptor until it calls `exec`, and as long nobody can run the program.
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => thread::yield_now(),
            result => return result,
        }
    }
}

/// Cargo's target directory.
pub fn target_directory() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let named = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    std::path::absolute(root.join(named.unwrap_or("target".into()))).expect("the path is not empty")
}

/// `cargo`, as if it was started by hand.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(arguments);
    for name in cargo_variables() {
        command.env_remove(name);
    }
    command
}

/// A prefix with kpack as `cargo xtask dist` installs it: the one that the variable `KPACK_TEST_PREFIX` names, or one that
/// the first call makes, in `directory`.
///
/// # Panics
/// A build fails.
pub fn installed_kpack(directory: &Path) -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = env::var_os("KPACK_TEST_PREFIX").map(PathBuf::from).unwrap_or_else(|| {
            let _ = fs::remove_dir_all(directory);
            run(xtask("dist").args(["--profile", "dev", "--prefix"]).arg(directory));
            directory.to_owned()
        });
        std::path::absolute(prefix).expect("the path is not empty")
    })
}

/// `cargo xtask TASK`, by the program that the variable `KPACK_TEST_XTASK` names, or by one that cargo builds.
pub fn xtask(task: &str) -> Command {
    let mut command = match env::var_os("KPACK_TEST_XTASK") {
        Some(program) => Command::new(program),
        None => cargo(&["run", "--package", "xtask", "--"]),
    };
    command.arg(task).current_dir(env!("CARGO_MANIFEST_DIR"));
    for name in cargo_variables() {
        command.env_remove(name);
    }
    command
}

/// The variables that cargo sets for what it runs; `OUT_DIR` for tests of packages with a build script. If they reach
/// another cargo, it compiles again all dependencies whose build scripts read them.
pub fn cargo_variables() -> impl Iterator<Item = String> {
    env::vars_os().filter_map(|(name, _)| name.into_string().ok()).filter(|name| {
        name == "OUT_DIR" || name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
    })
}

/// The standard output of a command that must succeed.
///
/// # Panics
/// It fails.
pub fn run(command: &mut Command) -> String {
    try_run(command).unwrap_or_else(|error| panic!("{error:#}"))
}

/// The standard output of a command.
///
/// # Errors
/// It cannot be started, or fails; the error has what it printed.
pub fn try_run(command: &mut Command) -> Result<String> {
    let output = try_output(command).with_context(|| format!("{command:?} cannot be started"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "{command:?} failed ({})\n{stdout}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(stdout)
}

/// Copies a file or a directory with everything about it. This process never opens the copy, so a
/// program can be run at once.
///
/// # Panics
/// `cp` fails.
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    run(Command::new("cp").arg("-a").args([from.as_ref(), to.as_ref()]));
}

/// How often [`kill_at_any_moment`] starts a command, and how often at most.
const KILLED_RUNS: u32 = 100;
const MOST_RUNS: u32 = 20 * KILLED_RUNS;

/// Runs a command once to its end, and then again and again, killing each run at another moment. The
/// moments are spread over the time that a run takes, and a little beyond, and adapt if that changes.
/// There are more runs until one was killed after it had changed something.
///
/// `command` prepares each run, and `check` looks at what it left; both get its number, which is 0
/// for the first. `state` is what the command changes.
///
/// # Panics
/// The command cannot be started, or no run was killed after it had changed something.
pub fn kill_at_any_moment<S: PartialEq>(
    mut command: impl FnMut(u32) -> Command,
    state: impl Fn() -> S,
    mut check: impl FnMut(u32),
) {
    let mut start = |run| {
        let mut command = command(run);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        (state(), Instant::now(), command.spawn().unwrap())
    };
    let (_, started, mut child) = start(0);
    assert!(child.wait().unwrap().success());
    let mut whole = started.elapsed();
    let mut killed_at_work = 0;
    let mut run = 0;
    while run < KILLED_RUNS || killed_at_work == 0 {
        assert!(run < MOST_RUNS, "no run was killed after it had changed something");
        run += 1;
        let (before, _, mut child) = start(run);
        // In an order that looks random.
        let moment = whole.mul_f64(f64::from((run - 1) * 37 % KILLED_RUNS) / 90.0);
        thread::sleep(moment);
        child.kill().unwrap();
        let killed = child.wait().unwrap().code().is_none();
        if !killed {
            whole = whole.min(moment).max(Duration::from_millis(1));
        } else if moment > whole {
            whole = moment * 2;
        }
        killed_at_work += u32::from(killed && state() != before);
        check(run);
    }
    println!("{killed_at_work} of {run} runs were killed at work; a run takes about {whole:?}");
}
