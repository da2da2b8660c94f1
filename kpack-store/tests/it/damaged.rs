//! Given a store that lies, is damaged or wants to harm, when it is unpacked, then it is rejected with a finding,
//! nothing is written outside of the output, and the output is not there.

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

use kpack_core::publish::{CreatedDirectories, Directory};
use kpack_core::{Error, Id, ids};
use kpack_store::{IndexOptions, UnpackOptions, index, unpack};
use kpack_tests::tree::{Tree, write};
use serde_json::{Value, json};
use tar::EntryType;

use crate::packed::{Tar, entry, write_index};

/// Unpacks the artifacts of `store`, and asserts that it is rejected and nothing is left.
fn rejected(tree: &Tree, flatten: bool) -> Error {
    let before = tree.files();
    let mut options = UnpackOptions::new(tree.path("store"), tree.path("out"));
    options.flatten = flatten;
    let error = unpack(&options, &()).expect_err("it has to be rejected");
    assert_eq!(tree.files(), before, "{error}");
    assert!(!tree.path("out").exists() && !tree.path(".out.tmp").exists(), "{error}");
    error
}

/// Asserts that an artifact of these bytes is rejected, also where artifacts are flattened. Its index says that it has
/// `files` with `size` bytes.
fn rejected_either_way(what: &str, id: Id, bytes: &[u8], files: u64, size: u64) {
    for flatten in [false, true] {
        let tree = Tree::new();
        store(&tree, bytes, files, size);
        let error = rejected(&tree, flatten);
        assert_eq!(error.id(), id, "{what}: {error}");
    }
}

/// A store with one artifact, whose index says what is true of it.
fn store(tree: &Tree, bytes: &[u8], files: u64, size: u64) -> Value {
    let store = tree.path("store");
    write(store.join("blas_lib_gfx942.tar.zst"), bytes);
    let entry = entry("blas_lib", "gfx942", bytes, files, size);
    write_index(&store, std::slice::from_ref(&entry));
    entry
}

