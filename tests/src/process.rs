//! Programs that tests run.

use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Instant;

use anyhow::{Result, ensure};

/// What a command printed, and how it ended.
///
/// # Panics
/// The program cannot be started.
pub fn output(command: &mut Command) -> Output {
    loop {
        match command.output() {
            // This process wrote the program. A child process that another thread started meanwhile
            // holds the descriptor until it calls `exec`, and as long nobody can run the program.
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => thread::yield_now(),
            result => return result.unwrap_or_else(|error| panic!("{command:?}: {error}")),
        }
    }
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
/// It fails; the error has what it printed.
pub fn try_run(command: &mut Command) -> Result<String> {
    let output = output(command);
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
    run(Command::new("cp")
        .arg("-a")
        .args([from.as_ref(), to.as_ref()]));
}

/// How often [`kill_at_any_moment`] starts a command.
pub const KILLED_RUNS: u32 = 100;

/// Runs a command once to its end, and then again and again, killing each run at another moment. The
/// moments are spread over the time that the first run took, and a little beyond.
///
/// `command` prepares each run, and `check` looks at what it left; both get its number, which is 0
/// for the first.
///
/// # Panics
/// The command cannot be started, or no run was killed before it ended.
pub fn kill_at_any_moment(mut command: impl FnMut(u32) -> Command, mut check: impl FnMut(u32)) {
    let mut start = |run| {
        let mut command = command(run);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    };
    let started = Instant::now();
    assert!(start(0).wait().unwrap().success());
    let whole = started.elapsed();
    let mut killed = 0;
    for run in 1..=KILLED_RUNS {
        let mut child = start(run);
        // In an order that looks random.
        let moment = whole.mul_f64(f64::from((run - 1) * 37 % KILLED_RUNS) / 90.0);
        thread::sleep(moment);
        child.kill().unwrap();
        killed += u32::from(!child.wait().unwrap().success());
        check(run);
    }
    println!("{killed} of {KILLED_RUNS} runs were killed within {whole:?}");
    // How many depends on what else the machine does; the first is killed as soon as it has started.
    assert!(killed > 0, "no run was killed before it ended");
}
