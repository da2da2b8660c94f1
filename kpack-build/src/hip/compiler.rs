//! Finding a compiler for HIP.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::environment::Environment;
use crate::Error;

/// Names of compilers in the `PATH`, the most capable first. LLVM packages of distributions have the
/// version in the name.
const NAMES: [&str; 14] = [
    "amdclang++",
    "hipcc",
    "clang++",
    "clang++-22",
    "clang++-21",
    "clang++-20",
    "clang++-19",
    "clang++-18",
    "clang++-17",
    "clang++-16",
    "clang++-15",
    "clang++-14",
    "clang++-13",
    "clang++-12",
];

/// Where a ROCm installation has its compilers.
const IN_ROCM: [&str; 3] = ["lib/llvm/bin/amdclang++", "llvm/bin/clang++", "bin/hipcc"];

/// Where ROCm is installed where nothing else is said.
const ROCM: &str = "/opt/rocm";

/// Finds the compiler: `HIPCXX`; that of the ROCm installation in `ROCM_PATH`; on the `PATH`; that in
/// `/opt/rocm`. The first that can make code for AMD GPUs is taken.
///
/// # Errors
/// [`Error::Compiler`] with everything that was looked at.
pub(super) fn find(environment: &Environment) -> Result<PathBuf, Error> {
    let path = environment.untracked("PATH").unwrap_or_default();
    if let Some(named) = environment.get("HIPCXX") {
        let found = on_path(&path, &named);
        return match found.as_deref().map(can_target_amdgcn) {
            Some(Ok(())) => Ok(found.unwrap_or_default()),
            problem => {
                let problem = problem.and_then(Result::err);
                Err(Error::Compiler(format!(
                    "HIPCXX is `{}`: {}; set it to a clang++ with the AMDGPU target, or unset it",
                    named.display(),
                    problem.unwrap_or_else(|| "there is no such program".to_owned())
                )))
            }
        };
    }
    let rocm = environment.get("ROCM_PATH").map(PathBuf::from);
    let in_rocm = |root: &Path| IN_ROCM.map(|name| root.join(name));
    let mut candidates: Vec<(String, Option<PathBuf>)> = Vec::new();
    let file = |path: PathBuf| (path.display().to_string(), path.is_file().then_some(path));
    candidates.extend(rocm.iter().flat_map(|root| in_rocm(root)).map(file));
    candidates.extend(NAMES.map(|name| (name.to_owned(), on_path(&path, OsStr::new(name)))));
    if rocm.is_none() {
        candidates.extend(in_rocm(Path::new(ROCM)).map(file));
    }
    let mut unfit = Vec::new();
    let mut missing = Vec::new();
    for (name, found) in candidates {
        match found.as_deref().map(can_target_amdgcn) {
            Some(Ok(())) => return Ok(found.unwrap_or_default()),
            Some(Err(reason)) => unfit.push(format!("  {name}: {reason}")),
            None => missing.push(name),
        }
    }
    let mut text =
        "no HIP compiler was found. What was looked for, in this order:\n  HIPCXX: not set\n"
            .to_owned();
    if rocm.is_none() {
        text += "  ROCM_PATH: not set\n";
    }
    text += &format!("  not there: {}\n", missing.join(", "));
    for line in unfit {
        text += &format!("{line}\n");
    }
    text += "Install ROCm's compiler (package `rocm-llvm` or `hipcc`), or a clang with the AMDGPU target \
             and lld (Debian: `apt-get install clang-19 lld-19`), or set HIPCXX to one";
    Err(Error::Compiler(text))
}

/// A program that is named, with or without a directory.
fn on_path(path: &OsStr, name: &OsStr) -> Option<PathBuf> {
    if Path::new(name).components().count() > 1 {
        let program = PathBuf::from(name);
        return program.is_file().then_some(program);
    }
    let mut directories = std::env::split_paths(path);
    directories.find_map(|directory| {
        let program = directory.join(name);
        program.is_file().then_some(program)
    })
}

/// Whether a compiler has the AMDGPU target; otherwise why not.
fn can_target_amdgcn(compiler: &Path) -> Result<(), String> {
    let output = Command::new(compiler)
        .arg("--print-targets")
        .stdin(Stdio::null())
        .output();
    match output {
        Err(error) => Err(format!("it cannot be run: {error}")),
        Ok(output) if !output.status.success() => Err(format!(
            "`--print-targets`, which clang has, failed ({})",
            output.status
        )),
        Ok(output) if String::from_utf8_lossy(&output.stdout).contains("amdgcn") => Ok(()),
        Ok(_) => Err("it has no target amdgcn".to_owned()),
    }
}
