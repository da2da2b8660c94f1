//! Given fat binaries with SPIR-V, when they are split, then today's HIP runtimes still find it.

use std::fs::{self, File};
use std::io::Cursor;
use std::path::Path;
use std::process::{Command, Output};

use crate::fat::{elements, fat, text};
use crate::verified::{assert_holds, assert_holds_against, faults_against, faults_at};
use kpack_artifact::split as artifact;
use kpack_build::object_file;
use kpack_core::ids;
use kpack_format::archive::{Archive, ArchiveWriter, Encoder};
use kpack_format::digest::blake3;
use kpack_format::target_id::SPIRV;
use kpack_split::Spirv;
use kpack_split::install::{InstallOptions, Outcome, install};
use kpack_split::join::{JoinOptions, join};
use kpack_tests::bytes;
use kpack_tests::fixture::{FatLibrary, Kind, Storage, Wheel, code, code_with};
use kpack_tests::tree::Tree;
use kpack_tests::{process, require};

const FILE: &str = "lib/libvec.so";
/// The entry ID that clang 19 writes, and that of clang 22.
pub(crate) const CLANG_19: &str = "hip-spirv64-amd-amdhsa--amdgcnspirv";
const CLANG_22: &str = "hipv4-spirv64-amd-amdhsa--amdgcnspirv";

/// SPIR-V code with this content.
pub(crate) fn spirv(id: &str, name: &str) -> (String, Vec<u8>) {
    // The magic number and version 1.6 (SPIR-V specification, "Physical Layout").
    let header = [0x03, 0x02, 0x23, 0x07, 0, 6, 1, 0];
    let content = name.as_bytes().repeat(1000);
    (id.to_owned(), [&header[..], &content].concat())
}

/// The entry IDs of the code objects in a fat or joined binary.
fn entry_ids(path: &Path) -> Vec<String> {
    let fat = fat(path);
    let wrappers = elements(&fat, "wrappers").iter();
    let entries = wrappers.flat_map(|wrapper| elements(&wrapper["bundle"], "entries"));
    entries.filter(|entry| !entry["target"].is_null()).map(|entry| text(entry, "id")).collect()
}
/// How to install the library.
fn with(tree: &Tree, spirv: Spirv) -> InstallOptions {
    let mut options = InstallOptions::new(tree.path("prefix"), "vec", [FILE]);
    options.storage.spirv = spirv;
    options
}

/// Code that no other wrapper has.
fn large(target: &str, name: &str) -> (String, Vec<u8>) {
    code_with(target, &name.as_bytes().repeat(20_000))
}

/// Four wrappers; the second and the third have SPIR-V.
fn library(kind: Kind) -> FatLibrary {
    FatLibrary::new()
        .kind(kind)
        .wrapper(Storage::Plain, [large("gfx1100", "add"), large("gfx942", "add")])
        .wrapper(Storage::Zstd(3), [large("gfx1100", "mul"), spirv(CLANG_19, "mul")])
        .wrapper(Storage::Plain, [spirv(CLANG_22, "sub")])
        .wrapper(Storage::Zstd(2), [large("gfx1100", "div"), large("gfx90a", "div")])
}

/// What an executable prints, or nothing for a library.
fn run(kind: Kind, path: &Path) -> Option<Output> {
    (kind != Kind::Shared).then(|| process::output(&mut Command::new(path)))
}

