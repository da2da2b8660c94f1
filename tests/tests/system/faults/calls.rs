//! System calls that write, as strace shows them, and faults in them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::place::Place;
use kpack_tests::process::try_run;
use kpack_tests::steps::{WRITING, writes};

/// The calls that read files and allocate memory. The C library takes an error of `brk` for an address.
const READING: &str = "openat,read,pread64,mmap,mremap,mprotect,fstat,newfstatat,statx,access,faccessat,\
faccessat2,readlink,readlinkat,getdents64,lseek,flock,ioctl";

/// A system call of a run. Its number counts the calls of this name. It is the same in each run, since one
/// thread makes all of them.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) name: String,
    number: usize,
    arguments: String,
}

impl Call {
    /// Whether the promises are about the order of such calls.
    pub(super) fn orders(&self) -> bool {
        let names = ["rename", "fsync", "fdatasync", "syncfs"];
        names.iter().any(|name| self.name.starts_with(name))
    }
}

impl Display for Call {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}({} #{}", self.name, self.arguments, self.number)
    }
}

/// How strace runs. With `--seccomp-bpf` it would not kill.
const STRACE: [&str; 4] = ["strace", "-f", "-s", "0"];

/// What happens at a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Kill,
    Error(&'static str),
}

/// The errors that a full, damaged or forbidden file system gives, and an interrupted call.
pub(super) fn errors_of_writes(_: &Call) -> &'static [&'static str] {
    &["ENOSPC", "EIO", "EDQUOT", "EACCES", "EINTR"]
}

/// The errors that a call gives for damaged or forbidden files, too many open ones, and too little memory.
pub(super) fn errors_of_reads(call: &Call) -> &'static [&'static str] {
    match call.name.as_str() {
        "openat" => &["EIO", "EACCES", "EMFILE", "ENOMEM", "EINTR"],
        "read" | "pread64" => &["EIO", "EINTR"],
        "mmap" | "mremap" | "mprotect" => &["ENOMEM"],
        _ => &["EIO", "EACCES", "ENOMEM"],
    }
}

/// A run of a command under strace.
pub(super) struct Trace {
    /// One line for each call.
    lines: Vec<String>,
}

impl Trace {
    /// Runs a command undisturbed.
    pub(super) fn record(place: &Place, log: &Path, arguments: &str) -> Result<Self> {
        Self::of(&WRITING.join(","), log, |runner| {
            try_run(&mut place.command(runner, arguments)).map(drop)
        })
    }

    /// The same, of what a program reads; `run` runs it by a program that takes a command as its last arguments.
    pub(super) fn record_reads(
        log: &Path,
        run: impl FnOnce(&[&str]) -> Result<()>,
    ) -> Result<Self> {
        Self::of(READING, log, run)
    }

    fn of(calls: &str, log: &Path, run: impl FnOnce(&[&str]) -> Result<()>) -> Result<Self> {
        let shown = log.to_str().context("the path is UTF-8")?;
        let filter = format!("trace={calls}");
        let runner =
            [&STRACE[..], &["-qq", "-y", "-e", "signal=none", "-e", &filter, "-o", shown]].concat();
        run(&runner)?;
        let text = fs::read_to_string(log)?;
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        let lines = Vec::from_iter(lines);
        let threads = BTreeSet::from_iter(lines.iter().map(|(thread, _)| thread));
        ensure!(
            threads.len() == 1,
            "{} threads made calls (expected 1 on one processor)",
            threads.len()
        );
        let calls = lines.iter().map(|(_, call)| call.trim_start().to_owned());
        Ok(Self { lines: calls.collect() })
    }

    /// The calls that write, in the order in which they were made.
    pub(super) fn writing(&self) -> Vec<Call> {
        let mut calls = self.calls();
        calls.retain(|call| writes(&call.name, &call.arguments));
        calls
    }

    /// From the first one about a file below `root`: before it, the dynamic linker starts the program. Those about
    /// `other` are left out.
    pub(super) fn reading(&self, root: &Path, other: &str) -> Vec<Call> {
        let root = format!("{}/", root.display());
        let calls = self.calls().into_iter();
        let calls = calls.skip_while(|call| !call.arguments.contains(&root));
        calls.filter(|call| !call.arguments.contains(other)).collect()
    }

