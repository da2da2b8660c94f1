//! Given a program with libraries for several GPUs, when it is staged with `--split`, then there is a directory for the host and
//! one for each target, and those for a machine make up the application.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use insta::assert_snapshot;
use kpack_core::Severity;
use kpack_doctor::{Options, Scope, examine};
use kpack_split::install::{InstallOptions, install};
use kpack_tests::fixture::{
    FatLibrary, Kind, Storage, code, code_object, rocm_split, stub_library,
};
use kpack_tests::process;
use kpack_tests::require::tools;
use kpack_tests::tree::{Tree, entries_below};
use serde_json::Value;

use crate::cargo_build::nothing_hidden;
use crate::command::{Row, said, said_by, succeeds, words};
use crate::machine::reading_runtime;
use crate::stage_application::{GPUS, database, library};
use crate::verified::{check_with, faults as faults_in};

/// ROCm in `rocm`, whose runtime reads archives, and a program in `app` with code of its own, a library, and MIOpen's plugins.
pub(crate) fn application() -> Tree {
    let tree = Tree::new();
    let at = |name: &str| tree.path("rocm/lib").join(name);
    reading_runtime(&tree, "rocm/lib/libamdhip64.so.7", "rocm/lib/librocm_kpack.so.0");
    let hip = at("libamdhip64.so.7");
    library("librocblas.so.5").linked_with(&hip, "$ORIGIN").build(&at("librocblas.so.5")).unwrap();
    library("libMIOpen.so.1").linked_with(&hip, "$ORIGIN").build(&at("libMIOpen.so.1")).unwrap();
    for gpu in GPUS {
        database(&tree, gpu);
        let plugin = FatLibrary::new().wrapper(Storage::Plain, [code(gpu, "plugin")]);
        plugin.build(&at(&format!("libMIOpenCKGroupedConv_{gpu}.so"))).unwrap();
        tree.write(&format!("rocm/share/miopen/db/{gpu}.kdb"), "");
    }
    let vec = library("libvec.so").linked_with(at("librocblas.so.5"), "$ORIGIN/../../rocm/lib");
    let vec = vec.linked_with(at("libMIOpen.so.1"), "$ORIGIN/../../rocm/lib");
    vec.build(&tree.path("app/lib/libvec.so")).unwrap();
    // Its module has the name of the library's.
    let program = FatLibrary::new().kind(Kind::Pie);
    let program = program.wrapper(Storage::Plain, GPUS.map(|gpu| code(gpu, "program")));
    let program = program.linked_with(tree.path("app/lib/libvec.so"), "$ORIGIN/../lib");
    program.flag("-Wl,--allow-shlib-undefined").build(&tree.path("app/bin/vec")).unwrap();
    tree
}

/// Unpacks these parts over each other, in this order.
pub(crate) fn unpacked(tree: &Tree, parts: &[&str]) -> PathBuf {
    let installed = tree.path("installed");
    let _ = fs::remove_dir_all(&installed);
    fs::create_dir(&installed).unwrap();
    for part in parts {
        let mut cp = Command::new("cp");
        process::run(cp.arg("-a").arg(tree.path("dist").join(part).join(".")).arg(&installed));
    }
    installed
}

/// Given what cannot be split, then the message says why, and nothing is written.
#[test]
fn what_cannot_be_split() {
    let rows: &[Row] = &[
        (
            "a HIP runtime that reads no archives",
            |tree| {
                let hip = tree.path("rocm/lib/libamdhip64.so.7");
                fs::remove_file(&hip).unwrap();
                stub_library(&hip, "", &[]);
            },
            &["kpack stage app/bin/vec --output-dir dist --split"],
        ),
        (
            "code that is for another GPU than its file name says",
            |tree| {
                let name = "rocm/lib/rocblas/library/Kernels.so-000-gfx942.hsaco";
                tree.write(name, code("gfx1100", "kernels").1);
            },
            &["kpack stage app/bin/vec --output-dir dist --split"],
        ),
        (
            "a damaged bundle",
            |tree| {
                let plain = FatLibrary::new();
                let broken = plain.wrapper(Storage::Plain, [code("gfx942", "broken")]);
                broken.build(&tree.path("broken/libbroken.so")).unwrap();
                let path = tree.path("broken/libbroken.so");
                let mut bytes = fs::read(&path).unwrap();
                let magic = b"__CLANG_OFFLOAD_BUNDLE__";
                let at = bytes.windows(magic.len()).position(|found| found == magic).unwrap();
                bytes[at] = b'x';
                fs::write(path, bytes).unwrap();
            },
            &["kpack stage app/bin/vec --also broken/libbroken.so --output-dir dist --split"],
        ),
        (
            "no code for a GPU",
            |_| {},
            &["kpack stage app/bin/vec --output-dir dist --split --arch gfx1030"],
        ),
        (
            "debug information of code that stays where it is",
            |_| {},
            &["kpack stage app/bin/vec --output-dir dist --strip-debug"],
        ),
        ("without a program", |_| {}, &["kpack stage --output-dir dist --split"]),
    ];
    let tree = application();
    assert_snapshot!(said_by(rows, &tree));
    nothing_hidden(&tree);
    assert!(!tree.path("dist").exists());
}

