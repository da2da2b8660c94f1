//! Programs for Windows: mingw-w64's compiler builds them, and wine runs them.

use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use crate::page::repository;
use crate::process::{cargo, run, target_directory};
use crate::{require, sha256};

/// Rust's name for what the compiler builds.
pub use kpack_tools::WINDOWS as TARGET;
/// The C compiler, with the threads of POSIX.
pub const COMPILER: &str = "x86_64-w64-mingw32-gcc-posix";

/// Whether programs for Windows can be built and run; otherwise as [`require::tools`].
pub fn available() -> bool {
    static LIBRARY: LazyLock<String> = LazyLock::new(|| {
        let sysroot = run(Command::new("rustc").args(["--print", "sysroot"]));
        format!("{}/lib/rustlib/{TARGET}", sysroot.trim_end())
    });
    require::tools(&[COMPILER, "wine"]) && require::directory(&LIBRARY)
}

/// Builds a crate for Windows, without optimisation, and returns the directory of the result. `arguments` say what:
/// `["rustc", "-p", "kpack-runtime", "--crate-type", "cdylib"]`. All builds share the workspace's target directory. They
/// have no debug information, which nothing reads: wine would read it at each start.
///
/// # Panics
/// The build fails.
pub fn build(arguments: &[&str]) -> PathBuf {
    let mut command = cargo(arguments);
    // Tests under wine compress little, and look at no backtraces, so more would take longer than it saves.
    command.args(["--config", "profile.dev.package.zstd-sys.opt-level=1"]);
    command.env("CARGO_PROFILE_DEV_DEBUG", "0");
    run(command.args(["--locked", "--target", TARGET]).current_dir(repository()));
    target_directory().join(TARGET).join("debug")
}

static PREFIX: LazyLock<PathBuf> = LazyLock::new(prefix);

/// Runs a program for Windows for no longer than ten minutes, in the process group of the tests, so that Ctrl-C reaches it.
const TIMEOUT: [&str; 5] = ["timeout", "--foreground", "--kill-after=10", "600", "wine"];

/// A command that runs a program for Windows. If it takes ten minutes, it ends with exit code 124.
///
/// # Panics
/// Wine cannot be set up.
pub fn wine(program: &Path) -> Command {
    serve(&PREFIX);
    let mut command = in_prefix(&TIMEOUT, &PREFIX);
    command.arg(program);
    command
}

/// Starts wine's server and the services of Windows, unless they run.
///
/// A server that a program starts ends three seconds after the last program, and each start of a server takes two. This one
/// stays for a minute. The first program starts the services, which inherit its standard output: if that were a pipe, whoever
/// reads it would wait until the server ends.
fn serve(prefix: &Path) {
    // Another test would start them as well.
    let _lock = locked(prefix.parent().unwrap());
    let run = |words: &[&str]| {
        let mut command = in_prefix(words, prefix);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().unwrap()
    };
    let server = run(&["wineserver", "--persistent=60"]);
    match server.code() {
        Some(0) => {
            let first = run(&[&TIMEOUT[..], &["cmd", "/c", "exit"]].concat());
            assert!(first.success(), "wine runs no program: {first}");
        }
        // One that was started here already runs.
        Some(2) => {}
        _ => panic!("wine's server does not start: {server}"),
    }
}

/// The lock on wine's directory, until it is dropped.
fn locked(directory: &Path) -> File {
    let lock = File::create(directory.join("lock")).unwrap();
    lock.lock().unwrap();
    lock
}

/// A command of wine, with the directory for what wine keeps about Windows.
///
/// Wine has to map a page of Windows at 0x7ffe0000. Linux places the heap of Debian's wine at a random address within
/// the gigabyte from 0x7d005000 on, so that one start of about 8,000 finds the page taken. It then ends with exit code 1
/// and, unless wine may write this message, without a word. The heap is never there if addresses are not random, which
/// programs that this one starts inherit. Where a container forbids that, the message says what happened.
fn in_prefix(words: &[&str], prefix: &Path) -> Command {
    let mut command = if has_fixed_addresses() {
        let mut command = Command::new("setarch");
        command.arg("--addr-no-randomize").args(words);
        command
    } else {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        command
    };
    command.env("WINEPREFIX", prefix).env("WINEDEBUG", "-all,err+virtual");
    // Names of files are Unicode.
    command.env("LC_ALL", "C.UTF-8");
    command.env_remove("DISPLAY").env_remove("WAYLAND_DISPLAY");
    command
}

