//! Given a split binary, when it is installed again, then nothing changes if the arguments are the same,
//! and otherwise a message says how they differ.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use crate::verified::assert_holds;
use kpack_core::DebugInfo;
use kpack_split::install::{InstallOptions, Only, Outcome, install};
use kpack_split::join::{JoinOptions, join};
use kpack_split::{Error, Finding};
use kpack_tests::fixture::{FatLibrary, Storage, code};
use kpack_tests::tree::Tree;

/// `prefix/lib/libvec.so` with code for gfx1100 and gfx942, in the module `vec`.
fn split() -> Tree {
    let tree = unsplit();
    install(&options(&tree, "vec"), &()).unwrap();
    tree
}

fn unsplit() -> Tree {
    let tree = Tree::new();
    let objects = [code("gfx1100", "add"), code("gfx942", "add")];
    let library = FatLibrary::new().wrapper(Storage::Plain, objects);
    library.build(&tree.path("prefix/lib/libvec.so")).unwrap();
    tree
}

fn options(tree: &Tree, module: &str) -> InstallOptions {
    InstallOptions::new(tree.path("prefix"), module, ["lib/libvec.so"])
}

fn for_targets(tree: &Tree, targets: &[&str]) -> InstallOptions {
    let mut options = options(tree, "vec");
    options.architectures = targets.iter().map(|id| id.parse().unwrap()).collect();
    options
}

/// The run is rejected and changes nothing, and the error has all of `parts`.
fn assert_refused(tree: &Tree, options: &InstallOptions, parts: &[&str]) {
    let before = tree.snapshot_with_times();
    let error = install(options, &()).unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    let text = error.in_one_line();
    let found = parts.iter().all(|part| text.contains(part));
    assert!(found, "{parts:?} are not all in: {text}");
    assert_eq!(tree.snapshot_with_times(), before);
}

#[test]
fn all_binaries_with_device_code_in_the_prefix() {
    // Given a prefix with two fat binaries, one without device code, links, other files,
    let tree = unsplit();
    let fat = FatLibrary::new().wrapper(Storage::Plain, [code("gfx1100", "run")]);
    fat.build(&tree.path("prefix/libexec/deep/tool.so")).unwrap();
    FatLibrary::new().build(&tree.path("prefix/lib/libhost.so")).unwrap();
    symlink("libvec.so", tree.path("prefix/lib/libvec.so.1")).unwrap();
    fs::write(tree.path("prefix/lib/readme"), "text").unwrap();
    // one that is of another module, and one that cannot be read,
    fat.build(&tree.path("prefix/lib/libother.so")).unwrap();
    install(&InstallOptions::new(tree.path("prefix"), "other", ["lib/libother.so"]), &()).unwrap();
    let mut foreign = fs::read(tree.path("prefix/lib/libhost.so")).unwrap();
    foreign[18] = 243;
    fs::write(tree.path("prefix/lib/libriscv.so"), foreign).unwrap();
    // when all are asked for,
    let mut options = options(&tree, "vec");
    options.files.clear();
    options.all = true;
    let report = install(&options, &()).unwrap();
    // then the fat ones are split, and the run says what it could not read.
    let split: Vec<&str> = report.files.iter().map(|file| &*file.path).collect();
    assert_eq!(split, ["lib/libvec.so", "libexec/deep/tool.so"]);
    let [notice] = &report.findings[..] else {
        panic!("{:?}", report.findings);
    };
    assert!(notice.file().ends_with("prefix/lib/libriscv.so"), "{notice:?}");
    assert!(notice.text.starts_with("skipped: "), "{notice:?}");
    // Again, there is nothing to do.
    let before = tree.snapshot_with_times();
    assert_eq!(install(&options, &()).unwrap().files, []);
    assert_eq!(tree.snapshot_with_times(), before);
}

/// What a truncated file has lost may be device code, so it is not skipped.
#[test]
fn a_truncated_library_is_rejected_with_all_binaries() {
    let tree = unsplit();
    FatLibrary::new().build(&tree.path("prefix/lib/libhost.so")).unwrap();
    let whole = fs::read(tree.path("prefix/lib/libhost.so")).unwrap();
    fs::write(tree.path("prefix/lib/libhost.so"), &whole[..whole.len() / 2]).unwrap();
    let mut options = options(&tree, "vec");
    options.files.clear();
    options.all = true;
    assert_refused(&tree, &options, &["libhost.so", "truncated; build or copy it again"]);
}

