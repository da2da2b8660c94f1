//! Builds a program with modules of two packages by Cargo, and again after what people do to a target directory. The program loads its modules without a HIP runtime.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use kpack_tests::outside::Outside;
use kpack_tests::process::{output, try_run};
use kpack_tests::require::checked;

use crate::hip::project::{COMPILER, has_tools};
use crate::support::{prefix, root, run, work};

/// The packages with kernels. Both have the module `scale`, in modules of one name.
pub(crate) const PACKAGES: [&str; 2] = ["bad-input-one", "bad-input-two"];
pub(crate) const PROGRAM: &str = "bad-input-app";
/// What the program prints: one line for each package.
pub(crate) const EXPECTED: &str = "one: gfx1100 true\ntwo: gfx1100 true\n";

const BUILD: &str = r#"fn main() {
    kpack_build::Hip::new()
        .file("kernels/scale.hip")
        .flags(["-nogpuinc", "-nogpulib"])
        .offload_archs(["gfx942", "gfx1100"])
        .compile_modules("kernels");
}
"#;

const MAIN: &str = r#"fn main() {
    let gpu = std::env::args().nth(1).unwrap();
    for (name, module) in
        [("one", &bad_input_one::kernels::SCALE), ("two", &bad_input_two::kernels::SCALE)]
    {
        let kernel = module.kernels()[0].to_str().unwrap();
        match module.load(&gpu) {
            Ok(code) => {
                let has_kernel = code.as_bytes().windows(kernel.len()).any(|bytes| bytes == kernel.as_bytes());
                println!("{name}: {} {}", code.target(), has_kernel && kernel == name);
            }
            Err(error) => println!("{name}: {error}"),
        }
    }
}
"#;

/// A workspace with the program and its packages.
pub(crate) fn workspace(name: &str) -> Result<PathBuf> {
    let work = work(name);
    let write = |path: String, text: &str| {
        let path = work.join(path);
        fs::create_dir_all(path.parent().context("a file is in a directory")?)?;
        anyhow::Ok(fs::write(path, text)?)
    };
    let [kpack, build] = ["kpack", "kpack-build"].map(|name| root().join(name));
    write(
        "Cargo.toml".into(),
        "[workspace]\nresolver = \"3\"\nmembers = [\"*\"]\nexclude = [\"target\", \"dist\", \"moved\"]\n",
    )?;
    let package = |name: &str| {
        format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n")
    };
    let mut of_program = package(PROGRAM) + "[dependencies]\n";
    for name in PACKAGES {
        of_program += &format!("{name} = {{ path = \"../{name}\" }}\n");
        let manifest = format!(
            "{}[dependencies]\nkpack = {{ path = {kpack:?} }}\n\n[build-dependencies]\nkpack-build = {{ path = {build:?} }}\n",
            package(name)
        );
        write(format!("{name}/Cargo.toml"), &manifest)?;
        write(format!("{name}/build.rs"), BUILD)?;
        write(format!("{name}/src/lib.rs"), "kpack::include_modules!(\"kernels\");\n")?;
        let kernel = name.rsplit('-').next().context("a name")?;
        write(format!("{name}/kernels/scale.hip"), &source(kernel, "*="))?;
    }
    write(format!("{PROGRAM}/Cargo.toml"), &of_program)?;
    write(format!("{PROGRAM}/src/main.rs"), MAIN)?;
    Outside::pin(&work)?;
    Ok(work)
}

fn source(kernel: &str, operator: &str) -> String {
    format!("extern \"C\" __attribute__((global)) void {kernel}(float *a) {{ *a {operator} 2; }}\n")
}

/// Cargo in the workspace.
pub(crate) fn cargo(outside: &Outside, workspace: &Path, arguments: &[&str]) -> Command {
    let mut command = outside.cargo(arguments);
    command.current_dir(workspace).env("HIPCXX", COMPILER);
    command
}

