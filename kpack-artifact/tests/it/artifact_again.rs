//! Given artifacts that are already split, when they are split again, then they stay unchanged, except for
//! targets that are left out; and their manifests list what is there.

use std::collections::BTreeMap;
use std::fs;

use kpack_artifact::split::{BatchOptions, BatchOutcome, BatchReport, Options, batch};
use kpack_core::ids;
use kpack_split::Error;
use kpack_split::install;
use kpack_tests::fixture::{code_object, library_file};
use kpack_tests::tree::Tree;

use crate::blas::{
    HIPBLASLT, ROCBLAS, artifact, fat, files, manifest, options, overlay, refusal, run, warnings,
};
use crate::verified::assert_holds;

const ALL: [&str; 3] = ["blas_lib_generic", "blas_lib_gfx1100", "blas_lib_gfx942"];

/// A batch over `parent`, with these expected targets.
fn batch_of(parent: &Tree, output: &Tree, targets: &[&str]) -> Result<BatchReport, Error> {
    let mut each = Options::new("", output.root(), "");
    each.targets = targets.iter().map(|name| name.parse().unwrap()).collect();
    let options = BatchOptions::new(parent.root().to_owned(), each);
    batch(&options, &())
}

fn failure(report: &BatchReport) -> &str {
    match &report.artifacts[..] {
        [BatchOutcome::Failed(failure)] => &failure.error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_split_artifact_stays_as_it_is() {
    let (input, first) = (artifact(), Tree::new());
    run(&options(&input, &first));
    for name in ["blas_lib_generic", "blas_lib_gfx1100"] {
        let again = Tree::new();
        let split = Options::new(first.path(name), again.root(), "blas_lib");
        let report = run(&split);
        assert!(report.binaries.is_empty() && report.archives.is_empty());
        let expected: BTreeMap<_, _> = first.snapshot().into_iter().collect();
        for (path, entry) in again.snapshot() {
            if path != "blas_lib_generic/artifact_manifest.txt" {
                assert_eq!(expected.get(&path), Some(&entry), "{path}");
            }
        }
        assert_eq!(files(&again, name), files(&first, name));
    }
    // An installation that was split in place: the same artifacts as from the build.
    let installed = overlay(&first, &["blas_lib_generic", "blas_lib_gfx1100", "blas_lib_gfx942"]);
    let artifact = Tree::new();
    artifact.write("artifact_manifest.txt", "dist\n");
    fs::rename(installed.root(), artifact.path("dist")).unwrap();
    fs::create_dir(installed.root()).unwrap();
    let again = Tree::new();
    run(&options(&artifact, &again));
    let kpacks = files(&again, "blas_lib_gfx1100");
    assert!(kpacks.contains(&"dist/lib/.kpack/rocblas_lib_gfx1100.kpack".to_owned()));
    let generic = files(&again, "blas_lib_generic");
    assert!(generic.contains(&"dist/lib/.kpack/rocblas_lib.kpm".to_owned()));
    assert!(!generic.iter().any(|file| file.contains("gfx")), "{generic:?}");
}

#[test]
fn how_to_install_archives_stays_in_the_manifest() {
    let (input, first, again) = (artifact(), Tree::new(), Tree::new());
    let mut with_hint = options(&input, &first);
    with_hint.install_hint = Some("apt install blas-@GFXARCH@".to_owned());
    run(&with_hint);
    run(&Options::new(first.path("blas_lib_generic"), again.root(), "blas_lib"));
    for output in [&first, &again] {
        let path = format!("blas_lib_generic/{ROCBLAS}/lib/.kpack/rocblas_lib.kpm");
        let hint = manifest(output, &path).install_hint;
        assert_eq!(hint, with_hint.install_hint);
    }
}

#[test]
fn a_prefix_that_was_split_in_part_is_split_to_the_end() {
    let (input, output, whole) = (artifact(), Tree::new(), Tree::new());
    run(&options(&input, &whole));
    let prefix = input.path(ROCBLAS);
    let library = install::InstallOptions::new(prefix, "rocblas", ["lib/librocblas.so.5"]);
    install::install(&library, &()).unwrap();
    run(&options(&input, &output));
    assert_eq!(output.snapshot(), whole.snapshot());
}

#[test]
fn a_split_artifact_does_not_replace_its_source() {
    let tree = artifact();
    let output = Tree::new();
    run(&options(&tree, &output));
    let before = output.snapshot();
    // Under another name, kpack does not recognise it.
    fs::rename(output.path("blas_lib_gfx942"), output.path("renamed")).unwrap();
    let again = Options::new(output.path("renamed"), output.path("again"), "blas_lib");
    let generic = Options::new(output.path("blas_lib_generic"), output.path("again"), "blas_lib");
    run(&generic);
    let there = fs::read_dir(output.path("again/blas_lib_generic")).unwrap().count();
    let refused = refusal(&again);
    assert!(refused.contains("replaced by an empty one"), "{refused}");
    let still = fs::read_dir(output.path("again/blas_lib_generic")).unwrap().count();
    assert_eq!(there, still);
    fs::remove_dir_all(output.path("again")).unwrap();
    fs::rename(output.path("renamed"), output.path("blas_lib_gfx942")).unwrap();
    assert_eq!(output.snapshot(), before);
}

#[test]
fn a_batch_of_split_artifacts_gives_the_same() {
    let (input, first, second) = (artifact(), Tree::new(), Tree::new());
    input.write("build.log", "in no prefix");
    run(&options(&input, &first));
    let report = batch_of(&first, &second, &[]).unwrap();
    let [BatchOutcome::Split(report)] = &report.artifacts[..] else {
        panic!("{report:?}");
    };
    assert_eq!((report.already_split, report.device_code), (3, true));
    assert_eq!(report.size_before, report.size_after);
    assert_eq!(second.snapshot(), first.snapshot());
    // Also over existing output, and from artifacts that were split twice.
    batch_of(&second, &first, &[]).unwrap();
    assert_eq!(second.snapshot(), first.snapshot());
    assert_eq!(fs::read_dir(first.root()).unwrap().count(), 3);
}

#[test]
fn each_split_artifact_by_itself_gives_the_same() {
    let (input, first, second) = (artifact(), Tree::new(), Tree::new());
    run(&options(&input, &first));
    for _ in 0..2 {
        for name in ALL {
            run(&Options::new(first.path(name), second.root(), "blas_lib"));
        }
    }
    assert_eq!(second.snapshot(), first.snapshot());
    assert_eq!(fs::read_dir(second.root()).unwrap().count(), 3);
}

/// Targets can be left out by the first split or by a later one.
#[test]
fn targets_that_are_left_out_are_in_no_manifest() {
    let (input, first) = (artifact(), Tree::new());
    run(&options(&input, &first));
    let expected = Tree::new();
    let mut once = options(&input, &expected);
    once.targets = vec!["gfx1100".parse().unwrap()];
    run(&once);

    let again = Tree::new();
    batch_of(&first, &again, &["gfx1100"]).unwrap();
    assert_eq!(again.snapshot(), expected.snapshot());

    let single = Tree::new();
    for name in ["blas_lib_generic", "blas_lib_gfx1100"] {
        let mut options = Options::new(first.path(name), single.root(), "blas_lib");
        options.targets.clone_from(&once.targets);
        run(&options);
    }
    assert_eq!(single.snapshot(), expected.snapshot());

    // The same with everything in one artifact.
    let installed = Tree::new();
    installed.write("artifact_manifest.txt", "dist\n");
    let dist = overlay(&first, &ALL);
    fs::rename(dist.root(), installed.path("dist")).unwrap();
    let output = Tree::new();
    let mut options = options(&installed, &output);
    options.targets.clone_from(&once.targets);
    let report = run(&options);
    assert_eq!(report.left_out, ["gfx942"]);
    let manifest = manifest(&output, "blas_lib_generic/dist/lib/.kpack/rocblas_lib.kpm");
    assert_eq!(manifest.kpack_files.keys().collect::<Vec<_>>(), ["gfx1100"]);
    assert_holds(output.root());

    options.targets = vec!["gfx1201".parse().unwrap()];
    options.require_targets = true;
    let error = refusal(&options);
    assert!(error.contains("no device code for gfx1201 (found gfx1100, gfx942)"), "{error}");
}

#[test]
fn artifacts_of_two_builds_are_no_split_artifact() {
    let (parent, output) = (Tree::new(), Tree::new());
    for name in ["blas_lib_gfx1100", "blas_lib_gfx942"] {
        fs::rename(artifact().root(), parent.path(name)).unwrap();
    }
    let report = batch_of(&parent, &output, &[]).unwrap();
    let error = failure(&report);
    assert!(
        error.contains(
            "is for the host, but in an artifact for gfx1100; several artifacts have this name"
        ),
        "{error}"
    );
    assert!(output.files().is_empty());
}

#[test]
fn a_fat_binary_beside_split_artifacts_is_refused() {
    let (input, first, second) = (artifact(), Tree::new(), Tree::new());
    run(&options(&input, &first));
    let path = format!("blas_lib_generic/{ROCBLAS}/lib/libnew.so");
    fat("new").build(&first.path(&path)).unwrap();
    let report = batch_of(&first, &second, &[]).unwrap();
    let error = failure(&report);
    assert!(
        error.contains("libnew.so: a fat binary in an artifact that is partly split already"),
        "{error}"
    );
}

#[test]
fn a_manifest_that_cannot_be_read_stays_as_it_is() {
    let (input, first, second) = (artifact(), Tree::new(), Tree::new());
    run(&options(&input, &first));
    let damaged = format!("{ROCBLAS}/lib/.kpack/rocblas_lib.kpm");
    first.write(&format!("blas_lib_generic/{damaged}"), "nonsense");
    let generic = Options::new(first.path("blas_lib_generic"), second.root(), "blas_lib");
    let report = run(&generic);
    let warnings = warnings(&report);
    assert!(
        warnings.iter().any(|text| text.starts_with(&format!("{damaged}: copied unchanged"))),
        "{warnings:?}"
    );
    assert!(files(&second, "blas_lib_generic").contains(&damaged));
}

/// hipBLASLt's library file for all targets names code objects that are in the targets' artifacts.
#[test]
fn code_objects_that_the_generic_artifact_names_are_complete() {
    let (input, first) = (artifact(), Tree::new());
    let library = format!("{HIPBLASLT}/lib/hipblaslt/library");
    for target in ["gfx1100", "gfx942"] {
        let object = code_object(target, b"extensions").unwrap();
        input.write(&format!("{library}/extop_{target}.co"), object);
    }
    let names = library_file("gfx000", &["extop_gfx1100.co", "extop_gfx942.co"]).unwrap();
    input.write(&format!("{library}/hipblasltExtOpLibrary.dat"), names);
    assert_eq!(warnings(&run(&options(&input, &first))), [""; 0]);
    let again = Tree::new();
    let report = batch_of(&first, &again, &[]).unwrap();
    let [BatchOutcome::Split(report)] = &report.artifacts[..] else {
        panic!("{report:?}");
    };
    assert_eq!(warnings(report), [""; 0]);
    let alone = Tree::new();
    let one = Options::new(first.path("blas_lib_gfx942"), alone.root(), "blas_lib");
    assert_eq!(warnings(&run(&one)), [""; 0]);
    // A code object that nothing names is half of a pair.
    let names = format!("blas_lib_generic/{library}/hipblasltExtOpLibrary.dat");
    fs::remove_file(first.path(&names)).unwrap();
    let said = warnings(&run(&one));
    assert!(said.len() == 1 && said[0].contains("extop_gfx942.co: belongs to no library file"));
}

/// Artifacts of groups come from a recombination: they are split, and from several builds.
#[test]
fn artifacts_of_groups_are_not_split_again() {
    for group in ["gfx94X", "gfx942", "instinct"] {
        let (input, packages, output) = (artifact(), Tree::new(), Tree::new());
        run(&options(&input, &packages));
        let name = format!("blas_lib_{group}");
        fs::rename(packages.path("blas_lib_gfx942"), packages.path("moved")).unwrap();
        fs::rename(packages.path("moved"), packages.path(&name)).unwrap();
        let part = format!("{name}/{ROCBLAS}/lib/.kpack/rocblas_lib.{group}.kpm");
        let whole = format!("blas_lib_generic/{ROCBLAS}/lib/.kpack/rocblas_lib.kpm");
        fs::copy(packages.path(&whole), packages.path(&part)).unwrap();
        let error = batch_of(&packages, &output, &[]).unwrap_err();
        let one = Options::new(packages.path(&name), output.root(), "blas_lib");
        for text in [error.in_one_line(), refusal(&one)] {
            assert!(text.contains(&name), "{text}");
        }
        assert_eq!(error.id(), ids::SPLIT_ARTIFACT);
        assert_eq!(output.files(), [""; 0]);
    }
}
