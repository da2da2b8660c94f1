//! System calls that write, as strace shows them, and faults in them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::place::{Place, succeed};

/// All that changes a file system, or waits for that. Of `openat` and `write` only some calls do.
const WRITING: &str = "openat,write,pwrite64,writev,mkdir,mkdirat,rename,renameat,renameat2,link,linkat,\
symlink,symlinkat,unlink,unlinkat,rmdir,fsync,fdatasync,syncfs,sync_file_range,ftruncate,fallocate,chmod,\
fchmod,fchmodat,fchown,fchownat,fsetxattr,copy_file_range,sendfile,utimensat,flock,ioctl";

/// A system call of a run: its name, and the how many-eth of this name it is in its thread.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) number: usize,
}

/// What happens at a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Kill,
    Error(&'static str),
}

/// The errors that a full, damaged or forbidden file system gives, and an interrupted call.
pub(super) const ERRORS: [&str; 5] = ["ENOSPC", "EIO", "EDQUOT", "EACCES", "EINTR"];

/// A run of a command under strace.
pub(super) struct Trace {
    /// One line for each call, with its thread.
    pub(super) lines: Vec<(String, String)>,
}

impl Trace {
    /// Runs a command undisturbed.
    pub(super) fn record(place: &Place, log: &Path, arguments: &[&str]) -> Result<Self> {
        let shown = log.to_str().context("the path is UTF-8")?;
        let filter = format!("trace={WRITING}");
        let runner = [
            "strace",
            "-f",
            "-y",
            "-qq",
            "-s",
            "0",
            "-e",
            "signal=none",
            "-e",
            &filter,
            "-o",
            shown,
        ];
        succeed(&mut place.command(&runner, arguments))?;
        let text = fs::read_to_string(log)?;
        let lines = text.lines().filter_map(|line| {
            let (thread, call) = line.split_once(' ')?;
            Some((thread.to_owned(), call.trim_start().to_owned()))
        });
        Ok(Self {
            lines: lines.collect(),
        })
    }

    /// The calls that write, in the order in which they were made.
    pub(super) fn writing(&self) -> Vec<Call> {
        let mut made: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let mut calls = Vec::new();
        for (thread, line) in &self.lines {
            let Some((name, arguments)) = line.split_once('(') else {
                continue;
            };
            let number = made.entry((thread, name)).or_default();
            *number += 1;
            let call = Call {
                name: name.to_owned(),
                number: *number,
            };
            if writes(name, arguments) && seen.insert(call.clone()) {
                calls.push(call);
            }
        }
        calls
    }
}

impl Trace {
    /// Checks that a power failure leaves no name without its content: what is renamed was flushed before, and
    /// the directory that it is in is flushed afterwards, if it was not temporary. Returns the number of renames.
    pub(super) fn check_flushes(&self, root: &Path) -> Result<usize> {
        let lines = Vec::from_iter(self.lines.iter().map(|(_, line)| line.as_str()));
        let flushes = |lines: &[&str], path: &Path| {
            let descriptor = format!("<{}>", path.display());
            let is_flush = |line: &&str| {
                line.starts_with("syncfs(")
                    || (line.starts_with("fsync(") || line.starts_with("fdatasync("))
                        && line.contains(&descriptor)
            };
            lines.iter().any(is_flush)
        };
        let mut renames = 0;
        for (index, line) in lines.iter().enumerate() {
            if !line.starts_with("rename") || !line.contains(" = 0") {
                continue;
            }
            let [from, to] =
                renamed(line, root).with_context(|| format!("{line:?} is not understood"))?;
            let parent = to.parent().context("it is in a directory")?;
            ensure!(
                flushes(&lines[..index], &from),
                "not flushed before: {line}"
            );
            ensure!(
                !root.join(parent).is_dir() || flushes(&lines[index..], parent),
                "not flushed afterwards: {line}"
            );
            renames += 1;
        }
        Ok(renames)
    }
}

/// The two paths of a rename.
fn renamed(line: &str, root: &Path) -> Option<[PathBuf; 2]> {
    let (name, rest) = line.split_once('(')?;
    let words = Vec::from_iter(rest.split(')').next()?.split(", "));
    let name_of = |word: &str| Some(word.strip_prefix('"')?.strip_suffix('"')?.to_owned());
    let directory_of = |word: &str| Some(PathBuf::from(word.split_once('<')?.1.strip_suffix('>')?));
    match (name, &words[..]) {
        ("rename", [from, to]) => Some([root.join(name_of(from)?), root.join(name_of(to)?)]),
        (_, [old, from, new, to, ..]) => Some([
            directory_of(old)?.join(name_of(from)?),
            directory_of(new)?.join(name_of(to)?),
        ]),
        _ => None,
    }
}

/// Whether a call writes to a file of the user.
fn writes(name: &str, arguments: &str) -> bool {
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

/// How strace runs a command so that a call fails.
pub(super) fn runner(call: &Call, fault: Fault, log: &str) -> Vec<String> {
    let what = match fault {
        Fault::Kill => "signal=KILL".to_owned(),
        Fault::Error(error) => format!("error={error}"),
    };
    let Call { name, number } = call;
    let mut words = Vec::from(["strace", "-f", "-q", "-s", "0", "-o", log].map(str::to_owned));
    words.extend(["-e".to_owned(), format!("trace={name}")]);
    words.extend([
        "-e".to_owned(),
        format!("inject={name}:{what}:when={number}"),
    ]);
    words
}

/// Whether a run under strace came to the call that was to fail.
pub(super) fn was_reached(log: &Path, fault: Fault) -> Result<bool> {
    let text = fs::read_to_string(log)?;
    Ok(match fault {
        Fault::Kill => text.contains("killed by SIGKILL"),
        // Each thread counts its own calls. Where the message itself is lost, there is nothing to check.
        Fault::Error(_) => {
            let mut failed = text
                .lines()
                .filter(|line| line.contains("(INJECTED)"))
                .peekable();
            failed.peek().is_some() && !failed.any(|line| line.contains(" write(2, "))
        }
    })
}

/// Fails unless strace can trace a program here.
pub(super) fn check_strace() -> Result<()> {
    let output = std::process::Command::new("strace")
        .args(["-o", "/dev/null", "true"])
        .output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => bail!(
            "strace cannot trace here: {}",
            String::from_utf8_lossy(&output.stderr)
        ),
        Err(error) => Err(error).context("strace is not installed; run `cargo xtask bootstrap`"),
    }
}
