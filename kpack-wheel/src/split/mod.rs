//! Splits wheels: a host wheel each, and device wheels.
//!
//! A run goes through four steps, which [`split()`] lists: `sources` opens the wheels, `contents` unpacks each and splits
//! its binaries in a hidden directory, `plan` says as data which wheels there are, what is in each and what it requires, and
//! `apply` writes them under hidden names. The last three run for one wheel after the other, up to its host wheel; then the
//! last two for the device wheels of all. Then the device wheels are renamed, and the host wheels last, since their extras
//! name the device wheels.

mod apply;
mod contents;
mod plan;
mod report;
mod sources;

use kpack_core::report::Progress;
use kpack_core::{Error, parallel};
use kpack_split::split::DebugFiles;

use crate::options::Options;
use crate::rocm;
use apply::Outputs;
use contents::WheelContents;
use sources::WheelSources;

pub use report::{WheelReport, WrittenWheel};

/// Splits wheels.
///
/// # Errors
/// [`Error::Usage`] for options that make no sense; [`Error::Refused`] for wheels that are damaged,
/// unsupported, or have no device code; [`Error::Io`]. No wheel has appeared under its final name then.
pub fn split(options: &Options, progress: &dyn Progress) -> Result<WheelReport, Error> {
    parallel::with_jobs(options.storage.jobs, || {
        let sources = WheelSources::open(options)?;
        let outputs = Outputs::lock(options, sources.distribution())?;
        let debug_files = DebugFiles::new(&options.storage.debug, true);
        let (mut all, mut hosts) = (Vec::new(), Vec::new());
        let mut findings = Vec::new();
        // A host wheel is written before the next wheel is unpacked: together, they can be larger than the disk.
        for (index, wheel) in sources.wheels.iter().enumerate() {
            sources::check(wheel, &outputs.host(wheel), &mut findings)?;
            let contents = WheelContents::new(
                wheel,
                outputs.scratch(index)?,
                options,
                &sources.archives,
                &debug_files,
                progress,
                &mut findings,
            )?;
            hosts.push(outputs.write_host(&plan::host(&contents)?)?);
            contents.clean()?;
            findings.extend(rocm::notes(wheel)?);
            all.push(contents);
        }
        let plan = plan::devices(options, &all, &mut findings)?;
        let devices = outputs.write_devices(&plan)?;
        report::warn_of_sizes(&sources.wheels, &hosts, &devices, &mut findings);
        debug_files.publish()?;
        outputs.publish(&plan, &hosts)?;
        let inputs = sources.wheels.iter().map(|wheel| (wheel.path.clone(), wheel.size));
        Ok(WheelReport {
            inputs: inputs.collect(),
            wheels: devices.into_iter().map(|(_, wheel)| wheel).chain(hosts).collect(),
            findings,
        })
    })
}
