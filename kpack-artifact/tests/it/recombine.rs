//! Given the split artifacts of several shards, when they are recombined, then there is one generic artifact
//! and one for each group of targets, which make an installation when copied into one root in any order; and
//! shards that do not fit together are rejected by name.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::planned::{CONFIGURATION, assert_said, options, planned, said, with_validation};
use crate::shards::{DATABASE, PREFIX, shard, three_shards};
use crate::verified::{check, check_with, faults};
use kpack_artifact::recombine::{Options, Severity, plan};
use kpack_core::ids;
use kpack_format::manifest::Manifest;
use kpack_split::install::install;
use kpack_tests::fixture::{FatLibrary, code_object};
use kpack_tests::tree::{Tree, write};

fn recombine(tree: &Tree) {
    let options = options(tree, CONFIGURATION);
    let plan = plan(&options, &()).unwrap();
    assert_eq!(said(&plan), [""; 0]);
    plan.apply(&options, &()).unwrap();
}

fn targets(path: &Path) -> Vec<String> {
    let manifest = Manifest::read(&fs::read(path).unwrap()).unwrap();
    assert_eq!(manifest.component_name, "rocblas_lib");
    assert_eq!(manifest.prefix, "lib");
    manifest.kpack_files.into_keys().collect()
}

fn below(tree: &Tree, directory: &str) -> Vec<String> {
    let start = format!("{directory}/");
    let files = tree.files().into_iter();
    files.filter_map(|file| file.strip_prefix(&start).map(str::to_owned)).collect()
}

#[test]
fn one_generic_artifact_and_one_for_each_group() {
    let tree = three_shards();
    recombine(&tree);
    let expected = [
        "blas_lib_generic/.kpack-artifact",
        "blas_lib_generic/artifact_manifest.txt",
        "blas_lib_generic/math-libs/BLAS/rocBLAS/stage/lib/.kpack/rocblas_lib.kpm",
        "blas_lib_generic/math-libs/BLAS/rocBLAS/stage/lib/librocblas.so",
        "blas_lib_generic/math-libs/BLAS/rocBLAS/stage/lib/librocblas.so.5",
        "blas_lib_generic/math-libs/BLAS/rocBLAS/stage/lib/rocblas/library/TensileLibrary_fallback.dat",
        "blas_lib_gfx110X/.kpack-artifact",
        "blas_lib_gfx110X/artifact_manifest.txt",
        "blas_lib_gfx110X/math-libs/BLAS/rocBLAS/stage/lib/.kpack/rocblas_lib.gfx110X.kpm",
        "blas_lib_gfx110X/math-libs/BLAS/rocBLAS/stage/lib/.kpack/rocblas_lib_gfx1100.kpack",
        "blas_lib_gfx110X/math-libs/BLAS/rocBLAS/stage/lib/.kpack/rocblas_lib_gfx1101.kpack",
        "blas_lib_gfx110X/math-libs/BLAS/rocBLAS/stage/lib/rocblas/library/TensileLibrary_Type_SS_gfx1100.co",
        "blas_lib_gfx110X/math-libs/BLAS/rocBLAS/stage/lib/rocblas/library/TensileLibrary_Type_SS_gfx1100.dat",
        "blas_lib_gfx110X/math-libs/BLAS/rocBLAS/stage/lib/rocblas/library/TensileLibrary_Type_SS_gfx1101.co",
        "blas_lib_gfx110X/math-libs/BLAS/rocBLAS/stage/lib/rocblas/library/TensileLibrary_Type_SS_gfx1101.dat",
        "blas_lib_instinct/.kpack-artifact",
        "blas_lib_instinct/artifact_manifest.txt",
        "blas_lib_instinct/math-libs/BLAS/rocBLAS/stage/lib/.kpack/rocblas_lib.instinct.kpm",
        "blas_lib_instinct/math-libs/BLAS/rocBLAS/stage/lib/.kpack/rocblas_lib_gfx90a:xnack+.kpack",
        "blas_lib_instinct/math-libs/BLAS/rocBLAS/stage/lib/.kpack/rocblas_lib_gfx942.kpack",
        "blas_lib_instinct/math-libs/BLAS/rocBLAS/stage/lib/rocblas/library/TensileLibrary_Type_SS_gfx90a:xnack+.co",
        "blas_lib_instinct/math-libs/BLAS/rocBLAS/stage/lib/rocblas/library/TensileLibrary_Type_SS_gfx90a:xnack+.dat",
        "blas_lib_instinct/math-libs/BLAS/rocBLAS/stage/lib/rocblas/library/TensileLibrary_Type_SS_gfx942.co",
        "blas_lib_instinct/math-libs/BLAS/rocBLAS/stage/lib/rocblas/library/TensileLibrary_Type_SS_gfx942.dat",
    ];
    assert_eq!(below(&tree, "out"), expected);
    let kpack_dir = |artifact: &str| tree.path(&format!("out/{artifact}/{PREFIX}/lib/.kpack"));
    assert_eq!(
        targets(&kpack_dir("blas_lib_generic").join("rocblas_lib.kpm")),
        ["gfx1100", "gfx1101", "gfx90a:xnack+", "gfx942"]
    );
    assert_eq!(
        targets(&kpack_dir("blas_lib_instinct").join("rocblas_lib.instinct.kpm")),
        ["gfx90a:xnack+", "gfx942"]
    );
    let text = fs::read_to_string(tree.path("out/blas_lib_gfx110X/artifact_manifest.txt"));
    assert_eq!(text.unwrap(), format!("{PREFIX}\n"));
    assert!(tree.path(&format!("out/blas_lib_generic/{PREFIX}/share/empty")).is_dir());
}

