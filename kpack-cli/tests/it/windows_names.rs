//! Given a module whose archives have the names of Windows, without colons, when it is used on Linux, then each command
//! finds them, and they keep their names.

use std::fs;

use kpack_split::install::{InstallOptions, install};
use kpack_tests::fixture::{FatLibrary, Storage, WINDOWS_LINKERS, WindowsBuild, code};
use kpack_tests::tree::{Tree, names_in};

use crate::command::{kpack, said, words};

const KPACKS: &str = "prefix/lib/.kpack";

fn build(tree: &Tree, name: &str) {
    let objects = [code("gfx90a:xnack+", name), code("gfx942", name)];
    let library = FatLibrary::new().wrapper(Storage::Plain, objects);
    let path = tree.path(&format!("prefix/lib/lib{name}.so"));
    library.build(&path).unwrap();
    let files = [format!("lib/lib{name}.so")];
    install(&InstallOptions::new(tree.path("prefix"), "vec", files), &()).unwrap();
}

/// A split library, as it is installed on Windows.
fn of_windows() -> Tree {
    let tree = Tree::new();
    build(&tree, "vec");
    let [usual, other] = ["vec_lib_gfx90a:xnack+.kpack", "vec_lib_gfx90a-xnack+.kpack"];
    let path = |name: &str| tree.path(KPACKS).join(name);
    fs::rename(path(usual), path(other)).unwrap();
    let mut manifest = fs::read(path("vec_lib.kpm")).unwrap();
    let at = manifest.windows(usual.len()).position(|w| w == usual.as_bytes());
    let at = at.unwrap();
    manifest[at..at + other.len()].copy_from_slice(other.as_bytes());
    fs::write(path("vec_lib.kpm"), manifest).unwrap();
    tree
}

#[test]
fn commands_find_the_archives() {
    let tree = of_windows();
    let verified = said(&tree, &words("verify prefix --arch gfx90a:xnack+"));
    assert!(verified.ends_with("\nexit code 0\n"), "{verified}");
    assert!(!verified.contains("warning"), "{verified}");
    let shown = said(&tree, &words("show prefix/lib/libvec.so"));
    assert!(shown.contains("gfx90a-xnack+.kpack"), "{shown}");
    let joined = kpack(&tree, &words("join --arch gfx90a:xnack+ --prefix prefix lib/libvec.so"));
    assert!(joined.status.success(), "{joined:?}");
}

#[test]
fn archives_of_binaries_for_windows() {
    let linker = WINDOWS_LINKERS[0];
    if !linker.is_there() {
        return;
    }
    let tree = Tree::new();
    let objects = [code("gfx90a:xnack+", "vec"), code("gfx942", "vec")];
    let library = FatLibrary::new().wrapper(Storage::Plain, objects);
    let build = WindowsBuild { linker, is_program: false, flags: &[] };
    fs::create_dir_all(tree.path("prefix/lib")).unwrap();
    let path = tree.path("prefix/lib/vec.dll");
    library.build_for_windows(build, &path).unwrap();
    let options = InstallOptions::new(tree.path("prefix"), "vec", ["lib/vec.dll"]);
    install(&options, &()).unwrap();
    let expected = ["vec_lib.kpm", "vec_lib_gfx90a-xnack+.kpack", "vec_lib_gfx942.kpack"];
    assert_eq!(names_in(&tree.path(KPACKS)), expected);
    let verified = said(&tree, &words("verify prefix"));
    assert!(verified.ends_with("\nexit code 0\n"), "{verified}");
}

#[test]
fn an_archive_keeps_its_name() {
    let tree = of_windows();
    let before = names_in(&tree.path(KPACKS));
    build(&tree, "other");
    assert_eq!(names_in(&tree.path(KPACKS)), before);
    let listed = said(&tree, &["list", &format!("{KPACKS}/vec_lib_gfx90a-xnack+.kpack")]);
    assert!(listed.contains("lib/libother.so"), "{listed}");
    assert!(listed.contains("lib/libvec.so"), "{listed}");
    let verified = said(&tree, &words("verify prefix --arch gfx90a:xnack+"));
    assert!(verified.ends_with("\nexit code 0\n"), "{verified}");
}

/// ROCm's loader looks for the archives of a binary for Linux under their usual names alone.
#[test]
fn a_binary_for_windows_renames_no_archive() {
    let linker = WINDOWS_LINKERS[0];
    if !linker.is_there() {
        return;
    }
    let tree = Tree::new();
    build(&tree, "vec");
    let before = names_in(&tree.path(KPACKS));
    let library = FatLibrary::new().wrapper(Storage::Plain, [code("gfx90a:xnack+", "dll")]);
    let dll = WindowsBuild { linker, is_program: false, flags: &[] };
    let fresh = |file: &str| tree.path(&format!("prefix/lib/{file}"));
    library.build_for_windows(dll, &fresh("one.dll")).unwrap();
    let options = |files: &[&str]| {
        let files = files.iter().map(|file| format!("lib/{file}"));
        InstallOptions::new(tree.path("prefix"), "vec", files.collect::<Vec<_>>())
    };
    install(&options(&["one.dll"]), &()).unwrap();
    assert_eq!(names_in(&tree.path(KPACKS)), before);
    library.build_for_windows(dll, &fresh("two.dll")).unwrap();
    let other = FatLibrary::new().wrapper(Storage::Plain, [code("gfx90a:xnack+", "two")]);
    other.build(&fresh("libtwo.so")).unwrap();
    install(&options(&["two.dll", "libtwo.so"]), &()).unwrap();
    assert_eq!(names_in(&tree.path(KPACKS)), before);
    let verified = said(&tree, &words("verify prefix"));
    assert!(verified.ends_with("\nexit code 0\n"), "{verified}");
}
