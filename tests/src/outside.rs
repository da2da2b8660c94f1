//! Packages that use our crates as their users do: outside the workspace, with only the features that they ask for.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::page::repository;
use crate::process::{cargo, remove_cargo_variables, target_directory};

/// Cargo's target directory of all such packages. It stays, so that kpack-build and its dependencies are compiled once for
/// all of them.
#[derive(Debug)]
pub struct Outside {
    target: PathBuf,
    /// Held until this is dropped: a test may move what others would run.
    _lock: File,
}

impl Outside {
    /// Waits until no other process uses the directory.
    ///
    /// # Panics
    /// It cannot be made.
    pub fn lock() -> Self {
        let target = target_directory().join("outside");
        fs::create_dir_all(&target).unwrap();
        let lock = File::create(target.join("lock")).unwrap();
        lock.lock().unwrap();
        Self { target, _lock: lock }
    }

    /// Where cargo puts what it builds.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Does something while what cargo built with a profile is elsewhere.
    ///
    /// # Errors
    /// The directory cannot be renamed, or what was done failed.
    pub fn without<T>(&self, profile: &str, task: impl FnOnce() -> Result<T>) -> Result<T> {
        let [there, elsewhere] = [profile, "elsewhere"].map(|name| self.target.join(name));
        let _ = fs::remove_dir_all(&elsewhere);
        fs::rename(&there, &elsewhere).with_context(|| there.display().to_string())?;
        let result = task();
        fs::rename(&elsewhere, &there).with_context(|| elsewhere.display().to_string())?;
        result
    }

    /// `cargo`, started in a package by hand.
    pub fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = cargo(arguments);
        self.prepare(&mut command);
        command
    }

    /// Lets a command, and each cargo that it starts, build in this directory.
    pub fn prepare(&self, command: &mut Command) {
        remove_cargo_variables(command);
        command.env("CARGO_TARGET_DIR", &self.target).env_remove("RUSTFLAGS");
        command.env("CARGO_NET_OFFLINE", "true").env("CARGO_INCREMENTAL", "0");
        // As cargo compiles what build scripts use: a program that uses kpack-build itself then needs no other one.
        command.env("CARGO_PROFILE_DEV_DEBUG", "0");
        // Packages that strip their release would need another one too.
        command.env("CARGO_PROFILE_RELEASE_BUILD_OVERRIDE_STRIP", "none");
    }

    /// Gives a package the versions of dependencies that are compiled already, instead of the latest ones.
    ///
    /// # Errors
    /// The list cannot be copied.
    pub fn pin(package: &Path) -> Result<()> {
        let list = repository().join("examples/rust-hip/Cargo.lock");
        fs::copy(&list, package.join("Cargo.lock")).with_context(|| list.display().to_string())?;
        Ok(())
    }
}
