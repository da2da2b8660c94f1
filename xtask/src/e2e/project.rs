//! An installed project with device code, unsplit and split.

use std::path::PathBuf;

use super::reference::Reference;
use super::runtime::Program;

/// The module name of every project.
pub(super) const MODULE: &str = "vec";

/// A project, installed twice.
#[derive(Debug)]
pub(super) struct Project {
    /// The prefix with fat binaries.
    pub(super) fat: PathBuf,
    /// The prefix that the project's own build split.
    pub(super) split: PathBuf,
    /// The programs to run.
    pub(super) programs: Vec<Program>,
    /// Observations of the unsplit prefix.
    pub(super) reference: Reference,
    /// A library, and one of its functions with debug information.
    pub(super) debugged: (PathBuf, &'static str),
}