#[test]
fn members_that_no_artifact_has() {
    use EntryType::{
        Char, Directory, Fifo, GNULongName, Link, Regular, Symlink, XGlobalHeader, XHeader,
    };
    let outside = "../".repeat(20) + "tmp/kpack-outside";
    let links = Tar::new()
        .directory("stage/a/b")
        .link("stage/a/b/up", "..")
        .link("stage/a/b/upper", "up/../..")
        .link("stage/out", "a/b/upper");
    let hard_link = |tar: Tar, to| tar.member("stage/link", Link, 0o644, to, b"");
    let of_kind = |kind, mode| Tar::new().member("stage/a", kind, mode, "", b"");
    let file = || Tar::new().file("stage/a", b"x");
    let through_link =
        Tar::new().directory("stage/lib").link("stage/link", "lib").file("stage/link/file", b"x");
    let listing = |prefixes: &[u8]| Tar::empty().file("artifact_manifest.txt", prefixes);
    let extended = |kind, number, bytes: &[u8]| {
        (0..number).fold(Tar::new(), |tar, _| tar.member("extension", kind, 0o644, "", bytes))
    };
    let large = vec![b'x'; 1 << 20];
    let comment = format!("60000 comment={}\n", "x".repeat(59_985));
    let cases = [
        (
            ids::UNSAFE_MEMBER,
            vec![
                ("..", Tar::new().file("stage/../../../escaped", b"x")),
                (".. in front", Tar::new().file("../escaped", b"x")),
                ("an absolute path", Tar::new().file("/tmp/kpack-escaped", b"x")),
                ("no name", Tar::new().file("", b"x")),
                ("a link out of the tree", Tar::new().link("stage/link", &outside)),
                ("an absolute link", Tar::new().link("stage/link", "/etc/passwd")),
                ("a link to nothing", Tar::new().link("stage/link", "")),
                ("links out of the tree by way of each other", links),
                ("a hard link out of the tree", hard_link(Tar::new(), "/etc/passwd")),
                ("a hard link out of the prefix", hard_link(Tar::new(), "artifact_manifest.txt")),
                ("a hard link to nothing", hard_link(Tar::new(), "stage/missing")),
                (
                    "a hard link to a symbolic link",
                    hard_link(Tar::new().link("stage/one", "two"), "stage/one"),
                ),
                (
                    "what an interrupted run would have left",
                    Tar::new().file("stage/.kpack-unpack.tmp/.kpack.tmp/.list.tmp", b"lib\0home"),
                ),
                ("a directory of kpack", Tar::new().directory("stage/lib/.Kpack.tmp")),
                (
                    "a hard link to a file of kpack",
                    hard_link(file(), "stage/.kpack.0123456789abcdef.tmp/0"),
                ),
                ("a device", of_kind(Char, 0o666)),
                ("a FIFO", of_kind(Fifo, 0o666)),
                ("set-user-ID", of_kind(Regular, 0o4755)),
                ("set-group-ID", of_kind(Directory, 0o2755)),
            ],
        ),
        (
            ids::CONFLICTING_FILES,
            vec![
                ("writing through a link", through_link),
                ("writing through a file", file().file("stage/a/file", b"x")),
                ("a name twice", file().file("stage/a", b"x")),
                ("a link over a file", file().link("stage/a", "b")),
            ],
        ),
        (
            ids::IN_NO_PREFIX,
            vec![
                ("a file in no prefix", Tar::new().file("elsewhere/a", b"x")),
                ("the prefix as a file", Tar::new().file("stage", b"x")),
                ("a second list", Tar::new().file("artifact_manifest.txt", b"other\n")),
            ],
        ),
        (
            ids::INVALID_PREFIX_LIST,
            vec![
                ("a list of prefixes that leads out", listing(b"../other\n")),
                ("a prefix that no file can have", listing(b"sta\0ge\n")),
                ("a prefix in a directory of kpack", listing(b"stage/.kpack-unpack.tmp\n")),
                ("a list of prefixes that is no text", listing(b"\xff\n")),
            ],
        ),
        (
            ids::DAMAGED_TAR,
            vec![
                ("no list of prefixes", Tar::empty().file("stage/a", b"x")),
                ("no members", Tar::empty()),
                ("a name that fills the memory", extended(GNULongName, 1, &large)),
                ("extensions that fill the memory", extended(XHeader, 1, &large)),
                (
                    "a name for all members that follow",
                    extended(XGlobalHeader, 1, b"18 path=../escape\n"),
                ),
                (
                    "a link for all members that follow",
                    extended(XGlobalHeader, 1, b"17 linkpath=/etc\n"),
                ),
                (
                    "more extensions than members need",
                    extended(XGlobalHeader, 40, comment.as_bytes()),
                ),
                ("more long names than members", extended(GNULongName, 40, &[b'x'; 60_000])),
                ("a sparse file", extended(XHeader, 1, b"25 GNU.sparse.major=1.0.\n")),
                ("a link with content", Tar::new().member("stage/a", Symlink, 0o777, "b", b"x")),
            ],
        ),
        (
            ids::MISPLACED_FILE,
            vec![(
                "another target's archive",
                Tar::new().file("stage/lib/.kpack/blas_lib_gfx1100.kpack", b"x"),
            )],
        ),
    ];
    for (id, tars) in cases {
        for (what, tar) in tars {
            let (files, size) = tar.contents;
            rejected_either_way(what, id, &tar.compressed(), files, size);
        }
    }
    assert!(!Path::new("/tmp/kpack-escaped").exists());
}

