//! Given shards that were linked from the same host code with device code of other sizes, when they are recombined,
//! then the primary shard's host files are taken, whatever linked them; and other host code is an error that names the
//! fact.

use std::fs;
use std::path::Path;

use crate::layouts::{AARCH64, LINKERS, PPC64LE};
use crate::planned::{CONFIGURATION, assert_said, planned, recombine, said};
use crate::shards::PREFIX;
use anyhow::{Context, Result};
use kpack_artifact::recombine::Severity;
use kpack_artifact::split::{Options, split};
use kpack_tests::fixture::{FatLibrary, Kind, Storage, WINDOWS_LINKERS, WindowsBuild, code_object};
use kpack_tests::require;
use kpack_tests::tree::{Tree, write};

/// The shards, and the target of each.
const SHARDS: [(&str, &str); 2] = [("linux-a", "gfx1100"), ("linux-c", "gfx942")];
const LIBRARY: &str = "lib/librocblas.so.5";

/// Code objects of so many bytes and a little, in a library of two wrappers.
fn library(target: &str, size: usize) -> Result<FatLibrary> {
    let code = || Ok::<_, anyhow::Error>([(target, code_object(target, &vec![7; size])?)]);
    let library = FatLibrary::new().wrapper(Storage::Plain, code()?);
    Ok(library.wrapper(Storage::Plain, [(target, code_object(target, b"small")?)]))
}

/// Has `build` write the binary `file` of a shard, and splits its artifact.
fn shard(
    tree: &Tree,
    name: &str,
    file: &str,
    build: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    let artifact = tree.path(&format!("in/{name}/blas_lib"));
    let _ = fs::remove_dir_all(&artifact);
    write(artifact.join("artifact_manifest.txt"), format!("{PREFIX}\n"));
    build(&artifact.join(PREFIX).join(file))?;
    let output = tree.path(&format!("shards/{name}"));
    let _ = fs::remove_dir_all(&output);
    split(&Options::new(&artifact, output, "blas_lib"), &())?;
    Ok(fs::remove_dir_all(artifact)?)
}

/// That the shards in `tree` are merged with a note on `file`, whose bytes are those of the primary shard.
fn assert_merged(tree: &Tree, file: &str) {
    let plan = recombine(tree, CONFIGURATION);
    assert_eq!(plan.errors(), 0, "{:#?}", said(&plan));
    let name = Path::new(file).file_name().unwrap().to_str().unwrap();
    assert_said(&plan, Severity::Note, &["linux-c", name, "linux-a's is taken"]);
}

/// Libraries and programs of each linker, for all hosts, with device code of these sizes.
fn each_linker(sizes: [usize; 2], variants: &[(Kind, Option<&str>)]) -> Result<()> {
    for linker in &LINKERS {
        for host in ["x86-64", "AArch64", "ppc64le"] {
            // The linkers of that compiler are GNU's.
            let is_gnu = matches!(linker.name, "GNU ld" | "gold");
            let (compiler, of_host) = match host {
                "AArch64" if is_gnu => (AARCH64.compiler, None),
                "AArch64" => ("clang-19", Some("--target=aarch64-linux-gnu")),
                "ppc64le" if is_gnu => (PPC64LE.compiler, None),
                "ppc64le" => ("clang-19", Some("--target=powerpc64le-linux-gnu")),
                _ => (linker.compiler, None),
            };
            // clang needs the libraries of that compiler for such hosts.
            let libraries_of = match host {
                "AArch64" => AARCH64.compiler,
                "ppc64le" => PPC64LE.compiler,
                _ => compiler,
            };
            if !require::tools(&[linker.program, compiler, libraries_of]) {
                continue;
            }
            for (kind, flag) in variants {
                // Only x86-64 has this model for libraries.
                if host != "x86-64" && flag.is_some() {
                    continue;
                }
                let tree = Tree::new();
                for ((name, target), size) in SHARDS.into_iter().zip(sizes) {
                    let mut fat = library(target, size)?.kind(*kind).compiler(compiler);
                    fat = fat.flag(linker.flag);
                    fat = of_host.iter().chain(flag).fold(fat, |fat, flag| fat.flag(*flag));
                    shard(&tree, name, LIBRARY, |path| fat.build(path)).with_context(|| {
                        format!("{} for {host}, {kind:?} {flag:?}", linker.name)
                    })?;
                }
                println!("{} for {host}, {kind:?} {flag:?}", linker.name);
                assert_merged(&tree, LIBRARY);
            }
        }
    }
    Ok(())
}

