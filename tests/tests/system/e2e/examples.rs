//! Builds the examples in Rust and C++, runs them in the build tree, and stages or installs them;
//! then moves them and runs them again for each target.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use kpack_tests::outside::Outside;
use kpack_tests::process::{cargo, output, try_run};
use kpack_tests::require::checked;

use crate::hip::project::{COMPILER, GENERATOR, flags_without_rocm, has_tools, runtime};
use crate::hip::runtime::{Kind, Program};
use crate::support::{prefix, root, run, work};

/// The targets that both examples are built for.
const TARGETS: [&str; 2] = ["gfx1100", "gfx942"];
/// The targets in the document.
const DOCUMENT_TARGETS: [&str; 2] = ["gfx1030", "gfx90a"];
/// The number of wrappers: one for each source.
const RUST_WRAPPERS: usize = 4;
/// The modules of the Rust example; the last one is three packages below the program.
const RUST_MODULES: [&str; 3] = ["stats", "vector-kernels", "fill"];
const CPP_WRAPPERS: usize = 2;

/// `examples/rust-hip` is tested, built, staged, moved and run. Most of it is the release, which users get; without
/// optimisation, it is built and run.
#[test]
#[ignore = "needs clang, and builds a HIP project with Cargo"]
fn rust() -> Result<()> {
    if !has_tools() {
        return Ok(());
    }
    let (work, outside) = (work("rust"), Outside::lock());
    let example = root().join("examples/rust-hip");
    let cargo = |arguments: &[&str]| {
        let mut command = outside.cargo(arguments);
        command.arg("--locked").current_dir(&example);
        in_place_of_rocm(&mut command);
        command.env("KPACK_OFFLOAD_ARCH", TARGETS.join(";"));
        command
    };
    // An earlier run may have built it, perhaps with another compiler for kernels.
    let packages = ["app", "stats", "vector-kernels", "fill"].map(|name| format!("-p={name}"));
    for profile in ["dev", "release"] {
        try_run(cargo(&["clean", "--profile", profile]).args(&packages))?;
    }
    // Unit and documentation tests also launch kernels.
    let report = work.join("tests.txt");
    let mut tests = cargo(&["test", "--workspace", "--release"]);
    try_run(tests.env("STUB_HIP_REPORT", &report).env("STUB_HIP_AGENT", TARGETS[0]))?;
    let told = fs::read_to_string(&report).context("the tests registered nothing")?;
    ensure!(
        told.contains("\nloaded\t") && !told.contains("\nmissing\t"),
        "a test did not find its device code:\n{told}"
    );
    let messages = work.join("build.json");
    let format = "--message-format=json-render-diagnostics";
    fs::write(&messages, try_run(&mut cargo(&["build", "--release", format]))?)?;
    runs(&outside.target().join("release"), "app", RUST_WRAPPERS, TARGETS, &work)?;
    try_run(&mut cargo(&["build"]))?;
    runs(&outside.target().join("debug"), "app", RUST_WRAPPERS, TARGETS, &work)?;
    let (kpack, staged) = (prefix().join("bin/kpack"), work.join("dist"));
    run!("{kpack} stage --output-dir {staged} --messages {messages}")?;
    for (module, target) in
        RUST_MODULES.iter().flat_map(|module| TARGETS.map(|target| (module, target)))
    {
        let archive = staged.join(format!("lib/.kpack/{module}_lib_{target}.kpack"));
        ensure!(archive.is_file(), "{} was not staged", archive.display());
    }
    outside.without("release", || moved(&staged, "bin/app", RUST_WRAPPERS, &work))?;
    checked(&format!("{RUST_WRAPPERS} wrappers, {} targets, moved", TARGETS.len()));
    Ok(())
}

/// A command with clang, the header of the HIP project, and the stub runtime instead of ROCm.
fn in_place_of_rocm(command: &mut Command) {
    let runtime = &runtime().prefix;
    command.env("HIPCXX", COMPILER).env("HIPFLAGS", flags_without_rocm());
    command.env("ROCM_PATH", runtime).env("LD_LIBRARY_PATH", runtime.join("lib"));
}