/// Given an existing output, split or not, then the next run replaces it, with the other kind as well, and with fewer GPUs.
#[test]
fn a_second_run_replaces_the_first() {
    let tree = application();
    fs::create_dir(tree.path("dist")).unwrap();
    let files = |options: &str| {
        succeeds(&tree, &words(&format!("stage app/bin/vec --output-dir dist{options}")));
        let names = fs::read_dir(tree.path("dist")).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        BTreeSet::from_iter(names.filter(|name| name != ".kpack-stage"))
    };
    let set = |names: &[&str]| BTreeSet::from_iter(names.iter().map(ToString::to_string));
    assert_eq!(files(" --split"), set(&["gfx1100", "gfx942", "host"]));
    assert_eq!(files(" --split --arch gfx942"), set(&["gfx942", "host"]));
    assert!(!tree.files().iter().any(|file| file.starts_with("dist") && file.contains("gfx1100")));
    assert_eq!(files(""), set(&["bin", "lib", "share"]));
    assert_eq!(files(" --split"), set(&["gfx1100", "gfx942", "host"]));
    tree.write("dist/gfx942/mine", "");
    let said = said(&tree, &words("stage app/bin/vec --output-dir dist --split"));
    assert!(said.contains("it has `gfx942/mine`, which was not staged"), "{said}");
}

/// The archives in the directory for the host.
pub(crate) fn archives_of_host(tree: &Tree) -> Vec<String> {
    let is_one = |file: &String| file.starts_with("dist/host/") && file.ends_with(".kpack");
    Vec::from_iter(tree.files().into_iter().filter(is_one))
}

/// The faults that the doctor finds in a program of an installed application for a GPU.
pub(crate) fn faults(tree: &Tree, installed: &Path, program: &str, gpu: &str) -> String {
    let mut options = Options::default();
    options.targets = vec![gpu.parse().unwrap()];
    options.system = tree.path("system");
    options.scope = Some(Scope { directory: Some(installed.to_owned()), ..Scope::default() });
    let report = examine(&[installed.join(program)], &options).unwrap();
    let findings = report.findings.iter().map(|found| &found.finding);
    let faults = findings.filter(|finding| finding.severity == Severity::Fault);
    Vec::from_iter(faults.map(|fault| format!("{}: {}", fault.file().display(), fault.text)))
        .join("\n")
}

#[test]
fn parts_unpack_over_each_other() {
    let tree = application();
    assert_snapshot!(said(&tree, &words("stage app/bin/vec --output-dir dist --split")));
    let first = entries_below(&tree.path("dist"));
    succeeds(&tree, &words("stage app/bin/vec --output-dir dist --split"));
    assert_eq!(entries_below(&tree.path("dist")), first);
    nothing_hidden(&tree);
    let files = tree.files().into_iter();
    let files = files.filter_map(|file| Some(file.strip_prefix("dist/")?.to_owned()));
    assert_snapshot!(Vec::from_iter(files).join("\n"));
    for gone in ["rocm", "app"] {
        fs::rename(tree.path(gone), tree.path(&format!("gone-{gone}"))).unwrap();
    }
    for gpu in GPUS {
        let installed = unpacked(&tree, &["host", gpu]);
        let entries = entries_below(&installed);
        assert_eq!(entries_below(&unpacked(&tree, &[gpu, "host"])), entries);
        assert_eq!(faults(&tree, &installed, "bin/vec", gpu), "");
        process::run(&mut Command::new(installed.join("bin/vec")));
    }
    let installed = unpacked(&tree, &["host", "gfx942"]);
    assert!(faults(&tree, &installed, "bin/vec", "gfx1100").contains("gfx1100"));
    // Parts that are not unpacked lack each other.
    let hint = "unpack `host` and the parts for one GPU into one directory";
    let beside = said(&tree, &words("verify dist"));
    assert!(beside.contains("[missing-archive]") && beside.contains(hint), "{beside}");
    fs::remove_dir_all(installed.join("lib/.kpack")).unwrap();
    assert!(!said(&tree, &words("verify installed")).contains(hint));
}

