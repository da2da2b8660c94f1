//! Given expected targets, when artifacts are split, then their code is kept, messages name what is
//! skipped, and nothing is split if there is code for none of them.

use crate::markers;
use kpack_core::{Severity, ids};
use std::fs;

use kpack_artifact::split::{
    BatchOptions, BatchOutcome, BatchReport, Layout, Options, SplitReport, batch,
};
use kpack_format::TargetId;
use kpack_split::Error;
use kpack_split::install::Unexpected;
use kpack_tests::fixture::{FatLibrary, Storage, code};
use kpack_tests::tree::Tree;

use crate::blas::{HIPBLASLT, ROCBLAS, artifact, files, manifest, options, refusal, run, warnings};
use crate::verified::{assert_found, check, check_with, checks, faults};

fn targets(names: &[&str]) -> Vec<TargetId> {
    names.iter().map(|name| name.parse().unwrap()).collect()
}

#[test]
fn markers_expect_the_device_code_of_the_targets_that_are_kept() {
    for (kept, dropped) in [("gfx1100", "gfx942"), ("gfx942", "gfx1100")] {
        let (input, output) = (artifact(), Tree::new());
        let library = format!("{ROCBLAS}/lib/librocblas.so.5");
        let generic = output.path(&format!("blas_lib_generic/{library}"));
        // Given a split for all targets, and one for some,
        run(&options(&input, &output));
        let all = markers::markers(&generic)[0].code_ids.clone();
        assert!(all.contains_key(dropped), "{all:?}");
        let mut options = options(&input, &output);
        options.targets = vec![kept.parse().unwrap()];
        run(&options);
        // then the markers list what is kept, with the same ID.
        let kpacks = output.path(&format!("blas_lib_{kept}/{ROCBLAS}/lib/.kpack"));
        markers::assert_expects(&generic, &kpacks, "rocblas_lib", &[kept]);
        assert_eq!(markers::markers(&generic)[0].code_ids[kept], all[kept]);
    }
}

#[test]
fn only_expected_targets_are_kept() {
    let (input, output) = (artifact(), Tree::new());
    let mut options = options(&input, &output);
    options.targets = vec!["gfx1100".parse().unwrap(), "gfx1201".parse().unwrap()];
    let report = run(&options);
    assert_eq!(
        warnings(&report),
        [
            ": no device code for gfx1201 (found gfx1100, gfx942)".to_owned(),
            format!(
                "{ROCBLAS}/lib/librocblas.so.5: skipping code for gfx942, which --gpu-targets \
                 does not list (first found here)"
            ),
        ]
    );
    assert!(files(&output, "blas_lib_gfx942").is_empty());
    let manifest =
        manifest(&output, &format!("blas_lib_generic/{ROCBLAS}/lib/.kpack/rocblas_lib.kpm"));
    assert_eq!(manifest.kpack_files.keys().collect::<Vec<_>>(), ["gfx1100"]);

    options.unexpected = Unexpected::Error;
    let error = refusal(&options);
    assert!(error.contains("is for gfx942; expected only gfx1100, gfx1201"), "{error}");
    options.unexpected = Unexpected::Keep;
    assert_eq!(run(&options).artifacts.len(), 3);
}

#[test]
fn a_family_is_for_each_of_its_processors() {
    let (input, output) = (Tree::new(), Tree::new());
    input.write("artifact_manifest.txt", "aotriton/stage\n");
    for family in ["gfx11xx", "gfx90a"] {
        let path = format!("aotriton/stage/lib/aotriton.images/amd-{family}/flash/fwd.aks2");
        input.write(&path, "kernels");
    }
    let mut options = options(&input, &output);
    options.targets = vec!["gfx1151".parse().unwrap()];
    run(&options);
    assert_eq!(
        files(&output, "blas_lib_gfx11"),
        [
            ".kpack-artifact",
            "aotriton/stage/lib/aotriton.images/amd-gfx11xx/flash/fwd.aks2",
            "artifact_manifest.txt",
        ]
    );
    assert!(files(&output, "blas_lib_gfx90a").is_empty());
}

