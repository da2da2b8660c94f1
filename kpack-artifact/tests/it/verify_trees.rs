//! Given the artifacts of a split or a recombination, when something is in the wrong place, lost or
//! damaged, then verification finds it; and a complete tree has no fault.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use crate::planned::{recombine, recombined};
use crate::shards::{DATABASE, PREFIX, one_shard, shard};
use crate::verified::{assert_found, check, check_with, faults};
use kpack_artifact::split::{Options, Unknown, split};
use kpack_artifact::verify::{self};
use kpack_core::{Severity, ids};
use kpack_format::manifest::Manifest;
use kpack_split::Error;
use kpack_split::install;
use kpack_tests::fixture::{FatLibrary, Storage, bundle, code, code_object};
use kpack_tests::process;
use kpack_tests::tree::{Tree, write};

/// Groups may have targets in common.
#[test]
fn code_of_a_target_in_two_groups_is_compared_in_both() {
    // Given a target that two groups have,
    let tree = one_shard();
    let groups = r#"{
      "primary_shard": "linux-a",
      "architecture_groups": {
        "one": {"architectures": ["gfx1100", "gfx942"]},
        "two": {"architectures": ["gfx942"]}
      }
    }"#;
    recombine(&tree, groups);
    // when both have the code objects of one build, then that is no fault;
    let found = faults(&check_with(&tree, "out", Some("in/linux-a"), &[]));
    assert_eq!(found, [""; 0]);
    // when one of them has other contents, then it is.
    let kpack = format!("out/blas_lib_two/{PREFIX}/lib/.kpack/rocblas_lib_gfx942.kpack");
    let mut bytes = fs::read(tree.path(&kpack)).unwrap();
    let mut names = bytes.windows(7);
    let ordinal = names.rposition(|name| name == b"ordinal").unwrap() + 7;
    assert_eq!(bytes[ordinal], 1);
    bytes[ordinal] = 0;
    fs::write(tree.path(&kpack), bytes).unwrap();
    let database = format!("{DATABASE}/TensileLibrary_Type_SS_gfx942.co");
    let database = format!("out/blas_lib_two/{PREFIX}/{database}");
    fs::write(tree.path(&database), "other").unwrap();
    let report = check_with(&tree, "out", Some("in/linux-a"), &[]);
    for parts in [
        ["rocblas_lib_gfx942.kpack", "made for another build"],
        ["rocblas_lib_gfx942.kpack", "conflicting-files"],
        ["two/math-libs", "gfx942.co: has other bytes than in the unsplit tree"],
    ] {
        assert_found(&report, &parts);
    }
}

#[test]
fn a_processor_means_its_targets_with_any_features() {
    let tree = Tree::new();
    shard(&tree, "linux-a", &["gfx90a:xnack+", "gfx90a:xnack-"]);
    let faults = |targets: &[&str]| faults(&check_with(&tree, "shards", None, targets));
    assert_eq!(faults(&["gfx90a"]), [""; 0]);
    assert_eq!(faults(&["gfx90a:xnack+"]), [""; 0]);
    // A missing archive of one of them is missed,
    let lost = at("gfx90a", "lib/.kpack/rocblas_lib_gfx90a:xnack-.kpack");
    fs::remove_file(tree.path(&lost)).unwrap();
    let found = faults(&["gfx90a"]);
    let is_missing = |fault: &String| fault.contains("gfx90a:xnack-") && fault.contains("missing");
    assert!(found.iter().any(is_missing), "{found:#?}");
    // and a target that none has, whether with features or without.
    for target in ["gfx90a:sramecc+", "gfx908"] {
        let text = format!("no archive for {target}");
        let found = faults(&[target]);
        assert!(found.iter().any(|fault| fault.contains(&text)), "{found:#?}");
    }
}

/// A path in an artifact of the shard.
fn at(artifact: &str, file: &str) -> String {
    format!("shards/linux-a/blas_lib_{artifact}/{PREFIX}/{file}")
}