/// Given split binaries whose HIP runtime the system must provide, then one note says which ROCm they need, unless the shim finds
/// their code.
#[test]
fn the_rocm_that_a_system_needs() {
    let tree = application();
    let build = |other: &str| {
        let libraries = ["libamdhip64.so.7", other].map(|name| tree.path("rocm/lib").join(name));
        let vec = libraries.iter().fold(library("libvec.so"), |vec, library| {
            vec.linked_with(library, "$ORIGIN/../../rocm/lib")
        });
        vec.build(&tree.path("app/lib/libvec.so")).unwrap();
    };
    let notes = |options: &str| {
        let said = said(&tree, &words(&format!("stage app/bin/vec --output-dir dist{options}")));
        assert!(said.ends_with("exit code 0\n"), "{said}");
        let lines = said.lines().filter(|line| line.contains("[newer-rocm-needed]"));
        Vec::from_iter(lines.map(str::to_owned))
    };
    let text = "kpack: note: the system must provide the HIP runtime (libamdhip64.so.7), and the split binaries need that \
                of ROCm 7.13 or newer; for an older ROCm,";
    build("librocblas.so.5");
    for leaves_out in [" --system-rocm", " --exclude libamdhip64.so.*"] {
        let expected = format!("{text} stage without `--split` [newer-rocm-needed]");
        assert_eq!(notes(&format!("{leaves_out} --split")), [expected]);
        assert_eq!(notes(leaves_out), [""; 0]);
    }
    assert_eq!(notes(" --split"), [""; 0]);
    install(&InstallOptions::new(tree.path("app"), "vec", ["lib/libvec.so"]), &()).unwrap();
    let expected = format!("{text} run `kpack join` [newer-rocm-needed]");
    assert_eq!(notes(" --system-rocm"), [expected]);
    stub_library(&tree.path("rocm/lib/libkpack_hip.so.0"), "", &[]);
    build("libkpack_hip.so.0");
    assert_eq!(notes(" --system-rocm --split"), [""; 0]);
}

/// Given files in a kernel database that it does not know, then they are in the host's part, which one note says.
#[test]
fn files_that_may_be_for_one_gpu() {
    let tree = application();
    let note = |found: &str| {
        let mut lines = found.lines().filter(|line| line.contains("[unplaced-file]"));
        (lines.next().map(str::to_owned), lines.count())
    };
    let line = words("stage app/bin/vec --output-dir dist --split");
    assert_eq!(note(&said(&tree, &line)), (None, 0));
    for number in 1..=5 {
        tree.write(&format!("rocm/lib/rocblas/library/notes_{number}_gfx942.json"), "");
    }
    let (said, others) = note(&said(&tree, &line));
    let (said, path) = (said.unwrap(), "lib/rocblas/library/notes");
    let names =
        format!("{path}_1_gfx942.json, {path}_2_gfx942.json, {path}_3_gfx942.json and 2 more");
    assert!(said.contains("/dist/host: has files") && said.contains(&names), "{said}");
    assert_eq!(others, 0);
    assert!(tree.path("dist/host").join(format!("{path}_5_gfx942.json")).exists());
}

