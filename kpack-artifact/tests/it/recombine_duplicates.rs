//! Given shards that have device code of one target in common, or device code that was not split,
//! when they are recombined, then nothing of any shard is lost silently.

use std::fs;

use crate::planned::{CONFIGURATION, assert_said, options, planned, said, with_validation};
use crate::shards::{DATABASE, PREFIX, shard, three_shards};
use crate::verified::assert_holds;
use kpack_artifact::recombine::{Recombination, Severity, plan};
use kpack_format::digest::Hasher;
use kpack_format::manifest::Manifest;
use kpack_tests::fixture::{FatLibrary, Storage, code, code_object, library_file};
use kpack_tests::tree::{Tree, write};

/// Three shards, of which the first and the last both have gfx942.
fn with_duplicates() -> Tree {
    let tree = three_shards();
    let library = format!("shards/linux-a/blas_lib_generic/{PREFIX}/lib/librocblas.so.5");
    let host = fs::read(tree.path(&library)).unwrap();
    shard(&tree, "linux-a", &["gfx1100", "gfx1101", "gfx942"]);
    fs::write(tree.path(&library), host).unwrap();
    assert_eq!(said(&planned(&tree, CONFIGURATION)), [""; 0]);
    tree
}

fn at(shard: &str, artifact: &str, file: &str) -> String {
    format!("shards/{shard}/blas_lib_{artifact}/{PREFIX}/{file}")
}

fn lenient(tree: &Tree) -> Recombination {
    let allowed = with_validation("error_on_duplicate_device_code", false);
    let options = options(tree, &allowed);
    plan(&options, &()).unwrap()
}

/// Recombines with duplicates allowed, and verifies the result.
fn recombined(tree: &Tree) -> Recombination {
    let plan = lenient(tree);
    plan.apply(&options(tree, CONFIGURATION), &()).unwrap();
    assert_holds(&tree.path("out"));
    plan
}

#[test]
fn what_only_a_later_shard_has_for_a_target_is_kept() {
    let tree = with_duplicates();
    let (object, library) = ("Other_gfx942.co", "Other_gfx942.dat");
    let database = |file: &str| format!("{DATABASE}/{file}");
    tree.write(
        &at("linux-c", "gfx942", &database(object)),
        code_object("gfx942", b"other").unwrap(),
    );
    tree.write(
        &at("linux-c", "gfx942", &database(library)),
        library_file("gfx942", &["Other_gfx942"]).unwrap(),
    );
    let both = database("TensileLibrary_Type_SS_gfx942.co");
    let ours = code_object("gfx942", b"Database").unwrap();
    tree.write(&at("linux-a", "gfx942", &both), &ours);

    let strict = planned(&tree, CONFIGURATION);
    for file in [object, library] {
        let parts = [file, "linux-c", "only shard linux-c has it"];
        assert_said(&strict, Severity::Fault, &parts);
    }
    let plan = recombined(&tree);
    for file in [object, library] {
        let parts = [
            file,
            "shards linux-a and linux-c both have",
            "only shard linux-c has it; it is taken",
        ];
        assert_said(&plan, Severity::Warning, &parts);
    }
    let parts = ["shards linux-a and linux-c", "; linux-a's is taken"];
    assert_said(&plan, Severity::Warning, &parts);
    assert_eq!(said(&plan).len(), 3);
    let instinct = plan.artifacts.iter().find(|a| a.name.ends_with("instinct"));
    let from: Vec<&String> = instinct.unwrap().shards.iter().collect();
    assert_eq!(from, ["linux-a", "linux-b", "linux-c"]);
    let out = |file: &str| tree.path(&format!("out/blas_lib_instinct/{PREFIX}/{file}"));
    assert_eq!(fs::read(out(&both)).unwrap(), ours);
    for file in [object, library] {
        assert!(out(&database(file)).is_file(), "{file}");
    }
}

