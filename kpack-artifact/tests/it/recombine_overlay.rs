//! Given artifacts for one root, when one would overwrite another's file, then recombination rejects it and
//! verification finds it.

use std::fs;
use std::os::unix::fs::symlink;

use crate::planned::{
    CONFIGURATION, assert_said, options, planned, recombine, said, with_validation,
};
use crate::shards::{DATABASE, PREFIX, shard, three_shards};
use crate::verified::{check, faults};
use kpack_artifact::recombine::{Severity, plan};
use kpack_artifact::split::{Options, split};
use kpack_core::ids;
use kpack_tests::fixture::{FatLibrary, Storage, code};
use kpack_tests::process;
use kpack_tests::tree::{Tree, write};

const OTHER: &str = "math-libs/BLAS/hipBLASLt/stage";

#[test]
fn groups_of_an_earlier_configuration() {
    let tree = three_shards();
    recombine(&tree, CONFIGURATION);
    let renamed = CONFIGURATION.replace("\"instinct\"", "\"mi\"");
    let plan = planned(&tree, &renamed);
    let parts = ["out/blas_lib_instinct: ", "stale-artifact"];
    assert_said(&plan, Severity::Fault, &parts);
    assert_eq!(plan.errors(), 1);
    let error = plan.failure(tree.root()).unwrap_err();
    assert_eq!(error.id(), ids::FAILED_COMPONENTS);
    assert!(tree.path("out/blas_lib_instinct/artifact_manifest.txt").is_file());
    assert!(!tree.path("out/blas_lib_mi").exists());
    fs::remove_dir_all(tree.path("out/blas_lib_instinct")).unwrap();
    recombine(&tree, &renamed);
    assert_eq!(faults(&check(&tree, "out")), [""; 0]);
}

/// Whether such a directory is an artifact is unknown, so it is neither stale nor an error.
#[test]
fn a_list_in_the_output_directory_that_cannot_be_read() {
    let tree = three_shards();
    let directory = tree.path("out/blas_lib_mi");
    fs::create_dir_all(&directory).unwrap();
    symlink("artifact_manifest.txt", directory.join("artifact_manifest.txt")).unwrap();
    let plan = recombine(&tree, CONFIGURATION);
    let why = "its artifact_manifest.txt cannot be read: Too many levels of symbolic links";
    assert_said(&plan, Severity::Note, &["out/blas_lib_mi: ", why, "[stale-artifact]"]);
    assert_eq!(plan.errors(), 0);
    assert!(tree.path("out/blas_lib_instinct/artifact_manifest.txt").is_file());
}

/// A family's package and a processor's own may hold the same device code.
#[test]
fn a_target_in_two_groups_is_in_both_artifacts() {
    let tree = three_shards();
    let both = CONFIGURATION.replace(
        "\"instinct\":",
        "\"gfx942\": {\"architectures\": [\"gfx942\"]},\n    \"instinct\":",
    );
    recombine(&tree, &both);
    for group in ["gfx942", "instinct"] {
        let archive = format!("out/blas_lib_{group}/{PREFIX}/lib/.kpack/rocblas_lib_gfx942.kpack");
        assert!(tree.path(&archive).is_file(), "{group}");
    }
    assert_eq!(faults(&check(&tree, "out")), [""; 0]);
    // Two builds of it are not the same file, whoever has them.
    let database = format!("{PREFIX}/{DATABASE}/TensileLibrary_Type_SS_gfx942.co");
    let path = tree.path(&format!("out/blas_lib_instinct/{database}"));
    let mut bytes = fs::read(&path).unwrap();
    bytes.push(0);
    fs::write(path, bytes).unwrap();
    let faults = faults(&check(&tree, "out"));
    assert_eq!(faults.len(), 1, "{faults:#?}");
    assert!(faults[0].contains("is in "), "{faults:#?}");
}

