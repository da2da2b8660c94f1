//! Given HIP kernels of a Rust program, when a build script compiles them for Windows, then the program has its device
//! code, and a staged one loads it from archives, through `rocm_kpack.dll`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kpack_build::{Hip, Library};
use kpack_cli::stage::Options;
use kpack_tests::page::repository;
use kpack_tests::process::run;
use kpack_tests::sha256;
use kpack_tests::tree::Tree;
use kpack_tests::{require, windows};
use serde_json::json;

use crate::cargo_build::{artifact_of, messages, stage};
use crate::command::words;
use crate::verified::assert_holds;
use crate::windows::exe;

const TOOLS: [&str; 2] = ["clang++-19", "clang-offload-bundler-19"];

const SOURCE: &str = r#"#define __global__ __attribute__((global))
struct dim3 { unsigned x, y, z; };
extern "C" int hipLaunchKernel(const void *, dim3, dim3, void **, decltype(sizeof 0), void *);
extern "C" int __hipPopCallConfiguration(dim3 *, dim3 *, decltype(sizeof 0) *, void **);
__global__ void add(float *a, const float *b) { *a += *b; }
extern "C" int vector_host(void) { return 42; }
"#;

const MAIN: &str = r#"unsafe extern "C" { fn vector_host() -> i32; }
fn main() { println!("host {}", unsafe { vector_host() }); }
"#;

/// What a build script makes of the kernel.
fn kernels(tree: &Tree, runtime: &Path, build: fn(&Hip) -> Library) -> Library {
    fs::create_dir_all(tree.path("out")).unwrap();
    fs::write(tree.path("add.hip"), SOURCE).unwrap();
    let text = |path: PathBuf| path.to_str().unwrap().to_owned();
    let variables = [
        ("CARGO_MANIFEST_DIR", text(tree.root().to_owned())),
        ("CARGO_PKG_NAME", "vector".to_owned()),
        ("OUT_DIR", text(tree.path("out"))),
        ("OPT_LEVEL", "2".to_owned()),
        ("HOST", "x86_64-unknown-linux-gnu".to_owned()),
        ("TARGET", windows::TARGET.to_owned()),
        ("PATH", std::env::var("PATH").unwrap()),
        ("HIPCXX", "clang++-19".to_owned()),
        ("HIPFLAGS", format!("-L{}", runtime.display())),
    ];
    let mut hip = Hip::new();
    hip.file("add.hip")
        .offload_archs(["gfx1100", "gfx942"])
        .flags(["-nogpuinc", "-nogpulib"])
        .cargo_metadata(false)
        .environment(variables);
    build(&hip)
}

/// Builds the loader and a runtime that asks it, and returns their directory.
pub(crate) fn runtime(tree: &Tree) -> PathBuf {
    let kind = ["--lib", "--crate-type", "cdylib"];
    let loader = windows::build(&[&["rustc", "-p", "kpack-runtime"], &kind[..]].concat());
    let directory = tree.path("runtime");
    fs::create_dir_all(&directory).unwrap();
    let name = "rocm_kpack.dll";
    fs::copy(loader.join(name), directory.join(name)).unwrap();
    let root = repository();
    let mut gcc = Command::new(windows::COMPILER);
    gcc.args(["-Wall", "-Wextra", "-shared", "-static", "-o"])
        .arg(directory.join("amdhip64_10.dll"))
        .arg(format!("-Wl,--out-implib,{}", directory.join("libamdhip64.a").display()))
        .arg(root.join("tests/stub-hip/windows.c"))
        .arg("-I")
        .arg(root.join("kpack-runtime/include"))
        .arg(loader.join("librocm_kpack.dll.a"));
    run(&mut gcc);
    directory
}

/// Links a program with the library, as Cargo's directives say.
fn program(tree: &Tree, library: &Library, runtime: &Path) -> PathBuf {
    fs::write(tree.path("main.rs"), MAIN).unwrap();
    let program = tree.path("target/app.exe");
    fs::create_dir_all(program.parent().unwrap()).unwrap();
    let mut rustc = Command::new("rustc");
    rustc
        .args(["--edition", "2024", "--target", windows::TARGET, "-o"])
        .arg(&program)
        .arg(tree.path("main.rs"))
        .arg("-L")
        .arg(runtime);
    for directive in library.directives() {
        if let Some(path) = directive.strip_prefix("cargo::rustc-link-search=") {
            rustc.args(["-L", path]);
        } else if let Some(name) = directive.strip_prefix("cargo::rustc-link-lib=") {
            rustc.args(["-l", name]);
        }
    }
    run(rustc.args(["-C", "strip=symbols"]));
    program
}

