//! The log of a run: what other programs print. The terminal shows the steps alone.

use std::collections::VecDeque;
use std::env;
use std::fmt;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::iter;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use xshell::Cmd;

use crate::{processes, repository};

/// How many lines of the log an error repeats.
const LAST_LINES: usize = 40;

#[derive(Debug)]
struct Log {
    path: PathBuf,
    file: File,
}

/// The log of this task, which begins when something is written to it first.
fn log() -> Result<&'static Log> {
    static LOG: OnceLock<Log> = OnceLock::new();
    if let Some(log) = LOG.get() {
        return Ok(log);
    }
    // The harness of xtask's own tests has options only, or filters, and no task.
    let name = if cfg!(test) { "unit-tests".to_owned() } else { name(env::args().skip(1)) };
    let path = repository::target_directory().join("xtask").join(format!("{name}.log"));
    let create = || {
        fs::create_dir_all(path.parent().unwrap_or(&path))?;
        File::create(&path)
    };
    let file = create().with_context(|| path.display().to_string())?;
    println!("   What other programs print is in {}", path.display());
    Ok(LOG.get_or_init(|| Log { path, file }))
}

/// The name of a task's log: `test-real-windows` for `test --bootstrap real::windows`, since two of them may run at once.
fn name(mut arguments: impl Iterator<Item = String>) -> String {
    let task = arguments.next().unwrap_or_default();
    if task != "test" {
        return task;
    }
    let own = Vec::from_iter(arguments.by_ref().take_while(|argument| argument != "--"));
    let name = own.iter().find(|argument| !argument.starts_with('-'));
    let name = name.map(|name| format!("-{}", name.replace("::", "-"))).unwrap_or_default();
    // With arguments for `cargo test`, such as the names of a few tests.
    let some = if arguments.next().is_some() { "-some" } else { "" };
    format!("{task}{name}{some}")
}

/// Where the log of this task is.
///
/// # Errors
/// It cannot be written.
pub(crate) fn path() -> Result<&'static Path> {
    Ok(&log()?.path)
}

/// Writes a line that the terminal need not show.
///
/// # Errors
/// The log cannot be written.
pub(crate) fn note(line: &str) -> Result<()> {
    Ok(writeln!(&log()?.file, "{line}")?)
}

/// Runs a command, and writes what it prints into the log.
///
/// # Errors
/// It cannot be run, or fails; the error has the last lines of the log and its name.
pub(crate) fn run(command: Cmd<'_>) -> Result<()> {
    listen(command.into(), |_, line| Some(line.to_owned()))
}

/// Where a program printed a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Output,
    Error,
}

/// A program that failed, with the last lines of the log.
#[derive(Debug)]
pub(crate) struct Failed(String);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failed {}

/// How long to read after a program has ended. Its output mostly ends at once, but a server that it started may keep the pipe
/// open.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// How often to look whether it has ended.
const LOOK: Duration = Duration::from_millis(200);

/// Runs a command, and writes into the log what `see` makes of each line that it prints.
///
/// # Errors
/// It cannot be run, or it fails: [`Failed`].
pub(crate) fn listen(
    command: Command,
    see: impl FnMut(Stream, &str) -> Option<String>,
) -> Result<()> {
    listen_for(Limits::default(), command, see)
}

/// How long to wait for a program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// How long it may print nothing. After that, it is killed with all processes that it has started.
    pub(crate) silence: Duration,
    /// How long to read its output after its end.
    pub(crate) last_words: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { silence: Duration::MAX, last_words: LAST_WORDS }
    }
}