#[test]
fn components_of_an_earlier_run() {
    let tree = three_shards();
    for name in ["old_lib_generic", "old_lib_gfx110X", "blas_lib_dev_generic"] {
        let list = tree.path(&format!("out/{name}/artifact_manifest.txt"));
        write(&list, PREFIX);
    }
    // No artifacts at all.
    tree.write("out/blas_lib_notes/README", b"");
    tree.write("out/.blas_lib_old.tmp/artifact_manifest.txt", b"");
    let plan = planned(&tree, CONFIGURATION);
    for (name, component) in [
        ("old_lib_generic", "old_lib"),
        ("old_lib_gfx110X", "old_lib"),
        ("blas_lib_dev_generic", "blas_lib_dev"),
    ] {
        let text = format!("no shard has the component {component}");
        assert_said(&plan, Severity::Warning, &[name, &text]);
    }
    let left = "leftover of an interrupted run, which this run does not replace";
    assert_said(&plan, Severity::Warning, &[".blas_lib_old.tmp", left]);
    assert_eq!(said(&plan).len(), 4);
    // A run for one component ignores the others.
    let at = |shard: &str| tree.path(&format!("shards/{shard}/doc_lib_generic"));
    write(at("linux-a").join("artifact_manifest.txt"), b"doc/stage\n");
    write(at("linux-a").join("doc/stage/README"), b"text");
    tree.write("out/doc_lib_all/artifact_manifest.txt", b"");
    let mut options = options(&tree, CONFIGURATION);
    options.components = vec!["blas_lib".to_owned()];
    let plan = kpack_artifact::recombine::plan(&options, &()).unwrap();
    assert!(!said(&plan).iter().any(|line| line.contains("doc_lib")));
}

/// Adds a second prefix to all generic artifacts, with `file` in both.
fn in_two_prefixes(tree: &Tree, file: &str, ours: &[u8], theirs: &[u8]) {
    for shard in ["linux-a", "linux-b", "linux-c"] {
        let root = format!("shards/{shard}/blas_lib_generic");
        let list = format!("{PREFIX}\n{OTHER}\n");
        tree.write(&format!("{root}/artifact_manifest.txt"), list);
        tree.write(&format!("{root}/{PREFIX}/{file}"), ours);
        tree.write(&format!("{root}/{OTHER}/{file}"), theirs);
    }
}

#[test]
fn other_files_in_two_prefixes_of_one_artifact() {
    let tree = three_shards();
    in_two_prefixes(&tree, "share/LICENSE", b"MIT", b"MIT");
    assert_eq!(said(&planned(&tree, CONFIGURATION)), [""; 0]);
    assert_eq!(faults(&check(&tree, "shards/linux-a")), [""; 0]);
    recombine(&tree, CONFIGURATION);
    assert_eq!(faults(&check(&tree, "out")), [""; 0]);

    in_two_prefixes(&tree, "share/LICENSE", b"MIT", b"BSD");
    let plan = planned(&tree, CONFIGURATION);
    // With any validation of host files.
    let lenient = with_validation("verify_generic_artifacts_match", false);
    assert_eq!(planned(&tree, &lenient).errors(), 1);
    let text = "and both are installed as share/LICENSE";
    assert_said(&plan, Severity::Fault, &["rocBLAS/stage/share/LICENSE", text]);
    let found = faults(&check(&tree, "shards/linux-a"));
    assert!(found.iter().any(|fault| fault.contains(text)), "{found:#?}");

    // A file here, and a link there.
    let tree = three_shards();
    in_two_prefixes(&tree, "share/LICENSE", b"MIT", b"MIT");
    for shard in ["linux-a", "linux-b", "linux-c"] {
        let file = format!("shards/{shard}/blas_lib_generic/{OTHER}/share/LICENSE");
        fs::remove_file(tree.path(&file)).unwrap();
        symlink("LICENSE.md", tree.path(&file)).unwrap();
    }
    assert_said(&planned(&tree, CONFIGURATION), Severity::Fault, &[text]);
    let found = faults(&check(&tree, "shards/linux-a"));
    assert!(found.iter().any(|fault| fault.contains(text)), "{found:#?}");
}

#[test]
fn a_file_in_two_prefixes_of_two_artifacts() {
    let tree = three_shards();
    let file = format!("{DATABASE}/TensileLibrary_Type_SS_gfx942.co");
    let root = tree.path("shards/linux-b/blas_lib_gfx90a");
    fs::write(root.join("artifact_manifest.txt"), format!("{PREFIX}\n{OTHER}\n")).unwrap();
    let object = tree.path(&format!("shards/linux-c/blas_lib_gfx942/{PREFIX}/{file}"));
    write(root.join(OTHER).join(&file), fs::read(object).unwrap());
    let apart = CONFIGURATION.replace(
        "\"gfx90a:xnack+\", \"gfx942\"]}",
        "\"gfx942\"]}, \"mi2\": {\"architectures\": [\"gfx90a:xnack+\"]}",
    );
    let plan = planned(&tree, &apart);
    let parts = ["Type_SS_gfx942.co", "conflicting-files"];
    assert_said(&plan, Severity::Fault, &parts);
}

