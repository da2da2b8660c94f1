//! Given HIP sources and device code of others, when a build script makes modules of them, then there are a bundle for
//! each and a generated file that lists its kernels; and errors say what to do.

mod bad_input;
mod foreign;
mod reuse;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use kpack_build::{Hip, Modules, ids};
use kpack_format::offload_bundle::{Bundle, Format};
use kpack_tests::process::{self, run};
use kpack_tests::require;
use kpack_tests::tree::Tree;

use super::said;

const AFFINE: &str = r#"#include "global.h"
#ifndef WITHOUT_F64
extern "C" __global__ void affine_f64(double *a) { *a += FACTOR; }
#endif
extern "C" __global__ void affine_f32(float *a) { *a += FACTOR; }
"#;

const REDUCE: &str = r#"#include "global.h"
#if defined(__gfx1100__) && defined(ONLY_FOR_OTHERS)
#else
extern "C" __global__ void reduce(float *a) { *a *= FACTOR; }
#endif
__global__ void mangled(int *a) { ++*a; }
"#;

/// A package with two sources.
fn package() -> Tree {
    let tree = Tree::new();
    for directory in ["kernels", "include", "out", "empty"] {
        fs::create_dir(tree.path(directory)).unwrap();
    }
    fs::write(tree.path("kernels/affine.hip"), AFFINE).unwrap();
    fs::write(tree.path("kernels/reduce.hip"), REDUCE).unwrap();
    let header = "#define __global__ __attribute__((global))\n#define FACTOR 2\n";
    fs::write(tree.path("include/global.h"), header).unwrap();
    tree
}

/// A build of the package without sources, in the environment that Cargo makes.
fn empty_build(tree: &Tree, more: &[(&str, &str)]) -> Hip {
    let mut variables = vec![
        ("CARGO_MANIFEST_DIR", tree.root().to_str().unwrap().to_owned()),
        ("CARGO_PKG_NAME", "vec".to_owned()),
        ("OUT_DIR", tree.path("out").to_str().unwrap().to_owned()),
        ("OPT_LEVEL", "2".to_owned()),
        ("DEBUG", "true".to_owned()),
        ("NUM_JOBS", "2".to_owned()),
        ("PATH", std::env::var("PATH").unwrap()),
        ("HIPCXX", "clang++-19".to_owned()),
    ];
    for (name, value) in more {
        variables.retain(|(known, _)| known != name);
        variables.push((name, (*value).to_owned()));
    }
    let mut hip = Hip::new();
    hip.cargo_metadata(false).environment(variables);
    hip
}

/// A build of both sources without ROCm's headers and device libraries.
fn build(tree: &Tree, more: &[(&str, &str)]) -> Hip {
    let mut hip = empty_build(tree, more);
    hip.files(["kernels/affine.hip", "kernels/reduce.hip"]).include("include");
    hip.flags(["-nogpuinc", "-nogpulib"]);
    hip
}

/// The same for two targets.
fn build_for_two(tree: &Tree, more: &[(&str, &str)]) -> Hip {
    let mut hip = build(tree, more);
    hip.offload_archs(["gfx942", "gfx1100"]);
    hip
}

/// The same in another process, for a package in `root`, with so many compilers at once.
fn build_in_process(root: &str, compiler: &str, jobs: usize) -> Hip {
    let mut hip = Hip::new();
    hip.files(["kernels/affine.hip", "kernels/reduce.hip"]).include("include");
    hip.flags(["-nogpuinc", "-nogpulib"]).offload_archs(["gfx942", "gfx1100"]);
    hip.cargo_metadata(false).environment([
        ("CARGO_MANIFEST_DIR", root.to_owned()),
        ("OUT_DIR", format!("{root}/out")),
        ("PATH", std::env::var("PATH").unwrap()),
        ("HIPCXX", compiler.to_owned()),
        ("NUM_JOBS", jobs.to_string()),
    ]);
    hip
}

