//! Given split binaries, when they are joined, then they have the chosen targets' device code and their
//! own host code, and can be split again; where that cannot be, nothing has changed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::fat::{elements, shown, targets_of, text};
use crate::verified::{assert_holds, faults_at};
use kpack_artifact::split as artifact;
use kpack_artifact::verify;
use kpack_core::{Severity, ids};
use kpack_split::Error;
use kpack_split::install::{InstallOptions, Outcome, install};
use kpack_split::join::{JoinOptions, join};
use kpack_tests::bytes;
use kpack_tests::fixture::{FatLibrary, Kind, Storage, WINDOWS_LINKERS, WindowsBuild, code_with};
use kpack_tests::process;
use kpack_tests::require;
use kpack_tests::tree::{Snapshot, Tree};
use proptest::prelude::*;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

const FILE: &str = "lib/libvec.so";

/// Three wrappers; the code objects of the second are the largest.
fn library(seed: u8) -> FatLibrary {
    let code = |target, kilobytes: usize| code_with(target, &vec![seed; kilobytes << 10]);
    FatLibrary::new()
        .wrapper(Storage::Plain, [code("gfx1100", 20), code("gfx942", 20)])
        .wrapper(Storage::Plain, [code("gfx1100", 50), code("gfx942", 50)])
        .wrapper(Storage::Zstd(2), [code("gfx90a:xnack+", 30), code("gfx90a:xnack-", 30)])
}

/// A prefix with the split library, and the unsplit one as `fat`.
fn split(library: &FatLibrary) -> Tree {
    let tree = library.in_prefix(FILE);
    split_again(&tree);
    tree
}

fn split_again(tree: &Tree) {
    install(&InstallOptions::new(tree.path("prefix"), "vec", [FILE]), &()).unwrap();
}

fn options(tree: &Tree, targets: &[&str]) -> JoinOptions {
    let targets = targets.iter().map(|target| target.parse().unwrap());
    JoinOptions::new(tree.path("prefix"), targets, [FILE])
}

/// Joins the library for `targets` and compares it with the unsplit one.
fn joined(tree: &Tree, targets: &[&str]) {
    let mut options = options(tree, targets);
    options.against = Some(tree.path("fat"));
    let report = join(&options, &()).unwrap();
    let outcome = &report.files[0].outcome;
    assert!(matches!(outcome, Outcome::Joined { .. }), "{outcome:?}");
}

/// The error of a join that leaves everything as it was.
fn refused(tree: &Tree, options: &JoinOptions) -> String {
    let before = tree.snapshot_with_times();
    let error = join(options, &()).unwrap_err();
    assert_eq!(tree.snapshot_with_times(), before, "{error}");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    error.in_one_line()
}

/// Asserts that the joined binary holds and runs like the fat one, and splits it again into `split`.
fn assert_works_and_is_split_again(tree: &Tree, kind: Kind, split: &Snapshot) {
    assert_holds(&tree.path("prefix"));
    if kind != Kind::Shared {
        let run = |path: &Path| process::output(&mut Command::new(path));
        let binary = tree.path("prefix").join(FILE);
        assert_eq!(run(&binary), run(&tree.path("fat")));
    }
    split_again(tree);
    assert_eq!(tree.snapshot(), *split, "{kind:?}");
}

#[test]
fn what_is_joined_has_the_chosen_code_and_is_split_again_without_a_loss() {
    for kind in [Kind::Shared, Kind::Pie, Kind::NoPie] {
        let tree = split(&library(1).kind(kind));
        let split = tree.snapshot();
        joined(&tree, &["gfx1100"]);
        let binary = tree.path("prefix").join(FILE);
        assert_eq!(targets_of(&binary), ["gfx1100"]);
        assert_works_and_is_split_again(&tree, kind, &split);
    }
}

/// Given a module whose libraries are for different GPUs, when all code is put back, then no library lacks anything, and the
/// archives can go.
#[test]
fn with_all_targets_nothing_is_missing_that_a_library_was_not_built_for() {
    let tree = split(&library(1));
    let other = FatLibrary::new().wrapper(Storage::Plain, [code_with("gfx1030", &[1; 99])]);
    other.build(&tree.path("prefix/lib/libadd.so")).unwrap();
    let all = ["lib/libadd.so", FILE];
    install(&InstallOptions::new(tree.path("prefix"), "vec", all), &()).unwrap();
    let mut options = JoinOptions::new(tree.path("prefix"), [], all);
    options.all_architectures = true;
    let [finding] = &join(&options, &()).unwrap().findings[..] else { panic!() };
    assert_eq!((finding.id, finding.severity), (ids::UNCHANGED, Severity::Note));
    assert_eq!(finding.file(), tree.path("prefix/lib/.kpack").canonicalize().unwrap());
    assert!(finding.text.starts_with("the archives in it stay"), "{finding:?}");
    assert_eq!(targets_of(&tree.path("prefix/lib/libadd.so")), ["gfx1030"]);
    fs::remove_dir_all(finding.file()).unwrap();
    assert_holds(&tree.path("prefix"));

    // What is named is asked of each library.
    let tree = split(&library(1));
    other.build(&tree.path("prefix/lib/libadd.so")).unwrap();
    install(&InstallOptions::new(tree.path("prefix"), "vec", all), &()).unwrap();
    options.prefix = tree.path("prefix");
    options.architectures = vec!["gfx1030".parse().unwrap()];
    let report = join(&options, &()).unwrap();
    let lacking = report.findings.iter().find(|found| found.id == ids::MISSING_TARGET).unwrap();
    assert!(lacking.text.starts_with("has no device code for gfx1030, only"), "{lacking:?}");
}

