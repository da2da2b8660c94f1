//! Given one source that clang compiles with its defaults for other targets on each machine, when the split
//! artifacts are recombined, then differences that the targets alone cause are not errors.
//!
//! The device code is split from the linked library, or from the object before the link.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::markers::markers;
use crate::planned::{
    CONFIGURATION, assert_said, options, planned, recombine, said, with_validation,
};
use crate::shards::PREFIX;
use crate::verified::{assert_holds, check, checks, faults};
use kpack_artifact::recombine::Severity;
use kpack_artifact::split::{Options, split};
use kpack_build::object_file::{self, launch};
use kpack_format::archive::Archive;
use kpack_split::install;
use kpack_tests::process;
use kpack_tests::require;
use kpack_tests::tree::{Tree, write};

/// Compiles `source` for `targets` and splits the result, as the machine that uploads `shards/<name>` does.
/// clang also derives IDs from the path of the source, so all machines use the same path.
fn compiled(tree: &Tree, name: &str, source: &str, targets: &[&str]) {
    linked(tree, name, source, targets, "lld-19");
}

/// As [`compiled`], with another linker.
fn linked(tree: &Tree, name: &str, source: &str, targets: &[&str], linker: &str) {
    let artifact = tree.path(&format!("in/{name}/blas_lib"));
    let library = artifact.join(PREFIX).join("lib/librocblas.so.5");
    tree.write("vec.hip", source);
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
    write(artifact.join("artifact_manifest.txt"), format!("{PREFIX}\n"));
    let output = tree.path(&format!("shards/{name}"));
    split(&Options::new(artifact, output, "blas_lib"), &()).unwrap();
}

fn has_compiler() -> bool {
    require::tool("clang++-19") && require::tool("ld.lld-19") && require::tool("nm")
}

/// A kernel; `words` sets the amount of device code.
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
    let output = Command::new("nm").arg("-D").arg(tree.path(&library)).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let words = text.split_whitespace().map(str::to_owned);
    words.filter(|w| w.starts_with("__hip_cuid_")).collect()
}

#[test]
fn ids_of_compilation_units_depend_on_the_targets() {
    if !has_compiler() {
        return;
    }
    // In the first, both libraries have another layout; in the second, addresses are the same.
    for (words, targets) in [(20_000, ["gfx1100", "gfx942"]), (0, ["gfx1100", "gfx1101"])] {
        let tree = Tree::new();
        compiled(&tree, "linux-a", &source(words), &targets[..1]);
        compiled(&tree, "linux-c", &source(words), &targets[1..]);
        let [ours, theirs] = ["linux-a", "linux-c"].map(|shard| unit_ids(&tree, shard));
        assert_eq!((ours.len(), theirs.len()), (1, 1));
        assert_ne!(ours, theirs);
        let plan = planned(&tree, CONFIGURATION);
        let parts = ["librocblas.so.5", "the same names, symbols and sizes of sections"];
        assert_said(&plan, Severity::Note, &parts);
        assert_eq!(plan.errors(), 0, "{:#?}", said(&plan));
        plan.apply(&options(&tree, CONFIGURATION), &()).unwrap();
    }
}

#[test]
fn any_other_difference_is_an_error() {
    if !has_compiler() {
        return;
    }
    let tree = Tree::new();
    compiled(&tree, "linux-a", &source(20_000), &["gfx1100", "gfx1101"]);
    let other = source(20_000).replace("run(", "ran(");
    compiled(&tree, "linux-c", &other, &["gfx942"]);
    let plan = planned(&tree, CONFIGURATION);
    let parts = ["librocblas.so.5", "exported symbol `_Z3ranPf` (expected none, found "];
    assert_said(&plan, Severity::Fault, &parts);

    // A name in host and device code must be the same in both: here device code looks for a variable by
    // the other build's name.
    let with = |name: &str| source(20_000) + &format!("char variable asm(\"{name}\") = 0;\n");
    for (ours, theirs) in [
        ("table.static.754354c08156697c", "table.static.274dcab0d7db0ad2"),
        ("__hip_cuid_not_a_hash", "__hip_cuid_nor_a_hash"),
    ] {
        compiled(&tree, "linux-a", &with(ours), &["gfx1100", "gfx1101"]);
        compiled(&tree, "linux-c", &with(theirs), &["gfx942"]);
        let plan = planned(&tree, CONFIGURATION);
        let text = format!("exported symbol `{theirs}` (expected none, found ");
        assert_said(&plan, Severity::Fault, &["librocblas.so.5", &text]);
        let text = format!("exported symbol `{ours}` (expected ");
        assert_said(&plan, Severity::Fault, &["librocblas.so.5", &text]);
    }
}

/// A kernel that nothing outside of its file can name, so no symbol tells.
fn of_kernel(name: &str, words: usize) -> String {
    let source = source(words).replace("__global__ void add(", "static __global__ void KERNEL(");
    source.replace("add<<<", "KERNEL<<<").replace("KERNEL", name)
}

