//! Given shards with more or less than one split wrote, when they are recombined, then artifacts of
//! different builds are never packaged together.

use crate::planned;
use std::fs;

use crate::planned::{CONFIGURATION, assert_said, options, planned, said, with_validation};
use crate::shards::{PREFIX, three_shards};
use kpack_artifact::recombine::{self, Severity};
use kpack_artifact::split::{Options, split};
use kpack_format::manifest::Manifest;
use kpack_tests::fixture::{FatLibrary, Storage, code};
use kpack_tests::tree::{Tree, write};

const LINUX_C: &str = "shards/linux-c/blas_lib_";

fn kpack() -> String {
    format!("{LINUX_C}gfx942/{PREFIX}/lib/.kpack/rocblas_lib_gfx942.kpack")
}

/// Changes the manifest of shard linux-c.
fn change_manifest(tree: &Tree, change: impl FnOnce(&mut Manifest)) {
    let path = tree.path(&format!("{LINUX_C}generic/{PREFIX}/lib/.kpack/rocblas_lib.kpm"));
    let mut manifest = Manifest::read(&fs::read(&path).unwrap()).unwrap();
    change(&mut manifest);
    fs::write(path, manifest.to_bytes()).unwrap();
}

/// Nothing is written, and this is why.
fn assert_refused(tree: &Tree, parts: &[&str]) {
    let plan = planned(tree, CONFIGURATION);
    assert_said(&plan, Severity::Fault, parts);
    assert_eq!(plan.errors(), 1, "{:#?}", said(&plan));
    plan.apply(&options(tree, CONFIGURATION), &()).unwrap_err();
    assert!(!tree.path("out").exists());
}

/// Both names are of one family; either artifact would hide the other.
#[test]
fn two_artifacts_of_a_shard_for_one_target_are_refused() {
    let tree = three_shards();
    for name in ["gfx11", "gfx11xx"] {
        let artifact = tree.path(&format!("{LINUX_C}{name}"));
        write(artifact.join("artifact_manifest.txt"), PREFIX);
        write(artifact.join(PREFIX).join(name), b"data");
    }
    let error = recombine::plan(&options(&tree, CONFIGURATION), &()).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("blas_lib_gfx11xx: is for gfx11, as") && error.contains("blas_lib_gfx11 "),
        "{error}"
    );
}

#[test]
fn an_archive_with_another_byte_is_refused() {
    let tree = three_shards();
    let path = tree.path(&kpack());
    let mut bytes = fs::read(&path).unwrap();
    // This byte is in the first code object.
    bytes[200] ^= 1;
    fs::write(&path, bytes).unwrap();
    let name = "linux-c/blas_lib_gfx942";
    let parts = [name, "lists: it does not have the listed BLAKE3 digest", "split again"];
    assert_refused(&tree, &parts);
    // Manifests of other programs have no checksums, but each code object has one.
    change_manifest(&tree, |manifest| {
        manifest.kpack_files.get_mut("gfx942").unwrap().checksum = None;
    });
    assert_refused(&tree, &[name, "no readable `lib/librocblas.so.5#"]);
}

#[test]
fn an_archive_of_an_earlier_split_is_refused() {
    // linux-b has the artifact of an earlier split for gfx942. That of linux-c was not uploaded.
    let tree = three_shards();
    let artifact = tree.path("old/in/blas_lib");
    let code = [code("gfx90a:xnack+", "old"), code("gfx942", "old")];
    let library = FatLibrary::new().wrapper(Storage::Plain, code);
    let prefix = artifact.join(PREFIX);
    library.build(&prefix.join("lib/librocblas.so.5")).unwrap();
    write(artifact.join("artifact_manifest.txt"), PREFIX);
    split(&Options::new(artifact, tree.path("old/out"), "blas_lib"), &()).unwrap();
    let stale = tree.path("shards/linux-b/blas_lib_gfx942");
    fs::rename(tree.path("old/out/blas_lib_gfx942"), stale).unwrap();
    fs::remove_dir_all(tree.path("shards/linux-c/blas_lib_gfx942")).unwrap();
    let parts = ["linux-b/blas_lib_gfx942", "an earlier split"];
    assert_refused(&tree, &parts);
}

/// Recombines the shards of `from`; returns the files with their bytes.
fn recombined(tree: &Tree, from: &str, configuration: &str) -> Vec<(String, Vec<u8>)> {
    let output = tree.path(&format!("{from}-out"));
    let mut options = options(tree, configuration);
    options.shards_dir = tree.path(from);
    options.output_dir = output.clone();
    let plan = recombine::plan(&options, &()).unwrap();
    assert_eq!(plan.errors(), 0, "{:#?}", said(&plan));
    plan.apply(&options, &()).unwrap();
    let start = format!("{from}-out/");
    let files = tree.snapshot().into_iter();
    files
        .filter_map(|(name, (_, bytes))| Some((name.strip_prefix(&start)?.to_owned(), bytes)))
        .collect()
}

