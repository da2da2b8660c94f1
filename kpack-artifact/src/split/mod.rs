//! Splits artifact directories: a generic artifact for the host, and one for each GPU target.
//!
//! The engine is that of `kpack split`, so the same binary gives the same
//! bytes. Each artifact is planned as data and written under a hidden name; then the targets'
//! artifacts are renamed, and the generic one last: where that is, all of them are.

mod apply;
mod batch;
mod contents;
mod modules;
mod options;
mod output_dir;
mod parent_dir;
mod plan;
mod report;
mod sources;
mod targets;
mod unlisted;

use std::io;
use std::path::Path;

use super::manifest_txt;
use kpack_core::parallel;
use kpack_core::report::Progress;
use kpack_core::{Error, ids};
use kpack_split::split::Budget;

use contents::Contents;
use sources::Sources;

pub use batch::{BatchOptions, BatchReport, Failure, Outcome, batch};
pub use options::{Layout, Options, Unknown};
pub(crate) use parent_dir::artifact_prefix;
pub use report::{ArtifactReport, Report};

/// Splits one artifact directory.
///
/// # Errors
/// [`Error::Usage`] for options that make no sense, [`Error::Refused`] for input that is damaged,
/// that contradicts itself or is not what it should be, or that has nothing for any of the targets
/// that are required, [`Error::Io`]. Nothing has appeared under its final name then, but where
/// renaming failed half-way: there is no generic artifact then.
pub fn split(options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
    parallel::with_jobs(options.storage.jobs, || split_one(options, progress))
}

fn split_one(options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
    let input = (options.artifact_dir.as_path(), options.artifact_prefix.as_str());
    output_dir::check_output(&options.output_dir, [input])?;
    refuse_install_tree(&options.artifact_dir)?;
    parent_dir::refuse_group(&options.artifact_dir)?;
    let (contents, report) = read(options, &[(None, options.artifact_dir.clone())])?;
    if !contents.has_expected(options) {
        let found = contents.found.keys();
        let has_binaries = !contents.of_binaries().is_empty();
        targets::refuse_none_expected(&options.artifact_dir, options, found, has_binaries)?;
    }
    write(options, contents, report, &Budget::default(), progress)
}

/// Refuses a directory that is no artifact, which is an install tree as a rule.
fn refuse_install_tree(artifact: &Path) -> Result<(), Error> {
    let list = artifact.join(manifest_txt::FILE_NAME);
    match list.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound && artifact.is_dir() => {
            let reason = format!(
                "not an artifact directory: it has no {}; for a plain install tree, use \
                 `kpack split --prefix DIR FILE...`",
                manifest_txt::FILE_NAME
            );
            Err(Error::rejected(ids::NOT_AN_ARTIFACT, artifact, reason))
        }
        _ => Ok(()),
    }
}

/// Reads what is in an artifact.
fn read(options: &Options, sources: &Sources) -> Result<(Contents, Report), Error> {
    let mut report = Report {
        artifact_prefix: options.artifact_prefix.clone(),
        artifact_dir: options.artifact_dir.clone(),
        ..Report::default()
    };
    let contents = Contents::read(options, sources, &mut report)?;
    Ok((contents, report))
}

/// Splits what was read. The memory for code objects in flight is shared with others.
fn write(
    options: &Options,
    contents: Contents,
    mut report: Report,
    budget: &Budget,
    progress: &dyn Progress,
) -> Result<Report, Error> {
    if options.layout == Layout::Artifact {
        contents.refuse_all_left_out(options)?;
    }
    let plan = plan::plan(options, contents, &mut report)?;
    apply::apply(options, &plan, budget, progress, &mut report)?;
    Ok(report)
}
