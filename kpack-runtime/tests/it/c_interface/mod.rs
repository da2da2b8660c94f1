//! Given an installed loader, when C programs are built against it in every way that its package
//! offers, then they find all functions to do what the headers say.

mod conformance;
mod files;
mod windows;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use files::files;
use kpack_tests::process::{self, run};
use kpack_tests::require;
use kpack_tests::tree::Tree;

use crate::common::write;

/// Where `cargo xtask dist` put the loader, once for all tests.
fn prefix() -> &'static Path {
    process::installed_kpack(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("dist"))
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/conformance.c")
}

/// Compiles the program; the flags, which follow it, say where the loader is.
fn build(program: &Path, flags: impl IntoIterator<Item = String>) {
    build_as("c", "c99", program, flags);
}

/// As [`build`], by a standard of C or C++.
fn build_as(
    language: &str,
    standard: &str,
    program: &Path,
    flags: impl IntoIterator<Item = String>,
) {
    let compiler = if language == "c" { "cc" } else { "c++" };
    run(Command::new(compiler)
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread"])
        .arg(format!("-std={standard}"))
        .arg("-o")
        .arg(program)
        .args(["-x", language])
        .arg(source())
        .args(["-x", "none"])
        .args(flags));
}

/// Flags for the loader in the prefix.
fn installed() -> impl Iterator<Item = String> {
    let prefix = prefix().display();
    [format!("-I{prefix}/include"), format!("-L{prefix}/lib"), "-lrocm_kpack".to_owned()]
        .into_iter()
}

/// Runs the program, with the loader where the dynamic linker finds it.
fn conforms(program: &Path) {
    let tree = files("cc");
    let printed =
        run(Command::new(program).arg(tree.root()).env("LD_LIBRARY_PATH", prefix().join("lib")));
    assert!(printed.ends_with(" checks\n"), "{printed}");
}

#[test]
fn a_program_with_the_installed_headers_and_the_shared_library() {
    for (language, standard) in [("c", "c99"), ("c", "c11"), ("c++", "c++11")] {
        let tree = Tree::new();
        let program = tree.path("conformance");
        build_as(language, standard, &program, installed());
        let dynamic = run(Command::new("readelf").arg("-dW").arg(&program));
        assert!(dynamic.contains("[librocm_kpack.so.0]"), "{dynamic}");
        conforms(&program);
    }
}

#[test]
fn a_program_with_pkg_config() {
    if !require::tool("pkg-config") {
        return;
    }
    for linkage in [None, Some("--static")] {
        let tree = Tree::new();
        let program = tree.path("conformance");
        // In a prefix that was moved.
        let moved = tree.path("moved");
        process::copy(prefix(), &moved);
        if linkage.is_some() {
            for name in ["librocm_kpack.so", "librocm_kpack.so.0"] {
                fs::remove_file(moved.join("lib").join(name)).unwrap();
            }
        }
        let flags = run(Command::new("pkg-config")
            .args(["--cflags", "--libs", "rocm-kpack >= 0.1"])
            .args(linkage)
            .env("PKG_CONFIG_PATH", moved.join("lib/pkgconfig")));
        build(&program, flags.split_whitespace().map(str::to_owned));
        conforms(&program);
    }
}

#[test]
fn a_program_with_cmake() {
    if !require::tool("cmake") {
        return;
    }
    let tree = Tree::new();
    let project = format!(
        "cmake_minimum_required(VERSION 3.22)
project(conformance LANGUAGES C CXX)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
find_package(rocm-kpack 0.1 REQUIRED)
find_package(Threads REQUIRED)
foreach(kind shared former static)
  add_executable(${{kind}} {source})
endforeach()
add_executable(cxx conformance.cpp)
target_link_libraries(shared PRIVATE rocm::rocm_kpack Threads::Threads)
target_link_libraries(cxx PRIVATE rocm::rocm_kpack Threads::Threads)
target_link_libraries(former PRIVATE rocm-kpack::rocm_kpack Threads::Threads)
target_link_libraries(static PRIVATE rocm-kpack::rocm_kpack_static Threads::Threads)
",
        source = source().display()
    );
    let cxx = format!("#include \"{}\"\n", source().display());
    fs::write(tree.path("conformance.cpp"), cxx).unwrap();
    fs::write(tree.path("CMakeLists.txt"), project).unwrap();
    let build = tree.path("build");
    run(Command::new("cmake")
        .arg("-S")
        .arg(tree.root())
        .arg("-B")
        .arg(&build)
        .arg(format!("-DCMAKE_PREFIX_PATH={}", prefix().display())));
    run(Command::new("cmake").arg("--build").arg(&build));
    for kind in ["shared", "cxx", "former", "static"] {
        conforms(&build.join(kind));
    }
}