/// Whether programs can be started without random addresses.
fn has_fixed_addresses() -> bool {
    static WORKS: LazyLock<bool> = LazyLock::new(|| {
        let mut probe = Command::new("setarch");
        probe.args(["--addr-no-randomize", "true"]).stderr(Stdio::null());
        probe.status().is_ok_and(|status| status.success())
    });
    *WORKS
}

/// The directory for what wine keeps about Windows. It stays in the target directory, since
/// making it takes some seconds.
fn prefix() -> PathBuf {
    let version = run(Command::new("wine").arg("--version").env("WINEDEBUG", "-all"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/windows/bcryptprimitives.c");
    let added = sha256(&fs::read(&source).unwrap());
    let name = version.trim().replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "-");
    let directory = target_directory().join("wine");
    fs::create_dir_all(&directory).unwrap();
    let prefix = directory.join(format!("{name}-{}", &added[..8]));
    // Another test program would make the same directory.
    let _lock = locked(&directory);
    if !prefix.is_dir() {
        let unfinished = directory.join("unfinished");
        let _ = fs::remove_dir_all(&unfinished);
        fs::create_dir(&unfinished).unwrap();
        let mut boot = in_prefix(&TIMEOUT, &unfinished);
        // Neither .NET nor a browser, nor menus of the desktop.
        boot.env("WINEDLLOVERRIDES", "mscoree,mshtml=;winemenubuilder.exe=d");
        run(boot.args(["wineboot", "--init"]));
        // The server writes the registry when it ends.
        run(in_prefix(&["timeout", "600", "wineserver"], &unfinished).arg("--wait"));
        let mut compiler = Command::new(COMPILER);
        compiler.args(["-shared", "-o"]);
        compiler.arg(unfinished.join("drive_c/windows/system32/bcryptprimitives.dll"));
        run(compiler.arg(&source).arg("-ladvapi32"));
        fs::rename(&unfinished, &prefix).unwrap();
    }
    prefix
}

/// The offset of the signature `PE` in an image.
///
/// # Panics
/// It is too short.
pub fn signature(image: &[u8]) -> usize {
    u32::from_le_bytes(image[0x3c..0x40].try_into().unwrap()) as usize
}

/// What is free in the headers of an image, after the last section header.
///
/// # Panics
/// It is too short.
pub fn free_headers(image: &[u8]) -> Range<usize> {
    let at = signature(image);
    let sections = u16::from_le_bytes(image[at + 6..at + 8].try_into().unwrap());
    let size = u32::from_le_bytes(image[at + 84..at + 88].try_into().unwrap());
    at + 24 + 240 + 40 * usize::from(sections)..size as usize
}

/// Inserts bytes before the signature of an image, whose headers have room for them.
///
/// # Panics
/// It is too short, or its headers have no room.
pub fn lengthen_stub(image: &mut Vec<u8>, more: &[u8]) {
    let (at, free) = (signature(image), free_headers(image));
    assert!(more.len() <= free.len());
    image.drain(free.start..free.start + more.len());
    image.splice(at..at, more.iter().copied());
    image[0x3c..0x40].copy_from_slice(&((at + more.len()) as u32).to_le_bytes());
}

/// A path as programs under wine know it, with back-slashes.
pub fn path(path: &Path) -> String {
    format!("Z:{}", path.display()).replace('/', "\\")
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// The address of the heap of a program for Windows.
    fn heap() -> String {
        serve(&PREFIX);
        let mut program = in_prefix(&["wine", "cmd"], &PREFIX);
        program.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = program.spawn().unwrap();
        // It runs when it greets.
        program.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let maps = fs::read_to_string(format!("/proc/{}/maps", program.id())).unwrap();
        drop(program.stdin.take());
        program.wait_with_output().unwrap();
        let heap = maps.lines().find(|line| line.ends_with("[heap]"));
        heap.unwrap().split('-').next().unwrap().to_owned()
    }

    #[test]
    fn the_heap_of_a_program_is_where_windows_maps_nothing() {
        if !available() || !has_fixed_addresses() {
            return;
        }
        assert_eq!(heap(), heap());
    }
}
