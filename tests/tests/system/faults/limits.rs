//! Limits of the machine: file sizes, descriptors, memory, space, permissions, and writes that write less than they should.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use kpack_tests::require;
use walkdir::WalkDir;

use super::trial::{Expected, Trial};
use kpack_tests::process::try_run;

/// What a process may have: the option of the shell's `ulimit`, the values to try, and what is expected. With
/// the last value, the command must do all.
struct Limit {
    name: &'static str,
    option: &'static str,
    values: &'static [u32],
    expected: Expected,
}

const CLEAN: Expected = Expected::DoneOrFailed { leftovers: false };

const LIMITS: &[Limit] = &[
    Limit {
        name: "file size in blocks of 512 bytes",
        option: "-f",
        values: &[0, 1, 4, 8, 16, 32, 64, 4096],
        expected: CLEAN,
    },
    Limit {
        name: "open files",
        option: "-n",
        values: &[4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 32, 64],
        expected: Expected::Ended,
    },
    Limit {
        name: "KB of address space",
        option: "-v",
        values: &[
            8 << 10,
            12 << 10,
            16 << 10,
            24 << 10,
            32 << 10,
            64 << 10,
            128 << 10,
            256 << 10,
            4 << 20,
        ],
        expected: Expected::Ended,
    },
];

impl Limit {
    fn runner(&self, value: u32) -> [String; 4] {
        let script = format!("ulimit {} {value}; exec \"$@\"", self.option);
        ["sh", "-c", &script, "sh"].map(str::to_owned)
    }
}

/// The limits of what a program may have that only reads: each with its name, what runs a command with it, and
/// whether the command must do all.
pub(super) fn of_readers() -> impl Iterator<Item = (String, [String; 4], bool)> {
    let limits = LIMITS.iter().filter(|limit| limit.option != "-f");
    limits.flat_map(|limit| {
        let last = limit.values.last();
        limit.values.iter().map(move |value| {
            let name = format!("{value} {}", limit.name);
            (name, limit.runner(*value), Some(value) == last)
        })
    })
}

/// Runs a command as the owner of no file of the tests.
const AS_NOBODY: [&str; 5] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"];

/// Runs the command with each limit, and returns the number of runs.
pub(super) fn check(trial: &Trial<'_>) -> Result<usize> {
    let mut runs = 0;
    for limit in LIMITS {
        for (index, value) in limit.values.iter().enumerate() {
            let last = index + 1 == limit.values.len();
            let runner = limit.runner(*value);
            let runner = Vec::from_iter(runner.iter().map(String::as_str));
            let expected = if last { Expected::Done } else { limit.expected };
            let mut command = trial.place.command(&runner, trial.scenario.arguments);
            trial
                .run(&mut command, expected)
                .and_then(|_| trial.rerun())
                .with_context(|| format!("{value} {}", limit.name))?;
            runs += 1;
        }
    }
    Ok(runs)
}

/// Runs the command where it may read everything and write nothing. Returns whether this can be tried here.
pub(super) fn check_read_only(trial: &Trial<'_>) -> Result<bool> {
    let runner = if require::is_root() { &AS_NOBODY[..] } else { &[] };
    if !trial.place.command(runner, "--version").output()?.status.success() {
        return Ok(false);
    }
    trial.place.restore()?;
    let mut directories = Vec::from([trial.place.root().to_owned()]);
    if let Some(depth) = trial.scenario.depth_of_directories() {
        let below = WalkDir::new(trial.place.root().join(trial.scenario.directory()));
        let below = below.max_depth(depth).into_iter().flatten();
        let below = below.filter(|entry| entry.file_type().is_dir());
        directories.extend(below.map(walkdir::DirEntry::into_path));
    }
    let modes = directories.iter().map(|path| Ok(fs::metadata(path)?.permissions()));
    let modes = modes.collect::<Result<Vec<Permissions>>>()?;
    for directory in &directories {
        fs::set_permissions(directory, Permissions::from_mode(0o555))?;
    }
    let mut command = trial.place.command(runner, trial.scenario.arguments);
    let output = trial.run_here(&mut command, CLEAN).context("read-only directories")?;
    ensure!(!output.status.success(), "read-only directories: it wrote to them");
    for (directory, mode) in directories.iter().zip(modes) {
        fs::set_permissions(directory, mode)?;
    }
    trial.rerun().context("after read-only directories")?;
    Ok(true)
}

/// A separate file system, which is unmounted when this is dropped.
struct Mount(PathBuf);

impl Mount {
    /// Mounts one of so many KB; `None` where that is forbidden.
    fn try_new(at: &Path, size: u64) -> Result<Option<Self>> {
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", &format!("mode=755,size={size}k"), "kpack-faults"]);
        let mounted = command.arg(at).output()?.status.success();
        Ok(mounted.then(|| Self(at.to_owned())))
    }

    fn grow(&self) -> Result<()> {
        try_run(Command::new("mount").args(["-o", "remount,size=256m"]).arg(&self.0)).map(drop)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Runs the command on file systems with more and more room, until it suffices. Returns how many were too
/// small; `None` if no file system can be mounted here.
pub(super) fn check_full(trial: &Trial<'_>) -> Result<Option<usize>> {
    trial.place.restore()?;
    let entries = WalkDir::new(trial.place.root()).into_iter().flatten();
    // Files take whole pages.
    let files = entries.flat_map(|entry| entry.metadata()).filter(fs::Metadata::is_file);
    let input: u64 = files.map(|file| file.len().div_ceil(4096) * 4).sum();
    for (tried, room) in (0..14).map(|power| 4 << power).enumerate() {
        let Some(mount) = Mount::try_new(trial.place.root(), input + room)? else {
            return Ok(None);
        };
        trial.place.restore()?;
        let mut command = trial.place.command(&[], trial.scenario.arguments);
        let output =
            trial.run_here(&mut command, CLEAN).with_context(|| format!("{room} KB of room"))?;
        mount.grow()?;
        trial.rerun().with_context(|| format!("after {room} KB of room"))?;
        if output.status.success() {
            ensure!(tried > 0, "the smallest file system was large enough");
            return Ok(Some(tried));
        }
    }
    bail!("no file system was large enough");
}

/// Runs the command with a preloaded library that lets every write write less than it should, which must make no
/// difference. Returns the number of writes.
pub(super) fn check_short_writes(trial: &Trial<'_>, scratch: &Path) -> Result<u64> {
    let source = scratch.join("short_writes.c");
    fs::write(&source, include_str!("short_writes.c"))?;
    let library = scratch.join("short_writes.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]);
    try_run(compiler.arg(&library).arg(&source).arg("-ldl"))?;
    let mut command = trial.place.command(&[], trial.scenario.arguments);
    let output =
        trial.run(command.env("LD_PRELOAD", library), Expected::Done).context("short writes")?;
    let said = String::from_utf8_lossy(&output.stderr);
    let count = said.lines().find_map(|line| line.strip_suffix(" short writes"));
    let count: u64 = count.context("the library was not loaded")?.parse()?;
    ensure!(count > 1, "nothing was written with the functions of the C library");
    Ok(count)
}