/// HIP runtimes take it where a kernel has no code for the processor.
#[test]
fn generic_code_is_for_each_of_its_processors() {
    let (input, output) = (Tree::new(), Tree::new());
    input.write("artifact_manifest.txt", format!("{HIPBLASLT}\n"));
    let codes = ["gfx11-generic", "gfx9-generic", "gfx942"].map(|target| code(target, "lt"));
    let library = FatLibrary::new().wrapper(Storage::Plain, codes);
    library.build(&input.path(&format!("{HIPBLASLT}/lib/liblt.so"))).unwrap();
    let mut options = options(&input, &output);
    options.targets = targets(&["gfx1100"]);
    let report = run(&options);
    assert_eq!(report.left_out, ["gfx9-generic", "gfx942"]);
    assert!(!warnings(&report).iter().any(|text| text.contains("no device code for")));
    assert_eq!(
        files(&output, "blas_lib_gfx11-generic"),
        [
            ".kpack-artifact".to_owned(),
            "artifact_manifest.txt".to_owned(),
            format!("{HIPBLASLT}/lib/.kpack/hipblaslt_lib_gfx11-generic.kpack"),
        ]
    );
}

/// Code for a processor runs on it whatever its features.
#[test]
fn an_expected_target_with_features_takes_what_leaves_them_open() {
    let tree = Tree::new();
    tree.write("artifact_manifest.txt", "m/MIOpen/stage\n");
    tree.write("m/MIOpen/stage/share/miopen/db/gfx90a68.db.txt", "database");
    let output = Tree::new();
    let mut options = options(&tree, &output);
    options.targets = vec!["gfx90a:xnack+".parse().unwrap()];
    let report = run(&options);
    assert_eq!(report.artifacts.len(), 2, "{:?}", report.findings);
}

#[test]
fn a_processor_stands_for_its_variants_and_a_variant_not_for_others() {
    let (input, output) = (Tree::new(), Tree::new());
    input.write("artifact_manifest.txt", format!("{HIPBLASLT}\n"));
    let codes = ["gfx90a:xnack+", "gfx90a:xnack-", "gfx942"].map(|target| code(target, "lt"));
    let library = FatLibrary::new().wrapper(Storage::Plain, codes);
    library.build(&input.path(&format!("{HIPBLASLT}/lib/liblt.so"))).unwrap();
    let mut options = options(&input, &output);
    for (named, left_out) in
        [("gfx90a", &["gfx942"][..]), ("gfx90a:xnack+", &["gfx90a:xnack-", "gfx942"])]
    {
        options.targets = targets(&[named]);
        assert_eq!(run(&options).left_out, left_out, "{named}");
    }
}

#[test]
fn fat_binaries_without_code_for_the_expected_targets_are_refused() {
    for layout in [Layout::Module, Layout::Artifact] {
        let (input, output) = (artifact(), Tree::new());
        let mut options = options(&input, &output);
        options.targets = targets(&["gfx1201"]);
        options.layout = layout;
        let nothing = "no device code for gfx1201 (found gfx1100, gfx942) [missing-target]";
        assert!(refusal(&options).ends_with(nothing));
        assert!(output.files().is_empty());
        // It may be kept all the same.
        options.unexpected = Unexpected::Keep;
        assert_eq!(run(&options).artifacts.len(), 3);
    }
}

/// Kernel databases are often installed for all targets, whatever was built.
#[test]
fn databases_without_files_for_the_expected_targets_are_left_out() {
    let (input, output) = (artifact(), Tree::new());
    for binary in [
        format!("{ROCBLAS}/lib/librocblas.so.5"),
        format!("{ROCBLAS}/bin/rocblas-bench"),
        format!("{HIPBLASLT}/lib/libhipblaslt.so.1"),
    ] {
        fs::write(input.path(&binary), "#!/bin/sh\n").unwrap();
    }
    let mut options = options(&input, &output);
    options.targets = targets(&["gfx1201"]);
    options.layout = Layout::Artifact;
    let report = run(&options);
    assert_eq!(report.artifacts.len(), 1);
    assert_eq!(report.left_out, ["gfx1100", "gfx942"]);
    // Unless that is asked for.
    options.require_targets = true;
    assert!(refusal(&options).contains("no device code for gfx1201"));
}

