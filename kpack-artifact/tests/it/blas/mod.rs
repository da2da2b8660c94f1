//! An artifact directory like that of a BLAS build, and its split artifacts.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::fs;
use std::os::unix::fs::symlink;

use kpack_artifact::split::{Options, SplitReport, split};
use kpack_format::manifest::Manifest;
use kpack_split::Error;
use kpack_split::install::Severity;
use kpack_tests::fixture::{FatLibrary, Kind, Storage, code, code_object, library_file};
use kpack_tests::process;
use kpack_tests::tree::Tree;

/// The prefix of one module.
pub(crate) const ROCBLAS: &str = "math-libs/BLAS/rocBLAS/stage";
/// The prefix of another.
pub(crate) const HIPBLASLT: &str = "math-libs/BLAS/hipBLASLt/stage";

/// A library with device code for two targets.
pub(crate) fn fat(name: &str) -> FatLibrary {
    FatLibrary::new().wrapper(Storage::Zstd(2), [code("gfx1100", name), code("gfx942", name)])
}

/// A code object and the library file that names it.
pub(crate) fn pair(tree: &Tree, directory: &str, stem: &str, target: &str) {
    let object = code_object(target, stem.as_bytes()).unwrap();
    tree.write(&format!("{directory}/{stem}.co"), object);
    let library = library_file(target, &[stem]).unwrap();
    tree.write(&format!("{directory}/{stem}.dat"), library);
}

/// rocBLAS with flat databases, hipBLASLt with a directory for each target.
pub(crate) fn artifact() -> Tree {
    let tree = Tree::new();
    tree.write(
        "artifact_manifest.txt",
        format!("{ROCBLAS}\n{HIPBLASLT}\nmath-libs/not-built/stage\n"),
    );
    let lib = format!("{ROCBLAS}/lib");
    fat("gemm").build(&tree.path(&format!("{lib}/librocblas.so.5"))).unwrap();
    symlink("librocblas.so.5", tree.path(&format!("{lib}/librocblas.so"))).unwrap();
    let program = FatLibrary::new().kind(Kind::Pie);
    let program = program.wrapper(Storage::Plain, [code("gfx1100", "bench")]);
    program.build(&tree.path(&format!("{ROCBLAS}/bin/rocblas-bench"))).unwrap();
    let library = format!("{lib}/rocblas/library");
    for target in ["gfx1100", "gfx942"] {
        pair(&tree, &library, &format!("TensileLibrary_Type_SS_{target}"), target);
    }
    let fallback = library_file("gfx000", &[]).unwrap();
    tree.write(&format!("{library}/TensileLibrary_Type_SS_fallback.dat"), fallback);
    tree.write(&format!("{ROCBLAS}/include/rocblas.h"), "int rocblas;\n");

    let lib = format!("{HIPBLASLT}/lib");
    fat("lt").build(&tree.path(&format!("{lib}/libhipblaslt.so.1"))).unwrap();
    pair(&tree, &format!("{lib}/hipblaslt/library/gfx1100"), "TensileLibrary_HH", "gfx1100");
    tree.write(&format!("{lib}/hipblaslt/library/gfx1100/TensileManifest.txt"), "all");
    tree
}

pub(crate) fn options(input: &Tree, output: &Tree) -> Options {
    Options::new(input.root(), output.root(), "blas_lib")
}

pub(crate) fn run(options: &Options) -> SplitReport {
    split(options, &()).unwrap_or_else(|error| panic!("{}", error.in_one_line()))
}

/// Why it is refused.
pub(crate) fn refusal(options: &Options) -> String {
    match split(options, &()) {
        Err(error @ Error::Refused { .. }) => error.in_one_line(),
        other => panic!("{other:?}"),
    }
}

/// The files of a split artifact, without its name.
pub(crate) fn files(output: &Tree, artifact: &str) -> Vec<String> {
    let files = output.files().into_iter();
    files
        .filter_map(|file| Some(file.strip_prefix(artifact)?.strip_prefix('/')?.to_owned()))
        .collect()
}

pub(crate) fn manifest(output: &Tree, path: &str) -> Manifest {
    Manifest::read(&fs::read(output.path(path)).unwrap()).unwrap()
}

/// The prefixes of the artifacts, copied into one root.
pub(crate) fn overlay(output: &Tree, artifacts: &[&str]) -> Tree {
    let root = Tree::new();
    for artifact in artifacts {
        let listed = output.path(&format!("{artifact}/artifact_manifest.txt"));
        for prefix in fs::read_to_string(listed).unwrap().lines() {
            let from = output.path(&format!("{artifact}/{prefix}/."));
            // Other splitters list prefixes that they write nothing into.
            if from.exists() {
                process::copy(from, root.root());
            }
        }
    }
    root
}

/// The warnings, with paths in the artifact directory.
pub(crate) fn warnings(report: &SplitReport) -> Vec<String> {
    let warnings = report.findings.iter().filter(|notice| notice.severity == Severity::Warning);
    warnings
        .map(|notice| {
            let path = notice.file().strip_prefix(&report.artifact_dir).unwrap_or(notice.file());
            format!("{}: {}", path.display(), notice.text)
        })
        .collect()
}
