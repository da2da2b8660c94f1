//! Treatments of binaries by packagers, before or after the split.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::process;

/// One treatment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Treatment {
    /// What Debian's dh_strip does.
    GnuStrip,
    LlvmStrip,
    /// What RPM's find-debuginfo does: symbols go to a debug file.
    EuStrip,
    /// A debug file from objcopy, with a debug link.
    DebugLink,
    /// A longer run path than before.
    Patchelf,
}

/// A run path that no binary has room for. The directories that matter come first.
const LONG_RUN_PATH: &str = "$ORIGIN/../lib:$ORIGIN:/opt/a/directory/that/is/long/enough/to/need/\
room/that/the/string/table/does/not/have/and/then/some/more/of/it/to/be/quite/sure";

impl Treatment {
    pub(super) const ALL: [Self; 5] = [
        Self::GnuStrip,
        Self::LlvmStrip,
        Self::EuStrip,
        Self::DebugLink,
        Self::Patchelf,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::GnuStrip => "strip",
            Self::LlvmStrip => "llvm-strip",
            Self::EuStrip => "eu-strip -f",
            Self::DebugLink => "objcopy, debug link",
            Self::Patchelf => "patchelf --set-rpath",
        }
    }

    /// The program that it runs, by its possible names.
    fn program(self) -> &'static str {
        match self {
            Self::GnuStrip => "strip",
            Self::LlvmStrip => "llvm-strip-19|llvm-strip",
            Self::EuStrip => "eu-strip",
            Self::DebugLink => "objcopy",
            Self::Patchelf => "patchelf",
        }
    }

    /// Treats `file` in place. Debug files go beside it, as `<file>.debug`.
    ///
    /// # Errors
    /// A tool fails; the error has what it printed.
    pub(super) fn apply(self, file: &Path) -> Result<()> {
        let program = process::find_program(self.program())
            .with_context(|| format!("{} is not installed", self.program()))?;
        let debug = debug_file(file);
        match self {
            Self::GnuStrip => {
                process::run!(
                    "{program} --strip-unneeded --remove-section=.comment --remove-section=.note {file}"
                )?;
            }
            Self::LlvmStrip => {
                process::run!("{program} {file}")?;
            }
            Self::EuStrip => {
                process::run!("{program} --remove-comment -f {debug} {file}")?;
            }
            Self::DebugLink => {
                process::run!("{program} --only-keep-debug {file} {debug}")?;
                process::run!("{program} --strip-debug --add-gnu-debuglink={debug} {file}")?;
            }
            Self::Patchelf => {
                process::run!("{program} --set-rpath {LONG_RUN_PATH} {file}")?;
            }
        }
        Ok(())
    }

    /// Whether [`apply`](Self::apply) leaves a debug file.
    pub(super) fn separates_debug_information(self) -> bool {
        matches!(self, Self::EuStrip | Self::DebugLink)
    }
}

/// The path of a file's debug file.
fn debug_file(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".debug");
    name.into()
}

/// That gdb finds the line of `function` in `file`'s separate debug file.
///
/// # Errors
/// The debug file is missing or does not match, or gdb is not installed.
pub(super) fn debugger_finds(file: &Path, function: &str) -> Result<()> {
    ensure!(
        debug_file(file).exists(),
        "{} has no debug file",
        file.display()
    );
    let question = format!("info line {function}");
    let answer = process::run!("gdb -nx -batch -ex {question} {file}")?;
    ensure!(
        answer.lines().any(|line| line.starts_with("Line ")),
        "gdb finds no debug information for {function} of {}; it printed\n{answer}",
        file.display()
    );
    Ok(())
}

/// Copies a tree with its links, modes and times.
///
/// # Errors
/// cp fails.
pub(super) fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    let _ = fs::remove_dir_all(to);
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
    }
    process::run!("cp -a {from} {to}")?;
    Ok(())
}
