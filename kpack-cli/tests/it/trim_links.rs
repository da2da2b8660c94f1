//! Given symbolic links to files outside the given paths, when those are trimmed, then a link becomes a copy only where the
//! dynamic linker, and whoever resolves links, finds as much from there.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::command::{kpack, words};
use crate::fat::targets_of;
use kpack_tests::fixture::{FatLibrary, Kind, Storage, WINDOWS_LINKERS, WindowsBuild, code_with};
use kpack_tests::require;
use kpack_tests::tree::Tree;

fn fat() -> FatLibrary {
    let both = [code_with("gfx1100", &[1; 30_000]), code_with("gfx942", &[2; 30_000])];
    FatLibrary::new().wrapper(Storage::Plain, both)
}

fn link(tree: &Tree, to: &str, name: &str) {
    let name = tree.path(name);
    fs::create_dir_all(name.parent().unwrap()).unwrap();
    symlink(tree.path(to), name).unwrap();
}

#[track_caller]
fn trim(tree: &Tree, paths: &str) -> String {
    let output = kpack(tree, &words(&format!("trim --arch gfx942 {paths}")));
    let said = String::from_utf8_lossy(&[&*output.stdout, &output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

fn clang(tree: &Tree, arguments: &str) {
    let mut clang = Command::new("clang-19");
    let output = clang.current_dir(tree.root()).args(words(arguments)).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// A ROCm with a program and a library that find `libhelper.so` by `$ORIGIN`.
fn rocm() -> Tree {
    let tree = Tree::new();
    tree.write("helper.c", "int help(void) { return 0; }");
    tree.write("tool.c", "int help(void); int main(void) { return help(); }");
    tree.write("vec.c", "int help(void); int vec(void) { return help(); }");
    tree.write("user.c", "int vec(void); int main(void) { return vec(); }");
    for directory in ["rocm/lib", "rocm/bin"] {
        fs::create_dir_all(tree.path(directory)).unwrap();
    }
    fat().kind(Kind::Object).build(&tree.path("device.o")).unwrap();
    clang(&tree, "-shared -fPIC helper.c -Wl,-soname,libhelper.so -o rocm/lib/libhelper.so");
    let helper = "device.o -Lrocm/lib -lhelper -fuse-ld=lld-19 -Wl,--unresolved-symbols=ignore-all";
    clang(&tree, &format!("tool.c {helper} -Wl,-rpath,$ORIGIN/../lib -o rocm/bin/tool"));
    let soname = "-shared -fPIC -Wl,-soname,libvec.so";
    clang(&tree, &format!("{soname} vec.c {helper} -Wl,-rpath,$ORIGIN -o rocm/lib/libvec.so"));
    clang(
        &tree,
        "user.c -Lrocm/lib -lvec -fuse-ld=lld-19 -Wl,--unresolved-symbols=ignore-all -o user",
    );
    tree
}

fn has_compiler() -> bool {
    ["clang-19", "ld.lld-19"].iter().all(|tool| require::tool(tool))
}

/// Whether the dynamic linker finds all libraries of a program that searches this directory.
fn runs(program: &Path, directory: &Path) -> bool {
    Command::new(program).env("LD_LIBRARY_PATH", directory).output().unwrap().status.success()
}

#[test]
fn a_link_to_a_program_stays() {
    if !has_compiler() {
        return;
    }
    let tree = rocm();
    link(&tree, "rocm/bin/tool", "venv/bin/tool");
    let tool = tree.path("venv/bin/tool");
    assert!(runs(&tool, Path::new("/nowhere")));
    for dry in ["--dry-run ", ""] {
        let said = trim(&tree, &format!("{dry}venv"));
        assert!(said.contains("[shared-link]") && said.contains("it is a program"), "{said}");
        assert!(said.contains("0 files"), "{said}");
    }
    assert!(tool.is_symlink() && runs(&tool, Path::new("/nowhere")));
    let real = tree.path("rocm/bin/tool");
    assert_eq!(targets_of(&real), ["gfx1100", "gfx942"]);
    // The command in the warning trims the program where it is.
    let command = format!("trim --arch gfx942 {}", real.display());
    let said = trim(&tree, "venv");
    assert!(said.contains(&format!("to trim that file, run `kpack {command}`")), "{said}");
    assert!(kpack(&tree, &words(&command)).status.success());
    assert!(tool.is_symlink() && runs(&tool, Path::new("/nowhere")));
    assert_eq!(targets_of(&tool), ["gfx942"]);
}

#[test]
fn in_an_image_the_command_names_the_root() {
    if !has_compiler() {
        return;
    }
    let tree = rocm();
    link(&tree, "rocm/bin/tool", "venv/bin/tool");
    fs::remove_file(tree.path("venv/bin/tool")).unwrap();
    symlink("/rocm/bin/tool", tree.path("venv/bin/tool")).unwrap();
    let said = trim(&tree, "--root . /venv");
    let command = "trim --arch gfx942 --root . /rocm/bin/tool";
    assert!(said.contains(&format!("to trim that file, run `kpack {command}`")), "{said}");
    assert!(kpack(&tree, &words(command)).status.success());
    assert_eq!(targets_of(&tree.path("rocm/bin/tool")), ["gfx942"]);
}

#[test]
fn other_names_of_a_library_in_its_own_directory_are_followed() {
    let tree = Tree::new();
    fat().build(&tree.path("lib/libvec.so.1.2")).unwrap();
    symlink("libvec.so.1.2", tree.path("lib/libvec.so.1")).unwrap();
    symlink("libvec.so.1", tree.path("lib/libvec.so")).unwrap();
    let dry = trim(&tree, "--dry-run lib/libvec.so");
    assert!(dry.contains("lib/libvec.so.1.2: would shrink: "), "{dry}");
    assert_eq!(targets_of(&tree.path("lib/libvec.so.1.2")), ["gfx1100", "gfx942"]);
    let said = trim(&tree, "lib/libvec.so");
    assert!(said.contains("lib/libvec.so.1.2: ") && said.contains("1 file changed"), "{said}");
    for name in ["libvec.so", "libvec.so.1"] {
        assert!(tree.path("lib").join(name).is_symlink(), "{name}");
    }
    assert_eq!(targets_of(&tree.path("lib/libvec.so.1.2")), ["gfx942"]);
}

#[test]
fn a_link_to_a_library_becomes_a_copy_where_that_finds_the_same_libraries() {
    if !has_compiler() {
        return;
    }
    let tree = rocm();
    link(&tree, "rocm/lib/libvec.so", "alone/lib/libvec.so");
    let said = trim(&tree, "alone");
    assert!(said.contains("[shared-link]") && said.contains("rocm/lib/libhelper.so"), "{said}");
    assert!(tree.path("alone/lib/libvec.so").is_symlink());
    // As uv links its cache: the dynamic linker looks around the link, and so does a copy.
    for name in ["libvec.so", "libhelper.so"] {
        link(&tree, &format!("rocm/lib/{name}"), &format!("venv/lib/{name}"));
    }
    let (user, lib) = (tree.path("user"), tree.path("venv/lib"));
    assert!(runs(&user, &lib));
    let said = trim(&tree, "venv");
    assert!(said.contains("now a separate copy"), "{said}");
    assert!(!lib.join("libvec.so").is_symlink() && runs(&user, &lib));
    assert_eq!(targets_of(&lib.join("libvec.so")), ["gfx942"]);
    assert_eq!(targets_of(&tree.path("rocm/lib/libvec.so")), ["gfx1100", "gfx942"]);
    // The linker looks around the link, wherever that leads to.
    fs::remove_file(lib.join("libhelper.so")).unwrap();
    assert!(!runs(&user, &lib));
}

#[test]
fn a_link_to_a_library_with_a_database_stays_unless_that_is_around_the_link_too() {
    let tree = Tree::new();
    fat().build(&tree.path("rocm/lib/librocblas.so")).unwrap();
    fat().build(&tree.path("rocm/lib/libvec.so")).unwrap();
    let database = "rocm/lib/rocblas/library";
    tree.write(&format!("{database}/TensileLibrary_Type_SS_gfx942.dat"), "");
    for name in ["librocblas.so", "libvec.so"] {
        link(&tree, &format!("rocm/lib/{name}"), &format!("venv/lib/{name}"));
    }
    let said = trim(&tree, "venv");
    assert!(said.contains(database) && said.contains("1 file changed"), "{said}");
    assert!(tree.path("venv/lib/librocblas.so").is_symlink());
    assert!(!tree.path("venv/lib/libvec.so").is_symlink());
    link(&tree, "rocm/lib/rocblas", "venv/lib/rocblas");
    trim(&tree, "venv");
    assert_eq!(targets_of(&tree.path("venv/lib/librocblas.so")), ["gfx942"]);
    assert!(!tree.path("venv/lib/librocblas.so").is_symlink());
}

#[test]
fn a_link_to_a_program_for_windows_stays() {
    for linker in WINDOWS_LINKERS.into_iter().filter(|linker| linker.is_there()) {
        let tree = Tree::new();
        for (name, is_program) in [("tool.exe", true), ("vec.dll", false)] {
            let build = WindowsBuild { linker, is_program, flags: &[] };
            let path = tree.path("rocm").join(name);
            fs::create_dir_all(tree.path("rocm")).unwrap();
            crate::windows_binaries::library().build_for_windows(build, &path).unwrap();
            link(&tree, &format!("rocm/{name}"), &format!("venv/{name}"));
        }
        trim(&tree, "venv");
        assert!(tree.path("venv/tool.exe").is_symlink(), "{linker:?}");
        assert!(!tree.path("venv/vec.dll").is_symlink(), "{linker:?}");
    }
}
