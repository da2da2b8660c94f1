//! Programs that must succeed, and cargo.

use std::env;
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
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
    let started = Instant::now();
    loop {
        match command.output() {
            // This process wrote the program. A child process that another thread started meanwhile
            // holds the descriptor until it calls `exec`, and as long nobody can run the program.
            Err(error)
                if error.kind() == ErrorKind::ExecutableFileBusy
                    && started.elapsed() < PATIENCE =>
            {
                thread::yield_now();
            }
            result => return result,
        }
    }
}

/// How long a program that was just written may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// The root of the repository.
pub fn repository() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().nth(2).expect("tests/tools is a directory of the repository")
}

/// Cargo's target directory.
pub fn target_directory() -> PathBuf {
    let named = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    std::path::absolute(repository().join(named.unwrap_or("target".into())))
        .expect("the path is not empty")
}

/// `cargo`, as if it was started by hand.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(arguments);
    remove_cargo_variables(&mut command);
    command
}

/// Takes the variables away that cargo sets for what it runs, `OUT_DIR` for tests of packages with a build script, and the
/// one that makes libtest print JSON for `cargo xtask test`. If they reach another cargo, it compiles again all dependencies
/// whose build scripts read them.
pub fn remove_cargo_variables(command: &mut Command) {
    let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in names {
        if ["OUT_DIR", "RUSTC_BOOTSTRAP"].contains(&&*name)
            || name.starts_with("CARGO_PKG_")
            || name.starts_with("CARGO_MANIFEST_")
        {
            command.env_remove(name);
        }
    }
}

/// The exit code of a check that cannot run here, as test programs under Automake and Meson use it.
pub const NOT_RUN: u8 = 77;

/// A rustdoc that accepts unstable options, such as those for JSON. If cargo had the variable, it would compile dependencies
/// again.
///
/// # Errors
/// The target directory cannot be written.
pub fn unstable_rustdoc() -> Result<PathBuf> {
    let path = target_directory().join("unstable-rustdoc");
    // Another task may run it meanwhile.
    let unfinished = path.with_extension(std::process::id().to_string());
    fs::write(&unfinished, "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n")
        .with_context(|| unfinished.display().to_string())?;
    fs::set_permissions(&unfinished, Permissions::from_mode(0o755))?;
    fs::rename(&unfinished, &path)?;
    Ok(path)
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
