//! Given binaries in a prefix, when they are installed, then their device code is in archives, the tree
//! works at each moment, and a rejected binary leaves it unchanged.

use std::fs;
use std::num::NonZeroUsize;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::thread;

use crate::markers::{assert_expects, markers};
use crate::verified::{assert_holds, assert_holds_against};
use kpack_format::TargetId;
use kpack_format::archive::Scheme;
use kpack_format::manifest::Manifest;
use kpack_split::Error;
use kpack_split::install::{InstallOptions, Only, Outcome, Report, Unexpected, install};
use kpack_tests::fixture::{FatLibrary, Kind, Storage, code, three_wrappers};
use kpack_tests::tree::Tree;

fn program() -> FatLibrary {
    FatLibrary::new()
        .kind(Kind::Pie)
        .wrapper(Storage::Zlib(3), [code("gfx1100", "main"), code("gfx1101", "main")])
}

/// A prefix with `lib/libvec.so` and `bin/vec`.
fn prefix() -> Tree {
    let tree = three_wrappers().in_tree("lib/libvec.so");
    program().build(&tree.path("bin/vec")).unwrap();
    tree
}

fn options(tree: &Tree, files: &[&str]) -> InstallOptions {
    InstallOptions::new(tree.root(), "vec", files)
}

fn run(options: &InstallOptions) -> Report {
    install(options, &()).unwrap_or_else(|error| panic!("{}", error.in_one_line()))
}

fn targets(ids: &[&str]) -> Vec<TargetId> {
    ids.iter().map(|id| id.parse().unwrap()).collect()
}

/// Everything in the prefix verifies, and each binary against its original.
fn assert_verifies(tree: &Tree, originals: &[(&str, &Path)]) {
    assert_holds(tree.root());
    for (file, original) in originals {
        assert_holds_against(&tree.path(file), original);
    }
}

#[test]
fn device_code_goes_into_an_archive_for_each_target() {
    let originals = prefix();
    let tree = originals.copy();
    let report = run(&options(&tree, &["lib/libvec.so", "bin/vec"]));
    assert_eq!(
        tree.files(),
        [
            "bin/vec",
            "lib/.kpack/vec_lib.kpm",
            "lib/.kpack/vec_lib_gfx1100.kpack",
            "lib/.kpack/vec_lib_gfx1101.kpack",
            "lib/.kpack/vec_lib_gfx90a:xnack+.kpack",
            "lib/.kpack/vec_lib_gfx942.kpack",
            "lib/libvec.so",
        ]
    );
    assert_eq!(
        report.archives.iter().map(|a| a.code_object_count).collect::<Vec<_>>(),
        [4, 1, 1, 1]
    );
    let split = |path: &str| originals.path(path);
    assert_verifies(
        &tree,
        &[("lib/libvec.so", &split("lib/libvec.so")), ("bin/vec", &split("bin/vec"))],
    );
}

#[test]
fn markers_expect_the_device_code_that_was_split() {
    let originals = prefix();
    let files = ["lib/libvec.so", "bin/vec"];
    let expects = |tree: &Tree| {
        let kpacks = tree.path("lib/.kpack");
        for (file, targets) in [
            ("lib/libvec.so", &["gfx1100", "gfx90a:xnack+", "gfx942"][..]),
            ("bin/vec", &["gfx1100", "gfx1101"]),
        ] {
            assert_expects(&tree.path(file), &kpacks, "vec_lib", targets);
        }
    };
    // Given an installation in one run,
    let whole = originals.copy();
    run(&options(&whole, &files));
    expects(&whole);
    // when host files and device code are installed apart, then it is the same,
    let halves = originals.copy();
    for only in [Only::Device, Only::Host] {
        let mut options = options(&halves, &files);
        options.only = Some(only);
        run(&options);
    }
    assert_eq!(halves.snapshot(), whole.snapshot());
    // and with other options, or other binaries in the module, the IDs are.
    let other = originals.copy();
    let mut uncompressed = options(&other, &files[..1]);
    uncompressed.storage.scheme = Scheme::None;
    run(&uncompressed);
    let library = |tree: &Tree| markers(&tree.path("lib/libvec.so"));
    assert_eq!(library(&other), library(&whole));
    run(&options(&other, &files));
    expects(&other);
}

