//! Bundles of checked-in code objects in objects of the C compiler.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::{process, repository};

/// Assembles the wrapper of a translation unit with its bundle, which stays in
/// `<build>/<unit>.bundle`.
pub(super) fn assemble(unit: &str, bundle: &[u8], build: &Path) -> Result<PathBuf> {
    let source = repository::root().join("tests/e2e/embedded/device.S");
    let file = build.join(format!("{unit}.bundle"));
    fs::write(&file, bundle)?;
    let object = build.join(format!("{unit}.o"));
    let name = format!("-DUNIT={unit}");
    let place = format!("-DBUNDLE=\"{}\"", file.display());
    process::run!("cc {name} {place} -c -o {object} {source}")?;
    Ok(object)
}