/// The code for a target of the other shard has no kernel of the name that the primary shard's host registers.
#[test]
fn kernels_that_one_host_registers_and_another_does_not() {
    if !has_compiler() {
        return;
    }
    let tree = Tree::new();
    compiled(&tree, "linux-a", &of_kernel("kk1", 20_000), &["gfx1100", "gfx1101"]);
    compiled(&tree, "linux-c", &of_kernel("kk2", 20_000), &["gfx942"]);
    let plan = planned(&tree, CONFIGURATION);
    let text = "registers other kernels than the primary shard's binary, although both shards have device code for them \
                (expected `_ZL3kk1Pf`, found `_ZL3kk2Pf`)";
    assert_said(&plan, Severity::Fault, &["linux-c", "librocblas.so.5", text]);

    // Who asks for it nevertheless hears of it, and so does who verifies the result.
    let lenient = with_validation("verify_generic_artifacts_match", false);
    let plan = recombine(&tree, &lenient);
    assert_said(&plan, Severity::Warning, &["linux-c", "librocblas.so.5", text]);
    let report = check(&tree, "out");
    let text = "the code for gfx942 at index 0 may be from another build: it lacks `_ZL3kk1Pf`, which the host \
                binary registers and the code for other targets contains, and has kernels that the host does not register";
    let warnings = checks(&report, Severity::Warning);
    assert!(warnings.iter().any(|warning| warning.contains(text)), "{warnings:#?}");
}

/// Nothing is wrong with that, and the original has it, too. Without the original, kernels that replace each other are no
/// more than a warning.
#[test]
fn kernels_that_the_source_leaves_out_for_a_target_are_no_fault() {
    if !has_compiler() {
        return;
    }
    let some = "#if !defined(__HIP_DEVICE_COMPILE__) || defined(__gfx1100__)\n\
                static __global__ void some(float *a) { a[0] += 2; }\n\
                #endif\n\
                #ifndef __HIP_DEVICE_COMPILE__\n\
                void more(float *a) { some<<<1, 1>>>(a); }\n\
                #endif\n";
    let tree = Tree::new();
    compiled(&tree, "linux-a", &(source(20_000) + some), &["gfx1100", "gfx1101"]);
    compiled(&tree, "linux-c", &(source(20_000) + some), &["gfx942"]);
    let plan = recombine(&tree, CONFIGURATION);
    assert_eq!(plan.errors(), 0, "{:#?}", said(&plan));
    let report = check(&tree, "out");
    assert!(report.holds(), "{:#?}", faults(&report));
    let replaced = "#ifdef __gfx1100__\n#define WIDTH 64\n#else\n#define WIDTH 32\n#endif\n\
                    template <int width> static __global__ void wide(float *a) { a[0] += width; }\n\
                    void all(float *a) { wide<WIDTH><<<1, 1>>>(a); }\n";
    let other = Tree::new();
    compiled(&other, "linux-a", &(source(20_000) + replaced), &["gfx1100", "gfx1101"]);
    recombine(&other, CONFIGURATION);
    let verified = check(&other, "out");
    assert!(verified.holds(), "{:#?}", faults(&verified));
    let warnings = checks(&verified, Severity::Warning);
    assert!(
        warnings.iter().any(|text| text.contains("gfx1100 at index 0 may be")),
        "{warnings:#?}"
    );
    for target in ["gfx1101", "gfx942"] {
        let text =
            format!("the code for {target} lacks `_ZL4somePf`, which the host binary registers");
        let notes = checks(&report, Severity::Note);
        assert!(notes.iter().any(|note| note.contains(&text)), "{notes:#?}");
    }
}

/// Device code of two pages or less stays in place, and so do the sections that would make room for a
/// program header.
#[test]
fn sections_in_another_order_are_no_error() {
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
    assert_said(&plan, Severity::Note, &["the same names, symbols and sizes of sections"]);
    assert_eq!(plan.errors(), 0, "{:#?}", said(&plan));
}

/// A compiler that runs in `directory`.
fn compiler(directory: &Path, words: &[&str]) -> Vec<OsString> {
    let headers = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/e2e/hip");
    let mut command: Vec<OsString> = vec!["env".into(), "-C".into(), directory.into()];
    command.extend(["clang++-19", "-I", headers].map(OsString::from));
    command.extend(words.iter().map(OsString::from));
    command
}

/// The tool that splits an object before the link.
#[derive(Clone, Copy, PartialEq)]
enum Splitter {
    /// `kpack launch`, in the build directory; the library must then be installed.
    Launcher,
    /// `kpack object`, into the directory of the library.
    Object,
}

