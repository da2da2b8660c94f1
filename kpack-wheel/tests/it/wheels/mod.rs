//! A fat wheel and its binary, and what is in wheels.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use kpack_split::install::{InstallOptions, install};
use kpack_tests::fixture::{FatLibrary, Storage, Wheel, add_and_mul, code};
use kpack_tests::tree::Tree;
use zip::ZipArchive;

pub(crate) const FAT: &str = "vec-1.0-cp311-cp311-manylinux_2_28_x86_64.whl";

/// A shared object with code for gfx942 and two kinds of gfx90a.
pub(crate) fn library() -> FatLibrary {
    let library = add_and_mul(["gfx942", "gfx90a:xnack+"], ["gfx942", "gfx90a:xnack-"]);
    library.wrapper(
        Storage::Plain,
        [code("gfx942", "more"), code("gfx90a:xnack+", "more"), code("gfx90a:xnack-", "more")],
    )
}

/// A small fat binary.
pub(crate) fn binary() -> Vec<u8> {
    add_and_mul(["gfx942", "gfx90a"], ["gfx942", "gfx90a"]).bytes()
}

/// A small wheel with a fat binary.
pub(crate) fn binary_wheel() -> Wheel {
    Wheel::new(FAT).member("vec/__init__.py", "answer = 42\n").member("vec/_vec.so", binary())
}

/// Bytes that cannot be compressed.
pub(crate) fn noise(count: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..count).map(|_| next()).collect()
}

/// The members of a wheel, their modes and bytes.
pub(crate) fn members(wheel: &Path) -> BTreeMap<String, (u32, Vec<u8>)> {
    let mut zip = ZipArchive::new(File::open(wheel).unwrap()).unwrap();
    let mut members = BTreeMap::new();
    for index in 0..zip.len() {
        let mut member = zip.by_index(index).unwrap();
        let mut bytes = Vec::new();
        member.read_to_end(&mut bytes).unwrap();
        let name = member.name().unwrap().into_owned();
        members.insert(name, (member.unix_mode().unwrap() & 0o777, bytes));
    }
    members
}

pub(crate) fn text(wheel: &Path, member: &str) -> String {
    String::from_utf8(members(wheel)[member].1.clone()).unwrap()
}

pub(crate) fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .map(|entries| entries.flatten().collect())
        .unwrap_or_else(|_| Vec::new())
        .into_iter()
        .map(|entry: fs::DirEntry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A prefix with two libraries that were split with their archives in a directory above, as ROCm's are; and a wheel
/// with copies of them, as auditwheel leaves them.
pub(crate) fn vendored(tree: &Tree) -> Wheel {
    let mut wheel = Wheel::new(FAT).member("vec/__init__.py", "");
    for name in ["vec", "more"] {
        let file = format!("lib/lib{name}.so");
        library().build(&tree.path("rocm").join(&file)).unwrap();
        let mut options = InstallOptions::new(tree.path("rocm"), name, [&file]);
        options.kpack_dir = ".kpack".into();
        install(&options, &()).unwrap();
        let copy = format!("vec.libs/lib{name}-1a2b3c4d.so");
        let bytes = fs::read(tree.path("rocm").join(&file)).unwrap();
        wheel = wheel.member_with_mode(&copy, 0o755, bytes);
    }
    wheel
}