    fn calls(&self) -> Vec<Call> {
        let mut made: BTreeMap<&str, usize> = BTreeMap::new();
        let lines = self.lines.iter().filter_map(|line| line.split_once('('));
        let calls = lines.map(|(name, arguments)| {
            let number = made.entry(name).or_default();
            *number += 1;
            Call { name: name.to_owned(), number: *number, arguments: arguments.to_owned() }
        });
        calls.collect()
    }

    /// Checks that a power failure leaves no name without its content: what is renamed was flushed after it was last
    /// written, and the directory that it is in is flushed afterwards. In a temporary directory, both are flushed before
    /// that directory is renamed, which may be at once; what it has when it is removed does not count. Returns the
    /// number of renames.
    pub(super) fn check_flushes(&self, root: &Path) -> Result<usize> {
        let mut renames = 0;
        for (index, line) in self.lines.iter().enumerate() {
            if !line.starts_with("rename") || !line.contains(" = 0") {
                continue;
            }
            let [from, to] =
                renamed(line, root).with_context(|| format!("{line:?} is not understood"))?;
            let parent = to.parent().context("it is in a directory")?;
            let is_temporary = !parent.is_dir();
            let of_parent = |line: &String| {
                let paths = line.starts_with("rename").then(|| renamed(line, root));
                paths.flatten().is_some_and(|[from, _]| parent.starts_with(from))
            };
            let mut after = &self.lines[index..];
            if is_temporary {
                let Some(named) = after.iter().position(of_parent) else {
                    continue;
                };
                after = &after[..named];
            }
            ensure!(
                self.is_flushed(&from, index, root)? || is_temporary && flushes(after, &shown(&to)),
                "not flushed before: {line}"
            );
            ensure!(flushes(after, &shown(parent)), "not flushed afterwards: {line}");
            renames += 1;
        }
        Ok(renames)
    }

    /// Whether what is at a path at a call was flushed before, after it was last written.
    fn is_flushed(&self, path: &Path, call: usize, root: &Path) -> Result<bool> {
        let before = &self.lines[..call];
        // A file that was written without a name is shown without one.
        let nameless = before.iter().rposition(|line| {
            line.starts_with("linkat(") && renamed(line, root).is_some_and(|[_, name]| name == path)
        });
        if let Some(linked) = nameless {
            let [descriptor, _] = renamed(&before[linked], root).context("a link")?;
            let number = descriptor.file_name().unwrap_or_default();
            return Ok(flushes(&before[linked..], &format!("({}<", number.display())));
        }
        let (own, below) = (shown(path), format!("<{}/", path.display()));
        let written = before.iter().rposition(|line| {
            changes_content(line) && (line.contains(&own) || line.contains(&below))
        });
        let is_directory = before.iter().any(|line| line.contains(&below));
        let since = &before[written.unwrap_or(0)..];
        // To flush a directory alone is not enough.
        Ok(if is_directory {
            since.iter().any(|line| line.starts_with("syncfs("))
        } else {
            flushes(since, &own)
        })
    }
}

/// A path, as strace shows it beside a descriptor.
fn shown(path: &Path) -> String {
    format!("<{}>", path.display())
}

/// Whether one of the calls flushes what is shown so, or all of the file system.
fn flushes(lines: &[String], shown: &str) -> bool {
    lines.iter().any(|line| {
        line.starts_with("syncfs(")
            || (line.starts_with("fsync(") || line.starts_with("fdatasync("))
                && line.contains(shown)
    })
}

/// Whether a call writes to a file, or to a directory.
fn changes_content(line: &str) -> bool {
    let name = line.split('(').next().unwrap_or_default();
    match name {
        "openat" => line.contains("O_CREAT"),
        "ioctl" => line.contains("FICLONE"),
        "write" | "pwrite64" | "writev" | "ftruncate" | "fallocate" | "copy_file_range"
        | "sendfile" => true,
        _ => ["mkdir", "rename", "link", "symlink"].iter().any(|kind| name.starts_with(kind)),
    }
}

