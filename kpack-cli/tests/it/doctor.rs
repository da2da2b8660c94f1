//! Given programs and libraries on a machine, when the doctor examines them, then it says why their kernels
//! do not load there, and what to do. The libraries are real; HIP runtimes and loaders are libraries without
//! code that import and export what real ones do.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use crate::command::{NOBODY, command, for_every_user, kpack, said};
use insta::assert_snapshot;
use kpack_artifact::verify::{self, verify};
use kpack_build::object_file;
use kpack_cli::doctor::{Options, examine, processors};
use kpack_core::{Finding, Severity, ids};
use kpack_format::marker::Marker;
use kpack_split::install::{InstallOptions, install};
use kpack_split::join::{JoinOptions, join};
use kpack_tests::bytes;
use kpack_tests::fixture::{FatLibrary, Kind, Storage, code_object, stub_library};
use kpack_tests::process::run;
use kpack_tests::require;
use kpack_tests::tree::{Tree, write};

const HIP: &str = "rocm/libamdhip64.so.6";
const LOADER: &str = "rocm/librocm_kpack.so.0";

/// A library without code.
fn stub(tree: &Tree, path: &str) {
    stub_library(&tree.path(path), "", &[]);
}

/// A HIP runtime that does not read markers.
fn old_runtime(tree: &Tree) {
    stub(tree, HIP);
}

/// A HIP runtime that reads markers.
fn new_runtime(tree: &Tree) {
    reading_runtime(tree, HIP, LOADER);
}

/// A HIP runtime that calls ROCm's loader.
fn reading_runtime(tree: &Tree, path: &str, loader: &str) {
    stub_library(&tree.path(loader), "int kpack_load_code_object(void) { return 1; }", &[]);
    let code = "int kpack_load_code_object(void);\n\
                int (*loads)(void) = kpack_load_code_object;";
    stub_library(&tree.path(path), code, &[&tree.path(loader)]);
}

/// kpack's loader, by its note.
fn kpack_loader(tree: &Tree, path: &str) {
    let note = note(".note.kpack_loader", 2);
    let code = format!("int kpack_load_code_object(void) {{ return 1; }}\n__asm__({note:?});");
    stub_library(&tree.path(path), &code, &[]);
}

/// A note as kpack's libraries have it.
fn note(section: &str, kind: u32) -> String {
    format!(
        ".section {section},\"a\",@note\n.long 6, 0, {kind}\n.asciz \"kpack\"\n.zero 2\n.previous\n"
    )
}

/// A library with code for these targets, which is linked with the HIP runtime.
fn library(tree: &Tree, targets: &[&str]) -> FatLibrary {
    let code = |target: &&str| {
        let payload = vec![1; 40 << 10];
        ((*target).to_owned(), code_object(target, &payload).unwrap())
    };
    let library = FatLibrary::new().wrapper(Storage::Plain, targets.iter().map(code));
    linked_with(library, tree, HIP)
}

fn linked_with(library: FatLibrary, tree: &Tree, path: &str) -> FatLibrary {
    let path = tree.path(path);
    let directory = path.parent().unwrap().display();
    library.flag(format!("-Wl,--no-as-needed,-rpath,{directory}")).flag(&path)
}

/// A prefix with a split library for gfx1030 and gfx942.
fn split(tree: &Tree) {
    let library = library(tree, &["gfx1030", "gfx942"]);
    library.build(&tree.path("prefix/lib/libvec.so")).unwrap();
    let mut options = InstallOptions::new(tree.path("prefix"), "vec", ["lib/libvec.so"]);
    options.install_hint = Some("apt install vec-@GFXARCH@".to_owned());
    install(&options, &()).unwrap();
}

/// What the doctor finds for a GPU.
fn findings(tree: &Tree, path: &str, gpu: &str) -> Vec<Finding> {
    let mut options = Options::default();
    options.targets = vec![gpu.parse().unwrap()];
    examined(&[tree.path(path)], &options)
}

fn examined(paths: &[PathBuf], options: &Options) -> Vec<Finding> {
    let report = examine(paths, options).unwrap();
    report.findings.into_iter().map(|found| found.finding).collect()
}

/// The faults and notes, with advice, with the tree as `/tree`.
fn troubles(findings: &[Finding], tree: &Tree) -> Vec<String> {
    let troubles = findings.iter().filter(|finding| finding.severity != Severity::Ok);
    let line = |finding: &Finding| {
        let path = finding.path.as_ref().map(|path| path.display().to_string());
        let advice = finding.help.as_deref().unwrap_or("nothing");
        let path = path.unwrap_or_default();
        let (severity, id) = (finding.severity, finding.id);
        let line = format!("{severity:?} [{id}] {path}: {}; {advice}", finding.text);
        line.replace(tree.root().to_str().unwrap(), "/tree")
    };
    troubles.map(line).collect()
}

/// The troubles with the split library for a GPU.
fn of_library(tree: &Tree, gpu: &str) -> Vec<String> {
    troubles(&findings(tree, "prefix/lib/libvec.so", gpu), tree)
}

#[test]
fn a_runtime_that_reads_markers_and_code_for_the_gpu() {
    let tree = Tree::new();
    new_runtime(&tree);
    split(&tree);
    for path in ["prefix", "prefix/lib/libvec.so"] {
        let findings = findings(&tree, path, "gfx942");
        assert_eq!(troubles(&findings, &tree), [""; 0]);
        assert_eq!(findings.len(), 2, "{findings:?}");
    }
}

#[test]
fn what_it_advises_for_an_old_runtime_mends_it() {
    let tree = Tree::new();
    old_runtime(&tree);
    split(&tree);
    let before = tree.snapshot_with_times();
    let first = said(&tree, &["doctor", "prefix", "--arch", "gfx1030", "-v"]);
    assert_eq!(tree.snapshot_with_times(), before);
    let findings = findings(&tree, "prefix", "gfx1030");
    let advice = findings.iter().find_map(|finding| finding.help.clone());
    let join = advice.unwrap().replace("run `", "").replace('`', "");
    let kpack = env!("CARGO_BIN_EXE_kpack");
    run(Command::new("sh").arg("-c").arg(join.replacen("kpack", kpack, 1)));
    let second = said(&tree, &["doctor", "prefix", "--arch", "gfx1030", "-v"]);
    assert_snapshot!(format!("{first}\n{second}"));
}

#[test]
fn one_command_for_all_binaries_of_a_prefix() {
    let tree = Tree::new();
    old_runtime(&tree);
    for name in ["lib/libone.so", "lib/libtwo.so", "lib/libfat.so"] {
        let library = library(&tree, &["gfx1030", "gfx942"]);
        library.build(&tree.path("prefix").join(name)).unwrap();
    }
    let files = ["lib/libone.so", "lib/libtwo.so"];
    install(&InstallOptions::new(tree.path("prefix"), "vec", files), &()).unwrap();
    let found = troubles(&findings(&tree, "prefix", "gfx942"), &tree);
    assert_eq!(
        found,
        [
            "Fault [runtime-ignores-markers] /tree/rocm/libamdhip64.so.6: this HIP runtime does not read markers: it finds no code \
             for /tree/prefix/lib/libone.so, /tree/prefix/lib/libtwo.so; run `kpack join --prefix \
             /tree/prefix --arch gfx942 lib/libone.so lib/libtwo.so`"
        ]
    );
}

#[test]
fn a_program_is_examined_with_the_libraries_that_it_loads() {
    let tree = Tree::new();
    old_runtime(&tree);
    split(&tree);
    let program = FatLibrary::new().kind(Kind::Pie);
    let program = linked_with(program, &tree, "prefix/lib/libvec.so");
    program.build(&tree.path("bin/app")).unwrap();
    let found = troubles(&findings(&tree, "bin/app", "gfx942"), &tree);
    assert_eq!(found.len(), 1, "{found:?}");
    let join = "run `kpack join --prefix /tree/prefix --arch gfx942 lib/libvec.so`";
    let app = "no code for /tree/prefix/lib/libvec.so, which /tree/bin/app loads";
    for part in [app, join] {
        assert!(found[0].contains(part), "{found:?}");
    }
}

#[test]
fn a_command_for_each_prefix_of_a_program() {
    let tree = Tree::new();
    old_runtime(&tree);
    split(&tree);
    let other = library(&tree, &["gfx942", "gfx1030"]);
    other.build(&tree.path("a b/lib/libtwo.so")).unwrap();
    let two = InstallOptions::new(tree.path("a b"), "two", ["lib/libtwo.so"]);
    install(&two, &()).unwrap();
    let program = FatLibrary::new().kind(Kind::Pie);
    let program = linked_with(program, &tree, "prefix/lib/libvec.so");
    let program = linked_with(program, &tree, "a b/lib/libtwo.so");
    program.build(&tree.path("bin/app")).unwrap();
    let found = troubles(&findings(&tree, "bin/app", "gfx942"), &tree);
    assert_eq!(found.len(), 2, "{found:?}");
    let joins = [
        "run `kpack join --prefix /tree/prefix --arch gfx942 lib/libvec.so`",
        "run `kpack join --prefix '/tree/a b' --arch gfx942 lib/libtwo.so`",
    ];
    for (found, join) in found.iter().zip(joins) {
        assert!(found.ends_with(join), "{found}");
    }
}