/// Builds a library from an object that was split before the link, as one machine does, and links it as
/// `in/<shard>/blas_lib/…/lib/librocblas.so.5`.
fn linked_of_split(tree: &Tree, shard: &str, flags: &[&str], splitter: Splitter) {
    let build = tree.path(&format!("build/{shard}"));
    let artifact = tree.path(&format!("in/{shard}/blas_lib"));
    let lib = artifact.join(PREFIX).join("lib");
    write(build.join("vec.hip"), source(100));
    write(artifact.join("artifact_manifest.txt"), format!("{PREFIX}\n"));
    fs::create_dir_all(&lib).unwrap();
    let object = build.join("vec.o");
    let hip = ["-x", "hip", "-nogpuinc", "-nogpulib", "-O1", "-fPIC"];
    let output = ["-c", "vec.hip", "-o", object.to_str().unwrap()];
    let compile = compiler(&build, &[&hip, flags, &output].concat());
    let (output, objects) = match splitter {
        Splitter::Launcher => (&build, vec![]),
        Splitter::Object => (&lib, vec![&object]),
    };
    let options = object_file::Options::new("rocblas", output, objects);
    if splitter == Splitter::Launcher {
        assert!(launch(&options, &compile).unwrap().success());
    } else {
        run(&compile);
        object_file::split(&options, &()).unwrap();
    }
    let link = "-shared -nostdlib -fuse-ld=lld-19 -Wl,--build-id vec.o -o";
    let mut link: Vec<&str> = link.split(' ').collect();
    let library = lib.join("librocblas.so.5");
    link.push(library.to_str().unwrap());
    run(&compiler(output, &link));
    let _ = fs::remove_file(lib.join("vec.o"));
}

fn run(command: &[OsString]) {
    process::run(Command::new(&command[0]).args(&command[1..]));
}

fn split_shard(tree: &Tree, shard: &str) {
    let (input, output) = (format!("in/{shard}/blas_lib"), format!("shards/{shard}"));
    split(&Options::new(tree.path(&input), tree.path(&output), "blas_lib"), &()).unwrap();
}

/// The three shards of the configuration.
const SHARDS: [(&str, &[&str]); 3] = [
    ("linux-a", &["--offload-arch=gfx1100", "--offload-arch=gfx1101"]),
    ("linux-b", &["--offload-arch=gfx90a:xnack+"]),
    ("linux-c", &["--offload-arch=gfx942"]),
];

#[test]
fn libraries_of_split_objects_fit_each_other() {
    if !has_compiler() {
        return;
    }
    for more in [None, Some("-fuse-cuid=none")] {
        let tree = Tree::new();
        for (shard, flags) in SHARDS {
            let flags: Vec<&str> = flags.iter().copied().chain(more).collect();
            linked_of_split(&tree, shard, &flags, Splitter::Launcher);
            let prefix = tree.path(&format!("in/{shard}/blas_lib/{PREFIX}"));
            let files = ["lib/librocblas.so.5"];
            install::install(&install::InstallOptions::new(prefix, "rocblas", files), &()).unwrap();
            split_shard(&tree, shard);
        }
        let plan = planned(&tree, CONFIGURATION);
        for shard in ["linux-b", "linux-c"] {
            assert_said(
                &plan,
                Severity::Note,
                &[shard, "librocblas.so.5", "the same names, symbols and sizes of sections"],
            );
        }
        assert_eq!(said(&plan).len(), 2, "{:#?}", said(&plan));
        plan.apply(&options(&tree, CONFIGURATION), &()).unwrap();
        assert_holds(&tree.path("out"));
        // The host file of the primary shard expects the device code of all.
        let generic = tree.path(&format!("out/blas_lib_generic/{PREFIX}/lib/librocblas.so.5"));
        let found = markers(&generic);
        assert!(!found.is_empty());
        for marker in found {
            let targets = ["gfx1100", "gfx1101", "gfx90a:xnack+", "gfx942"];
            assert_eq!(Vec::from_iter(marker.code_ids.keys()), targets);
            for (target, id) in &marker.code_ids {
                let group = if target.starts_with("gfx11") { "gfx110X" } else { "instinct" };
                let kpacks = format!("out/blas_lib_{group}/{PREFIX}/lib/.kpack");
                let archive = tree.path(&format!("{kpacks}/rocblas_lib_{target}.kpack"));
                let archive = Archive::open(fs::File::open(archive).unwrap()).unwrap();
                let name = marker.kernel_name.as_deref().unwrap();
                assert_eq!(archive.toc().code_id(name, target), Some(*id));
            }
        }
    }
}

/// Their kernels are named after the objects, whose device code differs between machines.
#[test]
fn libraries_of_split_objects_that_were_not_installed_are_refused() {
    if !has_compiler() {
        return;
    }
    let tree = Tree::new();
    for (shard, flags) in SHARDS {
        linked_of_split(&tree, shard, flags, Splitter::Object);
        split_shard(&tree, shard);
    }
    let plan = planned(&tree, CONFIGURATION);
    let parts = ["linux-a", "librocblas.so.5", "split-before-link"];
    assert_said(&plan, Severity::Fault, &parts);
}
