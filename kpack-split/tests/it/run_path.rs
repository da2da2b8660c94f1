//! Given programs of some linkers, when their run path is set in place, then they find their libraries there, and standard
//! tools read them as before; where there is no room, nothing is set.

use std::fs;
use std::path::Path;
use std::process::Command;

use kpack_split::elf::{Image, run_path};
use kpack_tests::process::run;
use kpack_tests::require;
use kpack_tests::tree::Tree;
use kpack_tests::{linker, process};

/// A program in `bin`, linked with these flags, and the library that it needs, in `lib`.
fn program(flags: &[&str]) -> Tree {
    program_of("bfd", flags)
}

/// [`program`], of some linker.
fn program_of(linker: &str, flags: &[&str]) -> Tree {
    let tree = Tree::new();
    tree.write("lib.c", "int answer(void) { return 42; }");
    tree.write("main.c", "int answer(void); int main(void) { return answer() != 42; }");
    fs::create_dir_all(tree.path("lib")).unwrap();
    fs::create_dir_all(tree.path("bin")).unwrap();
    let cc = |arguments: &[&str]| {
        run(linker::driver(linker).current_dir(tree.root()).args(arguments));
    };
    cc(&["-shared", "-fPIC", "lib.c", "-Wl,-soname,libanswer.so", "-o", "lib/libanswer.so"]);
    cc(&[&["main.c", "lib/libanswer.so", "-o", "bin/main"], flags].concat());
    tree
}

/// Sets the run path of the program. Whether there is room.
fn set(tree: &Tree, path: &str) -> bool {
    let program = tree.path("bin/main");
    let mut bytes = fs::read(&program).unwrap();
    let image = Image::read(bytes.clone()).unwrap();
    let Some(edits) = run_path::edits(&image, path.as_bytes()).unwrap() else {
        return false;
    };
    for (offset, new) in edits {
        let offset = offset as usize;
        bytes[offset..offset + new.len()].copy_from_slice(&new);
    }
    fs::write(&program, bytes).unwrap();
    true
}

fn runs(program: &Path) -> bool {
    process::output(&mut Command::new(program)).status.success()
}

fn dynamic(tree: &Tree) -> String {
    run(Command::new("readelf").args(["-dV"]).arg(tree.path("bin/main")))
}

const NEW: &str = "$ORIGIN/../lib";
const OLD: &str = "-Wl,-rpath,/build/of/another/machine/with/lib";

#[test]
fn the_old_run_path_is_replaced() {
    for linker in linker::installed() {
        for tags in ["-Wl,--enable-new-dtags", "-Wl,--disable-new-dtags"] {
            let tree = program_of(linker, &[OLD, tags]);
            assert!(!runs(&tree.path("bin/main")), "{linker}");
            assert!(set(&tree, NEW), "{linker}");
            assert!(runs(&tree.path("bin/main")), "{linker} {tags}");
            let text = dynamic(&tree);
            assert!(text.contains(&format!("Library rpath: [{NEW}]")), "{text}");
            assert!(!text.contains("RUNPATH"), "{text}");
            let bytes = fs::read(tree.path("bin/main")).unwrap();
            assert!(!kpack_tests::bytes::contains(&bytes, "/build/of"), "{linker}");
            // A second time, in the same room.
            assert!(set(&tree, "$ORIGIN/../lib:$ORIGIN/../more"), "{linker}");
            assert!(runs(&tree.path("bin/main")), "{linker}");
        }
    }
}

#[test]
fn without_room_nothing_is_set() {
    let tree = program(&[]);
    assert!(!set(&tree, NEW));
    let tree = program(&["-Wl,-rpath,/short"]);
    assert!(!set(&tree, NEW));
}

/// CMake leaves zeros in the place of the run path that an installed program does not have, and a spare entry.
#[test]
fn where_cmake_removed_a_run_path() {
    if !require::tool("cmake") {
        return;
    }
    let tree = program(&[OLD]);
    tree.write("remove.cmake", "file(RPATH_REMOVE FILE bin/main)");
    run(Command::new("cmake").current_dir(tree.root()).args(["-P", "remove.cmake"]));
    assert!(!dynamic(&tree).contains("another/machine"));
    assert!(set(&tree, NEW));
    assert!(runs(&tree.path("bin/main")));
}

/// The linker stores a name once that is also the end of another one.
#[test]
fn what_else_is_in_the_old_run_path_stays() {
    let tree = program(&["-Wl,-rpath,/a/directory/that/is/long/libanswer.so"]);
    assert!(set(&tree, NEW));
    assert!(runs(&tree.path("bin/main")));
    let tree = program(&["-Wl,-rpath,/a/libanswer.so"]);
    assert!(!set(&tree, NEW));
    // None takes no room.
    let tree = program(&["-Wl,-rpath,libanswer.so"]);
    assert!(set(&tree, ""));
    let text = dynamic(&tree);
    assert!(
        text.contains("Library rpath: []") && text.contains("library: [libanswer.so]"),
        "{text}"
    );
}