/// What a program prints with the runtime, in lines.
fn runs(program: &Path, runtime: &Path) -> Vec<String> {
    for file in fs::read_dir(runtime).unwrap().map(Result::unwrap) {
        let to = program.with_file_name(file.file_name());
        fs::copy(file.path(), to).unwrap();
    }
    let mut wine = windows::wine(program);
    let printed = run(wine.env("STUB_HIP_AGENT", "gfx942"));
    printed.lines().map(|line| line.trim().to_owned()).collect()
}

/// The size and the SHA-256 of the code object for gfx942 that the compiler put into a fat binary.
fn compiled(tree: &Tree, fat: &Path) -> String {
    const MAGIC: &[u8] = b"__CLANG_OFFLOAD_BUNDLE__";
    let bytes = fs::read(fat).unwrap();
    let mut windows = bytes.windows(MAGIC.len());
    let start = windows.position(|bytes| bytes == MAGIC).unwrap();
    fs::write(tree.path("bundle"), &bytes[start..]).unwrap();
    let mut bundler = Command::new("clang-offload-bundler-19");
    bundler.current_dir(tree.root());
    bundler.args(["--unbundle", "--type=o", "--input=bundle", "--output=code"]);
    run(bundler.arg("--targets=hipv4-amdgcn-amd-amdhsa--gfx942"));
    let code = fs::read(tree.path("code")).unwrap();
    assert!(code.starts_with(b"\x7fELF"));
    format!("{} {}", code.len(), sha256(&code))
}

/// Cargo's message about the build script.
fn script(tree: &Tree, library: &Library) -> serde_json::Value {
    json!({
        "reason": "build-script-executed", "package_id": "path+file:///vector#0.1.0",
        "linked_libs": [], "linked_paths": [format!("native={}", library.path().parent().unwrap().display())],
        "cfgs": [], "env": [], "out_dir": tree.path("out"),
    })
}

/// Builds, runs, stages and runs it; returns the files of the release.
fn check(build: fn(&Hip) -> Library) -> Vec<String> {
    let tree = Tree::new();
    let runtime = runtime(&tree);
    let library = kernels(&tree, &runtime, build);
    let program = program(&tree, &library, &runtime);
    let beside = library.path().with_extension("dll");
    if beside.is_file() {
        fs::copy(&beside, program.with_file_name(beside.file_name().unwrap())).unwrap();
    }
    assert_eq!(runs(&program, &runtime), ["fat", "host 42"]);
    let fat = if beside.is_file() { &beside } else { &program };
    let compiled = compiled(&tree, fat);

    let text = messages(&[script(&tree, &library), artifact_of(&tree, &program, "bin")]);
    for _ in 0..2 {
        let report = stage(&Options::new(tree.path("dist")), text.as_bytes());
        let report = report.unwrap_or_else(|error| panic!("{}", error.in_one_line()));
        assert_eq!(report.findings, []);
    }
    assert_holds(&tree.path("dist"));
    // Cargo on Windows has the same messages with paths of Windows.
    let root = tree.root().to_str().unwrap();
    fs::write(tree.path("build.json"), text.replace(root, &format!("Z:{root}"))).unwrap();
    let mut staged = exe(&tree, &words("stage --output-dir other --messages build.json"));
    run(&mut staged);
    let files = tree.files().into_iter();
    for file in files.clone().filter(|file| file.starts_with("dist/")) {
        let other = tree.path(&file.replace("dist/", "other/"));
        assert!(fs::read(other).unwrap() == fs::read(tree.path(&file)).unwrap(), "{file}");
    }
    let files = Vec::from_iter(files.filter(|file| file.starts_with("dist/")));
    let printed = runs(&tree.path("dist/bin/app.exe"), &runtime);
    assert_eq!(printed, [format!("loaded {compiled}"), "host 42".to_owned()]);
    files
}

#[test]
fn a_program_finds_its_kernel_in_an_archive() {
    if !windows::available() || !require::tools(&TOOLS) {
        return;
    }
    let files = check(|hip| hip.try_compile("vector").unwrap());
    assert_eq!(
        files,
        [
            "dist/.kpack-stage",
            "dist/bin/app.exe",
            "dist/lib/.kpack/app_lib.kpm",
            "dist/lib/.kpack/app_lib_gfx1100.kpack",
            "dist/lib/.kpack/app_lib_gfx942.kpack",
        ]
    );
}

#[test]
fn a_library_finds_its_kernel_in_an_archive() {
    if !windows::available() || !require::tools(&TOOLS) {
        return;
    }
    let files = check(|hip| hip.try_shared("vector").unwrap());
    assert_eq!(
        files,
        [
            "dist/.kpack-stage",
            "dist/bin/app.exe",
            "dist/bin/vector.dll",
            "dist/lib/.kpack/vector_lib.kpm",
            "dist/lib/.kpack/vector_lib_gfx1100.kpack",
            "dist/lib/.kpack/vector_lib_gfx942.kpack",
        ]
    );
}