#[test]
fn a_new_host_or_another_target_leaves_the_ids_of_the_others() {
    let tree = Tree::new();
    let with = |name: &str, host: u32, more: &[(String, Vec<u8>)]| {
        let path = format!("lib/{name}.so");
        let entries = [code("gfx1100", "add")].into_iter().chain(more.to_vec());
        let library = FatLibrary::new().wrapper(Storage::Plain, entries);
        // Another host: more wrappers follow, without code for this target.
        let others = (0..host).map(|_| [code("gfx942", "mul")]);
        let library = others.fold(library, |l, entry| l.wrapper(Storage::Plain, entry));
        library.build(&tree.path(&path)).unwrap();
        run(&InstallOptions::new(tree.root(), name, [path.as_str()]));
        markers(&tree.path(&path))[0].code_ids["gfx1100"]
    };
    let first = with("one", 0, &[]);
    assert_eq!(with("two", 3, &[]), first);
    assert_eq!(with("three", 0, &[code("gfx1101", "add")]), first);
}

#[test]
fn a_second_run_changes_nothing() {
    let tree = prefix();
    let options = options(&tree, &["lib/libvec.so", "bin/vec"]);
    run(&options);
    let before = tree.snapshot_with_times();
    let report = run(&options);
    assert_eq!(tree.snapshot_with_times(), before);
    assert!(report.files.iter().all(|file| file.outcome == Outcome::AlreadySplit), "{report:?}");
}

#[test]
fn the_manifest_keeps_how_to_install_archives() {
    let tree = prefix();
    let hint = || {
        let bytes = fs::read(tree.path("lib/.kpack/vec_lib.kpm")).unwrap();
        Manifest::read(&bytes).unwrap().install_hint
    };
    let mut options = options(&tree, &["lib/libvec.so"]);
    options.install_hint = Some("apt install vec-@GFXARCH@".to_owned());
    run(&options);
    assert_eq!(hint(), options.install_hint);
    options.install_hint = None;
    options.files = vec!["bin/vec".into()];
    run(&options);
    assert_eq!(hint().as_deref(), Some("apt install vec-@GFXARCH@"));
}

#[test]
fn installing_the_fat_binary_again_rewrites_no_archive() {
    let tree = prefix();
    let fat = fs::read(tree.path("lib/libvec.so")).unwrap();
    run(&options(&tree, &["lib/libvec.so"]));
    let before = tree.snapshot();
    fs::write(tree.path("lib/libvec.so"), fat).unwrap();
    let report = run(&options(&tree, &["lib/libvec.so"]));
    assert_eq!(tree.snapshot(), before);
    assert!(report.archives.iter().all(|archive| !archive.changed), "{report:?}");
}

#[test]
fn separate_runs_give_the_bytes_of_one_run() {
    let together = prefix();
    let apart = together.copy();
    run(&options(&together, &["lib/libvec.so", "bin/vec"]));
    run(&options(&apart, &["bin/vec"]));
    run(&options(&apart, &["lib/libvec.so"]));
    assert_eq!(apart.snapshot(), together.snapshot());
}

#[test]
fn threads_do_not_change_a_byte() {
    let one = prefix();
    let many = one.copy();
    for (tree, jobs) in [(&one, 1), (&many, 7)] {
        let mut options = options(tree, &["lib/libvec.so", "bin/vec"]);
        options.storage.jobs = NonZeroUsize::new(jobs).unwrap();
        run(&options);
    }
    assert_eq!(one.snapshot(), many.snapshot());
}

/// The halves in every order, device code from a build tree that is not changed.
#[test]
fn halves_give_the_bytes_of_one_run() {
    let build = prefix();
    let sources: Vec<PathBuf> =
        ["lib/libvec.so", "bin/vec"].iter().map(|f| build.path(f)).collect();
    let built = build.snapshot_with_times();
    let whole = build.copy();
    let files = ["lib/libvec.so", "bin/vec"];
    run(&options(&whole, &files));

    let all = ["gfx1100", "gfx1101", "gfx90a:xnack+", "gfx942"];
    for host_at in 0..=all.len() {
        let tree = build.copy();
        for step in 0..=all.len() {
            let mut options = options(&tree, &files);
            if step == host_at {
                options.only = Some(Only::Host);
                run(&options);
            }
            if let Some(target) = all.get(step) {
                let mut options = self::options(&tree, &files);
                options.only = Some(Only::Device);
                options.architectures = targets(&[target]);
                options.sources.clone_from(&sources);
                run(&options);
            }
        }
        assert_eq!(tree.snapshot(), whole.snapshot(), "host binaries as step {host_at}");
    }
    assert_eq!(build.snapshot_with_times(), built, "the build tree");
}