#[test]
fn two_artifacts_of_one_name() {
    let tree = three_shards();
    for artifact in ["generic", "gfx1100"] {
        let [from, to] = ["blas_lib", "blas"]
            .map(|component| tree.path(&format!("shards/linux-a/{component}_{artifact}")));
        process::copy(from, to);
    }
    let configuration = r#"{"primary_shard": "linux-a", "architecture_groups": {
        "all": {"architectures": ["gfx1100", "gfx1101", "gfx90a:xnack+", "gfx942"]}},
        "component_overrides": {"blas": {"architecture_groups": {
            "lib_all": {"architectures": ["gfx1100"]}}}}}"#;
    let plan = planned(&tree, configuration);
    let parts = ["out/blas_lib_all: ", "bad-configuration"];
    assert_said(&plan, Severity::Fault, &parts);
}

#[test]
fn output_among_the_shards_however_it_is_spelled() {
    let tree = three_shards();
    // A shard that is elsewhere, and an artifact.
    fs::rename(tree.path("shards/linux-b"), tree.path("uploaded")).unwrap();
    symlink("../uploaded", tree.path("shards/linux-b")).unwrap();
    let artifact = tree.path("shards/linux-c/blas_lib_gfx942");
    fs::create_dir(tree.path("cache")).unwrap();
    fs::rename(&artifact, tree.path("cache/blas_lib_gfx942")).unwrap();
    symlink(tree.path("cache/blas_lib_gfx942"), &artifact).unwrap();
    assert_eq!(said(&planned(&tree, CONFIGURATION)), [""; 0]);
    for output in ["uploaded", "cache", "shards/linux-a", "x/../shards", "out/../cache/more/.."] {
        let mut options = options(&tree, CONFIGURATION);
        options.output_dir = tree.path(output);
        let error = plan(&options, &()).unwrap_err().in_one_line();
        let known = ["must not contain each other", "which does not exist"];
        assert!(known.iter().any(|text| error.contains(text)), "{output}: {error}");
    }
}

#[test]
fn prefixes_of_two_shards_that_overlap() {
    let tree = three_shards();
    let list = "shards/linux-b/blas_lib_gfx90a/artifact_manifest.txt";
    tree.write(list, format!("{PREFIX}/lib\n"));
    let plan = planned(&tree, CONFIGURATION);
    let text = format!("the prefixes `{PREFIX}` and `{PREFIX}/lib` for it, which overlap");
    assert_said(&plan, Severity::Fault, &["out/blas_lib_instinct", &text, "invalid-prefix-list"]);
}

#[test]
fn what_is_no_shard_and_no_artifact_is_left_out_and_named() {
    let tree = three_shards();
    fs::create_dir(tree.path("shards/linux-d")).unwrap();
    let unsplit = tree.path("shards/linux-a/blas_lib_gfx110X");
    write(unsplit.join("artifact_manifest.txt"), b"");
    fs::create_dir(tree.path("shards/linux-a/logs")).unwrap();
    let plan = planned(&tree, CONFIGURATION);
    let parts = ["linux-d", "not-an-artifact"];
    assert_said(&plan, Severity::Warning, &parts);
    let text = "not-an-artifact";
    assert_said(&plan, Severity::Warning, &["blas_lib_gfx110X", text]);
    assert_said(&plan, Severity::Note, &["logs", text]);
    assert_eq!(said(&plan).len(), 3);
}

#[test]
fn a_target_that_nobody_knows() {
    let tree = three_shards();
    let configuration = CONFIGURATION.replace("\"gfx942\"", "\"gfx942\", \"gfx9999\", \"gfx12xx\"");
    let plan = planned(&tree, &configuration);
    let parts = ["no shard has gfx9999, gfx12 for group `instinct`"];
    assert_said(&plan, Severity::Warning, &parts);
    let hint = "gfx9999 is not a known processor";
    assert_said(&plan, Severity::Warning, &[hint]);
    assert!(!said(&plan).iter().any(|line| line.contains("gfx12 is no")));
}