/// As for an artifact that another shard builds for the target.
#[test]
fn an_artifact_of_a_batch_without_the_expected_targets_is_generic_alone() {
    let parent = parent(&[("fft_lib", "gfx942"), ("blas_lib", "gfx1201")]);
    let split = |layout| {
        let output = Tree::new();
        let mut each = Options::new("", output.root(), "");
        each.targets = targets(&["gfx1201"]);
        each.layout = layout;
        let report = batch(&BatchOptions::new(parent.root().to_owned(), each), &()).unwrap();
        (output, report)
    };
    let (output, report) = split(Layout::Module);
    let Some(BatchOutcome::Split(fft)) = report.artifacts.last() else { panic!("{report:#?}") };
    assert_eq!((fft.artifacts.len(), &*fft.left_out), (1, &["gfx942".to_owned()][..]));
    let nothing = ": no device code for gfx1201 (found gfx942)".to_owned();
    assert!(warnings(fft).contains(&nothing), "{fft:#?}");
    // It is complete, unless the target is asked for.
    let generic = "fft_lib_generic";
    let report = check(&output, generic);
    assert!(report.holds(), "{report:#?}");
    let notes = checks(&report, Severity::Note);
    let library = "libx.so: the manifest lists no archive";
    assert!(notes.iter().any(|note| note.contains(library)), "{notes:#?}");
    assert!(!check_with(&output, generic, None, &["gfx1201"]).holds());
    // Without manifests, nothing would say that it is complete.
    let (output, report) = split(Layout::Artifact);
    let failed: Vec<_> = report.failures().map(|failure| failure.id).collect();
    assert_eq!(failed, [ids::MISSING_TARGET]);
    assert!(files(&output, generic).is_empty());
    assert!(!files(&output, "blas_lib_gfx1201").is_empty());
}

/// Only a manifest that lists none tells that no archives are expected.
#[test]
fn lost_archives_are_a_fault_whatever_is_lost_with_them() {
    let (input, output) = (artifact(), Tree::new());
    let mut options = options(&input, &output);
    options.targets = targets(&["gfx1100"]);
    run(&options);
    fs::remove_dir_all(output.path("blas_lib_gfx1100")).unwrap();
    let library = format!("blas_lib_generic/{ROCBLAS}/lib/librocblas.so.5");
    let lost = |reason: &str| assert_found(&check(&output, &library), &["librocblas", reason]);
    let path = format!("blas_lib_generic/{ROCBLAS}/lib/.kpack/rocblas_lib.kpm");
    let mut manifest = manifest(&output, &path);
    // The manifest lists the archive,
    lost("the manifest lists an archive for gfx1100");
    // does not list it, though the marker expects its code,
    let listed = manifest.kpack_files.remove("gfx1100").unwrap();
    fs::write(output.path(&path), manifest.to_bytes()).unwrap();
    lost("no archive found");

    // cannot be read, or is lost as well.
    let nothing = Tree::new();
    let generic = output.path("blas_lib_generic");
    let mut again = Options::new(generic, nothing.root(), "blas_lib");
    again.targets = targets(&["gfx1201"]);
    manifest.kpack_files.insert("gfx1100".to_owned(), listed);
    fs::write(output.path(&path), manifest.to_bytes()).unwrap();
    run(&again);
    assert_eq!(faults(&check(&nothing, &library)), [""; 0]);
    let lost = |reason: &str| assert_found(&check(&nothing, &library), &["librocblas", reason]);
    fs::write(nothing.path(&path), "damaged").unwrap();
    lost("no archive found");
    fs::remove_file(nothing.path(&path)).unwrap();
    lost("no archive found");
}

#[test]
fn all_device_code_of_a_split_artifact_may_be_left_out() {
    let (input, split, output) = (artifact(), Tree::new(), Tree::new());
    run(&options(&input, &split));
    let generic = split.path("blas_lib_generic");
    let mut options = Options::new(generic, output.root(), "blas_lib");
    options.targets = targets(&["gfx1201"]);
    run(&options);
    assert_eq!(faults(&check(&output, "")), [""; 0]);
}

#[test]
fn where_none_of_the_required_targets_is_there_nothing_is_split() {
    let (input, output) = (artifact(), Tree::new());
    let mut options = options(&input, &output);
    options.targets = targets(&["gfx1201", "gfx90a:xnack+"]);
    for (require, unexpected) in
        [(true, Unexpected::Drop), (true, Unexpected::Keep), (false, Unexpected::Error)]
    {
        options.require_targets = require;
        options.unexpected = unexpected;
        let error = refusal(&options);
        assert!(
            error.ends_with(
                ": no device code for gfx1201, gfx90a:xnack+ (found gfx1100, gfx942) [missing-target]"
            ),
            "{error}"
        );
        assert!(output.files().is_empty());
    }
}

