//! What was written, and what its sizes mean.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use kpack_core::finding::Id;
use kpack_core::{Finding, Reason, Severity, ids};

use crate::archive::Wheel;

/// The size up to which PyPI accepts files by default.
const PYPI_LIMIT: u64 = 100_000_000;

/// The results of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WheelReport {
    /// The fat wheels.
    pub inputs: Vec<(PathBuf, u64)>,
    /// The device wheels, then the host wheels.
    pub wheels: Vec<WrittenWheel>,
    /// Notes, and problems that did not stop the run.
    pub findings: Vec<Finding>,
}

/// A wheel that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WrittenWheel {
    /// The file.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// The targets of its device code; none for a host wheel.
    pub targets: Vec<String>,
    /// The extra of the host that is named after it. A wheel for a family comes with those of its processors.
    pub extra: Option<String>,
}

/// Warns where splitting saves little, project by project, and of files too large for PyPI.
pub(super) fn warn_of_sizes(
    fat: &[Wheel],
    hosts: &[WrittenWheel],
    devices: &[(&str, WrittenWheel)],
    findings: &mut Vec<Finding>,
) {
    let projects: BTreeSet<&str> = fat.iter().map(|w| w.name.distribution.as_str()).collect();
    for project in projects {
        let device_sizes =
            devices.iter().filter(|(of, _)| *of == project).map(|(_, device)| device.size);
        let most = device_sizes.clone().max().unwrap_or(0);
        let own = fat.iter().zip(hosts).filter(|(wheel, _)| wheel.name.distribution == project);
        for (wheel, host) in own.clone() {
            let download = host.size + most;
            if download.saturating_mul(10) > wheel.size.saturating_mul(9) {
                let percent = download.saturating_mul(100) / wheel.size.max(1);
                let text = format!(
                    "splitting saves less than 10%: host wheel and largest device wheel together have {percent}% of the fat wheel's size"
                );
                findings.push(warning(ids::SMALL_GAIN, &wheel.path, text));
            }
        }
        let before: u64 = own.clone().map(|(wheel, _)| wheel.size).sum();
        let after: u64 = own.clone().map(|(_, host)| host.size).chain(device_sizes).sum();
        if let (true, Some((wheel, _))) = (after > before, own.clone().next()) {
            let text = format!(
                "all wheels together are larger than before ({after} bytes, {before} before)"
            );
            findings.push(warning(ids::SMALL_GAIN, &wheel.path, text));
        }
    }
    for wheel in hosts.iter().chain(devices.iter().map(|(_, device)| device)) {
        if wheel.size > PYPI_LIMIT {
            let text = "larger than 100 MB, the most that PyPI accepts unless it grants more";
            findings.push(warning(ids::NOT_FOR_PYPI, &wheel.path, text));
        }
    }
}

/// A warning about the wheel at `path`.
pub(super) fn warning(id: Id, path: &Path, text: impl Into<Reason>) -> Finding {
    Finding::new(Severity::Warning, id, path, text)
}