#[test]
fn a_binary_that_cannot_be_joined() {
    let tree = Tree::new();
    old_runtime(&tree);
    let payload = code_object("gfx942", &[2; 9000]).unwrap();
    let library = library(&tree, &["gfx1030", "gfx942"]);
    let library = library.wrapper(Storage::Plain, [("gfx942", payload)]);
    let path = tree.path("prefix/lib/libvec.so");
    library.build(&path).unwrap();
    install(&InstallOptions::new(tree.path("prefix"), "vec", ["lib/libvec.so"]), &()).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let wrapper = bytes::position(&bytes, b"HIPK");
    bytes[wrapper + 16] = 1;
    fs::write(&path, &bytes).unwrap();
    let found = of_library(&tree, "gfx942");
    assert_eq!(found.len(), 1, "{found:?}");
    for part in [
        "set LD_PRELOAD to libkpack_hip.so",
        "`kpack join` refuses",
        "wrapper 0 has code object index 1",
    ] {
        assert!(found[0].contains(part), "{found:?}");
    }
}

#[test]
fn a_runtime_or_a_loader_that_is_not_there() {
    let tree = Tree::new();
    new_runtime(&tree);
    split(&tree);
    fs::remove_file(tree.path(LOADER)).unwrap();
    let found = of_library(&tree, "gfx942");
    assert!(
        found[0].contains("[missing-library]")
            && found[0].contains("needs librocm_kpack.so.0, which was not found"),
        "{found:?}"
    );
    assert!(found[0].contains("install the loader (`librocm-kpack0`)"), "{found:?}");
    fs::remove_file(tree.path(HIP)).unwrap();
    let found = of_library(&tree, "gfx942");
    assert!(found[0].contains("needs libamdhip64.so.6, which was not found"), "{found:?}");
    assert_eq!(found.len(), 1, "{found:?}");
}

#[test]
fn a_library_that_leaves_the_runtime_to_its_program() {
    let tree = Tree::new();
    let plain = FatLibrary::new()
        .wrapper(Storage::Plain, [("gfx942", code_object("gfx942", &[1; 9000]).unwrap())]);
    plain.build(&tree.path("prefix/lib/libvec.so")).unwrap();
    install(&InstallOptions::new(tree.path("prefix"), "vec", ["lib/libvec.so"]), &()).unwrap();
    let found = of_library(&tree, "gfx942");
    assert_eq!(
        found,
        [
            "Note [unknown-runtime] : /tree/prefix/lib/libvec.so needs no HIP runtime itself; run `kpack doctor` for the \
             program, library or module that needs one"
        ]
    );
}

#[test]
fn an_archive_that_is_missing_stale_or_damaged() {
    let tree = Tree::new();
    new_runtime(&tree);
    split(&tree);
    let archive = tree.path("prefix/lib/.kpack/vec_lib_gfx942.kpack");
    let bytes = fs::read(&archive).unwrap();

    fs::remove_file(&archive).unwrap();
    assert_eq!(
        of_library(&tree, "gfx942"),
        [
            "Fault [missing-archive] /tree/prefix/lib/libvec.so: split, but the archive for gfx942 is missing: \
             `/tree/prefix/lib/.kpack/vec_lib_gfx942.kpack`; install the package that contains it"
        ]
    );
    assert_eq!(of_library(&tree, "gfx1030"), [""; 0]);

    fs::write(&archive, &bytes[..100]).unwrap();
    let found = of_library(&tree, "gfx942");
    assert!(found[0].contains("vec_lib_gfx942.kpack is damaged"), "{found:?}");
    assert!(found[0].contains("install that archive again"), "{found:?}");

    let other = Tree::new();
    new_runtime(&other);
    let payload = code_object("gfx942", &[2; 9000]).unwrap();
    let library = FatLibrary::new().wrapper(Storage::Plain, [("gfx942", payload)]);
    library.build(&other.path("prefix/lib/libvec.so")).unwrap();
    install(&InstallOptions::new(other.path("prefix"), "vec", ["lib/libvec.so"]), &()).unwrap();
    fs::copy(other.path("prefix/lib/.kpack/vec_lib_gfx942.kpack"), &archive).unwrap();
    let found = of_library(&tree, "gfx942");
    assert!(found[0].contains("vec_lib_gfx942.kpack is made for another build of it"), "{found:?}");
}

/// A family's files are for each of its processors.
#[test]
fn a_kernel_database_without_files_for_the_gpu_or_its_families() {
    let tree = Tree::new();
    new_runtime(&tree);
    split(&tree);
    let images = |target: &str| {
        let directory = tree.path(&format!("prefix/lib/aotriton.images/amd-{target}/flash"));
        write(directory.join("fwd.aks2"), "kernels");
    };
    images("gfx90a");
    images("gfx110x");
    let said = |gpu: &str| {
        let found = findings(&tree, "prefix/lib/libvec.so", gpu);
        let mut texts = found.iter().filter(|finding| finding.id == ids::MISSING_TARGET);
        texts
            .find(|finding| finding.file().ends_with("aotriton.images"))
            .map(|found| found.text.clone())
    };
    assert_eq!(said("gfx90a:xnack+"), None);
    assert_eq!(said("gfx1101"), None);
    let lacks = "the kernel database aotriton has no files for gfx1151 or gfx115x or gfx11, only for gfx110x, gfx90a";
    assert_eq!(said("gfx1151").as_deref(), Some(lacks));
    images("gfx11xx");
    assert_eq!(said("gfx1151"), None);
}

/// Debian's have a version in their path, and newer ones a directory for each target. An empty one has no files.
#[test]
fn a_kernel_database_with_a_version_or_directories_of_targets() {
    for place in ["rocblas/2.47.0/library", "rocblas/library/all"] {
        let tree = Tree::new();
        new_runtime(&tree);
        let built = library(&tree, &["gfx1030", "gfx942"]);
        built.build(&tree.path("prefix/lib/librocblas.so")).unwrap();
        for target in ["gfx942", "gfx90a"] {
            write(tree.path(&format!("prefix/lib/{place}/{target}/TensileLibrary.dat")), "kernels");
        }
        fs::create_dir(tree.path(&format!("prefix/lib/{place}/gfx1030"))).unwrap();
        let said = |gpu: &str| {
            let found = findings(&tree, "prefix/lib/librocblas.so", gpu).into_iter();
            Vec::from_iter(found.map(|f| f.text).filter(|text| text.contains("kernel database")))
        };
        let lacks = said("gfx1030");
        assert!(
            matches!(lacks.as_slice(), [one] if one.ends_with(", only for gfx90a, gfx942")),
            "{place}: {lacks:?}"
        );
        assert_eq!(said("gfx942"), [""; 0], "{place}");
    }
}

/// Given a database that this user may not list, then the doctor names it, examines all else, and does not say that code
/// loads.
#[test]
fn a_kernel_database_that_cannot_be_listed_is_named() {
    use std::os::unix::process::CommandExt;
    let tree = Tree::new();
    new_runtime(&tree);
    split(&tree);
    let directory = |target: &str| tree.path(&format!("prefix/lib/aotriton.images/amd-{target}"));
    for target in ["gfx90a", "gfx942"] {
        write(directory(target).join("flash/fwd.aks2"), "kernels");
    }
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(tree.root(), open.clone()).unwrap();
    let closed = directory("gfx90a");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    let (kpack, _directory) = for_every_user();
    let mut command = Command::new(kpack);
    command.current_dir(tree.root()).args(["doctor", "prefix/lib/libvec.so", "--arch", "gfx942"]);
    let output = command.uid(NOBODY).gid(NOBODY).output();
    fs::set_permissions(&closed, open).unwrap();
    // Only root may become another user.
    let Ok(output) = output else { return };
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    let named = "prefix/lib/aotriton.images/amd-gfx90a: Permission denied";
    assert!(
        said.contains(named) && said.contains("which GPUs the kernel database has files"),
        "{said}"
    );
    assert!(said.contains("cannot tell whether GPU code will load"), "{said}");
    assert!(!said.contains("has no files for"), "{said}");
}