fn each_windows_linker(sizes: [usize; 2]) -> Result<()> {
    for linker in WINDOWS_LINKERS.into_iter().filter(|linker| linker.is_there()) {
        let tree = Tree::new();
        let file = "bin/blas.dll";
        for ((name, target), size) in SHARDS.into_iter().zip(sizes) {
            let build = WindowsBuild { linker, is_program: false, flags: &[] };
            let fat = library(target, size)?;
            shard(&tree, name, file, |path| fat.build_for_windows(build, path))?;
        }
        println!("{linker:?}");
        assert_merged(&tree, file);
    }
    Ok(())
}

const PAGE: usize = 4096;
const LARGE: usize = 200 << 20;

#[test]
fn device_code_that_differs_by_a_page_is_no_error() -> Result<()> {
    let sizes = [10 * PAGE, 11 * PAGE];
    each_linker(
        sizes,
        &[
            (Kind::Shared, None),
            (Kind::Shared, Some("-s")),
            (Kind::Shared, Some("-mcmodel=large")),
            (Kind::Pie, None),
            (Kind::NoPie, None),
        ],
    )?;
    each_windows_linker(sizes)
}

#[test]
fn device_code_that_differs_by_200_mb_is_no_error() -> Result<()> {
    each_linker([10 * PAGE, LARGE], &[(Kind::Shared, None)])?;
    each_windows_linker([10 * PAGE, LARGE])
}

