//! Given HIP sources of a package, when its build script compiles them, then there is a library of
//! host code, archives with the device code, and what Cargo has to know; and what is wrong is said so
//! that something can be done about it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use kpack_build::{Hip, Library};
use kpack_tests::require;
use kpack_tests::tree::Tree;

const SOURCE: &str = r#"#include "vector.h"
__global__ void add(float *a, const float *b) { *a += FACTOR * *b; }
extern "C" int vector_host(void) { return 42; }
"#;

const HEADER: &str = r#"#define __global__ __attribute__((global))
struct dim3 { unsigned x, y, z; };
extern "C" int hipLaunchKernel(const void *, dim3, dim3, void **, unsigned long, void *);
extern "C" int __hipPopCallConfiguration(dim3 *, dim3 *, unsigned long *, void **);
"#;

/// A package with one source.
fn package() -> Tree {
    let tree = Tree::new();
    for directory in ["src", "include", "out", "empty"] {
        fs::create_dir(tree.path(directory)).unwrap();
    }
    fs::write(tree.path("src/vector.hip"), SOURCE).unwrap();
    fs::write(tree.path("include/vector.h"), HEADER).unwrap();
    tree
}

/// A build of the package, in the environment that Cargo makes.
fn build(tree: &Tree, more: &[(&str, &str)]) -> Hip {
    let path = std::env::var("PATH").unwrap();
    let (root, out) = (tree.root().to_str().unwrap().to_owned(), tree.path("out"));
    let mut variables = vec![
        ("CARGO_MANIFEST_DIR", root),
        ("CARGO_PKG_NAME", "vec".to_owned()),
        ("OUT_DIR", out.to_str().unwrap().to_owned()),
        ("OPT_LEVEL", "2".to_owned()),
        ("DEBUG", "true".to_owned()),
        ("NUM_JOBS", "2".to_owned()),
        ("PATH", path),
    ];
    for (name, value) in more {
        variables.retain(|(known, _)| known != name);
        variables.push((name, (*value).to_owned()));
    }
    let mut hip = Hip::new();
    hip.file("src/vector.hip")
        .include("include")
        .define("FACTOR", "2")
        .flags(["-nogpuinc", "-nogpulib"])
        .cargo_metadata(false)
        .environment(variables);
    hip
}

/// What is said, with the tree's root and the system's words left out.
fn said(tree: &Tree, text: &str) -> String {
    let root = tree.root().to_str().unwrap();
    text.replace(root, "[package]")
}

fn error(tree: &Tree, hip: &Hip) -> String {
    let error = hip.try_compile("vector").unwrap_err();
    said(tree, &error.in_one_line())
}

fn compile(hip: &Hip) -> Library {
    let library = hip.try_compile("vector");
    library.unwrap_or_else(|error| panic!("{}", error.in_one_line()))
}

#[test]
fn a_library_of_host_code_and_archives() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let hip = build(
        &tree,
        &[
            ("HIPCXX", "clang++-19"),
            ("KPACK_OFFLOAD_ARCH", "gfx1100;gfx942"),
        ],
    );
    let library = compile(&hip);
    assert_eq!(
        Vec::from_iter(
            tree.files()
                .into_iter()
                .filter(|file| file.starts_with("out"))
        ),
        [
            "out/kpack/vector/.kpack/vec_lib.kpm",
            "out/kpack/vector/.kpack/vec_lib_gfx1100.kpack",
            "out/kpack/vector/.kpack/vec_lib_gfx942.kpack",
            "out/kpack/vector/libvector.a",
            "out/kpack/vector/src_vector.hip.o",
        ]
    );
    insta::assert_snapshot!(said(&tree, &library.directives().join("\n")));

    // The same sources give the same archives, whatever is in OUT_DIR already.
    let first = tree.snapshot();
    compile(&hip);
    assert_eq!(tree.snapshot(), first);

    // Every linker takes the library, whose table was not made by ar.
    fs::write(
        tree.path("main.c"),
        "int vector_host(void);\nint main(void) { return vector_host() - 42; }\n",
    )
    .unwrap();
    for linker in ["bfd", "gold", "lld", "mold"] {
        let program = if linker == "lld" {
            "ld.lld-19".to_owned()
        } else {
            format!("ld.{linker}")
        };
        if !require::tool(&program) {
            continue;
        }
        let mut link = Command::new("clang-19");
        link.current_dir(tree.root())
            .arg(format!("-fuse-ld={linker}"));
        link.args([
            "-o",
            linker,
            "main.c",
            "out/kpack/vector/libvector.a",
            "-Wl,--unresolved-symbols=ignore-all",
        ]);
        let output = link.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{linker}: {stderr}");
    }
}

