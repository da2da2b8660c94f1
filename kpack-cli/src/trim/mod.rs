//! What `kpack trim` does: it removes the code for other GPUs from whole trees.
//!
//! `kpack-split` trims one file, and `kpack-artifact` knows which files of kernel databases and which archives are for
//! other GPUs. This module handles files with several names, links, lists of installed files, and the note about what was
//! removed.
//!
//! A run opens the given directories and locks them (`held`), lists what is in them (`tree`), decides what becomes of it (`plan`),
//! and does that (`apply`).

mod apply;
mod explain;
mod found;
mod held;
mod ledger;
mod links;
mod lists;
mod note;
mod plan;
mod tree;

use std::collections::BTreeMap;
use std::path::{PathBuf, absolute};

use kpack_core::Error;
use kpack_core::finding::Finding;
use kpack_core::report::Progress;
use kpack_doctor::Owner;
use kpack_doctor::internal::Root;
use kpack_split::trim::Keep;
use kpack_tree::kernel_files::KernelFiles;
use kpack_tree::{DatabaseSelection, Known};
use serde::Serialize;

use apply::Application;
use held::Held;
use ledger::Ledger;
use note::OpenNote;
use plan::TrimPlanner;
use tree::TrimTree;

pub(crate) use explain::{describe, explain_all};

/// What to trim, and for what.
#[derive(Debug, Clone)]
pub struct Options {
    /// The directories and files. In a root, they are paths in it.
    pub paths: Vec<PathBuf>,
    /// The root directory of an image.
    pub root: Option<PathBuf>,
    /// The code that stays.
    pub keep: Keep,
    /// Kernel files that kpack does not know.
    pub kernel_files: Vec<KernelFiles>,
    /// Whether to only say what would change.
    pub dry_run: bool,
}

/// What changed, or would.
#[derive(Debug, Default, Serialize)]
pub struct TrimReport {
    /// The GPUs whose code stays.
    pub gpus: Vec<String>,
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// The files that changed or went.
    pub files: Vec<TrimmedFile>,
    /// The packages that these files belong to.
    pub packages: Vec<Owner>,
    /// Their sizes in sum, in bytes: a file with several names counts once.
    pub size_before: u64,
    /// The same afterwards.
    pub size_after: u64,
    /// Warnings and notes.
    pub findings: Vec<Finding>,
    /// Why some files could not be read or written. They stay as they are.
    #[serde(skip)]
    pub errors: Vec<Error>,
}

/// A file that changed or went.
#[derive(Debug, Clone, Serialize)]
pub struct TrimmedFile {
    /// Where it is.
    #[serde(serialize_with = "kpack_core::lossy::path")]
    pub path: PathBuf,
    /// What became of it.
    pub outcome: TrimOutcome,
    /// Its size in bytes.
    pub size_before: u64,
    /// The same afterwards.
    pub size_after: u64,
    /// How many bytes less it takes on the disk; unknown before it is written.
    #[serde(skip)]
    pub freed: Option<u64>,
    /// Bytes of code that went, by target, as it is decompressed.
    pub removed: BTreeMap<String, u64>,
}

/// What became of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrimOutcome {
    /// Code went.
    Trimmed,
    /// It was a symbolic link to a file elsewhere, and is a file of its own now.
    Copied,
    /// It was for other GPUs, as a whole.
    Removed,
    /// It lists files that went.
    Updated,
}

/// Removes the code for other GPUs from what is in the given paths.
///
/// # Errors
/// [`Error::Io`] if a given path cannot be read; [`Error::Refused`] if something other than a note has its name, or if only
/// files are given of kinds that nobody can trim.
/// What cannot be trimmed stays as it is, with a warning, or an error in the [report](TrimReport::errors).
pub fn trim(options: &Options, progress: &dyn Progress) -> Result<TrimReport, Error> {
    let root = Root::find(options.root.as_deref())?;
    let paths = options
        .paths
        .iter()
        .map(|path| match &options.root {
            Some(_) => Ok(path.clone()),
            None => absolute(path).map_err(|error| Error::io(path, "find", error)),
        })
        .collect::<Result<Vec<_>, Error>>()?;
    let (given, held) = Held::open(&root, &paths, !options.dry_run, &|path| progress.waits(path))?;
    let mut notes = OpenNote::all(&held, &given, !options.dry_run)?;
    let databases = DatabaseSelection::new(Known::Auto, options.kernel_files.clone());
    let mut tree = TrimTree::read(&root, &given, &databases)?;
    let planner = TrimPlanner { options, root: &root, held: &held, databases: &databases };
    let mut errors = std::mem::take(&mut tree.unread);
    errors.extend(notes.iter_mut().flat_map(|note| std::mem::take(&mut note.unread)));
    let plan = planner.plan(&given, &tree, &notes, &mut errors)?;
    let ledger = Ledger::new(notes, &root, &plan);
    let mut report = Application::new(&planner, &plan, ledger).run(errors, progress)?;
    report.size_before = report.files.iter().map(|file| file.size_before).sum();
    report.size_after = report.files.iter().map(|file| file.size_after).sum();
    Ok(report)
}