#[test]
fn packages_of_halves_overlay_to_the_whole() {
    let build = prefix();
    let whole = build.copy();
    run(&options(&whole, &["lib/libvec.so"]));

    let host = build.copy();
    let mut only_host = options(&host, &["lib/libvec.so"]);
    only_host.only = Some(Only::Host);
    run(&only_host);
    assert_eq!(host.files(), ["bin/vec", "lib/.kpack/vec_lib.kpm", "lib/libvec.so"]);
    for target in ["gfx1100", "gfx90a:xnack+", "gfx942"] {
        let device = Tree::new();
        let mut only_device = options(&device, &["lib/libvec.so"]);
        only_device.only = Some(Only::Device);
        only_device.architectures = targets(&[target]);
        only_device.sources = vec![build.path("lib/libvec.so")];
        run(&only_device);
        let archive = format!("lib/.kpack/vec_lib_{target}.kpack");
        assert_eq!(device.files(), [archive.as_str()]);
        fs::copy(device.path(&archive), host.path(&archive)).unwrap();
    }
    assert_eq!(host.snapshot(), whole.snapshot());
}

#[test]
fn targets_that_a_new_build_lacks_are_dropped() {
    let tree = prefix();
    run(&options(&tree, &["lib/libvec.so", "bin/vec"]));
    FatLibrary::new()
        .wrapper(Storage::Plain, [code("gfx1100", "new")])
        .build(&tree.path("lib/libvec.so"))
        .unwrap();
    let report = run(&options(&tree, &["lib/libvec.so"]));
    assert_eq!(
        tree.files(),
        [
            "bin/vec",
            "lib/.kpack/vec_lib.kpm",
            "lib/.kpack/vec_lib_gfx1100.kpack",
            "lib/.kpack/vec_lib_gfx1101.kpack",
            "lib/libvec.so",
        ]
    );
    assert_eq!(report.removed.len(), 2);
    assert_verifies(&tree, &[]);
}

#[test]
fn a_hard_link_keeps_the_fat_binary_and_the_mode_stays() {
    let tree = prefix();
    let (file, link) = (tree.path("lib/libvec.so"), tree.path("fat-link"));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    fs::hard_link(&file, &link).unwrap();
    let fat = fs::read(&link).unwrap();
    run(&options(&tree, &["lib/libvec.so"]));
    assert_eq!(fs::read(&link).unwrap(), fat);
    assert_ne!(fs::metadata(&file).unwrap().ino(), fs::metadata(&link).unwrap().ino());
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o640);
}

#[test]
fn a_symbolic_link_is_followed_once() {
    let tree = prefix();
    fs::rename(tree.path("lib/libvec.so"), tree.path("lib/libvec.so.1.2")).unwrap();
    symlink("libvec.so.1.2", tree.path("lib/libvec.so.1")).unwrap();
    symlink("libvec.so.1", tree.path("lib/libvec.so")).unwrap();
    let report = run(&options(&tree, &["lib/libvec.so", "lib/libvec.so.1", "lib/libvec.so.1.2"]));
    assert_eq!(report.files.len(), 1);
    assert_eq!(report.files[0].path, "lib/libvec.so.1.2");
    assert!(tree.path("lib/libvec.so").is_symlink());
    assert_verifies(&tree, &[]);
}

#[test]
fn a_marker_leads_from_the_binary_to_the_archives() {
    for (directory, kpack_dir) in [
        ("bin/deep/er", "lib/.kpack"),
        ("lib", "lib/.kpack"),
        ("lib", ".kpack"),
        ("lib/x", "lib/x"),
    ] {
        let tree = Tree::new();
        let file = format!("{directory}/vec");
        program().build(&tree.path(&file)).unwrap();
        let mut options = options(&tree, &[&file]);
        options.kpack_dir = kpack_dir.into();
        run(&options);
        assert_verifies(&tree, &[]);
    }
}

#[test]
fn what_has_no_device_code_is_left_alone_with_a_notice() {
    let tree = FatLibrary::new().in_tree("plain.so");
    three_wrappers().without_wrappers().build(&tree.path("no-wrappers.so")).unwrap();
    three_wrappers().kind(Kind::Object).build(&tree.path("device.o")).unwrap();
    three_wrappers().kind(Kind::StaticLibrary).build(&tree.path("libdevice.a")).unwrap();
    let before = tree.snapshot_with_times();
    let files = ["plain.so", "no-wrappers.so", "device.o", "libdevice.a"];
    let report = run(&options(&tree, &files));
    assert_eq!(tree.snapshot_with_times(), before);
    let notices: Vec<&str> = report.findings.iter().map(|notice| notice.text.as_str()).collect();
    for (notice, part) in notices.iter().zip([
        "no device code",
        "`.hip_fatbin` without wrappers",
        "split it before the link",
        "split it before the link",
    ]) {
        assert!(notice.contains(part), "{notice}");
    }
    assert_eq!(notices.len(), files.len());
}