fn modules(hip: &Hip) -> Modules {
    let modules = hip.try_compile_modules("kernels");
    modules.unwrap_or_else(|error| panic!("{}", error.in_one_line()))
}

fn error(tree: &Tree, hip: &Hip) -> String {
    error_of(tree, hip, "kernels")
}

fn error_of(tree: &Tree, hip: &Hip, name: &str) -> String {
    let error = hip.try_compile_modules(name).unwrap_err();
    said(tree, &error.in_one_line())
}

fn warnings(modules: &Modules) -> Vec<&str> {
    let lines = modules.directives().iter();
    lines.filter_map(|line| line.strip_prefix("cargo::warning=")).collect()
}

/// The bundle of a module: its table.
fn table(path: &Path) -> Bundle {
    let mut file = File::open(path).unwrap();
    let size = file.metadata().unwrap().len();
    Bundle::read(&mut file, size).unwrap()
}

/// The directory of results, without the code objects that are kept.
fn published(tree: &Tree) -> Vec<(String, Vec<u8>)> {
    let files = tree.files().into_iter().filter(|file| file.starts_with("out/kpack/kernels/"));
    files.map(|file| (file.clone(), fs::read(tree.path(&file)).unwrap())).collect()
}

/// The code object for `target` in the bundle of a module, in a file of its own.
fn code_object(tree: &Tree, module: &str, target: &str) -> PathBuf {
    let bundle = tree.path(&format!("out/kpack/kernels/{module}.hipfb"));
    let entry = table(&bundle);
    let of_target = |id: &str| id.ends_with(&format!("--{target}"));
    let entry = entry.entries.iter().find(|entry| of_target(entry.id.as_str())).unwrap();
    let bytes = fs::read(&bundle).unwrap();
    let path = tree.path(&format!("{module}-{target}.co"));
    let range = entry.offset as usize..(entry.offset + entry.size) as usize;
    fs::write(&path, &bytes[range]).unwrap();
    path
}

#[test]
fn a_bundle_for_each_source_and_a_file_that_lists_them() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let built = modules(&build_for_two(&tree, &[]));
    assert_eq!(built.path(), tree.path("out/kpack/kernels/modules.rs"));
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"size: \d+", "size: [..]");
    settings.bind(|| insta::assert_snapshot!(fs::read_to_string(built.path()).unwrap()));
    insta::assert_snapshot!("directives", said(&tree, &built.directives().join("\n")));
    for module in ["affine", "reduce"] {
        let bundle = table(&built.directory().join(format!("{module}.hipfb")));
        assert_eq!(bundle.format, Format::Plain);
        let ids = Vec::from_iter(bundle.entries.iter().map(|entry| entry.id.as_str()));
        assert_eq!(
            ids,
            [
                "host-x86_64-unknown-linux--",
                "hipv4-amdgcn-amd-amdhsa--gfx942",
                "hipv4-amdgcn-amd-amdhsa--gfx1100",
            ]
        );
        assert!(bundle.entries.iter().all(|entry| entry.offset % 4096 == 0), "{bundle:?}");
    }
    // Nothing else appears beside the kept code objects.
    let files = tree.files().into_iter();
    let published = files.filter(|file| file.starts_with("out") && !file.contains(".objects/"));
    assert_eq!(
        Vec::from_iter(published),
        [
            "out/kpack/kernels/affine.hipfb",
            "out/kpack/kernels/include-directories.txt",
            "out/kpack/kernels/modules.rs",
            "out/kpack/kernels/reduce.hipfb",
        ]
    );
}

/// Build scripts list directories, whose order differs between machines.
#[test]
fn the_order_of_sources_does_not_matter() {
    let generated = |files: [&str; 2]| {
        let tree = package();
        let mut hip = empty_build(&tree, &[]);
        let built = modules(hip.files(files).code_object("axpy", "gfx942", "a.co").skip(true));
        fs::read_to_string(built.path()).unwrap()
    };
    let text = generated(["kernels/affine.hip", "kernels/reduce.hip"]);
    assert_eq!(generated(["kernels/reduce.hip", "kernels/affine.hip"]), text);
    let places = ["AFFINE", "AXPY", "REDUCE"].map(|name| text.find(name).unwrap());
    assert!(places.is_sorted(), "{text}");
}