#[test]
fn split_artifacts_are_complete() {
    let tree = one_shard();
    for path in ["shards", "shards/linux-a", "shards/linux-a/blas_lib_generic"] {
        assert_eq!(faults(&check(&tree, path)), [""; 0], "{path}");
    }
    let report = check(&tree, "shards/linux-a/blas_lib_gfx942");
    assert_eq!(faults(&report), [""; 0]);
    for (path, unsplit) in
        [("shards/linux-a", "in/linux-a/blas_lib"), ("shards/linux-a", "in/linux-a")]
    {
        assert_eq!(faults(&check_with(&tree, path, Some(unsplit), &[])), [""; 0]);
    }
    let checks = check_with(&tree, "shards/linux-a", Some("in/linux-a"), &[]).findings;
    for id in [
        ids::ARTIFACT_SOUND,
        ids::MANIFEST_SOUND,
        ids::ARCHIVE_SOUND,
        ids::MARKER_SOUND,
        ids::CODE_FOUND,
        ids::CODE_MATCHES,
        ids::HOST_MATCHES,
        ids::FILES_MATCH,
    ] {
        assert!(checks.iter().any(|check| check.id == id), "{id}");
    }
    let texts: Vec<String> = checks.into_iter().map(|check| check.text).collect();
    for expected in [
        "3 files, device code only for gfx942",
        "4 files, nothing architecture-specific",
        "2 archives as listed",
        "4 code objects for gfx1100, gfx942",
        "7 files as before, each in one place",
    ] {
        assert!(texts.iter().any(|text| text == expected), "{expected} is not in {texts:#?}");
    }
}

