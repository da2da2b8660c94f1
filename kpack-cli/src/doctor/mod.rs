//! Finds out why kernels do not load on this machine: which HIP runtime a program gets, whether it reads
//! markers, which GPUs there are, and whether the binaries have code for them.
//!
//! Facts are gathered first and judged afterwards. Nothing is written.

mod dynamic_linker;
mod facts;
mod judge;
mod machine;

use std::path::PathBuf;

use serde::Serialize;

use facts::Process;
use kpack_core::{Error, Finding, Severity};
use machine::Machine;

pub(crate) use machine::no_gpu;
pub use machine::{Options, processors};

/// All findings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The findings, in the order of the causes.
    pub findings: Vec<Finding>,
}

impl Report {
    /// The number of faults.
    pub fn faults(&self) -> usize {
        let findings = self.findings.iter();
        findings.filter(|finding| finding.severity == Severity::Fault).count()
    }
}

/// Examines programs and libraries, each with the libraries that it would be loaded with, and every
/// binary with device code in install prefixes.
///
/// # Errors
/// [`Error::Io`] if a file cannot be read, [`Error::Refused`] if one of `paths` is neither a directory nor
/// a linked file that kpack reads.
pub fn examine(paths: &[PathBuf], options: &Options) -> Result<Report, Error> {
    let machine = Machine::new(options);
    let mut processes = Vec::new();
    for path in paths {
        processes.extend(Process::at(path, &machine)?);
    }
    Ok(Report { findings: judge::judge(&machine, &processes) })
}