#[test]
fn few_bytes_do_not_make_many_directories() {
    use EntryType::{Link, Regular};
    let deep = |levels| "d/".repeat(levels);
    let listing = |prefixes: &str| {
        let mut tar = Tar::empty().file("artifact_manifest.txt", prefixes.as_bytes());
        tar.contents = (0, 0);
        tar
    };
    let each = |count: usize, levels| {
        Vec::from_iter((0..count).map(|number| format!("stage/{number}/{}x", deep(levels))))
    };
    let members =
        |names: Vec<String>| names.iter().fold(Tar::new(), |tar, name| tar.long(Regular, name, ""));
    let cases = [
        ("a deep prefix", ids::INVALID_PREFIX_LIST, listing(&(deep(20_000) + "x\n"))),
        ("deep prefixes", ids::INVALID_PREFIX_LIST, listing(&each(300, 50).join("\n"))),
        ("many prefixes", ids::INVALID_PREFIX_LIST, listing(&each(50_000, 0).join("\n"))),
        ("a deep member", ids::UNSAFE_MEMBER, members(each(1, 500))),
        ("members that imply directories", ids::UNSAFE_MEMBER, members(each(300, 50))),
        (
            "a deep hard link",
            ids::UNSAFE_MEMBER,
            Tar::new().long(Link, "stage/link", &format!("stage/{}x", deep(500))),
        ),
    ];
    for (what, id, tar) in cases {
        let (files, size) = tar.contents;
        let bytes = tar.compressed();
        rejected_either_way(what, id, &bytes, files, size);
        // The same rules hold for archives that get an index.
        let tree = Tree::new();
        store(&tree, &bytes, files, size);
        fs::remove_file(tree.path("store/index.json")).unwrap();
        let error =
            index(&tree.path("store"), &IndexOptions::default(), NonZeroUsize::MIN).unwrap_err();
        assert_eq!(error.id(), id, "{what}: {error}");
    }
}

#[test]
fn what_other_tools_pack_need_not_list_directories() {
    let names = (0..300).map(|number| format!("stage/{number}/one/two/three/four/five/file"));
    let tar = names.fold(Tar::new(), |tar, name| tar.long(EntryType::Regular, &name, ""));
    let tree = Tree::new();
    store(&tree, &tar.compressed(), 300, 0);
    unpack(&UnpackOptions::new(tree.path("store"), tree.path("out")), &()).unwrap();
}

#[test]
fn a_leftover_of_any_depth_is_no_obstacle() {
    let tree = Tree::new();
    store(&tree, &sound().compressed(), 2, 7);
    let mut deep = Directory::open(tree.root()).unwrap();
    for name in [".out.tmp", ".kpack.tmp", "out"].into_iter().chain(["d"; 5000]) {
        let mut made = CreatedDirectories::default();
        deep = deep.make_below(name.as_ref(), &mut made).unwrap();
        made.keep();
    }
    unpack(&UnpackOptions::new(tree.path("store"), tree.path("out")), &()).unwrap();
    assert_eq!(fs::read(tree.path("out/blas_lib_gfx942/stage/b")).unwrap(), b"four");
    assert!(!tree.path(".out.tmp").exists());
}

#[test]
fn sizes_in_an_index_do_not_overflow() {
    let tree = Tree::new();
    let bytes = sound().compressed();
    let mut entries = ["blas_lib", "copy_lib"].map(|name| {
        write(tree.path(&format!("store/{name}_gfx942.tar.zst")), &bytes);
        entry(name, "gfx942", &bytes, 2, 7)
    });
    entries.iter_mut().for_each(|entry| entry["unpacked"] = json!(u64::MAX));
    write_index(&tree.path("store"), &entries);
    let error = rejected(&tree, false).to_string();
    assert!(error.starts_with("cannot unpack"), "{error}");
}

/// An artifact with two members of 3 and 4 bytes.
fn sound() -> Tar {
    Tar::new().file("stage/a", b"one").file("stage/b", b"four")
}

#[test]
fn a_sound_artifact_is_unpacked() {
    let tree = Tree::new();
    store(&tree, &sound().compressed(), 2, 7);
    unpack(&UnpackOptions::new(tree.path("store"), tree.path("out")), &()).unwrap();
    assert_eq!(fs::read(tree.path("out/blas_lib_gfx942/stage/b")).unwrap(), b"four");
}

