//! Splits artifact directories: a generic artifact for the host, and one for each GPU target.
//!
//! The engine is that of [`install`](crate::install::install), so the same binary gives the same
//! bytes. Each artifact is planned as data and written under a hidden name; then the targets'
//! artifacts are renamed, and the generic one last: where that is, all of them are.

mod apply;
mod batch;
mod copy;
mod modules;
mod options;
mod plan;
mod report;
mod stage;
mod targets;

use crate::Error;
use crate::install::Progress;
use crate::split::Budget;

pub(crate) use batch::artifact_prefix;
pub use batch::{BatchOptions, BatchReport, Failure, Outcome, batch};
pub use options::{Options, Unknown};
pub use report::{ArtifactReport, Report};

/// Splits one artifact directory.
///
/// # Errors
/// [`Error::Usage`] for options that make no sense, [`Error::Refused`] for input that is damaged,
/// that contradicts itself or is not what it should be, [`Error::Io`]. Nothing has appeared under
/// its final name then, but where renaming failed half-way: there is no generic artifact then.
pub fn split(options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
    split_within(options, &Budget::default(), progress)
}

/// The same, with the memory for code objects in flight shared with others.
fn split_within(
    options: &Options,
    budget: &Budget,
    progress: &dyn Progress,
) -> Result<Report, Error> {
    let mut report = Report {
        artifact_prefix: options.artifact_prefix.clone(),
        artifact_dir: options.artifact_dir.clone(),
        ..Report::default()
    };
    stage::check_output(options)?;
    let plan = plan::plan(options, &mut report)?;
    apply::apply(options, &plan, budget, progress, &mut report)?;
    Ok(report)
}