/// An option without effect says so.
#[test]
fn strip_debug_does_nothing_to_a_split_library_and_says_so() {
    let tree = split();
    let mut options = options(&tree, "vec");
    options.storage.debug = DebugInfo::Strip;
    let report = install(&options, &()).unwrap();
    let said =
        |found: &Finding| found.text.contains("`--strip-debug` only affects what is split now");
    assert!(report.findings.iter().any(said), "{:?}", report.findings);
}

#[test]
fn device_code_that_the_host_does_not_expect_is_named() {
    let tree = split();
    let other = [code("gfx1100", "mul"), code("gfx942", "add")];
    let other = FatLibrary::new().wrapper(Storage::Plain, other);
    other.build(&tree.path("other.so")).unwrap();
    let unsplit = unsplit();
    let same = unsplit.path("prefix/lib/libvec.so");
    for (source, expected) in [(same, None), (tree.path("other.so"), Some("gfx1100"))] {
        // Given a split library, when device code of a build is put beside it,
        let mut options = options(&tree, "vec");
        options.only = Some(Only::Device);
        options.sources = vec![source];
        let report = install(&options, &()).unwrap();
        // then a warning names the targets for which it is of another build.
        let said = report.findings.iter().map(|notice| notice.text.as_str());
        let said = Vec::from_iter(said);
        match expected {
            None => assert_eq!(said, [""; 0]),
            Some(target) => {
                let text = format!("expects other device code for {target}, so");
                assert!(matches!(said[..], [one] if one.starts_with(&text)), "{said:?}");
            }
        }
    }
}

#[test]
fn device_code_is_installed_while_its_host_is_copied() {
    let tree = unsplit();
    let library = tree.path("library.so");
    let host = tree.path("prefix/lib/libvec.so");
    std::fs::rename(&host, &library).unwrap();
    let whole = std::fs::read(&library).unwrap();
    // Given a host file of which another run has copied nothing, or a part,
    for copied in [0, 100, whole.len() / 2] {
        std::fs::write(&host, &whole[..copied]).unwrap();
        // when its device code is installed,
        let mut options = for_targets(&tree, &["gfx942"]);
        options.only = Some(Only::Device);
        options.sources = vec![library.clone()];
        let report = install(&options, &()).unwrap();
        // then it is there, and the host file is as it was.
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        assert!(tree.path("prefix/lib/.kpack/vec_lib_gfx942.kpack").exists());
        assert_eq!(std::fs::read(&host).unwrap(), whole[..copied]);
    }
}

#[test]
fn another_module_is_refused() {
    let tree = split();
    let parts = [
        "lib/libvec.so: ",
        "`.kpack/vec_lib_@GFXARCH@.kpack`",
        "expected `.kpack/other_lib_@GFXARCH@.kpack`",
    ];
    assert_refused(&tree, &options(&tree, "other"), &parts);
}

/// Given a split library that a new build replaced, when that is split into another module, then the archives of the
/// former one are of no use any more, and the run says which.
#[test]
fn archives_of_a_former_module_are_named() {
    let tree = split();
    let build = |name: &str| {
        let objects = [code("gfx1100", "new"), code("gfx942", "new")];
        let library = FatLibrary::new().wrapper(Storage::Plain, objects);
        library.build(&tree.path("prefix/lib").join(name)).unwrap();
    };
    // Others' archives, and what is none, do not matter.
    build("libother.so");
    let mut other = options(&tree, "other");
    other.files = vec!["lib/libother.so".into()];
    assert!(install(&other, &()).unwrap().findings.is_empty());
    fs::write(tree.path("prefix/lib/.kpack/damaged_lib_gfx942.kpack"), "no archive").unwrap();

    build("libvec.so");
    let report = install(&options(&tree, "vec2"), &()).unwrap();
    let [Finding { id, path, text, .. }] = &report.findings[..] else {
        panic!("{:?}", report.findings);
    };
    assert_eq!(
        (id.as_str(), path.as_deref()),
        ("unused-kernels", Some(&*tree.path("prefix/lib/libvec.so").canonicalize().unwrap()))
    );
    let names = "`vec_lib_gfx1100.kpack`, `vec_lib_gfx942.kpack`";
    assert!(text.contains(names) && text.ends_with("remove them"), "{text}");

    // Each time; a component is a part of the name, too. An archive that others use stays.
    fs::remove_file(tree.path("prefix/lib/.kpack/vec_lib_gfx942.kpack")).unwrap();
    build("libvec.so");
    let mut both = options(&tree, "other");
    both.files.push("lib/libother.so".into());
    let report = install(&both, &()).unwrap();
    let text = &report.findings[0].text;
    let names = "`vec2_lib_gfx1100.kpack`, `vec2_lib_gfx942.kpack`, `vec_lib_gfx1100.kpack`";
    assert!(text.contains(names), "{text}");
    build("libvec.so");
    let mut again = options(&tree, "other");
    again.component = "dev".into();
    let report = install(&again, &()).unwrap();
    let text = &report.findings[1].text;
    assert!(text.contains("`other_lib_gfx1100.kpack`") && text.contains("keep"), "{text}");
    // Nothing is said of what nothing replaces.
    build("libvec.so");
    again.only = Some(Only::Device);
    assert!(
        install(&again, &()).unwrap().findings.iter().all(|f| f.id.as_str() != "unused-kernels")
    );
}

