//! The directory that a command changes, restored before each run.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Result;
use walkdir::WalkDir;

use kpack_tests::process::try_run;

/// A directory, a copy of it as it was before the first run, and the command.
pub(super) struct Place {
    work: PathBuf,
    before: PathBuf,
    kpack: PathBuf,
}

/// Mode and content of every file, directory and symbolic link.
pub(super) type Snapshot = BTreeMap<PathBuf, (u32, Vec<u8>)>;

impl Place {
    /// An empty one in `scratch`.
    pub(super) fn new(scratch: &Path, kpack: &Path) -> Result<Self> {
        let place = Self {
            work: scratch.join("work"),
            before: scratch.join("before"),
            kpack: kpack.to_owned(),
        };
        fs::create_dir(&place.work)?;
        Ok(place)
    }

    pub(super) fn root(&self) -> &Path {
        &self.work
    }

    pub(super) fn path(&self, relative: &str) -> PathBuf {
        self.work.join(relative)
    }

    /// Remembers what is there now.
    pub(super) fn keep(&self) -> Result<()> {
        copy(&self.work, &self.before)
    }

    /// Makes it what it was when it was kept. The directory itself stays, since it may be a mount point.
    pub(super) fn restore(&self) -> Result<()> {
        for entry in fs::read_dir(&self.work)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?
            } else {
                fs::remove_file(entry.path())?
            }
        }
        copy(&self.before.join("."), &self.work)
    }

    /// The command, to be run in it, by a program that takes a command as its last arguments.
    /// The arguments are words between spaces.
    pub(super) fn command(&self, runner: &[&str], arguments: &str) -> Command {
        self.other_command(runner, &self.kpack, arguments)
    }

    /// The same, of another program.
    pub(super) fn other_command(
        &self,
        runner: &[&str],
        program: &Path,
        arguments: &str,
    ) -> Command {
        let mut command = match runner {
            [] => Command::new(program),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        };
        command.args(arguments.split(' '));
        self.prepare(&mut command);
        command
    }

    /// Runs kpack, which must succeed.
    pub(super) fn kpack(&self, arguments: &str) -> Result<()> {
        try_run(&mut self.command(&[], arguments)).map(drop)
    }

    /// What another program prints that runs in it, which must succeed.
    pub(super) fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(program);
        command.args(arguments);
        self.prepare(&mut command);
        try_run(&mut command)
    }

    fn prepare(&self, command: &mut Command) {
        command.current_dir(&self.work).env("LC_ALL", "C").stdin(Stdio::null());
    }

    /// What is there now.
    pub(super) fn snapshot(&self) -> Result<Snapshot> {
        let mut snapshot = Snapshot::new();
        for entry in WalkDir::new(&self.work).min_depth(1) {
            let entry = entry?;
            let metadata = entry.path().symlink_metadata()?;
            let content = if metadata.is_dir() {
                Vec::new()
            } else if metadata.is_symlink() {
                fs::read_link(entry.path())?.into_os_string().into_encoded_bytes()
            } else {
                fs::read(entry.path())?
            };
            let relative = entry.path().strip_prefix(&self.work)?;
            snapshot.insert(relative.to_owned(), (metadata.mode(), content));
        }
        Ok(snapshot)
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    try_run(Command::new("cp").arg("-a").arg(from).arg(to)).map(drop)
}

/// The paths at which two snapshots differ.
pub(super) fn differences<'a>(one: &'a Snapshot, other: &'a Snapshot) -> Vec<&'a Path> {
    let changed = one.iter().filter(|(path, entry)| other.get(*path) != Some(entry));
    let added = other.keys().filter(|path| !one.contains_key(*path));
    let paths = changed.map(|(path, _)| path).chain(added);
    paths.map(PathBuf::as_path).collect()
}
