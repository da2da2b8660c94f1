//! Given a library with plain code in one object and code for variants of the processor in another, when it is split,
//! then the run says that some loaders will not find all of it, or with `--complete-variants`, every archive for a
//! variant has it all; and the other commands take such archives for what they are.

use std::fs;

use crate::command::{kpack, shell, succeeds, words};
use crate::fat::targets_of;
use crate::verified::assert_holds;
use kpack_split::input::open_archive;
use kpack_split::install::{InstallOptions, Report, install};
use kpack_tests::fixture::{FatLibrary, Storage, Wheel, code};
use kpack_tests::tree::Tree;

const FILE: &str = "lib/libvec.so";
const SPLIT: &str = "split --prefix prefix --module vec lib/libvec.so";
const VARIANTS: [&str; 2] = ["gfx90a:xnack+", "gfx90a:xnack-"];

/// Plain code alone, code for both variants alone, and other GPUs' code.
fn library() -> FatLibrary {
    FatLibrary::new()
        .wrapper(Storage::Plain, [code("gfx90a", "plain"), code("gfx1100", "plain")])
        .wrapper(Storage::Zstd(2), [code("gfx90a:xnack+", "on"), code("gfx90a:xnack-", "off")])
        .wrapper(Storage::Plain, [code("gfx90a", "plain")])
}

/// `prefix` with the library to split, and the same as `fat`.
fn prefix() -> Tree {
    library().in_prefix(FILE)
}

fn warnings(report: &Report) -> Vec<String> {
    let found = report.findings.iter().filter(|f| f.id.as_str() == "incomplete-variant");
    found.map(|finding| finding.text.clone()).collect()
}

/// The kernels in the archive of a target, each with the target of its code, if that is a less specific one; and the
/// number of stored code objects.
fn entries(tree: &Tree, target: &str) -> (Vec<String>, usize) {
    let path = tree.path(&format!("prefix/lib/.kpack/vec_lib_{target}.kpack"));
    let archive = open_archive(&path).unwrap();
    let mut kernels = Vec::new();
    let mut ordinals = std::collections::BTreeSet::new();
    for (kernel, targets) in &archive.toc().kernels {
        let entry = targets.get(target).unwrap();
        ordinals.insert(entry.ordinal);
        let plain = entry.less_specific(target).map(|plain| format!(" {plain}"));
        kernels.push(format!("{kernel}{}", plain.unwrap_or_default()));
    }
    (kernels, ordinals.len())
}

#[test]
fn a_split_warns_of_archives_that_hide_plain_code() {
    let tree = prefix();
    let report = install(&InstallOptions::new(tree.path("prefix"), "vec", [FILE]), &()).unwrap();
    let warnings = warnings(&report);
    let [text] = &warnings[..] else { panic!("{warnings:?}") };
    for part in ["2 wrappers", "gfx90a:xnack-, gfx90a:xnack+"] {
        assert!(text.contains(part), "{text}");
    }
    // `verify` finds it later, too; kpack's loader finds the code, so it is no fault.
    let verified = kpack(&tree, &words("verify prefix"));
    let said = String::from_utf8(verified.stdout).unwrap();
    assert!(verified.status.success(), "{said}");
    for variant in VARIANTS {
        let text = format!("no code object for {variant} at index 0, 2, only for gfx90a; ");
        assert!(said.contains(&text) && said.contains("[incomplete-variant]"), "{said}");
    }
    // Code for all variants everywhere needs no plain code, and plain code alone hides nothing.
    for targets in [&["gfx90a"][..], &["gfx90a:xnack+", "gfx90a:xnack-"], &["gfx1100", "gfx90a"]] {
        let codes = || targets.iter().map(|target| code(target, "all"));
        let library = FatLibrary::new().wrapper(Storage::Plain, codes());
        let tree = library.wrapper(Storage::Plain, codes()).in_prefix(FILE);
        let options = InstallOptions::new(tree.path("prefix"), "vec", [FILE]);
        let report = install(&options, &()).unwrap();
        assert!(report.findings.is_empty(), "{targets:?}: {:?}", report.findings);
    }
}

/// Once the originals are replaced, the warning has the commands that bring them back, and complete the archives.
#[test]
fn the_commands_of_the_warning_complete_the_archives() {
    for options in [
        "--module vec lib/libvec.so",
        "--module vec --component x --kpack-dir k --compression none --all",
    ] {
        let split = format!("kpack split --prefix prefix {options}");
        let tree = prefix();
        let output = shell(&tree, &split).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let commands = said.split('`').find(|text| text.starts_with("kpack join ")).unwrap();
        assert!(said.contains(&format!("; run `{commands}` [incomplete-variant]")), "{said}");
        let output = shell(&tree, commands).output().unwrap();
        assert!(output.status.success(), "{commands}: {output:?}");
        let complete = prefix();
        let output = shell(&complete, &format!("{split} --complete-variants")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(tree.snapshot(), complete.snapshot(), "{commands}");
    }
    // The other half of the code and the original are elsewhere.
    let tree = prefix();
    let output = shell(&tree, &format!("kpack {SPLIT} --only host")).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("; split the originals ") && !said.contains("kpack join"), "{said}");
}