/// What `examples/kernel-archive` calls of the HIP runtime: a module is a copy of its code.
const HIP: &str = r#"
#include <stdlib.h>
#include <string.h>
int hipModuleLoadData(void **module, const char *image) { *module = strdup(image); return strcmp(image, "code") ? 200 : 0; }
int hipModuleGetFunction(void **function, char *module, const char *name) {
    *function = module;
    return strcmp(module, "code") || strcmp(name, "add") ? 500 : 0;
}
int hipModuleUnload(void *module) { free(module); return 0; }
"#;

#[test]
fn the_example_that_loads_a_kernel_by_name() {
    let tree = Tree::new();
    fs::write(tree.path("hip.c"), HIP).unwrap();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/kernel-archive/load.c");
    let program = tree.path("load");
    run(Command::new("cc")
        .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .args([&example, &tree.path("hip.c")])
        .args(["-D_POSIX_C_SOURCE=200809L"])
        .args(installed()));
    let archive = tree.path("vec_kernels_gfx942.kpack");
    write(&archive, "gfx942", &[("add.hsaco", b"code\0")]);
    let mut load = Command::new(&program);
    load.arg(&archive).env("LD_LIBRARY_PATH", prefix().join("lib"));
    assert_eq!(run(load.arg("gfx942")), "add: 5 bytes of code\n");
    let mut load = Command::new(&program);
    load.args([&archive, Path::new("gfx950")]).env("LD_LIBRARY_PATH", prefix().join("lib"));
    let output = load.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("kpack_get_kernel failed with 5"), "{said}");
}

/// The sanitizer sees each code object that is handed out, and whether all are freed.
#[test]
fn a_program_under_address_sanitizer() {
    let tree = Tree::new();
    let program = tree.path("conformance");
    let sanitizers = ["-fsanitize=address,undefined", "-g"].map(str::to_owned);
    build(&program, sanitizers.into_iter().chain(installed()));
    let files = files("cc");
    let mut command = Command::new(&program);
    command.arg(files.root()).env("LD_LIBRARY_PATH", prefix().join("lib")).env(
        "ASAN_OPTIONS",
        "detect_leaks=1:allocator_may_return_null=1:max_allocation_size_mb=512",
    );
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    for report in ["ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "runtime error"] {
        assert!(!errors.contains(report), "{errors}");
    }
    // It is watching.
    let output = command.arg("overflow").output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("heap-buffer-overflow"), "{errors}");
}

#[test]
fn a_library_directory_of_another_name() {
    if !require::tool("pkg-config") {
        return;
    }
    let tree = Tree::new();
    let libdir = "lib/x86_64-linux-gnu";
    run(process::xtask("dist")
        .args(["--profile=dev", "--libdir", libdir, "--prefix"])
        .arg(tree.root()));
    let flags = run(Command::new("pkg-config")
        .args(["--cflags", "--libs", "rocm-kpack"])
        .env("PKG_CONFIG_PATH", tree.path(libdir).join("pkgconfig")));
    let program = tree.path("conformance");
    build(&program, flags.split_whitespace().map(str::to_owned));
    let files = files("cc");
    run(Command::new(&program).arg(files.root()).env("LD_LIBRARY_PATH", tree.path(libdir)));
}

/// The functions in `kpack.h`, sorted.
fn declared(header: &str) -> Vec<&str> {
    let mut declared: Vec<&str> = header
        .lines()
        .map(|line| line.strip_prefix("KPACK_API ").unwrap_or(line))
        .filter(|line| line.starts_with("kpack_error_t kpack_") || line.starts_with("void kpack_"))
        .filter_map(|line| line.split_once(' ')?.1.split('(').next())
        .collect();
    declared.sort_unstable();
    declared
}

#[test]
fn the_shared_library_shows_its_interface_and_nothing_else() {
    let library = prefix().join("lib/librocm_kpack.so");
    let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(&library));
    let mut names: Vec<&str> =
        symbols.lines().filter_map(|line| line.split(' ').next_back()).collect();
    names.sort_unstable();
    let header = fs::read_to_string(prefix().join("include/rocm_kpack/kpack.h")).unwrap();
    assert_eq!(names, declared(&header));
    assert_eq!(names.len(), 14);
    // `kpack doctor` knows it by this.
    let notes = run(Command::new("readelf").arg("-SW").arg(&library));
    assert!(notes.contains(".note.kpack_loader"), "{notes}");
    let dynamic = run(Command::new("readelf").arg("-dW").arg(&library));
    assert!(dynamic.contains("soname: [librocm_kpack.so.0]"), "{dynamic}");
    // Three files tell the SONAME.
    let config = prefix().join("lib/cmake/rocm-kpack/rocm-kpack-config.cmake");
    let config = fs::read_to_string(config).unwrap();
    assert!(config.contains("IMPORTED_SONAME \"librocm_kpack.so.0\""));
    assert!(prefix().join("lib/librocm_kpack.so.0").exists());
}
