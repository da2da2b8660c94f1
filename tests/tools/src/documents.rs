//! The documents of this repository.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::process::repository;

/// The commands `cargo xtask …` in blocks of README, CONTRIBUTING and `docs`, each with its page. Elsewhere, options may stand
/// alone.
///
/// # Errors
/// A page cannot be read.
pub fn task_commands() -> Result<Vec<(PathBuf, String)>> {
    let root = repository();
    let mut pages = Vec::from(["README.md", "CONTRIBUTING.md"].map(|name| root.join(name)));
    for directory in ["docs", "docs/dev"].map(|name| root.join(name)) {
        let entries = fs::read_dir(&directory).with_context(|| directory.display().to_string())?;
        let files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        pages.extend(files.into_iter().filter(|file| file.extension().is_some_and(|e| e == "md")));
    }
    let mut commands = Vec::new();
    for page in pages {
        let text = fs::read_to_string(&page).with_context(|| page.display().to_string())?;
        let found = text.lines().filter_map(|line| {
            let command = line.trim_start().split('#').next()?;
            command.starts_with("cargo xtask ").then(|| (page.clone(), command.trim().to_owned()))
        });
        commands.extend(found);
    }
    Ok(commands)
}
