//! Given split binaries in places where loader and tools once disagreed, when they are looked at, then all
//! find the same archives, and say what led there.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Output;

use crate::command::{command, kpack, said};
use crate::fat::{elements, shown, text};
use crate::verified::{check, checks, faults};
use kpack::internal::{Cache, Environment, Request};
use kpack_artifact::verify::{Options, verify};
use kpack_core::Severity;
use kpack_format::TargetId;
use kpack_format::marker::Marker;
use kpack_split::install::{InstallOptions, install};
use kpack_split::join::{JoinOptions, join};
use kpack_tests::fixture::{FatLibrary, Kind, add_and_mul};
use kpack_tests::tree::Tree;
use serde_json::json;

const LIBRARY: &str = "lib/libvec.so";
const TARGETS: [&str; 2] = ["gfx1030", "gfx942"];

/// A prefix with a split library, and the unsplit one as `fat`.
fn split() -> Tree {
    let tree = Tree::new();
    let library = add_and_mul(TARGETS, TARGETS);
    library.build(&tree.path("fat")).unwrap();
    library.build(&tree.path("prefix").join(LIBRARY)).unwrap();
    install(&InstallOptions::new(tree.path("prefix"), "vec", [LIBRARY]), &()).unwrap();
    tree
}

/// Moves a file into the cache, below `part`, and leaves a link to it below `site`.
fn cached(tree: &Tree, part: &str, file: &str) {
    let cache = tree.path("cache").join(part).join(file);
    let site = tree.path("site").join(file);
    for path in [&cache, &site] {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
    }
    fs::rename(tree.path("prefix").join(file), &cache).unwrap();
    symlink(cache, site).unwrap();
}

/// An installation of links, file by file, into a cache that has each package in its own directory, as
/// `uv pip install --link-mode symlink` makes it.
fn links() -> Tree {
    let tree = split();
    cached(&tree, "host", LIBRARY);
    cached(&tree, "host", "lib/.kpack/vec_lib.kpm");
    for target in TARGETS {
        let archive = format!("lib/.kpack/vec_lib_{target}.kpack");
        cached(&tree, target, &archive);
    }
    tree
}

fn site(tree: &Tree) -> std::path::PathBuf {
    tree.path("site").join(LIBRARY)
}

/// Whether the loader finds the code of a library for a GPU.
fn loads(library: &Path, gpu: &str) -> bool {
    let marker = Marker::new(LIBRARY, vec![".kpack/vec_lib_@GFXARCH@.kpack".to_owned()]);
    let cache = Cache::new(Environment::default());
    let load = |co_index| {
        cache.load_code_object(&Request {
            marker: &marker,
            binary: library,
            co_index,
            isas: &[gpu.parse().unwrap()],
        })
    };
    [0, 1].into_iter().all(|co_index| load(co_index).is_ok())
}

/// The findings of the doctor for gfx942, with the tree as `/tree`.
fn examined(tree: &Tree, path: &str) -> Vec<String> {
    let mut options = kpack_doctor::Options::default();
    options.targets = vec!["gfx942".parse().unwrap()];
    let report = kpack_doctor::examine(&[tree.path(path)], &options).unwrap();
    let root = tree.root().canonicalize().unwrap();
    let line = |finding: kpack_core::Finding| {
        let path = finding.path.unwrap_or_default();
        let line = format!("{:?} {}: {}", finding.severity, path.display(), finding.text);
        line.replace(root.to_str().unwrap(), "/tree")
            .replace(tree.root().to_str().unwrap(), "/tree")
    };
    report.findings.into_iter().map(|found| line(found.finding)).collect()
}

#[test]
fn the_loader_and_all_tools_find_archives_beside_links() {
    let tree = links();
    for target in TARGETS {
        assert!(loads(&site(&tree), target));
    }
    for path in ["site", "site/lib/libvec.so"] {
        let report = check(&tree, path);
        assert_eq!(faults(&report), [""; 0], "{path}");
        let found = checks(&report, Severity::Ok);
        let code = "4 code objects for gfx1030, gfx942, \
                    found through a symbolic link to the binary";
        assert!(found.iter().any(|check| check.ends_with(code)), "{found:#?}");
        let found = examined(&tree, path);
        let code = "Ok /tree/site/lib/libvec.so: split, with code for gfx942, \
                    found through a symbolic link to the binary";
        assert!(found.iter().any(|finding| finding == code), "{found:#?}");
        assert!(found.iter().all(|finding| !finding.starts_with("Fault")), "{found:#?}");
    }
    let mut options = Options::default();
    options.against = Some(tree.path("fat"));
    options.targets = vec!["gfx942".parse().unwrap()];
    let report = verify(&[site(&tree)], &options, &()).unwrap();
    assert_eq!(faults(&report), [""; 0]);
    let split = shown(&site(&tree), "split-binary");
    let targets = Vec::from_iter(elements(&split, "files").iter().map(|file| text(file, "target")));
    assert_eq!(targets, TARGETS);
    assert_eq!(split["code_objects"], json!([2, 2]));
    assert_eq!(split["prefix"], json!(tree.path("site").canonicalize().unwrap()));
    let text = said(&tree, &["show", "site/lib/libvec.so"]);
    assert!(text.contains("found through a symbolic link to the binary"), "{text}");
}