#[test]
fn a_joined_binary_is_shown_as_one_and_needs_no_archives() {
    let tree = split(&library(1));
    joined(&tree, &["gfx942"]);
    let kept = &shown(&tree.path("prefix").join(FILE), "joined-binary")["joined"];
    assert_eq!(kept["kernel_name"], FILE);
    assert_eq!(kept["kpack_search_paths"], json!([".kpack/vec_lib_@GFXARCH@.kpack"]));
    fs::remove_dir_all(tree.path("prefix/lib/.kpack")).unwrap();
    assert_holds(&tree.path("prefix"));
}

#[test]
fn other_code_in_a_joined_binary_is_a_fault() {
    let tree = split(&library(1));
    joined(&tree, &["gfx1100"]);
    let path = tree.path("prefix").join(FILE);
    let mut bytes = fs::read(&path).unwrap();
    let payload = bytes::position(&bytes, [1; 4096]);
    bytes[payload + 100] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let faults = faults_at(&path);
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].contains("the code for gfx1100 is not what it was built with"), "{faults:?}");
    let mut options = verify::Options::default();
    options.against = Some(tree.path("fat"));
    let report = verify::verify(&[path], &options, &()).unwrap();
    assert_eq!(report.count(Severity::Fault), 2);
}

#[test]
fn a_target_without_features_stands_for_its_variants() {
    let tree = split(&library(1));
    joined(&tree, &["gfx90a"]);
    let binary = tree.path("prefix").join(FILE);
    assert_eq!(targets_of(&binary), ["gfx90a:xnack-", "gfx90a:xnack+"]);
    joined(&tree, &["gfx90a:xnack+"]);
    assert_eq!(targets_of(&binary), ["gfx90a:xnack+"]);
}