#[test]
fn complete_archives_have_all_code_once_and_hold() {
    let tree = prefix();
    let said = succeeds(&tree, &words(&format!("{SPLIT} --complete-variants --json")));
    assert!(!said.contains("incomplete-variant"), "{said}");
    for variant in VARIANTS {
        let kernels = [
            "lib/libvec.so#0 gfx90a".to_owned(),
            "lib/libvec.so#1".to_owned(),
            "lib/libvec.so#2 gfx90a".to_owned(),
        ];
        assert_eq!(entries(&tree, variant), (kernels.to_vec(), 2), "{variant}");
    }
    assert_eq!(entries(&tree, "gfx90a").0, ["lib/libvec.so#0", "lib/libvec.so#2"]);
    assert_eq!(entries(&tree, "gfx1100").0, ["lib/libvec.so#0"]);
    assert_holds(&tree.path("prefix"));
    let said = succeeds(&tree, &words("verify prefix"));
    assert!(!said.contains("incomplete-variant"), "{said}");
    succeeds(&tree, &words("verify prefix/lib/libvec.so --against fat"));
    succeeds(&tree, &words("verify prefix/lib/libvec.so --against fat --arch gfx90a:xnack+"));
}

/// Each code object goes back once, so the joined library equals the original, and is split again.
#[test]
fn complete_archives_are_joined_without_copies() {
    let tree = prefix();
    let split = format!("{SPLIT} --complete-variants");
    succeeds(&tree, &words(&split));
    let before = tree.snapshot();
    // Nothing else tells that a second run completes nothing.
    let said = kpack(&tree, &words(&split));
    let said = String::from_utf8(said.stdout).unwrap() + &String::from_utf8(said.stderr).unwrap();
    assert!(said.contains("already split; `--complete-variants` only affects"), "{said}");
    for arch in ["gfx90a", "gfx90a:xnack+"] {
        let join = format!("join --prefix prefix --arch {arch} --against fat lib/libvec.so");
        succeeds(&tree, &words(&join));
        let targets = targets_of(&tree.path("prefix").join(FILE));
        let count = if arch == "gfx90a" { 3 } else { 2 };
        assert_eq!(targets.len(), count, "{targets:?}");
        assert_holds(&tree.path("prefix"));
        succeeds(&tree, &words("verify prefix/lib/libvec.so --against fat"));
        succeeds(&tree, &words(&split));
        assert_eq!(tree.snapshot(), before, "{arch}");
    }
    // Another original is noticed in the copies, too.
    let other = FatLibrary::new()
        .wrapper(Storage::Plain, [code("gfx90a", "other"), code("gfx1100", "plain")])
        .wrapper(Storage::Zstd(2), [code("gfx90a:xnack+", "on"), code("gfx90a:xnack-", "off")])
        .wrapper(Storage::Plain, [code("gfx90a", "plain")]);
    other.build(&tree.path("other")).unwrap();
    let output = kpack(&tree, &words("verify prefix/lib/libvec.so --against other"));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("index 0 for gfx90a:xnack+: "), "{said}");
}

/// Without the archive for plain code, the copies in those for variants are the only code. A joined library without it
/// would be split again into incomplete archives, so it is not joined.
#[test]
fn copies_are_not_lost_if_the_plain_archive_is_not_installed() {
    let tree = FatLibrary::new()
        .wrapper(Storage::Plain, [code("gfx90a", "plain")])
        .wrapper(Storage::Plain, [code("gfx90a:xnack+", "on"), code("gfx90a:xnack-", "off")])
        .in_prefix(FILE);
    let split = format!("{SPLIT} --complete-variants");
    succeeds(&tree, &words(&split));
    let complete = tree.snapshot();
    let archive = tree.path("prefix/lib/.kpack/vec_lib_gfx90a.kpack");
    let plain = fs::read(&archive).unwrap();
    fs::remove_file(&archive).unwrap();
    let before = tree.snapshot();
    for arch in ["gfx90a", "gfx90a:xnack+"] {
        let join = format!("join --prefix prefix --arch {arch} --installed lib/libvec.so");
        let output = kpack(&tree, &words(&join));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{said}");
        for part in
            ["the archive for gfx90a is missing: ", "vec_lib_gfx90a.kpack", "[missing-archive]"]
        {
            assert!(said.contains(part), "{said}");
        }
        // A later split has nothing to replace the archives with.
        succeeds(&tree, &words(SPLIT));
        assert_eq!(tree.snapshot(), before, "{arch}");
    }
    fs::write(&archive, plain).unwrap();
    succeeds(&tree, &words("join --prefix prefix --arch gfx90a --installed lib/libvec.so"));
    succeeds(&tree, &words("verify prefix/lib/libvec.so --against fat"));
    succeeds(&tree, &words(&split));
    assert_eq!(tree.snapshot(), complete);
}