#[test]
fn a_gpu_that_nothing_was_built_for() {
    let tree = Tree::new();
    new_runtime(&tree);
    split(&tree);
    assert_eq!(
        of_library(&tree, "gfx1100"),
        [
            "Fault [missing-target] /tree/prefix/lib/libvec.so: split, without code for gfx1100: only for gfx1030, gfx942; \
             install a build with code for gfx1100"
        ]
    );
    library(&tree, &["gfx1030"]).build(&tree.path("fat.so")).unwrap();
    let found = troubles(&findings(&tree, "fat.so", "gfx1100"), &tree);
    assert!(
        found[0].contains("not split, without code for gfx1100: only for gfx1030"),
        "{found:?}"
    );
    let payload = code_object("gfx1100", &[1; 9000]).unwrap();
    let generic = FatLibrary::new().wrapper(Storage::Plain, [("gfx11-generic", payload)]);
    generic.build(&tree.path("fat.so")).unwrap();
    let found = troubles(&findings(&tree, "fat.so", "gfx1100"), &tree);
    assert!(found[0].starts_with("Note"), "{found:?}");
    assert!(
        found[0].contains("[generic-code]")
            && found[0].contains("HIP runtimes accept its code for gfx11-generic from ROCm 6.4 on"),
        "{found:?}"
    );
    let payload = code_object("gfx942", &[1; 9000]).unwrap();
    let generic = FatLibrary::new().wrapper(Storage::Plain, [("gfx9-generic", payload)]);
    generic.build(&tree.path("fat.so")).unwrap();
    let found = troubles(&findings(&tree, "fat.so", "gfx942"), &tree);
    assert!(
        found[0]
            .contains("only for gfx9-generic (HIP runtimes do not take gfx9-generic for gfx942)"),
        "{found:?}"
    );
}

#[test]
fn a_binary_that_was_joined_for_another_gpu() {
    let tree = Tree::new();
    old_runtime(&tree);
    split(&tree);
    let options =
        JoinOptions::new(tree.path("prefix"), ["gfx942".parse().unwrap()], ["lib/libvec.so"]);
    join(&options, &()).unwrap();
    assert_eq!(of_library(&tree, "gfx942"), [""; 0]);
    assert_eq!(
        of_library(&tree, "gfx1030"),
        [
            "Fault [missing-target] /tree/prefix/lib/libvec.so: joined, without code for gfx1030: only for gfx942; run \
             `kpack join --prefix /tree/prefix --arch gfx1030 lib/libvec.so`"
        ]
    );
}

#[test]
fn the_gpus_that_the_kernel_names() {
    let tree = Tree::new();
    new_runtime(&tree);
    split(&tree);
    tree.write("system/dev/kfd", "");
    let examined = |nodes: &[&str]| {
        let _ = fs::remove_dir_all(tree.path("nodes"));
        for (number, properties) in nodes.iter().enumerate() {
            let node = tree.path(&format!("nodes/{number}"));
            write(node.join("properties"), properties);
        }
        let mut options = Options::default();
        options.nodes = tree.path("nodes");
        options.system = tree.path("system");
        let report = examine(&[tree.path("prefix")], &options).unwrap();
        let findings: Vec<Finding> =
            report.findings.iter().map(|found| found.finding.clone()).collect();
        let first = findings[0].text.clone();
        let id = if first.contains("gfx") { ids::GPUS } else { ids::NO_GPU };
        assert_eq!(findings[0].id, id, "{first}");
        (first, report.faults(), troubles(&findings, &tree))
    };
    let gfx942 = "simd_count 1216\ngfx_target_version 90402\n";
    let gfx1036 = "simd_count 4\ngfx_target_version 100306\n";

    let (machine, faults, _) = examined(&["simd_count 0\n", gfx942, gfx942]);
    assert_eq!((machine.as_str(), faults), ("this machine has gfx942", 0));
    // One GPU of several is enough; a processor with graphics is no fault.
    let (_, faults, found) = examined(&[gfx942, gfx1036]);
    assert_eq!(faults, 0, "{found:?}");
    assert!(found[0].contains("without code for gfx1036"), "{found:?}");
    let (_, faults, _) = examined(&[gfx1036]);
    assert_eq!(faults, 1);
    let (_, faults, found) = examined(&[]);
    assert_eq!(faults, 1);
    assert!(found[0].contains("cannot detect") && found[0].contains("--arch"), "{found:?}");
}

#[test]
fn what_the_environment_chooses_counts_unless_the_program_has_raised_privileges() {
    let tree = Tree::new();
    new_runtime(&tree);
    split(&tree);
    stub(&tree, "old/libamdhip64.so.6");
    let program = FatLibrary::new().kind(Kind::Pie);
    // As the search path of a program that is set here, DT_RUNPATH comes after LD_LIBRARY_PATH.
    let program = linked_with(program, &tree, "prefix/lib/libvec.so");
    let program = linked_with(program.flag("-Wl,--enable-new-dtags"), &tree, HIP);
    program.build(&tree.path("app")).unwrap();
    let code = || {
        let mut doctor = command(&tree, &["doctor", "app", "--arch", "gfx942", "--quiet"]);
        let output = doctor.env("LD_LIBRARY_PATH", tree.path("old")).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        (output.status.code().unwrap(), said)
    };
    let (exit, said) = code();
    assert_eq!(exit, 1, "{said}");
    assert!(said.contains("old/libamdhip64.so.6"), "{said}");
    fs::set_permissions(tree.path("app"), fs::Permissions::from_mode(0o4755)).unwrap();
    assert_eq!(code(), (0, String::new()));
}

#[test]
fn a_preloaded_shim_serves_an_old_runtime() {
    let tree = Tree::new();
    old_runtime(&tree);
    stub(&tree, "kpack/libkpack_hip.so");
    split(&tree);
    let mut doctor = command(&tree, &["doctor", "prefix", "--arch", "gfx942", "-v"]);
    let shim = tree.path("kpack/libkpack_hip.so");
    let output = doctor.env("LD_PRELOAD", &shim).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let finds = format!("{} finds the code for it", shim.display());
    assert!(said.contains(&finds), "{said}");

    let mut doctor = command(&tree, &["doctor", "prefix", "--arch", "gfx942", "--json"]);
    let output = doctor.env("LD_PRELOAD", &shim).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let id = |id: kpack_core::Id| said.contains(&format!("\"id\": \"{id}\""));
    assert!(id(ids::MARKERS_NOT_NEEDED) && !id(ids::RUNTIME_READS_MARKERS), "{said}");
}

#[test]
fn a_linked_shim_serves_every_runtime() {
    let tree = Tree::new();
    old_runtime(&tree);
    // What kpack-hip/link has as well.
    fs::write(tree.path("note.s"), note(".note.kpack_hip", 1)).unwrap();
    let library = library(&tree, &["gfx942"]).flag(tree.path("note.s"));
    library.build(&tree.path("prefix/lib/libvec.so")).unwrap();
    install(&InstallOptions::new(tree.path("prefix"), "vec", ["lib/libvec.so"]), &()).unwrap();
    let linked = "split, linked with the shim, with code for gfx942";
    let found = findings(&tree, "prefix", "gfx942");
    assert_eq!(troubles(&found, &tree), [""; 0]);
    assert_eq!(found[0].text, linked);
}

/// As `RUNTIME_SHIM shared` links it, and as tools vendor it into a wheel.
#[test]
fn a_shared_shim_that_is_linked_serves_every_runtime() {
    for shim in ["libkpack_hip.so.0", "libkpack_hip-1a2b3c4d.so.0"] {
        let tree = Tree::new();
        old_runtime(&tree);
        let shim = format!("prefix/lib/{shim}");
        stub(&tree, &shim);
        let library = library(&tree, &["gfx942"]);
        let library = library.flag("-Wl,--no-as-needed,-rpath,$ORIGIN").flag(tree.path(&shim));
        library.build(&tree.path("prefix/lib/libvec.so")).unwrap();
        install(&InstallOptions::new(tree.path("prefix"), "vec", ["lib/libvec.so"]), &()).unwrap();
        let found = findings(&tree, "prefix", "gfx942");
        assert_eq!(troubles(&found, &tree), [""; 0]);
        assert!(found[0].text.starts_with("split, linked with the shim"), "{found:?}");
    }
}

#[test]
fn a_binary_of_another_machine() {
    for machine in ["aarch64", "powerpc64le"] {
        let compiler = format!("{machine}-linux-gnu-gcc");
        if !require::tool(&compiler) {
            continue;
        }
        let tree = Tree::new();
        let payload = code_object("gfx942", &[1; 9000]).unwrap();
        let library = FatLibrary::new().compiler(&compiler);
        let library = library.wrapper(Storage::Plain, [("gfx942", payload)]);
        library.build(&tree.path("prefix/lib/libvec.so")).unwrap();
        install(&InstallOptions::new(tree.path("prefix"), "vec", ["lib/libvec.so"]), &()).unwrap();
        let found = of_library(&tree, "gfx942");
        assert_eq!(found.len(), 1, "{found:?}");
        let text = format!("is unknown: it is for another machine ({machine}");
        assert!(found[0].contains(&text), "{found:?}");
    }
}

