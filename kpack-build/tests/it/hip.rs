//! Given HIP sources of a package, when its build script compiles them, then there are a library of host
//! code, archives with the device code, and directives for Cargo; and errors say what to do.

mod compilers;
mod modules;
mod options;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use kpack_build::{Hip, Library, Spirv};
use kpack_tests::bytes;
use kpack_tests::tree::Tree;
use kpack_tests::{linker, process, require};

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

/// A build of the package without ROCm's headers and device libraries.
fn build(tree: &Tree, more: &[(&str, &str)]) -> Hip {
    let mut hip = build_with_rocm(tree, more);
    hip.flags(["-nogpuinc", "-nogpulib"]);
    hip
}

/// A build of the package, in the environment that Cargo makes.
fn build_with_rocm(tree: &Tree, more: &[(&str, &str)]) -> Hip {
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
        .cargo_metadata(false)
        .environment(variables);
    hip
}

/// The message, without the tree's root.
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
    let hip = build(&tree, &[("HIPCXX", "clang++-19"), ("KPACK_OFFLOAD_ARCH", "gfx1100;gfx942")]);
    let library = compile(&hip);
    assert_eq!(
        Vec::from_iter(tree.files().into_iter().filter(|file| file.starts_with("out"))),
        [
            "out/kpack/vector/.kpack/vec_lib.kpm",
            "out/kpack/vector/.kpack/vec_lib_gfx1100.kpack",
            "out/kpack/vector/.kpack/vec_lib_gfx942.kpack",
            "out/kpack/vector/include-directories.txt",
            "out/kpack/vector/libvector.a",
        ]
    );
    insta::assert_snapshot!(said(&tree, &library.directives().join("\n")));

    // The same sources give the same archives, whatever is in OUT_DIR already.
    let first = tree.snapshot();
    compile(&hip);
    assert_eq!(tree.snapshot(), first);

    // Every linker accepts the library.
    fs::write(
        tree.path("main.c"),
        "int vector_host(void);\nint main(void) { return vector_host() - 42; }\n",
    )
    .unwrap();
    for linker in linker::installed() {
        let mut link = Command::new("clang-19");
        link.current_dir(tree.root()).arg(format!("-fuse-ld={linker}"));
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

/// A program that notes that it ran, and runs another with its arguments.
fn noting(tree: &Tree, name: &str, program: &str) -> String {
    let path = tree.path(name);
    process::script(&path, &format!(": > \"$0.ran\"\nexec {program} \"$@\""));
    path.to_str().unwrap().to_owned()
}

#[test]
fn the_variables_of_cc_for_one_target_and_a_launcher() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let target = "x86_64-unknown-linux-gnu";
    let source = format!("{SOURCE}extern \"C\" int NAME(void) {{ return 1; }}\n");
    fs::write(tree.path("src/vector.hip"), source).unwrap();
    let launcher = format!("{} clang++-19", noting(&tree, "launch", ""));
    let archiver = noting(&tree, "archiver", "ar");
    let mut hip = build(
        &tree,
        &[
            ("HIPCXX", &launcher),
            ("HOST", target),
            ("TARGET", target),
            // clang rejects the first one for GPUs.
            ("CXXFLAGS_x86_64_unknown_linux_gnu", "-fcf-protection=full -DNAME=of_the_host"),
            ("CXXFLAGS", "-DNAME=of_any"),
            ("AR_x86_64_unknown_linux_gnu", &archiver),
        ],
    );
    let library = compile(hip.offload_arch("gfx1100").flag("-Wno-macro-redefined"));
    let library = fs::read(library.path()).unwrap();
    assert!(bytes::contains(&library, b"of_the_host"));
    assert!(tree.path("launch.ran").is_file() && tree.path("archiver.ran").is_file());

    // An archiver that fails.
    let mut hip = build(&tree, &[("HIPCXX", "clang++-19"), ("AR", "false")]);
    let text = error(&tree, hip.offload_arch("gfx1100").define("NAME", "other"));
    assert!(text.contains("libvector.a") && text.contains("AR"), "{text}");
}

