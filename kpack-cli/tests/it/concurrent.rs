//! Given processes that load device code, when others install or upgrade it meanwhile, then each finds the
//! code that both versions have, and never that of another version.

use std::fs;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::command::command;
use crate::markers::markers;
use crate::verified::assert_holds;
use kpack::internal::{Cache, Environment, Request};
use kpack_format::marker::Marker;
use kpack_split::install::{InstallOptions, install};
use kpack_tests::fixture::{FatLibrary, Storage, code};
use kpack_tests::process;
use kpack_tests::tree::Tree;

const FILE: &str = "lib/libvec.so";
/// Both versions have the same code for this target, and different code for the other.
const SAME: &str = "gfx1100";
const CHANGED: &str = "gfx942";
const VERSIONS: [&str; 2] = ["first", "second"];

/// The kernels of a version, in the order of their wrappers.
fn kernels(version: &str, target: &str) -> [Vec<u8>; 2] {
    let version = if target == SAME { "any" } else { version };
    ["add", "mul"].map(|kernel| code(target, &format!("{version} {kernel}")).1)
}

fn build(tree: &Tree, path: &str, version: &str) {
    let wrapper = |index: usize| {
        [SAME, CHANGED].map(|target| (target, kernels(version, target)[index].clone()))
    };
    FatLibrary::new()
        .wrapper(Storage::Plain, wrapper(0))
        .wrapper(Storage::Plain, wrapper(1))
        .build(&tree.path(path))
        .unwrap();
}

fn split(tree: &Tree) {
    install(&InstallOptions::new(tree.root(), "vec", [FILE]), &()).unwrap();
}

/// A prefix with the split library of a version.
fn installed(version: &str) -> Tree {
    let tree = Tree::new();
    build(&tree, FILE, version);
    split(&tree);
    tree
}

/// A process that has loaded the library, and what it opened.
struct Process {
    marker: Marker,
    cache: Cache,
}

impl Process {
    /// `None` if the library is not split: then its code is in it.
    fn start(tree: &Tree) -> Option<Self> {
        let marker = markers(&tree.path(FILE)).into_iter().next()?;
        let cache = Cache::new(Environment::default());
        Some(Self { marker, cache })
    }

    fn load(&self, tree: &Tree, target: &str) -> [Result<Vec<u8>, kpack::internal::Error>; 2] {
        [0, 1].map(|co_index| {
            self.cache.load_code_object(&Request {
                marker: &self.marker,
                binary: &tree.path(FILE),
                co_index,
                isas: &[target.parse().unwrap()],
            })
        })
    }

    /// Loads all its code.
    fn check(&self, tree: &Tree, versions: &Versions) {
        let same = self.load(tree, SAME).map(Result::unwrap);
        assert!(same == kernels("any", SAME));
        let version = versions.of(&self.marker);
        let changed = self.load(tree, CHANGED).into_iter();
        for (loaded, kernel) in changed.zip(kernels(version, CHANGED)) {
            assert!(loaded.is_err() || loaded.unwrap() == kernel, "code of another version");
        }
    }
}

/// The marker of each version.
struct Versions([Marker; 2]);

impl Versions {
    fn new() -> Self {
        Self(VERSIONS.map(|version| markers(&installed(version).path(FILE)).remove(0)))
    }

    fn of(&self, marker: &Marker) -> &'static str {
        let known = self.0.iter().position(|known| known == marker);
        VERSIONS[known.expect("it is the marker of a version")]
    }
}

#[test]
fn twenty_installs_at_once_into_one_module() {
    let tree = Tree::new();
    let names = Vec::from_iter((0..20).map(|number| format!("lib/lib{number}.so")));
    for (number, name) in names.iter().enumerate() {
        let kernel = format!("kernel {number}");
        FatLibrary::new()
            .wrapper(Storage::Plain, [SAME, CHANGED].map(|target| code(target, &kernel)))
            .build(&tree.path(name))
            .unwrap();
    }
    let one_by_one = Tree::new();
    process::copy(tree.path("lib"), one_by_one.path("lib"));
    let start = |tree, name: &String| {
        let arguments = ["split", "--quiet", "--prefix", ".", "--module", "vec", name];
        command(tree, &arguments).spawn().unwrap()
    };
    let succeeds = |mut run: Child| assert!(run.wait().unwrap().success());
    for name in &names {
        succeeds(start(&one_by_one, name));
    }
    let runs = Vec::from_iter(names.iter().map(|name| start(&tree, name)));
    runs.into_iter().for_each(succeeds);
    assert_holds(tree.root());
    assert!(tree.snapshot() == one_by_one.snapshot());
}

#[test]
fn code_that_both_versions_have_is_found_while_one_is_installed_over_the_other() {
    let versions = Versions::new();
    let tree = installed("first");
    for version in VERSIONS {
        build(&tree, &format!("fat/{version}.so"), version);
    }
    let started_before = Process::start(&tree).unwrap();
    started_before.check(&tree, &versions);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            // At least once, and as long as files are replaced.
            loop {
                let last = done.load(Ordering::SeqCst);
                started_before.check(&tree, &versions);
                if let Some(now) = Process::start(&tree) {
                    now.check(&tree, &versions);
                }
                if last {
                    break;
                }
            }
        });
        for version in VERSIONS.into_iter().rev().cycle().take(10) {
            process::copy(tree.path(&format!("fat/{version}.so")), tree.path("new.so"));
            fs::rename(tree.path("new.so"), tree.path(FILE)).unwrap();
            split(&tree);
        }
        done.store(true, Ordering::SeqCst);
        reader.join().unwrap();
    });
}

#[test]
fn packages_may_be_upgraded_in_any_order() {
    let kpacks = [SAME, CHANGED].map(|target| format!("lib/.kpack/vec_lib_{target}.kpack"));
    let [host, manifest] = [FILE, "lib/.kpack/vec_lib.kpm"].map(str::to_owned);
    let device_first = [&kpacks[0], &kpacks[1], &manifest, &host];
    let host_first = [&host, &manifest, &kpacks[1], &kpacks[0]];
    let versions = Versions::new();
    for order in [device_first, host_first] {
        let (tree, newer) = (installed("first"), installed("second"));
        let started_before = Process::start(&tree).unwrap();
        let started_and_loaded = Process::start(&tree).unwrap();
        started_and_loaded.check(&tree, &versions);
        for file in order {
            fs::rename(newer.path(file), tree.path(file)).unwrap();
            for process in [&started_before, &started_and_loaded, &Process::start(&tree).unwrap()] {
                process.check(&tree, &versions);
            }
        }
        let upgraded = Process::start(&tree).unwrap().load(&tree, CHANGED);
        assert!(upgraded.map(Result::unwrap) == kernels("second", CHANGED));
    }
}
