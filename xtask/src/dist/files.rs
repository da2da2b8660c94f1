//! Puts files into an install prefix.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use walkdir::WalkDir;

use crate::log;

/// Copies the contents of `from`, which must exist, to `to`, without what Python compiled.
pub(super) fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    let walk = WalkDir::new(from).into_iter();
    let mut copied = false;
    for entry in walk.filter_entry(|entry| entry.file_name() != "__pycache__") {
        let entry = entry?;
        if !entry.file_type().is_dir() {
            copy_file(entry.path(), &to.join(entry.path().strip_prefix(from)?))?;
            copied = true;
        }
    }
    ensure!(copied, "{} is empty", from.display());
    Ok(())
}

/// Copies a file, and whether it can be run.
pub(super) fn copy_file(from: &Path, to: &Path) -> Result<()> {
    make_way(to)?;
    fs::copy(from, to)
        .with_context(|| format!("copying {} to {}", from.display(), to.display()))?;
    let runs = fs::metadata(from)?.permissions().mode() & 0o111 != 0;
    installed(to, if runs { 0o755 } else { 0o644 })
}

/// Writes a file.
pub(super) fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    make_way(path)?;
    fs::write(path, bytes).with_context(|| path.display().to_string())?;
    installed(path, 0o644)
}

/// Everybody may read what is installed, whatever the umask is.
fn installed(path: &Path, mode: u32) -> Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    log::note(&format!("   {}", path.display()))?;
    Ok(())
}

/// Makes a symbolic link.
pub(super) fn link_file(target: &str, path: &Path) -> Result<()> {
    make_way(path)?;
    symlink(target, path).with_context(|| path.display().to_string())?;
    log::note(&format!("   {} -> {target}", path.display()))?;
    Ok(())
}

/// Creates a file's directory and unlinks the old file, which may be running.
fn make_way(path: &Path) -> Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("replacing {}", path.display()))
        }
        _ => Ok(()),
    }
}
