//! Given paths that lead elsewhere, when an artifact is split, then output never goes into the input or
//! replaces it, and messages say what is wrong.

use std::fs;
use std::os::unix::fs::symlink;

use kpack_artifact::split::{BatchOptions, Options, batch, split};
use kpack_split::Error;
use kpack_split::install;
use kpack_tests::tree::Tree;

use crate::blas::{ROCBLAS, artifact, options, refusal, run};

fn usage(options: &Options) -> String {
    match split(options, &()) {
        Err(Error::Usage(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn output_that_would_replace_what_holds_the_input() {
    let tree = Tree::new();
    let deep = tree.path("out/blas_lib_generic/deep");
    fs::create_dir_all(&deep).unwrap();
    fs::write(tree.path("out/blas_lib_generic/artifact_manifest.txt"), "deep\n").unwrap();
    fs::rename(artifact().root(), deep.join("in")).unwrap();
    let before = tree.snapshot();
    let text = usage(&Options::new(deep.join("in"), tree.path("out"), "blas_lib"));
    assert!(text.contains("is where its own output would be"), "{text}");
    assert_eq!(tree.snapshot(), before);
}

#[test]
fn output_that_a_batch_would_put_into_one_of_its_artifacts() {
    let parent = Tree::new();
    fs::rename(artifact().root(), parent.path("blas_lib")).unwrap();
    parent.write("a_lib/artifact_manifest.txt", "a/stage\n");
    parent.write("a_lib/a/stage/readme.txt", "a");
    let before = parent.snapshot();
    for output in ["blas_lib", "blas_lib/new", "missing/../blas_lib"] {
        let options =
            BatchOptions::new(parent.root().to_owned(), Options::new("", parent.path(output), ""));
        let refused = batch(&options, &());
        assert!(matches!(refused, Err(Error::Usage(_))), "{refused:?}");
        assert_eq!(parent.snapshot(), before);
    }
}

/// Splitting empties the hidden directory before it writes anything.
#[test]
fn a_link_in_the_place_of_the_hidden_directory() {
    let (input, output) = (artifact(), Tree::new());
    symlink(input.root(), output.path(".blas_lib.tmp")).unwrap();
    let before = input.snapshot();
    let error = refusal(&options(&input, &output));
    assert!(error.contains(".blas_lib.tmp: a symbolic link, but kpack"), "{error}");
    assert_eq!(input.snapshot(), before);
}

#[test]
fn a_prefix_that_is_or_is_behind_a_symbolic_link_or_is_a_file() {
    for (link, to, says) in [
        (
            ROCBLAS,
            "../elsewhere",
            "expected a directory, for the prefix `math-libs/BLAS/rocBLAS/stage` in \
             artifact_manifest.txt; it is a symbolic link to ../elsewhere. List where the files \
             are, or copy them",
        ),
        ("math-libs/BLAS/rocBLAS", "elsewhere", "a symbolic link to elsewhere."),
        ("math-libs", "nowhere", "a symbolic link to nowhere."),
        ("math-libs/BLAS", "", "it is no directory."),
    ] {
        let (input, output) = (artifact(), Tree::new());
        let at = input.path(link);
        fs::rename(&at, at.with_file_name("elsewhere")).unwrap();
        match to {
            "" => fs::write(&at, "a file").unwrap(),
            to => symlink(to, &at).unwrap(),
        }
        let error = refusal(&options(&input, &output));
        let start = format!("{}: expected a directory", at.display());
        assert!(error.starts_with(&start) && error.contains(says), "{error}");
        assert!(output.files().is_empty());
    }
}

#[test]
fn an_artifact_that_was_split_in_part_is_read_through_a_link() {
    let (input, output, whole) = (artifact(), Tree::new(), Tree::new());
    run(&options(&input, &whole));
    let prefix = input.path(ROCBLAS);
    let library = install::InstallOptions::new(prefix, "rocblas", ["lib/librocblas.so.5"]);
    install::install(&library, &()).unwrap();
    let links = Tree::new();
    symlink(input.root(), links.path("link")).unwrap();
    let options = Options::new(links.path("link"), output.root(), "blas_lib");
    run(&options);
    assert_eq!(output.snapshot(), whole.snapshot());
}