#[test]
fn wrappers_with_spirv_stay_fat_and_the_others_are_split() {
    for kind in [Kind::Shared, Kind::Pie, Kind::NoPie] {
        let library = library(kind);
        let tree = library.in_prefix(FILE);
        let path = tree.path("prefix").join(FILE);
        let report = install(&with(&tree, Spirv::Keep), &()).unwrap();
        let outcome = &report.files[0].outcome;
        let Outcome::Split { wrappers, targets, size_after, .. } = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(
            (*wrappers, &**targets),
            (2, &["gfx1100", "gfx90a", "gfx942"].map(String::from)[..])
        );
        assert_eq!(*size_after, fs::metadata(&path).unwrap().len());
        assert!(*size_after < fs::metadata(tree.path("fat")).unwrap().len());
        assert_eq!(report.findings[0].id, ids::SPIRV_KEPT);
        let note = &report.findings[0].text;
        assert!(note.contains("2 of 4 wrappers have SPIR-V code"), "{note}");

        let bundles = library.bundles().unwrap();
        let bytes = fs::read(&path).unwrap();
        assert!([&bundles[1], &bundles[2]].iter().all(|bundle| bytes::contains(&bytes, bundle)));
        assert!(!bytes::contains(&bytes, b"div".repeat(100)));
        assert!(!tree.path("prefix/lib/.kpack/vec_lib_amdgcnspirv.kpack").exists());
        assert_holds(&tree.path("prefix"));
        assert_holds_against(&path, &tree.path("fat"));
        if let Some(printed) = run(kind, &path) {
            let printed = String::from_utf8(printed.stdout).unwrap();
            // Magic numbers, as characters of a little-endian machine.
            assert_eq!(printed, "HIPK 0\nFPIH 0\nFPIH 0\nHIPK 3\nhost 27\n");
        }

        // Installed again, it stays the same, also if its targets are named.
        let split = tree.snapshot();
        let mut named = with(&tree, Spirv::Keep);
        let targets = ["gfx1100", "gfx942", "gfx90a", "amdgcnspirv"];
        named.architectures = targets.map(|target| target.parse().unwrap()).into();
        install(&named, &()).unwrap();
        assert_eq!(tree.snapshot(), split);
        let report = install(&with(&tree, Spirv::Keep), &()).unwrap();
        assert_eq!(report.files[0].outcome, Outcome::AlreadySplit);
        assert_eq!(tree.snapshot(), split);
        let error = install(&with(&tree, Spirv::Drop), &()).unwrap_err().to_string();
        assert!(error.contains("install the unsplit binary"), "{error}");
        assert_eq!(tree.snapshot(), split);

        // Joined, it has the code of a target in addition, and can be split again.
        for targets in [&["gfx1100"][..], &["gfx942", "gfx90a"]] {
            let targets = targets.iter().map(|target| target.parse().unwrap());
            let mut options = JoinOptions::new(tree.path("prefix"), targets, [FILE]);
            options.against = Some(tree.path("fat"));
            let report = join(&options, &()).unwrap();
            let outcome = &report.files[0].outcome;
            assert!(matches!(outcome, Outcome::Joined { .. }), "{outcome:?}");
            let bytes = fs::read(&path).unwrap();
            assert!(
                [&bundles[1], &bundles[2]].iter().all(|bundle| bytes::contains(&bytes, bundle))
            );
            assert_holds(&tree.path("prefix"));
            assert_holds_against(&path, &tree.path("fat"));
            options.against = None;
            let report = join(&options, &()).unwrap();
            assert!(matches!(report.files[0].outcome, Outcome::LeftAlone { .. }));
            assert_eq!(run(kind, &path), run(kind, &tree.path("fat")));
        }
        install(&with(&tree, Spirv::Keep), &()).unwrap();
        assert_eq!(tree.snapshot(), split, "{kind:?}");
    }
}

/// As relocatable device code makes them.
#[test]
fn a_kept_bundle_that_wrappers_share_is_written_once() {
    let library = library(Kind::Shared).wrapper_sharing(1).wrapper_sharing(1);
    let tree = library.in_prefix(FILE);
    let path = tree.path("prefix").join(FILE);
    install(&with(&tree, Spirv::Keep), &()).unwrap();
    let split = tree.snapshot();
    let bundle = &library.bundles().unwrap()[1];
    let count = |path: &Path| {
        let bytes = fs::read(path).unwrap();
        let windows = bytes.windows(bundle.len());
        windows.filter(|window| window == bundle).count()
    };
    assert_eq!(count(&path), 1);
    let target = "gfx1100".parse().unwrap();
    let mut options = JoinOptions::new(tree.path("prefix"), [target], [FILE]);
    options.against = Some(tree.path("fat"));
    join(&options, &()).unwrap();
    assert_eq!(count(&path), 1);
    assert_holds_against(&path, &tree.path("fat"));
    install(&with(&tree, Spirv::Keep), &()).unwrap();
    assert_eq!(tree.snapshot(), split);
}