/// Runs the program by Cargo. Returns the packages that Cargo compiled, as it reports them.
fn runs(outside: &Outside, workspace: &Path, target: Option<&Path>) -> Result<String> {
    let mut command = cargo(outside, workspace, &["run", "--", "gfx1100"]);
    if let Some(target) = target {
        command.env("CARGO_TARGET_DIR", target);
    }
    let output = output(&mut command);
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    ensure!(output.status.success() && stdout == EXPECTED, "{stdout}{stderr}");
    let compiled = stderr.lines().filter(|line| line.trim_start().starts_with("Compiling "));
    Ok(Vec::from_iter(compiled).join("\n"))
}

/// The target directory loses the output of a package, and then it moves.
#[test]
#[ignore = "needs clang, and builds a HIP project with Cargo"]
fn a_target_directory_that_is_cleaned_or_moved() -> Result<()> {
    if !has_tools() {
        return Ok(());
    }
    let outside = Outside::lock();
    let workspace = workspace("modules")?;
    runs(&outside, &workspace, None)?;
    try_run(&mut cargo(&outside, &workspace, &["clean", "-p", PACKAGES[0]]))?;
    let compiled = runs(&outside, &workspace, None)?;
    ensure!(compiled.contains(PACKAGES[0]) && !compiled.contains(PACKAGES[1]), "{compiled}");

    let (here, moved) = (outside.target().join("debug"), workspace.join("moved"));
    fs::create_dir(&moved)?;
    fs::rename(&here, moved.join("debug"))?;
    let check = || {
        let program = try_run(Command::new(moved.join("debug").join(PROGRAM)).arg("gfx1100"))?;
        ensure!(program == EXPECTED, "{program}");
        let compiled = runs(&outside, &workspace, Some(&moved))?;
        ensure!(compiled.is_empty(), "after the move, Cargo compiled {compiled}");
        // A source that changes there is compiled there.
        fs::write(workspace.join(PACKAGES[0]).join("kernels/scale.hip"), source("one", "+="))?;
        let compiled = runs(&outside, &workspace, Some(&moved))?;
        ensure!(compiled.contains(PACKAGES[0]) && !compiled.contains(PACKAGES[1]), "{compiled}");
        ensure!(!here.exists(), "something was written to {}", here.display());
        // Cargo's messages name the directory as it is now.
        let messages = workspace.join("build.json");
        let format = "--message-format=json-render-diagnostics";
        let mut build = cargo(&outside, &workspace, &["build", format]);
        fs::write(&messages, try_run(build.env("CARGO_TARGET_DIR", &moved))?)?;
        let (kpack, staged) = (prefix().join("bin/kpack"), workspace.join("dist"));
        run!(
            "{kpack} stage --quiet --allow-build-paths --messages {messages} --output-dir {staged}"
        )?;
        run!("{kpack} verify {staged} --arch all")?;
        let program = try_run(Command::new(staged.join("bin").join(PROGRAM)).arg("gfx1100"))?;
        ensure!(program == EXPECTED, "{program}");
        // The program by itself, in parts.
        let (built, parts) = (moved.join("debug").join(PROGRAM), workspace.join("parts"));
        run!("{kpack} stage --quiet --allow-build-paths --split {built} --output-dir {parts}")?;
        let [host, own] = ["host", "gfx1100"].map(|part| parts.join(part).join("."));
        let installed = workspace.join("installed");
        fs::create_dir(&installed)?;
        run!("cp -a {host} {own} {installed}")?;
        let program = try_run(Command::new(installed.join("bin").join(PROGRAM)).arg("gfx1100"))?;
        ensure!(program == EXPECTED, "{program}");
        Ok(())
    };
    let result = check();
    let _ = fs::remove_dir_all(&here);
    fs::rename(moved.join("debug"), &here)?;
    result?;
    checked("cleaned, moved, changed and staged");
    Ok(())
}