/// For each kernel what a HIP runtime would take from the unsplit binary.
#[test]
fn generic_code_is_put_back_where_a_gpu_has_none_of_its_own() {
    let code = |target| code_with(target, &[7; 9000]);
    let library = FatLibrary::new()
        .wrapper(Storage::Plain, ["gfx1100", "gfx1101", "gfx11-generic", "gfx9-generic"].map(code))
        .wrapper(
            Storage::Plain,
            ["gfx1101", "gfx11-generic", "gfx942:xnack+", "gfx9-4-generic"].map(code),
        );
    let tree = split(&library);
    let binary = tree.path("prefix").join(FILE);
    for (gpu, expected) in [
        // The second kernel has none for it,
        ("gfx1100", &["gfx11-generic", "gfx1100"][..]),
        ("gfx1102", &["gfx11-generic"]),
        // each has here,
        ("gfx1101", &["gfx1101"]),
        // and one variant has none.
        ("gfx942", &["gfx9-4-generic", "gfx942:xnack+"]),
        ("gfx942:xnack+", &["gfx942:xnack+"]),
        ("gfx942:xnack-", &["gfx9-4-generic"]),
        ("gfx950", &["gfx9-4-generic"]),
        ("gfx900", &["gfx9-generic"]),
    ] {
        let report = join(&options(&tree, &[gpu]), &()).unwrap();
        let targets: BTreeSet<String> = targets_of(&binary).into_iter().collect();
        let expected: BTreeSet<String> = expected.iter().map(ToString::to_string).collect();
        assert_eq!(targets, expected, "{gpu}");
        let told = report.findings.iter();
        let told = told.filter(|found| found.id == ids::GENERIC_CODE);
        let has_generic = expected.iter().any(|target| target.ends_with("-generic"));
        assert_eq!(told.count(), usize::from(has_generic), "{:?}", report.findings);
        let mut verified = verify::Options::default();
        verified.targets = vec![gpu.parse().unwrap()];
        verified.against = Some(tree.path("fat"));
        let verified = verify::verify(std::slice::from_ref(&binary), &verified, &()).unwrap();
        assert!(verified.holds(), "{gpu}: {verified:#?}");
    }
    for (gpu, why) in [
        ("gfx908", "HIP runtimes do not take gfx9-generic for gfx908"),
        ("gfx906", "HIP runtimes take gfx9-generic for gfx906 only from archives"),
    ] {
        let error = join(&options(&tree, &[gpu]), &()).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn it_can_be_joined_for_other_targets_and_stays_the_same_for_the_same() {
    let tree = split(&library(1));
    let split = tree.snapshot();
    joined(&tree, &["gfx1100"]);
    let first = tree.snapshot();
    let before = tree.snapshot_with_times();
    let report = join(&options(&tree, &["gfx1100"]), &()).unwrap();
    let outcome = &report.files[0].outcome;
    assert!(matches!(outcome, Outcome::LeftAlone { .. }), "{outcome:?}");
    assert_eq!(tree.snapshot_with_times(), before);
    joined(&tree, &["gfx90a:xnack-"]);
    joined(&tree, &["gfx942"]);
    joined(&tree, &["gfx1100"]);
    assert_eq!(tree.snapshot(), first);
    split_again(&tree);
    assert_eq!(tree.snapshot(), split);
}

#[test]
fn splitting_it_again_keeps_the_code_for_other_targets() {
    let tree = split(&library(1));
    let split = tree.snapshot();
    joined(&tree, &["gfx90a:xnack-"]);
    // Whoever packages it names all of its targets.
    let mut options = InstallOptions::new(tree.path("prefix"), "vec", [FILE]);
    let targets = ["gfx1100", "gfx942", "gfx90a:xnack-", "gfx90a:xnack+"];
    options.architectures = targets.map(|target| target.parse().unwrap()).into();
    let report = install(&options, &()).unwrap();
    assert_eq!(report.findings, []);
    assert_eq!(tree.snapshot(), split);
}

/// An artifact with archives for all targets, a joined binary and an unsplit one.
#[test]
fn an_artifact_is_split_again_without_a_loss() {
    let tree = Tree::new();
    let stage = tree.path("artifact/vec/stage");
    library(1).build(&stage.join(FILE)).unwrap();
    fs::write(tree.path("artifact/artifact_manifest.txt"), "vec/stage\n").unwrap();
    install(&InstallOptions::new(&stage, "vec", [FILE]), &()).unwrap();
    let options = JoinOptions::new(&stage, ["gfx942".parse().unwrap()], [FILE]);
    join(&options, &()).unwrap();
    library(2).build(&stage.join("lib/libtwo.so")).unwrap();

    let output = tree.path("output");
    fs::create_dir(&output).unwrap();
    let artifact = artifact::Options::new(tree.path("artifact"), &output, "vec_lib");
    artifact::split(&artifact, &()).unwrap();
    for target in ["gfx1100", "gfx942", "gfx90a:xnack+"] {
        let (processor, _) = target.split_once(':').unwrap_or((target, ""));
        let name = format!("vec_lib_{processor}/vec/stage/lib/.kpack/vec_lib_{target}.kpack");
        let archive = shown(&output.join(&name), "archive");
        let binary = |kernel| text(kernel, "name").split('#').next().unwrap().to_owned();
        let binaries: BTreeSet<String> = elements(&archive, "kernels").iter().map(binary).collect();
        assert_eq!(binaries, ["lib/libtwo.so".to_owned(), FILE.to_owned()].into(), "{name}");
    }
    assert_holds(&output);
}

#[test]
fn all_split_binaries_of_a_prefix_or_those_of_a_module() {
    let tree = split(&library(1));
    library(2).build(&tree.path("prefix/lib/libother.so")).unwrap();
    let other = InstallOptions::new(tree.path("prefix"), "other", ["lib/libother.so"]);
    install(&other, &()).unwrap();
    library(3).build(&tree.path("prefix/lib/libfat.so")).unwrap();
    fs::write(tree.path("prefix/lib/readme"), "text").unwrap();
    let all = |module: Option<&str>| {
        let mut options = options(&tree, &["gfx1100"]);
        options.files.clear();
        options.module = module.map(str::to_owned);
        let report = join(&options, &()).unwrap();
        let files = report.files.into_iter();
        Vec::from_iter(
            files.map(|file| (file.path, matches!(file.outcome, Outcome::Joined { .. }))),
        )
    };
    let of = |name: &str, joined: bool| (name.to_owned(), joined);
    assert_eq!(all(Some("other")), [of("lib/libother.so", true)]);
    assert_eq!(all(None), [of("lib/libother.so", false), of(FILE, true)]);

    let mut options = options(&tree, &["gfx1100"]);
    options.module = Some("none".to_owned());
    assert!(refused(&tree, &options).contains("[other-module]"));
    options.files.clear();
    assert!(refused(&tree, &options).contains("[nothing-split]"));
}

/// A joined copy is no reason to leave the others split, but is one not to succeed if it is the only binary.
#[test]
fn a_joined_copy_without_its_archives_stays() {
    let tree = split(&library(1));
    let mut elsewhere = options(&tree, &["gfx1100"]);
    elsewhere.output = Some(tree.path("prefix/joined/libvec.so"));
    fs::create_dir(tree.path("prefix/joined")).unwrap();
    join(&elsewhere, &()).unwrap();
    let copy = fs::read(tree.path("prefix/joined/libvec.so")).unwrap();
    let mut all = options(&tree, &[]);
    all.files.clear();
    all.all_architectures = true;
    let report = join(&all, &()).unwrap();
    let text = "stays as it is, joined for gfx1100, because the archive for another target is missing or elsewhere";
    assert!(report.findings.iter().any(|found| found.text.contains(text)), "{report:?}");
    assert!(report.files.iter().any(|file| matches!(file.outcome, Outcome::Joined { .. })));
    assert_eq!(fs::read(tree.path("prefix/joined/libvec.so")).unwrap(), copy);

    // It has what is asked for, or lacks it.
    let mut some = options(&tree, &["gfx1100"]);
    some.files.clear();
    assert!(
        join(&some, &()).unwrap().findings.iter().all(|found| found.id != ids::MISSING_ARCHIVE)
    );
    some.architectures = vec!["gfx942".parse().unwrap()];
    assert!(refused(&tree, &some).contains("[missing-archive]"));

    fs::remove_dir_all(tree.path("prefix/lib")).unwrap();
    let said = refused(&tree, &all);
    let copied = "the file was probably copied without its archives";
    assert!(said.contains("[missing-archive]") && said.contains(copied), "{said}");
    assert!(!said.contains("@GFXARCH@"), "{said}");
}

#[test]
fn another_output_leaves_the_prefix_as_it_is() {
    let tree = split(&library(1));
    let before = tree.snapshot_with_times();
    let elsewhere = Tree::new();
    let mut options = options(&tree, &["gfx1100"]);
    options.output = Some(elsewhere.path("joined.so"));
    options.against = Some(tree.path("fat"));
    join(&options, &()).unwrap();
    assert_eq!(targets_of(&elsewhere.path("joined.so")), ["gfx1100"]);
    assert_eq!(elsewhere.files(), ["joined.so"]);
    assert_eq!(tree.snapshot_with_times(), before);
}

/// A script goes on with the file that it asked for, or with what was compared.
#[test]
fn an_output_or_a_comparison_that_is_not_made_is_an_error() {
    let tree = split(&library(1));
    fs::copy(tree.path("fat"), tree.path("prefix/lib/libfat.so")).unwrap();
    FatLibrary::new().build(&tree.path("prefix/lib/libhost.so")).unwrap();
    let output = tree.path("joined.so");
    let fat = tree.path("fat");
    for (file, target, installed) in [
        ("lib/libfat.so", "gfx1100", false),
        ("lib/libfat.so", "gfx1100", true),
        ("lib/libhost.so", "gfx1100", false),
        (FILE, "gfx1030", true),
    ] {
        let with = |output: Option<&Path>, against: Option<&Path>| {
            let mut options = options(&tree, &[target]);
            options.files = vec![file.into()];
            options.installed = installed;
            options.output = output.map(Path::to_owned);
            options.against = against.map(Path::to_owned);
            refused(&tree, &options)
        };
        let text = with(Some(&output), None);
        assert!(text.contains("joined.so is not written"), "{file}: {text}");
        let text = with(None, Some(&fat));
        assert!(text.contains("fat is not compared"), "{file}: {text}");
    }
    // What is joined already is compared, too.
    joined(&tree, &["gfx942"]);
    let mut options = options(&tree, &["gfx942"]);
    library(2).build(&tree.path("other")).unwrap();
    options.against = Some(tree.path("other"));
    assert!(refused(&tree, &options).contains("[host-differs]"));
    options.against = Some(fat);
    join(&options, &()).unwrap();
}

#[test]
fn what_there_is_no_code_for_is_refused_with_what_there_is() {
    let tree = split(&library(1));
    let text = refused(&tree, &options(&tree, &["gfx1030"]));
    for part in [
        "no device code for gfx1030",
        "there is device code for gfx1100, gfx90a:xnack+, gfx90a:xnack-, gfx942",
    ] {
        assert!(text.contains(part), "{text}");
    }
    // Of two, one that is there is put back.
    let report = join(&options(&tree, &["gfx1030", "gfx942"]), &()).unwrap();
    assert!(report.findings[0].text.contains("no device code for gfx1030"));
    assert_eq!(targets_of(&tree.path("prefix").join(FILE)), ["gfx942"]);
}

#[test]
fn an_archive_that_is_missing_damaged_or_of_another_build() {
    let archive = "prefix/lib/.kpack/vec_lib_gfx1100.kpack";
    let tree = split(&library(1));
    let mut install_options = InstallOptions::new(tree.path("prefix"), "vec", [FILE]);
    install_options.install_hint = Some("apt install vec-@GFXARCH@".to_owned());
    library(1).build(&tree.path("prefix").join(FILE)).unwrap();
    install(&install_options, &()).unwrap();
    let bytes = fs::read(tree.path(archive)).unwrap();
    fs::remove_file(tree.path(archive)).unwrap();
    let text = refused(&tree, &options(&tree, &["gfx1100"]));
    assert!(
        text.contains("the archive for gfx1100 is missing") && text.contains("[missing-archive]"),
        "{text}"
    );
    assert!(text.contains("run `apt install vec-gfx1100`"), "{text}");
    fs::remove_file(tree.path("prefix/lib/.kpack/vec_lib.kpm")).unwrap();
    let text = refused(&tree, &options(&tree, &["gfx1100"]));
    assert!(text.contains("the archive for gfx1100 is missing"), "{text}");

    let mut damaged = bytes.clone();
    damaged[100] ^= 1;
    fs::write(tree.path(archive), &damaged).unwrap();
    let text = refused(&tree, &options(&tree, &["gfx1100"]));
    assert!(text.contains("vec_lib_gfx1100.kpack"), "{text}");

    let other = split(&library(2));
    fs::copy(other.path(archive), tree.path(archive)).unwrap();
    let text = refused(&tree, &options(&tree, &["gfx1100", "gfx942"]));
    assert!(text.contains("[stale-archive]"), "{text}");
    // The others are as they were.
    joined(&tree, &["gfx942"]);
}

#[test]
fn wrappers_that_ask_for_each_others_code() {
    let tree = split(&library(1));
    let path = tree.path("prefix").join(FILE);
    let mut bytes = fs::read(&path).unwrap();
    let wrapper = bytes::position(&bytes, b"HIPK");
    bytes[wrapper + 16] = 1;
    fs::write(&path, &bytes).unwrap();
    let text = refused(&tree, &options(&tree, &["gfx1100"]));
    assert!(text.contains("[damaged-binary]"), "{text}");
}

#[test]
fn a_marker_that_leads_to_no_path() {
    let tree = split(&library(1));
    let path = tree.path("prefix").join(FILE);
    let mut bytes = fs::read(&path).unwrap();
    let place = bytes::position(&bytes, b".kpack");
    bytes[place] = 0;
    fs::write(&path, &bytes).unwrap();
    let text = refused(&tree, &options(&tree, &["gfx1100"]));
    assert!(text.contains("[damaged-marker]"), "{text}");
}

/// The addresses that the split freed hold code for few targets, and none of what was compressed.
#[test]
fn code_that_does_not_fit_where_it_was_goes_after_everything_else() {
    let compressed = |seed: u8| {
        let targets = ["gfx1100", "gfx942"];
        let code = targets.map(|target| code_with(target, &vec![seed; 300 << 10]));
        FatLibrary::new().wrapper(Storage::Zstd(2), code)
    };
    let one = |payload| {
        FatLibrary::new().wrapper(Storage::Plain, [code_with("gfx1100", &vec![3; payload])])
    };
    let all = ["gfx1100", "gfx942", "gfx90a:xnack+"];
    for (library, targets) in
        [(compressed(1), &all[..1]), (library(1), &all), (one(100 << 10), &all[..1])]
    {
        for kind in [Kind::Shared, Kind::Pie, Kind::NoPie] {
            let tree = split(&library.clone().kind(kind));
            let split = tree.snapshot();
            joined(&tree, targets);
            let binary = tree.path("prefix").join(FILE);
            assert_eq!(BTreeSet::from_iter(targets_of(&binary)), {
                BTreeSet::from_iter(targets.iter().map(ToString::to_string))
            });
            assert_works_and_is_split_again(&tree, kind, &split);
        }
    }
}

/// Nobody else would say why a file that was compressed is larger than before the split.
#[test]
fn a_joined_binary_that_is_larger_than_the_original_says_why() {
    // Compressed, it takes more than a page, and a fifth or so.
    let payload = Vec::from_iter((1..1_u32 << 20).map(|i| {
        let hash = i.wrapping_mul(0x9e37_79b9);
        (hash ^ hash >> 15).wrapping_mul(0x85eb_ca6b) as u8 >> 7
    }));
    for (storage, is_compressed) in [(Storage::Zstd(2), true), (Storage::Plain, false)] {
        let targets = ["gfx1100", "gfx942"];
        let code = targets.map(|target| code_with(target, &payload));
        let library = FatLibrary::new().wrapper(storage, code);
        let kinds = [Kind::Shared, Kind::Pie, Kind::NoPie].map(|kind| {
            let tree = Tree::new();
            library.clone().kind(kind).build(&tree.path("fat.dll")).unwrap();
            tree
        });
        let linkers = WINDOWS_LINKERS.into_iter().filter(|linker| linker.is_there());
        let for_windows = linkers.map(|linker| {
            let tree = Tree::new();
            let build = WindowsBuild { linker, is_program: false, flags: &[] };
            library.build_for_windows(build, &tree.path("fat.dll")).unwrap();
            tree
        });
        for tree in for_windows.chain(kinds) {
            tree.copy_file("fat.dll", &format!("prefix/{FILE}"));
            split_again(&tree);
            let report = join(&options(&tree, &targets), &()).unwrap();
            let [fat, joined] = ["fat.dll", "prefix/lib/libvec.so"]
                .map(|file| fs::metadata(tree.path(file)).unwrap().len());
            assert_eq!(joined > 2 * fat, is_compressed, "{fat} -> {joined}");
            let found = report.findings.iter().filter(|found| found.id == ids::UNCOMPRESSED);
            let texts = Vec::from_iter(found.map(|found| &*found.text));
            assert_eq!(texts.len(), usize::from(is_compressed), "{texts:?}");
            for text in texts {
                let (before, now) = text.split_once(" and has ").unwrap();
                assert!(before.starts_with("larger than before the split: its code had about "));
                assert!(before.ends_with(" KiB"), "{text}");
                assert!(
                    now.starts_with("2.0") && now.contains(" MiB now, because join "),
                    "{text}"
                );
            }
        }
    }
}

/// Where it was, then after everything else, and back.
#[test]
fn it_can_be_joined_for_more_targets_and_for_fewer() {
    let tree = split(&library(1));
    let split = tree.snapshot();
    joined(&tree, &["gfx1100"]);
    let of_one = tree.snapshot();
    joined(&tree, &["gfx1100", "gfx942", "gfx90a"]);
    let of_all = tree.snapshot();
    joined(&tree, &["gfx1100"]);
    assert_eq!(tree.snapshot(), of_one);
    joined(&tree, &["gfx1100", "gfx942", "gfx90a"]);
    assert_eq!(tree.snapshot(), of_all);
    split_again(&tree);
    assert_eq!(tree.snapshot(), split);
}

/// Whatever is in no section, such as a signature, comes right after the device code here: nothing else is
/// between it and the end of the last segment.
#[test]
fn what_is_in_no_section_stays() {
    let appended = [0xa5; 20_000];
    let tree = library(1).in_tree("fat");
    let mut strip = Command::new("objcopy");
    process::run(strip.args(["--strip-all", "-R", ".comment"]).arg(tree.path("fat")));
    let mut fat = fs::read(tree.path("fat")).unwrap();
    fat.extend(appended);
    fs::write(tree.path("fat"), fat).unwrap();
    tree.copy_file("fat", "prefix/lib/libvec.so");
    split_again(&tree);
    let split = tree.snapshot();
    let is_there = || {
        let bytes = fs::read(tree.path("prefix").join(FILE)).unwrap();
        bytes::contains(&bytes, appended)
    };
    assert!(is_there());
    for targets in [&["gfx1100"][..], &["gfx1100", "gfx942", "gfx90a"]] {
        joined(&tree, targets);
        assert!(is_there(), "joined for {targets:?}");
        split_again(&tree);
        assert!(is_there(), "split again, after {targets:?}");
        assert_eq!(tree.snapshot(), split);
    }
}

#[test]
fn a_result_that_differs_from_the_original_is_refused() {
    let tree = split(&library(1));
    library(2).build(&tree.path("other")).unwrap();
    let mut options = options(&tree, &["gfx1100"]);
    options.against = Some(tree.path("other"));
    let text = refused(&tree, &options);
    assert!(text.contains("the code object is not the original's"), "{text}");
}

/// `kpack join` of the library, as a command of a shell.
fn command(tree: &Tree, before: &str) -> Command {
    let kpack = env!("CARGO_BIN_EXE_kpack");
    let prefix = tree.path("prefix");
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!(
        "{before}exec {kpack} join --prefix {} --arch gfx1100 {FILE}",
        prefix.display()
    ));
    command
}

#[test]
fn a_full_disk_leaves_the_split_binary() {
    let tree = split(&library(1));
    let before = tree.snapshot_with_times();
    let output = command(&tree, "ulimit -f 60; ").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("libvec.so: File too large"), "{said}");
    assert_eq!(tree.snapshot_with_times(), before);
}

