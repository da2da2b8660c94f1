//! Given artifacts, when they are packed and unpacked, then the bytes are those of the artifacts alone, names and links stay
//! as they are, and what could not be unpacked is not packed.

use std::fs;
use std::num::NonZeroUsize;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use kpack_core::ids;
use kpack_store::{PackOptions, UnpackOptions, pack, unpack};
use kpack_tests::process::run;
use kpack_tests::tree::{Tree, files_in, write};

use crate::packed::packed;

/// An artifact with the prefix `stage`.
fn artifact(tree: &Tree) -> &'static str {
    let artifact = "in/blas_lib_generic";
    tree.write(&format!("{artifact}/artifact_manifest.txt"), b"stage\n");
    artifact
}

#[test]
fn the_number_of_threads_changes_no_byte() {
    // Given files larger than what a thread compresses at a time, which repeat each other's bytes.
    let tree = Tree::new();
    let artifact = artifact(&tree);
    let bytes: Vec<u8> = (0..3_000_000_u32).flat_map(|n| (n ^ (n >> 7)).to_le_bytes()).collect();
    for (name, size) in [("a", 1), ("b", bytes.len()), ("c", bytes.len() - 1), ("d", 5000)] {
        tree.write(&format!("{artifact}/stage/{name}"), &bytes[..size]);
    }
    // When they are packed by any number of threads.
    for level in [3, 9] {
        let pack_by = |jobs: usize| {
            let store = format!("store-{level}-{jobs}");
            let mut options = PackOptions::new(tree.path("in"), tree.path(&store));
            (options.level, options.jobs) = (level, NonZeroUsize::new(jobs).unwrap());
            pack(&options, &()).unwrap();
            files_in(&tree.path(&store))
        };
        let expected = pack_by(1);
        for jobs in [2, 5, 50] {
            // Then the bytes are the same.
            assert!(pack_by(jobs) == expected, "level {level}, {jobs} threads");
        }
    }
}

#[test]
fn names_and_links_of_any_length_are_as_they_were() {
    // Given names and links that a header just holds and that it does not hold, and links that are spelled oddly.
    let tree = Tree::new();
    let artifact = artifact(&tree);
    let stage = tree.path(&format!("{artifact}/stage"));
    write(stage.join("file"), b"text");
    for size in [99, 100, 101, 155, 156, 255, 257, 1000] {
        let name = "n".repeat(90) + "/" + &("n".repeat(19) + "/").repeat(50);
        let member = &name[..size - "stage/".len()];
        let member = member.strip_suffix('/').map_or(member.to_owned(), |name| format!("{name}x"));
        write(stage.join(&member).with_extension("file"), b"far");
        fs::hard_link(stage.join("file"), stage.join(&member).with_extension("other")).unwrap();
        let link = format!("{}file", "./".repeat(size / 2 - 2));
        symlink(link, stage.join(format!("dots{size}"))).unwrap();
        symlink(&"x/".repeat(size)[..size], stage.join(format!("link{size}"))).unwrap();
    }
    for (number, link) in ["a//b", "a/./b", "a/", "./a", ".", "a/../file"].iter().enumerate() {
        symlink(link, stage.join(format!("odd{number}"))).unwrap();
    }
    // When they are packed, and unpacked by kpack and by GNU tar.
    packed(&tree, "in", "store");
    unpack(&UnpackOptions::new(tree.path("store"), tree.path("out")), &()).unwrap();
    let tar = "mkdir tar && zstd -dc store/blas_lib_generic.tar.zst | tar -x -C tar";
    run(Command::new("sh").current_dir(tree.root()).args(["-euc", tar]));
    // Then they are what they were.
    for unpacked in ["out/blas_lib_generic", "tar"] {
        let compare = ["-r", "--no-dereference", artifact, unpacked];
        run(Command::new("diff").current_dir(tree.root()).args(compare));
    }
}

/// The prefixes of one artifact may contradict each other as well.
#[test]
fn files_that_one_artifact_has_twice_are_named_as_such() {
    let tree = Tree::new();
    let artifact = "out/blas_lib_generic";
    for (prefix, text) in [("one/stage", "one"), ("two/stage", "two")] {
        tree.write(&format!("{artifact}/{prefix}/LICENSE"), text);
    }
    let prefixes = "one/stage\ntwo/stage\n";
    tree.write(&format!("{artifact}/artifact_manifest.txt"), prefixes);
    packed(&tree, "out", "store");
    let mut options = UnpackOptions::new(tree.path("store"), tree.path("root"));
    options.flatten = true;
    let error = unpack(&options, &()).unwrap_err();
    assert_eq!(error.id(), ids::CONFLICTING_FILES);
    let said = error.to_string();
    assert!(said.contains("`LICENSE`") && !said.contains("two artifacts"), "{said}");
}