#[test]
fn files_that_are_not_what_was_published() {
    let bytes = sound().compressed();
    let other = Tar::new().file("stage/a", b"two").file("stage/b", b"five").compressed();
    let resized = [&bytes[..], b"more"].concat();
    let mut flipped = bytes.clone();
    flipped[bytes.len() / 2] ^= 1;
    let name = "store/blas_lib_gfx942.tar.zst";
    let cases: [(&str, Id, Option<&[u8]>); 7] = [
        ("missing", ids::NOT_FETCHED, None),
        ("truncated", ids::WRONG_DIGEST, Some(&bytes[..bytes.len() - 1])),
        ("empty", ids::WRONG_DIGEST, Some(b"")),
        ("longer", ids::WRONG_DIGEST, Some(&resized)),
        ("damaged", ids::WRONG_DIGEST, Some(&flipped)),
        ("swapped", ids::WRONG_DIGEST, Some(&other)),
        ("an error page", ids::WRONG_DIGEST, Some(b"<html>not found</html>")),
    ];
    for (what, id, content) in cases {
        for flatten in [false, true] {
            let tree = Tree::new();
            store(&tree, &bytes, 2, 7);
            match content {
                Some(content) => fs::write(tree.path(name), content).unwrap(),
                None => fs::remove_file(tree.path(name)).unwrap(),
            }
            assert_eq!(rejected(&tree, flatten).id(), id, "{what}");
        }
    }
    let tree = Tree::new();
    store(&tree, &bytes, 2, 7);
    fs::remove_file(tree.path(name)).unwrap();
    fs::create_dir(tree.path(name)).unwrap();
    assert_eq!(rejected(&tree, false).id(), ids::NOT_A_FILE);
}

#[test]
fn archives_that_are_larger_than_the_index_says_or_no_archives() {
    let zeros = vec![0; 64 << 20];
    let bomb = || Tar::new().file("stage/a", &zeros).compressed();
    let many = (0..5000).fold(Tar::new(), |tar, number| tar.directory(&format!("stage/{number}")));
    let ended = [sound().bytes(), vec![0; 4 << 20]].concat();
    let broken = sound().bytes();
    let mut checksum = broken.clone();
    checksum[512 * 2 + 3] ^= 1;
    let pack = |bytes: &[u8]| zstd::encode_all(bytes, 3).unwrap();
    let cases: [(&str, Id, Vec<u8>, u64, u64); 10] = [
        ("a bomb of bytes", ids::INDEX_DIFFERS, bomb(), 1, 1000),
        ("a bomb of members", ids::INDEX_DIFFERS, many.compressed(), 10, 0),
        ("a bomb after the end", ids::DAMAGED_TAR, pack(&ended), 2, 7),
        ("fewer members", ids::INDEX_DIFFERS, sound().compressed(), 3, 7),
        ("fewer bytes", ids::INDEX_DIFFERS, sound().compressed(), 2, 8),
        ("no zstd", ids::DAMAGED_TAR, sound().bytes(), 2, 7),
        ("no tar", ids::DAMAGED_TAR, pack(&[b'x'; 4096]), 2, 7),
        ("a header whose checksum is wrong", ids::DAMAGED_TAR, pack(&checksum), 2, 7),
        ("a file that ends early", ids::DAMAGED_TAR, pack(&broken[..512 * 3 + 2]), 2, 7),
        ("nothing", ids::DAMAGED_TAR, pack(b""), 2, 7),
    ];
    for (what, id, bytes, files, size) in cases {
        rejected_either_way(what, id, &bytes, files, size);
    }
}

#[test]
fn indexes_that_lie() {
    let bytes = sound().compressed();
    let cases: [(&str, Id, &str, Value); 14] = [
        ("size", ids::WRONG_DIGEST, "size", json!(bytes.len() + 1)),
        ("digest", ids::WRONG_DIGEST, "sha256", json!("0".repeat(64))),
        ("no digest", ids::BAD_INDEX, "sha256", json!("")),
        ("upper case", ids::BAD_INDEX, "sha256", json!("A".repeat(64))),
        ("target", ids::BAD_INDEX, "target", json!("gfx1100")),
        ("target out", ids::BAD_INDEX, "target", json!("../x")),
        ("component", ids::BAD_INDEX, "component", json!("other_lib")),
        ("file name", ids::BAD_INDEX, "file", json!("other_lib_gfx942.tar.zst")),
        ("file name out", ids::BAD_INDEX, "file", json!("../blas_lib_gfx942.tar.zst")),
        ("absolute file name", ids::BAD_INDEX, "file", json!("/etc/passwd")),
        ("targets", ids::BAD_INDEX, "targets", json!(["x"])),
        ("unpacked", ids::INDEX_DIFFERS, "unpacked", json!(6)),
        ("files", ids::INDEX_DIFFERS, "files", json!(1)),
        ("negative", ids::BAD_INDEX, "size", json!(-1)),
    ];
    for (what, id, key, value) in cases {
        let tree = Tree::new();
        let mut entry = store(&tree, &bytes, 2, 7);
        entry[key] = value;
        write_index(&tree.path("store"), &[entry]);
        let error = rejected(&tree, false);
        assert_eq!(error.id(), id, "{what}: {error}");
    }
}

