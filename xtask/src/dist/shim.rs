//! The shim for HIP runtimes that do not read markers, as a static library of one object.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::process;

/// The functions that linkers call in place of the HIP runtime's.
const FUNCTIONS: [&str; 2] = [
    "__wrap___hipRegisterFatBinary",
    "__wrap___hipUnregisterFatBinary",
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
    let needed = FUNCTIONS.map(|name| format!("-Wl,-u,{name}"));
    process::run!("cc -r -nostdlib -Wl,-S,--gc-sections {needed...} -o {object} {static_library}")?;
    let kept = FUNCTIONS.map(|name| format!("--keep-global-symbol={name}"));
    let removed = BITCODE.map(|name| format!("--remove-section={name}"));
    process::run!("objcopy {kept...} {removed...} {object}")?;
    process::run!("ar rcsD {merged} {object}")?;
    Ok(merged)
}
