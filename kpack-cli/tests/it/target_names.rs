//! Given names of GPU targets, when they are passed to different commands, then all of these understand
//! the same by them.

use kpack_tests::fixture::{FatLibrary, Storage, code};
use kpack_tests::tree::Tree;

use crate::command::{kpack, words};

/// Runs a command line, and returns its exit code and what it said.
fn run(tree: &Tree, line: &str) -> (i32, String) {
    let output = kpack(tree, &words(line));
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8(said).unwrap();
    (
        output.status.code().unwrap(),
        format!("kpack {line}\n{said}"),
    )
}

fn succeeds(tree: &Tree, line: &str) -> String {
    let (code, said) = run(tree, line);
    assert_eq!(code, 0, "{said}");
    said
}

/// An artifact with a library that has code for these targets.
fn artifact(targets: &[&str]) -> Tree {
    let tree = Tree::new();
    std::fs::create_dir_all(tree.path("built/stage/lib")).unwrap();
    std::fs::write(tree.path("built/artifact_manifest.txt"), "stage\n").unwrap();
    let code = targets.iter().map(|target| code(target, "vec"));
    let library = FatLibrary::new().wrapper(Storage::Plain, code);
    library
        .build(&tree.path("built/stage/lib/libvec.so"))
        .unwrap();
    tree
}

/// Whether commands take code for `found` where a user names `named`.
fn takes(named: &str, found: &str) -> Vec<(&'static str, bool)> {
    let tree = artifact(&[found, "gfx1201"]);
    let mut taken = Vec::new();
    succeeds(
        &tree,
        &format!(
            "split --artifact-dir built --artifact-prefix vec_lib --output-dir out --gpu-targets {named}"
        ),
    );
    let split = tree.path(&format!("out/vec_lib_{found}")).exists();
    taken.push(("split", split));
    succeeds(
        &tree,
        "split --artifact-dir built --artifact-prefix vec_lib --output-dir all",
    );
    let (code, _) = run(&tree, &format!("verify all --arch {named}"));
    taken.push(("verify", code == 0));
    let (code, _) = run(
        &tree,
        &format!("extract built/stage/lib/libvec.so --arch {named} -o one"),
    );
    taken.push(("extract", code == 0));
    taken
}

#[test]
fn a_processor_means_its_variants_and_a_variant_takes_the_plain_processor_along_everywhere() {
    for (named, found, expected) in [
        ("gfx90a", "gfx90a:xnack+", true),
        ("gfx90a:xnack-", "gfx90a", true),
        ("gfx90a:xnack-", "gfx90a:xnack-", true),
        ("gfx90a:xnack-", "gfx90a:xnack+", false),
        ("gfx90a", "gfx908", false),
    ] {
        for (command, taken) in takes(named, found) {
            assert_eq!(taken, expected, "{command}: {named} and {found}");
        }
    }
}
