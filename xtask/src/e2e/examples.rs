//! Builds the examples in Rust and C++, runs them in the build tree, and stages or installs them;
//! then moves them and runs them again for each target.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use xshell::{Cmd, cmd};

use super::hip_project::{HipTools, flags_without_rocm};
use super::runtime::{Kind, Program, Runtime};
use super::table::Table;
use crate::{process, repository};

/// The targets that both examples are built for.
const TARGETS: [&str; 2] = ["gfx1100", "gfx942"];
/// The targets in the document.
const DOCUMENT_TARGETS: [&str; 2] = ["gfx1030", "gfx90a"];
/// The number of wrappers: one for each source.
const RUST_WRAPPERS: usize = 4;
/// The modules of the Rust example; the last one is three packages below the program.
const RUST_MODULES: [&str; 3] = ["stats", "vector-kernels", "fill"];
const CPP_WRAPPERS: usize = 2;

/// Everything needed to build and run an example.
struct Examples<'a> {
    tools: &'a HipTools,
    runtime: &'a Runtime,
    /// The prefix with the helper and the CMake package.
    kpack: &'a Path,
    work: &'a Path,
}

/// Adds a line for each example.
pub(super) fn check(
    tools: &HipTools,
    runtime: &Runtime,
    kpack: &Path,
    work: &Path,
    table: &mut Table,
) {
    let examples = Examples { tools, runtime, kpack, work };
    process::step("Building, running and staging examples/rust-hip");
    table.add("examples/rust-hip", examples.rust());
    process::step("Following docs/rust.md, from cargo new on");
    table.add("docs/rust.md, followed", examples.rust_document());
    process::step("Building, running and installing examples/cpp-hip");
    table.add("examples/cpp-hip", examples.cpp());
}

