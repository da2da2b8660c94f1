//! Says of files in what `kpack show` and `kpack verify` print that trim removed code from them, and what brings it back.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use kpack_core::{Finding, ids};
use kpack_doctor::internal::{Restorer, Root, Subject};
use kpack_format::{Delivery, TargetId};

use crate::inspect::{Content, Inspection, inspect};

/// Adds to each finding of missing code for a target that it went, if it did. It remains a fault.
pub(crate) fn explain_all(findings: &mut [Finding]) {
    let missing = [ids::MISSING_TARGET, ids::MISSING_ARCHIVE];
    let root = Root::default();
    let mut restorer = Restorer::new(&root);
    // Many findings may be about one file.
    let mut of_files = BTreeMap::new();
    for finding in findings.iter_mut().filter(|finding| missing.contains(&finding.id)) {
        // The text may name other targets as well.
        let target = finding.details.target.as_deref();
        let gpu: Option<TargetId> = target.and_then(|target| target.parse().ok());
        let Some((path, gpu)) = finding.path.as_deref().zip(gpu) else { continue };
        let subject = if path.is_dir() {
            Subject::Directory(path)
        } else {
            // What cannot be read has a finding of its own.
            let read = || inspect(path).map(|found| archives(&found)).unwrap_or_default();
            Subject::File(path, of_files.entry(path.to_owned()).or_insert_with(read))
        };
        let is_wanted = |target: &TargetId, delivery| target.may_be_taken_for(&gpu, delivery);
        if let Some(why) = restorer.explain(subject, &is_wanted) {
            finding.text.push_str(&format!("; {why}"));
        }
    }
}

/// What trim removed from the file: a sentence.
pub(crate) fn describe(inspection: &Inspection) -> Option<String> {
    let has: BTreeSet<String> = match &inspection.content {
        Content::FatBinary(fat) | Content::JoinedBinary(fat) => {
            fat.targets.iter().map(|total| total.target.clone()).collect()
        }
        Content::SplitBinary(split) => {
            let there = split.kpacks.files.iter().filter(|kpack| kpack.size.is_some());
            there.map(|kpack| kpack.target.clone()).collect()
        }
        _ => BTreeSet::new(),
    };
    let archives = archives(inspection);
    let lacks = |target: &TargetId, _: Delivery| !has.contains(&target.to_string());
    Restorer::new(&Root::default()).explain(Subject::File(&inspection.path, &archives), &lacks)
}

/// The archives that a binary or a manifest refers to.
fn archives(inspection: &Inspection) -> Vec<PathBuf> {
    match &inspection.content {
        Content::SplitBinary(split) => {
            split.kpacks.files.iter().map(|kpack| kpack.path.clone()).collect()
        }
        Content::Manifest(manifest) => {
            let files = manifest.kpacks.iter();
            files.map(|file| inspection.path.with_file_name(&file.filename)).collect()
        }
        _ => Vec::new(),
    }
}