/// MIOpen's system database is installed for all targets, whatever was built.
#[test]
fn databases_for_all_targets_in_every_build() {
    let tree = three_shards();
    let all = [
        ("linux-a", "gfx90a:xnack+"),
        ("linux-a", "gfx942"),
        ("linux-b", "gfx1100"),
        ("linux-b", "gfx1101"),
        ("linux-b", "gfx942"),
        ("linux-c", "gfx1100"),
        ("linux-c", "gfx1101"),
        ("linux-c", "gfx90a:xnack+"),
    ];
    let owners = ["linux-a", "linux-b", "linux-c"];
    let targets = [&["gfx1100", "gfx1101"][..], &["gfx90a:xnack+"], &["gfx942"]];
    let owned = owners.iter().zip(targets);
    let owned = owned.flat_map(|(shard, targets)| targets.iter().map(|target| (*shard, *target)));
    for (shard, target) in all.into_iter().chain(owned) {
        let name = target.replace(':', "-");
        let file = format!("share/miopen/db/{name}.HIP.fdb.txt");
        let path = tree.path(&at(shard, target, &file));
        write(&path, format!("{target} 1\n"));
        let list = tree.path(&format!("shards/{shard}/blas_lib_{target}"));
        write(list.join("artifact_manifest.txt"), format!("{PREFIX}\n"));
    }
    assert_eq!(said(&planned(&tree, CONFIGURATION)), [""; 0]);
    let options = options(&tree, CONFIGURATION);
    let plan = plan(&options, &()).unwrap();
    plan.apply(&options, &()).unwrap();
    assert_holds(&tree.path("out"));
    let out = |group: &str, file: &str| {
        tree.path(&format!("out/blas_lib_{group}/{PREFIX}/{file}")).is_file()
    };
    assert!(out("instinct", "share/miopen/db/gfx942.HIP.fdb.txt"));
    assert!(out("instinct", "lib/.kpack/rocblas_lib_gfx942.kpack"));

    // If anything differs, everything is a duplicate, and the messages about the others stay true.
    let file = at("linux-a", "gfx942", "share/miopen/db/gfx942.HIP.fdb.txt");
    fs::write(tree.path(&file), "gfx942 2\n").unwrap();
    let plan = planned(&tree, CONFIGURATION);
    let parts = [
        "fdb.txt",
        "shards linux-a and linux-b both have",
        "`--gpu-targets` with its other targets",
    ];
    assert_said(&plan, Severity::Fault, &parts);
    for line in said(&plan) {
        assert!(!line.contains("which no shard has"), "{line}");
    }
    for finding in &plan.findings {
        assert!(finding.file().exists(), "{}", finding.file().display());
    }
}

/// Both built the library, so one of the databases is incomplete.
#[test]
fn more_files_beside_the_same_kpacks() {
    let tree = with_duplicates();
    let file = format!("{DATABASE}/Other_gfx942.hsaco");
    let object = code_object("gfx942", b"other").unwrap();
    tree.write(&at("linux-c", "gfx942", &file), &object);
    let parts = [&file, "shards linux-a and linux-c both have", "only shard linux-c has it"];
    assert_said(&planned(&tree, CONFIGURATION), Severity::Fault, &parts);
}

/// Lists the shard's files for gfx942 in its manifest.
fn list(tree: &Tree, shard: &str, kernel_count: u64) {
    let archive = at(shard, "gfx942", "lib/.kpack/rocblas_lib_gfx942.kpack");
    let bytes = fs::read(tree.path(&archive)).unwrap();
    let path = tree.path(&at(shard, "generic", "lib/.kpack/rocblas_lib.kpm"));
    let mut manifest = Manifest::read(&fs::read(&path).unwrap()).unwrap();
    let listed = manifest.kpack_files.get_mut("gfx942").unwrap();
    listed.size = bytes.len() as u64;
    listed.kernel_count = kernel_count;
    let mut hasher = Hasher::default();
    hasher.update(&bytes);
    listed.checksum = Some(hasher.finish());
    fs::write(path, manifest.to_bytes()).unwrap();
}