#[test]
fn a_shared_library() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let mut hip = build(&tree, &[("HIPCXX", "clang++-19")]);
    hip.offload_arch("gfx1100").module("other").link_runtime(false);
    let library = hip.try_shared("vector").unwrap();
    assert!(library.path().ends_with("out/kpack/vector/libvector.so"));
    assert_eq!(library.module(), "other");
    assert!(library.kpack_dir().join("other_lib_gfx1100.kpack").is_file());
    let paths = vec![library.path().to_owned()];
    let report = kpack_artifact::verify::verify(&paths, &Default::default(), &()).unwrap();
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

    process::script(tree.path("empty/clang++"), "echo x86-64");
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
fn flags_or_a_compiler_with_an_open_quote() {
    let tree = package();
    for (name, value) in [
        ("HIPFLAGS", "-O2 '-DX=1"),
        // No comment: the quote counts.
        ("HIPFLAGS", "-O2 #x '-DX=1"),
        ("HIPCXX", "clang++-19 '-DX=1"),
    ] {
        let mut hip = build(&tree, &[(name, value)]);
        assert_eq!(
            error(&tree, hip.offload_arch("gfx1100")),
            format!("{name} is `{value}`: a quote is not closed; close it [usage]")
        );
    }
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
    let id = hip.offload_arch("gfx1100").try_compile("vector").unwrap_err().id();
    assert_eq!(id, kpack_build::ids::COMPILER);
    let text = error(&tree, &hip);
    let mut settings = insta::Settings::clone_current();
    // The compiler's path and its exit status differ between machines.
    settings.add_filter(r"The command was: \S*clang", "The command was: [..]clang");
    settings.bind(|| insta::assert_snapshot!(text));
    assert!(!tree.files().iter().any(|file| file.ends_with(".kpack")));
}

#[test]
fn kernels_that_do_not_compile_leave_the_last_build() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let mut hip = build(&tree, &[("HIPCXX", "clang++-19")]);
    hip.offload_arch("gfx1100");
    compile(&hip);
    let before = tree.snapshot();
    // Failures in the first pass, in the last one, and after the compiler.
    for broken in ["broken(", "#ifndef __HIP_DEVICE_COMPILE__\nbroken(\n#endif"] {
        fs::write(tree.path("src/vector.hip"), format!("{SOURCE}{broken}\n")).unwrap();
        error(&tree, &hip);
        fs::write(tree.path("src/vector.hip"), SOURCE).unwrap();
        assert_eq!(tree.snapshot(), before);
    }
    error(&tree, hip.clone().flag("-fgpu-rdc"));
    assert_eq!(tree.snapshot(), before);
    // Leftovers of a killed build do not stop the next one.
    let hidden = tree.path("out/kpack/.vector.tmp/.kpack.tmp");
    fs::create_dir_all(&hidden).unwrap();
    let replaced = hidden.join(".old-0.tmp/vector");
    fs::create_dir(replaced.parent().unwrap()).unwrap();
    fs::rename(tree.path("out/kpack/vector"), replaced).unwrap();
    error(&tree, hip.clone().flag("-fgpu-rdc"));
    assert_eq!(tree.snapshot(), before);
    compile(&hip);
    assert_eq!(tree.snapshot(), before);
    // Files of the user stay.
    let mine = ["out/kpack/.vector.tmp/mine", "out/kpack/.vector.old/mine"];
    let mine = mine.map(|name| tree.path(name));
    for file in &mine {
        fs::create_dir(file.parent().unwrap()).unwrap();
        fs::write(file, "mine").unwrap();
    }
    compile(&hip);
    assert!(mine.iter().all(|file| fs::read(file).unwrap() == b"mine"));
}

#[test]
fn headers_of_the_host_and_of_one_target() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let odd = "include/sp $ace #1";
    fs::create_dir(tree.path(odd)).unwrap();
    for header in ["device.h", "gfx942.h", "host.h"] {
        fs::write(tree.path(&format!("{odd}/{header}")), "").unwrap();
    }
    let source = "#ifdef __HIP_DEVICE_COMPILE__\n#include \"device.h\"\n#else\n#include \"host.h\"\n#endif\n\
                  #ifdef __gfx942__\n#include \"gfx942.h\"\n#endif\n";
    fs::write(tree.path("src/vector.hip"), format!("{source}{SOURCE}")).unwrap();
    let mut hip = build(&tree, &[("HIPCXX", "clang++-19")]);
    let library = compile(hip.offload_archs(["gfx1100", "gfx942"]).include(odd));
    let watched: Vec<&str> = library
        .directives()
        .iter()
        .filter_map(|line| line.strip_prefix("cargo::rerun-if-changed="))
        .collect();
    assert_eq!(
        watched,
        [
            "include/sp $ace #1/device.h",
            "include/sp $ace #1/gfx942.h",
            "include/sp $ace #1/host.h",
            "include/vector.h",
            "src/vector.hip",
        ]
    );
    // All of them exist: Cargo looks for each.
    assert!(watched.iter().all(|file| tree.path(file).is_file()));
}