#[test]
fn a_signal_leaves_the_split_binary() {
    let tree = split(&library(1));
    let before = tree.snapshot();
    for signal in [Signal::TERM, Signal::KILL] {
        // It waits here when everything is written.
        let library = File::open(tree.path("prefix").join(FILE)).unwrap();
        library.lock().unwrap();
        let mut run = command(&tree, "").stderr(Stdio::null()).spawn().unwrap();
        let is_hidden = |file: &String| file.starts_with("prefix/lib/.libvec.so.");
        while !tree.files().iter().any(is_hidden) {
            assert_eq!(run.try_wait().unwrap(), None);
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        kill_process(Pid::from_child(&run), signal).unwrap();
        let status = run.wait().unwrap();
        assert_eq!(status.signal(), Some(signal.as_raw()));
        let mut after = tree.snapshot();
        after.retain(|file, _| !is_hidden(file));
        assert_eq!(after, before);
    }
    // The next run removes the leftovers.
    joined(&tree, &["gfx1100"]);
    assert_eq!(tree.files().len(), before.len());
}

/// File capabilities: `cap_net_raw=ep` ("capabilities(7)", `struct vfs_cap_data`).
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn file_capabilities_stay() {
    if !require::root() {
        return;
    }
    let tree = split(&library(1));
    let path = tree.path("prefix").join(FILE);
    let name = "security.capability";
    setxattr(&path, name, &CAPABILITY, XattrFlags::empty()).unwrap();
    let report = join(&options(&tree, &["gfx1100"]), &()).unwrap();
    assert!(report.findings.iter().all(|finding| finding.severity == Severity::Note));
    let mut kept = Vec::with_capacity(256);
    getxattr(&path, name, rustix::buffer::spare_capacity(&mut kept)).unwrap();
    assert_eq!(kept, CAPABILITY);
}

#[test]
fn joins_of_one_binary_at_once_read_again() {
    let targets = ["gfx1100", "gfx942", "gfx90a:xnack+"];
    let tree = split(&library(1));
    let join = |target: &str| {
        let kpack = env!("CARGO_BIN_EXE_kpack");
        let mut command = Command::new(kpack);
        let prefix = tree.path("prefix");
        command.arg("join").arg("--prefix").arg(prefix);
        command.args(["--quiet", "--arch", target, FILE]);
        command.stderr(Stdio::piped()).spawn().unwrap()
    };
    for _ in 0..20 {
        // Each waits here when everything is written.
        let library = File::open(tree.path("prefix").join(FILE)).unwrap();
        library.lock().unwrap();
        let mut runs = targets.map(join);
        let is_hidden = |file: &&String| file.starts_with("prefix/lib/.libvec.so.");
        while tree.files().iter().filter(is_hidden).count() < targets.len() {
            runs.iter_mut().for_each(|run| assert_eq!(run.try_wait().unwrap(), None));
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        library.unlock().unwrap();
        for run in runs {
            let output = run.wait_with_output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.success(), "{said}");
        }
        assert_eq!(targets_of(&tree.path("prefix").join(FILE)).len(), 1);
        assert_holds(&tree.path("prefix"));
        tree.copy_file("fat", "prefix/lib/libvec.so");
        split_again(&tree);
    }
}

#[test]
fn every_later_run_removes_the_hidden_file_of_a_killed_join() {
    let tree = split(&library(1));
    joined(&tree, &["gfx1100"]);
    let left = tree.path("prefix/lib/.libvec.so.0123456789abcdef.tmp");
    let is_removed = |run: &dyn Fn()| {
        fs::write(&left, b"half").unwrap();
        let in_use = File::open(&left).unwrap();
        in_use.lock().unwrap();
        run();
        assert!(left.exists(), "another run is writing it");
        // A program that another test starts may still have it open.
        in_use.unlock().unwrap();
        run();
        assert!(!left.exists());
    };
    let mut all = options(&tree, &["gfx1100"]);
    all.files.clear();
    for options in [options(&tree, &["gfx1100"]), all] {
        is_removed(&|| {
            let report = join(&options, &()).unwrap();
            let outcome = &report.files[0].outcome;
            assert!(matches!(outcome, Outcome::LeftAlone { .. }), "{outcome:?}");
        });
    }
    split_again(&tree);
    is_removed(&|| split_again(&tree));
    let mut all = InstallOptions::new(tree.path("prefix"), "vec", [""; 0]);
    all.all = true;
    is_removed(&|| _ = install(&all, &()).unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// A damaged split binary is refused, or what comes out has all code objects of its build.
    #[test]
    fn flipped_bytes(
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1u8.., 0..4), 1..3),
        // Code for all targets goes after everything else.
        targets in prop::sample::select(vec![&["gfx1100"][..], &["gfx1100", "gfx942", "gfx90a:xnack+"]]),
    ) {
        static SPLIT: std::sync::OnceLock<Tree> = std::sync::OnceLock::new();
        let tree = SPLIT.get_or_init(|| split(&library(1))).copy();
        let path = tree.path("prefix").join(FILE);
        let mut bytes = fs::read(&path).unwrap();
        let headers = u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize;
        let marker = bytes::position(&bytes, b"kpack_search_paths");
        for (index, flip, place) in flips {
            let range = match place {
                0 => 0..1000,
                1 => headers..bytes.len(),
                2 => marker - 2..marker + 150,
                _ => 0..bytes.len(),
            };
            let at = range.start + index.index(range.len());
            bytes[at] ^= flip;
        }
        fs::write(&path, &bytes).unwrap();
        let before = tree.snapshot();
        match join(&options(&tree, targets), &()) {
            // It may look like a file without device code.
            Ok(report) if matches!(report.files[0].outcome, Outcome::LeftAlone { .. }) => {
                prop_assert_eq!(tree.snapshot(), before);
            }
            Ok(_) => {
                let joined = targets_of(&path);
                prop_assert_eq!(BTreeSet::from_iter(joined), {
                    BTreeSet::from_iter(targets.iter().map(ToString::to_string))
                });
                let faults = faults_at(&path);
                let other_code = faults.iter().find(|text| text.contains("is not what it was built with"));
                prop_assert!(other_code.is_none(), "{faults:?}");
            }
            Err(error) => {
                prop_assert!(!matches!(error, Error::Io { .. }), "{}", error.in_one_line());
                prop_assert_eq!(tree.snapshot(), before);
            }
        }
    }
}

