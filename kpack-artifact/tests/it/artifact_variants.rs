//! Given device code for a processor and its variants (`gfx90a`, `gfx90a:xnack+`), when it is split and
//! recombined, then it stays together: the generic artifact and that of the processor are complete.

use kpack_artifact::recombine::Severity;
use kpack_artifact::split::{Layout, Options, split};
use kpack_tests::fixture::{FatLibrary, Storage, code, code_object};
use kpack_tests::process;
use kpack_tests::tree::{Tree, names_in};

use crate::blas::{files, overlay, pair};
use crate::planned::{assert_said, planned, recombine, said};
use crate::shards::PREFIX;
use crate::verified::{assert_holds, check_with, faults};

const DATABASE: &str = "lib/rocblas/library";
const LIBRARY: &str = "lib/librocblas.so.5";

/// As rocBLAS builds it: source kernels for each variant, and all else for the processor.
fn build(tree: &Tree, root: &str, processors: &[&str]) {
    let mut objects = Vec::new();
    for processor in processors {
        let variants: &[&str] = match *processor {
            "gfx90a" => &[":xnack+", ":xnack-"],
            _ => &[""],
        };
        for variant in variants {
            let target = format!("{processor}{variant}");
            let name = target.replace(':', "-");
            let kernels = format!("{root}/{PREFIX}/{DATABASE}/Kernels.so-000-{name}.hsaco");
            tree.write(&kernels, code_object(&target, b"kernels").unwrap());
            objects.push(code(&target, "gemm"));
        }
        let stem = format!("TensileLibrary_Type_SS_{processor}");
        pair(tree, &format!("{root}/{PREFIX}/{DATABASE}"), &stem, processor);
    }
    let library = FatLibrary::new().wrapper(Storage::Plain, objects);
    library.build(&tree.path(&format!("{root}/{PREFIX}/{LIBRARY}"))).unwrap();
    tree.write(&format!("{root}/artifact_manifest.txt"), format!("{PREFIX}\n"));
}

fn options(tree: &Tree, from: &str, to: &str) -> Options {
    Options::new(tree.path(from), tree.path(to), "blas_lib")
}

fn built() -> Tree {
    let tree = Tree::new();
    build(&tree, "in/blas_lib", &["gfx908", "gfx90a"]);
    tree
}

#[test]
fn variants_are_in_the_artifact_of_their_processor() {
    for layout in [Layout::Module, Layout::Artifact] {
        let tree = built();
        let mut options = options(&tree, "in/blas_lib", "out");
        options.layout = layout;
        let report = split(&options, &()).unwrap();
        let all = ["blas_lib_generic", "blas_lib_gfx908", "blas_lib_gfx90a"];
        assert_eq!(names_in(&tree.path("out")), all);
        let targets: Vec<_> = report.artifacts.iter().map(|a| a.target.as_deref()).collect();
        assert_eq!(targets, [None, Some("gfx908"), Some("gfx90a")]);
        assert_eq!(report.artifacts[2].archives, 2);
        let own = files(&tree, "out/blas_lib_gfx90a");
        for sign in ['+', '-'] {
            let archive = match layout {
                Layout::Module => format!("lib/.kpack/rocblas_lib_gfx90a:xnack{sign}.kpack"),
                Layout::Artifact => format!(".kpack/blas_lib_gfx90a:xnack{sign}.kpack"),
            };
            let kernels = format!("{DATABASE}/Kernels.so-000-gfx90a-xnack{sign}.hsaco");
            for file in [archive, kernels] {
                assert!(own.contains(&format!("{PREFIX}/{file}")), "{file}: {own:#?}");
            }
        }
        // Two packages are complete.
        assert_eq!(faults(&check_with(&tree, "out", Some("in"), &[])), [""; 0]);
        let output = Tree::new();
        process::copy(tree.path("out/."), output.root());
        let installed = overlay(&output, &["blas_lib_generic", "blas_lib_gfx90a"]);
        assert_eq!(faults(&check_with(&installed, "", None, &["gfx90a"])), [""; 0]);
    }
}

