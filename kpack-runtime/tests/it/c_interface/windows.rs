//! The loader as `rocm_kpack.dll`: programs for Windows are built against it, and wine runs them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use kpack_format::archive::Scheme;
use kpack_tests::conformance::{KPACK, check};
use kpack_tests::process::run;
use kpack_tests::require;
use kpack_tests::tree::{Tree, write};
use kpack_tests::windows;

use super::{declared, files};
use crate::common::{archive, marker};

/// The directory of the loader and of its import library.
fn loader() -> &'static Path {
    static LOADER: LazyLock<PathBuf> = LazyLock::new(|| {
        let kind = ["--lib", "--crate-type", "cdylib"];
        windows::build(&[&["rustc", "-p", "kpack-runtime"], &kind[..]].concat())
    });
    &LOADER
}

/// Builds `tests/c/SOURCE` in a directory, with the loader beside it, and returns a command that runs it.
fn program(source: &str, directory: &Path) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = directory.join("program.exe");
    run(Command::new(windows::COMPILER)
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-std=c11"])
        .args(["-D__USE_MINGW_ANSI_STDIO", "-static", "-o"])
        .arg(&program)
        .arg(root.join("tests/c").join(source))
        .arg("-I")
        .arg(root.join("include"))
        .arg(loader().join("librocm_kpack.dll.a"))
        .arg("-pthread"));
    fs::copy(loader().join("rocm_kpack.dll"), directory.join("rocm_kpack.dll")).unwrap();
    windows::wine(&program)
}

fn conforms(command: &mut Command) {
    let printed = run(command);
    assert!(printed.trim_end().ends_with(" checks"), "{printed}");
}

#[test]
fn programs_that_run_on_every_system() {
    if !windows::available() {
        return;
    }
    let tree = Tree::new();
    let files = files(windows::COMPILER);
    let mut conformance = program("conformance.c", tree.root());
    conforms(conformance.arg(windows::path(files.root())));
    let mut threads = program("threads.c", tree.root());
    let printed = run(threads.arg(windows::path(&files.path("good.kpack"))));
    assert_eq!(printed.trim_end(), "3200128 bytes");
}

#[test]
fn the_loader_answers_what_the_vectors_say() {
    if !windows::available() {
        return;
    }
    let asked = check(&loader().join("rocm_kpack.dll"), KPACK).unwrap();
    assert_eq!(asked, 4);
}

#[test]
fn paths_and_files_of_windows() {
    if !windows::available() {
        return;
    }
    let tree = Tree::new();
    let target = "gfx1100";
    let code = |code: &[u8]| {
        let kernels = [("lib/libvec.so#0", code)];
        archive(Scheme::ZstdPerKernel, target, &kernels)
    };
    let write = |name: &str, bytes: &[u8]| {
        let path = tree.path(name);
        write(&path, bytes);
    };
    let good = code(b"code");
    for name in ["é.kpack", "中.kpack", "Ã©Ã©.kpack", "old.kpack"] {
        write(name, &good);
    }
    write("new.kpack", &code(b"newer"));
    write("lib/vec.kpack", &good);
    write("lib/vec_gfx1100.kpack", &good);
    write("marker", &marker().to_bytes());
    for place in [".", "é"] {
        write(&format!("{place}/bin/.kpack/vec_lib_gfx1100.kpack"), &good);
        write(&format!("{place}/bin/vec.dll"), b"");
    }
    let kernels: [(&str, &[u8]); 1] = [("lib/libvec.so#0", b"code")];
    let variant = archive(Scheme::ZstdPerKernel, "gfx90a:xnack-", &kernels);
    write("bin/.kpack/vec_lib_gfx90a-xnack-.kpack", &variant);
    let directory = tree.path("é");
    conforms(program("windows.c", &directory).arg(windows::path(tree.root())));
}

/// The names in a table of the loader.
fn names(table: &str) -> Vec<String> {
    let library = loader().join("rocm_kpack.dll");
    let table = run(Command::new("llvm-readobj-19").arg(table).arg(library));
    let names = table.lines().filter_map(|line| line.trim().strip_prefix("Name: "));
    names.map(str::to_owned).collect()
}

/// Only tools list the display adapters; programs that load kernels need not load this library as well.
#[test]
fn the_library_does_not_import_setupapi() {
    if !windows::available() || !require::tool("llvm-readobj-19") {
        return;
    }
    let libraries = names("--coff-imports");
    let is = |wanted: &str| libraries.iter().any(|name| name.eq_ignore_ascii_case(wanted));
    assert!(is("kernel32.dll") && !is("setupapi.dll"), "{libraries:?}");
}

#[test]
fn the_library_exports_its_interface_and_nothing_else() {
    if !windows::available() || !require::tool("llvm-readobj-19") {
        return;
    }
    let mut names = names("--coff-exports");
    names.sort_unstable();
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/rocm_kpack/kpack.h");
    assert_eq!(names, declared(&fs::read_to_string(header).unwrap()));
}
