//! Where things are, and programs that must succeed.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use kpack_tests::process::{installed_kpack, try_run};
use xshell::{Cmd, Shell};

pub(crate) use kpack_tests::page::repository as root;
pub(crate) use kpack_tests::process::copy;

/// An empty directory of this name, below cargo's target directory. Another process that runs these tests has others.
pub(crate) fn work(name: &str) -> PathBuf {
    static OWN: LazyLock<(PathBuf, File)> = LazyLock::new(|| {
        let lock = |number: usize| {
            let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("system-{number}"));
            fs::create_dir_all(&directory).unwrap();
            let lock = File::create(directory.join("lock")).unwrap();
            lock.try_lock().is_ok().then_some((directory, lock))
        };
        (0..).find_map(lock).expect("numbers do not end")
    });
    let directory = OWN.0.join(name);
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    directory
}

/// A prefix with kpack as it is installed.
pub(crate) fn prefix() -> &'static Path {
    static DIRECTORY: LazyLock<PathBuf> = LazyLock::new(|| work("kpack"));
    installed_kpack(&DIRECTORY)
}

thread_local! {
    static SHELL: &'static Shell = Box::leak(Box::new(Shell::new().expect("a current directory")));
}

/// The shell of this test. Its current directory is that of `tests`, unless the test changes it.
pub(crate) fn shell() -> &'static Shell {
    SHELL.with(|shell| *shell)
}

/// Runs a command, written as for `xshell::cmd`, and returns what it printed on stdout.
macro_rules! run {
    ($command:literal) => {
        $crate::support::output(xshell::cmd!($crate::support::shell(), $command))
    };
}
pub(crate) use run;

/// What a command printed on stdout.
///
/// # Errors
/// It fails; the error has what it printed.
pub(crate) fn output(command: Cmd<'_>) -> Result<String> {
    try_run(&mut command.into())
}

/// A process that is stopped on drop.
pub(crate) struct Daemon(pub(crate) Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How long something may take that should soon happen.
const PATIENCE: Duration = Duration::from_secs(300);

/// Waits until `is_so`, which soon happens.
///
/// # Errors
/// It does not, or asking fails.
pub(crate) fn wait(otherwise: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let started = Instant::now();
    while !is_so()? {
        ensure!(started.elapsed() < PATIENCE, "{otherwise}");
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// A port that is free now.
pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A server on the loopback interface, stopped on drop.
pub(crate) struct Server {
    _process: Daemon,
    pub(crate) port: u16,
}

impl Server {
    /// Starts what listens at a port, and waits until it does. Another process may take a free port before it, so it is
    /// started again with another one if it ends.
    pub(crate) fn start(command: impl Fn(u16) -> Result<Command>) -> Result<Self> {
        for _ in 0..3 {
            let port = free_port()?;
            let mut command = command(port)?;
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let mut process = Daemon(command.spawn()?);
            let (mut listens, mut has_ended) = (false, false);
            wait(&format!("{command:?} does not listen"), || {
                has_ended = process.0.try_wait()?.is_some();
                listens = !has_ended && TcpStream::connect(("127.0.0.1", port)).is_ok();
                Ok(has_ended || listens)
            })?;
            if listens {
                return Ok(Self { _process: process, port });
            }
        }
        bail!("the server ended three times");
    }
}