/// The finding, and what causes it.
type Case<'a> = (kpack_core::Id, &'a dyn Fn(&Tree));

#[test]
fn trees_that_could_not_be_unpacked_are_not_packed() {
    let artifact = "in/blas_lib_generic";
    let add = |tree: &Tree, name: &str, bytes: &[u8]| {
        tree.write(&format!("in/{name}"), bytes);
    };
    let cases: &[Case<'_>] = &[
        (ids::UNSAFE_MEMBER, &|tree| {
            let link = tree.path(&format!("{artifact}/stage/lib/link"));
            symlink("../../outside", link).unwrap();
        }),
        (ids::UNSAFE_MEMBER, &|tree| {
            // Leftovers are not packed. Where case is ignored, this would be one.
            add(tree, "blas_lib_generic/stage/.kpack-unpack.TMP/list", b"home");
        }),
        (ids::UNSAFE_MEMBER, &|tree| {
            // Each stays in its prefix, if those on its way were directories.
            let links = [("up", ".."), ("upper", "up/../.."), ("top", "upper/..")];
            for (link, target) in links {
                let link = tree.path(&format!("{artifact}/stage/lib/{link}"));
                symlink(target, link).unwrap();
            }
        }),
        (ids::UNREPRESENTABLE_PATH, &|tree| {
            add(tree, "b:as_lib_generic/artifact_manifest.txt", b"stage\n");
        }),
        (ids::UNREPRESENTABLE_PATH, &|tree| {
            let name = "x".repeat(240);
            let list = format!("{name}_generic/artifact_manifest.txt");
            add(tree, &list, b"stage\n");
        }),
        (ids::MISPLACED_FILE, &|tree| {
            let name = "blas_lib_generic/stage/lib/.kpack/blas_lib_gfx1100.kpack";
            add(tree, name, b"x");
        }),
        (ids::INVALID_PREFIX_LIST, &|tree| {
            let list = "stage\n".repeat(200_000);
            add(tree, "blas_lib_generic/artifact_manifest.txt", list.as_bytes());
        }),
        (ids::UNSAFE_MEMBER, &|tree| {
            let link = tree.path(&format!("{artifact}/stage/lib/link"));
            symlink("/etc/passwd", link).unwrap();
        }),
        (ids::UNSAFE_MEMBER, &|tree| {
            let file = tree.path(&format!("{artifact}/stage/lib/file"));
            fs::set_permissions(file, fs::Permissions::from_mode(0o4755)).unwrap();
        }),
        (ids::NOT_A_FILE, &|tree| {
            let fifo = tree.path(&format!("{artifact}/stage/lib/fifo"));
            assert!(Command::new("mkfifo").arg(fifo).status().unwrap().success());
        }),
        (ids::NOT_AN_ARTIFACT, &|tree| {
            tree.write("in/blas_lib/artifact_manifest.txt", b"stage\n");
        }),
        (ids::NAMES_DIFFER_BY_CASE, &|tree| {
            tree.write("in/BLAS_lib_generic/artifact_manifest.txt", b"stage\n");
        }),
    ];
    for (id, spoil) in cases {
        let tree = Tree::new();
        tree.write(&format!("{artifact}/artifact_manifest.txt"), b"stage\n");
        tree.write(&format!("{artifact}/stage/lib/file"), b"text");
        spoil(&tree);
        let error = pack(&PackOptions::new(tree.path("in"), tree.path("store")), &()).unwrap_err();
        assert_eq!(error.id(), *id, "{error}");
        assert!(!tree.path("store").exists(), "{id}");
    }
}

#[test]
fn what_other_systems_cannot_unpack_and_what_is_left_out_is_said() {
    let tree = Tree::new();
    let artifact = "in/blas_lib_generic";
    tree.write(&format!("{artifact}/artifact_manifest.txt"), b"stage\n");
    for name in [
        "stage/A/one",
        "stage/a/two",
        "stage/lib/b",
        // These differ by more.
        "stage/lib/straße",
        "stage/lib/STRASSE",
        "stage/lib/k",
        "stage/lib/\u{212a}",
        "stage/lib/.b.0123456789abcdef.tmp",
        "unlisted",
    ] {
        tree.write(&format!("{artifact}/{name}"), b"text");
    }
    let packed = pack(&PackOptions::new(tree.path("in"), tree.path("store")), &()).unwrap();
    let mut found: Vec<_> = packed.findings.iter().map(|finding| finding.id).collect();
    found.sort_by_key(|id| id.as_str());
    assert_eq!(found, [ids::IN_NO_PREFIX, ids::LEFTOVER, ids::NAMES_DIFFER_BY_CASE]);
    unpack(&UnpackOptions::new(tree.path("store"), tree.path("out")), &()).unwrap();
    let files = tree.files().into_iter();
    assert_eq!(files.filter(|name| name.starts_with("out/blas_lib_generic/")).count(), 8);
}
