//! Given a choice of kernel databases, when an artifact is split, then later commands keep to that choice.

use crate::planned;
use std::fs;

use kpack_artifact::recombine::{Severity, plan};
use kpack_artifact::split::Options;
use kpack_tests::tree::Tree;
use kpack_tree::{DatabaseSelection, Known};

use crate::blas::{ROCBLAS, artifact, files, options, refusal, run};
use crate::planned::{CONFIGURATION, assert_said, planned, said};
use crate::shards::{DATABASE, PREFIX, three_shards};
use crate::verified::assert_holds;

fn selections() -> [DatabaseSelection; 2] {
    [Known::None, Known::Named(vec!["hipblaslt".to_owned()])]
        .map(|known| DatabaseSelection::new(known, Vec::new()))
}

/// Splits the input of `three_shards` again.
fn split_again(tree: &Tree, shard: &str, databases: &DatabaseSelection) {
    let artifact = tree.path(&format!("in/{shard}/blas_lib"));
    let output = tree.path(&format!("shards/{shard}"));
    fs::remove_dir_all(&output).unwrap();
    let mut options = Options::new(artifact, output, "blas_lib");
    options.databases = databases.clone();
    run(&options);
}

/// The same compiler run is the same file; here its temporary names are not.
fn same_hosts(tree: &Tree) {
    let library = format!("blas_lib_generic/{PREFIX}/lib/librocblas.so.5");
    for other in ["linux-b", "linux-c"] {
        let from = tree.path(&format!("shards/linux-a/{library}"));
        fs::copy(from, tree.path(&format!("shards/{other}/{library}"))).unwrap();
    }
}

#[test]
fn the_output_of_each_choice_is_verified() {
    for databases in selections() {
        let (input, output) = (artifact(), Tree::new());
        let mut options = options(&input, &output);
        options.databases = databases.clone();
        run(&options);
        let pair = format!("{ROCBLAS}/lib/rocblas/library/TensileLibrary_Type_SS_gfx942.co");
        assert!(files(&output, "blas_lib_generic").contains(&pair));
        assert_holds(output.root());
    }
}

#[test]
fn shards_of_one_choice_are_recombined_into_artifacts_of_that_choice() {
    for databases in selections() {
        let tree = three_shards();
        for shard in ["linux-a", "linux-b", "linux-c"] {
            split_again(&tree, shard, &databases);
        }
        same_hosts(&tree);
        let options = planned::options(&tree, CONFIGURATION);
        let plan = plan(&options, &()).unwrap();
        assert_eq!(plan.errors(), 0, "{:#?}", said(&plan));
        plan.apply(&options, &()).unwrap();
        for target in ["gfx1100", "gfx1101", "gfx90a:xnack+", "gfx942"] {
            let pair = format!("{PREFIX}/{DATABASE}/TensileLibrary_Type_SS_{target}.co");
            assert!(tree.path(&format!("out/blas_lib_generic/{pair}")).exists());
        }
        assert_holds(&tree.path("out"));
    }
}

#[test]
fn shards_of_different_choices_are_refused_by_name() {
    let tree = three_shards();
    split_again(&tree, "linux-b", &DatabaseSelection::new(Known::None, Vec::new()));
    same_hosts(&tree);
    let plan = planned(&tree, CONFIGURATION);
    let text = "other databases were split than in shard linux-a (expected rocblas, hipblaslt, ";
    assert_said(
        &plan,
        Severity::Fault,
        &["linux-b/blas_lib_generic", text, "found none)", "shards-differ"],
    );
}

/// It looks like an artifact, and has the right name, but it is somebody's build.
#[test]
fn an_unsplit_artifact_beside_the_input_is_not_replaced() {
    let (built, input) = (Tree::new(), artifact());
    let neighbour = built.path("blas_lib_gfx1100");
    fs::rename(input.root(), built.path("blas_lib_gfx110X-all")).unwrap();
    fs::rename(artifact().root(), &neighbour).unwrap();
    let before = built.snapshot();
    let options = Options::new(built.path("blas_lib_gfx110X-all"), built.root(), "blas_lib");
    let error = refusal(&options);
    assert!(
        error.contains(
            "blas_lib_gfx1100: is in the way: kpack replaces only directories that it wrote"
        ),
        "{error}"
    );
    assert_eq!(built.snapshot(), before);

    // kpack replaces what it wrote itself.
    fs::remove_dir_all(neighbour).unwrap();
    run(&options);
    run(&options);
    assert!(built.path("blas_lib_gfx1100/.kpack-artifact").is_file());
}