#[test]
fn a_shared_library() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let mut hip = build(&tree, &[("HIPCXX", "clang++-19")]);
    hip.offload_arch("gfx1100")
        .module("other")
        .link_runtime(false);
    let library = hip.try_shared("vector").unwrap();
    assert!(library.path().ends_with("out/kpack/vector/libvector.so"));
    assert_eq!(library.module(), "other");
    assert!(
        library
            .kpack_dir()
            .join("other_lib_gfx1100.kpack")
            .is_file()
    );
    let paths = vec![library.path().to_owned()];
    let report =
        kpack_build::verify::verify(&paths, &Default::default(), &mut |_, _, _| {}).unwrap();
    assert!(report.holds(), "{report:#?}");
}

#[test]
fn without_a_compiler() {
    let tree = package();
    let empty = tree.path("empty");
    let empty = empty.to_str().unwrap();
    let mut hip = build(&tree, &[("PATH", empty), ("ROCM_PATH", empty)]);
    hip.offload_arch("gfx1100");
    let mut text = error(&tree, &hip);

    let unfit = tree.path("empty/clang++");
    fs::write(&unfit, "#!/bin/sh\necho x86-64\n").unwrap();
    fs::set_permissions(&unfit, fs::Permissions::from_mode(0o755)).unwrap();
    text += "\n\n";
    text += &error(&tree, &hip);

    let mut hip = build(&tree, &[("HIPCXX", "no-such-compiler")]);
    text += "\n\n";
    text += &error(&tree, hip.offload_arch("gfx1100"));
    insta::assert_snapshot!(text);
}

#[test]
fn without_a_target() {
    let tree = package();
    let mut text = error(&tree, &build(&tree, &[]));
    for list in [" ; ", "gfx1100;gfx90a:xnack"] {
        text += "\n\n";
        text += &error(&tree, &build(&tree, &[("KPACK_OFFLOAD_ARCH", list)]));
    }
    insta::assert_snapshot!(text);
}

#[test]
fn kernels_that_do_not_compile() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    fs::write(
        tree.path("src/vector.hip"),
        "#include \"vector.h\"\n__global__ void add(float *a) { *a += b; }\n",
    )
    .unwrap();
    let mut hip = build(&tree, &[("HIPCXX", "clang++-19")]);
    let text = error(&tree, hip.offload_arch("gfx1100"));
    let mut settings = insta::Settings::clone_current();
    // Where the compiler is, and how it says how it ended.
    settings.add_filter(r"The command was: \S*clang", "The command was: [..]clang");
    settings.bind(|| insta::assert_snapshot!(text));
    assert!(!tree.files().iter().any(|file| file.ends_with(".kpack")));
}

#[test]
fn objects_that_need_a_device_link() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let mut hip = build(&tree, &[("HIPCXX", "clang++-19")]);
    let text = error(&tree, hip.offload_arch("gfx1100").flag("-fgpu-rdc"));
    assert!(
        text.contains("-fgpu-rdc") && text.contains("Compile without"),
        "{text}"
    );
}

#[test]
fn an_out_dir_that_cannot_be_written() {
    let tree = package();
    // Root may write anywhere, but nobody into a file.
    let out = tree.path("out");
    let hint = match is_root() {
        true => {
            fs::write(out.join("kpack"), "").unwrap();
            "Not a directory"
        }
        false => {
            fs::set_permissions(&out, fs::Permissions::from_mode(0o555)).unwrap();
            "Permission denied"
        }
    };
    let mut hip = build(&tree, &[("HIPCXX", "cc")]);
    hip.compiler("cc").offload_arch("gfx1100");
    let text = error(&tree, &hip);
    fs::set_permissions(&out, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(text.contains(hint), "{text}");
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(
        r"cannot \w+ this directory: .* \(os error \d+\)",
        "cannot [..] this directory: [why]",
    );
    settings.bind(|| insta::assert_snapshot!(text));
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    Path::new("/proc/self")
        .metadata()
        .is_ok_and(|process| process.uid() == 0)
}