#[test]
fn what_was_recombined_is_recombined_with_more() {
    let tree = three_shards();
    let whole = recombined(&tree, "shards", CONFIGURATION);
    // First the shards a and b, and then what they make with c.
    let lenient = with_validation("error_on_missing_architecture", false);
    for shard in ["linux-a", "linux-b"] {
        let from = tree.path(&format!("shards/{shard}"));
        fs::create_dir_all(tree.path("first")).unwrap();
        fs::rename(from, tree.path(&format!("first/{shard}"))).unwrap();
    }
    recombined(&tree, "first", &lenient);
    fs::rename(tree.path("first-out"), tree.path("shards/linux-a")).unwrap();
    fs::remove_dir_all(tree.path("shards-out")).unwrap();
    assert_eq!(recombined(&tree, "shards", CONFIGURATION), whole);
}

#[test]
fn what_is_not_split_is_no_groups_artifact() {
    let tree = three_shards();
    let unsplit = tree.path("shards/linux-a/blas_lib_gfx110X");
    fs::rename(tree.path("in/linux-a/blas_lib"), unsplit).unwrap();
    let plan = planned(&tree, CONFIGURATION);
    let parts = ["blas_lib_gfx110X", "not-an-artifact"];
    assert_said(&plan, Severity::Warning, &parts);
    assert_eq!(plan.errors(), 0, "{:#?}", said(&plan));
}

#[test]
fn how_to_install_archives_is_kept() {
    let tree = three_shards();
    let hint = "apt install blas-@GFXARCH@";
    change_manifest(&tree, |manifest| {
        manifest.install_hint = Some(hint.to_owned());
    });
    let plan = planned(&tree, CONFIGURATION);
    assert_eq!(said(&plan), [""; 0]);
    plan.apply(&options(&tree, CONFIGURATION), &()).unwrap();
    for (artifact, name) in [("generic", ""), ("gfx110X", ".gfx110X")] {
        let path = format!("out/blas_lib_{artifact}/{PREFIX}/lib/.kpack/rocblas_lib{name}.kpm");
        let manifest = Manifest::read(&fs::read(tree.path(&path)).unwrap()).unwrap();
        assert_eq!(manifest.install_hint.as_deref(), Some(hint), "{artifact}");
    }

    // Two that differ: the first stays, with a warning.
    let other =
        tree.path(&format!("shards/linux-a/blas_lib_generic/{PREFIX}/lib/.kpack/rocblas_lib.kpm"));
    let mut manifest = Manifest::read(&fs::read(&other).unwrap()).unwrap();
    manifest.install_hint = Some("dnf install blas".to_owned());
    fs::write(other, manifest.to_bytes()).unwrap();
    let plan = planned(&tree, CONFIGURATION);
    let parts = [
        "linux-c/blas_lib_generic",
        "the install hint differs from another shard's, which is kept (expected `dnf install blas`, found \
         `apt install blas-@GFXARCH@`)",
    ];
    assert_said(&plan, Severity::Warning, &parts);
}

#[test]
fn a_family_is_called_by_its_pattern() {
    // Given the code of a family in an artifact that is called by the family's pattern,
    let tree = three_shards();
    let file = "aotriton/stage/lib/aotriton.images/amd-gfx11xx/flash/fwd.aks2";
    let input = tree.path("in/linux-a/aotriton_lib");
    write(input.join("artifact_manifest.txt"), b"aotriton/stage\n");
    write(input.join(file), b"kernels");
    let shard = tree.path("shards/linux-a");
    split(&Options::new(input, &shard, "aotriton_lib"), &()).unwrap();
    let name = |family| shard.join(format!("aotriton_lib_{family}"));
    fs::rename(name("gfx11"), name("gfx11xx")).unwrap();
    // when a group lists the pattern, then its package has the code.
    let configuration = CONFIGURATION.replace("\"gfx1101\"", "\"gfx1101\", \"gfx11xx\"");
    planned::recombine(&tree, &configuration);
    assert!(tree.path(&format!("out/aotriton_lib_gfx110X/{file}")).is_file());
}

/// Only kpack's own hidden names are work in progress.
#[test]
fn a_shard_may_have_a_hidden_name() {
    let tree = three_shards();
    fs::rename(tree.path("shards/linux-c"), tree.path("shards/.linux-c")).unwrap();
    let plan = planned(&tree, CONFIGURATION);
    assert_eq!(plan.errors(), 0, "{:#?}", said(&plan));
    let has_it = |plan: &recombine::Recombination| {
        let mut shards = plan.artifacts.iter().flat_map(|artifact| &artifact.shards);
        shards.any(|shard| shard.ends_with("linux-c"))
    };
    assert!(has_it(&plan));
    // An interrupted run's.
    fs::rename(tree.path("shards/.linux-c"), tree.path("shards/.linux-c.tmp")).unwrap();
    assert!(!has_it(&planned(&tree, CONFIGURATION)));
}