#[test]
fn no_path_of_the_build_in_any_file() {
    if !require::tool("clang++-19") {
        return;
    }
    // A package in a workspace, with headers in the workspace and elsewhere.
    let tree = Tree::new();
    let member = tree.path("workspace/member");
    for directory in ["workspace/member/out", "workspace/shared", "elsewhere"] {
        fs::create_dir_all(tree.path(directory)).unwrap();
    }
    fs::write(tree.path("workspace/Cargo.lock"), "").unwrap();
    fs::write(tree.path("workspace/shared/vector.h"), HEADER).unwrap();
    let where_ = "static const char *NAME_host() { return __FILE__; }\n\
                  __attribute__((device)) inline const char *NAME() { return __FILE__; }\n";
    fs::write(tree.path("workspace/shared/a.h"), where_.replace("NAME", "a")).unwrap();
    fs::write(tree.path("elsewhere/b.h"), where_.replace("NAME", "b")).unwrap();
    fs::write(tree.path("workspace/member/c.h"), where_.replace("NAME", "c")).unwrap();
    let source = "#include \"vector.h\"\n#include \"a.h\"\n#include \"b.h\"\n#include \"c.h\"\n\
                  __global__ void places(const char **p) { p[0] = a(); p[1] = b(); p[2] = c(); }\n\
                  extern \"C\" const char *host(int i) { return i == 0 ? a_host() : i == 1 ? b_host() : c_host(); }\n";
    fs::write(member.join("k.hip"), source).unwrap();
    let mut hip = Hip::new();
    hip.file(member.join("k.hip"))
        .includes([tree.path("workspace/shared"), member.clone()])
        .flag(format!("-I{}", tree.path("elsewhere").display()))
        .flags(["-nogpuinc", "-nogpulib"])
        .offload_arch("gfx1100")
        .compiler("clang++-19")
        .cargo_metadata(false)
        .environment([
            ("CARGO_MANIFEST_DIR", member.as_os_str().to_owned()),
            ("OUT_DIR", member.join("out").into_os_string()),
            ("DEBUG", "true".into()),
        ]);
    let library = compile(&hip);
    let root = tree.root().to_str().unwrap().as_bytes();
    let count = |bytes: &[u8]| bytes.windows(root.len()).filter(|part| *part == root).count();
    // Archives of build scripts are not compressed; the host code knows where they are.
    let archive = fs::read(library.kpack_dir().join("vector_lib_gfx1100.kpack")).unwrap();
    assert_eq!(count(&archive), 0);
    let shown = String::from_utf8_lossy(&archive);
    for place in ["shared/a.h", "b.h", "c.h"] {
        assert!(shown.contains(place), "{place}");
    }
    assert_eq!(count(&fs::read(library.path()).unwrap()), 1);
    let known = library.path().with_file_name("include-directories.txt");
    let known = fs::read_to_string(known).unwrap();
    assert_eq!(said(&tree, &known), "[package]/workspace/shared\n[package]/elsewhere\n");
}

#[test]
fn a_shared_library_for_another_machine() {
    if !require::tool("clang++-19") || !require::tool("ld.lld-19") {
        return;
    }
    let tree = package();
    let mut hip = build(
        &tree,
        &[
            ("HIPCXX", "clang++-19"),
            ("HOST", "x86_64-unknown-linux-gnu"),
            ("TARGET", "aarch64-unknown-linux-gnu"),
            ("HIPFLAGS", "-nostdlib '-fuse-ld=lld' -DUNUSED=\"a b\""),
        ],
    );
    hip.offload_arch("gfx1100").link_runtime(false);
    let library = hip.try_shared("vector");
    let library = library.unwrap_or_else(|error| panic!("{}", error.in_one_line()));
    // e_machine of the ELF header: EM_AARCH64.
    assert_eq!(fs::read(library.path()).unwrap()[18..20], [183, 0]);
}