/// Host code of one shard, and of another; and the flags of their links.
type Change = ([&'static str; 2], [&'static str; 2], &'static str);

/// What differs, and the words that name it.
const CHANGES: [Change; 16] = [
    (
        ["", ""],
        ["-Wl,-soname,libblas.so.4", "-Wl,-soname,libblas.so.5"],
        "SONAME (expected `libblas.so.4`, found `libblas.so.5`)",
    ),
    (
        ["", ""],
        ["-Wl,--as-needed", "-Wl,--no-as-needed,-lm"],
        "NEEDED (expected `libc.so.6`, found `libm.so.6`, `libc.so.6`)",
    ),
    (
        ["", ""],
        ["-Wl,-rpath,/a,--disable-new-dtags", "-Wl,-rpath,/b,--disable-new-dtags"],
        "RPATH (expected `/a`, found `/b`)",
    ),
    (["int f(void) { return 1; }", ""], ["", ""], "exported symbol `f` (expected "),
    (
        ["int table[4] = {1};", "int table[5] = {1};"],
        ["", ""],
        "exported symbol `table` (expected 16 bytes, found 20 bytes)",
    ),
    (
        [
            "int getpid(void); int f(void) { return getpid(); }",
            "int getppid(void); int f(void) { return getppid(); }",
        ],
        ["", ""],
        "imported symbol `getpid` (expected 0 bytes of version `GLIBC_2.",
    ),
    (
        ["int f(void) { return 1; }", "int f(void) { return 1; }"],
        ["-Wl,--version-script=versions", "-Wl,--version-script=versions"],
        "exported symbol `f` (expected 6 bytes of version `V1`, found 6 bytes of version `V2`)",
    ),
    (
        [
            "static volatile const char text[] = \"one\"; int f(void) { return text[0]; }",
            "static volatile const char text[] = \"a longer text than before\"; int f(void) { return text[0]; }",
        ],
        ["", ""],
        "size of section `.data` (expected ",
    ),
    (
        [
            "static volatile int a[64]; int f(void) { return a[1]; }",
            "static volatile int a[4096]; int f(void) { return a[1]; }",
        ],
        ["", ""],
        "size of section `.bss` (expected ",
    ),
    (
        ["int f(void) { return 1; }", "__attribute__((weak)) int f(void) { return 1; }"],
        ["", ""],
        "bytes, weak)",
    ),
    (
        [
            "int f(void) { return 1; }",
            "__attribute__((visibility(\"protected\"))) int f(void) { return 1; }",
        ],
        ["", ""],
        "bytes, protected)",
    ),
    (["", ""], ["", "-Wl,-Bsymbolic"], "DT_SYMBOLIC (expected none, found set)"),
    (["", ""], ["", "-Wl,-z,nodelete"], "DT_FLAGS_1 (expected none, found 0x8)"),
    (["", ""], ["", "-Wl,-z,now"], "DT_FLAGS (expected none, found 0x8)"),
    (["", ""], ["", "-Wl,-z,norelro"], "PT_GNU_RELRO (expected set, found none)"),
    (
        ["", ""],
        ["-Wl,-z,noexecstack", "-Wl,-z,execstack"],
        "PT_GNU_STACK (expected flags 0x6, 0 bytes, found flags 0x7, 0 bytes)",
    ),
];

#[test]
fn other_host_code_is_named_by_its_fact() -> Result<()> {
    for (sources, flags, words) in CHANGES {
        let tree = Tree::new();
        for (index, (name, target)) in SHARDS.into_iter().enumerate() {
            let source = tree.path(&format!("{name}.c"));
            fs::write(&source, sources[index])?;
            let versions = tree.path("versions");
            fs::write(&versions, format!("V{} {{ global: *; }};\n", index + 1))?;
            let mut fat = library(target, (index + 1) * 10 * PAGE)?.flag(source);
            if !flags[index].is_empty() {
                fat = fat
                    .flag(flags[index].replace("=versions", &format!("={}", versions.display())));
            }
            shard(&tree, name, LIBRARY, |path| fat.build(path))?;
        }
        let plan = planned(&tree, CONFIGURATION);
        assert_said(&plan, Severity::Fault, &["linux-c", "librocblas.so.5", "differs in ", words]);
    }
    Ok(())
}

/// Of programs, also which dynamic loader starts them.
#[test]
fn another_dynamic_loader_is_named() -> Result<()> {
    let tree = Tree::new();
    let file = "bin/blas";
    for (index, (name, target)) in SHARDS.into_iter().enumerate() {
        let flag = format!("-Wl,--dynamic-linker=/lib64/ld-{index}.so");
        let fat = library(target, (index + 1) * 10 * PAGE)?.kind(Kind::Pie).flag(flag);
        shard(&tree, name, file, |path| fat.build(path))?;
    }
    let plan = planned(&tree, CONFIGURATION);
    let words = "dynamic loader (expected `/lib64/ld-0.so`, found `/lib64/ld-1.so`)";
    assert_said(&plan, Severity::Fault, &["linux-c", file, "differs in ", words]);
    Ok(())
}

/// Code, rather than a table of addresses or an import, so that nothing but the bytes tells.
#[test]
fn a_constant_of_equal_size_is_not_found() -> Result<()> {
    let tree = Tree::new();
    for (name, target) in SHARDS {
        let source = tree.path(&format!("{name}.c"));
        let number = if name == "linux-a" { 1001 } else { 1003 };
        fs::write(&source, format!("int host(int a) {{ return a * {number}; }}\n"))?;
        let fat = library(target, 10 * PAGE)?.flag(source);
        shard(&tree, name, LIBRARY, |path| fat.build(path))?;
    }
    assert_merged(&tree, LIBRARY);
    Ok(())
}

/// Other wrappers, and a marker that names other kernels.
#[test]
fn other_wrappers_and_kernel_names_are_errors() -> Result<()> {
    let tree = Tree::new();
    let build = |name: &str, target: &str, more: bool| {
        let fat = library(target, 10 * PAGE)?;
        let third = code_object(target, b"third")?;
        let fat = if more { fat.wrapper(Storage::Plain, [(target, third)]) } else { fat };
        // The same length of host code, in which the wrappers are listed.
        shard(&tree, name, LIBRARY, |path| fat.build(path))
    };
    build("linux-a", "gfx1100", false)?;
    build("linux-c", "gfx942", true)?;
    let plan = planned(&tree, CONFIGURATION);
    let parts = ["linux-c", "code objects of wrappers 0-1 (expected 0-1, found none)"];
    assert_said(&plan, Severity::Fault, &parts);

    build("linux-c", "gfx942", false)?;
    let host = tree.path(&format!("shards/linux-c/blas_lib_generic/{PREFIX}/{LIBRARY}"));
    let mut bytes = fs::read(&host)?;
    let name = LIBRARY.as_bytes();
    let at = bytes.windows(name.len()).rposition(|own| own == name).context("the kernel name")?;
    bytes[at + name.len() - 1] = b'6';
    fs::write(&host, bytes)?;
    let plan = planned(&tree, CONFIGURATION);
    let parts = [
        "linux-c",
        "kernel name of wrappers 0-1 (expected `lib/librocblas.so.5`, found `lib/librocblas.so.6`)",
    ];
    assert_said(&plan, Severity::Fault, &parts);
    Ok(())
}