/// A page of commands, the heading above its program with C++, and the heading below it.
const DOCUMENT: (&str, &str, &str) =
    ("docs/rust.md", "\n## C++ that launches kernels\n", "\n## Releases\n");

/// A package as a section of docs/rust.md makes it, outside of the repository, or `cargo new` would find its workspace.
fn documented(
    section: &str,
    name: &str,
    dependencies: &[&[&str]],
    files: &[&str],
    run: impl Fn(&mut Command, &Path) -> Result<String>,
) -> Result<tempfile::TempDir> {
    let directory = tempfile::tempdir()?;
    let package = directory.path().join(name);
    run(&mut cargo(&["new", "--vcs", "none", name]), directory.path())?;
    for dependency in dependencies {
        let mut add = cargo(&["add"]);
        run(add.args(*dependency), &package)?;
    }
    for file in files {
        let path = package.join(file);
        fs::create_dir_all(path.parent().context("a file is in a directory")?)?;
        fs::write(path, block(section, file)?)?;
    }
    // The package of an earlier run was in another directory, but has the same name.
    for profile in ["dev", "release"] {
        let package_flag = format!("--package={name}");
        run(&mut cargo(&["clean", &package_flag, "--profile", profile]), &package)?;
    }
    Ok(directory)
}

/// The first program of docs/rust.md, from `cargo new` on: what it prints for a GPU that it has code for, and for another.
#[test]
#[ignore = "needs clang, and builds a HIP project with Cargo"]
fn the_document_on_rust_modules() -> Result<()> {
    if !has_tools() {
        return Ok(());
    }
    let (page, heading, _) = DOCUMENT;
    let text = fs::read_to_string(root().join(page))?;
    let (section, _) = text.split_once(heading).context("no C++ program")?;
    let outside = Outside::lock();
    let prepare = |command: &mut Command, directory: &Path| {
        outside.prepare(command);
        command.env("HIPCXX", COMPILER).env("HIPFLAGS", flags_without_rocm());
        // The binding to the runtime is a crate that the workspace does not have.
        command.env("CARGO_NET_OFFLINE", "false").current_dir(directory);
    };
    let run = |command: &mut Command, directory: &Path| {
        prepare(command, directory);
        try_run(command)
    };
    let [kpack, build] = ["kpack", "kpack-build"].map(|name| root().join(name));
    let [kpack, build] = [kpack.display().to_string(), build.display().to_string()];
    let dependencies: [&[&str]; 3] = [
        &["kpack", "--path", &kpack],
        &["--build", "kpack-build", "--path", &build],
        &["libloading@0.8"],
    ];
    for dependency in ["kpack --path", "--build kpack-build --path", "libloading@0.8"] {
        ensure!(section.contains(&format!("cargo add {dependency}")), "{page}: no {dependency}");
    }
    let files = ["build.rs", "kernels/affine.hip", "src/main.rs"];
    let directory = documented(section, "affine", &dependencies, &files, run)?;
    let package = directory.path().join("affine");
    // Whether it then finds a HIP runtime depends on the machine.
    for (gpu, expected) in
        [("gfx1100", "found code for gfx1100"), ("gfx942", "only for gfx1030, gfx1100")]
    {
        let mut command = cargo(&["run", "--", gpu]);
        prepare(&mut command, &package);
        let said = output(&mut command);
        let said =
            [said.stdout, said.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        ensure!(said.concat().contains(expected) && section.contains(expected), "{gpu}: {said:?}");
    }
    checked("run as documented");
    Ok(())
}

/// The files and commands of docs/rust.md about C++, from `cargo new` to the staged release.
#[test]
#[ignore = "needs clang, and builds a HIP project with Cargo"]
fn the_document_on_rust() -> Result<()> {
    if !has_tools() {
        return Ok(());
    }
    let (page, heading, end) = DOCUMENT;
    let text = fs::read_to_string(root().join(page))?;
    let section = text.split_once(heading).and_then(|(_, rest)| rest.split_once(end));
    let (section, _) = section.context("no C++ program")?;
    let outside = Outside::lock();
    let run = |command: &mut Command, directory: &Path| {
        outside.prepare(command);
        in_place_of_rocm(command);
        try_run(command.current_dir(directory))
    };
    let build = root().join("kpack-build").display().to_string();
    let files = ["build.rs", "src/add.hip", "src/main.rs"];
    let dependency: &[&str] = &["--build", "kpack-build", "--path", &build];
    let directory = documented(section, "vector", &[dependency], &files, |command, directory| {
        if directory.join("Cargo.toml").exists() {
            Outside::pin(directory)?;
        }
        run(command, directory)
    })?;
    let package = directory.path().join("vector");
    let shown = run(&mut cargo(&["run"]), &package)?;
    ensure!(shown == "64 elements\n", "the program printed {shown:?}");

    let commands = section.split("```sh\n").skip(1);
    let mut blocks = commands.filter_map(|rest| rest.split("```").next());
    let staging = blocks
        .find(|block| block.contains("kpack stage"))
        .context("docs/rust.md has no commands that stage")?;
    let path = format!("{}:{}", prefix().join("bin").display(), env::var("PATH")?);
    let mut script = Command::new("sh");
    script.args(["-euc", staging]).env("PATH", path);
    run(&mut script, &package)?;
    let dist = package.join("dist");
    for name in section.split('`').filter(|name| name.starts_with("lib/.kpack/vector")) {
        ensure!(dist.join(name).is_file(), "docs/rust.md says that there is {name}");
    }
    runs(&dist, "bin/vector", 1, DOCUMENT_TARGETS, directory.path())?;
    checked("run, staged and verified as documented");
    Ok(())
}

/// `examples/cpp-hip` is built by CMake, installed, moved and run.
#[test]
#[ignore = "needs clang, and builds a HIP project with CMake"]
fn cpp() -> Result<()> {
    if !has_tools() {
        return Ok(());
    }
    let work = work("cpp");
    let source = root().join("examples/cpp-hip");
    let (build, installed) = (work.join("build"), work.join("dist"));
    let prefixes = format!("{};{}", prefix().display(), runtime().prefix.display());
    let flags = flags_without_rocm();
    run!(
        "cmake -S {source} -B {build} -G {GENERATOR} -DCMAKE_CXX_COMPILER={COMPILER} -DCMAKE_PREFIX_PATH={prefixes} -DCMAKE_CXX_FLAGS={flags}"
    )?;
    run!("cmake --build {build}")?;
    runs(&build, "vector", CPP_WRAPPERS, TARGETS, &work)?;
    run!("cmake --install {build} --prefix {installed}")?;
    fs::remove_dir_all(&build)?;
    moved(&installed, "bin/vector", CPP_WRAPPERS, &work)?;
    checked(&format!("{CPP_WRAPPERS} wrappers, {} targets, moved", TARGETS.len()));
    Ok(())
}

/// Checks a moved release: complete and running.
fn moved(staged: &Path, executable: &str, wrappers: usize, work: &Path) -> Result<()> {
    let moved = work.join("moved");
    fs::rename(staged, &moved)?;
    let kpack = prefix().join("bin/kpack");
    run!("{kpack} verify {moved}")?;
    runs(&moved, executable, wrappers, TARGETS, work)
}

/// Runs a program for each target; every wrapper must get code for it.
fn runs(
    prefix: &Path,
    executable: &str,
    wrappers: usize,
    targets: [&str; 2],
    work: &Path,
) -> Result<()> {
    let program = Program { executable: executable.into(), libraries: Vec::new() };
    let mut seen = BTreeSet::new();
    for target in targets {
        let observation = runtime().run(prefix, &program, target, &work.join("run"))?;
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

/// The block of code below the line that names its file.
fn block<'a>(text: &'a str, file: &str) -> Result<&'a str> {
    let rest = text.split_once(&format!("\n`{file}`:\n\n```"));
    rest.and_then(|(_, rest)| rest.split_once('\n'))
        .and_then(|(_, rest)| rest.split_once("```"))
        .map(|(block, _)| block)
        .with_context(|| format!("docs/rust.md has no {file}"))
}
