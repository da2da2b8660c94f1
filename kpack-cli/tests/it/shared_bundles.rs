//! Given a binary with many wrappers on one bundle, as relocatable device code makes them, when it is
//! split, joined, verified and measured, then that bundle is stored, read and counted once.

use std::fs;
use std::path::{Path, PathBuf};

use crate::fat::{bundles, elements, fat, shown};
use kpack_artifact::sizes::{Depth, measure};
use kpack_artifact::verify;
use kpack_format::marker::Marker;
use kpack_split::input::LinkedBinary;
use kpack_split::install::{InstallOptions, install};
use kpack_split::join::{JoinOptions, join};
use kpack_tests::bytes;
use kpack_tests::fixture::{FatLibrary, Kind, Storage, TargetCode, code_with};
use kpack_tests::tree::Tree;

const FILE: &str = "lib/libccl.so";
const TARGETS: [&str; 2] = ["gfx1100", "gfx942"];
const COUNT: usize = 38;
/// Size of each code object in bytes, roughly.
const SIZE: usize = 100 << 10;

fn code(seed: u64) -> [TargetCode; 2] {
    let mut random = fastrand::Rng::with_seed(seed);
    TARGETS.map(|target| {
        let payload = Vec::from_iter(std::iter::repeat_with(|| random.u8(..)).take(SIZE));
        code_with(target, &payload)
    })
}

/// A wrapper with its own bundle, those that share one, and one whose bundle is separate and equal.
fn library(storage: Storage) -> FatLibrary {
    let mut library = FatLibrary::new().wrapper(storage, code(1)).wrapper(storage, code(2));
    for _ in 1..COUNT {
        library = library.wrapper_sharing(1);
    }
    library.wrapper(storage, code(2))
}

/// A prefix with the split library, and the unsplit one as `fat`.
fn split(library: &FatLibrary) -> Tree {
    let tree = library.in_prefix(FILE);
    split_again(&tree);
    tree
}

fn split_again(tree: &Tree) {
    install(&InstallOptions::new(tree.path("prefix"), "ccl", [FILE]), &()).unwrap();
}

fn binary(tree: &Tree) -> PathBuf {
    tree.path("prefix").join(FILE)
}

fn joined(tree: &Tree) {
    let targets = TARGETS[..1].iter().map(|target| target.parse().unwrap());
    let mut options = JoinOptions::new(tree.path("prefix"), targets, [FILE]);
    options.against = Some(tree.path("fat"));
    join(&options, &()).unwrap();
}

fn marker(path: &Path) -> Marker {
    let [group] = &LinkedBinary::open(path).unwrap().markers().unwrap()[..] else {
        panic!("one marker");
    };
    group.marker.clone()
}

/// How many bytes this thread reads from files meanwhile.
fn bytes_read(work: impl FnOnce()) -> u64 {
    let read = || {
        let io = fs::read_to_string("/proc/thread-self/io").unwrap();
        let line = io.lines().find_map(|line| line.strip_prefix("rchar: "));
        line.unwrap().parse::<u64>().unwrap()
    };
    let before = read();
    work();
    read() - before
}

fn assert_equals_the_original(path: &Path, original: PathBuf) {
    let mut options = verify::Options::default();
    options.against = Some(original);
    let report = verify::verify(&[path.to_owned()], &options, &()).unwrap();
    assert_eq!(report.count(kpack_core::Severity::Fault), 0, "{report:?}");
}

#[test]
fn wrappers_that_shared_a_bundle_share_one_when_joined() {
    for (kind, storage) in [
        (Kind::Shared, Storage::Plain),
        (Kind::Pie, Storage::Zstd(2)),
        (Kind::NoPie, Storage::Zstd(3)),
    ] {
        let tree = split(&library(storage).kind(kind));
        let split = tree.snapshot();
        joined(&tree);
        let bundles = bundles(&binary(&tree));
        let [own, shared, .., separate] = bundles[..] else {
            panic!("{bundles:?}");
        };
        assert_eq!(bundles[1..=COUNT], [shared; COUNT]);
        assert!(own != shared && shared != separate && own != separate);
        assert!(binary(&tree).metadata().unwrap().len() < 6 * SIZE as u64);
        assert_equals_the_original(&binary(&tree), tree.path("fat"));
        split_again(&tree);
        assert_eq!(tree.snapshot(), split, "{kind:?}");
    }
}

#[test]
fn without_the_record_bundles_are_separate_and_splitting_again_adds_none() {
    let tree = split(&library(Storage::Plain));
    let bytes = fs::read(binary(&tree)).unwrap();
    let known = marker(&binary(&tree));
    let expected = 1..COUNT as u32 + 1;
    assert_eq!(known.shared_bundles, [[expected]]);
    let mut new = known.clone();
    new.shared_bundles.clear();
    let key = b"kpack_search_paths";
    let at = bytes::position(&bytes, key) - 2;
    let (_, size) = Marker::read(&bytes[at..]).unwrap();
    let without = new.to_bytes_within(size).unwrap();
    let edited = [&bytes[..at], &without, &bytes[at + size..]].concat();
    fs::write(binary(&tree), edited).unwrap();
    let split = tree.snapshot();
    joined(&tree);
    let mut found = bundles(&binary(&tree));
    found.dedup();
    assert_eq!(found.len(), COUNT + 2);
    split_again(&tree);
    assert_eq!(tree.snapshot(), split);
}

#[test]
fn a_shared_bundle_is_compared_once() {
    for storage in [Storage::Plain, Storage::Zstd(3)] {
        let tree = split(&library(storage));
        let size = tree.path("fat").metadata().unwrap().len();
        let compare = || assert_equals_the_original(&binary(&tree), tree.path("fat"));
        let read = bytes_read(compare);
        assert!(read < 6 * size, "{read} bytes of {size}");
        joined(&tree);
        let read = bytes_read(compare);
        assert!(read < 6 * size, "{read} bytes of {size}");
    }
}

#[test]
fn a_shared_bundle_counts_once() {
    let tree = split(&library(Storage::Plain));
    // The bundle of its own, and the shared one with its equal.
    let expected = (2 * SIZE as u64)..(2 * SIZE as u64 + 4096);
    let archive = tree.path("prefix/lib/.kpack/ccl_lib_gfx942.kpack");
    let found = shown(&archive, "archive");
    assert_eq!(elements(&found, "kernels").len(), COUNT + 2);
    assert!(expected.contains(&found["original_size"].as_u64().unwrap()), "{found:?}");
    let sizes = measure(&[tree.path("prefix")], &[]).unwrap();
    let rows = sizes.by(Depth::Target);
    let row = rows.iter().find(|row| row.target.as_deref() == Some("gfx942"));
    assert!(expected.contains(&row.unwrap().before), "{row:?}");

    let fat = fat(&tree.path("fat"));
    let total = elements(&fat, "targets").iter().find(|total| total["target"] == "gfx942").unwrap();
    assert_eq!(total["code_objects"], 3);
    let size = total["size"].as_u64().unwrap();
    assert!((3 * SIZE as u64..3 * SIZE as u64 + 4096).contains(&size), "{size}");
}
