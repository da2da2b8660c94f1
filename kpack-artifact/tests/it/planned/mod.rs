//! Plans of recombinations, and their findings.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::fs;
use std::num::NonZeroUsize;

use kpack_artifact::packaging::Configuration;
use kpack_artifact::recombine::{Finding, Options, Recombination, Severity, plan};
use kpack_tests::tree::Tree;

use crate::shards::three_shards;

/// Two groups.
pub(crate) const CONFIGURATION: &str = r#"{
  "primary_shard": "linux-a",
  "architecture_groups": {
    "gfx110X": {"display_name": "Radeon RX 7000", "architectures": ["gfx1100", "gfx1101"]},
    "instinct": {"architectures": ["gfx90a:xnack+", "gfx942"]}
  }
}"#;

/// The configuration with another value for a validation.
pub(crate) fn with_validation(key: &str, value: bool) -> String {
    let validation = format!("  }},\n  \"validation\": {{\"{key}\": {value}}}\n}}");
    CONFIGURATION.strip_suffix("  }\n}").unwrap().to_owned() + &validation
}

/// For a tree with `shards` in it, into `out`.
pub(crate) fn options(tree: &Tree, configuration: &str) -> Options {
    fs::write(tree.path("packaging.json"), configuration).unwrap();
    let configuration = Configuration::read(&tree.path("packaging.json")).unwrap();
    let mut options = Options::new(tree.path("shards"), configuration, tree.path("out"));
    options.jobs = NonZeroUsize::new(2).unwrap();
    options
}

/// The plan for them.
pub(crate) fn planned(tree: &Tree, configuration: &str) -> Recombination {
    plan(&options(tree, configuration), &()).unwrap()
}

/// Recombines them.
pub(crate) fn recombine(tree: &Tree, configuration: &str) -> Recombination {
    let options = options(tree, configuration);
    let plan = plan(&options, &()).unwrap();
    plan.apply(&options, &()).unwrap();
    plan
}

/// Three shards, recombined.
pub(crate) fn recombined() -> Tree {
    let tree = three_shards();
    recombine(&tree, CONFIGURATION);
    tree
}

/// Findings, with the path from the tree's root.
pub(crate) fn said(plan: &Recombination) -> Vec<String> {
    let line = |finding: &Finding| {
        let path = finding.file().to_string_lossy();
        let path = path.split_once("/shards").map_or(&*path, |(_, path)| path);
        format!("{:?} {path}: {}", finding.severity, finding.text)
    };
    plan.findings.iter().map(line).collect()
}

/// Some finding of `severity` has all `parts`: of its path, text and ID.
pub(crate) fn assert_said(plan: &Recombination, severity: Severity, parts: &[&str]) {
    let with_id = |(line, finding): (String, &Finding)| format!("{line} [{}]", finding.id);
    let said: Vec<String> = said(plan).into_iter().zip(&plan.findings).map(with_id).collect();
    let start = format!("{severity:?} ");
    let found = said
        .iter()
        .any(|line| line.starts_with(&start) && parts.iter().all(|part| line.contains(part)));
    assert!(found, "{severity:?} {parts:?} is not in {said:#?}");
}
