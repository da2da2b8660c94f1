//! Given shards that hold more or less than one split wrote, when they are recombined, then nothing
//! that does not belong together is packaged.

mod planned;
mod shards;

use std::fs;

use kpack_format::manifest::Manifest;
use kpack_split::artifact::recombine::Severity;
use kpack_split::artifact::split::{Options, split};
use kpack_tests::fixture::{FatLibrary, Storage, code};
use kpack_tests::tree::Tree;
use planned::{CONFIGURATION, assert_said, options, planned, said};
use shards::{PREFIX, three_shards, write};

const LINUX_C: &str = "shards/linux-c/blas_lib_";

fn kpack() -> String {
    format!("{LINUX_C}gfx942/{PREFIX}/lib/.kpack/rocblas_lib_gfx942.kpack")
}

/// Changes the manifest of shard linux-c.
fn change_manifest(tree: &Tree, change: impl FnOnce(&mut Manifest)) {
    let path = tree.path(&format!(
        "{LINUX_C}generic/{PREFIX}/lib/.kpack/rocblas_lib.kpm"
    ));
    let mut manifest = Manifest::read(&fs::read(&path).unwrap()).unwrap();
    change(&mut manifest);
    fs::write(path, manifest.to_bytes()).unwrap();
}

/// Nothing is written, and this is why.
fn assert_refused(tree: &Tree, parts: &[&str]) {
    let plan = planned(tree, CONFIGURATION);
    assert_said(&plan, Severity::Error, parts);
    assert_eq!(plan.errors(), 1, "{:#?}", said(&plan));
    plan.apply(&options(tree, CONFIGURATION), &|_| {})
        .unwrap_err();
    assert!(!tree.path("out").exists());
}

#[test]
fn an_archive_with_another_byte_is_refused() {
    let tree = three_shards();
    let path = tree.path(&kpack());
    let mut bytes = fs::read(&path).unwrap();
    // Within the first code object.
    bytes[200] ^= 1;
    fs::write(&path, bytes).unwrap();
    let name = "linux-c/blas_lib_gfx942";
    let parts = [name, "lists: it has another SHA-256", "split again"];
    assert_refused(&tree, &parts);
    // Manifests of other programs have no checksums, but each code object has one.
    change_manifest(&tree, |manifest| {
        manifest.kpack_files.get_mut("gfx942").unwrap().checksum = None;
    });
    assert_refused(&tree, &[name, "it has no whole `lib/librocblas.so.5#"]);
}

#[test]
fn an_archive_of_an_earlier_split_is_refused() {
    // Linux-b built for gfx942 once, and split that left its artifact. Linux-c's was not uploaded.
    let tree = three_shards();
    let artifact = tree.path("old/in/blas_lib");
    let code = [code("gfx90a:xnack+", "old"), code("gfx942", "old")];
    let library = FatLibrary::new().wrapper(Storage::Plain, code);
    let prefix = artifact.join(PREFIX);
    library.build(&prefix.join("lib/librocblas.so.5")).unwrap();
    write(&artifact.join("artifact_manifest.txt"), PREFIX.as_bytes());
    split(
        &Options::new(artifact, tree.path("old/out"), "blas_lib"),
        &(),
    )
    .unwrap();
    let stale = tree.path("shards/linux-b/blas_lib_gfx942");
    fs::rename(tree.path("old/out/blas_lib_gfx942"), stale).unwrap();
    fs::remove_dir_all(tree.path("shards/linux-c/blas_lib_gfx942")).unwrap();
    let parts = ["linux-b/blas_lib_gfx942", "an earlier split"];
    assert_refused(&tree, &parts);
}