/// An archive that another library of the module has for a variant hides the code of a library without variants.
#[test]
fn libraries_of_one_module_hide_each_others_code() {
    let plain = FatLibrary::new().wrapper(Storage::Plain, [code("gfx90a", "one")]);
    let variants = || {
        let codes = VARIANTS.map(|variant| code(variant, "two"));
        FatLibrary::new().wrapper(Storage::Plain, codes)
    };
    let build = || {
        let tree = plain.in_prefix(FILE);
        variants().build(&tree.path("prefix/lib/libtwo.so")).unwrap();
        tree
    };
    let options = |tree: &Tree, files: &[&str]| {
        InstallOptions::new(tree.path("prefix"), "vec", files.iter().copied())
    };
    let split = |options: &InstallOptions| warnings(&install(options, &()).unwrap()).len();
    // In one run, or one after the other in either order.
    let both = [FILE, "lib/libtwo.so"];
    assert_eq!(split(&options(&build(), &both)), 1);
    for [first, second] in [both, [both[1], both[0]]] {
        let tree = build();
        assert_eq!(split(&options(&tree, &[first])), 0);
        assert_eq!(split(&options(&tree, &[second])), 1, "{second}");
    }
    let mut complete = options(&build(), &both);
    complete.storage.complete_variants = true;
    let tree = build();
    complete.prefix = tree.path("prefix");
    assert_eq!(split(&complete), 0);
    assert_eq!(entries(&tree, "gfx90a:xnack-").0, ["lib/libtwo.so#0", "lib/libvec.so#0 gfx90a"]);
    assert_holds(&tree.path("prefix"));
    let before = tree.snapshot();
    succeeds(&tree, &words("join --prefix prefix --arch gfx90a"));
    assert_eq!(targets_of(&tree.path("prefix").join(FILE)), ["gfx90a"]);
    assert_holds(&tree.path("prefix"));
    assert_eq!(split(&complete), 0);
    assert_eq!(tree.snapshot(), before);
    // The archives of variants are there already.
    let tree = build();
    let mut second = options(&tree, &[both[1]]);
    assert_eq!(split(&second), 0);
    second.files = vec![FILE.into()];
    second.storage.complete_variants = true;
    assert_eq!(split(&second), 0);
    assert_eq!(entries(&tree, "gfx90a:xnack-").0, ["lib/libtwo.so#0", "lib/libvec.so#0 gfx90a"]);
    // The binary that lacks code may be one that an earlier run split.
    let tree = build();
    succeeds(&tree, &words(SPLIT));
    let output = kpack(&tree, &words("split --prefix prefix --module vec lib/libtwo.so"));
    let said = String::from_utf8(output.stderr).unwrap();
    let commands = said.split('`').find(|text| text.starts_with("kpack join ")).unwrap();
    assert!(shell(&tree, commands).output().unwrap().status.success(), "{commands}");
    assert_eq!(entries(&tree, "gfx90a:xnack-").0, ["lib/libtwo.so#0", "lib/libvec.so#0 gfx90a"]);
    assert_holds(&tree.path("prefix"));
}

#[test]
fn artifacts_and_wheels_are_completed_too() {
    let tree = prefix();
    fs::create_dir_all(tree.path("in/vec/stage/lib")).unwrap();
    fs::copy(tree.path("fat"), tree.path("in/vec/stage/lib/libvec.so")).unwrap();
    fs::write(tree.path("in/artifact_manifest.txt"), "vec/stage\n").unwrap();
    let wheel = Wheel::new("vec-1.0-py3-none-linux_x86_64.whl");
    let wheel =
        wheel.member_with_mode("vec/lib/libvec.so", 0o755, fs::read(tree.path("fat")).unwrap());
    wheel.write(&tree.path("wheels")).unwrap();
    let artifact = "artifact split --artifact-dir in --artifact-prefix vec_lib --output-dir";
    let wheel = "wheel split wheels/vec-1.0-py3-none-linux_x86_64.whl --output-dir";
    for line in [artifact, wheel] {
        let output = kpack(&tree, &words(&format!("{line} plain-{}", &line[..5])));
        let said = String::from_utf8(output.stderr).unwrap();
        let advice = "; split the originals of all binaries of the module in one run with `--complete-variants` [incomplete-variant]";
        assert!(output.status.success() && said.contains(advice), "{said}");
        let line = format!("{line} out-{} --complete-variants", &line[..5]);
        let output = kpack(&tree, &words(&line));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && !said.contains("[incomplete-variant]"), "{said}");
    }
    assert_holds(&tree.path("out-artif"));
    succeeds(&tree, &words("verify out-artif --against in"));
    let wheels = tree.files().into_iter().filter(|file| file.starts_with("out-wheel/"));
    let wheels = wheels.filter(|file| file.ends_with(".whl")).collect::<Vec<_>>();
    let fat = ["--against", "wheels/vec-1.0-py3-none-linux_x86_64.whl"];
    let wheels = wheels.iter().map(String::as_str);
    succeeds(&tree, &Vec::from_iter(["wheel", "verify"].into_iter().chain(fat).chain(wheels)));
}