/// Copies artifacts into one root, as installing packages does.
fn overlay(tree: &Tree, artifacts: &[&str], to: &str) -> PathBuf {
    let root = tree.path(to);
    for artifact in artifacts {
        let from = tree.path(&format!("out/{artifact}/{PREFIX}"));
        for entry in walkdir(&from) {
            let target = root.join(entry.strip_prefix(&from).unwrap());
            if entry.is_dir() && !entry.is_symlink() {
                fs::create_dir_all(target).unwrap();
            } else {
                assert!(!target.exists(), "{} is there already", target.display());
                match fs::read_link(&entry) {
                    Ok(link) => symlink(link, target).unwrap(),
                    Err(_) => drop(fs::copy(&entry, target).unwrap()),
                }
            }
        }
    }
    root
}

/// Everything below a directory, itself first.
fn walkdir(path: &Path) -> Vec<PathBuf> {
    let mut found = vec![path.to_owned()];
    if path.is_dir() && !path.is_symlink() {
        let mut inside: Vec<PathBuf> =
            fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        inside.sort();
        found.extend(inside.iter().flat_map(|path| walkdir(path)));
    }
    found
}

#[test]
fn copied_into_one_root_in_any_order_they_are_an_installation() {
    let tree = three_shards();
    recombine(&tree);
    let all = ["blas_lib_generic", "blas_lib_gfx110X", "blas_lib_instinct"];
    overlay(&tree, &all, "forth");
    assert_eq!(faults(&check(&tree, "forth")), [""; 0]);
    overlay(&tree, &[all[2], all[1], all[0]], "back");
    let relative = |to: &str| below(&tree, to);
    assert_eq!(relative("forth"), relative("back"));
    for file in relative("forth") {
        let read = |to: &str| fs::read(tree.path(to).join(&file)).unwrap();
        assert_eq!(read("forth"), read("back"), "{file}");
    }
}

