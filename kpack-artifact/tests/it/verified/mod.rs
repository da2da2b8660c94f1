//! What `kpack verify` finds.

#![allow(dead_code, reason = "each test file uses what it needs")]

use std::path::Path;

use kpack_artifact::verify::{Options, VerifyReport, verify};
use kpack_core::{Finding, Severity};
use kpack_tests::tree::Tree;

/// Verifies a path of a tree.
pub(crate) fn check(tree: &Tree, path: &str) -> VerifyReport {
    check_with(tree, path, None, &[])
}

/// Verifies a path of a tree, compared with another, and for these targets.
pub(crate) fn check_with(
    tree: &Tree,
    path: &str,
    against: Option<&str>,
    targets: &[&str],
) -> VerifyReport {
    let mut options = Options::default();
    options.against = against.map(|path| tree.path(path));
    options.targets = targets.iter().map(|id| id.parse().unwrap()).collect();
    report(&tree.path(path), &options)
}

fn report(path: &Path, options: &Options) -> VerifyReport {
    verify(&[path.to_owned()], options, &()).unwrap()
}

/// The findings of one severity, each as `path: text`.
pub(crate) fn checks(report: &VerifyReport, severity: Severity) -> Vec<String> {
    let checks = report.findings.iter();
    let checks = checks.filter(|check| check.severity == severity);
    let line = |check: &Finding| format!("{}: {}", check.file().display(), check.text);
    checks.map(line).collect()
}

/// The faults in a report.
pub(crate) fn faults(report: &VerifyReport) -> Vec<String> {
    checks(report, Severity::Fault)
}

/// Some fault has all of `parts`: of its path, text and ID.
pub(crate) fn assert_found(report: &VerifyReport, parts: &[&str]) {
    let faults = report.findings.iter();
    let faults = faults.filter(|found| found.severity == Severity::Fault);
    let line = |f: &Finding| format!("{}: {} [{}]", f.file().display(), f.text, f.id);
    let faults: Vec<String> = faults.map(line).collect();
    let found = faults.iter().any(|fault| parts.iter().all(|part| fault.contains(part)));
    assert!(found, "{parts:?} is not in {faults:#?}");
    assert!(!report.holds());
}

/// The texts of the faults in a file or tree.
pub(crate) fn faults_at(path: &Path) -> Vec<String> {
    texts(report(path, &Options::default()))
}

/// The texts of the faults in a binary, compared with the original.
pub(crate) fn faults_against(binary: &Path, original: &Path) -> Vec<String> {
    let mut options = Options::default();
    options.against = Some(original.to_owned());
    texts(report(binary, &options))
}

fn texts(report: VerifyReport) -> Vec<String> {
    let findings = report.findings.into_iter();
    let faults = findings.filter(|finding| finding.severity == Severity::Fault);
    faults.map(|finding| finding.text).collect()
}

/// A file or tree has no fault.
pub(crate) fn assert_holds(path: &Path) {
    let report = report(path, &Options::default());
    assert!(report.holds(), "{report:#?}");
}

/// A binary has no fault, and the device code of the original.
pub(crate) fn assert_holds_against(binary: &Path, original: &Path) {
    let mut options = Options::default();
    options.against = Some(original.to_owned());
    let report = report(binary, &options);
    assert!(report.holds(), "{report:#?}");
}