#[test]
fn spirv_is_dropped_or_archived_on_demand() {
    for (spirv, archives) in [(Spirv::Drop, 3), (Spirv::Archive, 4)] {
        let tree = library(Kind::Shared).in_prefix(FILE);
        let path = tree.path("prefix").join(FILE);
        let report = install(&with(&tree, spirv), &()).unwrap();
        assert_eq!(report.archives.len(), archives);
        // The third wrapper had nothing else.
        let nothing_left = match spirv {
            Spirv::Drop => vec!["no archive has a code object at index 2"],
            _ => Vec::new(),
        };
        assert_eq!(faults_at(&tree.path("prefix")), nothing_left);
        let split = tree.snapshot();
        let targets = match spirv {
            Spirv::Archive => vec!["gfx1100", "amdgcnspirv"],
            _ => vec!["gfx1100"],
        };
        let targets = targets.into_iter().map(|target| target.parse().unwrap());
        join(&JoinOptions::new(tree.path("prefix"), targets, [FILE]), &()).unwrap();
        assert_holds(&tree.path("prefix"));
        let spirv = entry_ids(&path).into_iter().filter(|id| id.ends_with("spirv"));
        assert_eq!(spirv.count(), if archives == 4 { 2 } else { 0 });
        // The default does not take it out of the archives again.
        install(&with(&tree, Spirv::Keep), &()).unwrap();
        assert_eq!(tree.snapshot(), split);
    }
}

#[test]
fn a_library_with_nothing_else_stays_as_it_is() {
    let only =
        FatLibrary::new().wrapper(Storage::Plain, [large("gfx942", "add"), spirv(CLANG_19, "add")]);
    let tree = only.in_prefix(FILE);
    let before = tree.snapshot();
    let mut all = InstallOptions::new(tree.path("prefix"), "vec", [""; 0]);
    all.all = true;
    for options in [with(&tree, Spirv::Keep), all] {
        let report = install(&options, &()).unwrap();
        let outcome = &report.files[0].outcome;
        assert!(matches!(outcome, Outcome::LeftAlone { .. }), "{outcome:?}");
        let note = &report.findings[0].text;
        assert!(note.contains("1 of 1 wrappers have SPIR-V code"), "{note}");
        assert_eq!(tree.snapshot(), before);
    }
}

#[test]
fn stripped_tools_leave_it_sound() {
    let tree = library(Kind::Pie).in_prefix(FILE);
    let path = tree.path("prefix").join(FILE);
    install(&with(&tree, Spirv::Keep), &()).unwrap();
    let expected = run(Kind::Pie, &path);
    for tool in ["strip", "llvm-strip-19", "eu-strip"] {
        if !require::tool(tool) {
            continue;
        }
        process::run(Command::new(tool).arg(&path));
        assert_eq!(faults_at(&tree.path("prefix")), [""; 0], "{tool}");
        assert_eq!(run(Kind::Pie, &path), expected, "{tool}");
        assert_eq!(faults_against(&path, &tree.path("fat")), [""; 0], "{tool}");
    }
}

#[test]
fn objects_with_spirv_stay_whole() {
    let tree = Tree::new();
    let both = [large("gfx942", "add"), spirv(CLANG_19, "add")];
    FatLibrary::new()
        .kind(Kind::Object)
        .wrapper(Storage::Plain, both)
        .build(&tree.path("add.o"))
        .unwrap();
    let mut options = object_file::Options::new("vec", tree.path("host"), [tree.path("add.o")]);
    let report = object_file::split(&options, &()).unwrap();
    assert!(matches!(report.files[0].outcome, Outcome::LeftAlone { .. }));
    assert!(report.findings[0].text.contains("have SPIR-V code"), "{:?}", report.findings);
    assert_eq!(fs::read(tree.path("host/add.o")).unwrap(), fs::read(tree.path("add.o")).unwrap());
    options.storage.spirv = Spirv::Drop;
    let report = object_file::split(&options, &()).unwrap();
    assert!(matches!(report.files[0].outcome, Outcome::Split { .. }));
    assert_eq!(report.archives.len(), 1);
}