/// Given a library that was split before, and a program that is not, both of a module of one name, then an archive has the code of
/// both, so none of them is what it was made of.
#[test]
fn an_archive_with_code_of_two_binaries() {
    let tree = application();
    let archive = "lib/.kpack/vec_lib_gfx942.kpack";
    let sources = |options: &str| {
        let line = format!("stage app/bin/vec --output-dir dist --json{options}");
        let staged: Value = serde_json::from_str(&succeeds(&tree, &words(&line))).unwrap();
        let files = staged["files"].as_array().unwrap().clone().into_iter();
        BTreeMap::from_iter(files.map(|file| {
            let path = file["path"].as_str().unwrap().to_owned();
            (path, file["from"].as_str().map(str::to_owned))
        }))
    };
    install(&InstallOptions::new(tree.path("app"), "vec", ["lib/libvec.so"]), &()).unwrap();
    let from = |path: &str| Some(tree.path("app").join(path).to_str().unwrap().to_owned());
    assert_eq!(sources("")[archive], from(archive));
    let split = sources(" --split");
    for path in [format!("gfx942/{archive}"), "host/lib/.kpack/vec_lib.kpm".to_owned()] {
        assert_eq!(split[&path], None, "{path}");
        assert!(tree.path("dist").join(path).exists());
    }
    assert_eq!(split["host/lib/libvec.so"], from("lib/libvec.so"));
}

/// Given a library that ROCm's tool split, and the same after a join, then the parts have its code, whatever else is in its archives.
#[test]
fn libraries_of_rocms_tool() {
    let codes = |of: u8| {
        let code = |(gpu, byte)| (gpu, code_object(gpu, &[byte; 50_000]).unwrap());
        GPUS.into_iter().zip(of..).map(code)
    };
    for name in ["app", "vec"] {
        let tree = Tree::new();
        let library = FatLibrary::new().wrapper(Storage::Plain, codes(1));
        let library = library.wrapper(Storage::Zstd(2), codes(3)).flag("-Wl,-soname,libvec.so");
        library.build(&tree.path("app/lib/libvec.so")).unwrap();
        let program = FatLibrary::new().kind(Kind::Pie).wrapper(Storage::Plain, codes(5));
        let program = program.linked_with(tree.path("app/lib/libvec.so"), "$ORIGIN/../lib");
        program.build(&tree.path(&format!("app/bin/{name}"))).unwrap();
        tree.copy_file("app/lib/libvec.so", "fat");
        rocm_split(&library, &tree.path("app"), "lib/libvec.so", "vec_lib").unwrap();
        for joins in [false, true] {
            if joins {
                succeeds(&tree, &words("join --prefix app --arch all lib/libvec.so"));
            }
            succeeds(&tree, &words(&format!("stage app/bin/{name} --output-dir dist --split")));
            assert_eq!(archives_of_host(&tree), [""; 0]);
            for gpu in GPUS {
                let installed = unpacked(&tree, &["host", gpu]);
                let program = format!("bin/{name}");
                assert_eq!(faults(&tree, &installed, &program, gpu), "");
                let originals =
                    [("lib/libvec.so", "fat".to_owned()), (&program, format!("app/{program}"))];
                for (file, original) in originals {
                    let file = format!("installed/{file}");
                    let report = check_with(&tree, &file, Some(&original), &[gpu]);
                    assert_eq!(faults_in(&report), [""; 0], "{name}: {file} {gpu} {joins}");
                }
                process::run(&mut Command::new(installed.join(program)));
            }
        }
    }
}

/// Given a library that was joined for one GPU, when the code for another is in archives that its part would not have, then the
/// message says what to do.
#[test]
fn code_that_a_join_left_in_archives() {
    let tree = application();
    install(&InstallOptions::new(tree.path("app"), "other", ["lib/libvec.so"]), &()).unwrap();
    let stage = words("stage app/bin/vec --output-dir dist --split");
    let join = |gpus: &str| {
        succeeds(&tree, &words(&format!("join --prefix app --arch {gpus} lib/libvec.so")));
    };
    join("gfx942");
    let said = said(&tree, &stage);
    let expected = "/app/lib/libvec.so: joined, and its code for gfx1100 is only in `.kpack/other_lib_@GFXARCH@.kpack` \
                    (expected `.kpack/vec_lib_@GFXARCH@.kpack`); to stage it, run `kpack join --arch all` first \
                    [split-already]";
    assert!(said.contains(expected), "{said}");
    join("all");
    succeeds(&tree, &stage);
    for gpu in GPUS {
        assert_eq!(faults(&tree, &unpacked(&tree, &["host", gpu]), "bin/vec", gpu), "");
    }
}

