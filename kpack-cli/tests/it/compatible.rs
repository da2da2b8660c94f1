//! Given files of an early version, when this version reads them, then nothing is missing, and they can be
//! changed as before. `tests/fixtures/earlier/README.md` lists them.

use std::fs;
use std::path::Path;
use std::process::Command;

use kpack_format::TargetId;
use kpack_tests::earlier;
use kpack_tests::fixture::code;
use kpack_tests::process;
use kpack_tests::tree::{Tree, files_in};
use rocm_kpack::{Cache, Environment, Request};

use crate::command::{said, words};
use crate::markers::{is_one_map, markers, padded_as_earlier};

const LIBRARY: &str = "lib/libvec.so";
const PROGRAM: &str = "bin/vec";
const SHARED: &str = "math-libs/BLAS/rocBLAS/stage/lib/librocblas.so.5";
/// The kernels of all binaries, by code object index.
const KERNELS: [&str; 3] = ["add", "mul", "scale"];

/// Runs a command in the tree, which must end with this code.
fn exits(code: i32, tree: &Tree, line: &str) -> String {
    let said = said(tree, &words(line));
    assert!(said.ends_with(&format!("\nexit code {code}\n")), "{said}");
    said
}

/// Runs a command that must succeed.
fn runs(tree: &Tree, line: &str) -> String {
    exits(0, tree, line)
}

/// Each code object of a split binary is loaded for each GPU.
fn assert_loads(binary: &Path, kernels: &[&str], gpus: &[&str]) {
    let markers = markers(binary);
    let [marker] = markers.as_slice() else {
        panic!("{}: {markers:?}", binary.display());
    };
    let cache = Cache::new(Environment::default());
    for gpu in gpus {
        let isas: [TargetId; 1] = [gpu.parse().unwrap()];
        for (co_index, kernel) in (0..).zip(kernels) {
            let loaded = cache.load_code_object(&Request { marker, binary, co_index, isas: &isas });
            assert_eq!(loaded.unwrap(), code(gpu, kernel).1, "{gpu} {kernel}");
        }
    }
}

#[test]
fn verify_finds_no_fault_in_what_an_early_version_wrote() {
    let tree = earlier::unpack();
    for line in [
        "verify split",
        "verify split/lib/libvec.so --against original/lib/libvec.so",
        "verify split/bin/vec --against original/bin/vec",
        "verify split --against original",
        "verify joined",
        "verify joined/lib/libvec.so --against original/lib/libvec.so --arch gfx1100",
        "verify shards/linux-a --against in/linux-a",
        "verify shards/linux-b",
        "verify shards/linux-b --against in/linux-b",
        "verify recombined",
        "wheel verify wheels/vec-1.0-cp311-cp311-manylinux_2_28_x86_64.whl \
         wheels/vec_device_gfx1100-1.0-cp311-cp311-manylinux_2_28_x86_64.whl \
         wheels/vec_device_gfx90a-1.0-cp311-cp311-manylinux_2_28_x86_64.whl \
         wheels/vec_device_gfx942-1.0-cp311-cp311-manylinux_2_28_x86_64.whl \
         --against dist/vec-1.0-cp311-cp311-manylinux_2_28_x86_64.whl",
    ] {
        let before = tree.snapshot();
        let said = runs(&tree, line);
        assert!(said.contains(", 0 faults"), "{said}");
        assert_eq!(tree.snapshot(), before, "{line}");
    }
}

#[test]
fn the_loader_loads_what_an_early_version_split() {
    let tree = earlier::unpack();
    // The archives of both shards, and the generic artifact of one.
    for artifact in ["generic", "gfx110X", "instinct"] {
        let from = tree.path(&format!("recombined/blas_lib_{artifact}/."));
        fs::create_dir_all(tree.path("installed")).unwrap();
        process::copy(from, tree.path("installed"));
    }
    let all = ["gfx1100", "gfx90a:xnack+", "gfx942"];
    for (binary, gpus) in [
        (format!("split/{LIBRARY}"), &all[..]),
        (format!("split/{PROGRAM}"), &all[..2]),
        (format!("installed/{SHARED}"), &all[..]),
    ] {
        assert_loads(&tree.path(&binary), &KERNELS, gpus);
    }
}

#[test]
fn an_object_that_an_early_version_split_is_linked_and_loaded() {
    let tree = earlier::unpack();
    let library = tree.path("object/libvec.so");
    let mut link = Command::new("cc");
    link.arg("-shared").arg("-o").arg(&library);
    process::run(link.arg(tree.path("object/vec.o")));
    assert_loads(&library, &KERNELS[..2], &["gfx1100", "gfx90a:xnack+", "gfx942"]);
    runs(&tree, "verify object/libvec.so");
}