#[test]
fn an_install_of_some_groups_lacks_nothing_that_its_packages_promise() {
    let tree = three_shards();
    recombine(&tree);
    let root = overlay(&tree, &["blas_lib_gfx110X", "blas_lib_generic"], "some");
    assert_eq!(faults(&check(&tree, "some")), [""; 0]);
    let faults_for = |target| faults(&check_with(&tree, "some", None, &[target]));
    assert_eq!(faults_for("gfx1101"), [""; 0]);
    let missing = faults_for("gfx942");
    assert!(missing.iter().any(|fault| fault.contains("gfx942")), "{missing:#?}");
    // What an installed package promises must be there.
    fs::remove_file(root.join("lib/.kpack/rocblas_lib_gfx1101.kpack")).unwrap();
    let missing = faults(&check(&tree, "some"));
    for file in ["rocblas_lib.gfx110X.kpm", "librocblas.so.5"] {
        let found = |fault: &String| fault.contains(file) && fault.contains("gfx1101");
        assert!(missing.iter().any(found), "{missing:#?}");
    }
    // A fragment must not contradict the complete manifest.
    let part = root.join("lib/.kpack/rocblas_lib.gfx110X.kpm");
    let mut manifest = Manifest::read(&fs::read(&part).unwrap()).unwrap();
    manifest.kpack_files.get_mut("gfx1100").unwrap().checksum = None;
    fs::write(&part, manifest.to_bytes()).unwrap();
    let other = faults(&check(&tree, "some"));
    assert!(
        other.iter().any(|f| f.contains("disagrees with") && f.contains("about gfx1100")),
        "{other:#?}"
    );
}

#[test]
fn an_install_over_it_keeps_the_fragments_of_the_manifest_true() {
    let tree = three_shards();
    recombine(&tree);
    let all = ["blas_lib_generic", "blas_lib_gfx110X", "blas_lib_instinct"];
    let root = overlay(&tree, &all, "root");
    let library = "lib/librocblas.so.5";
    let fat = tree.path(&format!("in/linux-a/blas_lib/{PREFIX}/{library}"));
    fs::copy(fat, root.join(library)).unwrap();
    install(&kpack_split::install::InstallOptions::new(&root, "rocblas", [library]), &()).unwrap();
    assert_eq!(faults(&check(&tree, "root")), [""; 0]);
    let part = |group: &str| targets(&root.join(format!("lib/.kpack/rocblas_lib.{group}.kpm")));
    assert_eq!(part("gfx110X"), ["gfx1100", "gfx1101"]);
    assert_eq!(part("instinct"), [""; 0]);
}