/// The two paths of a rename or link.
fn renamed(line: &str, root: &Path) -> Option<[PathBuf; 2]> {
    let (name, rest) = line.split_once('(')?;
    let words = Vec::from_iter(rest.split(')').next()?.split(", "));
    let name_of = |word: &str| Some(word.strip_prefix('"')?.strip_suffix('"')?.to_owned());
    let directory_of = |word: &str| Some(PathBuf::from(word.split_once('<')?.1.strip_suffix('>')?));
    match (name, &words[..]) {
        ("rename", [from, to]) => Some([root.join(name_of(from)?), root.join(name_of(to)?)]),
        (_, [old, from, new, to, ..]) => {
            Some([directory_of(old)?.join(name_of(from)?), directory_of(new)?.join(name_of(to)?)])
        }
        _ => None,
    }
}

/// How strace runs a command so that a call fails.
pub(super) fn runner(call: &Call, fault: Fault, log: &str) -> Vec<String> {
    let what = match fault {
        Fault::Kill => "signal=KILL".to_owned(),
        Fault::Error(error) => format!("error={error}"),
    };
    let Call { name, number, .. } = call;
    let filter = format!("trace={name}");
    let inject = format!("inject={name}:{what}:when={number}");
    let words = [&STRACE[..], &["-q", "-e", &filter, "-e", &inject, "-o", log]];
    words.concat().into_iter().map(str::to_owned).collect()
}

/// Whether a run under strace came to the call that was to fail.
pub(super) fn was_reached(log: &Path, fault: Fault) -> Result<bool> {
    let text = fs::read_to_string(log)?;
    Ok(match fault {
        Fault::Kill => text.contains("killed by SIGKILL"),
        Fault::Error(_) => text.contains("(INJECTED)"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a file in the temporary directory of `NAME`.
    const WRITE: &str = r#"mkdirat(3<ROOT>, ".NAME.tmp", 0777) = 0
        openat(4<ROOT/.NAME.tmp>, ".file.tmp", O_RDWR|O_CREAT|O_EXCL, 0666) = 5<ROOT/.NAME.tmp/.file.tmp>
        write(5<ROOT/.NAME.tmp/.file.tmp>, ""..., 9) = 9
        renameat(4<ROOT/.NAME.tmp>, ".file.tmp", 4<ROOT/.NAME.tmp>, "file") = 0"#;
    const FLUSH: &str = "syncfs(3<ROOT>) = 0";
    const NAME: &str = r#"renameat(3<ROOT>, ".NAME.tmp", 3<ROOT>, "NAME") = 0"#;

    /// Checks the calls of a run that leaves the directories `one` and `two`.
    fn check(calls: &[(&str, &str)]) -> Result<usize> {
        let root = tempfile::tempdir()?;
        for name in ["one", "two"] {
            fs::create_dir(root.path().join(name))?;
        }
        let shown = root.path().to_str().context("the path is UTF-8")?;
        let text = |(call, name): &(&str, &str)| call.replace("ROOT", shown).replace("NAME", name);
        let text = Vec::from_iter(calls.iter().map(text)).join("\n");
        let lines = text.lines().map(|line| line.trim_start().to_owned());
        let trace = Trace { lines: lines.collect() };
        trace.check_flushes(root.path())
    }

    #[test]
    fn what_is_flushed_before_it_gets_its_name() {
        let one = [(WRITE, "one"), (FLUSH, ""), (NAME, "one")];
        let two = [(WRITE, "two"), (FLUSH, ""), (NAME, "two"), (FLUSH, "")];
        assert_eq!(check(&[&one[..], &two].concat()).unwrap(), 4);
        // At once.
        let [written, named] = [WRITE, NAME].map(|call| [(call, "one"), (call, "two")]);
        let flush = [(FLUSH, "")];
        let calls = [&written[..], &flush, &named, &flush].concat();
        assert_eq!(check(&calls).unwrap(), 4);
    }

    #[test]
    fn what_is_flushed_too_late_or_too_early() {
        let flush = (FLUSH, "");
        for calls in [
            // Only after it has its name.
            &[(WRITE, "one"), (NAME, "one"), flush][..],
            // The flush is that of another directory.
            &[(WRITE, "one"), flush, (NAME, "one"), (WRITE, "two"), (NAME, "two"), flush],
            // The name in a directory that has its own is never flushed.
            &[(WRITE, "one"), flush, (NAME, "one")],
        ] {
            let error = check(calls).unwrap_err().to_string();
            assert!(error.starts_with("not flushed"), "{error}");
        }
    }
}
