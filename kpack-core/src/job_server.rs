//! The job server that Cargo and make share with the programs that they start: a pipe with one byte, a token, for each
//! program that may run besides those that run already (GNU make, "POSIX Jobserver Interaction").
//!
//! The crate `jobserver` takes over the descriptors that the environment names, which safe code cannot do. Opening the pipe
//! again by its path in `/proc` is safe, and so is reading from it without waiting, which changes nothing for others.

use std::env;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::platform;

/// Time between attempts to get a token.
const RETRY: Duration = Duration::from_millis(5);

/// The variables with the flags of a job server, in the order in which they count.
const VARIABLES: [&str; 3] = ["CARGO_MAKEFLAGS", "MAKEFLAGS", "MFLAGS"];

/// The options that name the pipe: make's today, and before version 4.2.
const OPTIONS: [&str; 2] = ["--jobserver-auth=", "--jobserver-fds="];

/// The tokens of this process: its own, which whoever started it has taken, and those that it takes from the job server.
#[derive(Debug)]
pub struct JobServer {
    /// Whether the own token is free.
    own: AtomicBool,
    pipe: Pipe,
}

/// Where further tokens come from.
#[derive(Debug)]
enum Pipe {
    /// There is no job server, and so no limit.
    Unlimited,
    /// There is one that cannot be used, so only the own token remains.
    Unusable,
    Open(File),
}

/// Permission to run one program. On drop, others may.
#[derive(Debug)]
pub struct Token<'a> {
    server: &'a JobServer,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Own,
    /// From the pipe, to which the same byte returns.
    Taken(u8),
    /// From no job server.
    Unlimited,
}

impl JobServer {
    /// That of whoever started this process.
    pub fn of_process() -> Self {
        let flags = VARIABLES.iter().find_map(env::var_os).unwrap_or_default();
        Self::named(&flags.to_string_lossy())
    }

    /// The one that flags of make name. If it cannot be used, there is only the process's own token.
    fn named(flags: &str) -> Self {
        let pipe = match path_in(flags) {
            None => Pipe::Unlimited,
            Some(path) => platform::open_pipe(&path).map_or(Pipe::Unusable, Pipe::Open),
        };
        Self { own: AtomicBool::new(true), pipe }
    }

    /// Waits for a token. Without a job server, there is always one.
    pub fn acquire(&self) -> Token<'_> {
        let token = |kind| Token { server: self, kind };
        loop {
            if self.own.swap(false, Ordering::AcqRel) {
                return token(Kind::Own);
            }
            match &self.pipe {
                Pipe::Unlimited => return token(Kind::Unlimited),
                Pipe::Unusable => {}
                Pipe::Open(pipe) => {
                    if let Some(byte) = take(pipe) {
                        return token(Kind::Taken(byte));
                    }
                }
            }
            thread::sleep(RETRY);
        }
    }
}

/// Reads a token. `None` if there is none now, or if the job server has ended.
fn take(mut pipe: &File) -> Option<u8> {
    let mut byte = [0];
    matches!(pipe.read(&mut byte), Ok(1)).then_some(byte[0])
}

impl Drop for Token<'_> {
    fn drop(&mut self) {
        match (&self.kind, &self.server.pipe) {
            (Kind::Own, _) => self.server.own.store(true, Ordering::Release),
            (Kind::Taken(byte), Pipe::Open(pipe)) => {
                // A pipe has room for what was read from it. If the job server has ended, no program needs the token.
                let _ = (&*pipe).write_all(&[*byte]);
            }
            _ => {}
        }
    }
}

/// The path of the pipe that flags of make name: of a FIFO, or of the descriptor to read from. The last option counts.
fn path_in(flags: &str) -> Option<PathBuf> {
    let value = OPTIONS.iter().find_map(|option| Some(flags.rsplit_once(option)?.1))?;
    // Cargo and make put the option last, so a path may have spaces, unless another option follows.
    let value = value.split(" --").next().unwrap_or(value).trim_end();
    if let Some(fifo) = value.strip_prefix("fifo:") {
        return Some(PathBuf::from(fifo));
    }
    // make passes negative descriptors to programs that are not to use the job server.
    let (read, _) = value.split_once(',')?;
    let read: u32 = read.parse().ok()?;
    Some(Path::new("/proc/self/fd").join(read.to_string()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::parallel;

    #[test]
    fn where_the_pipe_is() {
        let cases = [
            ("-j --jobserver-fds=3,4 --jobserver-auth=5,6", Some("/proc/self/fd/5")),
            (" -j8 --jobserver-auth=fifo:/tmp/a b/GMfifo1", Some("/tmp/a b/GMfifo1")),
            ("--jobserver-auth=fifo:/tmp/x -- X=1", Some("/tmp/x")),
            ("-j --jobserver-fds=3,4", Some("/proc/self/fd/3")),
            ("--jobserver-auth=-2,-2", None),
            ("-j4 k", None),
            ("", None),
        ];
        for (flags, expected) in cases {
            assert_eq!(path_in(flags).as_deref(), expected.map(Path::new), "{flags}");
        }
    }

    /// Most programs that run at once when eight threads ask for twenty tokens.
    fn most_at_once(server: &JobServer) -> usize {
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        parallel::with_jobs(8.try_into().unwrap(), || {
            parallel::for_each(0..20, |_| {
                let _token = server.acquire();
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(3));
                now.fetch_sub(1, Ordering::SeqCst);
            });
        });
        most.into_inner()
    }

    #[test]
    fn no_more_programs_run_than_there_are_tokens_and_all_are_given_back() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let server = JobServer::named(&format!("-j --jobserver-auth=fifo:{}", fifo.display()));
        let Pipe::Open(pipe) = &server.pipe else { panic!("{server:?}") };
        assert_eq!(most_at_once(&server), 1);
        (&*pipe).write_all(b"+-").unwrap();
        assert_eq!(most_at_once(&server), 3);
        let mut left = [0; 3];
        assert_eq!((&*pipe).read(&mut left).unwrap(), 2);
        left[..2].sort_unstable();
        assert_eq!(&left[..2], b"+-");
    }

    #[cfg(unix)]
    #[test]
    fn only_a_pipe_has_tokens() {
        use std::os::fd::AsRawFd;

        let directory = tempfile::tempdir().unwrap();
        let regular = directory.path().join("regular");
        fs::write(&regular, "text").unwrap();
        let opened = File::options().read(true).write(true).open(&regular).unwrap();
        let descriptor = opened.as_raw_fd();
        for flags in [
            format!("-j4 --jobserver-auth={descriptor},{descriptor}"),
            format!("-j4 --jobserver-auth=fifo:{}", regular.display()),
            "-j4 --jobserver-auth=fifo:/dev/null".to_owned(),
        ] {
            let server = JobServer::named(&flags);
            assert!(matches!(server.pipe, Pipe::Unusable), "{flags}: {server:?}");
            assert_eq!(most_at_once(&server), 1, "{flags}");
            assert_eq!(fs::read(&regular).unwrap(), b"text", "{flags}");
        }
    }

    #[test]
    fn a_pipe_that_is_gone_leaves_the_own_token() {
        assert_eq!(most_at_once(&JobServer::named("--jobserver-auth=fifo:/no/such/fifo")), 1);
        assert!(most_at_once(&JobServer::named("")) > 1);
    }
}