#[test]
fn objects_that_need_a_device_link() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let mut hip = build(&tree, &[("HIPCXX", "clang++-19")]);
    let text = error(&tree, hip.offload_arch("gfx1100").flag("-fgpu-rdc"));
    assert!(text.contains("-fgpu-rdc") && text.contains("compile without"), "{text}");
}

/// The package for this test to build when it runs as another user.
const PACKAGE: &str = "KPACK_TEST_PACKAGE";

#[test]
fn an_out_dir_that_cannot_be_written() {
    let failed = |root: &Path| {
        let mut hip = Hip::new();
        let hip = hip.file("src/vector.hip").compiler("cc");
        hip.offload_arch("gfx1100")
            .environment([("CARGO_MANIFEST_DIR", root.to_owned()), ("OUT_DIR", root.join("out"))]);
        let error = hip.try_compile("vector").unwrap_err();
        error.in_one_line()
    };
    if let Some(root) = std::env::var_os(PACKAGE) {
        println!("error: {}", failed(Path::new(&root)));
        return;
    }
    let tree = package();
    let mode = |path: &str, mode| {
        fs::set_permissions(tree.path(path), fs::Permissions::from_mode(mode)).unwrap();
    };
    mode("out", 0o555);
    let text = if !require::is_root() {
        failed(tree.root())
    } else {
        // Root may write anywhere, so run a copy of this test as another user.
        mode("", 0o755);
        let copy = tree.path("test");
        process::copy(std::env::current_exe().unwrap(), &copy);
        let mut command = Command::new(copy);
        command.args(["--exact", "--nocapture", "hip::an_out_dir_that_cannot_be_written"]);
        command.env(PACKAGE, tree.root()).uid(65534).gid(65534);
        let output = command.current_dir(tree.root()).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = printed.split_once("error: ").expect(&printed).1;
        line.lines().next().unwrap().to_owned()
    };
    mode("out", 0o755);
    insta::assert_snapshot!(said(&tree, &text));
}

/// For the objects and for the lists of the files that sources include.
#[test]
fn a_job_server_without_tokens_allows_one_compiler_at_a_time() {
    let name = "hip::a_job_server_without_tokens_allows_one_compiler_at_a_time";
    if let Some(root) = std::env::var_os(PACKAGE) {
        let root = Path::new(&root);
        let mut hip = Hip::new();
        hip.files(["a.hip", "b.hip", "c.hip"]).include("include").define("FACTOR", "2");
        hip.flags(["-nogpuinc", "-nogpulib"]).offload_arch("gfx1100").cargo_metadata(false);
        hip.environment([
            ("CARGO_MANIFEST_DIR", root.as_os_str().to_owned()),
            ("OUT_DIR", root.join("out").into_os_string()),
            ("NUM_JOBS", "3".into()),
            ("PATH", std::env::var_os("PATH").unwrap()),
            ("HIPCXX", root.join("compiler").into_os_string()),
        ]);
        compile(&hip);
        return;
    }
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    for name in ["a", "b", "c"] {
        let source = SOURCE.replace("vector_host", name).replace(" add(", &format!(" add_{name}("));
        fs::write(tree.path(&format!("{name}.hip")), source).unwrap();
    }
    let running = "case \"$*\" in *[abc].hip*) mkdir \"$0.running\" || touch \"$0.overlap\"; sleep 0.2 ;; esac\n\
                   clang++-19 \"$@\" || exit 1\nrm -rf \"$0.running\"";
    process::script(tree.path("compiler"), running);
    process::run(Command::new("mkfifo").arg(tree.path("fifo")));
    let mut script = Command::new(std::env::current_exe().unwrap());
    script.args(["--exact", name]).env(PACKAGE, tree.root());
    let flags = format!("-j --jobserver-auth=fifo:{}", tree.path("fifo").display());
    process::run(script.env("CARGO_MAKEFLAGS", flags));
    assert!(!tree.path("compiler.overlap").exists());
}