/// What the macro of the crate `kpack` is called with, in a program that prints it.
const PROGRAM: &str = r#"mod kpack {
    macro_rules! modules_v1 {
        ($name:ident; $($static:ident { $($fields:tt)* })*) => {
            pub mod $name { $(pub const $static: crate::Module = crate::kpack::module!($($fields)*);)* }
        };
    }
    macro_rules! module {
        (name: $name:literal, size: $size:literal, bundle: $bundle:expr,
         targets: [$($target:literal),*], kernels: [$($kernel:literal),*], list: $list:literal,) => {
            crate::Module { name: $name, bundle: { const B: &[u8; $size] = $bundle; B }, targets: &[$($target),*],
                kernels: &[$($kernel),*], list: $list }
        };
        (skipped: $why:literal, name: $name:literal) => {
            crate::Module { name: $name, bundle: &[], targets: &[], kernels: &[], list: $why }
        };
    }
    pub(crate) use {module, modules_v1};
}

#[allow(dead_code)]
pub struct Module {
    name: &'static str,
    bundle: &'static [u8],
    targets: &'static [&'static str],
    kernels: &'static [&'static std::ffi::CStr],
    list: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/kpack/kernels/modules.rs"));

fn main() {
    for module in [kernels::AFFINE, kernels::REDUCE] {
        let Module { name, bundle, targets, kernels, list } = module;
        println!("{name} {} {targets:?} {kernels:?} {list}", bundle.starts_with(b"__CLANG"));
    }
}
"#;

/// What a program prints that includes the generated file.
fn printed(tree: &Tree) -> String {
    fs::write(tree.path("main.rs"), PROGRAM).unwrap();
    let mut rustc = Command::new("rustc");
    rustc.current_dir(tree.root()).env("OUT_DIR", tree.path("out"));
    run(rustc.args(["--edition", "2021", "main.rs"]));
    run(&mut Command::new(tree.path("main")))
}

#[test]
fn a_program_includes_the_modules() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    modules(&build_for_two(&tree, &[]));
    assert_eq!(
        printed(&tree),
        "affine true [\"gfx942\", \"gfx1100\"] [\"affine_f32\", \"affine_f64\"] affine_f32, affine_f64\n\
         reduce true [\"gfx942\", \"gfx1100\"] [\"_Z7mangledPi\", \"reduce\"] _Z7mangledPi, reduce\n"
    );
}

/// Without a compiler.
#[test]
fn where_nothing_is_to_be_compiled_the_modules_say_so() {
    for (is_skipped, variable) in [(false, "DOCS_RS"), (true, "OTHER"), (true, "DOCS_RS")] {
        let tree = package();
        fs::remove_dir_all(tree.path("kernels")).unwrap();
        let variables = [("PATH", ""), ("HIPCXX", "no-such-compiler"), (variable, "1")];
        let mut hip = build(&tree, &variables);
        let built = modules(hip.skip(is_skipped));
        let why = if is_skipped { "the build script says `skip(true)`" } else { "DOCS_RS is set" };
        assert_eq!(printed(&tree), format!("affine false [] [] {why}\nreduce false [] [] {why}\n"));
        let watched = built.directives().iter().any(|line| line.ends_with("=DOCS_RS"));
        assert_eq!(watched, !is_skipped);

        // And libraries are neither made nor linked.
        for library in [hip.try_compile("kernels").unwrap(), hip.try_shared("kernels").unwrap()] {
            assert!(!library.path().exists());
            let links = |line: &String| line.contains("rustc-link");
            assert!(!library.directives().iter().any(links), "{:?}", library.directives());
        }
    }
}