#[test]
fn a_part_that_is_missing_beside_links_is_a_fault_for_all() {
    let tree = links();
    fs::remove_file(tree.path("site/lib/.kpack/vec_lib_gfx942.kpack")).unwrap();
    assert!(!loads(&site(&tree), "gfx942"));
    for path in ["site", "site/lib/libvec.so"] {
        let found = faults(&check(&tree, path));
        let missing = "the manifest lists an archive for gfx942";
        assert!(found.iter().any(|fault| fault.contains(missing)), "{found:#?}");
        let found = examined(&tree, path);
        assert!(
            found.iter().any(|finding| finding.contains("the archive for gfx942 is missing")),
            "{found:#?}"
        );
    }
    let options = JoinOptions::new(tree.path("site"), ["gfx942".parse().unwrap()], [LIBRARY]);
    let mut options = options;
    options.output = Some(tree.path("out"));
    let error = join(&options, &()).unwrap_err().to_string();
    assert!(error.contains("the archive for gfx942 is missing"), "{error}");
    assert!(!tree.path("out").exists());
}

#[test]
fn a_join_of_a_link_never_writes_through_it() {
    let tree = links();
    // A cache may be below the same prefix.
    for prefix in ["site", "."] {
        let file = site(&tree);
        let before = tree.snapshot_with_times();
        let gpu: TargetId = "gfx942".parse().unwrap();
        let options = JoinOptions::new(tree.path(prefix), [gpu.clone()], [&file]);
        let error = join(&options, &()).unwrap_err().in_one_line();
        for part in ["a symbolic link to", "[shared-link]", "cache/host/lib/libvec.so", "--output"]
        {
            assert!(error.contains(part), "{error}");
        }
        let all: [&str; 0] = [];
        let error = join(&JoinOptions::new(tree.path("site"), [gpu], all), &()).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("symbolic links are not followed"), "{error}");
        assert_eq!(tree.snapshot_with_times(), before);

        let mut options = options;
        options.output = Some(tree.path("out"));
        join(&options, &()).unwrap();
        let mut written = Options::default();
        written.against = Some(tree.path("fat"));
        written.targets = vec!["gfx942".parse().unwrap()];
        let report = verify(&[tree.path("out")], &written, &()).unwrap();
        assert_eq!(faults(&report), [""; 0]);
        fs::remove_file(tree.path("out")).unwrap();
        assert_eq!(tree.snapshot_with_times().0, before.0);
    }
}

#[test]
fn a_link_beside_its_file_is_another_name_of_it() {
    let tree = split();
    symlink("libvec.so", tree.path("prefix/lib/libvec.so.1")).unwrap();
    let gpu: TargetId = "gfx942".parse().unwrap();
    let options = JoinOptions::new(tree.path("prefix"), [gpu], ["lib/libvec.so.1"]);
    join(&options, &()).unwrap();
    assert!(tree.path("prefix/lib/libvec.so.1").is_symlink());
    shown(&tree.path("prefix").join(LIBRARY), "joined-binary");
}

/// The kernel tells only the real path of a program.
#[test]
fn nothing_is_searched_beside_a_link_to_a_program() {
    let tree = Tree::new();
    let program: FatLibrary = add_and_mul(TARGETS, TARGETS).kind(Kind::Pie);
    program.build(&tree.path("prefix/bin/app")).unwrap();
    install(&InstallOptions::new(tree.path("prefix"), "vec", ["bin/app"]), &()).unwrap();
    fs::create_dir_all(tree.path("site/bin")).unwrap();
    symlink(tree.path("prefix/bin/app"), tree.path("site/bin/app")).unwrap();
    assert_eq!(faults(&check(&tree, "site/bin/app")), [""; 0]);
    fs::rename(tree.path("prefix/lib"), tree.path("site/lib")).unwrap();
    assert!(!faults(&check(&tree, "site/bin/app")).is_empty());
}

#[test]
fn a_walk_takes_each_file_once_and_no_linked_directory() {
    let tree = split();
    let count = |path: &str| check(&tree, path).findings.len();
    let before = count("prefix");
    symlink("libvec.so", tree.path("prefix/lib/libvec.so.1")).unwrap();
    symlink("nowhere", tree.path("prefix/lib/dangling.so")).unwrap();
    symlink("..", tree.path("prefix/lib/loop")).unwrap();
    symlink("prefix", tree.path("link")).unwrap();
    assert_eq!(count("prefix"), before);
    assert_eq!(count("link"), before);
    let of_library = |path: &str| {
        let found = examined(&tree, path);
        let found = found.into_iter().filter(|line| line.contains("libvec.so"));
        found.filter(|line| line.contains("with code")).count()
    };
    assert_eq!((of_library("prefix"), of_library("link")), (1, 1));
    // Only a link leads to it.
    let tree = links();
    symlink("libvec.so", tree.path("site/lib/libvec.so.1")).unwrap();
    let checks = check(&tree, "site").findings;
    let of_code = checks.iter().filter(|check| check.text.contains("code objects for"));
    assert_eq!(of_code.count(), 1, "{checks:#?}");
}

