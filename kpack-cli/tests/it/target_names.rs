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
    (output.status.code().unwrap(), format!("kpack {line}\n{said}"))
}

fn succeeds(tree: &Tree, line: &str) -> String {
    let (code, said) = run(tree, line);
    assert_eq!(code, 0, "{said}");
    said
}

/// An artifact with a library that has code for these targets.
fn artifact(targets: &[&str]) -> Tree {
    let tree = Tree::new();
    tree.write("built/artifact_manifest.txt", "stage\n");
    let code = targets.iter().map(|target| code(target, "vec"));
    let library = FatLibrary::new().wrapper(Storage::Plain, code);
    library.build(&tree.path("built/stage/lib/libvec.so")).unwrap();
    tree
}

/// Whether commands take code for `found` where a user names `named`.
fn takes(named: &str, found: &str) -> Vec<(&'static str, bool)> {
    let tree = artifact(&[found, "gfx1201"]);
    let mut taken = Vec::new();
    // It fails if it would take nothing.
    let split = "artifact split --artifact-dir built --artifact-prefix vec_lib --output-dir out";
    run(&tree, &format!("{split} --gpu-targets {named}"));
    let archive = format!("_{found}.kpack");
    let mut written = tree.files().into_iter();
    let split = written.any(|file| file.starts_with("out/") && file.ends_with(&archive));
    taken.push(("artifact split", split));
    succeeds(
        &tree,
        "artifact split --artifact-dir built --artifact-prefix vec_lib --output-dir all",
    );
    let (code, _) = run(&tree, &format!("verify all --arch {named}"));
    taken.push(("verify", code == 0));
    let (code, _) = run(&tree, &format!("extract built/stage/lib/libvec.so --arch {named} -o one"));
    taken.push(("extract", code == 0));
    taken.push(("split", is_split(named, found)));
    taken
}

/// Whether `kpack split` keeps code for `found` where a user names `named`.
fn is_split(named: &str, found: &str) -> bool {
    let tree = artifact(&[found, "gfx1201"]);
    let line = "split --prefix built/stage --module vec lib/libvec.so --arch gfx1201";
    run(&tree, &format!("{line} --arch {named}"));
    let archive = format!("built/stage/lib/.kpack/vec_lib_{found}.kpack");
    tree.path(&archive).exists()
}

#[test]
fn misspelled_names_are_refused_everywhere_with_what_was_meant() {
    let tree = artifact(&["gfx1100"]);
    for (name, meant) in [
        ("gfx11OO", "did you mean gfx1100?"),
        ("mi300x", "did you mean gfx942?"),
        ("gfx11", "a family; list its processors, such as gfx1100"),
        ("anything", "expected a processor"),
    ] {
        for line in [
            "split --prefix built/stage --module vec lib/libvec.so --arch",
            "artifact split --artifact-dir built --artifact-prefix vec_lib --output-dir out --gpu-targets",
            "join --prefix built/stage --arch",
            "extract built/stage/lib/libvec.so --output-dir out --arch",
            "verify built --arch",
            "doctor built --arch",
            "targets",
        ] {
            let (code, said) = run(&tree, &format!("{line} {name}"));
            assert!(code == 2 && said.contains(meant), "{code}: {said}");
        }
        let group =
            format!("wheel split vec-1.0-py3-none-any.whl --output-dir out --group g={name}");
        let (code, said) = run(&tree, &group);
        assert!(code == 2 && said.contains(meant), "{code}: {said}");
    }
    assert!(!tree.path("out").exists());
}

#[test]
fn unknown_processors_are_taken_with_a_warning() {
    let tree = artifact(&["gfx1100"]);
    let said = succeeds(&tree, "targets gfx9999 gfx90a:xnack-:sramecc+ gfx9999");
    assert!(said.contains("gfx9999\ngfx90a:sramecc+:xnack-\n"), "{said}");
    let warning = "warning: gfx9999 is not a processor that this version of kpack knows";
    assert!(said.contains(warning), "{said}");
    let line = "artifact split --artifact-dir built --artifact-prefix vec_lib --output-dir out --gpu-targets";
    let said = succeeds(&tree, &format!("{line} gfx1100 gfx9999"));
    assert!(said.contains(warning), "{said}");
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
