//! Programs that tests run.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

pub use kpack_tools::process::{
    cargo, output, remove_cargo_variables, run, target_directory, try_run,
};

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
    remove_cargo_variables(&mut command);
    command
}

/// Gives another command what the first one sets and removes in its environment.
pub fn copy_environment(from: &Command, to: &mut Command) {
    for (name, value) in from.get_envs() {
        match value {
            Some(value) => to.env(name, value),
            None => to.env_remove(name),
        };
    }
}

/// Copies a file or a directory with everything about it. This process never opens the copy, so a
/// program can be run at once: if it did, a child that another test starts meanwhile would hold the
/// descriptor until it calls `exec`, and until then nobody can run the program.
///
/// # Panics
/// `cp` fails.
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    run(Command::new("cp").arg("-a").args([from.as_ref(), to.as_ref()]));
}

/// Writes a shell script that everybody may run. This process never opens it, as in [`copy`].
///
/// # Panics
/// `install` fails.
pub fn script(path: impl AsRef<Path>, text: &str) {
    let written = tempfile::NamedTempFile::new().unwrap();
    fs::write(&written, format!("#!/bin/sh\n{text}\n")).unwrap();
    let mut install = Command::new("install");
    run(install.args(["-D", "-m", "755"]).args([written.path(), path.as_ref()]));
}
