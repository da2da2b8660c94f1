//! Given what clang with its defaults makes of one source for other targets on each machine, when the
//! split artifacts are recombined, then what the targets alone change is no error.

mod planned;
mod shards;

use std::fs;
use std::process::Command;

use kpack_build::artifact::recombine::Severity;
use kpack_build::artifact::split::{Options, split};
use kpack_tests::require;
use kpack_tests::tree::Tree;
use planned::{CONFIGURATION, assert_said, options, planned, said};
use shards::{PREFIX, write};

/// Compiles `source` for `targets`, as a machine does that uploads `shards/<name>`, split. The path of
/// the source is part of what clang derives IDs from, so it is the same for all.
fn compiled(tree: &Tree, name: &str, source: &str, targets: &[&str]) {
    linked(tree, name, source, targets, "lld-19");
}

/// As [`compiled`], by another linker.
fn linked(tree: &Tree, name: &str, source: &str, targets: &[&str], linker: &str) {
    let artifact = tree.path(&format!("in/{name}/blas_lib"));
    let library = artifact.join(PREFIX).join("lib/librocblas.so.5");
    write(&tree.path("vec.hip"), source.as_bytes());
    fs::create_dir_all(library.parent().unwrap()).unwrap();
    let mut clang = Command::new("clang++-19");
    clang.current_dir(tree.root());
    clang.args(["-x", "hip", "-nogpuinc", "-nogpulib", "-I"]);
    clang.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/e2e/hip"));
    clang.args(targets.iter().map(|t| format!("--offload-arch={t}")));
    clang.args(["-O1", "-fPIC", "-shared", "-nostdlib"]);
    clang.arg(format!("-fuse-ld={linker}"));
    clang.args(["vec.hip", "-o"]).arg(&library);
    let output = clang.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    write(
        &artifact.join("artifact_manifest.txt"),
        format!("{PREFIX}\n").as_bytes(),
    );
    let output = tree.path(&format!("shards/{name}"));
    split(&Options::new(artifact, output, "blas_lib"), &()).unwrap();
}

fn has_compiler() -> bool {
    require::tool("clang++-19") && require::tool("ld.lld-19") && require::tool("nm")
}

/// A kernel; with `words` much code in it on each device.
fn source(words: usize) -> String {
    format!(
        "#include <hip/hip_runtime.h>\n\
         __global__ void add(float *a) {{\n\
         a[0] += 1;\n\
         #ifdef __HIP_DEVICE_COMPILE__\n\
         asm volatile(\".fill {words}, 4, 0xBF800000\");\n\
         #endif\n\
         }}\n\
         void run(float *a) {{ add<<<1, 1>>>(a); }}\n"
    )
}

fn unit_ids(tree: &Tree, shard: &str) -> Vec<String> {
    let library = format!("shards/{shard}/blas_lib_generic/{PREFIX}/lib/librocblas.so.5");
    let output = Command::new("nm")
        .arg("-D")
        .arg(tree.path(&library))
        .output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let words = text.split_whitespace().map(str::to_owned);
    words.filter(|w| w.starts_with("__hip_cuid_")).collect()
}

#[test]
fn ids_of_compilation_units_are_of_the_targets() {
    if !has_compiler() {
        return;
    }
    // In the first, both libraries have another layout; in the second, addresses are the same.
    for (words, targets, text) in [
        (
            20_000,
            ["gfx1100", "gfx942"],
            "differs in its layout, and in IDs",
        ),
        (0, ["gfx1100", "gfx1101"], "differs in IDs"),
    ] {
        let tree = Tree::new();
        compiled(&tree, "linux-a", &source(words), &targets[..1]);
        compiled(&tree, "linux-c", &source(words), &targets[1..]);
        let [ours, theirs] = ["linux-a", "linux-c"].map(|shard| unit_ids(&tree, shard));
        assert_eq!((ours.len(), theirs.len()), (1, 1));
        assert_ne!(ours, theirs);
        let plan = planned(&tree, CONFIGURATION);
        let parts = [
            "librocblas.so.5",
            text,
            "of compilation units (`__hip_cuid_…`)",
            "--offload-arch",
        ];
        assert_said(&plan, Severity::Warning, &parts);
        assert_eq!(plan.errors(), 0, "{:#?}", said(&plan));
        plan.apply(&options(&tree, CONFIGURATION), &|_| {}).unwrap();
    }
}

#[test]
fn what_else_is_not_the_same_is_an_error() {
    if !has_compiler() {
        return;
    }
    let tree = Tree::new();
    compiled(&tree, "linux-a", &source(20_000), &["gfx1100", "gfx1101"]);
    let other = source(20_000).replace("run(", "ran(");
    compiled(&tree, "linux-c", &other, &["gfx942"]);
    let plan = planned(&tree, CONFIGURATION);
    let parts = [
        "librocblas.so.5",
        "IDs of compilation units",
        "text `_Z3runPf` against `_Z3ranPf`",
    ];
    assert_said(&plan, Severity::Error, &parts);

    // A name that is in host and device code must be the same in both, whatever it is part of: here a
    // variable that device code looks for by the other build's name.
    let with = |name: &str| source(20_000) + &format!("char variable asm(\"{name}\") = 0;\n");
    for (ours, theirs) in [
        (
            "table.static.754354c08156697c",
            "table.static.274dcab0d7db0ad2",
        ),
        ("__hip_cuid_not_a_hash", "__hip_cuid_nor_a_hash"),
    ] {
        compiled(&tree, "linux-a", &with(ours), &["gfx1100", "gfx1101"]);
        compiled(&tree, "linux-c", &with(theirs), &["gfx942"]);
        let plan = planned(&tree, CONFIGURATION);
        let text = format!("text `{ours}` against `{theirs}`");
        assert_said(&plan, Severity::Error, &["librocblas.so.5", &text]);
    }
}

/// Device code of two pages or less stays where it is, and so does what else the program headers would
/// move.
#[test]
fn sections_in_another_order_are_laid_out_otherwise() {
    if !has_compiler() {
        return;
    }
    let tree = Tree::new();
    linked(&tree, "linux-a", &source(0), &["gfx1100", "gfx1101"], "bfd");
    linked(&tree, "linux-c", &source(0), &["gfx942"], "bfd");
    let order = |shard: &str| -> Vec<String> {
        use object::{Object, ObjectSection};
        let library = format!("shards/{shard}/blas_lib_generic/{PREFIX}/lib/librocblas.so.5");
        let bytes = fs::read(tree.path(&library)).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let name = |section: object::Section<'_, '_>| section.name().unwrap().to_owned();
        file.sections().map(name).collect()
    };
    assert_ne!(order("linux-a"), order("linux-c"));
    let plan = planned(&tree, CONFIGURATION);
    assert_said(&plan, Severity::Warning, &["differs in its layout"]);
    assert_eq!(plan.errors(), 0, "{:#?}", said(&plan));
}
