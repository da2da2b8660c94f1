//! A machine with a split library, the program that loads it, and HIP runtimes and loaders to choose from. For the tests of the
//! doctor, and of the command.

#![allow(dead_code, reason = "not every test program uses all of it")]

use std::fs;
use std::os::unix::fs::symlink;

use kpack_split::install::{InstallOptions, install};
use kpack_tests::fixture::{FatLibrary, Kind, Storage, TargetCode, code_object, stub_library};
use kpack_tests::tree::Tree;

pub(crate) const HIP: &str = "rocm/libamdhip64.so.6";
pub(crate) const LOADER: &str = "rocm/librocm_kpack.so.0";
pub(crate) const LIBRARY: &str = "prefix/lib/libvec.so";
pub(crate) const ARCHIVE: &str = "prefix/lib/.kpack/vec_lib_gfx942.kpack";

/// The path of the HIP runtime from libraries in a prefix.
pub(crate) const RUNTIME: &str = "$ORIGIN/../../rocm";

/// A prefix with a split library for gfx1030 and gfx942, a program that loads it, and a HIP runtime that does not read
/// markers. `fat` contains the library as it was, `reading` a HIP runtime that reads markers and ROCm's loader, and `kpack`
/// kpack's loader and the shim.
pub(crate) fn machine() -> Tree {
    let tree = Tree::new();
    for path in [HIP, "kpack/libkpack_hip.so"] {
        stub(&tree, path);
    }
    reading_runtime(&tree, "reading/libamdhip64.so.6", "reading/librocm_kpack.so.0");
    kpack_loader(&tree, "kpack/librocm_kpack.so.0");
    library(&tree, &["gfx1030", "gfx942"]).build(&tree.path("fat/lib/libvec.so")).unwrap();
    tree.copy_file("fat/lib/libvec.so", LIBRARY);
    let mut options = InstallOptions::new(tree.path("prefix"), "vec", ["lib/libvec.so"]);
    options.install_hint = Some("apt install vec-@GFXARCH@".to_owned());
    install(&options, &()).unwrap();
    // As the search path of a program that is set here, DT_RUNPATH comes after LD_LIBRARY_PATH.
    let program = FatLibrary::new().kind(Kind::Pie).flag("-Wl,--enable-new-dtags");
    let program = program.linked_with(tree.path(HIP), "$ORIGIN/../rocm");
    let program = program.linked_with(tree.path("fat/lib/libvec.so"), "$ORIGIN/../prefix/lib");
    program.build(&tree.path("bin/app")).unwrap();
    tree
}

/// A library without code.
pub(crate) fn stub(tree: &Tree, path: &str) {
    stub_library(&tree.path(path), "", &[]);
}

/// Replaces the HIP runtime by one that reads markers.
pub(crate) fn new_runtime(tree: &Tree) {
    tree.copy_file("reading/libamdhip64.so.6", HIP);
    tree.copy_file("reading/librocm_kpack.so.0", LOADER);
}

/// A HIP runtime that calls ROCm's loader.
pub(crate) fn reading_runtime(tree: &Tree, path: &str, loader: &str) {
    stub_library(&tree.path(loader), "int kpack_load_code_object(void) { return 1; }", &[]);
    let code = "int kpack_load_code_object(void);\n\
                int (*loads)(void) = kpack_load_code_object;";
    stub_library(&tree.path(path), code, &[&tree.path(loader)]);
}

/// kpack's loader, by its note.
pub(crate) fn kpack_loader(tree: &Tree, path: &str) {
    let note = note(".note.kpack_loader", 2);
    let code = format!("int kpack_load_code_object(void) {{ return 1; }}\n__asm__({note:?});");
    stub_library(&tree.path(path), &code, &[]);
}

/// A note as kpack's libraries have it.
pub(crate) fn note(section: &str, kind: u32) -> String {
    format!(
        ".section {section},\"a\",@note\n.long 6, 0, {kind}\n.asciz \"kpack\"\n.zero 2\n.previous\n"
    )
}

/// A library with code for these targets, which is linked with the HIP runtime.
pub(crate) fn library(tree: &Tree, targets: &[&str]) -> FatLibrary {
    fat(targets).linked_with(tree.path(HIP), RUNTIME)
}

/// A library with code for these targets. It needs no HIP runtime.
pub(crate) fn fat(targets: &[&str]) -> FatLibrary {
    let wrapper = targets.iter().map(|target| code(target, 1));
    FatLibrary::new().flag("-Wl,-soname,libvec.so").wrapper(Storage::Plain, wrapper)
}

pub(crate) fn code(target: &str, byte: u8) -> TargetCode {
    (target.to_owned(), code_object(target, &[byte; 9000]).unwrap())
}

/// Builds libraries `lib/libvec.so` of a new prefix, and splits them.
pub(crate) fn split(library: &FatLibrary, tree: &Tree, prefix: &str) {
    let _ = fs::remove_dir_all(tree.path(prefix));
    library.build(&tree.path(prefix).join("lib/libvec.so")).unwrap();
    split_files(tree, prefix, &["lib/libvec.so"]);
}

pub(crate) fn split_files(tree: &Tree, prefix: &str, files: &[&str]) {
    install(&InstallOptions::new(tree.path(prefix), "vec", files), &()).unwrap();
}

pub(crate) fn with_filters(check: impl FnOnce()) {
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"[0-9.]+ KiB", "[size]");
    settings.add_filter(r"0x[0-9a-f]{3,}", "[offset]");
    settings.bind(check);
}

/// KFD's list of these GPUs, in `nodes`; `-` for no list.
pub(crate) fn write_nodes(tree: &Tree, gpus: &str) {
    let _ = fs::remove_dir_all(tree.path("nodes"));
    if gpus == "-" {
        return;
    }
    fs::create_dir(tree.path("nodes")).unwrap();
    for (number, gpu) in gpus.split_whitespace().enumerate() {
        let properties = match gpu {
            "cpu" => "simd_count 0\n",
            "gfx942" => "simd_count 1216\ngfx_target_version 90402\n",
            "gfx1030" => "simd_count 4\ngfx_target_version 100300\n",
            "gfx1036" => "simd_count 4\ngfx_target_version 100306\n",
            other => panic!("{other}"),
        };
        tree.write(&format!("nodes/{number}/properties"), properties);
    }
}

pub(crate) fn asks_once(tree: &Tree, runtime: &str) {
    reading_runtime(tree, &format!("rocm/{runtime}"), LOADER);
    split_for_two(tree, runtime);
}

/// Splits a library for two GPUs that is linked with this HIP runtime.
pub(crate) fn split_for_two(tree: &Tree, runtime: &str) {
    let hip = tree.path("rocm").join(runtime);
    split(&fat(&["gfx1030", "gfx942"]).linked_with(hip, RUNTIME), tree, "prefix");
}

/// A prefix whose library and archive are links into a store, where each archive is somewhere else.
pub(crate) fn linked(tree: &Tree) {
    for (name, place) in [("libvec.so", "libvec.so"), (".kpack/vec_lib_gfx942.kpack", "archive")] {
        let link = tree.path("linked/lib").join(name);
        tree.copy_file(&format!("prefix/lib/{name}"), &format!("store/lib/{place}"));
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(tree.path("store/lib").join(place), link).unwrap();
    }
}