/// Archives, manifest and markers, but for their padding: a change of their bytes is a change of the formats, unless a
/// new release of Zstandard compresses differently.
#[test]
fn a_split_gives_the_archives_of_an_early_version() {
    let tree = earlier::unpack();
    runs(&tree, "install --prefix original --module vec lib/libvec.so bin/vec");
    assert_eq!(
        files_in(&tree.path("original/lib/.kpack")),
        files_in(&tree.path("split/lib/.kpack"))
    );
    for binary in [LIBRARY, PROGRAM] {
        let of = |prefix: &str| fs::read(tree.path(prefix).join(binary)).unwrap();
        assert!(is_one_map(&tree.path("original").join(binary)));
        assert!(!is_one_map(&tree.path("split").join(binary)));
        let split = padded_as_earlier(of("original"));
        assert!(split == of("split"), "{binary}");
    }
}

#[test]
fn what_an_early_version_split_is_joined_and_split_again() {
    let tree = earlier::unpack();
    let before = tree.snapshot();
    for (binary, gpu) in
        [(LIBRARY, "gfx1100"), (LIBRARY, "gfx90a"), (LIBRARY, "gfx942"), (PROGRAM, "gfx90a:xnack+")]
    {
        runs(
            &tree,
            &format!("join --prefix split --arch {gpu} --against original/{binary} {binary}"),
        );
        runs(&tree, "verify split");
        runs(&tree, &format!("install --prefix split --module vec {binary}"));
        assert!(tree.snapshot() == before, "{binary} for {gpu}");
    }
}

/// An early version kept no record of the headers that its joins changed.
#[test]
fn what_an_early_version_joined_is_split_again() {
    let tree = earlier::unpack();
    runs(&tree, "install --prefix joined --module vec lib/libvec.so bin/vec");
    runs(&tree, "verify joined --against original");
    for binary in [LIBRARY, PROGRAM] {
        let of = |prefix: &str| fs::read(tree.path(prefix).join(binary)).unwrap();
        assert!(of("joined") == of("split"), "{binary}");
    }
    let kpacks = |prefix: &str| files_in(&tree.path(prefix).join("lib/.kpack"));
    assert_eq!(kpacks("joined"), kpacks("split"));
}

#[test]
fn what_an_early_version_joined_is_joined_for_another_target() {
    let tree = earlier::unpack();
    runs(
        &tree,
        "join --prefix joined --arch gfx942 --against original/lib/libvec.so lib/libvec.so",
    );
    runs(&tree, "verify joined");
    runs(&tree, "install --prefix joined --module vec lib/libvec.so");
    let of = |prefix: &str| fs::read(tree.path(prefix).join(LIBRARY)).unwrap();
    assert!(of("joined") == of("split"));
}

#[test]
fn installing_again_changes_nothing() {
    let tree = earlier::unpack();
    let before = tree.snapshot_with_times();
    runs(&tree, "install --prefix split --module vec --all");
    runs(&tree, "install --prefix split --module vec lib/libvec.so bin/vec");
    runs(
        &tree,
        "install --prefix split --module vec --all --arch gfx1100 --arch gfx90a:xnack+ --arch gfx942",
    );
    assert_eq!(tree.snapshot_with_times(), before);
}

#[test]
fn shards_of_an_early_version_are_recombined() {
    let tree = earlier::unpack();
    runs(&tree, "recombine --input-shards-dir shards --config packaging.json --output-dir again");
    runs(&tree, "verify again");
    // The early version's result, and its split of the whole artifact, are replaced.
    runs(
        &tree,
        "recombine --input-shards-dir shards --config packaging.json --output-dir recombined",
    );
    let of = |directory: &str| {
        let start = format!("{directory}/");
        let files = tree.snapshot().into_iter();
        let files =
            files.filter_map(|(name, file)| Some((name.strip_prefix(&start)?.to_owned(), file)));
        files.collect::<Vec<_>>()
    };
    assert!(of("again") == of("recombined"));
}

/// An early version had its own artifact for each variant.
#[test]
fn splitting_again_replaces_the_artifacts_of_variants() {
    let tree = earlier::unpack();
    let has = |target: &str| tree.path(&format!("shards/linux-b/blas_lib_{target}")).exists();
    assert!(has("gfx90a:xnack+") && !has("gfx90a"));
    runs(
        &tree,
        "split --artifact-prefix blas_lib --output-dir shards/linux-b --artifact-dir in/linux-b/blas_lib",
    );
    assert!(!has("gfx90a:xnack+") && has("gfx90a"));
    runs(&tree, "verify shards/linux-b --against in/linux-b");
}

#[test]
fn a_split_wheel_of_an_early_version_is_known_as_one() {
    let tree = earlier::unpack();
    let said = exits(
        3,
        &tree,
        "wheel split wheels/vec-1.0-cp311-cp311-manylinux_2_28_x86_64.whl --output-dir out",
    );
    assert!(said.contains("already split"), "{said}");
    let device = "wheels/vec_device_gfx90a-1.0-cp311-cp311-manylinux_2_28_x86_64.whl";
    let host = "wheels/vec-1.0-cp311-cp311-manylinux_2_28_x86_64.whl";
    let said = runs(&tree, &format!("wheel show {host} {device}"));
    assert!(said.contains("device-gfx90a"), "{said}");
}