#[test]
fn kernels_that_a_target_lacks() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let built = modules(build_for_two(&tree, &[]).define("ONLY_FOR_OTHERS", None));
    assert_eq!(
        warnings(&built),
        ["module `reduce` has the kernel `reduce` for other targets, but not for gfx1100 \
          (kernels/reduce.hip)"]
    );
    let text = fs::read_to_string(built.path()).unwrap();
    assert!(text.contains("list: \"_Z7mangledPi, reduce\""), "{text}");

    fs::write(tree.path("kernels/reduce.hip"), "void host() {}\n").unwrap();
    let built = modules(&build_for_two(&tree, &[]));
    assert_eq!(warnings(&built), ["module `reduce` has no kernels"]);
}

#[test]
fn a_source_for_some_targets() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let mut hip = build_for_two(&tree, &[]);
    fs::write(tree.path("kernels/moe.hip"), REDUCE).unwrap();
    let built = modules(hip.file_for("kernels/moe.hip", ["gfx942", "gfx950"]));
    assert_eq!(table(&built.directory().join("moe.hipfb")).entries.len(), 2);
    assert_eq!(warnings(&built), [""; 0]);

    let mut hip = build(&tree, &[("KPACK_OFFLOAD_ARCH", "gfx1100")]);
    let built = modules(hip.file_for("kernels/moe.hip", ["gfx942", "gfx950"]));
    let why = "`file_for` limits it to targets that this build does not have";
    assert_eq!(warnings(&built), [format!("module `moe` has no code: {why}")]);
    let text = fs::read_to_string(built.path()).unwrap();
    assert!(text.contains(&format!("MOE {{ skipped: \"{why}\", name: \"moe\" }}")), "{text}");
    assert!(!built.directory().join("moe.hipfb").exists());

    let text = error(&tree, hip.object("host.o"));
    assert!(text.contains("so `object` cannot add host.o"), "{text}");
}

/// The package whose build script a test plays in another process.
const PACKAGE: &str = "KPACK_TEST_PACKAGE";

/// Libraries and modules share the directory of their name.
#[test]
fn a_name_that_the_build_script_has_used() {
    let name = "hip::modules::a_name_that_the_build_script_has_used";
    if let Ok(root) = std::env::var(PACKAGE) {
        let mut hip = Hip::new();
        hip.files(["kernels/affine.hip"]).cargo_metadata(false).skip(true);
        hip.try_compile_modules("kernels").unwrap();
        hip.try_compile_modules("others").unwrap();
        let errors = [
            hip.try_compile_modules("kernels").unwrap_err(),
            hip.try_compile("kernels").unwrap_err(),
            hip.try_shared("others").unwrap_err(),
        ];
        let errors = errors.map(|error| error.in_one_line());
        fs::write(Path::new(&root).join("errors"), errors.join("\n")).unwrap();
        return;
    }
    let tree = package();
    let mut script = Command::new(std::env::current_exe().unwrap());
    script.args(["--exact", name]).env(PACKAGE, tree.root());
    run(script.env("CARGO_MANIFEST_DIR", tree.root()).env("OUT_DIR", tree.path("out")));
    let advice = "was already built by this build script, and would be replaced; choose another \
                  name [usage]";
    assert_eq!(
        fs::read_to_string(tree.path("errors")).unwrap(),
        format!("`kernels` {advice}\n`kernels` {advice}\n`others` {advice}")
    );
}

