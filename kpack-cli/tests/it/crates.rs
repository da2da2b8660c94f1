//! Given the crates as they are published, when another one uses them, then no mix of versions that Cargo accepts fails to
//! build, and what may get new fields and variants can.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use cargo_metadata::{DependencyKind, MetadataCommand};

/// Each crate uses what others share with it, which may change in every version. With `^0.1.0`, Cargo would take 0.1.1 of one
/// beside 0.1.0 of the other.
#[test]
fn our_crates_use_each_other_in_one_version() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut metadata = MetadataCommand::new();
    let metadata = metadata.manifest_path(root.join("Cargo.toml")).no_deps();
    let packages = metadata.exec().unwrap().packages;
    let versions = packages
        .iter()
        .map(|package| (package.name.as_str(), &package.version));
    let versions: BTreeMap<&str, _> = versions.collect();
    let mut checked = 0;
    for package in &packages {
        let is_published = package
            .publish
            .as_ref()
            .is_none_or(|places| !places.is_empty());
        for dependency in &package.dependencies {
            let is_used = is_published && dependency.kind != DependencyKind::Development;
            if let (true, Some(version)) = (is_used, versions.get(&*dependency.name)) {
                let expected = format!("={version}");
                let (user, used) = (&package.name, &dependency.name);
                assert_eq!(dependency.req.to_string(), expected, "{user} uses {used}");
                checked += 1;
            }
        }
    }
    assert!(checked > 15, "{checked}");
}

/// The items that an interface lists, each with whether it is `#[non_exhaustive]`.
fn listed(api: &str) -> impl Iterator<Item = (&str, &str, bool)> {
    api.lines().filter_map(|line| {
        let (rest, may_grow) = match line.strip_prefix("#[non_exhaustive] ") {
            Some(rest) => (rest, true),
            None => (line, false),
        };
        let (kind, name) = rest.strip_prefix("pub ")?.split_once(' ')?;
        matches!(kind, "struct" | "enum").then_some((kind, name, may_grow))
    })
}

#[test]
fn options_reports_and_errors_may_grow() {
    let mut checked = 0;
    for directory in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap() {
        let Ok(api) = fs::read_to_string(directory.unwrap().path().join("public-api.txt")) else {
            continue;
        };
        for (kind, name, may_grow) in listed(&api) {
            let has_fields = kind == "enum"
                || api.lines().any(|line| {
                    let field = line
                        .strip_prefix("pub ")
                        .and_then(|item| item.strip_prefix(name));
                    field.is_some_and(|rest| rest.starts_with("::") && rest.contains(": "))
                });
            if ["Options", "Report", "Error"]
                .iter()
                .any(|end| name.ends_with(end))
                && has_fields
            {
                assert!(may_grow, "{name} has no #[non_exhaustive]");
                checked += 1;
            }
        }
    }
    assert!(checked > 15, "{checked}");
}
