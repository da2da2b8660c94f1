//! One of the CMake projects in `tests/cmake/`, in its own build directory.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use kpack_tests::fixture::{FatLibrary, Kind, Storage, code_object};
use tempfile::TempDir;

use crate::cmake::package::{self, Package};
use crate::cmake::prefix::Prefix;

/// A file of rocm-cmake, where Debian installs it.
pub(crate) const ROCM_CMAKE: &str = "/usr/share/rocm/cmake/ROCMConfig.cmake";

/// The targets in the fixtures, each in at least one bundle of both.
pub(crate) const TARGETS: [&str; 3] = ["gfx1100", "gfx90a:xnack+", "gfx942"];

pub(crate) struct Project<'a> {
    pub(crate) package: &'a Package,
    pub(crate) source: PathBuf,
    pub(crate) build: PathBuf,
    scratch: TempDir,
}

impl<'a> Project<'a> {
    /// The project `tests/cmake/<name>`, not configured yet.
    pub(crate) fn new(package: &'a Package, name: &str) -> Self {
        let scratch = TempDir::with_prefix_in("cmake-", package::scratch()).unwrap();
        Self {
            package,
            source: package::root().join("tests/cmake").join(name),
            build: scratch.path().join("build"),
            scratch,
        }
    }

    /// A directory that goes away with the project.
    pub(crate) fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// `cmake -S … -B …`, without the variables that say where package and helper are.
    #[must_use]
    pub(crate) fn configure_bare(&self, arguments: &[&str]) -> Run {
        let mut command = cmake();
        command.arg("-S").arg(&self.source).arg("-B").arg(&self.build);
        command.arg(define("FIXTURES", fixtures()));
        Run::of(command.args(arguments))
    }

    /// `cmake -S … -B …` with the package under test.
    #[must_use]
    pub(crate) fn configure(&self, arguments: &[&str]) -> Run {
        let directory = define("Kpack_DIR", &self.package.directory);
        let mut all = vec![directory.as_str()];
        let helper = define("Kpack_EXECUTABLE", &self.package.helper);
        if self.package.names_helper {
            all.push(&helper);
        }
        all.extend(arguments);
        self.configure_bare(&all)
    }

    /// `cmake --build`.
    #[must_use]
    pub(crate) fn build(&self, arguments: &[&str]) -> Run {
        Run::of(cmake().arg("--build").arg(&self.build).args(arguments))
    }

    /// Configures and builds with no options of its own.
    pub(crate) fn built(package: &'a Package, name: &str) -> Self {
        let project = Self::new(package, name);
        project.configure(&[]).succeeds();
        project.build(&[]).succeeds();
        project
    }

    /// `cmake --install` into `prefix`.
    #[must_use]
    pub(crate) fn install(&self, prefix: &Path, arguments: &[&str]) -> Run {
        Run::of(self.install_command(prefix).args(arguments))
    }

    /// The command of [`install`](Self::install), for tests that set its environment.
    pub(crate) fn install_command(&self, prefix: &Path) -> Command {
        let mut command = cmake();
        command.current_dir(self.scratch());
        command.arg("--install").arg(&self.build).arg("--prefix").arg(prefix);
        command
    }

    /// A prefix in the scratch directory.
    pub(crate) fn prefix(&self, name: &str) -> Prefix<'a> {
        Prefix { package: self.package, path: self.scratch().join(name) }
    }
}

/// `-D<name>=<path>`.
pub(crate) fn define(name: &str, path: impl AsRef<Path>) -> String {
    format!("-D{name}={}", path.as_ref().display())
}

/// CMake without the variables of the caller's environment that change its behaviour.
fn cmake() -> Command {
    let mut command = Command::new("cmake");
    for variable in [
        "DESTDIR",
        "CMAKE_INSTALL_MODE",
        "CMAKE_GENERATOR",
        "CMAKE_BUILD_TYPE",
        "CMAKE_PREFIX_PATH",
        "CMAKE_INSTALL_PREFIX",
    ] {
        command.env_remove(variable);
    }
    command
}

/// What a command printed, on both streams, and how it ended.
pub(crate) struct Run {
    command: String,
    success: bool,
    pub(crate) output: String,
}

impl Run {
    #[must_use]
    pub(crate) fn of(command: &mut Command) -> Self {
        let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self {
            command: format!("{command:?}"),
            success: output.status.success(),
            output: String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr),
        }
    }

    #[track_caller]
    pub(crate) fn succeeds(self) -> Self {
        assert!(self.success, "{} failed\n{}", self.command, self.output);
        self
    }

    /// It failed with this message, wherever CMake broke its lines.
    #[track_caller]
    pub(crate) fn fails_with(self, text: &str) {
        assert!(!self.success, "{} succeeded\n{}", self.command, self.output);
        self.says(text);
    }

    /// It printed this message, wherever CMake broke its lines.
    #[track_caller]
    pub(crate) fn says(self, text: &str) -> Self {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            words(&self.output).contains(&words(text)),
            "{} did not say {text:?}\n{}",
            self.command,
            self.output
        );
        self
    }
}

/// The sources with device code, written once: a `library` and a `program`.
fn fixtures() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let directory = package::scratch().join("cmake-fixtures");
        let object = |target: &str, name: &str| {
            let code = code_object(target, name.repeat(100).as_bytes()).unwrap();
            (target.to_owned(), code)
        };
        let library = FatLibrary::new()
            .wrapper(Storage::Plain, TARGETS.map(|target| object(target, "add")))
            .wrapper(Storage::Zstd(2), [object("gfx1100", "mul"), object("gfx942", "mul")]);
        library.write_sources(&directory.join("library")).unwrap();
        for (name, is_program) in [("windows-library", false), ("windows-program", true)] {
            let sources = directory.join(name);
            library.write_windows_sources(&sources, is_program).unwrap();
        }
        FatLibrary::new()
            .kind(Kind::Pie)
            .wrapper(Storage::Zstd(3), TARGETS.map(|target| object(target, "main")))
            .write_sources(&directory.join("program"))
            .unwrap();
        directory
    })
}

/// Runs a program that must succeed, and returns what it printed.
pub(crate) fn output_of(program: impl AsRef<OsStr>, arguments: &[&OsStr]) -> String {
    Run::of(Command::new(program).args(arguments)).succeeds().output
}

/// The contents of a directory's files with some extension, sorted by name.
pub(crate) fn files_with_extension(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_str().unwrap().ends_with(extension))
        .collect();
    files.sort();
    files
}
