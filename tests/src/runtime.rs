//! Real HIP runtimes over a stub of the HSA runtime, so that they need no GPU.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use object::{Object, ObjectSymbol};

use crate::corpus;
use crate::process::try_run;

/// Links the libraries of a runtime of ROCm that reads markers into `directory`, with kpack's loader in the place of
/// ROCm's if `loader` is given. Returns the runtime, and the name that it has for the HSA runtime.
///
/// # Errors
/// They cannot be fetched.
pub fn rocm(directory: &Path, loader: Option<&Path>) -> Result<(PathBuf, String)> {
    let mut files = BTreeMap::new();
    for file in fs::read_dir(corpus::rocm()?)? {
        let file = file?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let base = name.split(['-', '.']).next().unwrap_or_default();
        files.insert(base.to_owned(), (name.to_string(), file.clone()));
    }
    let file = |base| files.get(base).with_context(|| format!("the wheel has no {base}"));
    let (hsa, _) = file("libhsa")?;
    for (name, file) in files.values().filter(|(name, _)| name != hsa) {
        symlink(file, directory.join(name))?;
    }
    symlink(&file("libamd_comgr")?.1, directory.join("libamd_comgr.so.3"))?;
    if let Some(loader) = loader {
        let place = directory.join(&file("librocm_kpack")?.0);
        fs::remove_file(&place)?;
        fs::copy(loader, &place)?;
    }
    Ok((file("libamdhip64")?.1.clone(), hsa.clone()))
}

/// Builds the stub and the program `load` of `tests/real` in `directory`, next to links to `runtime`. Returns the names of
/// what that imports.
///
/// # Errors
/// It cannot be read, or the compiler is missing or fails.
pub fn build(directory: &Path, runtime: &Path, hsa: &str) -> Result<BTreeSet<String>> {
    for version in 5..=7 {
        symlink(runtime, directory.join(format!("libamdhip64.so.{version}")))?;
    }
    let bytes = fs::read(runtime)?;
    let file = object::File::parse(bytes.as_slice())?;
    let imports = file.dynamic_symbols().filter(ObjectSymbol::is_undefined);
    let names = imports.map(|symbol| Ok(symbol.name()?.to_owned()));
    let names: BTreeSet<String> = names.collect::<Result<_>>()?;
    let missing = directory.join("missing.c");
    // Weak, so that the stub's own definitions win. It returns HSA_STATUS_ERROR.
    let missing_functions = names.iter().filter(|name| name.starts_with("hsa_"));
    let missing_functions: String = missing_functions
        .map(|name| format!("__attribute__((weak)) int {name}(void) {{ return 0x1000; }}\n"))
        .collect();
    fs::write(&missing, missing_functions)?;

    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("real");
    let library = directory.join(hsa);
    let cc = |arguments: &[&str]| {
        let mut command = Command::new("cc");
        command.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2"]).args(arguments);
        command
    };
    let versions = format!("-Wl,--version-script={}", source.join("hsa.map").display());
    let mut stub = cc(&["-fPIC", "-shared", &format!("-Wl,-soname,{hsa}"), &versions, "-o"]);
    try_run(stub.args([&library, &source.join("hsa.c"), &missing]))?;
    // A set-user-ID program ignores LD_LIBRARY_PATH, so the program itself needs the stub.
    let path = format!("-Wl,--no-as-needed,--disable-new-dtags,-rpath,{}", directory.display());
    let mut program = cc(&[&path, "-o"]);
    try_run(program.args([&directory.join("load"), &source.join("load.c"), &library]))?;
    Ok(names)
}
