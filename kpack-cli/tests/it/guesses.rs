//! What people type before they have read anything: it does what they mean, or prints the command to type.

use std::fs;

use insta::assert_snapshot;
use kpack_tests::fixture::add_and_mul;
use kpack_tests::tree::Tree;

use crate::command::{Row, said_by};

/// A prefix with a library, and files that contain libraries.
fn prefix() -> Tree {
    let targets = ["gfx1100", "gfx90a:xnack+"];
    let tree = add_and_mul(targets, targets).in_tree("stage/lib/libvec.so");
    fs::write(tree.path("vec.deb"), "!<arch>\ndebian-binary   1700000000  0").unwrap();
    fs::write(tree.path("vec.rpm"), b"\xed\xab\xee\xdb\x03\0").unwrap();
    fs::write(tree.path("vec.whl"), "PK\x03\x04").unwrap();
    fs::write(tree.path("vec.zip"), "PK\x03\x04").unwrap();
    tree
}

#[test]
fn what_people_type_first() {
    let rows: &[Row] = &[
        (
            "a path alone",
            |_| {},
            &["kpack stage/lib/libvec.so", "kpack --color never stage/lib", "kpack no-file"],
        ),
        (
            "directories, packages and archives",
            |_| {},
            &[
                "kpack split stage",
                "kpack split vec.deb",
                "kpack split vec.rpm",
                "kpack split vec.whl",
                "kpack show vec.deb",
                "kpack show vec.whl",
                "kpack show vec.zip",
                "kpack verify vec.whl",
                "kpack list stage",
                "kpack list stage/lib/libvec.so",
            ],
        ),
        (
            "words of other tools",
            |_| {},
            &[
                "kpack undo stage/lib/libvec.so",
                "kpack unsplit stage/lib/libvec.so",
                "kpack restore stage/lib/libvec.so",
                "kpack info stage/lib/libvec.so",
                "kpack inspect stage/lib/libvec.so",
                "kpack check stage",
                "kpack validate stage",
                "kpack --color never ls stage",
                "kpack shrink --arch gfx1100 stage",
                "kpack version",
                "kpack nonsense stage",
            ],
        ),
        (
            "options of other tools",
            |_| {},
            &[
                "kpack split --undo stage/lib/libvec.so",
                "kpack split --target gfx1100 stage/lib/libvec.so",
                "kpack split --gpu gfx1100 stage/lib/libvec.so",
                "kpack split --recursive stage",
                "kpack split --archs gfx1100 stage/lib/libvec.so",
                "kpack verify --gpu gfx1100 stage",
                "kpack report --recursive stage",
                "kpack wheel split --foo vec.whl",
                "kpack split -x stage/lib/libvec.so",
            ],
        ),
        (
            "exit codes",
            |_| {},
            &[
                "kpack explain 3",
                "kpack explain exit code 1",
                "kpack explain exit-code 143 [stale-archive]",
                "kpack explain exit",
                "kpack explain 77",
                "kpack explain 3000",
                "kpack explain +3",
                "kpack explain 03",
            ],
        ),
        (
            "a split and its way back",
            |_| {},
            &[
                "kpack split --dry-run stage/lib/libvec.so",
                "kpack split stage/lib/libvec.so",
                "kpack split --dry-run stage/lib/libvec.so",
                "kpack split stage/lib/.kpack/vec_lib_gfx1100.kpack",
                "kpack list stage/lib/.kpack/vec_lib_gfx1100.kpack stage/lib/libvec.so",
                "kpack join stage/lib/libvec.so",
                "kpack join --arch all stage/lib/libvec.so",
                "rm -r stage/lib/.kpack",
            ],
        ),
    ];
    // How wide a column is depends on the length of the tree's path.
    let said = said_by(rows, &prefix());
    let lines = said.lines().map(|line| match line.split_once("  archive  ") {
        Some((before, after)) => format!("{before}  archive  {}\n", after.trim_start()),
        None => format!("{line}\n"),
    });
    assert_snapshot!(String::from_iter(lines));
}
