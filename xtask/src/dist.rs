//! `cargo xtask dist`: an install prefix with the helper, the CMake package and the documents.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::{process, repository};

/// Fills `prefix`: `bin/kpack`, `lib/cmake/Kpack/`, `share/doc/kpack/`.
///
/// # Errors
/// A helper that does not build, a directory that cannot be written.
pub(crate) fn install(prefix: &Path) -> Result<()> {
    let shell = repository::shell()?;
    let helper = repository::build_helper(&shell)?;
    fill(prefix, &helper)
}

/// As [`install`], with a helper that is built already.
pub(crate) fn fill(prefix: &Path, helper: &Path) -> Result<()> {
    process::step(&format!("Installing kpack into {}", prefix.display()));
    let root = repository::root();
    let documents = prefix.join("share/doc/kpack");
    copy_file(helper, &prefix.join("bin/kpack"))?;
    copy_tree(&root.join("cmake"), &prefix.join("lib/cmake/Kpack"))?;
    copy_tree(&root.join("docs"), &documents)?;
    for name in ["README.md", "LICENSE-APACHE", "LICENSE-MIT"] {
        copy_file(&root.join(name), &documents.join(name))?;
    }
    Ok(())
}

/// Copies what is in `from`, which must be there, into `to`.
fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    let entries = fs::read_dir(from).with_context(|| from.display().to_string())?;
    let mut copied = false;
    for entry in entries {
        let entry = entry.with_context(|| from.display().to_string())?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            copy_file(&entry.path(), &target)?;
        }
        copied = true;
    }
    ensure!(copied, "{} is empty", from.display());
    Ok(())
}

/// Copies a file with its mode. The old one is unlinked first: it may be running.
fn copy_file(from: &Path, to: &Path) -> Result<()> {
    let context = || format!("copying {} to {}", from.display(), to.display());
    if let Some(directory) = to.parent() {
        fs::create_dir_all(directory).with_context(context)?;
    }
    match fs::remove_file(to) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(context);
        }
        _ => {}
    }
    fs::copy(from, to).with_context(context)?;
    println!("   {}", to.display());
    Ok(())
}