/// A build can be repeated, so it need not survive a power failure.
#[test]
fn a_build_waits_for_no_disk() {
    let out = "KPACK_TEST_OUT";
    let tree = package();
    if let Some(out) = std::env::var_os(out) {
        let mut hip = build(&tree, &[("HIPCXX", "clang++-19"), ("KPACK_OFFLOAD_ARCH", "gfx1100")]);
        compile(hip.out_dir(out));
        return;
    }
    if !(require::tool("clang++-19") && require::tool("strace")) {
        return;
    }
    // The second time, it replaces the library.
    for _ in 0..2 {
        let mut traced = Command::new("strace");
        traced.args(["-f", "-qq", "-o", "trace", "-e"]);
        let names = "fsync,fdatasync,sync_file_range,syncfs,sync,msync,fadvise64";
        traced.arg(format!("trace={names}"));
        traced.arg(std::env::current_exe().unwrap());
        traced.args(["--exact", "hip::a_build_waits_for_no_disk"]);
        let output = traced.env(out, tree.path("out")).current_dir(tree.root());
        let output = output.output().unwrap();
        let trace = fs::read_to_string(tree.path("trace")).unwrap_or_default();
        if !output.status.success() && trace.is_empty() {
            let why = String::from_utf8_lossy(&output.stderr);
            require::skip(&format!("strace cannot trace here: {why}"));
            return;
        }
        assert!(output.status.success(), "{output:?}");
        assert!(tree.path("out/kpack/vector/libvector.a").exists());
        // strace also writes lines on threads that it detaches from: `18517 ???( <detached ...>`.
        let named = |line: &&str| names.split(',').any(|name| line.contains(name));
        let calls: Vec<&str> = trace.lines().filter(named).collect();
        // The crate `cc` waits for the source with which it asks the compiler which one it is.
        assert!(calls.len() == 1 && calls[0].contains("fdatasync"), "{calls:?}");
    }
}

#[test]
fn debug_information_is_removed_from_device_code_where_the_build_says_so() {
    if !require::tool("clang++-19") {
        return;
    }
    let size = |strip| {
        let tree = package();
        let mut hip = build(&tree, &[("HIPCXX", "clang++-19")]);
        compile(hip.offload_arch("gfx1100").debug(true).strip_debug(strip));
        let archive = tree.path("out/kpack/vector/.kpack/vec_lib_gfx1100.kpack");
        let bytes = fs::read(archive).unwrap();
        let has_debug = bytes::contains(&bytes, b".debug_info");
        let library = fs::read(tree.path("out/kpack/vector/libvector.a")).unwrap();
        let of_host = bytes::contains(&library, b".debug_info");
        assert!(has_debug && of_host, "the names of sections stay");
        bytes.len()
    };
    let (stripped, whole) = (size(true), size(false));
    assert!(stripped < whole - 500, "{stripped} {whole}");
}

/// A file where the directory should be.
#[test]
fn an_out_dir_that_is_in_the_way() {
    let tree = package();
    fs::write(tree.path("out/kpack"), "").unwrap();
    let mut hip = build(&tree, &[]);
    hip.compiler("cc").offload_arch("gfx1100");
    insta::assert_snapshot!(error(&tree, &hip));
}

/// Given a compiler for SPIR-V, whose translator leaves LLVM bitcode in place, then the library keeps the SPIR-V unless the build
/// says otherwise.
#[test]
fn kernels_with_spirv() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    for name in ["llvm-spirv", "amd-llvm-spirv", "llvm-spirv-19"] {
        process::script(tree.path(name), "exit 0");
    }
    let path = format!("{}:{}", tree.root().display(), std::env::var("PATH").unwrap());
    let archive = tree.path("out/kpack/vector/.kpack/vec_lib_amdgcnspirv.kpack");
    for (spirv, is_archived) in [
        (None, false),
        (Some(Spirv::Archive), true),
        (Some(Spirv::Drop), false),
        (Some(Spirv::Keep), false),
    ] {
        let more =
            [("HIPCXX", "clang++-19"), ("KPACK_OFFLOAD_ARCH", "amdgcnspirv"), ("PATH", &path)];
        let mut hip = build(&tree, &more);
        if let Some(spirv) = spirv {
            hip.spirv(spirv);
        }
        compile(&hip);
        assert_eq!(archive.exists(), is_archived, "{spirv:?}");
        let library = fs::read(tree.path("out/kpack/vector/libvector.a")).unwrap();
        let mut parts = library.windows(24);
        let is_kept = parts.any(|part| part == b"__CLANG_OFFLOAD_BUNDLE__");
        assert_eq!(is_kept, matches!(spirv, None | Some(Spirv::Keep)), "{spirv:?}");
    }
}