#[test]
fn a_filter_that_names_a_variant_verifies_with_the_same_words() {
    let tree = built();
    let mut options = options(&tree, "in/blas_lib", "out");
    options.targets = vec!["gfx90a:xnack-".parse().unwrap()];
    let report = split(&options, &()).unwrap();
    assert_eq!(report.left_out, ["gfx908", "gfx90a:xnack+"]);
    assert_eq!(names_in(&tree.path("out")), ["blas_lib_generic", "blas_lib_gfx90a"]);
    let own = files(&tree, "out/blas_lib_gfx90a");
    assert!(own.iter().any(|file| file.ends_with("SS_gfx90a.co")), "{own:#?}");
    assert!(!own.iter().any(|file| file.contains("xnack+")), "{own:#?}");
    let found = faults(&check_with(&tree, "out", Some("in"), &["gfx90a:xnack-"]));
    assert_eq!(found, [""; 0]);
}

fn configuration(groups: &str, validation: &str) -> String {
    format!(
        r#"{{"primary_shard": "linux-a", "architecture_groups": {{{groups}}},
            "validation": {{{validation}}}}}"#
    )
}

#[test]
fn a_group_takes_the_variants_of_its_processors() {
    let tree = built();
    split(&options(&tree, "in/blas_lib", "shards/linux-a"), &()).unwrap();
    let groups = r#""instinct": {"architectures": ["gfx908", "gfx90a"]}"#;
    let strict = r#""error_on_missing_architecture": true, "error_on_unlisted_architecture": true"#;
    let plan = recombine(&tree, &configuration(groups, strict));
    assert_eq!(said(&plan), [""; 0]);
    let kernels = files(&tree, "out/blas_lib_instinct");
    let kernels = kernels.iter().filter(|file| file.contains("Kernels.so-000-"));
    assert_eq!(kernels.count(), 3);
    let found = faults(&check_with(&tree, "out", Some("in"), &[]));
    assert_eq!(found, [""; 0]);
}

/// What runs on the variant, and nothing else.
#[test]
fn a_group_that_names_a_variant_takes_the_files_of_the_plain_processor_along() {
    let tree = built();
    split(&options(&tree, "in/blas_lib", "shards/linux-a"), &()).unwrap();
    let groups = r#""mi200": {"architectures": ["gfx90a:xnack+"]},
                    "mi100": {"architectures": ["gfx908"]}"#;
    let plan = recombine(&tree, &configuration(groups, ""));
    let unlisted = ["blas_lib_gfx90a", "no group lists gfx90a:xnack-"];
    assert_said(&plan, Severity::Warning, &unlisted);
    assert_eq!(said(&plan).len(), 1, "{:#?}", said(&plan));
    let own = files(&tree, "out/blas_lib_mi200");
    let all = |end: &str| own.iter().filter(|file| file.ends_with(end)).count();
    assert_eq!((all("SS_gfx90a.co"), all("xnack+.hsaco"), all("xnack+.kpack")), (1, 1, 1));
    assert!(!own.iter().any(|file| file.contains("xnack-")), "{own:#?}");
    let found = faults(&check_with(&tree, "out", Some("in"), &["gfx90a:xnack+", "gfx908"]));
    assert_eq!(found, [""; 0]);

    let strict = configuration(groups, r#""error_on_unlisted_architecture": true"#);
    assert_said(&planned(&tree, &strict), Severity::Fault, &unlisted);
    let groups = r#""mi100": {"architectures": ["gfx908"]}"#;
    let strict = configuration(groups, r#""error_on_unlisted_architecture": true"#);
    let plan = planned(&tree, &strict);
    assert_said(&plan, Severity::Fault, &["blas_lib_gfx90a", "no group lists gfx90a; "]);
}

/// Two groups may each take what both need.
#[test]
fn groups_of_both_variants_are_complete() {
    let tree = built();
    split(&options(&tree, "in/blas_lib", "shards/linux-a"), &()).unwrap();
    let groups = r#""on": {"architectures": ["gfx90a:xnack+"]},
                    "off": {"architectures": ["gfx90a:xnack-", "gfx908"]}"#;
    let plan = recombine(&tree, &configuration(groups, ""));
    assert_eq!(said(&plan), [""; 0]);
    for group in ["on", "off"] {
        let own = files(&tree, &format!("out/blas_lib_{group}"));
        assert!(own.iter().any(|file| file.ends_with("SS_gfx90a.co")), "{own:#?}");
    }
    assert_holds(&tree.path("out"));
}