#[test]
fn the_shards_are_not_touched_and_nothing_is_shared_with_them() {
    let tree = three_shards();
    let generic = tree.path(&format!("shards/linux-a/blas_lib_generic/{PREFIX}"));
    fs::create_dir_all(generic.join("bin")).unwrap();
    fs::write(generic.join("bin/tool"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(generic.join("bin/tool"), fs::Permissions::from_mode(0o751)).unwrap();
    fs::hard_link(generic.join("bin/tool"), generic.join("bin/tool-5")).unwrap();
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000);
    for path in ["bin/tool", "share/empty"] {
        let file = fs::File::open(generic.join(path)).unwrap();
        file.set_modified(then).unwrap();
    }
    for other in ["linux-b", "linux-c"] {
        let at = tree.path(&format!("shards/{other}/blas_lib_generic/{PREFIX}/bin"));
        fs::create_dir_all(&at).unwrap();
        for name in ["tool", "tool-5"] {
            fs::copy(generic.join("bin/tool"), at.join(name)).unwrap();
        }
    }
    let inodes = |directory: &str| -> Vec<(PathBuf, u64, i64, i64)> {
        let paths = walkdir(&tree.path(directory)).into_iter();
        paths
            .map(|path| {
                let metadata = path.symlink_metadata().unwrap();
                (path, metadata.ino(), metadata.mtime(), metadata.ctime())
            })
            .collect()
    };
    let before = inodes("shards");
    recombine(&tree);
    assert_eq!(inodes("shards"), before);

    let out = tree.path(&format!("out/blas_lib_generic/{PREFIX}"));
    let (tool, linked) = (out.join("bin/tool").metadata().unwrap(), out.join("bin/tool-5"));
    assert_eq!(tool.mode() & 0o7777, 0o751);
    assert_eq!(tool.modified().unwrap(), then);
    assert_eq!(tool.ino(), linked.metadata().unwrap().ino());
    assert_eq!(tool.nlink(), 2);
    assert_eq!(out.join("share/empty").metadata().unwrap().modified().unwrap(), then);
    assert_eq!(fs::read_link(out.join("lib/librocblas.so")).unwrap(), Path::new("librocblas.so.5"));
    let input: Vec<u64> = before.iter().map(|(_, inode, ..)| *inode).collect();
    for (path, inode, ..) in inodes("out") {
        assert!(!input.contains(&inode), "{}", path.display());
    }
}

#[test]
fn a_second_run_replaces_what_is_there_and_what_was_left_half_done() {
    let tree = three_shards();
    let hidden = tree.path("out/.blas_lib.tmp/.kpack.tmp");
    write(hidden.join("blas_lib_generic/half"), b"");
    write(hidden.join(".old-0.tmp/blas_lib_generic/half"), b"");
    tree.write("out/blas_lib_generic/stale", b"");
    tree.write("out/blas_lib_generic/.kpack-artifact", b"");
    recombine(&tree);
    let first = below(&tree, "out");
    assert!(
        !first.iter().any(|file| file.contains("half") || file.contains("stale")),
        "{first:#?}"
    );
    let times = || {
        // A build knows by the list of prefixes that the artifact is new.
        let is_new = |file: &String| {
            file.ends_with("/artifact_manifest.txt") || file.ends_with("/.kpack-artifact")
        };
        let files = below(&tree, "out").into_iter();
        let files = files.filter(|file| !is_new(file));
        let time = |file: String| {
            tree.path("out").join(&file).symlink_metadata().unwrap().modified().unwrap()
        };
        files.map(time).collect::<Vec<_>>()
    };
    let before = times();
    recombine(&tree);
    assert_eq!(below(&tree, "out"), first);
    assert_eq!(times(), before);
    // Only artifacts are replaced.
    fs::remove_file(tree.path("out/blas_lib_instinct/.kpack-artifact")).unwrap();
    let options = options(&tree, CONFIGURATION);
    let plan = plan(&options, &()).unwrap();
    let error = plan.apply(&options, &()).unwrap_err().in_one_line();
    assert!(error.contains("blas_lib_instinct: is in the way"), "{error}");
}

#[test]
fn targets_that_no_shard_has_or_no_group_takes_are_listed() {
    let tree = Tree::new();
    shard(&tree, "linux-a", &["gfx1100", "gfx906"]);
    let plan = planned(&tree, CONFIGURATION);
    assert_said(
        &plan,
        Severity::Warning,
        &["no shard has gfx1101 for group `gfx110X`", "linux-a has gfx1100, gfx906"],
    );
    assert_said(&plan, Severity::Warning, &["linux-a/blas_lib_gfx906", "unexpected-target"]);
    let names: Vec<&str> = plan.artifacts.iter().map(|artifact| artifact.name.as_str()).collect();
    assert_eq!(names, ["blas_lib_generic", "blas_lib_gfx110X"]);
    assert_eq!(plan.errors(), 0);
    let strict = with_validation("error_on_missing_architecture", true);
    let plan = planned(&tree, &strict);
    assert_said(&plan, Severity::Fault, &["gfx1101 for group `gfx110X`", "missing-target"]);
}

#[test]
fn a_processor_or_a_family_stands_for_its_targets() {
    let tree = Tree::new();
    shard(&tree, "linux-a", &["gfx1100", "gfx90a:xnack+", "gfx942"]);
    let with = |targets: &str| {
        let configuration = format!(
            r#"{{"primary_shard": "linux-a",
                "architecture_groups": {{"all": {{"architectures": [{targets}]}}}}}}"#
        );
        let missing = said(&planned(&tree, &configuration)).into_iter();
        missing.filter(|line| line.contains("no shard has")).count()
    };
    assert_eq!(
        with(r#""gfx1100", "gfx11xx", "gfx90a", "gfx90a:xnack+", "gfx942", "gfx942:xnack-""#),
        0
    );
    // Code for gfx942 runs there.
    assert_eq!(with(r#""gfx942:xnack-""#), 0);
    assert_eq!(with(r#""gfx90a:xnack-""#), 1);
    assert_eq!(with(r#""gfx12xx""#), 1);
}

#[test]
fn the_manifest_lists_all_shards_targets_and_no_other() {
    let tree = three_shards();
    // The shard with gfx90a also built for gfx906, which no group lists.
    shard(&tree, "linux-d", &["gfx906"]);
    fs::remove_dir_all(tree.path("shards/linux-d/blas_lib_generic")).unwrap();
    let options = options(&tree, CONFIGURATION);
    let plan = plan(&options, &()).unwrap();
    assert_said(&plan, Severity::Warning, &["linux-d/blas_lib_generic", "missing-artifact"]);
    plan.apply(&options, &()).unwrap();
    let manifest = format!("out/blas_lib_generic/{PREFIX}/lib/.kpack/rocblas_lib.kpm");
    assert_eq!(targets(&tree.path(&manifest)), ["gfx1100", "gfx1101", "gfx90a:xnack+", "gfx942"]);
    assert!(!below(&tree, "out").iter().any(|file| file.contains("gfx906")));
}

#[test]
fn host_files_that_differ_are_shown() {
    let tree = three_shards();
    let at = |shard: &str, file: &str| {
        tree.path(&format!("shards/{shard}/blas_lib_generic/{PREFIX}/{file}"))
    };
    write(at("linux-a", "share/stamp"), b"built 2026-11-21 07:45:12 by ci");
    write(at("linux-b", "share/stamp"), b"built 2026-11-21 08:01:59 by ci");
    write(at("linux-c", "share/stamp"), b"built 2026-11-21 07:45:12 by ci");
    write(at("linux-a", "lib/rocblas.pc"), b"prefix=/home/a/build/rocblas\n");
    write(at("linux-b", "lib/rocblas.pc"), b"prefix=/home/b/build/rocblas\n");
    FatLibrary::new()
        .flag("-Wl,--build-id=0x0a0b")
        .build(&at("linux-a", "lib/libhost.so"))
        .unwrap();
    FatLibrary::new()
        .flag("-Wl,--build-id=0x0c0d")
        .flag("-Wl,-rpath,/opt/b")
        .build(&at("linux-b", "lib/libhost.so"))
        .unwrap();
    fs::copy(at("linux-a", "lib/libhost.so"), at("linux-c", "lib/libhost.so")).unwrap();
    write(at("linux-c", "lib/more"), b"");
    let fallback = at("linux-c", "lib/rocblas/library/TensileLibrary_fallback.dat");
    fs::set_permissions(fallback, fs::Permissions::from_mode(0o600)).unwrap();
    let plan = planned(&tree, CONFIGURATION);
    for parts in [
        ["linux-b", "share/stamp", "timestamp `", "07:45:12"],
        ["linux-b", "rocblas.pc", "path `prefix=/home/a/build/rocblas` against", "/home/b"],
        ["linux-b", "libhost.so", "differs in RUNPATH (expected none, found `/opt/b`)", ""],
        ["linux-c", "lib/rocblas.pc", "only shard linux-a has it", ""],
        ["linux-c", "lib/more", "only shard linux-c has it", ""],
        ["linux-c", "fallback.dat", "mode 644 against 600", ""],
    ] {
        assert_said(&plan, Severity::Fault, &parts);
    }
    let options = options(&tree, CONFIGURATION);
    let error = plan.apply(&options, &()).unwrap_err().in_one_line();
    assert!(error.contains("nothing was written"), "{error}");
    assert!(!tree.path("out").exists());
    let lenient = with_validation("verify_generic_artifacts_match", false);
    assert_eq!(planned(&tree, &lenient).errors(), 0);
}

#[test]
fn a_host_binary_with_another_layout_gets_a_note() {
    let tree = three_shards();
    // As built: for one target instead of two.
    shard(&tree, "linux-c", &["gfx942"]);
    let plan = planned(&tree, CONFIGURATION);
    let file = "linux-c/blas_lib_generic/math-libs/BLAS/rocBLAS/stage/lib/librocblas.so.5";
    let parts = [
        file,
        "has other bytes, but the same names, symbols and sizes of sections",
        "linux-a's is taken",
    ];
    assert_said(&plan, Severity::Note, &parts);
    assert_eq!(said(&plan).len(), 1, "{:#?}", said(&plan));
}

#[test]
fn a_function_of_another_size_is_an_error() {
    let tree = three_shards();
    let file = "blas_lib_generic/math-libs/BLAS/rocBLAS/stage/lib/librocblas.so.5";
    shard(&tree, "linux-c", &["gfx942"]);
    let path = tree.path(&format!("shards/linux-c/{file}"));
    let mut bytes = fs::read(&path).unwrap();
    // Change the size of a function, at the address of its symbol.
    let (symbol, size) = first_function(&bytes);
    bytes[symbol + 16..symbol + 24].copy_from_slice(&(size - 1).to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let plan = planned(&tree, CONFIGURATION);
    let found = format!("(expected {size} bytes, found {} bytes) [shards-differ]", size - 1);
    let parts = ["linux-c", "librocblas.so.5", "differs in exported symbol `", &found];
    assert_said(&plan, Severity::Fault, &parts);
}

/// Offset of the first dynamic symbol of a function with a size, and the size.
fn first_function(file: &[u8]) -> (usize, u64) {
    use object::read::elf::{ElfFile64, FileHeader};
    use object::{Object, ObjectSection};
    let read: ElfFile64<'_> = ElfFile64::parse(file).unwrap();
    assert!(read.elf_header().is_class_64());
    let (start, length) = read.section_by_name(".dynsym").unwrap().file_range().unwrap();
    let symbols = (start as usize..(start + length) as usize).step_by(24);
    let size = |at: usize| u64::from_le_bytes(file[at + 16..at + 24].try_into().unwrap());
    const FUNCTION: u8 = 2;
    let mut functions = symbols.filter(|at| file[at + 4] & 0xf == FUNCTION && size(*at) > 1);
    let at = functions.next().unwrap();
    (at, size(at))
}

#[test]
fn duplicate_device_code_is_an_error_unless_it_is_identical() {
    let tree = three_shards();
    let at = |shard: &str, file: &str| tree.path(&format!("shards/{shard}/blas_lib_gfx942/{file}"));
    for file in walkdir(&at("linux-c", "")) {
        if file.is_file() {
            let to = at("linux-a", file.strip_prefix(at("linux-c", "")).unwrap().to_str().unwrap());
            write(&to, fs::read(&file).unwrap());
        }
    }
    assert_eq!(said(&planned(&tree, CONFIGURATION)), [""; 0]);
    let database = format!("{PREFIX}/{DATABASE}/TensileLibrary_Type_SS_gfx942.co");
    let other = code_object("gfx942", b"Database").unwrap();
    write(at("linux-a", &database), &other);
    let plan = planned(&tree, CONFIGURATION);
    assert_said(
        &plan,
        Severity::Fault,
        &["TensileLibrary_Type_SS_gfx942.co", "duplicate-device-code", "`Database"],
    );
    let lenient = with_validation("error_on_duplicate_device_code", false);
    let options = options(&tree, &lenient);
    let plan = kpack_artifact::recombine::plan(&options, &()).unwrap();
    assert_said(&plan, Severity::Warning, &["linux-a's is taken"]);
    plan.apply(&options, &()).unwrap();
    let taken = fs::read(tree.path("out/blas_lib_instinct").join(database)).unwrap();
    assert_eq!(taken, other);
}

#[test]
fn files_in_the_wrong_artifact_are_refused() {
    let tree = three_shards();
    let at = |artifact: &str, file: &str| {
        tree.path(&format!("shards/linux-a/blas_lib_{artifact}/{PREFIX}/{file}"))
    };
    write(at("gfx1100", "lib/host.txt"), b"");
    let own = fs::read(at("gfx1100", &format!("{DATABASE}/TensileLibrary_Type_SS_gfx1100.co")));
    write(at("generic", &format!("{DATABASE}/Kernels_gfx1100.hsaco")), own.unwrap());
    let wrong = fs::read(tree.path(&format!(
        "shards/linux-c/blas_lib_gfx942/{PREFIX}/{DATABASE}/TensileLibrary_Type_SS_gfx942.co"
    )))
    .unwrap();
    write(at("gfx1101", "lib/rocblas/library/TensileLibrary_Type_SS_gfx942.co"), &wrong);
    write(at("gfx1101", "share/elsewhere.bin"), &wrong);
    let plan = planned(&tree, CONFIGURATION);
    for parts in [
        ["gfx1101", "share/elsewhere.bin", "misplaced-file"],
        ["gfx1100", "host.txt", "misplaced-file"],
        ["gfx1101", "TensileLibrary_Type_SS_gfx942.co", "misplaced-file"],
    ] {
        assert_said(&plan, Severity::Fault, &parts);
    }
    assert_said(&plan, Severity::Fault, &["Kernels_gfx1100.hsaco", "misplaced-file"]);
    assert_said(
        &plan,
        Severity::Fault,
        &["instinct", "TensileLibrary_Type_SS_gfx942.co", "is in blas_lib_"],
    );
}

#[test]
fn an_archive_that_a_manifest_promises_and_no_shard_has() {
    let tree = three_shards();
    let kpack =
        format!("shards/linux-c/blas_lib_gfx942/{PREFIX}/lib/.kpack/rocblas_lib_gfx942.kpack");
    fs::remove_file(tree.path(&kpack)).unwrap();
    let plan = planned(&tree, CONFIGURATION);
    assert_said(&plan, Severity::Fault, &["linux-c", "rocblas_lib.kpm", "missing-archive"]);
}

#[test]
fn a_target_that_was_promised_and_is_lost_as_a_whole() {
    let tree = three_shards();
    fs::remove_dir_all(tree.path("shards/linux-c/blas_lib_gfx942")).unwrap();
    let plan = planned(&tree, CONFIGURATION);
    let promised = "missing-archive";
    assert_said(&plan, Severity::Fault, &["linux-c", promised]);
}

/// Device code of an earlier build does not belong to the host files of this one.
#[test]
fn an_archive_that_no_manifest_lists() {
    let tree = three_shards();
    let manifest = format!("shards/linux-c/blas_lib_generic/{PREFIX}/lib/.kpack/rocblas_lib.kpm");
    let mut listed = Manifest::read(&fs::read(tree.path(&manifest)).unwrap()).unwrap();
    listed.kpack_files.remove("gfx942").unwrap();
    fs::write(tree.path(&manifest), listed.to_bytes()).unwrap();
    let plan = planned(&tree, CONFIGURATION);
    let text = "not-as-listed";
    assert_said(&plan, Severity::Fault, &["linux-c", text]);
}

#[test]
fn components_without_device_code_and_without_a_primary() {
    let tree = three_shards();
    for shard in ["linux-a", "linux-b"] {
        let at = tree.path(&format!("shards/{shard}/doc_lib_generic"));
        write(at.join("artifact_manifest.txt"), b"doc/stage\n");
        write(at.join("doc/stage/README"), b"text");
    }
    let plan = planned(&tree, CONFIGURATION);
    assert_eq!(said(&plan), [""; 0]);
    let doc: Vec<_> = plan.artifacts.iter().filter(|a| a.component == "doc_lib").collect();
    assert_eq!((doc.len(), doc[0].files, doc[0].targets.len()), (1, 1, 0));

    // Another shard's host files take its place.
    fs::remove_dir_all(tree.path("shards/linux-a/doc_lib_generic")).unwrap();
    let plan = planned(&tree, CONFIGURATION);
    let parts = ["linux-b/doc_lib_generic", "missing-artifact"];
    assert_said(&plan, Severity::Warning, &parts);
    assert_eq!(said(&plan).len(), 1);
    let mut options = options(&tree, CONFIGURATION);
    options.components = vec!["blas_lib".to_owned()];
    let plan = kpack_artifact::recombine::plan(&options, &()).unwrap();
    assert_eq!(said(&plan), [""; 0]);
}

#[test]
fn a_component_that_the_primary_shard_does_not_build() {
    let tree = three_shards();
    let at = tree.path("shards/linux-a/doc_lib_generic");
    write(at.join("artifact_manifest.txt"), b"doc/stage\n");
    write(at.join("doc/stage/README"), b"text");
    let aside = |artifact: &str| {
        let from = tree.path(&format!("shards/linux-a/blas_lib_{artifact}"));
        fs::rename(from, tree.path(artifact)).unwrap();
    };
    // It has device code, but no host files.
    aside("generic");
    let plan = planned(&tree, CONFIGURATION);
    let parts = ["linux-a/blas_lib_generic", "missing-artifact"];
    assert_said(&plan, Severity::Fault, &parts);
    assert_eq!(said(&plan).len(), 1, "{:#?}", said(&plan));
    // It has nothing at all.
    aside("gfx1100");
    aside("gfx1101");
    let plan = planned(&tree, CONFIGURATION);
    let text = "taking its host files: the primary shard linux-a has nothing of blas_lib";
    assert_said(&plan, Severity::Warning, &["linux-b/blas_lib_generic", text]);
    assert_said(&plan, Severity::Warning, &["no shard has gfx1100, gfx1101"]);
    assert_eq!(said(&plan).len(), 2);
    plan.apply(&options(&tree, CONFIGURATION), &()).unwrap();
    assert_eq!(faults(&check(&tree, "out")), [""; 0]);
    assert_eq!(
        targets(&tree.path(&format!("out/blas_lib_generic/{PREFIX}/lib/.kpack/rocblas_lib.kpm"))),
        ["gfx90a:xnack+", "gfx942"]
    );
    // No shard has host files.
    for shard in ["linux-b", "linux-c"] {
        let generic = tree.path(&format!("shards/{shard}/blas_lib_generic"));
        fs::remove_dir_all(generic).unwrap();
    }
    let plan = planned(&tree, CONFIGURATION);
    let parts = ["no shard has host files of blas_lib: linux-b, linux-c have device code only"];
    assert_said(&plan, Severity::Fault, &parts);
}

#[test]
fn impossible_arguments_are_errors() {
    let tree = three_shards();
    let message = |options: &Options| plan(options, &()).unwrap_err().in_one_line();
    let other = options(&tree, &CONFIGURATION.replace("linux-a", "linux-z"));
    let text = message(&other);
    assert!(
        text.contains("packaging.json: line 2, column 20: there is no shard `linux-z`"),
        "{text}"
    );
    assert!(text.contains("only linux-a, linux-b, linux-c"), "{text}");
    let mut inside = options(&tree, CONFIGURATION);
    inside.output_dir = tree.path("shards/linux-a/out");
    assert!(message(&inside).contains("must not contain each other"));
    let mut unknown = options(&tree, CONFIGURATION);
    unknown.components = vec!["blass_lib".to_owned()];
    assert!(
        message(&unknown).contains("no shard has the component `blass_lib`; there are blas_lib")
    );
    let mut empty = options(&tree, CONFIGURATION);
    empty.shards_dir = tree.path("shards/linux-a/blas_lib_generic");
    let error = plan(&empty, &()).unwrap_err();
    assert_eq!(error.id(), ids::NO_SHARDS);
}

#[test]
fn files_outside_of_prefixes_are_skipped_by_name() {
    let tree = three_shards();
    tree.write("shards/linux-a/blas_lib_generic/docs/LICENSE", b"MIT");
    let plan = planned(&tree, CONFIGURATION);
    let text = "in-no-prefix";
    assert_said(&plan, Severity::Warning, &["docs/LICENSE", text]);
}
