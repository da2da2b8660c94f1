//! Given the crates as they are published, when another one uses them, then no mix of versions that Cargo accepts
//! fails to build, what may get new fields and variants can, and no feature changes what is written.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cargo_metadata::{DependencyKind, MetadataCommand};
use kpack_build::object_file;
use kpack_tests::fixture::{FatLibrary, Kind, Storage, code};
use kpack_tests::outside::Outside;
use kpack_tests::page::repository;
use kpack_tests::process::{cargo, run};
use kpack_tests::tree::Tree;

/// Each crate uses what others share with it, which may change in every version. With `^0.1.0`, Cargo would take
/// 0.1.1 of one beside 0.1.0 of the other.
#[test]
fn our_crates_use_each_other_in_one_version() {
    let root = repository();
    let mut metadata = MetadataCommand::new();
    let metadata = metadata.manifest_path(root.join("Cargo.toml")).no_deps();
    let packages = metadata.exec().unwrap().packages;
    let versions = packages.iter().map(|package| (package.name.as_str(), &package.version));
    let versions: BTreeMap<&str, _> = versions.collect();
    let mut checked = 0;
    for package in &packages {
        let is_published = package.publish.as_ref().is_none_or(|places| !places.is_empty());
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
    for directory in fs::read_dir(repository()).unwrap() {
        let Ok(api) = fs::read_to_string(directory.unwrap().path().join("public-api.txt")) else {
            continue;
        };
        for (kind, name, may_grow) in listed(&api) {
            let has_fields = kind == "enum"
                || api.lines().any(|line| {
                    let field = line.strip_prefix("pub ").and_then(|item| item.strip_prefix(name));
                    field.is_some_and(|rest| rest.starts_with("::") && rest.contains(": "))
                });
            if ["Options", "Report", "Error"].iter().any(|end| name.ends_with(end)) && has_fields {
                assert!(may_grow, "{name} has no #[non_exhaustive]");
                checked += 1;
            }
        }
    }
    assert!(checked > 15, "{checked}");
}

/// The crates of others in a `Cargo.lock`, with their versions.
fn versions(list: &Path) -> BTreeSet<(String, String)> {
    let list: toml::Table = fs::read_to_string(list).unwrap().parse().unwrap();
    let packages = list["package"].as_array().unwrap().iter();
    let of_others = packages.filter(|package| package.get("source").is_some());
    let text = |value: &toml::Value| value.as_str().unwrap().to_owned();
    of_others.map(|package| (text(&package["name"]), text(&package["version"]))).collect()
}

/// With other versions of the same crates, more is downloaded and compiled. The example has no crate of its own, because packages
/// outside the workspace take its list, and are built without a network.
#[test]
fn the_examples_and_fuzz_targets_use_the_versions_of_the_workspace() {
    let ours = versions(&repository().join("Cargo.lock"));
    for (other, has_own) in
        [("examples/rust-hip", false), ("examples/rust-modules", true), ("fuzz", true)]
    {
        let list = repository().join(other).join("Cargo.lock");
        let mut checked = 0;
        for (name, version) in versions(&list) {
            let expected = Vec::from_iter(ours.iter().filter(|(ours, _)| *ours == name));
            let is_own = has_own && expected.is_empty();
            assert!(
                is_own || expected.iter().any(|(_, v)| *v == version),
                "{}: the workspace has {expected:?}, and not {name} {version}; run `cargo update {name} --precise VERSION` there",
                list.display()
            );
            checked += 1;
        }
        assert!(checked > 15, "{checked}");
    }
}

/// A program that uses kpack-build and none of our other crates. Its arguments are the object and where the output
/// goes.
const PROGRAM: &str = "fn main() {
    let [object, output] = [1, 2].map(|index| std::env::args().nth(index).unwrap());
    let options = kpack_build::object_file::Options::new(\"vec\", output, [object]);
    kpack_build::object_file::split(&options, &()).unwrap();
}
";

/// Builds the program, with only what kpack-build asks for itself.
fn build_alone() -> PathBuf {
    let root = repository();
    let root = root.canonicalize().unwrap();
    let package = Path::new(env!("CARGO_TARGET_TMPDIR")).join("alone");
    fs::create_dir_all(package.join("src")).unwrap();
    let path = root.join("kpack-build");
    // As a build dependency too, although there is no build script: cargo then compiles `cc`, and what it is used for, with
    // the same features as for the examples.
    let manifest = format!(
        "[package]\nname = \"alone\"\nedition = \"2024\"\n\n[dependencies]\nkpack-build = {{ path = {path:?} }}\n\n[build-dependencies]\nkpack-build = {{ path = {path:?} }}\n\n[workspace]\n"
    );
    for (file, text) in [("Cargo.toml", &*manifest), ("src/main.rs", PROGRAM)] {
        fs::write(package.join(file), text).unwrap();
    }
    Outside::pin(&package).unwrap();
    let outside = Outside::lock();
    run(outside.cargo(&["build", "--quiet"]).current_dir(&package));
    outside.target().join("debug/alone")
}

/// What another crate of a program asks for must not change the bytes. This program asks for everything: compression,
/// serde and clap. Crates other than those that kpack-build uses ask for compression themselves.
#[test]
fn kpack_build_alone_writes_what_it_writes_beside_all_others() {
    let program = build_alone();
    let [alone, beside] = [Tree::new(), Tree::new()];
    for tree in [&alone, &beside] {
        // Alone, it refuses compressed bundles.
        let codes = ["gfx942", "gfx1100"].map(|target| code(target, "add"));
        let library = FatLibrary::new().wrapper(Storage::Plain, codes);
        library.kind(Kind::Object).build(&tree.path("vec.o")).unwrap();
    }
    run(Command::new(program).args(["vec.o", "out"]).current_dir(alone.root()));
    let options = object_file::Options::new("vec", beside.path("out"), [beside.path("vec.o")]);
    object_file::split(&options, &()).unwrap();
    let files = alone.files();
    assert!(files.iter().any(|file| file.ends_with("_gfx942.kpack")), "{files:?}");
    assert_eq!(files, beside.files());
    assert!(alone.snapshot() == beside.snapshot());
}

/// The crates of others that a user of one of ours compiles.
fn of_others(package: &str) -> BTreeSet<String> {
    let mut cargo = cargo(&["tree", "--locked", "--offline", "--package", package]);
    cargo.args(["--edges", "normal,build", "--prefix", "none"]);
    let root = repository();
    let tree = run(cargo.current_dir(root));
    let names = tree.lines().filter_map(|line| line.split_whitespace().next());
    let others = names.filter(|name| *name != "kpack" && !name.starts_with("kpack-"));
    others.map(str::to_owned).collect()
}

/// Every build script with HIP kernels compiles them.
#[test]
fn kpack_build_uses_few_crates_of_others() {
    let hashing = ["arrayvec", "blake3", "cfg-if", "constant_time_eq", "cpufeatures"];
    let formats = ["autocfg", "num-traits", "rmp", "rmp-serde", "serde", "serde_core"];
    // The C compilers of other crates bring these too.
    let compiling = ["cc", "find-msvc-tools", "shlex"];
    let expected = ["bitflags", "linux-raw-sys", "memchr", "object", "rustix"];
    let expected: BTreeSet<&str> =
        expected.into_iter().chain(hashing).chain(formats).chain(compiling).collect();
    assert_eq!(of_others("kpack-build"), expected.into_iter().map(str::to_owned).collect());
}

#[test]
fn libraries_bring_no_more_than_they_need() {
    let command = ["clap", "indicatif", "comfy-table", "signal-hook"];
    let trees = ["libsqlite3-sys", "tar", "serde_derive", "zip"];
    for (package, unwanted) in [
        ("kpack", &[&command[..], &trees].concat()[..]),
        ("kpack-split", &[&command[..], &trees].concat()),
        ("kpack-artifact", &[&command[..], &["zip"]].concat()),
        ("kpack-store", &[&command[..], &["zip"]].concat()),
        ("kpack-wheel", &command),
    ] {
        let others = of_others(package);
        assert!(others.contains("memchr"), "{package}: {others:?}");
        let found = unwanted.iter().find(|name| others.contains(**name));
        assert_eq!(found, None, "{package}");
    }
}