impl Examples<'_> {
    fn rust(&self) -> Result<String> {
        let manifest = repository::root().join("examples/rust-hip/Cargo.toml");
        let target = self.work.join("rust-target");
        let cargo = |arguments: &str| {
            let words: Vec<&str> = arguments.split(' ').collect();
            let command =
                cmd!(process::shell(), "cargo {words...} --locked --manifest-path {manifest}");
            self.in_place_of_rocm(command, &target).env("KPACK_OFFLOAD_ARCH", TARGETS.join(";"))
        };
        // Unit and documentation tests also launch kernels.
        let report = self.work.join("rust-tests.txt");
        let tests = cargo("test --workspace").env("STUB_HIP_REPORT", &report);
        process::output(tests.env("STUB_HIP_AGENT", TARGETS[0]))?;
        let told = fs::read_to_string(&report).context("the tests registered nothing")?;
        ensure!(
            told.contains("\nloaded\t") && !told.contains("\nmissing\t"),
            "a test did not find its device code:\n{told}"
        );
        process::output(cargo("build"))?;
        self.runs(&target.join("debug"), "app", RUST_WRAPPERS, TARGETS)?;

        let messages = self.work.join("rust-build.json");
        fs::write(
            &messages,
            process::output(cargo("build --release --message-format=json-render-diagnostics"))?,
        )?;
        let helper = self.kpack.join("bin/kpack");
        let staged = self.work.join("rust-dist");
        process::run!("{helper} stage --output-dir {staged} --messages {messages}")?;
        for (module, target) in
            RUST_MODULES.iter().flat_map(|module| TARGETS.map(|target| (module, target)))
        {
            let archive = staged.join(format!("lib/.kpack/{module}_lib_{target}.kpack"));
            ensure!(archive.is_file(), "{} was not staged", archive.display());
        }
        // Build the document's program with the existing dependencies.
        let kept = self.work.join("rust-kept");
        fs::rename(&target, &kept)?;
        self.moved(&staged, "bin/app", RUST_WRAPPERS)
    }

    /// A Cargo command with clang, the header of the HIP project, and the stub runtime instead of
    /// ROCm.
    fn in_place_of_rocm<'s>(&self, command: Cmd<'s>, target: &Path) -> Cmd<'s> {
        command
            .env("CARGO_TARGET_DIR", target)
            .env("HIPCXX", self.tools.compiler())
            .env("HIPFLAGS", flags_without_rocm())
            .env("ROCM_PATH", &self.runtime.prefix)
            .env("LD_LIBRARY_PATH", self.runtime.prefix.join("lib"))
            .env_remove("RUSTFLAGS")
    }

    /// Follows the files and commands of the document, from `cargo new` to the staged release.
    fn rust_document(&self) -> Result<String> {
        let text = fs::read_to_string(repository::root().join("docs/rust.md"))?;
        // Use a directory outside of the repository, or `cargo new` would find its workspace.
        let directory = tempfile::tempdir()?;
        let target = self.work.join("rust-kept");
        let _directory = process::shell().push_dir(directory.path());
        process::run!("cargo new --vcs none vector")?;
        let _package = process::shell().push_dir("vector");
        let own = repository::root().join("kpack-build");
        process::run!("cargo add --offline --build kpack-build --path {own}")?;
        for file in ["build.rs", "src/add.hip", "src/main.rs"] {
            process::shell().write_file(file, block(&text, file)?)?;
        }
        let run = self.in_place_of_rocm(cmd!(process::shell(), "cargo run --offline"), &target);
        let shown = process::output(run)?;
        ensure!(shown == "64 elements\n", "the program printed {shown:?}");

        let commands = text.split("```sh\n").skip(1);
        let mut blocks = commands.filter_map(|rest| rest.split("```").next());
        let staging = blocks
            .find(|block| block.contains("kpack stage"))
            .context("docs/rust.md has no commands that stage")?;
        let bin = self.kpack.join("bin");
        let path = std::env::var("PATH")?;
        let script = cmd!(process::shell(), "sh -euc {staging}")
            .env("PATH", format!("{}:{path}", bin.display()))
            .env("CARGO_NET_OFFLINE", "true");
        process::output(self.in_place_of_rocm(script, &target))?;
        let dist = directory.path().join("vector/dist");
        for name in text.split('`').filter(|name| name.starts_with("lib/.kpack/vector")) {
            ensure!(dist.join(name).is_file(), "docs/rust.md says that there is {name}");
        }
        self.runs(&dist, "bin/vector", 1, DOCUMENT_TARGETS)?;
        Ok("run, staged and verified as documented".to_owned())
    }

    fn cpp(&self) -> Result<String> {
        let source = repository::root().join("examples/cpp-hip");
        let build = self.work.join("cpp-build");
        let installed = self.work.join("cpp-dist");
        let (compiler, generator) = (self.tools.compiler(), self.tools.generator());
        let prefixes = format!("{};{}", self.kpack.display(), self.runtime.prefix.display());
        let flags = flags_without_rocm();
        process::run!(
            "cmake -S {source} -B {build} -G {generator} -DCMAKE_CXX_COMPILER={compiler} -DCMAKE_PREFIX_PATH={prefixes} -DCMAKE_CXX_FLAGS={flags}"
        )?;
        process::run!("cmake --build {build}")?;
        self.runs(&build, "vector", CPP_WRAPPERS, TARGETS)?;
        process::run!("cmake --install {build} --prefix {installed}")?;
        fs::remove_dir_all(&build)?;
        self.moved(&installed, "bin/vector", CPP_WRAPPERS)
    }

    /// Checks a moved release: complete and running.
    fn moved(&self, staged: &Path, executable: &str, wrappers: usize) -> Result<String> {
        let moved = self.work.join("moved").join(executable.replace('/', "-"));
        fs::create_dir_all(&moved)?;
        fs::remove_dir(&moved)?;
        fs::rename(staged, &moved)?;
        let helper = self.kpack.join("bin/kpack");
        process::run!("{helper} verify {moved}")?;
        self.runs(&moved, executable, wrappers, TARGETS)?;
        Ok(format!("{wrappers} wrappers, {} targets, moved", TARGETS.len()))
    }

    /// Runs a program for each target; every wrapper must get code for it.
    fn runs(
        &self,
        prefix: &Path,
        executable: &str,
        wrappers: usize,
        targets: [&str; 2],
    ) -> Result<()> {
        let program = Program { executable: executable.into(), libraries: Vec::new() };
        let mut seen = BTreeSet::new();
        for target in targets {
            let scratch = self.work.join("run");
            let observation = self.runtime.run(prefix, &program, target, &scratch)?;
            let loaded = observation.events.iter().filter_map(|event| match &event.kind {
                Kind::Loaded(code_object) => Some(format!("{code_object:?}")),
                _ => None,
            });
            let loaded: Vec<String> = loaded.collect();
            ensure!(
                loaded.len() == wrappers,
                "{executable} loaded {} code objects for {target}; expected {wrappers}",
                loaded.len()
            );
            let fat = observation.events.iter().any(|event| matches!(event.kind, Kind::Fat { .. }));
            ensure!(!fat, "{executable} has a fat wrapper");
            seen.extend(loaded);
        }
        ensure!(
            seen.len() == wrappers * targets.len(),
            "{executable} loaded {} different code objects; expected one for each wrapper and target",
            seen.len()
        );
        Ok(())
    }
}

/// The block of code below the line that names its file.
fn block<'a>(text: &'a str, file: &str) -> Result<&'a str> {
    let rest = text.split_once(&format!("\n`{file}`:\n\n```"));
    rest.and_then(|(_, rest)| rest.split_once('\n'))
        .and_then(|(_, rest)| rest.split_once("```"))
        .map(|(block, _)| block)
        .with_context(|| format!("docs/rust.md has no {file}"))
}
