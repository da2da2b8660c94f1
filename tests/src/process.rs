//! Programs that tests run.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

pub use kpack_tools::process::{cargo, cargo_variables, output, run, target_directory, try_run};

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