#[test]
fn no_code_of_the_file_runs() {
    let tree = Tree::new();
    let source = r#"
        #include <fcntl.h>
        static void ran(void) { open(RAN, O_CREAT | O_WRONLY, 0600); }
        __attribute__((constructor)) static void construct(void) { ran(); }
        static int one(void) { return 1; }
        static int (*resolve(void))(void) { ran(); return one; }
        __attribute__((ifunc("resolve"))) int indirect(void);
        int (*volatile called)(void) = indirect;
        int main(void) { ran(); return called(); }
    "#;
    fs::write(tree.path("evil.c"), source).unwrap();
    let build = |output: &str, flags: &[&str]| {
        let ran = format!("-DRAN=\"{}\"", tree.path("ran").display());
        let mut cc = Command::new("cc");
        cc.arg(tree.path("evil.c")).arg(ran).args(flags);
        run(cc.arg("-o").arg(tree.path(output)));
    };
    build("libevil.so", &["-shared", "-fPIC", "-Wl,-z,now"]);
    build("evil", &["-Wl,-z,now"]);
    let code = "#include <fcntl.h>\n\
                unsigned la_version(unsigned version) {\n\
                    open(RAN, O_CREAT | O_WRONLY, 0600);\n\
                    return version;\n\
                }\n";
    fs::write(tree.path("audit.c"), code).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC"]).arg(tree.path("audit.c"));
    cc.arg(format!("-DRAN=\"{}\"", tree.path("ran").display()));
    let audit = tree.path("libaudit.so");
    run(cc.arg("-o").arg(&audit));
    let audit = audit.display();
    build("audited", &[&format!("-Wl,--audit,{audit}")]);
    build("audited.so", &["-shared", "-fPIC", &format!("-Wl,--depaudit,{audit}")]);
    let interpreter = format!("-Wl,--dynamic-linker,{}", tree.path("evil").display());
    build("interpreted", &[&interpreter]);
    let mut cc = Command::new("cc");
    cc.args(["-static", "-nostdlib", "-xc", "/dev/null", "-o"]);
    run(cc.arg(tree.path("static")));
    decoy(&tree, "audited", "decoy");
    for (name, exit) in [
        ("libevil.so", 0),
        ("evil", 0),
        ("audited", 0),
        ("audited.so", 0),
        ("interpreted", 0),
        ("static", 0),
        ("decoy", 1),
    ] {
        let mut doctor = command(&tree, &["doctor", name, "--arch", "gfx942"]);
        // The dynamic linker relocates, and so resolves, with these.
        let doctor = doctor.env("LD_BIND_NOW", "1").env("LD_WARN", "1");
        assert_eq!(doctor.status().unwrap().code(), Some(exit), "{name}");
        assert!(!tree.path("ran").exists(), "{name}");
    }
    // They do run otherwise.
    for name in ["evil", "audited", "decoy"] {
        run(Command::new("sh").arg("-c").arg(format!("{} || true", tree.path(name).display())));
        fs::remove_file(tree.path("ran")).unwrap();
    }
}

/// Copies the program `from` to `to`. There, PT_DYNAMIC has the offset of a table without the audit
/// library; at its address, which the dynamic linker uses, is the true one.
fn decoy(tree: &Tree, from: &str, to: &str) {
    const PT_DYNAMIC: [u8; 4] = 2_u32.to_le_bytes();
    const DT_AUDIT: u64 = 0x6fff_fefc;
    let mut bytes = fs::read(tree.path(from)).unwrap();
    let number = |bytes: &[u8], at: usize| {
        usize::try_from(u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())).unwrap()
    };
    let headers = (number(&bytes, 32)..).step_by(56);
    let mut headers = headers.take(usize::from(bytes[56]));
    let header = headers.find(|at| bytes[*at..*at + 4] == PT_DYNAMIC).unwrap();
    let (start, size) = (number(&bytes, header + 8), number(&bytes, header + 32));
    let mut table = bytes[start..start + size].to_vec();
    for entry in table.chunks_exact_mut(16) {
        if entry.starts_with(&DT_AUDIT.to_le_bytes()) {
            // DT_DEBUG
            entry[..8].copy_from_slice(&21_u64.to_le_bytes());
        }
    }
    let offset = bytes.len() as u64;
    bytes[header + 8..header + 16].copy_from_slice(&offset.to_le_bytes());
    bytes.extend(table);
    fs::write(tree.path(to), bytes).unwrap();
    fs::set_permissions(tree.path(to), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_fifo_in_the_place_of_a_library() {
    let tree = Tree::new();
    new_runtime(&tree);
    split(&tree);
    let program = FatLibrary::new().kind(Kind::Pie);
    let program = program.flag("-Wl,--enable-new-dtags");
    let program = linked_with(program, &tree, HIP);
    program.build(&tree.path("app")).unwrap();
    fs::create_dir(tree.path("fifos")).unwrap();
    run(Command::new("mkfifo").arg(tree.path("fifos/libamdhip64.so.6")));
    let mut doctor = Command::new("timeout");
    doctor.args(["300", env!("CARGO_BIN_EXE_kpack"), "doctor", "app"]);
    doctor.args(["--arch", "gfx942", "--quiet"]);
    doctor.current_dir(tree.root());
    let output = doctor.env("LD_LIBRARY_PATH", tree.path("fifos")).output();
    let output = output.unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("fifos/libamdhip64.so.6: not a regular file"), "{said}");
}

#[test]
fn directories_with_any_name() {
    for name in ["a => b", "a\nb", "a (0x1) => not found", "\t=> "] {
        let tree = Tree::new();
        old_runtime(&tree);
        split(&tree);
        let program = FatLibrary::new().kind(Kind::Pie);
        let program = linked_with(program, &tree, "prefix/lib/libvec.so");
        let program = linked_with(program.flag("-Wl,--enable-new-dtags"), &tree, HIP);
        program.build(&tree.path("app")).unwrap();
        fs::rename(tree.path("rocm"), tree.path(name)).unwrap();
        let mut doctor = command(&tree, &["doctor", "app", "--arch", "gfx942", "--quiet"]);
        let doctor = doctor.env("LD_LIBRARY_PATH", tree.path(name));
        let output = doctor.output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        let path = format!("{}/libamdhip64.so.6", name.escape_debug());
        let finds = format!("{path}: this HIP runtime does not read markers");
        assert!(said.contains(&finds), "{said}");
    }
}

#[test]
fn a_library_that_names_more_than_can_be_searched() {
    let tree = Tree::new();
    stub(&tree, "libone.so");
    let many = Vec::from_iter((0..3000).map(|number| format!("/no/such/{number}")));
    let flag = format!("-Wl,-rpath,{}", many.join(":"));
    let needed = (0..60).map(|number| {
        let name = format!("libneeded{number}.so");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-nostdlib", "-xc", "/dev/null", "-o"]);
        run(cc.arg(tree.path(&name)));
        name
    });
    let needed = Vec::from_iter(needed);
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-nostdlib", "-xc", "/dev/null", "-xnone"]);
    cc.args([&flag, "-Wl,--no-as-needed", "-L."]);
    cc.args(&needed).current_dir(tree.root());
    run(cc.args(["-o", "libmany.so"]));
    let said = said(&tree, &["doctor", "libmany.so", "--arch", "gfx942", "-v"]);
    assert!(
        said.contains("is unknown: more than 100000 files would have to be looked for"),
        "{said}"
    );
}

#[test]
fn other_files_and_options() {
    let tree = Tree::new();
    old_runtime(&tree);
    split(&tree);
    fs::write(tree.path("text"), "text").unwrap();
    FatLibrary::new().build(&tree.path("plain.so")).unwrap();
    fs::create_dir(tree.path("empty")).unwrap();
    let calls: [&[&str]; 9] = [
        &["doctor", "prefix", "--arch", "gfx942"],
        &["doctor", "prefix", "--arch", "gfx942", "--fix"],
        &["doctor", "text"],
        &["doctor", "nowhere"],
        &["doctor", "empty"],
        &["doctor", "rocm/libamdhip64.so.6", "--arch", "gfx942", "-v"],
        &["doctor", "prefix/lib/.kpack/vec_lib.kpm"],
        &["doctor", "plain.so", "--arch", "gfx942", "-v"],
        &["doctor", "prefix", "--arch", "gfx942", "--json"],
    ];
    let texts = calls.map(|arguments| said(&tree, arguments));
    assert_snapshot!(texts.join("\n"));
}

