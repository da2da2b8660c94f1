//! Given wheels that are split with variants, then the list of variants and the warnings say which GPUs have one.

use std::fs;
use std::path::Path;

use crate::wheels::FAT;
use kpack_core::{Error, ids};
use kpack_tests::fixture::{Wheel, add_and_mul};
use kpack_tests::tree::Tree;
use kpack_wheel::{Options, WheelReport, split};

const INDEX: &str = "vec_device-1.0-variants.json";

/// Splits a wheel with code for the targets, with variants.
fn split_with(
    tree: &Tree,
    python: &str,
    targets: [&'static str; 2],
    groups: &[&str],
) -> Result<WheelReport, Error> {
    let fat = Wheel::new(&FAT.replace("cp311", python));
    let fat = fat.member("vec/_vec.so", add_and_mul(targets, targets).bytes());
    let fat = fat.write(&tree.path("dist")).unwrap();
    let mut options = Options::new([&fat], tree.path("out"));
    options.variant = true;
    options.groups = groups.iter().map(|group| group.parse().unwrap()).collect();
    split(&options, &())
}

/// The variants that the index lists, and their processors.
fn listed(index: &Path) -> Vec<(String, serde_json::Value)> {
    let index: serde_json::Value = serde_json::from_slice(&fs::read(index).unwrap()).unwrap();
    let variants = index["variants"].as_object().unwrap().iter();
    Vec::from_iter(variants.map(|(label, of)| (label.clone(), of["amd"]["gfx_arch"].clone())))
}

/// Given variant wheels of an earlier run, when those of another wheel are added, then the index lists all of them.
#[test]
fn an_index_keeps_the_variants_of_earlier_runs() {
    let tree = Tree::new();
    let index = tree.path("out").join(INDEX);
    split_with(&tree, "cp311", ["gfx942", "gfx1100"], &[]).unwrap();
    split_with(&tree, "cp312", ["gfx942", "gfx1201"], &[]).unwrap();
    let processors = |names: &[&str]| serde_json::json!(names);
    assert_eq!(
        listed(&index),
        [
            ("gfx1100".to_owned(), processors(&["gfx1100"])),
            ("gfx1201".to_owned(), processors(&["gfx1201"])),
            ("gfx942".to_owned(), processors(&["gfx942"])),
            ("null".to_owned(), serde_json::Value::Null),
        ]
    );
    // A label cannot stand for two groups, and what kpack did not write, it does not replace.
    let rejected = |expected: &str| {
        let before = fs::read(&index).unwrap();
        let groups = ["gpus=gfx1100,gfx1201"];
        let error = split_with(&tree, "cp313", ["gfx1100", "gfx1201"], &groups).unwrap_err();
        let said = error.in_one_line();
        assert!(
            matches!(error, Error::Refused { id, .. } if id == ids::OUTPUT_IN_THE_WAY)
                && said.contains(expected),
            "{said}"
        );
        assert_eq!(fs::read(&index).unwrap(), before);
    };
    split_with(&tree, "cp311", ["gfx942", "gfx1100"], &["gpus=gfx942,gfx1100"]).unwrap();
    rejected("the variant `gpus`");
    // A label becomes a part of the names of files.
    let mut other: serde_json::Value = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
    other["variants"]["../x"] = other["variants"]["gfx942"].clone();
    let other = format!("{other:#}\n");
    for text in ["{}", "something else", r#"{"variants":{"gpus":{}}}"#, &*other] {
        fs::write(&index, text).unwrap();
        rejected("not an index of wheel variants");
    }
}

/// Given a wheel with generic code alone, when it is split with variants, then a warning says that no GPU has one.
#[test]
fn a_wheel_without_variants_for_gpus_is_reported() {
    let tree = Tree::new();
    let warned = |report: &WheelReport| {
        let mut findings = report.findings.iter();
        findings.any(|finding| finding.id == ids::NO_VARIANT)
    };
    let targets = ["gfx11-generic", "gfx9-4-generic"];
    assert!(warned(&split_with(&tree, "cp311", targets, &[]).unwrap()));
    let targets = ["gfx11-generic", "gfx942"];
    let report = split_with(&Tree::new(), "cp311", targets, &[]).unwrap();
    assert!(!warned(&report));
}