/// Whatever is wrong with the table for the dynamic linker, the file is at fault, not kpack.
#[test]
fn a_damaged_dynamic_table_of_a_joined_binary() {
    let tree = split(&library(1));
    joined(&tree, &["gfx1100"]);
    let path = tree.path("prefix").join(FILE);
    let sound = fs::read(&path).unwrap();
    let word = |at: usize| u64::from_le_bytes(sound[at..at + 8].try_into().unwrap());
    let segments = (0..).map(|index| word(32) as usize + 56 * index);
    let mut dynamic = segments.filter(|at| sound[*at..at + 4] == 2_u32.to_le_bytes());
    let dynamic = dynamic.next().unwrap();
    let table = word(dynamic + 8) as usize;
    let entries = (table..table + word(dynamic + 32) as usize).step_by(16);
    for entry in entries.take_while(|entry| word(*entry) != 0) {
        let value = word(entry + 8);
        for (at, damage) in [
            (entry, 0x7fff_ffff),
            (entry + 8, 0),
            (entry + 8, value + 8),
            (entry + 8, u64::MAX >> 17),
        ] {
            let mut damaged = sound.clone();
            damaged[at..at + 8].copy_from_slice(&damage.to_le_bytes());
            fs::write(&path, damaged).unwrap();
            let options = options(&tree, &["gfx942"]);
            let error = join(&options, &()).err();
            let text = error.map(|error| error.in_one_line()).unwrap_or_default();
            assert!(!text.contains("bug in kpack"), "{:#x}: {text}", word(entry));
        }
    }
}