/// The findings for a file on a machine with these GPUs.
fn on_machine(tree: &Tree, path: &str, gpus: &[&str]) -> Vec<Finding> {
    write_nodes(tree, gpus);
    let mut options = Options::default();
    options.nodes = tree.path("nodes");
    options.system = tree.path("system");
    tree.write("system/dev/kfd", "");
    examined(&[tree.path(path)], &options)
}

#[test]
fn the_gpus_of_a_machine_as_scripts_need_them() {
    let tree = Tree::new();
    let mut options = Options::default();
    options.nodes = tree.path("nodes");
    assert_eq!(processors(&options).unwrap_err().id(), ids::NO_GPU);
    write_nodes(&tree, &["gfx942", "gfx1030", "gfx942"]);
    assert_eq!(processors(&options).unwrap(), ["gfx942", "gfx1030"]);
}

/// KFD's list of these GPUs, in `nodes`.
fn write_nodes(tree: &Tree, gpus: &[&str]) {
    let _ = fs::remove_dir_all(tree.path("nodes"));
    fs::create_dir(tree.path("nodes")).unwrap();
    for (number, gpu) in gpus.iter().enumerate() {
        let version = match *gpu {
            "gfx942" => 90402,
            "gfx1030" => 100_300,
            "gfx1036" => 100_306,
            other => panic!("{other}"),
        };
        let node = tree.path(&format!("nodes/{number}"));
        fs::create_dir_all(&node).unwrap();
        let properties = format!("simd_count 4\ngfx_target_version {version}\n");
        fs::write(node.join("properties"), properties).unwrap();
    }
}

/// What `kpack` prints on a machine with these GPUs, with these variables, and its exit code; `None` if no
/// machine can be pretended here.
fn prints_on(
    tree: &Tree,
    gpus: &[&str],
    variables: &[(&str, &str)],
    arguments: &[&str],
) -> Option<(String, i32)> {
    write_nodes(tree, gpus);
    let sh = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-ec", script, "sh"]);
        command.current_dir(tree.root());
        command
    };
    let mount = "mount -t tmpfs none /sys/class; mkdir -p /sys/class/kfd/kfd/topology; \
                 cp -r nodes /sys/class/kfd/kfd/topology/nodes; mkdir -p dev/shm; \
                 touch dev/kfd dev/null; mount --rbind /dev/shm dev/shm; mount --bind /dev/null dev/null; mount --rbind dev /dev";
    if !sh(mount).output().is_ok_and(|output| output.status.success()) {
        require::skip("`unshare --user --mount` does not work here");
        return None;
    }
    let mut command = sh(&format!("{mount}; exec \"$@\""));
    let command = command.arg(env!("CARGO_BIN_EXE_kpack")).args(arguments);
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let said = text(output.stdout) + &text(output.stderr);
    let said = said.replace(tree.root().to_str().unwrap(), "/tree");
    Some((said, output.status.code().unwrap()))
}

/// The command in an advice.
fn run_advice(advice: &str) {
    let (_, command) = advice.split_once("run `").unwrap();
    let (command, _) = command.split_once('`').unwrap();
    let command = command.replacen("kpack", env!("CARGO_BIN_EXE_kpack"), 1);
    run(Command::new("sh").arg("-c").arg(command));
}

#[test]
fn join_is_advised_for_all_gpus_of_the_machine() {
    let tree = Tree::new();
    old_runtime(&tree);
    split(&tree);
    let gpus = ["gfx1030", "gfx942"];
    let one =
        JoinOptions::new(tree.path("prefix"), ["gfx1030".parse().unwrap()], ["lib/libvec.so"]);
    join(&one, &()).unwrap();
    let found = on_machine(&tree, "prefix", &gpus);
    assert_eq!(
        troubles(&found, &tree),
        [
            "Note [missing-target] /tree/prefix/lib/libvec.so: joined, without code for gfx942: only for gfx1030; run \
             `kpack join --prefix /tree/prefix --arch gfx1030 --arch gfx942 lib/libvec.so`"
        ]
    );
    let advice = found.iter().find_map(|finding| finding.help.as_ref());
    run_advice(advice.unwrap());
    let found = on_machine(&tree, "prefix", &gpus);
    assert_eq!(troubles(&found, &tree), [""; 0]);
}

#[test]
fn join_is_advised_only_if_it_would_help() {
    let tree = Tree::new();
    old_runtime(&tree);
    split(&tree);
    let on = |gpus: &[&str]| troubles(&on_machine(&tree, "prefix/lib/libvec.so", gpus), &tree);
    // Nobody can tell which GPU it is.
    let found = on(&[]).join("\n");
    assert!(found.contains("run this again with `--arch GPU`"), "{found}");
    assert!(!found.contains("run `kpack join"), "{found}");
    // Nothing was built for it.
    let found = on(&["gfx1036"]).join("\n");
    assert!(!found.contains("run `kpack join"), "{found}");
    assert!(
        found.contains(
            "install code for gfx1036 first; `kpack join` refuses: no device code for gfx1036"
        ),
        "{found}"
    );
    // Its archive is not installed.
    fs::remove_file(tree.path("prefix/lib/.kpack/vec_lib_gfx942.kpack")).unwrap();
    let found = on(&["gfx942"]).join("\n");
    assert!(!found.contains("run `kpack join"), "{found}");
    assert!(found.contains("run `apt install vec-gfx942`"), "{found}");
    // A joined binary is not helped either.
    let found = on(&["gfx1030"]).pop().unwrap();
    run_advice(&found.replace("/tree", tree.root().to_str().unwrap()));
    let found = on(&["gfx1030", "gfx942"]).join("\n");
    assert!(!found.contains("run `kpack join"), "{found}");
    assert!(
        found.contains(
            "install code for gfx942; `kpack join` refuses: the archive for gfx942 is missing"
        ),
        "{found}"
    );
    // Nor where no archive ever had code.
    let found = on(&["gfx1030", "gfx1036"]).join("\n");
    assert!(!found.contains("run `kpack join"), "{found}");
    assert!(found.contains("install a build with code for gfx1036"), "{found}");
}

/// Objects that were split before the link have no room for device code.
#[test]
fn join_is_not_advised_for_objects_that_were_split_before_the_link() {
    let tree = Tree::new();
    old_runtime(&tree);
    let code = |target: &str| (target.to_owned(), code_object(target, &[1; 9000]).unwrap());
    let object = FatLibrary::new().wrapper(Storage::Plain, ["gfx942", "gfx1030"].map(code));
    let object = object.kind(Kind::Object);
    object.build(&tree.path("vec.o")).unwrap();
    let output = tree.path("build");
    let mut options = object_file::Options::new("vec", &output, [tree.path("vec.o")]);
    let pattern = output.join(".kpack/vec_lib_@GFXARCH@.kpack");
    options.search_paths = vec![pattern.to_str().unwrap().to_owned()];
    object_file::split(&options, &()).unwrap();
    fs::create_dir_all(tree.path("prefix/lib")).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-Wl,--no-as-needed"]);
    cc.arg(output.join("vec.o")).arg(tree.path(HIP));
    cc.arg(format!("-Wl,-rpath,{}", tree.path("rocm").display()));
    run(cc.arg("-o").arg(tree.path("prefix/lib/libvec.so")));
    for gpus in [&["gfx942"][..], &["gfx942", "gfx1030"], &["gfx1036"], &[]] {
        let found = troubles(&on_machine(&tree, "prefix/lib/libvec.so", gpus), &tree);
        let found = found.join("\n");
        assert!(found.contains("does not read markers"), "{found}");
        assert!(!found.contains("run `kpack join"), "{found}");
        if gpus.contains(&"gfx942") {
            let shim = "set LD_PRELOAD to libkpack_hip.so, the shim; `kpack join` refuses: ";
            assert!(found.contains(shim), "{found}");
        }
    }
}

#[test]
fn a_join_says_which_code_it_drops() {
    let tree = Tree::new();
    old_runtime(&tree);
    split(&tree);
    let warnings = |gpus: &[&str]| {
        let gpus = gpus.iter().map(|gpu| gpu.parse().unwrap());
        let options = JoinOptions::new(tree.path("prefix"), gpus, ["lib/libvec.so"]);
        let report = join(&options, &()).unwrap();
        Vec::from_iter(report.findings.into_iter().map(|found| (found.id, found.text)))
    };
    assert_eq!(warnings(&["gfx942", "gfx1030"]), []);
    let dropped = warnings(&["gfx1030"]);
    let text = "loses its code for gfx942; to keep it, run join again with `--arch gfx942` as well";
    assert_eq!(dropped, [(ids::CODE_DROPPED, text.to_owned())]);
    assert_eq!(warnings(&["gfx1030"]), []);
}

