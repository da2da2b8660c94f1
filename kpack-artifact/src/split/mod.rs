//! Splits artifact directories: a generic artifact for the host, and one for each GPU target.
//!
//! The engine is that of `kpack split`, so the same binary gives the same bytes. Each artifact goes through four steps,
//! which [`split()`] lists: `sources` says which directories are read, `contents` reads them, `plan` says as data what goes
//! where, and `apply` writes it under hidden names. Then the targets' artifacts are renamed, and the generic one last:
//! where that is, all of them are. [`batch()`] takes many artifacts through the same steps.

mod apply;
mod batch;
mod contents;
mod modules;
mod options;
mod plan;
mod report;
mod sources;

use kpack_core::Error;
use kpack_core::parallel;
use kpack_core::report::Progress;
use kpack_split::split::Budget;

use contents::Contents;

pub use batch::{BatchOptions, BatchOutcome, BatchReport, Failure, batch};
pub use options::{Layout, Options, Unknown};
pub use report::{ArtifactReport, SplitReport};

/// Splits one artifact directory.
///
/// # Errors
/// [`Error::Usage`] for options that make no sense, [`Error::Refused`] for input that is damaged,
/// that contradicts itself or is not what it should be, or that has nothing for any of the targets
/// that are required, [`Error::Io`]. Nothing has appeared under its final name then, but where
/// renaming failed half-way: there is no generic artifact then.
pub fn split(options: &Options, progress: &dyn Progress) -> Result<SplitReport, Error> {
    parallel::with_jobs(options.storage.jobs, || {
        let sources = sources::of_directory(options)?;
        let contents = Contents::read(options, &sources)?;
        contents.refuse_all_left_out(options, true)?;
        let plan = plan::plan(options, contents)?;
        apply::apply(options, plan, &Budget::default(), progress)
    })
}
