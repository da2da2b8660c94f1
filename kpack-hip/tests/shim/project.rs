//! A fat library with the start-up code that a HIP compiler writes, split for each form of the shim, and
//! stub runtimes that do and do not read markers.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kpack_split::install::{InstallOptions, install};
use kpack_tests::fixture::{FatLibrary, Storage, code, stub_hip};
use kpack_tests::process::{self, output, run};
use kpack_tests::tree::Tree;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// What is linked into a library to wrap the functions of the runtime.
pub(crate) const WRAP: &str = "-Wl,--wrap=__hipRegisterFatBinary,--wrap=__hipUnregisterFatBinary";

/// The shared library, as cargo built it for this test.
pub(crate) fn preloaded() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.with_file_name("libkpack_hip.so")
}

/// Where `cargo xtask dist` put kpack, once for all tests.
pub(crate) fn prefix() -> &'static Path {
    process::installed_kpack(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("shim-dist"))
}

/// How the library gets the shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Not at all.
    None,
    /// With `LD_PRELOAD`.
    Preloaded,
    /// From the linker.
    Linked,
    /// As a shared library that the linker knows.
    Shared,
}

/// A prefix with `lib/libvec.so`, and the runtimes.
pub(crate) struct Project {
    pub(crate) tree: Tree,
    form: Form,
}

impl Project {
    /// The library has two kernels for gfx90a, the second one for both kinds of it, and one for gfx1100.
    pub(crate) fn new(form: Form) -> Self {
        let project = Self { tree: Tree::new(), form };
        project.build_runtime("old", &["-DWITHOUT_MARKERS"]);
        project.link("fat", "cc", &[]);
        project.link("split", "cc", &project.flags());
        project.split("split");
        project
    }

    /// Splits the library of a prefix.
    pub(crate) fn split(&self, prefix: &str) {
        let options = InstallOptions::new(self.tree.path(prefix), "vec", ["lib/libvec.so"]);
        install(&options, &()).unwrap();
    }

    /// For the compiler, to link the shim.
    pub(crate) fn flags(&self) -> Vec<String> {
        match self.form {
            Form::Linked => {
                let library = prefix().join("lib/libkpack_hip.a");
                vec![WRAP.to_owned(), library.to_str().unwrap().to_owned()]
            }
            Form::Shared => {
                let directory = prefix().join("lib").display().to_string();
                let library = format!("{directory}/libkpack_hip.so");
                vec![WRAP.to_owned(), library, format!("-Wl,-rpath,{directory}")]
            }
            _ => Vec::new(),
        }
    }

    /// Builds `PREFIX/lib/libvec.so`.
    pub(crate) fn link(&self, prefix: &str, compiler: &str, flags: &[String]) {
        let runtime = self.tree.path("old/libamdhip64.so");
        let library = self.library().compiler(compiler);
        let library = flags.iter().fold(library, FatLibrary::flag).flag(runtime);
        let output = self.tree.path(&format!("{prefix}/lib/libvec.so"));
        library.build(&output).unwrap();
    }

    /// What is linked.
    pub(crate) fn library(&self) -> FatLibrary {
        let add = ["gfx1100", "gfx90a:xnack+"].map(|target| code(target, "add"));
        let mul = ["gfx90a:xnack-", "gfx90a:xnack+"].map(|target| code(target, "mul"));
        FatLibrary::new()
            .wrapper(Storage::Plain, add)
            .wrapper(Storage::Plain, mul)
            .start_up(&["add", "mul"])
    }

    /// Builds a stub runtime in the directory `name`.
    pub(crate) fn build_runtime(&self, name: &str, flags: &[&str]) {
        let library = self.tree.path(name).join("libamdhip64.so");
        stub_hip(&library, flags).unwrap();
    }

    /// A program that loads libraries, built from a source file of the repository.
    pub(crate) fn program(&self, source: &str) -> PathBuf {
        let program = self.tree.path("program");
        run(Command::new("cc")
            .args(["-O1", "-pthread", "-o"])
            .arg(&program)
            .arg(Path::new(REPOSITORY).join(source)));
        program
    }

    /// Runs a command with a runtime, for a GPU with this version; returns what it printed, and the events
    /// that the runtime reported.
    pub(crate) fn run(
        &self,
        runtime: &str,
        version: &str,
        command: &mut Command,
    ) -> (Output, Vec<String>) {
        let report = self.tree.path("report.txt");
        let _ = fs::remove_file(&report);
        command
            .env("LD_LIBRARY_PATH", self.tree.path(runtime))
            .env("STUB_HIP_REPORT", &report)
            .env("HSA_OVERRIDE_GFX_VERSION", version);
        if self.form == Form::Preloaded {
            command.env("LD_PRELOAD", preloaded());
        }
        let printed = output(command);
        let events = fs::read_to_string(&report).unwrap_or_default();
        (printed, events.lines().map(str::to_owned).collect())
    }

    /// Loads the library of a prefix with the runtime that does not read markers, doing these steps.
    pub(crate) fn load(&self, prefix: &str, version: &str, steps: &[&str]) -> Vec<String> {
        let program = self.program("tests/real/load.c");
        let library = self.tree.path(&format!("{prefix}/lib/libvec.so"));
        let mut command = Command::new(program);
        let (printed, events) = self.run("old", version, command.arg(library).args(steps));
        let errors = String::from_utf8_lossy(&printed.stderr);
        assert!(printed.status.success(), "{} {errors}", printed.status);
        events
    }
}

/// The code objects in the bundles that the runtime got: entry ID, size and digest.
pub(crate) fn entries(events: &[String]) -> BTreeSet<String> {
    let entries = events.iter().filter(|event| event.starts_with("entry\t"));
    entries.map(|event| event.splitn(4, '\t').nth(3).unwrap().to_owned()).collect()
}

/// As [`entries`], those of some targets.
pub(crate) fn entries_of(events: &[String], processor: &str) -> BTreeSet<String> {
    let of_processor = |entry: &String| entry.contains(processor);
    entries(events).into_iter().filter(of_processor).collect()
}