/// Given programs and libraries with much code and with run paths, then the parts have what `kpack split` makes of them in an
/// application that is not in parts.
#[test]
fn the_parts_of_split_files() {
    let tree = Tree::new();
    let codes = || {
        let code = |(gpu, byte)| (String::from(gpu), code_object(gpu, &[byte; 50_000]).unwrap());
        ["gfx1100", "gfx942"].into_iter().zip(1..).map(code)
    };
    let library = FatLibrary::new().wrapper(Storage::Plain, codes());
    let library = library.flag("-Wl,-soname,libvec.so");
    library
        .wrapper(Storage::Plain, [code("gfx942", "small")])
        .build(&tree.path("app/lib/libvec.so"))
        .unwrap();
    let program = FatLibrary::new().kind(Kind::Pie).wrapper(Storage::Plain, codes());
    let program = program.linked_with(tree.path("app/lib/libvec.so"), "$ORIGIN/../lib:/elsewhere");
    program.build(&tree.path("app/bin/vec")).unwrap();
    succeeds(&tree, &words("stage app/bin/vec --output-dir dist --split"));
    succeeds(&tree, &words("stage app/bin/vec --output-dir whole"));
    succeeds(&tree, &words("split --prefix whole --module vec bin/vec lib/libvec.so"));
    let mut expected = entries_below(&tree.path("whole"));
    expected.retain(|path, _| path != Path::new(".kpack-stage"));
    assert_eq!(entries_below(&unpacked(&tree, &["host", "gfx1100", "gfx942"])), expected);
}

/// Given code with debug information, then that goes to another directory, as with `kpack split`, if nothing fails.
#[test]
fn debug_information() {
    if !tools(&["clang-19", "ld.lld-19"]) {
        return;
    }
    let tree = Tree::new();
    tree.write("add.hip", "__attribute__((global)) void add(float *out) { *out = 1; }\n");
    let codes = GPUS.map(|gpu| {
        let line = "-x hip -nogpulib -nogpuinc -O1 -g -Xoffload-linker --build-id --cuda-device-only \
            --no-gpu-bundle-output -o add.co add.hip --offload-arch=";
        let mut clang = Command::new("clang-19");
        process::run(clang.args(format!("{line}{gpu}").split_whitespace()).current_dir(tree.root()));
        (gpu.to_owned(), fs::read(tree.path("add.co")).unwrap())
    });
    let program = FatLibrary::new().kind(Kind::Pie).wrapper(Storage::Plain, codes);
    program.build(&tree.path("bin/add")).unwrap();
    let staged = |options: &str| {
        succeeds(&tree, &words(&format!("stage bin/add --output-dir dist --split{options}")));
        fs::metadata(tree.path("dist/gfx942/lib/.kpack/add_lib_gfx942.kpack")).unwrap().len()
    };
    let size = staged("");
    let again = said(&tree, &words("stage bin/add --output-dir dist --split"));
    let places =
        "in gfx1100/lib/.kpack/add_lib_gfx1100.kpack, gfx942/lib/.kpack/add_lib_gfx942.kpack";
    let advice = format!("stored device code {places}; to remove it, stage with --strip-debug");
    assert!(again.contains("/dist: debug information") && again.contains(&advice), "{again}");
    let failing = "stage bin/add --output-dir dist --split --strip-debug=debug --arch gfx1030";
    assert!(said(&tree, &words(failing)).contains("[missing-target]"));
    assert!(!tree.path("debug").exists());
    assert!(staged(" --strip-debug=debug") < size);
    let files = tree.files();
    assert_eq!(files.iter().filter(|file| file.starts_with("debug/.build-id/")).count(), 2);
    assert!(staged(" --strip-debug") < size);
    let stripped = said(&tree, &words("stage bin/add --output-dir dist --split --strip-debug"));
    let line = stripped.lines().find(|line| line.contains("/dist: removed the debug information"));
    let line = line.unwrap_or_else(|| panic!("{stripped}"));
    assert!(line.ends_with(&format!("%) {places} [debug-information]")), "{line}");
    for place in places[3..].split(", ") {
        assert!(tree.path("dist").join(place).exists(), "{place}");
    }
    nothing_hidden(&tree);
}