/// As [`listen`], with limits.
///
/// # Errors
/// As [`listen`]; the program also fails if it is silent for too long.
pub(crate) fn listen_for(
    limits: Limits,
    mut command: Command,
    mut see: impl FnMut(Stream, &str) -> Option<String>,
) -> Result<()> {
    let log = log()?;
    let shown = shown(&command);
    writeln!(&log.file, "$ {shown}")?;
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("`{shown}` cannot be run"))?;
    let (sender, lines) = mpsc::channel();
    let output = child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
    let error = child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
    for (stream, pipe) in [(Stream::Output, output), (Stream::Error, error)] {
        let (sender, pipe) = (sender.clone(), pipe.context("a pipe")?);
        thread::spawn(move || {
            let lines = BufReader::new(pipe).split(b'\n').map_while(Result::ok);
            for line in lines {
                let _ = sender.send((stream, String::from_utf8_lossy(&line).into_owned()));
            }
        });
    }
    drop(sender);
    let (mut last, mut ended) = (VecDeque::new(), None);
    // Counted in looks, so that a suspended run does not count as silence.
    let (mut silence, mut hung) = (Duration::ZERO, String::new());
    loop {
        match lines.recv_timeout(LOOK) {
            Ok((stream, line)) => {
                silence = Duration::ZERO;
                let Some(line) = see(stream, &line) else { continue };
                writeln!(&log.file, "{line}")?;
                if last.len() == LAST_LINES {
                    last.pop_front();
                }
                last.push_back(line);
            }
            Err(RecvTimeoutError::Timeout) => {
                let has_ended = child.try_wait()?.is_some();
                if has_ended
                    && ended.get_or_insert_with(Instant::now).elapsed() >= limits.last_words
                {
                    break;
                }
                silence += LOOK;
                if !has_ended && hung.is_empty() && silence >= limits.silence {
                    hung = format!(
                        "it printed nothing for {} seconds, and was killed with these processes:\n{}",
                        limits.silence.as_secs(),
                        processes::kill(child.id())
                    );
                    silence = Duration::ZERO;
                    // If `ps` is missing.
                    let _ = child.kill();
                } else if !hung.is_empty() && silence >= limits.last_words {
                    // What waits in the kernel cannot be killed.
                    bail!(Failed(format!("`{shown}` failed: {hung}")));
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let status = child.wait()?;
    if !status.success() || !hung.is_empty() {
        let last = Vec::from(last).join("\n");
        bail!(Failed(format!(
            "`{shown}` failed ({status}); {hung}the last lines of {}:\n{last}",
            log.path.display()
        )));
    }
    Ok(())
}

/// A command as one would type it.
fn shown(command: &Command) -> String {
    let words = iter::once(command.get_program()).chain(command.get_args());
    Vec::from_iter(words.map(|word| word.to_string_lossy())).join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_run_at_once_have_a_log_each() {
        let name = |line: &str| name(line.split(' ').map(str::to_owned));
        assert_eq!(name("test"), "test");
        assert_eq!(name("test --bootstrap=all real::windows faults"), "test-real-windows");
        assert_eq!(name("test --bootstrap=all -- -- --exact one"), "test-some");
        assert_eq!(name("test faults -- -- --exact one"), "test-faults-some");
        assert_eq!(name("dist --prefix DIR"), "dist");
    }

    #[test]
    fn what_is_written_after_the_end_is_read() {
        let mut command = Command::new("sh");
        command.args(["-c", "(sleep 0.5; echo late) &"]);
        let mut lines = Vec::new();
        let see = |_, line: &str| {
            lines.push(line.to_owned());
            None
        };
        // On a busy machine, half a second may become many. The end of the output ends this.
        let limits = Limits { last_words: Duration::from_secs(120), ..Limits::default() };
        listen_for(limits, command, see).unwrap();
        assert_eq!(lines, ["late"]);
    }

    #[test]
    fn a_server_that_stays_does_not_keep_its_log_open() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo $!; echo error >&2; exit 3"]);
        let mut lines = Vec::new();
        let limits = Limits { last_words: Duration::from_secs(2), ..Limits::default() };
        let error = listen_for(limits, command, |stream, line| {
            lines.push((stream, line.to_owned()));
            Some(line.to_owned())
        });
        let error = error.unwrap_err();
        assert!(error.is::<Failed>() && error.to_string().contains("exit status: 3"), "{error}");
        assert!(lines.contains(&(Stream::Error, "error".to_owned())), "{lines:?}");
        let (_, server) = lines.iter().find(|(stream, _)| *stream == Stream::Output).unwrap();
        assert!(Command::new("kill").arg(server).status().unwrap().success());
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_what_it_started() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo started; sh -c 'sleep 1001; true'; true"]);
        let limits = Limits { silence: Duration::from_secs(2), ..Limits::default() };
        let error = listen_for(limits, command, |_, line| Some(line.to_owned())).unwrap_err();
        let text = error.to_string();
        assert!(error.is::<Failed>() && text.contains("printed nothing for 2 seconds"), "{text}");
        let process = text.lines().find(|line| line.contains("sleep 1001")).expect(&text);
        let id = process.split_whitespace().next().unwrap();
        let state = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        assert!(state.is_empty() || state.contains(") Z "), "{state}");
    }
}