/// A build script may go on without what it cannot build. Cargo looks into directories, but not into the one with OUT_DIR.
#[test]
fn cargo_watches_the_sources_of_a_build_that_fails() {
    let name = "hip::modules::cargo_watches_the_sources_of_a_build_that_fails";
    if let Ok(kind) = std::env::var(PACKAGE) {
        let mut hip = Hip::new();
        hip.files(["kernels/affine.hip", "root.hip"]).include("include").include("/usr/include");
        hip.flag("-Iflagged").offload_arch("gfx1100");
        let is_error = match &kind[..] {
            "modules" => hip.code_object("a", "gfx942", "a.co").try_compile_modules(&kind).is_err(),
            "static" => hip.object("a.co").try_compile(&kind).is_err(),
            _ => hip.object("a.co").try_shared(&kind).is_err(),
        };
        assert!(is_error);
        return;
    }
    let tree = package();
    for file in ["root.hip", "root.h", "a.co"] {
        fs::write(tree.path(file), "").unwrap();
    }
    for kind in ["modules", "static", "shared"] {
        let mut script = Command::new(std::env::current_exe().unwrap());
        script.args(["--exact", "--nocapture", name]).env(PACKAGE, kind);
        script.env("HIPCXX", "no-such-compiler").env("CARGO_MANIFEST_DIR", tree.root());
        let printed = run(script.env("OUT_DIR", tree.path("out")));
        let lines = |prefix| printed.lines().filter_map(move |line| line.strip_prefix(prefix));
        assert_eq!(
            Vec::from_iter(lines("cargo::rerun-if-changed=")),
            ["a.co", "flagged", "include", "kernels", "kernels/affine.hip", "root.h", "root.hip"],
            "{kind}: {printed}"
        );
        assert!(lines("cargo::rerun-if-env-changed=").any(|name| name == "DOCS_RS"), "{printed}");
    }
}

#[test]
fn names_that_are_no_identifiers() {
    let tree = package();
    let mut text = String::new();
    let cases: [(&str, &[&str]); 8] = [
        ("my-kernels", &["kernels/affine.hip"]),
        ("mod", &["kernels/affine.hip"]),
        ("", &["kernels/affine.hip"]),
        ("kernels", &[]),
        ("kernels", &["kernels/moe-gemm.hip"]),
        ("kernels", &["kernels/1d.hip"]),
        ("kernels", &["kernels/all.hip"]),
        ("kernels", &["kernels/affine.hip", "more/Affine.cu"]),
    ];
    for (name, files) in cases {
        let mut hip = empty_build(&tree, &[]);
        text += &error_of(&tree, hip.files(files), name);
        text += "\n";
    }
    insta::assert_snapshot!(text);
}

#[test]
fn a_source_that_does_not_exist_or_has_no_target() {
    let tree = package();
    let mut hip = build_for_two(&tree, &[]);
    let text = error(&tree, hip.file("kernels/missing.hip"));
    assert_eq!(
        text,
        "cannot read [package]/kernels/missing.hip: No such file or directory (os error 2); check \
         the path [system]"
    );
    let mut hip = build_for_two(&tree, &[]);
    hip.file("kernels");
    let directory = "[package]/kernels: is a directory; add its files [usage]";
    assert_eq!(error(&tree, &hip), directory);
    let of_library = hip.try_compile("kernels").unwrap_err().in_one_line();
    assert_eq!(said(&tree, &of_library), directory);
    let text = error(&tree, build(&tree, &[]).offload_arch("amdgcnspirv"));
    assert!(text.contains("amdgcnspirv is the only target"), "{text}");
    assert!(error(&tree, &build(&tree, &[])).contains("no GPU target"));
}

#[test]
fn all_sources_and_targets_that_do_not_compile_are_listed() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let affine = format!("{AFFINE}#ifdef __gfx1100__\nbroken(\n#endif\n");
    fs::write(tree.path("kernels/affine.hip"), affine).unwrap();
    fs::write(tree.path("kernels/reduce.hip"), "#include \"missing.h\"\n").unwrap();
    fs::write(tree.path("kernels/sound.hip"), AFFINE).unwrap();
    let mut hip = build_for_two(&tree, &[]);
    let text = error(&tree, hip.file("kernels/sound.hip"));
    let mut settings = insta::Settings::clone_current();
    // The compiler's path and its flags differ between machines.
    settings.add_filter(r"The command was: .*", "The command was: [..]");
    settings.bind(|| insta::assert_snapshot!(text));
    assert_eq!(hip.try_compile_modules("kernels").unwrap_err().id(), ids::COMPILER);
}