#[test]
fn an_artifact_keeps_it_in_the_generic_one() {
    let tree = Tree::new();
    let stage = tree.path("artifact/vec/stage");
    library(Kind::Shared).build(&stage.join(FILE)).unwrap();
    let only = FatLibrary::new().wrapper(Storage::Plain, [spirv(CLANG_19, "add")]);
    only.build(&stage.join("lib/libspirv.so")).unwrap();
    fs::write(tree.path("artifact/artifact_manifest.txt"), "vec/stage\n").unwrap();
    let output = tree.path("output");
    fs::create_dir(&output).unwrap();
    let options = artifact::Options::new(tree.path("artifact"), &output, "vec_lib");
    let report = artifact::split(&options, &()).unwrap();
    let notes = report.findings.iter().filter(|notice| notice.text.contains("SPIR-V"));
    assert_eq!(notes.count(), 2, "{:?}", report.findings);
    assert_holds(&output);
    assert_holds_against(&output, &tree.path("artifact"));
}

#[test]
fn an_artifact_and_a_wheel_drop_or_archive_it_where_nothing_else_is() {
    let both = [large("gfx942", "add"), spirv(CLANG_19, "add")];
    let only = FatLibrary::new().wrapper(Storage::Plain, both);
    for (spirv, targets) in [
        (Spirv::Drop, &["gfx942"][..]),
        (Spirv::Archive, &["amdgcnspirv", "gfx942"]),
        (Spirv::Keep, &[]),
    ] {
        let tree = Tree::new();
        let built = tree.path("artifact/vec/stage").join(FILE);
        only.build(&built).unwrap();
        fs::write(tree.path("artifact/artifact_manifest.txt"), "vec/stage\n").unwrap();
        let output = tree.path("output");
        fs::create_dir(&output).unwrap();
        let mut options = artifact::Options::new(tree.path("artifact"), &output, "vec_lib");
        options.storage.spirv = spirv;
        let report = artifact::split(&options, &()).unwrap();
        assert!(report.device_code);
        let found = report.artifacts.iter().flat_map(|artifact| &artifact.target);
        assert!(found.eq(targets), "{spirv:?}: {report:?}");
        assert_holds(&output);

        let fat = "vec-1.0-cp311-cp311-manylinux_2_28_x86_64.whl";
        let wheel = Wheel::new(fat).member("vec/_vec.so", fs::read(&built).unwrap());
        wheel.write(tree.root()).unwrap();
        let mut options = kpack_wheel::Options::new([tree.path(fat)], tree.path("out"));
        options.storage.spirv = spirv;
        let split = kpack_wheel::split(&options, &());
        match spirv {
            Spirv::Keep => {
                let error = split.unwrap_err().in_one_line();
                assert!(error.contains("all of its bundles have SPIR-V"), "{error}");
            }
            // And the host wheel.
            _ => assert_eq!(split.unwrap().wheels.len(), targets.len() + 1),
        }
    }
}

