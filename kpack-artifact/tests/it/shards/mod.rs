//! Split artifacts, as several machines upload them: a fat library like rocBLAS's with a database.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::fs;
use std::os::unix::fs::symlink;

use kpack_artifact::split::{Options, split};
use kpack_tests::fixture::{FatLibrary, Storage, code, code_object, library_file};
use kpack_tests::tree::{Tree, write};

/// The artifacts' prefix.
pub(crate) const PREFIX: &str = "math-libs/BLAS/rocBLAS/stage";
/// The path of the database in it.
pub(crate) const DATABASE: &str = "lib/rocblas/library";

/// The build of a machine for `targets`, as `in/<name>/blas_lib`, and the split artifacts that it uploads, as
/// `shards/<name>`.
pub(crate) fn shard(tree: &Tree, name: &str, targets: &[&str]) {
    let artifact = tree.path(&format!("in/{name}/blas_lib"));
    let prefix = artifact.join(PREFIX);
    let code = |kernel: &'static str| targets.iter().map(move |target| code(target, kernel));
    let library = FatLibrary::new()
        .wrapper(Storage::Plain, code("gemm"))
        .wrapper(Storage::Zstd(2), code("trsm"));
    let _ = fs::remove_dir_all(&artifact);
    library.build(&prefix.join("lib/librocblas.so.5")).unwrap();
    symlink("librocblas.so.5", prefix.join("lib/librocblas.so")).unwrap();
    fs::create_dir_all(prefix.join("share/empty")).unwrap();
    let database = prefix.join(DATABASE);
    let fallback = library_file("gfx000", &[]).unwrap();
    write(database.join("TensileLibrary_fallback.dat"), &fallback);
    for target in targets {
        let stem = format!("TensileLibrary_Type_SS_{target}");
        let object = code_object(target, b"database").unwrap();
        write(database.join(format!("{stem}.co")), &object);
        let library = library_file(target, &[&stem]).unwrap();
        write(database.join(format!("{stem}.dat")), &library);
    }
    write(artifact.join("artifact_manifest.txt"), format!("{PREFIX}\n"));
    let output = tree.path(&format!("shards/{name}"));
    split(&Options::new(artifact, output, "blas_lib"), &()).unwrap();
}

/// One shard, for two targets.
pub(crate) fn one_shard() -> Tree {
    let tree = Tree::new();
    shard(&tree, "linux-a", &["gfx1100", "gfx942"]);
    tree
}

/// Three shards, for all targets of the configuration.
pub(crate) fn three_shards() -> Tree {
    let tree = Tree::new();
    shard(&tree, "linux-a", &["gfx1100", "gfx1101"]);
    shard(&tree, "linux-b", &["gfx90a:xnack+"]);
    shard(&tree, "linux-c", &["gfx942"]);
    // The same compiler gives the same file, but here it writes temporary names into the file.
    for other in ["linux-b", "linux-c"] {
        let library = format!("blas_lib_generic/{PREFIX}/lib/librocblas.so.5");
        let (from, to) = (format!("shards/linux-a/{library}"), format!("shards/{other}/{library}"));
        fs::copy(tree.path(&from), tree.path(&to)).unwrap();
    }
    tree
}