/// The code that a joined library has not got back is in the archives of its module alone.
#[test]
fn a_joined_library_is_refused_for_another_module() {
    let tree = split();
    let target = ["gfx1100".parse().unwrap()];
    join(&JoinOptions::new(tree.path("prefix"), target, ["lib/libvec.so"]), &()).unwrap();
    let parts = ["lib/libvec.so: ", "gfx942", "`.kpack/vec_lib_@GFXARCH@.kpack`"];
    assert_refused(&tree, &options(&tree, "other"), &parts);
    // With all of its code, it is as good as the original.
    let targets = ["gfx1100", "gfx942"].map(|target| target.parse().unwrap());
    join(&JoinOptions::new(tree.path("prefix"), targets, ["lib/libvec.so"]), &()).unwrap();
    let report = install(&options(&tree, "other"), &()).unwrap();
    assert!(report.findings[0].text.contains("`vec_lib_gfx942.kpack`"), "{:?}", report.findings);
    for target in ["gfx1100", "gfx942"] {
        fs::remove_file(tree.path(&format!("prefix/lib/.kpack/vec_lib_{target}.kpack"))).unwrap();
    }
    fs::remove_file(tree.path("prefix/lib/.kpack/vec_lib.kpm")).unwrap();
    assert_holds(&tree.path("prefix"));
}

#[test]
fn another_directory_of_archives_is_refused() {
    let tree = split();
    let mut options = options(&tree, "vec");
    options.kpack_dir = "share/kpack".into();
    assert_refused(&tree, &options, &["share/kpack/vec_lib_@GFXARCH@.kpack"]);
}

#[test]
fn a_target_that_it_was_not_split_for_is_refused() {
    let tree = split();
    assert_refused(
        &tree,
        &for_targets(&tree, &["gfx1100", "gfx1030"]),
        &["lib/libvec.so: ", "gfx1030", "gfx1100, gfx942"],
    );
}

#[test]
fn a_target_that_no_binary_was_split_for_is_refused() {
    let tree = split();
    let all = |targets: &[&str]| {
        let mut options = for_targets(&tree, targets);
        options.files.clear();
        options.all = true;
        options
    };
    let parts = ["lib/libvec.so: ", "gfx906", "gfx1100, gfx942"];
    assert_refused(&tree, &all(&["gfx906"]), &parts);
    let before = tree.snapshot_with_times();
    install(&all(&["gfx942"]), &()).unwrap();
    assert_eq!(tree.snapshot_with_times(), before);
    // The binaries of other modules are not asked for.
    let mut other = all(&["gfx906"]);
    other.module = "other".into();
    install(&other, &()).unwrap();
    assert_eq!(tree.snapshot_with_times(), before);
}

#[test]
fn its_own_module_and_targets_change_nothing() {
    let tree = split();
    let before = tree.snapshot_with_times();
    let report = install(&for_targets(&tree, &["gfx942"]), &()).unwrap();
    assert_eq!(report.files[0].outcome, Outcome::AlreadySplit);
    assert_eq!(tree.snapshot_with_times(), before);
}

/// Shells complete file names in this way.
#[test]
fn a_file_is_found_from_the_working_directory_too() {
    let tree = unsplit();
    let run = |file: &str| {
        let mut kpack = Command::new(env!("CARGO_BIN_EXE_kpack"));
        let kpack = kpack.current_dir(tree.root());
        let output =
            kpack.args(["split", "--prefix", "prefix", "--module", "vec", file]).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&said).into_owned())
    };
    let (code, said) = run("prefix/lib/libvec.so");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("lib/libvec.so: "), "{said}");
    assert!(tree.path("prefix/lib/.kpack/vec_lib.kpm").is_file());

    // The error for a missing file says where kpack looked.
    let (code, said) = run("prefix/lib/libmatrix.so");
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("cannot open"), "{said}");
}