#[test]
fn a_join_writes_the_entry_ids_of_the_original() {
    for id in [CLANG_19, CLANG_22] {
        let old = ("hip-amdgcn-amd-amdhsa--gfx906".to_owned(), code("gfx906", "add").1);
        let other = FatLibrary::new()
            .wrapper(Storage::Plain, [spirv(CLANG_22, "add"), code("gfx906", "add")]);
        let library = FatLibrary::new()
            .wrapper(Storage::Plain, [spirv(id, "add"), old, code("gfx1100", "add")])
            .wrapper(Storage::Zstd(2), [spirv(id, "mul")]);
        let tree = library.in_prefix(FILE);
        other.build(&tree.path("other")).unwrap();
        let path = tree.path("prefix").join(FILE);
        install(&with(&tree, Spirv::Archive), &()).unwrap();
        assert_holds_against(&path, &tree.path("fat"));

        let targets = ["amdgcnspirv", "gfx906", "gfx1100"].map(|target| target.parse().unwrap());
        let mut options = JoinOptions::new(tree.path("prefix"), targets, [FILE]);
        options.against = Some(tree.path("fat"));
        join(&options, &()).unwrap();
        let mut ids = entry_ids(&path);
        ids.sort();
        let mut expected = entry_ids(&tree.path("fat"));
        expected.sort();
        assert_eq!(ids, expected);
        let faults = faults_against(&path, &tree.path("other"));
        let differ = |fault: &&String| fault.contains("the entry's ID is `hip-amdgcn");
        assert_eq!(faults.iter().filter(differ).count(), 1, "{faults:?}");
    }
}

#[test]
fn a_join_takes_it_where_a_gpu_has_no_other_code() {
    let library = FatLibrary::new()
        .wrapper(Storage::Plain, ["gfx1100", "gfx90a:xnack-"].map(|target| code(target, "add")))
        .wrapper(Storage::Plain, [code("gfx11-generic", "mul"), spirv(CLANG_22, "mul")])
        .wrapper(Storage::Plain, [spirv(CLANG_22, "sub")]);
    for (gpu, expected) in [
        ("gfx1100", ["gfx1100", "gfx11-generic", "amdgcnspirv"]),
        ("gfx90a", ["gfx90a:xnack-", "amdgcnspirv", "amdgcnspirv"]),
    ] {
        let tree = library.in_prefix(FILE);
        let path = tree.path("prefix").join(FILE);
        install(&with(&tree, Spirv::Archive), &()).unwrap();
        let options = JoinOptions::new(tree.path("prefix"), [gpu.parse().unwrap()], [FILE]);
        let report = join(&options, &()).unwrap();
        let notes = report.findings.iter();
        let notes = notes.filter(|note| note.id == ids::GENERIC_CODE);
        let notes = Vec::from_iter(notes.map(|note| &note.text));
        assert!(notes.iter().any(|note| note.contains("their SPIR-V is put back")), "{notes:?}");
        let ids = entry_ids(&path);
        for target in expected {
            assert!(ids.iter().any(|id| id.ends_with(target)), "{gpu}: {ids:?}");
        }
        assert_holds(&path);
    }
}

#[test]
fn an_archive_without_entry_ids_joins_as_runtimes_expect() {
    let library = FatLibrary::new().wrapper(Storage::Plain, [spirv(CLANG_19, "add")]);
    let tree = library.in_prefix(FILE);
    let path = tree.path("prefix").join(FILE);
    install(&with(&tree, Spirv::Archive), &()).unwrap();
    // As earlier versions wrote it: without metadata.
    let archive = tree.path("prefix/lib/.kpack/vec_lib_amdgcnspirv.kpack");
    let mut old = Archive::open(File::open(&archive).unwrap()).unwrap();
    let toc = old.toc().clone();
    let bytes = old.read(&format!("{FILE}#0"), SPIRV).unwrap();
    let target = SPIRV.parse().unwrap();
    let mut writer =
        ArchiveWriter::new(Cursor::new(Vec::new()), &toc.group_name, &target, toc.scheme);
    let encoded = Encoder::new(toc.scheme, 3).unwrap().encode(&bytes, blake3(&bytes)).unwrap();
    writer.add(&format!("{FILE}#0"), &encoded).unwrap();
    writer.finish(File::create(&archive).unwrap()).unwrap();

    let faults = faults_against(&path, &tree.path("fat"));
    assert_eq!(faults.len(), 1, "{faults:?}");
    let expected = format!("the entry ID `{CLANG_22}`, the original has `{CLANG_19}`");
    assert!(faults[0].contains(&expected), "{faults:?}");
    join(&JoinOptions::new(tree.path("prefix"), [target], [FILE]), &()).unwrap();
    assert_eq!(entry_ids(&path), [CLANG_22]);
}