#[test]
fn unexpected_targets_are_dropped_refused_or_kept() {
    let original = prefix();
    for unexpected in [Unexpected::Drop, Unexpected::Error, Unexpected::Keep] {
        let tree = original.copy();
        let mut options = options(&tree, &["lib/libvec.so"]);
        options.architectures = targets(&["gfx1100", "gfx942"]);
        options.unexpected = unexpected;
        let result = install(&options, &());
        match unexpected {
            Unexpected::Error => {
                let error = result.unwrap_err().to_string();
                let expected = "has device code for gfx90a:xnack+; expected only gfx1100, gfx942";
                assert!(error.contains(expected), "{error}");
                assert_eq!(tree.snapshot(), original.snapshot());
            }
            Unexpected::Drop => {
                let report = result.unwrap();
                assert!(
                    report.findings[0].text.contains("gfx90a:xnack+, which --arch does not list"),
                    "{report:?}"
                );
                assert!(!tree.path("lib/.kpack/vec_lib_gfx90a:xnack+.kpack").exists());
                assert_verifies(&tree, &[]);
            }
            Unexpected::Keep => {
                result.unwrap();
                assert!(tree.path("lib/.kpack/vec_lib_gfx90a:xnack+.kpack").exists());
            }
        }
    }
}

#[test]
fn a_target_that_is_nowhere_is_refused_and_says_what_is_there() {
    let tree = prefix();
    let before = tree.snapshot();
    let mut options = options(&tree, &["lib/libvec.so", "bin/vec"]);
    options.architectures = targets(&["gfx1100", "gfx1201"]);
    let error = install(&options, &()).unwrap_err().to_string();
    assert!(error.contains("no device code for gfx1201"), "{error}");
    assert!(error.contains("gfx1100, gfx1101, gfx90a:xnack+, gfx942"), "{error}");
    assert_eq!(tree.snapshot(), before);
    // A target that only one binary has gets a warning.
    options.architectures = targets(&["gfx1100", "gfx1101", "gfx90a:xnack+", "gfx942"]);
    let report = run(&options);
    let texts: Vec<&str> = report.findings.iter().map(|notice| notice.text.as_str()).collect();
    assert_eq!(
        texts,
        [
            "has no device code for gfx1101, only for gfx1100, gfx90a:xnack+, gfx942",
            "has no device code for gfx90a:xnack+, gfx942, only for gfx1100, gfx1101",
        ]
    );
}

#[test]
fn uncompressed_archives_are_written_and_merged_too() {
    let tree = prefix();
    let mut plain = options(&tree, &["bin/vec"]);
    plain.storage.scheme = Scheme::None;
    run(&plain);
    run(&options(&tree, &["lib/libvec.so"]));
    assert_verifies(&tree, &[]);
}

#[test]
fn two_runs_at_once_lose_nothing() {
    let build = Tree::new();
    let names: Vec<String> = (0..6).map(|index| format!("lib/lib{index}.so")).collect();
    for name in &names {
        FatLibrary::new()
            .wrapper(Storage::Plain, [code("gfx1100", name), code("gfx942", name)])
            .build(&build.path(name))
            .unwrap();
    }
    for _ in 0..5 {
        let tree = build.copy();
        thread::scope(|scope| {
            for name in &names {
                let tree = &tree;
                scope.spawn(move || run(&options(tree, &[name])));
            }
            // And the same binary twice.
            scope.spawn(|| run(&options(&tree, &[&names[0]])));
        });
        let whole = build.copy();
        run(&options(&whole, &names.iter().map(String::as_str).collect::<Vec<_>>()));
        assert_eq!(tree.snapshot(), whole.snapshot());
    }
}

#[test]
fn wrong_arguments_are_usage_errors() {
    let tree = prefix();
    let before = tree.snapshot();
    type Change = fn(&mut InstallOptions);
    let cases: [(&str, Change); 6] = [
        ("module `../x`", |o| o.module = "../x".to_owned()),
        ("component ``", |o| o.component.clear()),
        ("no binary is named", |o| o.files.clear()),
        ("sources of device code", |o| o.sources = vec!["x".into()]),
        ("kpack directory `../x`", |o| o.kpack_dir = "../x".into()),
        ("2 sources for 1 binaries", |o| {
            o.only = Some(Only::Device);
            o.sources = vec!["x".into(), "y".into()];
        }),
    ];
    for (message, change) in cases {
        let mut options = options(&tree, &["lib/libvec.so"]);
        change(&mut options);
        match install(&options, &()) {
            Err(Error::Usage(text)) => assert!(text.contains(message), "{text}"),
            other => panic!("{message}: {other:?}"),
        }
    }
    assert_eq!(tree.snapshot(), before);
}
