//! An installed project with device code, unsplit and split.

use std::path::PathBuf;

use super::reference::Reference;
use super::runtime::Program;

/// The module of every project here.
pub(super) const MODULE: &str = "vec";

/// A project, installed twice.
#[derive(Debug)]
pub(super) struct Project {
    /// The prefix with fat binaries.
    pub(super) fat: PathBuf,
    /// The prefix that was split as the project's own build splits it.
    pub(super) split: PathBuf,
    /// How it was split.
    pub(super) split_by: &'static str,
    /// What to run.
    pub(super) programs: Vec<Program>,
    /// Observations of the unsplit prefix.
    pub(super) reference: Reference,
    /// A library, and a function of it that has debug information.
    pub(super) debugged: (PathBuf, &'static str),
}