#[test]
fn a_source_that_needs_a_device_link() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let text = error(&tree, build_for_two(&tree, &[]).flag("-fgpu-rdc"));
    assert_eq!(
        text,
        "kernels/affine.hip: LLVM bitcode, as -fgpu-rdc, -flto and -emit-llvm make it (expected a linked code \
         object); compile without that option, because a module has no device link [unsupported-binary]"
    );
}

/// Those of its C++ library, which ROCm's headers include.
#[test]
fn headers_of_another_system_that_are_missing() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let found =
        "/usr/bin/../include/c++/12/cwchar:44:10: fatal error: 'bits/c++config.h' file not found";
    let failing = format!(
        "case \"$*\" in *kernels/affine.hip*) echo \"{found}\" >&2; exit 1 ;; esac\nexec clang++-19 \"$@\""
    );
    process::script(tree.path("compiler"), &failing);
    let compiler = tree.path("compiler").display().to_string();
    let hip =
        build_for_two(&tree, &[("HIPCXX", &compiler), ("TARGET", "aarch64-unknown-linux-gnu")]);
    let advice = "install the C++ library of the machine that you compile for (Debian, for AArch64: \
                  `apt-get install g++-aarch64-linux-gnu`)";
    let text = error(&tree, &hip);
    assert!(text.contains(&format!("for gfx942, gfx1100: {found}; {advice}\n")), "{text}");
    let text = hip.try_compile("kernels").unwrap_err().to_string();
    assert!(text.contains(&format!("To fix it, {advice}.\nThe command was")), "{text}");
}

/// Neither needs headers of the other system, as long as the sources do not.
#[test]
fn modules_for_another_system() {
    if !require::tool("clang++-19") {
        return;
    }
    for target in ["aarch64-unknown-linux-gnu", "x86_64-pc-windows-gnu"] {
        let tree = package();
        let source = "#ifdef _WIN32\nstatic_assert(sizeof(long) == 4);\n#endif\n";
        fs::write(tree.path("kernels/affine.hip"), format!("{source}{AFFINE}")).unwrap();
        let built = modules(&build_for_two(&tree, &[("TARGET", target)]));
        assert_eq!(warnings(&built), [""; 0], "{target}");
        let bundle = table(&built.directory().join("affine.hipfb"));
        assert_eq!(bundle.entries.len(), 3, "{target}");
    }
}

#[test]
fn an_out_dir_in_another_place_or_in_the_way() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let mut hip = build_for_two(&tree, &[]);
    let built = modules(hip.out_dir(tree.path("a \"b\"")));
    let text = fs::read_to_string(built.path()).unwrap();
    let path = format!("{}/a \\\"b\\\"/kpack/kernels/affine.hipfb", tree.root().display());
    assert!(text.contains(&format!("include_bytes!(\"{path}\")")), "{text}");

    fs::write(tree.path("out/kpack"), "").unwrap();
    let text = error(&tree, &build_for_two(&tree, &[]));
    assert!(text.starts_with("[package]/out/kpack/kernels: cannot"), "{text}");
    assert!(text.contains("CARGO_TARGET_DIR"), "{text}");
}

/// A program in place of the compiler that counts its compilations in `log`, one line each.
fn counting(tree: &Tree) -> String {
    let path = tree.path("counting");
    let log = tree.path("log");
    let text = format!(
        "case \"$*\" in *' -dependency-file '*) echo \"$*\" >> {} ;; esac\nexec clang++-19 \"$@\"",
        log.display()
    );
    process::script(&path, &text);
    path.to_str().unwrap().to_owned()
}

/// The compilations since the last call: source and target.
fn compilations(tree: &Tree) -> Vec<String> {
    let log = fs::read_to_string(tree.path("log")).unwrap_or_default();
    let _ = fs::remove_file(tree.path("log"));
    let mut all = Vec::from_iter(log.lines().map(|line| {
        let target = line.split("--offload-arch=").nth(1).unwrap().split(' ').next().unwrap();
        let source = line.rsplit(['/', ' ']).next().unwrap();
        format!("{source} {target}")
    }));
    all.sort();
    all
}
