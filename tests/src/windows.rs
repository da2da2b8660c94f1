//! Programs for Windows: mingw-w64's compiler builds them, and wine runs them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{LazyLock, Once};

use crate::process::{cargo, run, target_directory};
use crate::require;

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
/// `["rustc", "-p", "kpack-runtime", "--crate-type", "cdylib"]`. All builds share the workspace's target directory.
///
/// # Panics
/// The build fails.
pub fn build(arguments: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut command = cargo(arguments);
    run(command.args(["--locked", "--target", TARGET]).current_dir(&root));
    target_directory().join(TARGET).join("debug")
}

/// A command that runs a program for Windows, with the directory for what wine keeps about Windows in `scratch`, a
/// directory that tests share.
///
/// # Panics
/// Wine cannot be set up.
pub fn wine(program: &Path, scratch: &Path) -> Command {
    let prefix = scratch.join("wine");
    let command = |program: &Path| {
        let mut command = Command::new("wine");
        command.arg(program);
        command.env("WINEPREFIX", &prefix).env("WINEDEBUG", "-all");
        // Names of files are Unicode.
        command.env("LC_ALL", "C.UTF-8");
        command.env_remove("DISPLAY").env_remove("WAYLAND_DISPLAY");
        command
    };
    // Setting up takes some seconds, and two at once disturb each other.
    let lock = File::create(scratch.join("wine.lock")).unwrap();
    lock.lock().unwrap();
    if !prefix.join("system.reg").is_file() {
        fs::create_dir_all(&prefix).unwrap();
        run(command(Path::new("wineboot")).arg("--init"));
    }
    let missing = prefix.join("drive_c/windows/system32/bcryptprimitives.dll");
    if !missing.is_file() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/windows/bcryptprimitives.c");
        let mut compiler = Command::new(COMPILER);
        compiler.args(["-shared", "-o"]).args([&missing, &source]);
        run(compiler.arg("-ladvapi32"));
    }
    drop(lock);
    // Programs start faster while wine's server runs. It ends by itself, a minute after the last of them.
    static SERVER: Once = Once::new();
    SERVER.call_once(|| {
        let mut server = Command::new("wineserver");
        server.arg("-p60").env("WINEPREFIX", &prefix);
        server.stdin(Stdio::null()).stdout(Stdio::null());
        let _ = server.stderr(Stdio::null()).status();
    });
    command(program)
}

/// The offset of the signature `PE` in an image.
///
/// # Panics
/// It is too short.
pub fn signature(image: &[u8]) -> usize {
    u32::from_le_bytes(image[0x3c..0x40].try_into().unwrap()) as usize
}

/// A path as programs under wine know it, with back-slashes.
pub fn path(path: &Path) -> String {
    format!("Z:{}", path.display()).replace('/', "\\")
}