#[test]
fn a_join_for_the_gpus_of_the_machine() {
    let tree = Tree::new();
    old_runtime(&tree);
    split(&tree);
    let join = ["join", "--prefix", "prefix", "--arch", "native"];
    let hidden = [("HIP_VISIBLE_DEVICES", "0"), ("ROCR_VISIBLE_DEVICES", "1")];
    let gpus = ["gfx942", "gfx1030", "gfx942"];
    let Some((said, exit)) = prints_on(&tree, &gpus, &hidden, &join) else {
        return;
    };
    assert_eq!(exit, 0, "{said}");
    let found = on_machine(&tree, "prefix", &gpus);
    assert_eq!(troubles(&found, &tree), [""; 0]);
    let (said, exit) = prints_on(&tree, &[], &[], &join).unwrap();
    assert_eq!(exit, 3, "{said}");
    assert!(said.contains("no GPU that ROCm can use"), "{said}");
}

#[test]
fn variables_that_hide_gpus() {
    let tree = Tree::new();
    new_runtime(&tree);
    let library = library(&tree, &["gfx942"]);
    library.build(&tree.path("prefix/lib/libvec.so")).unwrap();
    let gpus = ["gfx1030", "gfx942"];
    let doctor = |variable| {
        let (said, exit) = prints_on(&tree, &gpus, &[variable], &["doctor", "prefix", "-v"])?;
        let is_first = |line: &&str| line.starts_with("note ") || line.starts_with("FAULT ");
        Some((said.lines().find(is_first).unwrap().to_owned(), exit))
    };
    let Some(found) = doctor(("HIP_VISIBLE_DEVICES", "1")) else {
        return;
    };
    let machine = "this machine has gfx1030, gfx942";
    let sees = |gpu, variable| {
        format!("note  {machine}; programs see only {gpu}: {variable} [hidden-gpus]")
    };
    assert_eq!(found, (sees("gfx942", "HIP_VISIBLE_DEVICES"), 0));
    let found = doctor(("ROCR_VISIBLE_DEVICES", "0")).unwrap();
    assert_eq!(found, (sees("gfx1030", "ROCR_VISIBLE_DEVICES"), 1));
    let found = doctor(("ROCR_VISIBLE_DEVICES", "")).unwrap();
    let hidden =
        format!("FAULT {machine}, but programs see no GPU: ROCR_VISIBLE_DEVICES [hidden-gpus]");
    assert_eq!(found, (hidden, 1));
}

#[test]
fn with_rocm_5_one_gpu_without_code_disables_all() {
    let tree = Tree::new();
    let hip = "rocm/libamdhip64.so.5";
    stub(&tree, hip);
    let code = |target: &str| {
        let payload = vec![1; 40 << 10];
        (target.to_owned(), code_object(target, &payload).unwrap())
    };
    let library = FatLibrary::new().wrapper(Storage::Plain, ["gfx1030", "gfx942"].map(code));
    let library = linked_with(library, &tree, hip);
    library.build(&tree.path("prefix/lib/libvec.so")).unwrap();
    install(&InstallOptions::new(tree.path("prefix"), "vec", ["lib/libvec.so"]), &()).unwrap();
    let one =
        JoinOptions::new(tree.path("prefix"), ["gfx1030".parse().unwrap()], ["lib/libvec.so"]);
    join(&one, &()).unwrap();
    let on = |gpus: &[&str]| troubles(&on_machine(&tree, "prefix/lib/libvec.so", gpus), &tree);
    let found = on(&["gfx942", "gfx1030"]).join("\n");
    assert!(found.starts_with("Fault "), "{found}");
    for part in [
        "without code for gfx942: only for gfx1030; this HIP runtime (ROCm 5) then loads it for no GPU",
        "run `kpack join --prefix /tree/prefix --arch gfx942 --arch gfx1030 lib/libvec.so`; or hide gfx942 \
         with ROCR_VISIBLE_DEVICES=1",
    ] {
        assert!(found.contains(part), "{found}");
    }
    let found = on(&["gfx1030", "gfx1036"]).join("\n");
    assert!(
        found.contains(
            "install a build with code for gfx1036; or hide gfx1036 with ROCR_VISIBLE_DEVICES=0"
        ),
        "{found}"
    );
    assert_eq!(on(&["gfx1030"]), [""; 0]);
}

#[test]
fn two_kinds_of_gpus_and_a_runtime_that_asks_once() {
    for (name, outcome, asks) in [
        ("libamdhip64.so.7.14.60850", "Fault", "this HIP runtime asks for code once"),
        ("libamdhip64.so.7", "Note", "HIP runtimes up to ROCm 7.14 ask for code once"),
        ("libamdhip64.so.10", "Note", "HIP runtimes up to ROCm 7.14 ask for code once"),
        ("libamdhip64.so.10.1.80000", "Note", "HIP runtimes up to ROCm 7.14 ask for code once"),
    ] {
        let tree = Tree::new();
        let hip = format!("rocm/{name}");
        reading_runtime(&tree, &hip, LOADER);
        let code = |target: &str| (target.to_owned(), code_object(target, &[1; 9000]).unwrap());
        let library = FatLibrary::new().wrapper(Storage::Plain, ["gfx1030", "gfx942"].map(code));
        let library = linked_with(library, &tree, &hip);
        library.build(&tree.path("prefix/lib/libvec.so")).unwrap();
        install(&InstallOptions::new(tree.path("prefix"), "vec", ["lib/libvec.so"]), &()).unwrap();
        let on = |gpus: &[&str]| troubles(&on_machine(&tree, "prefix/lib/libvec.so", gpus), &tree);
        let found = on(&["gfx942", "gfx1030"]).join("\n");
        assert!(found.starts_with(outcome), "{found}");
        for part in [
            "[mixed-gpus]",
            asks,
            "/tree/prefix/lib/libvec.so gets code for gfx942 alone, and fails on gfx1030 (hipErrorNoBinaryForGpu)",
            "run `kpack join --prefix /tree/prefix --arch gfx942 --arch gfx1030 lib/libvec.so`; or set \
             LD_PRELOAD to libkpack_hip.so, the shim, and KPACK_HIP to force",
        ] {
            assert!(found.contains(part), "{found}");
        }
        assert_eq!(on(&["gfx942", "gfx942"]), [""; 0]);
        stub(&tree, "kpack/libkpack_hip.so");
        let shim = tree.path("kpack/libkpack_hip.so");
        let variables = [("LD_PRELOAD", shim.to_str().unwrap()), ("KPACK_HIP", "force")];
        let doctor = ["doctor", "prefix", "--quiet"];
        if let Some(found) = prints_on(&tree, &["gfx942", "gfx1030"], &variables, &doctor) {
            assert_eq!(found, (String::new(), 0));
        }
    }
}