/// A package manager installs the package of a GPU before or after the binaries, or not at all.
#[test]
fn what_is_installed_is_joined() {
    let tree = split(&library(1));
    let archive = tree.path("prefix/lib/.kpack/vec_lib_gfx1100.kpack");
    let bytes = fs::read(&archive).unwrap();
    fs::remove_file(&archive).unwrap();
    let mut options = options(&tree, &["gfx1100"]);
    options.files.clear();
    options.installed = true;
    let before = fs::read(tree.path("prefix").join(FILE)).unwrap();
    let report = join(&options, &()).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert_eq!(fs::read(tree.path("prefix").join(FILE)).unwrap(), before);

    fs::write(&archive, &bytes).unwrap();
    join(&options, &()).unwrap();
    assert_eq!(targets_of(&tree.path("prefix").join(FILE)), ["gfx1100"]);

    // Damage is an error.
    let mut damaged = bytes.clone();
    damaged[100] ^= 1;
    fs::write(&archive, &damaged).unwrap();
    options.architectures.push("gfx942".parse().unwrap());
    let text = refused(&tree, &options);
    assert!(text.contains("vec_lib_gfx1100.kpack"), "{text}");

    // Nothing is split.
    fs::remove_dir_all(tree.path("prefix")).unwrap();
    fs::create_dir(tree.path("prefix")).unwrap();
    join(&options, &()).unwrap();
}