/// Archives are where only `ROCM_KPACK_PATH` leads.
fn moved_away() -> Tree {
    let tree = split();
    fs::rename(tree.path("prefix/lib/.kpack"), tree.path("mine")).unwrap();
    tree
}

fn with_variable(tree: &Tree, name: &str, arguments: &[&str]) -> Output {
    let mut command = command(tree, arguments);
    command.env(name, tree.path("mine/vec_lib_@GFXARCH@.kpack"));
    command.output().unwrap()
}

fn text_of(output: &Output) -> io::Result<String> {
    let text = [output.stdout.clone(), output.stderr.clone()].concat();
    String::from_utf8(text).map_err(io::Error::other)
}

#[test]
fn a_variable_makes_no_broken_prefix_pass() {
    let tree = moved_away();
    for name in ["ROCM_KPACK_PATH", "ROCM_KPACK_PATH_PREFIX"] {
        let ignored = format!("kpack: note: {name} is set, but only the loader");
        for (arguments, code) in [
            (&["verify", "prefix"][..], 1),
            (&["verify", "prefix", "--json"], 1),
            (&["join", "--prefix", "prefix", "--arch", "gfx942"], 3),
            (&["show", "prefix/lib/libvec.so"], 0),
            (
                &[
                    "artifact",
                    "recombine",
                    "--input-shards-dir",
                    "in",
                    "--config",
                    "x",
                    "--output-dir",
                    "out",
                ],
                4,
            ),
            (&["stage", "--output-dir", "out"], 3),
        ] {
            let output = with_variable(&tree, name, arguments);
            let text = text_of(&output).unwrap();
            assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
            assert!(text.contains(&ignored), "{arguments:?}: {text}");
            let output = kpack(&tree, arguments);
            let text = text_of(&output).unwrap();
            assert!(!text.contains("ROCM_KPACK_PATH"), "{arguments:?}: {text}");
        }
    }
}

#[test]
fn a_damaged_archive_that_a_variable_lists_is_named() {
    let tree = moved_away();
    let damaged = tree.path("mine/vec_lib_gfx942.kpack");
    fs::write(&damaged, "KPAK").unwrap();
    let mut doctor = command(&tree, &["doctor", "prefix", "--arch", "gfx942"]);
    let output = doctor.env("ROCM_KPACK_PATH", &damaged).output().unwrap();
    let text = text_of(&output).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("mine/vec_lib_gfx942.kpack is damaged"), "{text}");
}

#[test]
fn variables_may_list_files_in_any_order() {
    let tree = moved_away();
    let files = ["gfx942", "gfx1030"].map(|target| {
        let archive = tree.path("mine").join(format!("vec_lib_{target}.kpack"));
        let renamed = tree.path("mine").join(target);
        fs::rename(archive, &renamed).unwrap();
        renamed.to_str().unwrap().to_owned()
    });
    for target in TARGETS {
        let mut doctor = command(&tree, &["doctor", "prefix", "--arch", target, "-v"]);
        doctor.env("ROCM_KPACK_PATH", files.join(":"));
        let text = text_of(&doctor.output().unwrap()).unwrap();
        let found = format!("split, with code for {target}, found through ROCM_KPACK_PATH\n");
        assert!(text.contains(&found), "{text}");
    }
}

#[test]
fn the_doctor_obeys_variables_and_names_the_one_that_decided() {
    let tree = moved_away();
    let doctor = ["doctor", "prefix", "--arch", "gfx942", "--verbose"];
    for name in ["ROCM_KPACK_PATH", "ROCM_KPACK_PATH_PREFIX"] {
        let text = text_of(&with_variable(&tree, name, &doctor)).unwrap();
        let found = format!("split, with code for gfx942, found through {name}\n");
        assert!(text.contains(&found), "{text}");
        assert!(text.contains(&format!("{name} is set")), "{text}");
    }
    let output = kpack(&tree, &doctor);
    let text = text_of(&output).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    // It replaces what markers say.
    fs::create_dir(tree.path("prefix/lib/.kpack")).unwrap();
    for target in TARGETS {
        let name = format!("vec_lib_{target}.kpack");
        let to = tree.path("prefix/lib/.kpack").join(&name);
        fs::rename(tree.path("mine").join(&name), to).unwrap();
    }
    let output = with_variable(&tree, "ROCM_KPACK_PATH", &doctor);
    let text = text_of(&output).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    let fault = "split, but the paths in ROCM_KPACK_PATH contain no code for gfx942";
    let advice =
        "unset ROCM_KPACK_PATH: it replaces the installed archives, which have code for gfx942";
    assert!(text.contains(fault) && text.contains(advice), "{text}");
    let output = with_variable(&tree, "ROCM_KPACK_PATH_PREFIX", &doctor);
    let text = text_of(&output).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("split, with code for gfx942\n"), "{text}");
}