/// Adds a component without device code to each shard.
fn second_component(tree: &Tree, file: &str, bytes: &[u8]) {
    for shard in ["linux-a", "linux-b", "linux-c"] {
        let artifact = tree.path(&format!("shards/{shard}/more_lib_generic"));
        write(artifact.join("artifact_manifest.txt"), PREFIX);
        write(artifact.join(PREFIX).join(file), bytes);
    }
}

#[test]
fn a_path_that_two_components_install() {
    let file = "lib/rocblas/library/TensileLibrary_fallback.dat";
    let tree = three_shards();
    let original = format!("shards/linux-a/blas_lib_generic/{PREFIX}/{file}");
    let original = fs::read(tree.path(&original)).unwrap();
    // Packages of both own it, but nothing is lost.
    second_component(&tree, file, &original);
    let text = format!("the same as blas_lib_generic/{PREFIX}/{file} of another component");
    let parts = ["more_lib_generic", file, &text];
    let plan = planned(&tree, CONFIGURATION);
    assert_said(&plan, Severity::Warning, &parts);
    assert_eq!(plan.errors(), 0, "{:#?}", said(&plan));
    assert_eq!(faults(&check(&tree, "shards")), [""; 0]);

    second_component(&tree, file, b"other");
    let text = format!("not the same as blas_lib_generic/{PREFIX}/{file} of another component");
    let parts = ["more_lib_generic", file, &text];
    assert_said(&planned(&tree, CONFIGURATION), Severity::Fault, &parts);
    let found = faults(&check(&tree, "shards"));
    let text = format!("of another component, and both are installed as {file}");
    for shard in ["linux-a", "linux-b", "linux-c"] {
        // It differs from the file in its own shard.
        let of = |fault: &&String| fault.matches(shard).count() == 2 && fault.contains(&text);
        assert_eq!(found.iter().filter(of).count(), 1, "{found:#?}");
    }
}

/// Given the same binary in two components, of which one gets the code IDs of another shard, then it is
/// not the same any more.
#[test]
fn a_host_binary_that_two_components_install_with_other_code_ids() {
    let file = "lib/librocblas.so.5";
    let tree = three_shards();
    let built = format!("shards/linux-a/blas_lib_generic/{PREFIX}/{file}");
    second_component(&tree, file, &fs::read(tree.path(&built)).unwrap());
    // Its own build of the library, whose marker has an ID for gfx90a:xnack+.
    shard(&tree, "linux-b", &["gfx90a:xnack+"]);
    let lenient = with_validation("verify_generic_artifacts_match", false);
    let text = format!("not the same as blas_lib_generic/{PREFIX}/{file} of another component");
    let parts = ["more_lib_generic", file, &text];
    assert_said(&planned(&tree, &lenient), Severity::Fault, &parts);
}

/// One module is in two artifacts, so their archives have the same name.
#[test]
fn archives_that_two_components_install() {
    let tree = three_shards();
    let artifact = tree.path("in/linux-a/more_lib");
    let library = FatLibrary::new().wrapper(Storage::Plain, [code("gfx1100", "more")]);
    let path = artifact.join(PREFIX).join("lib/libmore.so");
    library.build(&path).unwrap();
    write(artifact.join("artifact_manifest.txt"), PREFIX);
    split(&Options::new(artifact, tree.path("shards/linux-a"), "more_lib"), &()).unwrap();
    let archive = "lib/.kpack/rocblas_lib_gfx1100.kpack";
    let configuration = with_validation("error_on_missing_architecture", false);
    let plan = planned(&tree, &configuration);
    let parts = ["more_lib_gfx110X", archive, "is not the same as blas_lib_gfx110X"];
    assert_said(&plan, Severity::Fault, &parts);
    let found = faults(&check(&tree, "shards/linux-a"));
    let is_found = |fault: &String| {
        fault.contains(archive)
            && fault.contains("is not the same as")
            && fault.contains("more_lib")
    };
    assert!(found.iter().any(is_found), "{found:#?}");
}
