//! The calls that TheRock makes of the tools that it calls `rocm_kpack`, flag for flag.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::command::{kpack, said, succeeds};
use crate::spirv;
use kpack_tests::fixture::{FatLibrary, Kind, Storage, bundle, code, library_file};
use kpack_tests::page::repository;
use kpack_tests::process;
use kpack_tests::require::tool;
use kpack_tests::tree::{Tree, files_in, write};
use walkdir::WalkDir;

/// What is said where it fails, after the exit code.
#[track_caller]
fn fails(tree: &Tree, arguments: &[&str], exit_code: i32) -> String {
    let output = kpack(tree, arguments);
    assert_eq!(output.status.code(), Some(exit_code), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Two wrappers; the second is for one target only.
fn library() -> FatLibrary {
    FatLibrary::new()
        .wrapper(
            Storage::Plain,
            [code("gfx90a:xnack+", "add"), code("gfx90a:xnack-", "sub"), code("gfx1100", "add")],
        )
        .wrapper(Storage::Zstd(3), [code("gfx90a:xnack+", "mul")])
}

/// An artifact directory of rocRAND's, as `artifacts-unsplit/rand_lib_gfx90a`.
fn rand_artifact(tree: &Tree) {
    let artifact = tree.path("artifacts-unsplit/rand_lib_gfx90a");
    let prefix = artifact.join("math-libs/rocRAND/stage");
    library().build(&prefix.join("lib/librocrand.so.1")).unwrap();
    fs::write(artifact.join("artifact_manifest.txt"), "math-libs/rocRAND/stage\n").unwrap();
}

#[test]
fn names_of_files_are_told_where_that_is_asked_for() {
    let tree = Tree::new();
    rand_artifact(&tree);
    let split = [
        "artifact",
        "split",
        "--artifact-dir",
        "artifacts-unsplit/rand_lib_gfx90a",
        "--output-dir",
        "shards/a",
        "--artifact-prefix",
        "rand_lib",
    ];
    let library = "math-libs/rocRAND/stage/lib/librocrand.so.1";
    let said = |arguments: &[&str]| {
        let output = kpack(&tree, arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let name = format!("processing: {library}\n");
    assert!(!said(&split).contains(&name));
    assert!(said(&[&split[..], &["--verbose"]].concat()).contains(&name));

    let configuration = r#"{
      "primary_shard": "a",
      "release": "7.1",
      "architecture_groups": {"gfx9": {"architectures": ["gfx90a:xnack+", "gfx90a:xnack-", "gfx1100"]}}
    }"#;
    fs::write(tree.path("packaging.json"), configuration).unwrap();
    let recombine = [
        "artifact",
        "recombine",
        "--input-shards-dir",
        "shards",
        "--config",
        "packaging.json",
        "--output-dir",
        "packages",
    ];
    let strict = fails(&tree, &[&recombine[..], &["--strict"]].concat(), 3);
    let unknown = "packaging.json: line 3, column 18: unknown key `release`";
    assert_eq!(strict, format!("kpack: error: {unknown} [bad-configuration]\n"));
    assert!(!tree.path("packages").exists());
    let text = said(&[&recombine[..], &["--verbose"]].concat());
    assert!(
        text.contains(&format!("kpack: warning: ignored: {unknown} [bad-configuration]\n")),
        "{text}"
    );
    assert!(text.contains("processing: rand_lib\n"), "{text}");

    let text = said(&["verify", "packages", "--verbose"]);
    assert!(text.contains(library), "{text}");
}

#[test]
fn totals_of_an_archive() {
    let tree = library().in_tree("lib/librccl.so");
    let install = ["split", "--prefix", ".", "--module", "rccl", "--all"];
    succeeds(&tree, &install);
    let archive = "lib/.kpack/rccl_lib_gfx90a:xnack+.kpack";
    let text = succeeds(&tree, &["list", archive]);
    let start = "rccl_lib, gfx90a:xnack+: 2 code objects, 2 stored: ";
    assert!(text.lines().next_back().unwrap().starts_with(start), "{text}");
}

/// A file in a prefix, and the target whose artifact it goes to; `-` is the generic one.
type File = (&'static str, &'static str);

/// Each artifact with a database: its prefix, the databases that TheRock's topology lists for it, and
/// its files.
const DATABASES: &[(&str, &str, &[File])] = &[
    (
        "blas_lib",
        "rocblas hipblaslt hipsparselt",
        &[
            ("lib/rocblas/library/TensileLibrary_Type_SS_gfx942.co", "gfx942"),
            ("lib/rocblas/library/TensileLibrary_Type_SS_gfx942.dat", "gfx942"),
            ("lib/rocblas/library/TensileLibrary_Type_SS_fallback.dat", "-"),
            ("lib/hipblaslt/library/gfx1250-strict/TensileManifest.txt", "gfx1250-strict"),
            ("lib/hipblaslt/library/gfx1250/TensileManifest.txt", "gfx1250"),
            ("lib/hipsparselt/library/Kernels.so-000-gfx942-xnack+.hsaco", "gfx942"),
        ],
    ),
    (
        "miopen_lib",
        "miopen",
        &[
            ("share/miopen/db/gfx942130.HIP.fdb.txt", "gfx942"),
            ("share/miopen/db/gfx1250-strict_256.db.txt", "gfx1250-strict"),
            ("lib/libMIOpenCKGroupedConv_gfx942.so", "gfx942"),
            ("lib/libMIOpen.so.1", "-"),
        ],
    ),
    (
        "composablekernel_dev",
        "composablekernel",
        &[
            ("lib/libdevice_conv_operations_gfx942.a", "gfx942"),
            ("lib/libdevice_conv_operations_gfx950_xnackp.a", "gfx950"),
            ("lib/libdevice_conv_operations_gfx1250_strict.a", "gfx1250-strict"),
        ],
    ),
    (
        "aotriton_lib",
        "aotriton",
        &[
            ("lib/aotriton.images/amd-gfx11xx/flash/attn_fwd.aks2", "gfx11"),
            ("lib/aotriton.images/amd-gfx120x/flash/attn_fwd.aks2", "gfx120x"),
            ("lib/aotriton.images/amd-gfx942/flash/attn_fwd.aks2", "gfx942"),
        ],
    ),
    (
        "hipkernelprovider_test",
        "hipkernelprovider",
        &[
            ("lib/hipdnn_plugins/engines/arch_content/rocke/gfx942/a.bin", "gfx942"),
            ("bin/engines/test_arch_content/hkp/unit/shared/gfx1250/a.bin", "gfx1250"),
            ("bin/engines/test_arch_content/hkp/lock.json", "-"),
        ],
    ),
    (
        "rccl_lib",
        "hotswap_cache",
        &[
            (
                "share/rocjitsu/translations/gfx1250-b0-a0/v1/\
                 00000000000000000000000000000000000000000000000000000000000000aa.obj",
                "gfx1250",
            ),
            ("lib/librccl.so.1", "-"),
        ],
    ),
];

/// A file as it is in the prefix of a component, by its name.
fn put(path: &Path) {
    let name = path.file_name().unwrap().to_str().unwrap();
    let target = |name: &str| {
        name.replace(['_', '.'], " ")
            .split(' ')
            .find(|word| word.starts_with("gfx"))
            .map(str::to_owned)
    };
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    if name.contains(".so") {
        let target = target(name).unwrap_or_else(|| "gfx1250".to_owned());
        if name.ends_with(".hsaco") {
            return fs::write(path, code("gfx942:xnack+", name).1).unwrap();
        }
        let library = FatLibrary::new().wrapper(Storage::Zstd(3), [code(&target, name)]);
        return library.build(path).unwrap();
    }
    let bytes = match name.rsplit_once('.').unwrap() {
        (stem, "co") => code(&target(stem).unwrap(), name).1,
        (stem, "dat") if stem.ends_with("fallback") => library_file("gfx000", &[]).unwrap(),
        (stem, "dat") => library_file(&target(stem).unwrap(), &[stem]).unwrap(),
        // An ELF file of another processor than the path says.
        (_, "obj") => code("gfx1250-strict", name).1,
        _ => name.as_bytes().to_vec(),
    };
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_tree_with_every_database_is_split_as_the_build_does_it() {
    let tree = Tree::new();
    let stage = |prefix: &str| format!("libs/{prefix}/stage");
    for (prefix, databases, expected) in DATABASES {
        let artifact = tree.path(&format!("artifacts-unsplit/{prefix}_gfx94X-dcgpu"));
        let stage = stage(prefix);
        for (file, _) in *expected {
            put(&artifact.join(&stage).join(file));
        }
        fs::write(artifact.join("artifact_manifest.txt"), format!("{stage}\n")).unwrap();
        let (artifact, output) = (artifact.to_str().unwrap(), tree.path("artifacts/"));
        let mut arguments = vec![
            "artifact",
            "split",
            "--artifact-dir",
            artifact,
            "--output-dir",
            output.to_str().unwrap(),
            "--artifact-prefix",
            prefix,
            "--split-databases",
        ];
        arguments.extend(databases.split(' '));
        let targets = "gfx942 gfx950 gfx1250 gfx1250-strict gfx1100 gfx1200";
        arguments.push("--gpu-targets");
        arguments.extend(targets.split(' '));
        succeeds(&tree, &arguments);
        for (file, target) in *expected {
            let target = if *target == "-" { "generic" } else { target };
            let path = tree.path(&format!("artifacts/{prefix}_{target}/{stage}/{file}"));
            assert!(path.is_file(), "{}: {:#?}", path.display(), tree.files());
        }
    }
    // Host files alone are in the generic artifacts.
    let mut generic = tree.files();
    generic.retain(|file| file.starts_with("artifacts/") && file.contains("_generic/libs/"));
    let expected = DATABASES.iter().flat_map(|(prefix, _, files)| {
        let generic = files.iter().filter(|(_, target)| *target == "-");
        generic.map(move |(file, _)| format!("artifacts/{prefix}_generic/{}/{file}", stage(prefix)))
    });
    let mut expected: Vec<String> = expected.collect();
    expected.sort();
    generic.retain(|file| !file.ends_with(".kpm"));
    assert_eq!(generic, expected);
    // Everything is where verification expects it, and nothing is lost.
    succeeds(&tree, &["verify", "artifacts", "--against", "artifacts-unsplit"]);
}

#[test]
fn plugins_of_a_target_are_split_where_their_database_is_not_named() {
    let tree = Tree::new();
    let artifact = tree.path("in/miopen_lib");
    put(&artifact.join("stage/lib/libMIOpenCKGroupedConv_gfx942.so"));
    fs::write(artifact.join("artifact_manifest.txt"), "stage\n").unwrap();
    let split = |databases: &[&str], output: &str| {
        let arguments =
            ["artifact", "split", "--batch-artifact-parent-dir", "in", "--output-dir", output];
        succeeds(&tree, &[&arguments[..], databases].concat());
        let library = "stage/lib/libMIOpenCKGroupedConv_gfx942.so";
        let is_in =
            |name: &str| tree.path(&format!("{output}/miopen_lib_{name}/{library}")).exists();
        (is_in("generic"), is_in("gfx942"))
    };
    assert_eq!(split(&[], "default"), (true, false));
    let both = ["--split-databases", "auto", "miopen_ck"];
    assert_eq!(split(&both, "whole"), (false, true));
}

/// A library with SPIR-V in each bundle, for two targets that the build lists, and for one that it does not.
#[test]
fn spirv_that_is_asked_for_is_split() {
    let tree = Tree::new();
    let spirv = |name| spirv::spirv(spirv::CLANG_19, name);
    let library = FatLibrary::new()
        .wrapper(Storage::Plain, [code("gfx1100", "add"), code("gfx942", "add"), spirv("add")])
        .wrapper(Storage::Zstd(3), [code("gfx1100", "mul"), spirv("mul")]);
    let prefix = "built/rand_lib/stage";
    library.build(&tree.path(&format!("{prefix}/lib/librocrand.so"))).unwrap();
    fs::write(tree.path("built/rand_lib/artifact_manifest.txt"), "stage\n").unwrap();
    let split = |output: &str, more: &[&str]| {
        let command =
            ["artifact", "split", "--layout", "artifact", "--artifact-prefix", "rand_lib"];
        let paths = ["--artifact-dir", "built/rand_lib", "--output-dir", output, "--gpu-targets"];
        succeeds(&tree, &[&command[..], &paths, more].concat());
        let names = fs::read_dir(tree.path(output)).unwrap();
        let mut names =
            Vec::from_iter(names.map(|entry| entry.unwrap().file_name().into_string().unwrap()));
        names.sort();
        names
    };
    let both = ["gfx1100", "amdgcnspirv"];
    let three = ["rand_lib_amdgcnspirv", "rand_lib_generic", "rand_lib_gfx1100"];
    assert_eq!(split("split", &both), three);
    succeeds(&tree, &["verify", "split"]);
    succeeds(&tree, &["verify", "split", "--against", "built", "--arch", "gfx1100,amdgcnspirv"]);
    // What is said counts.
    assert_eq!(split("kept", &[&both[..], &["--spirv", "keep"]].concat()), ["rand_lib_generic"]);
    // The same without artifacts.
    let lists = ["--arch", "gfx1100,amdgcnspirv", "--all"];
    succeeds(&tree, &[&["split", "--prefix", prefix, "--module", "rand"], &lists[..]].concat());
    for target in both {
        let archive = format!("{prefix}/lib/.kpack/rand_lib_{target}.kpack");
        assert!(tree.path(&archive).is_file(), "{archive}");
    }
}

/// MIOpen's library and plugins for these targets, split into `output`, without the marks: TheRock's archives drop
/// them, and ROCm's own tool writes none.
fn fetched_miopen(tree: &Tree, output: &str, targets: &[&str]) {
    let artifact = format!("built/{output}/miopen_lib");
    let file = |name: &str| tree.path(&format!("{artifact}/stage/{name}"));
    for target in targets {
        put(&file(&format!("lib/libMIOpenCKGroupedConv_{target}.so")));
        put(&file(&format!("share/miopen/db/{target}130.HIP.fdb.txt")));
    }
    let codes = targets.iter().map(|target| code(target, "pool"));
    let library = FatLibrary::new().wrapper(Storage::Zstd(3), Vec::from_iter(codes));
    library.build(&file("lib/libMIOpen.so.1")).unwrap();
    fs::write(tree.path(&format!("{artifact}/artifact_manifest.txt")), "stage\n").unwrap();
    split_miopen(tree, output, &[]);
    for name in [&["generic"], targets].concat() {
        fs::remove_file(tree.path(&format!("{output}/miopen_lib_{name}/.kpack-artifact"))).unwrap();
    }
}

fn split_miopen(tree: &Tree, output: &str, more: &[&str]) {
    let input = format!("built/{output}/miopen_lib");
    let split = ["artifact", "split", "--artifact-prefix", "miopen_lib", "--layout", "artifact"];
    let paths = ["--artifact-dir", &input, "--output-dir", output, "--split-databases", "miopen"];
    succeeds(tree, &[&split[..], &paths, more].concat());
}

#[test]
fn artifacts_without_marks_are_verified_and_recombined() {
    let tree = Tree::new();
    fetched_miopen(&tree, "shards/a", &["gfx942", "gfx90a"]);
    fetched_miopen(&tree, "shards/b", &["gfx1100"]);
    succeeds(&tree, &["verify", "shards/a"]);
    succeeds(&tree, &["verify", "shards/a", "--against", "built/shards/a"]);
    let configuration = r#"{
      "primary_shard": "a",
      "architecture_groups": {
        "gfx94X": {"architectures": ["gfx942", "gfx90a"]},
        "gfx110X": {"architectures": ["gfx1100"]}
      }
    }"#;
    fs::write(tree.path("packaging.json"), configuration).unwrap();
    let recombine = |shards: &str, output: &str| {
        let paths = ["--input-shards-dir", shards, "--output-dir", output];
        let command = ["artifact", "recombine", "--config", "packaging.json"];
        succeeds(&tree, &[&command[..], &paths].concat());
        succeeds(&tree, &["verify", output]);
    };
    recombine("shards", "packages");
    let plugin = "stage/lib/libMIOpenCKGroupedConv_gfx942.so";
    assert!(tree.path(&format!("packages/miopen_lib_gfx94X/{plugin}")).is_file());
    // Artifacts of groups lose their marks in the same way.
    for name in ["generic", "gfx94X", "gfx110X"] {
        let mark = format!("packages/miopen_lib_{name}/.kpack-artifact");
        fs::remove_file(tree.path(&mark)).unwrap();
    }
    succeeds(&tree, &["verify", "packages"]);
    fs::create_dir(tree.path("groups")).unwrap();
    fs::rename(tree.path("packages"), tree.path("groups/a")).unwrap();
    recombine("groups", "again");
    succeeds(&tree, &["report", "groups/a"]);
    // What is misplaced is still found.
    let generic = tree.path("groups/a/miopen_lib_generic/stage/lib/libMIOpenX.so");
    library().build(&generic).unwrap();
    let said = said(&tree, &["verify", "groups/a"]);
    assert_eq!(said.matches("[misplaced-file]").count(), 1, "{said}");
}

#[test]
fn artifacts_without_marks_are_replaced_if_that_is_asked_for() {
    let tree = Tree::new();
    fetched_miopen(&tree, "fetched", &["gfx942"]);
    let input = ["--artifact-dir", "built/fetched/miopen_lib", "--output-dir", "fetched"];
    let split = ["artifact", "split", "--artifact-prefix", "miopen_lib"];
    let said = fails(&tree, &[&split[..], &input].concat(), 3);
    assert!(said.contains("pass --replace-artifacts to replace it [output"), "{said}");
    split_miopen(&tree, "fetched", &["--replace-artifacts"]);
    assert!(tree.path("fetched/miopen_lib_generic/.kpack-artifact").is_file());
    if tool("python3") {
        fs::remove_file(tree.path("fetched/miopen_lib_generic/.kpack-artifact")).unwrap();
        let adapter = adapter(&tree).join("python/rocm_kpack/tools/split_artifacts.py");
        let run = |replace: &str| {
            let mut command = Command::new("python3");
            command.arg(&adapter).args([
                "--tmp-dir",
                "/nowhere",
                "--artifact-prefix",
                "miopen_lib",
            ]);
            command.args(input);
            command.current_dir(tree.root()).env("KPACK_EXECUTABLE", env!("CARGO_BIN_EXE_kpack"));
            command.env("PYTHONDONTWRITEBYTECODE", "1").env("KPACK_REPLACE_ARTIFACTS", replace);
            process::output(&mut command).status.code()
        };
        assert_eq!(["", "0", "true", "1"].map(run), [Some(3), Some(3), Some(1), Some(0)]);
    }
    // What is no artifact stays.
    let target = tree.path("fetched/miopen_lib_gfx942");
    fs::remove_dir_all(&target).unwrap();
    fs::create_dir(&target).unwrap();
    fs::write(target.join("thesis"), "").unwrap();
    let said = fails(&tree, &[&split[..], &input, &["--replace-artifacts"]].concat(), 3);
    assert!(said.contains("choose another output directory, or remove this one ["), "{said}");
    assert!(target.join("thesis").is_file());
}

const EXTRACT: [&str; 5] = ["extract", "--arch", "gfx90a", "--output-dir", "out/of/it"];

#[test]
fn the_code_objects_of_any_kind_of_file_are_written_to_a_directory() {
    let (add, sub, mul) = (
        code("gfx90a:xnack+", "add").1,
        code("gfx90a:xnack-", "sub").1,
        code("gfx90a:xnack+", "mul").1,
    );
    for (name, kind) in [
        ("librccl.so.1", Kind::Shared),
        ("rccl.o", Kind::Object),
        ("librccl.a", Kind::StaticLibrary),
    ] {
        let tree = library().kind(kind).in_tree(name);
        succeeds(&tree, &[&EXTRACT[..], &[name]].concat());
        let expected = [
            (format!("{name}-0-gfx90a:xnack+.hsaco"), add.clone()),
            (format!("{name}-0-gfx90a:xnack-.hsaco"), sub.clone()),
            (format!("{name}-1-gfx90a:xnack+.hsaco"), mul.clone()),
        ];
        assert_eq!(files_in(&tree.path("out/of/it")), expected.into(), "{name}");
    }
}

#[test]
fn static_libraries_archives_bundles_and_bare_code_objects_are_unbundled_too() {
    let tree = Tree::new();
    let one = |target: &str, name: &str| {
        FatLibrary::new().kind(Kind::Object).wrapper(Storage::Plain, [code(target, name)])
    };
    // Two members, each with its own wrapper,
    one("gfx90a", "add").build(&tree.path("add.o")).unwrap();
    one("gfx90a", "mul").build(&tree.path("mul.o")).unwrap();
    let ar = Command::new("ar")
        .current_dir(tree.root())
        .args(["rcsD", "libops.a", "add.o", "mul.o"])
        .status();
    assert!(ar.unwrap().success());
    // a bundle, a code object,
    let entries = [code("gfx90a", "add"), code("gfx942", "add")];
    let bytes = bundle(Storage::Zstd(2), &entries).unwrap();
    fs::write(tree.path("ops.co"), bytes).unwrap();
    fs::write(tree.path("bare.hsaco"), &entries[0].1).unwrap();
    // and the archive of an installed library.
    let library = tree.path("lib/libops.so");
    FatLibrary::new().wrapper(Storage::Plain, [code("gfx90a", "add")]).build(&library).unwrap();
    let install = ["split", "--prefix", ".", "--module", "ops", "lib/libops.so"];
    succeeds(&tree, &install);
    for (file, expected) in [
        ("libops.a", &[("libops.a-0-gfx90a.hsaco", "add"), ("libops.a-1-gfx90a.hsaco", "mul")][..]),
        ("ops.co", &[("ops.co-0-gfx90a.hsaco", "add")]),
        ("bare.hsaco", &[("bare.hsaco-0-gfx90a.hsaco", "add")]),
        ("lib/.kpack/ops_lib_gfx90a.kpack", &[("lib_libops.so-0-gfx90a.hsaco", "add")]),
    ] {
        let _ = fs::remove_dir_all(tree.path("out"));
        succeeds(&tree, &[&EXTRACT[..], &[file]].concat());
        let expected = expected.iter().map(|(name, payload)| {
            let bytes = code("gfx90a", payload).1;
            ((*name).to_owned(), bytes)
        });
        assert_eq!(files_in(&tree.path("out/of/it")), expected.collect(), "{file}");
    }
    let said = fails(&tree, &[&EXTRACT[..], &["lib/libops.so"]].concat(), 3);
    assert!(said.contains("[code-in-archives]"), "{said}");
}

#[test]
fn a_target_with_features_is_only_itself_and_one_that_is_not_there_is_an_error() {
    let tree = library().in_tree("librccl.so");
    let out = ["--output-dir", "out", "librccl.so"];
    succeeds(&tree, &[&["extract", "--arch", "gfx90a:xnack-"], &out[..]].concat());
    let names: Vec<String> = files_in(&tree.path("out")).into_keys().collect();
    assert_eq!(names, ["librccl.so-0-gfx90a:xnack-.hsaco"]);

    let none = ["extract", "--arch", "gfx1250", "--output-dir", "none"];
    let said = fails(&tree, &[&none[..], &["librccl.so"]].concat(), 3);
    assert!(
        said.contains(
            "no code object for gfx1250; the file has code for gfx1100, gfx90a:xnack+, gfx90a:xnack-, \
             and the kernels librccl.so#0, librccl.so#1"
        ),
        "{said}"
    );
    assert!(!tree.path("none").exists());
    // One file can only hold one code object.
    let said = fails(&tree, &["extract", "--arch", "gfx90a", "-o", "one", "librccl.so"], 3);
    assert!(said.contains("3 code objects are selected"), "{said}");
    let one = ["extract", "--arch", "gfx1100", "-o", "-", "librccl.so"];
    assert_eq!(kpack(&tree, &one).stdout, code("gfx1100", "add").1);
}

/// What ROCm's build calls shared/kpack, in a scratch directory: a link to the adapter.
fn adapter(tree: &Tree) -> PathBuf {
    let root = repository();
    let link = tree.path("rocm-systems/shared/kpack");
    fs::create_dir_all(link.parent().unwrap()).unwrap();
    symlink(root.join("therock"), &link).unwrap();
    link
}

/// What the build has staged for an artifact: a library, and the stamp of the step that made it.
fn stage(tree: &Tree, prefix: &str, path: &str, library: &FatLibrary) {
    let directory = tree.path(&format!("stage/{prefix}"));
    let (root, _) = path.split_once("/lib/").unwrap();
    library.build(&directory.join(path)).unwrap();
    fs::write(directory.join("artifact_manifest.txt"), format!("{root}\n")).unwrap();
    fs::write(tree.path(&format!("stage/{prefix}.stamp")), "").unwrap();
}

#[test]
fn a_build_with_ninja_splits_what_has_changed_and_nothing_else() {
    if !["cmake", "ninja", "python3"].into_iter().all(tool) {
        return;
    }
    // Given staged artifacts, and others that are already split,
    let tree = Tree::new();
    let rand = "math-libs/rocRAND/stage/lib/librocrand.so.1";
    let kernel = |name| FatLibrary::new().wrapper(Storage::Plain, [code("gfx942", name)]);
    stage(&tree, "rand_lib", rand, &kernel("one"));
    let rccl = FatLibrary::new().wrapper(Storage::Zstd(3), [code("gfx1250", "all_reduce")]);
    let library = "comm-libs/rccl/stage/lib/librccl.so.1";
    stage(&tree, "rccl_lib", library, &rccl);
    let other = tree.path("build/artifacts/hip_lib_generic");
    write(other.join("artifact_manifest.txt"), "");
    let define = |name: &str, path: &Path| format!("-D{name}={}", path.display());
    let source = repository().join("tests/therock");
    let run = |program: &str, arguments: &[&OsStr]| {
        let output = Command::new(program)
            .args(arguments)
            .env("KPACK_EXECUTABLE", env!("CARGO_BIN_EXE_kpack"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .current_dir(tree.root())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let kpack_dir = define("KPACK_DIR", &adapter(&tree));
    let staged = define("STAGE", &tree.path("stage"));
    let configure = ["-G", "Ninja", "-B", "build", &kpack_dir, &staged, "-S"].map(OsStr::new);
    run("cmake", &[&configure[..], &[source.as_os_str()]].concat());
    let ninja = || run("ninja", &["-C", "build", "-v"].map(OsStr::new));
    let no_work = "ninja: no work to do.";
    // when it is built, then each is split beside the others,
    assert!(!ninja().contains(no_work));
    let archive = "build/artifacts/rand_lib_gfx942/math-libs/rocRAND/stage";
    let archives = || {
        WalkDir::new(tree.path(archive))
            .into_iter()
            .map(Result::unwrap)
            .filter(|entry| entry.path().extension().is_some_and(|extension| extension == "kpack"))
    };
    let first = archives().map(|entry| fs::read(entry.path()).unwrap()).next().unwrap();
    assert!(other.is_dir());
    assert_eq!(
        files_in(&tree.path("build/unbundled")).into_values().collect::<Vec<_>>(),
        [code("gfx1250", "all_reduce").1]
    );
    // the list of prefixes is written last,
    let list = "rand_lib_generic/artifact_manifest.txt";
    let time = |path: &str| fs::metadata(tree.path(path)).unwrap().modified().unwrap();
    let written = time(&format!("build/artifacts/{list}"));
    assert!(written > time("build/artifacts-unsplit/rand_lib_gfx94X-dcgpu/artifact_manifest.txt"));
    assert!(archives().all(|entry| entry.metadata().unwrap().modified().unwrap() <= written));
    // and again there is nothing to do.
    assert!(ninja().contains(no_work));
    // When one has changed, then only that is split again.
    let rccl = tree.path(&format!("build/artifacts/rccl_lib_generic/{library}"));
    let untouched = fs::metadata(&rccl).unwrap().ino();
    stage(&tree, "rand_lib", rand, &kernel("two"));
    let text = ninja();
    assert!(text.contains("--artifact-prefix rand_lib"), "{text}");
    assert!(!text.contains("--artifact-prefix rccl_lib"), "{text}");
    let second = archives().map(|entry| fs::read(entry.path()).unwrap()).next().unwrap();
    assert_ne!(first, second);
    assert_eq!(fs::metadata(&rccl).unwrap().ino(), untouched);
    assert!(ninja().contains(no_work));
}

#[test]
fn each_tool_runs_as_a_file_and_as_a_module() {
    if !tool("python3") {
        return;
    }
    let tree = Tree::new();
    let python = adapter(&tree).join("python");
    for (name, command) in [
        ("split_artifacts", "artifact split"),
        ("recombine_artifacts", "artifact recombine"),
        ("verify_artifacts", "verify"),
        ("bulk_unbundle", "extract"),
        ("normalize_phdr_tree", "leaves"),
    ] {
        let file = python.join(format!("rocm_kpack/tools/{name}.py"));
        let module = format!("rocm_kpack.tools.{name}");
        for arguments in [vec![file.as_os_str()], vec!["-m".as_ref(), module.as_ref()]] {
            let output = Command::new("python3")
                .args(&arguments)
                .arg("--help")
                .current_dir(tree.root())
                .env("PYTHONPATH", &python)
                .env("PYTHONDONTWRITEBYTECODE", "1")
                .env("KPACK_EXECUTABLE", env!("CARGO_BIN_EXE_kpack"))
                .output()
                .unwrap();
            let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            assert!(said.contains(&format!("kpack {command}")), "{said}");
            assert!(output.status.success(), "{said}");
        }
    }
}

/// A tool of the adapter, in the tree.
fn run_tool(tree: &Tree, name: &str, arguments: &[&str]) -> Output {
    let tool = adapter(tree).join(format!("python/rocm_kpack/tools/{name}.py"));
    Command::new("python3")
        .arg(tool)
        .args(arguments)
        .current_dir(tree.root())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("KPACK_EXECUTABLE", env!("CARGO_BIN_EXE_kpack"))
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn several_files_are_unbundled_into_a_directory_each() {
    if !tool("python3") {
        return;
    }
    let (tree, scratch) = (Tree::new(), Tree::new());
    for name in ["librccl.so.1", "libother.so"] {
        library().build(&scratch.path(name)).unwrap();
    }
    let file = |name: &str| scratch.path(name).to_str().unwrap().to_owned();
    let files = [file("librccl.so.1"), file("libother.so")];
    let arguments = ["--gfx-arch", "gfx1100", &files[0], &files[1]];
    let output = run_tool(&tree, "bulk_unbundle", &arguments);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.ends_with("libother.unbundled: libother.so-0-gfx1100.hsaco\n"), "{said}");
    for written in [
        "librccl.so.unbundled/librccl.so.1-0-gfx1100.hsaco",
        "libother.unbundled/libother.so-0-gfx1100.hsaco",
    ] {
        let bytes = fs::read(scratch.path(written)).unwrap();
        assert_eq!(bytes, code("gfx1100", "add").1, "{written}");
    }
    let tree = Tree::new();
    let arguments = ["--output-dir", "one", &files[0], &files[1]];
    let output = run_tool(&tree, "bulk_unbundle", &arguments);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let tree = Tree::new();
    let output = run_tool(&tree, "bulk_unbundle", &["--gfx-arch=gfx942", &files[0]]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}

#[test]
fn what_kpack_split_has_its_program_headers_where_the_linker_put_them() {
    if !tool("python3") {
        return;
    }
    let scratch = Tree::new();
    library().build(&scratch.path("lib/librccl.so.1")).unwrap();
    succeeds(&scratch, &["split", "--prefix", ".", "--module", "rccl", "--all"]);
    process::run(Command::new("strip").arg(scratch.path("lib/librccl.so.1")));
    let root = scratch.root().to_str().unwrap();
    let checked = |tree: &Tree| run_tool(tree, "normalize_phdr_tree", &["--check", root]);
    let output = checked(&Tree::new());
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, "Scanned 1 ELF file(s); 0 non-compliant.\n");
    assert!(output.status.success());
    // A file whose headers another tool moved to its end is named.
    let path = scratch.path("lib/librccl.so.1");
    let mut bytes = fs::read(&path).unwrap();
    let word = |bytes: &[u8], at: usize, size| {
        let mut word = [0; 8];
        word[..size].copy_from_slice(&bytes[at..at + size]);
        u64::from_le_bytes(word)
    };
    let (size, count) = (word(&bytes, 54, 2), word(&bytes, 56, 2));
    let end = bytes.len() as u64;
    let mut table = bytes[64..][..(size * count) as usize].to_vec();
    let of_load = |at: &usize| word(&table, at * size as usize, 4) == 1;
    let load = (0..count as usize).rfind(of_load).unwrap() * size as usize;
    table[load + 8..load + 16].copy_from_slice(&end.to_le_bytes());
    table[load + 16..load + 24].copy_from_slice(&(end + 0x1000).to_le_bytes());
    bytes.extend(table);
    bytes[32..40].copy_from_slice(&end.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let output = checked(&Tree::new());
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("NONCOMPLIANT  "), "{said}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn the_named_command_may_be_on_the_path_and_must_run() {
    if !tool("python3") {
        return;
    }
    let tree = Tree::new();
    let tools = adapter(&tree).join("python/rocm_kpack/tools");
    let run = |named: &str| {
        let mut command = Command::new("python3");
        command.arg(tools.join("verify_artifacts.py")).arg("--help");
        let directory = Path::new(env!("CARGO_BIN_EXE_kpack")).parent().unwrap();
        let path = format!("{}:{}", directory.display(), env!("PATH"));
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("PATH", path);
        process::output(command.env("KPACK_EXECUTABLE", named))
    };
    assert!(run("kpack").status.success());
    let output = run("/nowhere/kpack");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert_eq!(
        said,
        "kpack: error: /nowhere/kpack: no such program; set KPACK_EXECUTABLE to the command kpack\n"
    );
}

#[test]
fn a_link_to_the_distribution_has_the_command_and_the_loader() {
    if !["cmake", "python3"].into_iter().all(tool) {
        return;
    }
    // Given a distribution,
    let tree = Tree::new();
    for file in [
        "dist/lib/librocm_kpack.so.0",
        "dist/lib/librocm_kpack.a",
        "dist/lib/cmake/rocm-kpack/rocm-kpack-config.cmake",
        "dist/include/rocm_kpack/kpack.h",
    ] {
        tree.write(file, file);
    }
    symlink("librocm_kpack.so.0", tree.path("dist/lib/librocm_kpack.so")).unwrap();
    fs::create_dir_all(tree.path("dist/bin")).unwrap();
    process::copy(env!("CARGO_BIN_EXE_kpack"), tree.path("dist/bin/kpack"));
    let link = adapter(&tree);
    let installed = tree.path("dist/share/kpack/therock");
    for entry in WalkDir::new(fs::canonicalize(&link).unwrap()).min_depth(1) {
        let entry = entry.unwrap();
        let root = fs::canonicalize(&link).unwrap();
        let to = installed.join(entry.path().strip_prefix(root).unwrap());
        if entry.file_type().is_dir() {
            fs::create_dir_all(to).unwrap()
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
    fs::remove_file(&link).unwrap();
    symlink(&installed, &link).unwrap();
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(program)
            .args(arguments)
            .current_dir(tree.root())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env_remove("KPACK_EXECUTABLE")
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    let source = "rocm-systems/shared/kpack";
    // then its tools find the command, and its project installs the loader.
    let verify = format!("{source}/python/rocm_kpack/tools/verify_artifacts.py");
    run("python3", &[&verify, "--help"]);
    run("cmake", &["-S", source, "-B", "build", "-DCMAKE_INSTALL_PREFIX=stage"]);
    run("cmake", &["--install", "build", "--prefix", "stage"]);
    for file in [
        "lib/librocm_kpack.so",
        "lib/librocm_kpack.so.0",
        "lib/librocm_kpack.a",
        "lib/cmake/rocm-kpack/rocm-kpack-config.cmake",
        "include/rocm_kpack/kpack.h",
    ] {
        assert!(tree.path("stage").join(file).is_file(), "{file}");
    }
    assert!(tree.path("stage/lib/librocm_kpack.so").is_symlink());
}