#[test]
fn kernels_that_only_a_later_shard_has_are_not_lost() {
    let tree = with_duplicates();
    let archive = "lib/.kpack/rocblas_lib_gfx942.kpack";
    // As if the last shard had split more binaries.
    let prefix = tree.path("more/math-libs/BLAS/rocBLAS/stage");
    let fat = ["gemm", "trsm", "symm"].map(|kernel| code("gfx942", kernel));
    let mut library = FatLibrary::new();
    for code in fat {
        library = library.wrapper(Storage::Plain, [code]);
    }
    library.build(&prefix.join("lib/librocblas.so.5")).unwrap();
    let options =
        kpack_split::install::InstallOptions::new(&prefix, "rocblas", ["lib/librocblas.so.5"]);
    kpack_split::install::install(&options, &()).unwrap();
    fs::copy(prefix.join(archive), tree.path(&at("linux-c", "gfx942", archive))).unwrap();
    list(&tree, "linux-c", 3);
    let plan = lenient(&tree);
    let parts = [
        "linux-c/blas_lib_gfx942",
        "only shard linux-c has lib/librocblas.so.5#2",
        "let only one shard build for gfx942",
    ];
    assert_said(&plan, Severity::Fault, &parts);
    // The other way round, the first shard's archive has all kernels.
    let [ours, theirs] = ["linux-a", "linux-c"].map(|s| tree.path(&at(s, "gfx942", archive)));
    fs::rename(&ours, tree.path("aside")).unwrap();
    fs::rename(&theirs, &ours).unwrap();
    fs::rename(tree.path("aside"), &theirs).unwrap();
    list(&tree, "linux-a", 3);
    let plan = lenient(&tree);
    let parts = ["only shard linux-a has lib/librocblas.so.5#2; linux-a's is taken"];
    assert_said(&plan, Severity::Warning, &parts);
    assert_eq!(plan.errors(), 0);
}

#[test]
fn a_later_shards_host_files_in_a_targets_artifact() {
    let tree = with_duplicates();
    tree.write(&at("linux-c", "gfx942", "lib/host.txt"), b"");
    let parts = ["linux-c/blas_lib_gfx942", "host.txt", "misplaced-file"];
    assert_said(&lenient(&tree), Severity::Fault, &parts);
}

#[test]
fn an_unsplit_file_of_another_shard_is_not_a_host_file() {
    let tree = three_shards();
    let prefix = format!("in/linux-b/blas_lib/{PREFIX}");
    let fat = tree.path(&format!("{prefix}/lib/librocblas.so.5"));
    let library = at("linux-b", "generic", "lib/librocblas.so.5");
    fs::copy(fat, tree.path(&library)).unwrap();
    let object = "lib/rocblas/library/Kernels_gfx942.hsaco";
    let kernels = code_object("gfx942", b"kernels").unwrap();
    tree.write(&at("linux-c", "generic", object), &kernels);
    tree.write(&at("linux-c", "generic", "share/some.bin"), &kernels);
    let lenient = with_validation("verify_generic_artifacts_match", false);
    for configuration in [CONFIGURATION, &lenient] {
        let plan = planned(&tree, configuration);
        let parts = ["linux-b", "librocblas.so.5", "misplaced-file"];
        assert_said(&plan, Severity::Fault, &parts);
        let parts = ["linux-c", "Kernels_gfx942.hsaco", "misplaced-file"];
        assert_said(&plan, Severity::Fault, &parts);
    }
    let parts = ["share/some.bin", "skipped: an AMDGPU code object, and only shard linux-c"];
    assert_said(&planned(&tree, &lenient), Severity::Warning, &parts);
}

#[test]
fn a_host_binary_that_only_another_shard_has() {
    let tree = three_shards();
    let library = |shard, name: &str| tree.path(&at(shard, "generic", name));
    fs::copy(library("linux-b", "lib/librocblas.so.5"), library("linux-b", "lib/libmore.so"))
        .unwrap();
    let lenient = with_validation("verify_generic_artifacts_match", false);
    let parts = ["libmore.so", "only shard linux-b has this host binary"];
    assert_said(&planned(&tree, &lenient), Severity::Warning, &parts);
}
