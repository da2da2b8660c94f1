//! Given the GPUs, the driver, the HIP runtimes and the loaders of a machine, when the doctor examines a prefix, then it finds
//! for which GPUs code loads, why not for others, and what to do. The libraries are real; HIP runtimes and loaders are libraries
//! without code that import and export what real ones do.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use insta::assert_snapshot;
use kpack_build::object_file;
use kpack_core::ids;
use kpack_doctor::{Options, Report, examine, processors};
use kpack_format::TargetId;
use kpack_split::install::{InstallOptions, install};
use kpack_split::join::{JoinOptions, join};
use kpack_tests::fixture::{FatLibrary, Kind, Storage, stub_library};
use kpack_tests::process::run;
use kpack_tests::tree::Tree;

use crate::machine::{
    ARCHIVE, HIP, LIBRARY, LOADER, RUNTIME, asks_once, code, fat, kpack_loader, library, linked,
    machine, new_runtime, reading_runtime, split, split_for_two, stub, with_filters, write_nodes,
};

/// A name, the names of HIP runtimes, of which each makes a row of its own, what changes in a copy of the machine, and lines:
/// `on GPUS` examines the prefix on a machine with these GPUs, `PREFIX for GPU` another one for a GPU, `join` joins as was last
/// advised, and others are a shell's.
type Row = (&'static str, &'static [&'static str], fn(&Tree, &str), &'static [&'static str]);

/// What the doctor finds in each row, for a snapshot.
fn found(rows: &[Row], original: &Tree) -> String {
    let mut text = String::new();
    for (name, runtimes, change, lines) in rows {
        for runtime in *runtimes {
            let tree = original.copy();
            change(&tree, runtime);
            let separator = if runtime.is_empty() { "" } else { ": " };
            writeln!(text, "# {name}{separator}{runtime}").unwrap();
            let mut advised = None;
            for line in *lines {
                let mut options = Options::default();
                options.system = tree.path("system");
                let prefix = if let Some(gpus) = line.strip_prefix("on ") {
                    write_nodes(&tree, gpus);
                    options.nodes = tree.path("nodes");
                    "prefix"
                } else if let Some((prefix, gpu)) = line.split_once(" for ") {
                    options.targets = vec![gpu.parse().unwrap()];
                    prefix
                } else {
                    writeln!(text, "$ {line}").unwrap();
                    match (*line, advised.take()) {
                        ("join", gpus) => join_for(&tree, gpus.unwrap()),
                        _ => drop(run(Command::new("sh")
                            .args(["-ec", line])
                            .current_dir(tree.root()))),
                    }
                    continue;
                };
                let report = examine(&[tree.path(prefix)], &options).unwrap();
                writeln!(text, "{line}: {}", report.verdict).unwrap();
                let said = described(&report);
                advised = advice(&said);
                text += &said.replace(tree.root().to_str().unwrap(), "/tree");
            }
            text.push('\n');
        }
    }
    text
}

/// The findings, each with what to do.
fn described(report: &Report) -> String {
    let cause = report.cause().map_or("none", |cause| cause.finding.id.as_str());
    let remedy = report.remedy.as_ref().map_or("none", |remedy| &remedy.command);
    let mut text = format!("cause {cause}, remedy {remedy}\n");
    for found in &report.findings {
        let finding = &found.finding;
        let path = finding.path.as_ref().map(|path| format!("{}: ", path.display()));
        let (severity, id, path) = (finding.severity, finding.id, path.unwrap_or_default());
        writeln!(text, "{severity:?} [{id}] {path}{}", finding.text).unwrap();
        if let Some(help) = &finding.help {
            writeln!(text, "  {help}").unwrap();
        }
    }
    text
}

/// The GPUs that the first join is for which a text advises.
fn advice(text: &str) -> Option<Vec<TargetId>> {
    let (_, advised) = text.split_once("run `kpack join ")?;
    let (arguments, _) = advised.split_once('`')?;
    let gpus = arguments.split("--arch ").skip(1);
    Some(gpus.map(|rest| rest.split(' ').next().unwrap().parse().unwrap()).collect())
}

fn join_for(tree: &Tree, gpus: Vec<TargetId>) {
    join(&JoinOptions::new(tree.path("prefix"), gpus, ["lib/libvec.so"]), &()).unwrap();
}

/// Where ROCm's loader finds less than kpack's.
#[test]
fn loaders() {
    let rows: &[Row] = &[
        (
            "whose loader a runtime calls and under which name",
            &[""],
            |tree, _| {
                // As a tool for wheels renames them.
                let loader = "librocm_kpack-7e7d63d3.so.0.1.0";
                let hip = "libamdhip64-3c8cbb0f.so.7.14.60850";
                let path = |directory: &str, name: &str| format!("{directory}/{name}");
                reading_runtime(tree, &path("wheel.libs", hip), &path("wheel.libs", loader));
                kpack_loader(tree, &path("kpack", loader));
                let needed = tree.path(&path("kpack", loader));
                stub_library(&tree.path(&path("silent", hip)), "", &[&needed]);
                let hip = tree.path(&path("wheel.libs", hip));
                let library = fat(&["gfx942"]).linked_with(hip, "$ORIGIN/../../wheel.libs");
                split(&library, tree, "prefix");
            },
            &[
                "prefix for gfx942",
                "cp kpack/librocm_kpack-7e7d63d3.so.0.1.0 wheel.libs",
                "prefix for gfx942",
                // A name alone says nothing.
                "cp silent/libamdhip64-3c8cbb0f.so.7.14.60850 wheel.libs",
                "prefix for gfx942",
            ],
        ),
        (
            "ROCm's does not look beside links",
            &[""],
            |tree, _| {
                new_runtime(tree);
                linked(tree);
            },
            &["linked for gfx942", "cp kpack/librocm_kpack.so.0 rocm", "linked for gfx942"],
        ),
        (
            "ROCm's does not read the archive names of Windows",
            &[""],
            |tree, _| {
                new_runtime(tree);
                split(&library(tree, &["gfx90a:xnack-"]), tree, "prefix");
            },
            &[
                "cd prefix/lib/.kpack; mv vec_lib_gfx90a:xnack-.kpack vec_lib_gfx90a-xnack-.kpack",
                "prefix for gfx90a:xnack-",
                "cp kpack/librocm_kpack.so.0 rocm",
                "prefix for gfx90a:xnack-",
            ],
        ),
        // Since August 2026, ROCm's loader goes on, and the name of a HIP runtime does not always say how old it is.
        (
            "ROCm's stops at an archive without the kernel",
            &[
                "libamdhip64.so.7.13.60000",
                "libamdhip64.so.7.14.60850",
                "libamdhip64.so.7",
                "libamdhip64.so.10.1.80000",
            ],
            variants,
            &[
                "prefix for gfx90a",
                "cp kpack/librocm_kpack.so.0 rocm",
                "prefix for gfx90a",
                // With complete archives, both find it.
                "complete for gfx90a",
                "cp reading/librocm_kpack.so.0 rocm",
                "complete for gfx90a",
            ],
        ),
    ];
    with_filters(|| assert_snapshot!(found(rows, &machine())));
}

/// A library whose second wrapper has code for one of two variants of a GPU, split in two ways, and a HIP runtime with this
/// name.
fn variants(tree: &Tree, runtime: &str) {
    let hip = format!("rocm/{runtime}");
    reading_runtime(tree, &hip, LOADER);
    let library = FatLibrary::new()
        .wrapper(Storage::Plain, ["gfx90a:xnack-", "gfx90a"].map(|target| code(target, 1)))
        .wrapper(Storage::Plain, [code("gfx90a", 1)])
        .linked_with(tree.path(&hip), RUNTIME);
    split(&library, tree, "prefix");
    library.build(&tree.path("complete/lib/libvec.so")).unwrap();
    let mut complete = InstallOptions::new(tree.path("complete"), "vec", ["lib/libvec.so"]);
    complete.storage.complete_variants = true;
    install(&complete, &()).unwrap();
}

/// The system has only these files.
fn system(tree: &Tree, files: &[&str]) {
    new_runtime(tree);
    fs::remove_dir_all(tree.path("system")).unwrap();
    fs::create_dir(tree.path("system")).unwrap();
    for file in files {
        let text = if file.ends_with("vendor") { "0x1002\n" } else { "0x030000\n" };
        tree.write(&format!("system/{file}"), text);
    }
}

#[test]
fn code_for_the_gpu() {
    let rows: &[Row] = &[
        (
            "an archive that is missing, damaged or stale",
            &[""],
            |tree, _| {
                new_runtime(tree);
                let other = FatLibrary::new().wrapper(Storage::Plain, [code("gfx942", 2)]);
                split(&other, tree, "other");
                tree.copy_file(ARCHIVE, "sound.kpack");
            },
            &[
                "rm prefix/lib/.kpack/vec_lib_gfx942.kpack",
                "prefix for gfx942",
                "prefix for gfx1030",
                "head -c 100 sound.kpack > prefix/lib/.kpack/vec_lib_gfx942.kpack",
                "prefix for gfx942",
                "cp other/lib/.kpack/vec_lib_gfx942.kpack prefix/lib/.kpack",
                "prefix for gfx942",
            ],
        ),
        (
            "a GPU that nothing was built for",
            &[""],
            |tree, _| {
                new_runtime(tree);
                library(tree, &["gfx1030"]).build(&tree.path("fat/lib/libfat.so")).unwrap();
                for generic in ["gfx11-generic", "gfx9-generic"] {
                    // No HIP runtime takes the one for the other.
                    let payload = if generic == "gfx11-generic" { "gfx1100" } else { "gfx942" };
                    let (_, payload) = code(payload, 1);
                    let library = FatLibrary::new().wrapper(Storage::Plain, [(generic, payload)]);
                    library.build(&tree.path(&format!("fat/lib/lib{generic}.so"))).unwrap();
                }
            },
            &[
                "prefix for gfx1100",
                "fat/lib/libfat.so for gfx1100",
                "fat/lib/libgfx11-generic.so for gfx1100",
                "fat/lib/libgfx9-generic.so for gfx942",
            ],
        ),
        (
            "a kernel database without files for the GPU or its families; a family's files are for each of its processors",
            &[""],
            |tree, _| {
                new_runtime(tree);
                for target in ["gfx90a", "gfx110x"] {
                    let directory = format!("prefix/lib/aotriton.images/amd-{target}");
                    tree.write(&format!("{directory}/flash/fwd.aks2"), "kernels");
                }
            },
            &[
                "prefix for gfx90a:xnack+",
                "prefix for gfx1101",
                "prefix for gfx1151",
                "cp -r prefix/lib/aotriton.images/amd-gfx110x prefix/lib/aotriton.images/amd-gfx11xx",
                "prefix for gfx1151",
            ],
        ),
        (
            "a kernel database with a version in its path, as Debian's, where an empty directory has no files",
            &[""],
            |tree, _| database(tree, "rocblas/2.47.0/library"),
            &["blas for gfx1030", "blas for gfx942"],
        ),
        (
            "a kernel database with a directory for each target",
            &[""],
            |tree, _| database(tree, "rocblas/library/all"),
            &["blas for gfx1030", "blas for gfx942"],
        ),
    ];
    with_filters(|| assert_snapshot!(found(rows, &machine())));
}

/// rocBLAS with a database at this place.
fn database(tree: &Tree, place: &str) {
    new_runtime(tree);
    tree.copy_file("fat/lib/libvec.so", "blas/lib/librocblas.so");
    for target in ["gfx942", "gfx90a"] {
        tree.write(&format!("blas/lib/{place}/{target}/TensileLibrary.dat"), "kernels");
    }
    fs::create_dir(tree.path(&format!("blas/lib/{place}/gfx1030"))).unwrap();
}

#[test]
fn machines() {
    let original = machine();
    original.write("system/dev/kfd", "");
    let rows: &[Row] = &[
        (
            "one GPU of several is enough; a processor with graphics is no fault",
            &[""],
            |tree, _| new_runtime(tree),
            &["on cpu gfx942 gfx942", "on gfx942 gfx1036", "on gfx1036", "on "],
        ),
        (
            "join is advised for all GPUs of the machine",
            &[""],
            |tree, _| join_for(tree, vec!["gfx1030".parse().unwrap()]),
            &["on gfx1030 gfx942", "join", "on gfx1030 gfx942"],
        ),
        (
            "join is advised only if it would help",
            &[""],
            |_, _| {},
            &[
                // Nobody can tell which GPU it is.
                "on ",
                // Nothing was built for it.
                "on gfx1036",
                // Its archive is not installed.
                "rm prefix/lib/.kpack/vec_lib_gfx942.kpack",
                "on gfx942",
                // A joined binary is not helped either.
                "on gfx1030",
                "join",
                "on gfx1030 gfx942",
                // Nor where no archive ever had code.
                "on gfx1030 gfx1036",
            ],
        ),
        (
            "join is not advised for objects that were split before the link, since they have no room for device code",
            &[""],
            |tree, _| {
                let object = FatLibrary::new().kind(Kind::Object);
                let object =
                    object.wrapper(Storage::Plain, ["gfx942", "gfx1030"].map(|t| code(t, 1)));
                object.build(&tree.path("vec.o")).unwrap();
                let output = tree.path("build");
                let mut options = object_file::Options::new("vec", &output, [tree.path("vec.o")]);
                let pattern = output.join(".kpack/vec_lib_@GFXARCH@.kpack");
                options.search_paths = vec![pattern.to_str().unwrap().to_owned()];
                object_file::split(&options, &()).unwrap();
                let mut cc = Command::new("cc");
                cc.args(["-shared", "-Wl,--no-as-needed,-rpath,$ORIGIN/../../rocm"]);
                cc.arg(output.join("vec.o")).arg(tree.path(HIP));
                run(cc.arg("-o").arg(tree.path(LIBRARY)));
            },
            &["on gfx942", "on gfx942 gfx1030", "on gfx1036", "on "],
        ),
        (
            "with ROCm 5, one GPU without code disables all",
            &[""],
            |tree, _| {
                stub(tree, "rocm/libamdhip64.so.5");
                split_for_two(tree, "libamdhip64.so.5");
                join_for(tree, vec!["gfx1030".parse().unwrap()]);
            },
            &["on gfx942 gfx1030", "on gfx1030 gfx1036", "on gfx1030"],
        ),
        (
            "two kinds of GPUs, and a runtime that asks once",
            &["libamdhip64.so.7.14.60850"],
            asks_once,
            &["on gfx942 gfx1030", "on gfx942 gfx942"],
        ),
        (
            "two kinds of GPUs, and a runtime that may ask once",
            &["libamdhip64.so.7", "libamdhip64.so.10", "libamdhip64.so.10.1.80000"],
            asks_once,
            &["on gfx942 gfx1030", "on gfx942 gfx942"],
        ),
        ("no GPU", &[""], |tree, _| system(tree, &[]), &["on -"]),
        (
            "no driver",
            &[""],
            |tree, _| {
                let device = "sys/bus/pci/devices/0000:03:00.0";
                system(tree, &[&format!("{device}/vendor"), &format!("{device}/class")]);
            },
            &["on -"],
        ),
        ("no GPU in KFD", &[""], |tree, _| system(tree, &["dev/kfd"]), &["on "]),
        ("no device", &[""], |tree, _| system(tree, &[]), &["on gfx942"]),
        (
            "no device in a container of Docker",
            &[""],
            |tree, _| system(tree, &[".dockerenv"]),
            &["on gfx942"],
        ),
        (
            "no driver in a container",
            &[""],
            |tree, _| system(tree, &["run/.containerenv"]),
            &["on -"],
        ),
        ("WSL", &[""], |tree, _| system(tree, &["dev/dxg"]), &["on -"]),
    ];
    with_filters(|| assert_snapshot!(found(rows, &original)));
}

#[test]
fn the_gpus_of_a_machine_as_scripts_need_them() {
    let tree = Tree::new();
    let mut options = Options::default();
    options.nodes = tree.path("nodes");
    assert_eq!(processors(&options).unwrap_err().id(), ids::NO_GPU);
    write_nodes(&tree, "gfx942 gfx1030 gfx942");
    assert_eq!(processors(&options).unwrap(), ["gfx942", "gfx1030"]);
}

/// Without ROCm on this machine, there is nothing else to examine; with it, the GPU is missing all the same.
#[test]
fn a_gpu_that_no_program_reaches_is_found_without_a_library() {
    let tree = Tree::new();
    fs::create_dir(tree.path("system")).unwrap();
    write_nodes(&tree, "gfx942");
    let mut options = Options::default();
    (options.system, options.nodes) = (tree.path("system"), tree.path("nodes"));
    let report = examine(&[], &options).unwrap();
    assert_eq!(report.loads, Some(false), "{report:?}");
    assert!(report.verdict.starts_with("GPU code will not load"), "{report:?}");
    assert_eq!(report.cause().unwrap().finding.id, ids::NO_DEVICE_ACCESS);
}
