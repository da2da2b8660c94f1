//! Given a machine on which only its own GPU's archives are installed, when its libraries are verified, then one warning
//! says what is missing; and what a GPU lacks in part is a fault.

use std::fs;

use kpack_format::manifest::Manifest;
use kpack_tests::fixture::{FatLibrary, Storage, code};
use kpack_tests::tree::Tree;

use crate::command::{Row, said_by, succeeds, words};

/// Two split libraries with code for three GPUs, for one of them in two variants.
fn installed() -> Tree {
    let tree = Tree::new();
    let targets = ["gfx1030", "gfx1100", "gfx90a:xnack+", "gfx90a:xnack-"];
    let library = FatLibrary::new()
        .wrapper(Storage::Plain, targets.map(|target| code(target, "add")))
        .wrapper(Storage::Zstd(2), targets.map(|target| code(target, "mul")));
    fs::create_dir(tree.path("lib")).unwrap();
    for name in ["mat", "vec"] {
        let path = format!("lib/lib{name}.so");
        library.build(&tree.path(&path)).unwrap();
        succeeds(&tree, &words(&format!("--quiet split --prefix . --module {name} {path}")));
    }
    tree
}

/// Removes the archives of these modules and targets.
fn remove(tree: &Tree, archives: &[&str]) {
    for archive in archives {
        fs::remove_file(tree.path(&format!("lib/.kpack/{archive}.kpack"))).unwrap();
    }
}

const GFX90A: [&str; 4] = [
    "mat_lib_gfx90a:xnack+",
    "mat_lib_gfx90a:xnack-",
    "vec_lib_gfx90a:xnack+",
    "vec_lib_gfx90a:xnack-",
];

const ROWS: [Row; 8] = [
    ("all archives", |_| (), &["kpack verify lib", "kpack verify --arch all lib"]),
    (
        "those of two GPUs",
        |tree| remove(tree, &GFX90A),
        &[
            "kpack verify lib",
            "kpack verify lib/libvec.so",
            "kpack verify --verbose lib/.kpack/vec_lib.kpm",
            "kpack verify --arch all lib",
            "kpack verify --arch gfx1030 lib",
        ],
    ),
    ("one variant is missing", |tree| remove(tree, &GFX90A[..1]), &["kpack verify lib"]),
    (
        "a GPU's code is there for one of the libraries",
        |tree| remove(tree, &["mat_lib_gfx1100", "vec_lib_gfx90a:xnack+", "vec_lib_gfx90a:xnack-"]),
        &["kpack verify lib", "kpack verify lib/libvec.so"],
    ),
    (
        "a GPU is missing, and another is damaged",
        |tree| {
            remove(tree, &GFX90A);
            let archive = tree.path("lib/.kpack/vec_lib_gfx1100.kpack");
            let bytes = fs::read(&archive).unwrap();
            fs::write(&archive, &bytes[..bytes.len() - 1]).unwrap();
        },
        &["kpack verify lib"],
    ),
    (
        "a manifest lost the target of the installed archives",
        |tree| {
            remove(tree, &GFX90A);
            remove(tree, &["mat_lib_gfx1030", "mat_lib_gfx1100", "vec_lib_gfx1100"]);
            let path = tree.path("lib/.kpack/mat_lib.kpm");
            let mut manifest = Manifest::read(&fs::read(&path).unwrap()).unwrap();
            manifest.kpack_files.retain(|target, _| target != "gfx1030");
            fs::write(&path, manifest.to_bytes()).unwrap();
        },
        &["kpack verify lib"],
    ),
    (
        "an archive has another magic",
        |tree| {
            let archive = tree.path("lib/.kpack/vec_lib_gfx1100.kpack");
            let mut bytes = fs::read(&archive).unwrap();
            bytes[2] ^= 1;
            fs::write(&archive, bytes).unwrap();
        },
        &["kpack verify lib"],
    ),
    (
        "no archive",
        |tree| {
            remove(tree, &GFX90A);
            let others =
                ["mat_lib_gfx1030", "mat_lib_gfx1100", "vec_lib_gfx1030", "vec_lib_gfx1100"];
            remove(tree, &others);
        },
        &["kpack verify lib/libvec.so"],
    ),
];

#[test]
fn what_is_missing_is_a_warning_if_one_gpu_has_all() {
    insta::assert_snapshot!(said_by(&ROWS, &installed()));
}