#[test]
fn a_mark_of_a_later_version_is_a_fault() {
    let tree = one_shard();
    let mark = tree.path("shards/linux-a/blas_lib_generic/.kpack-artifact");
    fs::write(mark, r#"{"format_version": 2, "databases": []}"#).unwrap();
    let report = check(&tree, "shards/linux-a");
    assert_found(&report, &["blas_lib_generic", "unsupported-mark"]);
}

#[test]
fn one_file_of_an_artifact_is_verified_with_the_others() {
    let tree = one_shard();
    for file in ["lib/librocblas.so.5", "lib/.kpack/rocblas_lib.kpm", "lib"] {
        let report = check(&tree, &at("generic", file));
        assert_eq!(faults(&report), [""; 0]);
        assert!(!report.findings.is_empty());
    }
    let library = at("generic", "lib/librocblas.so.5");
    let fat = format!("in/linux-a/blas_lib/{PREFIX}/lib/librocblas.so.5");
    assert_eq!(faults(&check_with(&tree, &library, Some(&fat), &[])), [""; 0]);
    fs::remove_dir_all(tree.path("shards/linux-a/blas_lib_gfx942")).unwrap();
    assert_found(&check(&tree, &library), &["librocblas.so.5", "gfx942", "missing-archive"]);
}

#[test]
fn recombined_artifacts_are_complete() {
    let tree = recombined();
    assert_eq!(faults(&check(&tree, "out")), [""; 0]);
    let targets = ["gfx1100", "gfx1101"];
    let report = check_with(&tree, "out", Some("in/linux-a"), &targets);
    assert_eq!(faults(&report), [""; 0]);
    // The artifacts have more than one shard built.
    let report = check_with(&tree, "out", Some("in/linux-a"), &[]);
    assert_found(&report, &["code-differs"]);
    // Some of the artifacts.
    fs::remove_dir_all(tree.path("out/blas_lib_instinct")).unwrap();
    assert_eq!(faults(&check(&tree, "out")), [""; 0]);
    fs::remove_dir_all(tree.path("out/blas_lib_gfx110X")).unwrap();
    assert_found(&check(&tree, "out"), &["rocblas_lib.kpm", "missing-archive"]);
}

#[test]
fn files_of_a_target_in_the_generic_artifact() {
    let tree = one_shard();
    let object = code_object("gfx942", b"database").unwrap();
    tree.write(&at("generic", &format!("{DATABASE}/Kernels_gfx942.hsaco")), &object);
    let report = check(&tree, "shards");
    assert_found(&report, &["blas_lib_generic", "Kernels_gfx942.hsaco", "misplaced-file"]);
    let fat = format!("in/linux-a/blas_lib/{PREFIX}/lib/librocblas.so.5");
    fs::copy(tree.path(&fat), tree.path(&at("generic", "lib/libfat.so"))).unwrap();
    let report = check(&tree, "shards");
    assert_found(&report, &["libfat.so", "misplaced-file"]);
}

#[test]
fn files_of_another_target_and_of_the_host_in_a_target_artifact() {
    let tree = one_shard();
    let object = code_object("gfx1100", b"database").unwrap();
    let wrong = format!("{DATABASE}/Kernels_gfx1100.hsaco");
    tree.write(&at("gfx942", &wrong), &object);
    let lies = format!("{DATABASE}/Other_gfx942.hsaco");
    tree.write(&at("gfx942", &lies), &object);
    fs::copy(
        tree.path(&at("generic", "lib/librocblas.so.5")),
        tree.path(&at("gfx942", "lib/host.so")),
    )
    .unwrap();
    let report = check(&tree, "shards");
    assert_found(&report, &["Kernels_gfx1100.hsaco", "misplaced-file"]);
    assert_found(&report, &["Other_gfx942.hsaco", "contradictory-target"]);
    assert_found(&report, &["host.so", "misplaced-file"]);
}

#[test]
fn an_artifact_of_a_target_without_device_code() {
    let tree = one_shard();
    let empty = tree.path("shards/linux-a/blas_lib_gfx1201");
    write(empty.join("artifact_manifest.txt"), format!("{PREFIX}\n"));
    fs::create_dir_all(empty.join(PREFIX)).unwrap();
    let report = check(&tree, "shards");
    assert_found(&report, &["blas_lib_gfx1201", "without-code"]);
}

#[test]
fn debug_files_and_instrumented_builds_are_not_faults() {
    let tree = Tree::new();
    let stage = tree.path(&format!("in/linux-a/blas_lib/{PREFIX}"));
    let library = stage.join("lib/librocblas.so.5");
    let fat = FatLibrary::new().red_zones().wrapper(Storage::Plain, [code("gfx942", "gemm")]);
    fat.flag("-g").build(&library).unwrap();
    FatLibrary::new()
        .wrapper(Storage::Plain, [code("gfx942", "put")])
        .without_wrappers()
        .build(&stage.join("lib/librocshmem.so"))
        .unwrap();
    let artifact = tree.path("in/linux-a/blas_lib");
    write(artifact.join("artifact_manifest.txt"), format!("{PREFIX}\n"));
    process::run(
        Command::new("objcopy")
            .arg("--only-keep-debug")
            .args([&library, &stage.join("lib/librocblas.so.5.debug")]),
    );
    let output = tree.path("shards/linux-a");
    split(&Options::new(artifact, output, "blas_lib"), &()).unwrap();
    let report = check_with(&tree, "shards/linux-a", Some("in/linux-a"), &[]);
    assert_eq!(faults(&report), [""; 0]);
}

#[test]
fn a_file_in_two_artifacts() {
    let tree = one_shard();
    let file = "lib/rocblas/library/TensileLibrary_fallback.dat";
    fs::copy(tree.path(&at("generic", file)), tree.path(&at("gfx942", file))).unwrap();
    let report = check(&tree, "shards");
    assert_found(&report, &["blas_lib_gfx942", "fallback.dat", "conflicting-files"]);
}

#[test]
fn half_a_pair() {
    let tree = one_shard();
    let library = format!("{DATABASE}/TensileLibrary_Type_SS_gfx942.dat");
    fs::remove_file(tree.path(&at("gfx942", &library))).unwrap();
    let code = format!("{DATABASE}/TensileLibrary_Type_SS_gfx1100.co");
    fs::remove_file(tree.path(&at("gfx1100", &code))).unwrap();
    let report = check(&tree, "shards");
    assert_found(&report, &["Type_SS_gfx942.co", "incomplete-database"]);
    assert_found(&report, &["Type_SS_gfx1100.dat", "incomplete-database"]);
}

#[test]
fn a_manifest_with_one_target_or_a_path_of_the_build() {
    let manifest = at("generic", "lib/.kpack/rocblas_lib.kpm");
    let with = |change: fn(&mut Manifest)| {
        let tree = one_shard();
        let path = tree.path(&manifest);
        let mut manifest = Manifest::read(&fs::read(&path).unwrap()).unwrap();
        change(&mut manifest);
        fs::write(&path, manifest.to_bytes()).unwrap();
        check(&tree, "shards")
    };
    let report = with(|manifest| drop(manifest.kpack_files.remove("gfx942")));
    assert_found(
        &report,
        &["rocblas_lib.kpm", "inconsistent-manifest", "`rocblas_lib_gfx942.kpack`"],
    );
    let report = with(|manifest| manifest.prefix = format!("{PREFIX}/lib"));
    assert_found(&report, &["rocblas_lib.kpm", "inconsistent-manifest"]);
    let report = with(|manifest| manifest.prefix = "/home/ci/build/stage/lib".to_owned());
    assert_found(&report, &["rocblas_lib.kpm", "inconsistent-manifest"]);
    let report = with(|manifest| manifest.kpack_files.get_mut("gfx942").unwrap().size += 1);
    assert_found(&report, &["rocblas_lib.kpm", "rocblas_lib_gfx942.kpack", "not-as-listed"]);
}

#[test]
fn an_artifact_that_does_not_list_what_it_has() {
    let tree = one_shard();
    tree.write("shards/linux-a/blas_lib_gfx942/more/file", b"");
    let report = check(&tree, "shards");
    assert_found(&report, &["more/file", "in-no-prefix"]);
    tree.write("shards/linux-a/blas_lib_gfx942/artifact_manifest.txt", b"../x\n");
    let report = check(&tree, "shards");
    assert_found(&report, &["artifact_manifest.txt", "line 1", "invalid-prefix-list"]);
}

#[test]
fn an_archive_of_a_binary_that_is_not_there() {
    let tree = one_shard();
    fs::remove_file(tree.path(&at("generic", "lib/librocblas.so.5"))).unwrap();
    let report = check(&tree, "shards");
    assert_found(&report, &["rocblas_lib_gfx942.kpack", "unused-kernels", "`lib/librocblas.so.5`"]);
}

#[test]
fn what_was_lost_changed_or_added() {
    let against = |change: &dyn Fn(&Tree)| {
        let tree = one_shard();
        change(&tree);
        check_with(&tree, "shards/linux-a", Some("in/linux-a/blas_lib"), &[])
    };
    let fallback = at("generic", &format!("{DATABASE}/TensileLibrary_fallback.dat"));
    let report = against(&|tree| fs::remove_file(tree.path(&fallback)).unwrap());
    assert_found(&report, &["in/linux-a", "fallback.dat", "is lost", "files-differ"]);
    let report = against(&|tree| fs::write(tree.path(&fallback), "other").unwrap());
    assert_found(&report, &["shards/linux-a", "fallback.dat", "has other bytes"]);
    let report = against(&|tree| tree.write(&at("generic", "share/new"), b""));
    assert_found(&report, &["share/new", "is not in the unsplit tree"]);
    // The artifact does not list the prefix any more.
    let report = against(&|tree| {
        tree.write(&at("generic", "share/new"), b"");
        tree.write("shards/linux-a/blas_lib_generic/artifact_manifest.txt", b"");
    });
    assert_found(&report, &["share/new", "is not in the unsplit tree"]);
    let report = against(&|tree| fs::remove_dir(tree.path(&at("generic", "share/empty"))).unwrap());
    assert_found(&report, &["share/empty", "is lost"]);
    let report = against(&|tree| {
        let (from, to) = ("gfx942", "gfx1100");
        let kpack = "lib/.kpack/rocblas_lib_gfx942.kpack";
        fs::copy(tree.path(&at(from, kpack)), tree.path(&at(to, kpack))).unwrap();
    });
    assert_found(&report, &["rocblas_lib_gfx942.kpack", "is in", "as well"]);
    let report = against(&|tree| {
        let kpack = at("gfx942", "lib/.kpack/rocblas_lib_gfx942.kpack");
        fs::remove_file(tree.path(&kpack)).unwrap();
    });
    assert_found(
        &report,
        &[
            "librocblas.so.5",
            "index 1 for gfx942",
            "the archives do not; if it was left out on purpose",
        ],
    );
}

#[test]
fn a_batch_against_all_that_was_built() {
    let tree = one_shard();
    let other = tree.path("in/linux-a/doc_lib");
    write(other.join("artifact_manifest.txt"), b"doc/stage\n");
    write(other.join("doc/stage/README"), b"text");
    let report = check_with(&tree, "shards/linux-a", Some("in/linux-a"), &[]);
    assert_found(&report, &["in/linux-a/doc_lib", "missing-artifact"]);
    split(&Options::new(other, tree.path("shards/linux-a"), "doc_lib"), &()).unwrap();
    assert_eq!(faults(&check_with(&tree, "shards/linux-a", Some("in/linux-a"), &[])), [""; 0]);
    // A family of GPUs is not part of the component's name.
    let built = tree.path("in/linux-a");
    fs::rename(built.join("blas_lib"), built.join("blas_lib_gfx11X-all")).unwrap();
    for unsplit in ["in/linux-a", "in/linux-a/blas_lib_gfx11X-all"] {
        let report = check_with(&tree, "shards/linux-a", Some(unsplit), &[]);
        assert_eq!(faults(&report), [""; 0]);
    }
}

#[test]
fn an_install_prefix_against_the_unsplit_one() {
    let tree = one_shard();
    let unsplit = format!("in/linux-a/blas_lib/{PREFIX}");
    process::copy(tree.path(&unsplit), tree.path("prefix"));
    let options = kpack_split::install::InstallOptions::new(
        tree.path("prefix"),
        "rocblas",
        ["lib/librocblas.so.5"],
    );
    kpack_split::install::install(&options, &()).unwrap();
    assert_eq!(faults(&check_with(&tree, "prefix", Some(&unsplit), &[])), [""; 0]);
    fs::remove_file(tree.path("prefix/lib/librocblas.so")).unwrap();
    assert_found(&check_with(&tree, "prefix", Some(&unsplit), &[]), &["librocblas.so", "is lost"]);
}

#[test]
fn a_binary_with_two_names() {
    let tree = one_shard();
    let stage = tree.path(&format!("in/linux-a/blas_lib/{PREFIX}"));
    fs::create_dir(stage.join("lib/compat")).unwrap();
    for name in ["lib/librocblas-5.so", "lib/compat/librocblas.so"] {
        fs::hard_link(stage.join("lib/librocblas.so.5"), stage.join(name)).unwrap();
    }
    let artifact = tree.path("in/linux-a/blas_lib");
    split(&Options::new(artifact, tree.path("shards/linux-a"), "blas_lib"), &()).unwrap();
    let report = check_with(&tree, "shards/linux-a", Some("in/linux-a"), &[]);
    let found = faults(&report);
    // Its markers lead from one directory only.
    assert!(!found.iter().any(|fault| fault.contains("librocblas-5.so")), "{found:#?}");
    // A copy under another name is not at the path in its kernel names.
    let copy = tree.path(&at("generic", "lib/librocblas-5.so"));
    fs::remove_file(&copy).unwrap();
    fs::copy(tree.path(&at("generic", "lib/librocblas.so.5")), &copy).unwrap();
    let report = check(&tree, "shards/linux-a");
    assert_found(&report, &["librocblas-5.so", "moved-binary"]);
}

#[test]
fn device_code_in_no_known_place() {
    let tree = one_shard();
    let object = code_object("gfx942", b"elsewhere").unwrap();
    for artifact in ["generic", "gfx942", "gfx1100"] {
        tree.write(&at(artifact, &format!("share/{artifact}.bin")), &object);
    }
    let report = check(&tree, "shards");
    let found = faults(&report);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_found(
        &report,
        &[
            "share/gfx1100.bin",
            "is for gfx942, but in an artifact for gfx1100: an AMDGPU code object",
        ],
    );
    fs::remove_file(tree.path(&at("gfx1100", "share/gfx1100.bin"))).unwrap();
    let report = check(&tree, "shards");
    assert_eq!(faults(&report), [""; 0]);
    for expected in [
        "5 files, 1 of them with device code outside of the known places",
        "4 files, device code only for gfx942",
    ] {
        let mut texts = report.findings.iter().map(|check| &check.text);
        assert!(texts.any(|text| text == expected), "{expected}\n{report:#?}");
    }
}

/// What a split with `--unknown move` makes of a component with nothing else of a target.
#[test]
fn an_artifact_of_device_code_in_no_known_place_is_not_empty() {
    let tree = one_shard();
    let artifact = tree.path("in/linux-a/blas_lib");
    let object = code_object("gfx1201", b"elsewhere").unwrap();
    write(artifact.join(PREFIX).join("share/add.bin"), &object);
    let mut options = Options::new(artifact, tree.path("shards/linux-a"), "blas_lib");
    options.unknown = Unknown::Move;
    split(&options, &()).unwrap();
    let report = check_with(&tree, "shards/linux-a", Some("in/linux-a"), &[]);
    assert_eq!(faults(&report), [""; 0]);
}

#[test]
fn a_file_for_all_targets_that_lacks_one() {
    let tree = one_shard();
    let library = "lib/hipblaslt/library";
    let transform = |targets: &[&'static str]| {
        let codes: Vec<_> = targets.iter().map(|target| code(target, "transform")).collect();
        bundle(Storage::Zstd(1), &codes).unwrap()
    };
    let extensions = |targets: &[&str]| {
        let entries: BTreeMap<&str, u32> = targets.iter().map(|target| (*target, 0)).collect();
        rmp_serde::to_vec(&entries).unwrap()
    };
    let put = |file: &str, bytes: &[u8]| {
        tree.write(&at("generic", &format!("{library}/{file}")), bytes);
        check(&tree, "shards")
    };
    for target in ["gfx1100", "gfx942"] {
        let object = code_object(target, b"kernels").unwrap();
        let file = format!("{library}/Kernels.so-000-{target}.hsaco");
        tree.write(&at(target, &file), &object);
    }
    let both = ["gfx1100", "gfx942"];
    let report = put("hipblasltTransform.hsaco", &transform(&both));
    assert_eq!(faults(&report), [""; 0]);
    let report = put("hipblasltExtOpLibrary.dat", &extensions(&both));
    assert_eq!(faults(&report), [""; 0]);

    for (file, part, whole) in [
        ("hipblasltTransform.hsaco", transform(&["gfx1100"]), transform(&both)),
        ("hipblasltExtOpLibrary.dat", extensions(&["gfx1100"]), extensions(&both)),
    ] {
        let report = put(file, &part);
        assert_eq!(report.count(Severity::Fault), 1, "{report:#?}");
        assert_found(&report, &[file, "incomplete-database", "gfx942"]);
        // It may be missing if its target was not named.
        let report = check_with(&tree, "shards", None, &["gfx1100"]);
        assert_eq!(faults(&report), [""; 0]);
        put(file, &whole);
    }

    // hipBLASLt was not built for it, though another library in the prefix was.
    put("hipblasltTransform.hsaco", &transform(&["gfx1100"]));
    let kernels = format!("{library}/Kernels.so-000-gfx942.hsaco");
    fs::remove_file(tree.path(&at("gfx942", &kernels))).unwrap();
    let report = check(&tree, "shards");
    assert_eq!(faults(&report), [""; 0]);
    // The manifest of a package that is not installed does not count.
    fs::remove_dir_all(tree.path("shards/linux-a/blas_lib_gfx942")).unwrap();
    let report = check(&tree, "shards");
    assert_found(&report, &["hipblasltTransform.hsaco", "lists no kernels for gfx942"]);
}

#[test]
fn what_is_in_no_prefix_is_compared_too() {
    let tree = one_shard();
    let artifact = tree.path("in/linux-a/blas_lib");
    write(artifact.join("logs/build.log"), b"text");
    symlink("build.log", artifact.join("logs/last.log")).unwrap();
    fs::create_dir(artifact.join("empty")).unwrap();
    let output = tree.path("shards/linux-a");
    split(&Options::new(&artifact, output, "blas_lib"), &()).unwrap();
    let against = || check_with(&tree, "shards/linux-a", Some("in/linux-a"), &[]);
    let report = against();
    assert_eq!(faults(&report), [""; 0]);
    let mut texts = report.findings.iter().map(|check| check.text.as_str());
    assert!(texts.any(|text| text == "2 files in no prefix, as before"));

    let generic = tree.path("shards/linux-a/blas_lib_generic");
    fs::write(generic.join("logs/build.log"), "other").unwrap();
    fs::remove_file(generic.join("logs/last.log")).unwrap();
    fs::remove_dir(generic.join("empty")).unwrap();
    fs::write(generic.join("logs/new.log"), "").unwrap();
    let report = against();
    for parts in [
        ["shards/linux-a", "build.log: has other bytes"],
        ["in/linux-a", "last.log: is lost: it is in no prefix"],
        ["in/linux-a", "blas_lib/empty: is lost"],
        ["shards/linux-a", "new.log: is not in the unsplit tree"],
    ] {
        assert_found(&report, &parts);
    }
    assert_eq!(report.count(Severity::Fault), 4, "{report:#?}");
}

#[test]
fn what_is_in_no_prefix_is_not_recombined() {
    let tree = recombined();
    tree.write("in/linux-a/blas_lib/logs/build.log", b"text");
    let targets = ["gfx1100", "gfx1101"];
    let report = check_with(&tree, "out", Some("in/linux-a"), &targets);
    assert_eq!(faults(&report), [""; 0]);
    let mut notes = report.findings.iter().filter(|check| check.severity == Severity::Note);
    assert!(notes.any(|note| note.text.contains("recombined artifacts do not have it")));
}

/// As for a file: it could not show what was lost.
#[test]
fn an_original_that_is_itself_split_is_refused() {
    let tree = Tree::new();
    shard(&tree, "linux-a", &["gfx1100"]);
    let prefix = format!("in/linux-a/blas_lib/{PREFIX}");
    process::copy(tree.path(&prefix), tree.path("prefix"));
    let options =
        install::InstallOptions::new(tree.path("prefix"), "blas", ["lib/librocblas.so.5"]);
    install::install(&options, &()).unwrap();
    let refusal = |path: &str, against: &str| {
        let mut options = verify::Options::default();
        options.against = Some(tree.path(against));
        match verify::verify(&[tree.path(path)], &options, &()) {
            Err(error @ Error::Refused { .. }) => error.id(),
            other => panic!("{path} against {against}: {other:?}"),
        }
    };
    for (path, against) in [
        ("prefix", "prefix"),
        ("shards/linux-a", "shards/linux-a"),
        ("shards/linux-a", "shards/linux-a/blas_lib_gfx1100"),
    ] {
        assert_eq!(refusal(path, against), ids::SPLIT_ARTIFACT);
    }
    assert_eq!(faults(&check_with(&tree, "prefix", Some(&prefix), &[])), [""; 0]);
}