#[test]
fn a_shim_that_is_switched_off() {
    let tree = Tree::new();
    old_runtime(&tree);
    stub(&tree, "kpack/libkpack_hip.so");
    split(&tree);
    let mut doctor = command(&tree, &["doctor", "prefix", "--arch", "gfx942"]);
    doctor.env("LD_PRELOAD", tree.path("kpack/libkpack_hip.so"));
    let output = doctor.env("KPACK_HIP", "off").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in ["[shim-off]", "KPACK_HIP=off stops the shim", "what to do: unset KPACK_HIP"] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn whose_loader_a_runtime_calls_and_under_which_name() {
    let tree = Tree::new();
    // As a tool for wheels renames them.
    let loader = "wheel.libs/librocm_kpack-7e7d63d3.so.0.1.0";
    let hip = "wheel.libs/libamdhip64-3c8cbb0f.so.7.14.60850";
    reading_runtime(&tree, hip, loader);
    let payload = code_object("gfx942", &[1; 9000]).unwrap();
    let library = FatLibrary::new().wrapper(Storage::Plain, [("gfx942", payload)]);
    let library = linked_with(library, &tree, hip);
    library.build(&tree.path("prefix/lib/libvec.so")).unwrap();
    install(&InstallOptions::new(tree.path("prefix"), "vec", ["lib/libvec.so"]), &()).unwrap();
    let reads = || {
        let findings = findings(&tree, "prefix", "gfx942");
        assert_eq!(troubles(&findings, &tree), [""; 0]);
        assert_eq!(findings[1].id, ids::RUNTIME_READS_MARKERS);
        let text = &findings[1].text;
        text.replace(tree.root().to_str().unwrap(), "/tree")
    };
    let library = "loaded by /tree/prefix/lib/libvec.so";
    let path = format!("/tree/{loader}; {library}");
    assert_eq!(reads(), format!("this HIP runtime reads markers, with ROCm's loader, {path}"));
    kpack_loader(&tree, loader);
    assert_eq!(reads(), format!("this HIP runtime reads markers, with kpack's loader, {path}"));
    // A name alone says nothing.
    stub_library(&tree.path(hip), "", &[&tree.path(loader)]);
    let found = troubles(&findings(&tree, "prefix", "gfx942"), &tree);
    assert!(found[0].contains("does not read markers"), "{found:?}");
}

/// The troubles with a library where ROCm's loader finds less than kpack's, and those with kpack's.
fn with_both_loaders(tree: &Tree, path: &str, gpu: &str) -> [Vec<String>; 2] {
    let rocm = troubles(&findings(tree, path, gpu), tree);
    kpack_loader(tree, LOADER);
    [rocm, troubles(&findings(tree, path, gpu), tree)]
}

#[test]
fn rocms_loader_does_not_look_beside_links() {
    let tree = Tree::new();
    new_runtime(&tree);
    split(&tree);
    for name in ["lib/libvec.so", "lib/.kpack/vec_lib_gfx942.kpack"] {
        let (link, file) = (tree.path("linked").join(name), tree.path("store").join(name));
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::rename(tree.path("prefix").join(name), &file).unwrap();
        std::os::unix::fs::symlink(file, link).unwrap();
    }
    // Each archive is somewhere else in the store.
    fs::rename(tree.path("store/lib/libvec.so"), tree.path("store/libvec.so")).unwrap();
    fs::remove_file(tree.path("linked/lib/libvec.so")).unwrap();
    let link = tree.path("linked/lib/libvec.so");
    std::os::unix::fs::symlink(tree.path("store/libvec.so"), link).unwrap();
    let [rocm, kpack] = with_both_loaders(&tree, "linked", "gfx942");
    assert_eq!(
        rocm,
        [
            "Fault [rocm-loader] /tree/linked/lib/libvec.so: split, but ROCm's loader, /tree/rocm/librocm_kpack.so.0, does \
             not search the directory of a symbolic link: it misses code for gfx942 that kpack's finds; install the \
             files themselves instead of links (`uv pip install --link-mode copy`), or put kpack's loader \
             (`librocm-kpack0`) in the place of /tree/rocm/librocm_kpack.so.0"
        ]
    );
    assert_eq!(kpack, [""; 0]);
}

/// Since August 2026, ROCm's loader goes on, and the name of a HIP runtime does not always say how old it is.
#[test]
fn older_loaders_of_rocm_stop_at_an_archive_without_the_kernel() {
    const STOPS: &str =
        "stops at an archive that lacks a kernel: it misses code for gfx90a that kpack's finds";
    const MAY_STOP: &str = "if ROCm's loader, /tree/rocm/librocm_kpack.so.0, is of ROCm 7.14 or older, it stops at an \
                            archive that lacks a kernel, and misses code for gfx90a that kpack's finds";
    for (name, severity, text, has_code) in [
        ("libamdhip64.so.7.13.60000", "Fault", STOPS, false),
        ("libamdhip64.so.7.14.60850", "Fault", STOPS, false),
        ("libamdhip64.so.7", "Note", MAY_STOP, true),
        ("libamdhip64.so.10.1.80000", "Note", MAY_STOP, true),
    ] {
        let tree = Tree::new();
        let hip = format!("rocm/{name}");
        reading_runtime(&tree, &hip, LOADER);
        let code = |target: &str| (target.to_owned(), code_object(target, &[1; 9000]).unwrap());
        let library = FatLibrary::new()
            .wrapper(Storage::Plain, ["gfx90a:xnack-", "gfx90a"].map(code))
            .wrapper(Storage::Plain, ["gfx90a"].map(code));
        let library = linked_with(library, &tree, &hip);
        library.build(&tree.path("prefix/lib/libvec.so")).unwrap();
        install(&InstallOptions::new(tree.path("prefix"), "vec", ["lib/libvec.so"]), &()).unwrap();
        let found = findings(&tree, "prefix", "gfx90a");
        assert_eq!(found.iter().any(|found| found.id == ids::CODE_FOUND), has_code, "{found:#?}");
        let [rocm, kpack] = with_both_loaders(&tree, "prefix", "gfx90a");
        assert_eq!(rocm.len(), 1, "{rocm:?}");
        for part in [
            &format!("{severity} [rocm-loader] /tree/prefix/lib/libvec.so: "),
            text,
            "split the original with `--complete-variants`, or put kpack's loader (`librocm-kpack0`) in the place of \
             /tree/rocm/librocm_kpack.so.0",
        ] {
            assert!(rocm[0].contains(part), "{name}: {rocm:?}");
        }
        assert_eq!(kpack, [""; 0]);

        // With complete archives, both find it.
        library.build(&tree.path("prefix/lib/libvec.so")).unwrap();
        fs::remove_file(tree.path(LOADER)).unwrap();
        reading_runtime(&tree, &hip, LOADER);
        let mut complete = InstallOptions::new(tree.path("prefix"), "vec", ["lib/libvec.so"]);
        complete.storage.complete_variants = true;
        install(&complete, &()).unwrap();
        assert_eq!(with_both_loaders(&tree, "prefix", "gfx90a"), [[""; 0]; 2], "{name}");
    }
}

#[test]
fn rocms_loader_does_not_read_the_archive_names_of_windows() {
    let tree = Tree::new();
    new_runtime(&tree);
    let library = library(&tree, &["gfx90a:xnack-"]);
    library.build(&tree.path("prefix/lib/libvec.so")).unwrap();
    install(&InstallOptions::new(tree.path("prefix"), "vec", ["lib/libvec.so"]), &()).unwrap();
    let archive = |target: &str| tree.path(&format!("prefix/lib/.kpack/vec_lib_{target}.kpack"));
    fs::rename(archive("gfx90a:xnack-"), archive("gfx90a-xnack-")).unwrap();
    let [rocm, kpack] = with_both_loaders(&tree, "prefix", "gfx90a:xnack-");
    assert_eq!(rocm.len(), 1, "{rocm:?}");
    let part = "does not find archives whose names have `-` for the colons of the target: it misses code for \
                gfx90a:xnack- that kpack's finds";
    assert!(rocm[0].contains(part), "{rocm:?}");
    assert_eq!(kpack, [""; 0]);
}

/// kpack's loader goes on to the installed archive.
#[test]
fn rocms_loader_runs_the_code_of_another_build() {
    let tree = Tree::new();
    new_runtime(&tree);
    split(&tree);
    let archive = tree.path("prefix/lib/.kpack/vec_lib_gfx942.kpack");
    tree.write("old.kpack", fs::read(&archive).unwrap());
    let payload = code_object("gfx942", &[2; 9000]).unwrap();
    let newer = FatLibrary::new().wrapper(Storage::Plain, [("gfx942", payload)]);
    let newer = linked_with(newer, &tree, HIP);
    newer.build(&tree.path("prefix/lib/libvec.so")).unwrap();
    install(&InstallOptions::new(tree.path("prefix"), "vec", ["lib/libvec.so"]), &()).unwrap();
    let old = tree.path("old.kpack");
    let said = || {
        let mut doctor = command(&tree, &["doctor", "prefix", "--arch", "gfx942", "--quiet"]);
        let output = doctor.env("ROCM_KPACK_PATH_PREFIX", &old).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let rocm = said();
    for part in [
        "[stale-archive]",
        "does not compare code IDs: it runs the code of another build for gfx942, from ",
        "old.kpack",
    ] {
        assert!(rocm.contains(part), "{rocm}");
    }
    kpack_loader(&tree, LOADER);
    assert_eq!(said(), "");
}

#[test]
fn a_link_to_a_program_and_a_path_without_a_directory() {
    let tree = Tree::new();
    old_runtime(&tree);
    split(&tree);
    let program = FatLibrary::new().kind(Kind::Pie).flag("-Wl,-rpath,$ORIGIN/../prefix/lib");
    let program = program.flag("-Wl,--no-as-needed").flag(tree.path("prefix/lib/libvec.so"));
    program.build(&tree.path("bin/app")).unwrap();
    std::os::unix::fs::symlink("bin/app", tree.path("app")).unwrap();
    let said = said(&tree, &["doctor", "app", "--arch", "gfx942", "--quiet"]);
    assert!(said.contains("finds no code for /tree/prefix/lib/libvec.so"), "{said}");
}

#[test]
fn a_library_that_the_dynamic_linker_rejects() {
    let tree = Tree::new();
    new_runtime(&tree);
    split(&tree);
    fs::write(tree.path(HIP), "INPUT(libamdhip64.so.7)").unwrap();
    let found = findings(&tree, "prefix/lib/libvec.so", "gfx942");
    let found = found.iter().find(|found| found.id == ids::NOT_LOADABLE).unwrap();
    assert_eq!(found.severity, Severity::Fault);
    assert!(found.text.contains("not an ELF file"), "{found:?}");
}

/// It is unknown whether there is code for it.
#[test]
fn markers_in_the_early_form() {
    let tree = Tree::new();
    new_runtime(&tree);
    split(&tree);
    let path = tree.path("prefix/lib/libvec.so");
    let mut bytes = fs::read(&path).unwrap();
    let key = b"kpack_search_paths";
    let places = (2..bytes.len()).filter(|at| bytes[*at..].starts_with(key));
    for place in Vec::from_iter(places) {
        let (_, size) = Marker::read(&bytes[place - 2..]).unwrap();
        let marker = &mut bytes[place - 2..][..size];
        marker.fill(0);
        marker[..13].copy_from_slice(b"../lib/.kpack");
    }
    fs::write(&path, bytes).unwrap();

    let has = |findings: &[Finding]| findings.iter().any(|found| found.id == ids::EARLY_MARKER);
    let found = findings(&tree, "prefix/lib/libvec.so", "gfx942");
    assert!(has(&found), "{found:#?}");
    let verified = verify(std::slice::from_ref(&path), &verify::Options::default(), &());
    let found = verified.unwrap().findings;
    assert!(has(&found), "{found:#?}");
    let options = JoinOptions::new(tree.path("prefix"), ["gfx942".parse().unwrap()], [&path]);
    assert_eq!(join(&options, &()).unwrap_err().id(), ids::EARLY_MARKER);
}

/// Given an unsplit library in a prefix, when a target is named that it has no code for, then `verify` and `doctor` both
/// call it a fault, and neither does for a target that it has code for.
#[test]
fn verify_and_doctor_agree_about_a_target_that_an_unsplit_library_lacks() {
    let tree = Tree::new();
    new_runtime(&tree);
    library(&tree, &["gfx1100"]).build(&tree.path("prefix/lib/libvec.so")).unwrap();
    for (target, is_there) in [("gfx942", false), ("gfx1100", true)] {
        for command in ["verify", "doctor"] {
            let output = kpack(&tree, &[command, "prefix/lib/libvec.so", "--arch", target]);
            let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            assert_eq!(output.status.success(), is_there, "{command} {target}: {said}");
            assert_eq!(said.contains("[missing-target]"), !is_there, "{command} {target}: {said}");
        }
    }
}

/// Given a machine whose GPU programs cannot use, then the doctor says what keeps them from it.
#[test]
fn what_keeps_programs_from_the_gpu() {
    let adapter =
        ["sys/bus/pci/devices/0000:03:00.0/vendor", "sys/bus/pci/devices/0000:03:00.0/class"];
    for (name, files, gpus, id, part) in [
        ("no GPU", &[][..], None, ids::NO_GPU, "there is none"),
        ("no driver", &adapter[..], None, ids::NO_DRIVER, "amdgpu"),
        ("no GPU in KFD", &["dev/kfd"], Some(&[][..]), ids::NO_GPU, "no GPU that ROCm can use"),
        ("no device", &[], Some(&["gfx942"]), ids::NO_DEVICE_ACCESS, "/dev/kfd does not exist"),
        (
            ".dockerenv",
            &[".dockerenv"],
            Some(&["gfx942"]),
            ids::NO_DEVICE_ACCESS,
            "--device /dev/kfd",
        ),
        ("container", &["run/.containerenv"], None, ids::NO_DEVICE_ACCESS, "--device /dev/kfd"),
        ("WSL", &["dev/dxg"], None, ids::NO_DRIVER, "WSL"),
    ] {
        let tree = Tree::new();
        new_runtime(&tree);
        split(&tree);
        for file in files {
            let path = tree.path("system").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let text = if file.ends_with("vendor") { "0x1002\n" } else { "0x030000\n" };
            fs::write(path, text).unwrap();
        }
        let mut options = Options::default();
        (options.nodes, options.system) = (tree.path("nodes"), tree.path("system"));
        if let Some(gpus) = gpus {
            write_nodes(&tree, gpus);
        }
        let report = examine(&[tree.path("prefix")], &options).unwrap();
        let cause = report.cause().unwrap();
        assert_eq!(cause.finding.id, id, "{name}: {report:#?}");
        assert_eq!((report.loads, &report.remedy), (Some(false), &None), "{name}");
        let said = format!("{} {}", cause.finding.text, cause.finding.help.as_ref().unwrap());
        assert!(said.contains(part), "{name}: {said}");
    }
}

/// Given a variable that makes a GPU another one, then the doctor says which one is asked for, and whether the variable
/// is what breaks it.
#[test]
fn a_gpu_that_is_overridden() {
    let tree = Tree::new();
    new_runtime(&tree);
    split(&tree);
    let doctor = ["doctor", "prefix", "-v"];
    for (version, severity, exit) in [("11.0.0", "FAULT", 1), ("10.3.0", "note ", 0)] {
        let variable = [("HSA_OVERRIDE_GFX_VERSION", version)];
        let Some((said, code)) = prints_on(&tree, &["gfx942"], &variable, &doctor) else {
            return;
        };
        assert_eq!(code, exit, "{said}");
        let is_it = |line: &str| line.starts_with(severity) && line.ends_with("[gpu-overridden]");
        assert!(said.lines().any(is_it), "{said}");
    }
}

/// Given a library that is named like an option, then the command that is printed joins it.
#[test]
fn a_library_that_is_named_like_an_option() {
    let tree = Tree::new();
    old_runtime(&tree);
    library(&tree, &["gfx942"]).build(&tree.path("prefix/--installed")).unwrap();
    install(&InstallOptions::new(tree.path("prefix"), "vec", ["--installed"]), &()).unwrap();
    let fix = kpack(&tree, &["doctor", "prefix", "--arch", "gfx942", "--fix"]).stdout;
    let fix = String::from_utf8(fix).unwrap();
    let expected = format!(
        "kpack join --prefix {} --arch gfx942 -- --installed\n",
        tree.path("prefix").display()
    );
    assert_eq!(fix, expected);
    let kpack = env!("CARGO_BIN_EXE_kpack");
    run(Command::new("sh").arg("-c").arg(fix.replacen("kpack", kpack, 1)));
    assert_eq!(troubles(&findings(&tree, "prefix", "gfx942"), &tree), [""; 0]);
}

/// Given a damaged library among sound ones, then the others are examined all the same, and the damaged one is named.
#[test]
fn a_damaged_library_keeps_no_other_from_being_examined() {
    let tree = Tree::new();
    new_runtime(&tree);
    split(&tree);
    let bytes = fs::read(tree.path("prefix/lib/libvec.so")).unwrap();
    fs::write(tree.path("prefix/lib/libcut.so"), &bytes[..bytes.len() / 2]).unwrap();
    // The dynamic section: DT_STRTAB leads nowhere.
    let mut damaged = bytes.clone();
    let table = damaged
        .windows(16)
        .position(|entry| entry[..8] == [5, 0, 0, 0, 0, 0, 0, 0] && entry[8] != 0);
    damaged[table.unwrap() + 12..][..4].fill(0xff);
    fs::write(tree.path("prefix/lib/libdyn.so"), damaged).unwrap();
    let found = troubles(&findings(&tree, "prefix", "gfx1100"), &tree).join("\n");
    for part in [
        "prefix/lib/libcut.so cannot be loaded: ",
        "libdyn.so",
        "prefix/lib/libvec.so: split, without code for gfx1100",
    ] {
        assert!(found.contains(part), "{part}: {found}");
    }
}

/// Given a GPU that a variable makes another one, then the device wheels of neither are unused.
#[test]
fn what_an_overridden_gpu_needs_is_not_unused() {
    let tree = Tree::new();
    for target in ["gfx942", "gfx1030", "gfx1100"] {
        let dist_info =
            tree.path(&format!("env/lib/python3.12/site-packages/x_{target}.dist-info"));
        fs::create_dir_all(&dist_info).unwrap();
        let text = format!("Metadata-Version: 2.1\nName: x-device-{target}\nVersion: 1\n");
        fs::write(dist_info.join("METADATA"), text).unwrap();
    }
    let variable = [("HSA_OVERRIDE_GFX_VERSION", "10.3.0")];
    let Some((said, _)) = prints_on(&tree, &["gfx942"], &variable, &["doctor", "env", "--unused"])
    else {
        return;
    };
    assert!(said.contains("x-device-gfx1100") && !said.contains("x-device-gfx942"), "{said}");
    assert!(!said.contains("x-device-gfx1030"), "{said}");
}
