//! Finds out why kernels do not load on this machine: which HIP runtime a program gets, whether it reads
//! markers, which GPUs there are, and whether the binaries have code for them.
//!
//! Facts are gathered first and judged afterwards. Nothing is written.

mod dynamic_linker;
mod facts;
mod judge;

use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::kfd::NODES;
use rocm_kpack::lookup::Rules;
use rocm_kpack::{Environment, agents_at};
use serde::Serialize;

use crate::Error;
use crate::input::Lookup;
use crate::verify::Outcome;
use facts::Process;

/// What to examine.
#[derive(Debug, Clone)]
pub struct Options {
    /// The GPUs that there must be code for; if empty, those of this machine. One without features can be
    /// any variant.
    pub targets: Vec<TargetId>,
    /// Where the kernel lists the GPUs.
    pub nodes: PathBuf,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            targets: Vec::new(),
            nodes: NODES.into(),
        }
    }
}

/// The GPUs and the environment.
struct Machine {
    /// Each GPU once; `None` if nobody tells.
    gpus: Option<Vec<TargetId>>,
    /// Whether the caller named them.
    asked: bool,
    environment: Environment,
}

/// A finding, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Whether it is a fault.
    pub outcome: Outcome,
    /// The file, if it is about one.
    #[serde(serialize_with = "crate::lossy::optional")]
    pub path: Option<PathBuf>,
    /// What was found.
    pub text: String,
    /// What to do about it.
    pub advice: Option<String>,
}

impl Finding {
    fn new(outcome: Outcome, path: Option<&Path>, text: impl Into<String>) -> Self {
        Self {
            outcome,
            path: path.map(Path::to_owned),
            text: text.into(),
            advice: None,
        }
    }

    fn advise(self, advice: impl Into<String>) -> Self {
        Self {
            advice: Some(advice.into()),
            ..self
        }
    }
}

/// All findings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The findings, in the order of the causes.
    pub findings: Vec<Finding>,
}

impl Report {
    /// The number of faults.
    pub fn faults(&self) -> usize {
        let outcomes = self.findings.iter().map(|finding| finding.outcome);
        outcomes
            .filter(|outcome| *outcome == Outcome::Fault)
            .count()
    }
}

/// Examines programs and libraries, each with the libraries that it would be loaded with, and every
/// binary with device code in install prefixes.
///
/// # Errors
/// [`Error::Io`] if a file cannot be read, [`Error::Refused`] if one of `paths` is neither a directory nor
/// a linked file that kpack reads.
pub fn examine(paths: &[PathBuf], options: &Options) -> Result<Report, Error> {
    let asked = !options.targets.is_empty();
    let mut gpus = match asked {
        true => Some(options.targets.clone()),
        false => agents_at(&options.nodes, |name| std::env::var_os(name)),
    };
    if let Some(gpus) = &mut gpus {
        gpus.sort();
        gpus.dedup();
    }
    let machine = Machine {
        gpus,
        asked,
        environment: Environment::of_process(),
    };
    let lookup = Lookup::new(Rules::KPACK, machine.environment.clone());
    let mut processes = Vec::new();
    for path in paths {
        let gpus = machine.gpus.as_deref().unwrap_or_default();
        processes.extend(Process::at(path, gpus, &lookup)?);
    }
    Ok(Report {
        findings: judge::judge(&machine, &processes),
    })
}
