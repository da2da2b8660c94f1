//! Tests that `docs/dev/dependencies.md` says why each dependency is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;

use crate::repository;

/// By the name of each foreign crate, the crates of the workspace that are built with it.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let metadata = repository::metadata(&["--no-deps"]).unwrap();
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    for package in metadata["packages"].as_array().unwrap() {
        let all = package["dependencies"].as_array().unwrap().iter();
        for dependency in all.filter(|it| it.get("path").is_none()) {
            let users = found.entry(text(&dependency["name"])).or_default();
            // Those for tests and build scripts say so.
            if dependency["kind"].is_null() {
                users.insert(text(&package["name"]));
            }
        }
    }
    found
}

#[test]
fn each_dependency_has_a_row() {
    let page = fs::read_to_string(repository::root().join("docs/dev/dependencies.md")).unwrap();
    let rows = page
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|row| Vec::from_iter(row.split('|').map(str::trim)));
    let explained: BTreeMap<String, String> = rows
        .map(|cells| {
            assert!(!cells[3].is_empty(), "{cells:?} has no reason");
            (cells[1].trim_matches('`').to_owned(), cells[2].to_owned())
        })
        .collect();
    let expected: BTreeMap<String, String> = dependencies()
        .into_iter()
        .map(|(name, users)| {
            let users = Vec::from_iter(users).join(", ");
            let users = if users.is_empty() { "tests".to_owned() } else { users };
            (name, users)
        })
        .collect();
    assert_eq!(explained, expected);
}
