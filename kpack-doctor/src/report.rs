//! What the findings add up to.

use kpack_core::words::list;
use kpack_core::{Severity, ids};
use kpack_format::TargetId;
use serde::Serialize;

use crate::facts::machine::Machine;
use crate::remedy::{Diagnosis, Remedy};

/// What was found out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Whether GPU code will load; `None` if that is unknown.
    pub loads: Option<bool>,
    /// The GPUs that it is about.
    pub gpus: Vec<String>,
    /// Whether GPU code will load, and for which GPU, in words.
    pub verdict: String,
    /// The command that mends the first thing that is wrong, if there is one.
    pub remedy: Option<Remedy>,
    /// The findings, in the order of the causes.
    pub findings: Vec<Diagnosis>,
}

impl Report {
    pub(crate) fn new(machine: &Machine, findings: Vec<Diagnosis>) -> Self {
        let faults = findings.iter().filter(|found| found.finding.severity == Severity::Fault);
        let (some, all): (Vec<_>, Vec<_>) = faults.partition(|found| !found.gpus.is_empty());
        let lacking: Vec<&TargetId> = findings
            .iter()
            .filter(|found| found.is_wrong())
            .flat_map(|found| &found.gpus)
            .collect();
        let served: Vec<&TargetId> =
            machine.gpus().iter().filter(|gpu| !lacking.contains(gpu)).collect();
        let has_code = findings
            .iter()
            .any(|found| [ids::CODE_FOUND, ids::GENERIC_CODE].contains(&found.finding.id));
        let is_for = if machine.gpus().is_empty() {
            "on this machine".to_owned()
        } else {
            format!("for {}", list(machine.gpus()))
        };
        let without: Vec<&TargetId> =
            machine.gpus().iter().filter(|gpu| lacking.contains(gpu)).collect();
        // What a binary lacks is a consequence, if its device wheel is what is missing.
        let is_consequence = |found: &&&Diagnosis| {
            [ids::MISSING_ARCHIVE, ids::MISSING_TARGET].contains(&found.finding.id)
        };
        let all = all.iter().filter(|found| some.is_empty() || !is_consequence(found)).count();
        let (loads, verdict) = if all > 0 || !some.is_empty() && served.is_empty() {
            (Some(false), format!("GPU code will not load {is_for}"))
        } else if findings.iter().any(|found| found.leaves_open) {
            (None, format!("kpack cannot tell whether GPU code will load {is_for}"))
        } else if !without.is_empty() && !served.is_empty() {
            let text =
                format!("GPU code will load for {}, but not for {}", list(&served), list(&without));
            (Some(some.is_empty()), text)
        } else if machine.gpus().is_empty() || !has_code {
            (None, format!("kpack cannot tell whether GPU code will load {is_for}"))
        } else {
            (Some(true), format!("GPU code will load {is_for}"))
        };
        let gpus = machine.gpus().iter().map(TargetId::to_string).collect();
        let mut report = Self { loads, gpus, verdict, remedy: None, findings };
        report.remedy = report.cause().and_then(|cause| cause.remedy.clone());
        report
    }

    /// The number of faults.
    pub fn faults(&self) -> usize {
        let findings = self.findings.iter();
        findings.filter(|found| found.finding.severity == Severity::Fault).count()
    }

    /// What is wrong first of all: a fault, or if there is none, what is wrong for some GPUs, or what keeps kpack from
    /// telling.
    pub fn cause(&self) -> Option<&Diagnosis> {
        let of = |severity| {
            let mut findings = self.findings.iter();
            findings.find(move |found| found.finding.severity == severity)
        };
        let open = || self.findings.iter().find(|found| found.leaves_open);
        let mut notes =
            self.findings.iter().filter(|found| found.finding.severity == Severity::Note);
        let why = || notes.find(|found| self.loads.is_none() && found.finding.help.is_some());
        of(Severity::Fault).or_else(open).or_else(|| of(Severity::Warning)).or_else(why)
    }
}