/// The databases have the target, a binary has not.
#[test]
fn a_binary_that_loses_all_of_its_device_code_is_named() {
    let (input, output) = (artifact(), Tree::new());
    let program = FatLibrary::new().wrapper(Storage::Plain, [code("gfx90a", "old")]);
    let path = format!("{ROCBLAS}/lib/libold.so");
    program.build(&input.path(&path)).unwrap();
    let mut options = options(&input, &output);
    options.targets = targets(&["gfx1100", "gfx942"]);
    let report = run(&options);
    let warned = format!("{path}: skipping all of its device code: gfx90a");
    assert!(warnings(&report).contains(&warned), "{report:#?}");
    assert_eq!(report.left_out, ["gfx90a"]);
}

/// A directory of artifacts, each with a library for one target; none for no target.
fn parent(artifacts: &[(&str, &str)]) -> Tree {
    let parent = Tree::new();
    for (name, target) in artifacts {
        let manifest = format!("{name}/artifact_manifest.txt");
        parent.write(&manifest, format!("{HIPBLASLT}\n"));
        let library = match *target {
            "" => FatLibrary::new(),
            target => FatLibrary::new().wrapper(Storage::Zstd(2), [code(target, name)]),
        };
        let path = parent.path(&format!("{name}/{HIPBLASLT}/lib/libx.so"));
        library.build(&path).unwrap();
    }
    parent
}

fn batch_for(parent: &Tree, output: &Tree, names: &[&str]) -> Result<BatchReport, Error> {
    let mut each = Options::new("", output.root(), "");
    each.targets = targets(names);
    each.require_targets = true;
    let options = BatchOptions::new(parent.root().to_owned(), each);
    batch(&options, &())
}

#[test]
fn a_batch_with_none_of_the_required_targets_is_refused() {
    let parent = parent(&[("fft_lib", "gfx942"), ("docs_doc", ""), ("blas_lib", "gfx1100")]);
    let output = Tree::new();
    let error = batch_for(&parent, &output, &["gfx1201"]).unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    let text = error.in_one_line();
    assert!(
        text.ends_with(": no device code for gfx1201 (found gfx1100, gfx942) [missing-target]"),
        "{text}"
    );
    assert!(output.files().is_empty());
}

#[test]
fn a_batch_that_is_refused_has_one_id() {
    let parent = parent(&[("fft_lib", "gfx942"), ("blas_lib", "gfx1100")]);
    fs::write(parent.path("fft_lib/artifact_manifest.txt"), "../out\n").unwrap();
    let output = Tree::new();
    let error = batch_for(&parent, &output, &["gfx1201"]).unwrap_err();
    assert_eq!(error.id(), ids::MISSING_TARGET);
    let text = error.in_one_line();
    let (first, failed) = text.split_once("\n  and ").unwrap();
    assert!(first.ends_with("[missing-target]"), "{text}");
    assert!(failed.contains("fft_lib") && !failed.contains('['), "{text}");
    assert!(!error.without_id().contains('['), "{text}");
}

#[test]
fn an_artifact_of_a_batch_may_have_nothing_for_the_expected_targets() {
    let parent = parent(&[("fft_lib", "gfx942"), ("docs_doc", ""), ("blas_lib", "gfx1100")]);
    let output = Tree::new();
    let report = batch_for(&parent, &output, &["gfx942", "gfx1201"]).unwrap();
    let reports: Vec<&SplitReport> = report
        .artifacts
        .iter()
        .map(|outcome| match outcome {
            BatchOutcome::Split(report) => report,
            BatchOutcome::Failed(failure) => panic!("{failure:?}"),
        })
        .collect();
    let names: Vec<&str> = reports.iter().map(|r| r.artifact_prefix.as_str()).collect();
    assert_eq!(names, ["blas_lib", "docs_doc", "fft_lib"]);
    assert_eq!(reports[0].left_out, ["gfx1100"]);
    assert_eq!(reports[0].artifacts.len(), 1);
    let warnings = warnings(reports[0]);
    assert!(
        warnings.contains(&format!(
            "{HIPBLASLT}/lib/libx.so: skipping all of its device code: gfx1100"
        ))
    );
    assert_eq!(reports[2].artifacts.len(), 2);
    assert!(
        report.findings.iter().any(|notice| notice.text
            == "no artifact in it has anything for gfx1201; there is device code for gfx1100, \
                gfx942"),
        "{:?}",
        report.findings
    );
}
