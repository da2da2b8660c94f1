//! The shim for HIP runtimes that do not read markers, as a static library of one object.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::process;

/// The functions that linkers call in place of the HIP runtime's, and their names in `kpack-hip/link`.
const FUNCTIONS: [(&str, &str); 2] = [
    ("__wrap___hipRegisterFatBinary", "kpack_hip_register"),
    ("__wrap___hipUnregisterFatBinary", "kpack_hip_unregister"),
];
/// Bitcode of Rust's standard library, which linkers' plugins cannot read once it is merged.
const BITCODE: [&str; 2] = [".llvmbc", ".llvmcmd"];

/// Merges the object files of cargo's static library into one, with no global names but its functions:
/// another Rust library in the same link, or another zstd, must not meet this one's.
///
/// # Errors
/// The linker, `objcopy` or `ar` fails.
pub(super) fn merge(static_library: &Path, directory: &Path) -> Result<PathBuf> {
    process::step("Merging the shim into one object");
    let (object, merged) = (directory.join("shim.o"), directory.join("libkpack_hip.a"));
    let needed = FUNCTIONS.map(|(_, own)| format!("-Wl,-u,{own}"));
    process::run!("cc -r -nostdlib -Wl,-S,--gc-sections {needed...} -o {object} {static_library}")?;
    let kept = FUNCTIONS.map(|(_, own)| format!("--keep-global-symbol={own}"));
    let removed = BITCODE.map(|name| format!("--remove-section={name}"));
    process::run!("objcopy {kept...} {removed...} {object}")?;
    let named = FUNCTIONS.map(|(name, own)| format!("--redefine-sym={own}={name}"));
    process::run!("objcopy {named...} {object}")?;
    process::run!("ar rcsD {merged} {object}")?;
    Ok(merged)
}
