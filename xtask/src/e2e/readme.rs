//! Runs the README's CMake example as a reader would paste it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use xshell::{Cmd, cmd};

use super::hip_project::{HipTools, flags_without_rocm};
use super::runtime::Runtime;
use crate::{process, repository};

/// The install prefix of kpack in the README.
const PREFIX: &str = "/opt/kpack";

/// Follows the README in `work`, with kpack in the prefix `kpack`.
///
/// # Errors
/// The example is missing, fails, or does not install what the README says.
pub(super) fn check(
    tools: &HipTools,
    runtime: &Runtime,
    kpack: &Path,
    work: &Path,
) -> Result<String> {
    let example = write_project(work)?;
    let script = block(&example, "sh")?;
    ensure!(script.contains(PREFIX), "the commands in README.md do not name {PREFIX}");
    let script = script.replace(PREFIX, &kpack.display().to_string());

    let _directory = process::shell().push_dir(work);
    let shown =
        process::output(with_stubs(cmd!(process::shell(), "sh -euc {script}"), tools, runtime))?;
    let (_, described) =
        example.split_once("`out` now has").context("README.md does not say what is installed")?;
    let mut files = 0;
    for name in described.lines().take(2).flat_map(|line| line.split('`')) {
        if name.starts_with("lib/") {
            let file = work.join("out").join(name);
            ensure!(file.exists(), "README.md says that there is {name}");
            files += 1;
        }
    }
    ensure!(files == 4, "README.md names {files} installed files, not 4");
    ensure!(
        shown.contains("gfx1100") && shown.contains("gfx942"),
        "`kpack show` does not name the targets:\n{shown}"
    );
    Ok(format!("{files} files installed as it says"))
}

/// Writes the example's files into `work`, and returns that section of the README.
pub(super) fn write_project(work: &Path) -> Result<String> {
    let readme = fs::read_to_string(repository::root().join("README.md"))?;
    let (_, example) =
        readme.split_once("## In a CMake project").context("README.md has no section on CMake")?;
    fs::create_dir_all(work)?;
    fs::write(work.join("CMakeLists.txt"), block(example, "cmake")?)?;
    fs::write(work.join("vec.cpp"), block(example, "cpp")?)?;
    Ok(example.to_owned())
}

/// Has a command use, in place of ROCm, clang, the header of the HIP project, and the stub runtime.
pub(super) fn with_stubs<'a>(command: Cmd<'a>, tools: &HipTools, runtime: &Runtime) -> Cmd<'a> {
    command
        .env("CXX", tools.compiler())
        .env("CXXFLAGS", flags_without_rocm())
        .env("CMAKE_LIBRARY_PATH", runtime.prefix.join("lib"))
}

/// The first block of code in `language`.
pub(super) fn block<'a>(text: &'a str, language: &str) -> Result<&'a str> {
    let start = format!("```{language}\n");
    text.split_once(&start)
        .and_then(|(_, rest)| rest.split_once("```"))
        .map(|(block, _)| block)
        .with_context(|| format!("the document has no {language} block where one is expected"))
}