#[test]
fn indexes_that_are_none_or_contradict_themselves() {
    let bytes = sound().compressed();
    let own = entry("blas_lib", "gfx942", &bytes, 2, 7);
    let mut upper = own.clone();
    (upper["component"], upper["file"]) = (json!("BLAS_lib"), json!("BLAS_lib_gfx942.tar.zst"));
    let index =
        |entries: &[&Value]| json!({"format": "kpack-index", "version": 1, "artifacts": entries});
    let with = |key: &str, value: Value| {
        let mut index = index(&[&own]);
        index[key] = value;
        index.to_string()
    };
    let cases: [(&str, String); 9] = [
        ("two publishers of one name", index(&[&own, &own]).to_string()),
        ("names that differ by case", index(&[&own, &upper]).to_string()),
        ("another format", with("format", json!("other"))),
        ("a later version", with("version", json!(2))),
        ("a run with a path", with("run", json!("../1"))),
        ("no artifacts", json!({"format": "kpack-index", "version": 1}).to_string()),
        ("truncated", with("run", json!("1"))[..40].to_owned()),
        ("an error page", "<html></html>".to_owned()),
        ("nothing", String::new()),
    ];
    for (what, text) in cases {
        let tree = Tree::new();
        store(&tree, &bytes, 2, 7);
        fs::write(tree.path("store/index.json"), text).unwrap();
        assert_eq!(rejected(&tree, false).id(), ids::BAD_INDEX, "{what}");
    }
    let tree = Tree::new();
    store(&tree, &bytes, 2, 7);
    fs::remove_file(tree.path("store/index.json")).unwrap();
    assert_eq!(rejected(&tree, false).id(), ids::SYSTEM);
}

#[test]
fn artifacts_that_collide_when_they_are_flattened() {
    let one = Tar::new().file("stage/a", b"one").compressed();
    for (tar, size) in [
        (Tar::new().file("stage/a", b"two"), 3),
        (Tar::new().link("stage/a", "b"), 0),
        (Tar::new().file("stage/a/b", b"two"), 3),
    ] {
        let tree = Tree::new();
        let other = tar.compressed();
        store(&tree, &one, 1, 3);
        fs::write(tree.path("store/other_lib_gfx942.tar.zst"), &other).unwrap();
        let entries = [
            entry("blas_lib", "gfx942", &one, 1, 3),
            entry("other_lib", "gfx942", &other, 1, size),
        ];
        write_index(&tree.path("store"), &entries);
        let error = rejected(&tree, true);
        assert_eq!(error.id(), ids::CONFLICTING_FILES, "{error}");
        // Apart from each other, they are sound.
        let options = UnpackOptions::new(tree.path("store"), tree.path("apart"));
        unpack(&options, &()).unwrap();
    }
}

#[test]
fn what_is_in_the_way_stays() {
    let tree = Tree::new();
    store(&tree, &sound().compressed(), 2, 7);
    fs::create_dir(tree.path("out")).unwrap();
    fs::write(tree.path("out/precious"), "mine").unwrap();
    for flatten in [false, true] {
        let mut options = UnpackOptions::new(tree.path("store"), tree.path("out"));
        options.flatten = flatten;
        let error = unpack(&options, &()).unwrap_err();
        assert_eq!(error.id(), ids::OUTPUT_IN_THE_WAY, "{error}");
    }
    assert_eq!(fs::read(tree.path("out/precious")).unwrap(), b"mine");
    let mut options = UnpackOptions::new(tree.path("store"), tree.path("out/precious"));
    options.flatten = true;
    assert_eq!(unpack(&options, &()).unwrap_err().id(), ids::OUTPUT_IN_THE_WAY);
}
