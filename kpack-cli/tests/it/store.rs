//! Given artifacts of a build, when they are packed, selected and unpacked, then they are the same files again,
//! byte for byte, and only what is for the chosen GPUs.

use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, SystemTime};

use kpack_core::ids;
use kpack_store::{Index, PackOptions, UnpackOptions, pack, unpack};
use kpack_tests::process;
use kpack_tests::require;
use kpack_tests::tree::{Tree, files_in, write};

use crate::command::{command, kpack, succeeds};
use crate::packed::{Tar, entry, packed, write_index};
use crate::planned::recombined;
use crate::shards::{PREFIX, three_shards};
use crate::verified::{check, faults};

/// The files below a directory, by path, and whether each is executable, without the index.
fn below(tree: &Tree, directory: &str) -> BTreeMap<String, (bool, Vec<u8>)> {
    let start = format!("{directory}/");
    let files = tree.snapshot().into_iter();
    files
        .filter_map(|(name, (mode, bytes))| {
            let name = name.strip_prefix(&start)?.to_owned();
            (name != "index.json").then_some((name, (mode & 0o100 != 0, bytes)))
        })
        .collect()
}

#[test]
fn what_was_packed_and_unpacked_is_what_it_was() {
    let tree = recombined();
    let library = tree.path(&format!("out/blas_lib_generic/{PREFIX}/lib/librocblas.so.5"));
    fs::set_permissions(&library, fs::Permissions::from_mode(0o775)).unwrap();
    let long = format!("out/blas_lib_generic/{PREFIX}/{}/file", "directory/".repeat(20));
    tree.write(&long, b"far away");
    fs::hard_link(&library, library.with_file_name("other-name.so")).unwrap();
    packed(&tree, "out", "store");
    let unpacked = unpack(&UnpackOptions::new(tree.path("store"), tree.path("again")), &());
    assert_eq!(unpacked.unwrap().artifacts.len(), 3);
    assert_eq!(below(&tree, "again"), below(&tree, "out"));
    assert_eq!(faults(&check(&tree, "again")), [""; 0]);
    let other = library.with_file_name("other-name.so");
    let other = tree.path("again").join(other.strip_prefix(tree.path("out")).unwrap());
    assert_eq!(std::os::unix::fs::MetadataExt::nlink(&other.metadata().unwrap()), 2);
    // The directory can be replaced by what is unpacked later.
    let again = unpack(&UnpackOptions::new(tree.path("store"), tree.path("again")), &());
    again.unwrap();
    assert_eq!(below(&tree, "again"), below(&tree, "out"));
}

#[test]
fn the_same_trees_give_the_same_bytes_whenever_and_wherever() {
    let tree = recombined();
    // Larger than a frame, and cut in the middle of a file.
    let bytes: Vec<u8> = (0..9_000_000_u32).flat_map(u32::to_le_bytes).collect();
    tree.write(&format!("out/blas_lib_generic/{PREFIX}/lib/large"), &bytes);
    let index = packed(&tree, "out", "store");
    for name in tree.files() {
        let path = tree.path(&name);
        if name.starts_with("out/") && !path.is_symlink() {
            // Before 1980 and after it.
            let times = [SystemTime::UNIX_EPOCH, SystemTime::now()];
            let time = times[name.len() % 2] + Duration::from_secs(1000);
            let file = File::options().append(true).open(&path).unwrap();
            file.set_times(FileTimes::new().set_modified(time)).unwrap();
            let mode = path.metadata().unwrap().permissions().mode();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode | 0o020)).unwrap();
        }
    }
    let arguments = [
        "artifact",
        "pack",
        "out",
        "--output-dir",
        "other",
        "--run",
        "12345-linux",
        "--shard",
        "linux-a",
        "-j",
        "1",
    ];
    succeeds(&tree, &arguments);
    assert!(files_in(&tree.path("store")) == files_in(&tree.path("other")));
    assert_eq!(Index::read(&tree.path("other/index.json")).unwrap(), index);
    assert_eq!(index.built_for, ["gfx1100", "gfx1101", "gfx90a:xnack+", "gfx942"]);
    let digest = fs::read_to_string(tree.path("store/blas_lib_generic.tar.zst.sha256sum")).unwrap();
    assert_eq!(digest, format!("{}\n", index.artifacts[0].sha256));
}

#[test]
fn other_tools_read_what_was_packed() {
    let tree = recombined();
    packed(&tree, "out", "store");
    for artifact in ["blas_lib_generic", "blas_lib_gfx110X"] {
        let list = format!("zstd -dc store/{artifact}.tar.zst | tar -t");
        let output =
            Command::new("sh").current_dir(tree.root()).args(["-c", &list]).output().unwrap();
        let list = String::from_utf8(output.stdout).unwrap();
        let mut lines = list.lines();
        // Those of ROCm's build read the list first, and accept nothing outside of a prefix.
        assert_eq!(lines.next(), Some("artifact_manifest.txt"));
        assert!(lines.all(|line| line.starts_with(&format!("{PREFIX}/"))), "{list}");
        let unpack = format!(
            "mkdir -p tar/{artifact} && zstd -dc store/{artifact}.tar.zst | tar -x -C tar/{artifact}"
        );
        let done = Command::new("sh").current_dir(tree.root()).args(["-c", &unpack]).status();
        assert!(done.unwrap().success());
        let mut expected = below(&tree, &format!("out/{artifact}"));
        // kpack's mark is in the index.
        expected.remove(".kpack-artifact").unwrap();
        assert_eq!(below(&tree, &format!("tar/{artifact}")), expected);
    }
}

/// As the tools of ROCm's build pack: Python's tar archives, whose members have extensions.
const FOREIGN: &str = r#"
import os, subprocess, sys, tarfile
for artifact in sys.argv[1:]:
    name = os.path.basename(artifact)
    with tarfile.open("foreign/" + name + ".tar", "w") as tar:
        tar.add(artifact + "/artifact_manifest.txt", arcname="artifact_manifest.txt", recursive=False)
        for prefix in open(artifact + "/artifact_manifest.txt").read().splitlines():
            for root, dirs, files in os.walk(artifact + "/" + prefix):
                for entry in dirs + files:
                    path = os.path.join(root, entry)
                    tar.add(path, arcname=os.path.relpath(path, artifact), recursive=False)
    subprocess.run(["zstd", "-q", "--rm", "foreign/" + name + ".tar"], check=True)
    digest = subprocess.run(["sha256sum", "foreign/" + name + ".tar.zst"], stdout=subprocess.PIPE, check=True)
    open("foreign/" + name + ".tar.zst.sha256sum", "wb").write(digest.stdout[:64] + b"\n")
"#;

#[test]
fn what_other_tools_packed_gets_an_index_and_is_unpacked() {
    let tree = recombined();
    let long = format!("out/blas_lib_generic/{PREFIX}/{}/ü", "directory/".repeat(20));
    tree.write(&long, b"far away");
    fs::create_dir(tree.path("foreign")).unwrap();
    let artifacts = ["out/blas_lib_generic", "out/blas_lib_gfx110X"];
    let script = Command::new("python3")
        .current_dir(tree.root())
        .args(["-c", FOREIGN])
        .args(artifacts)
        .status();
    assert!(script.unwrap().success());
    let index = ["artifact", "pack", "--archives", "foreign", "--run", "1-linux"];
    succeeds(&tree, &index);
    succeeds(
        &tree,
        &["artifact", "unpack", "foreign", "--arch", "gfx1100", "--output-dir", "again"],
    );
    for artifact in ["blas_lib_generic", "blas_lib_gfx110X"] {
        let mut expected = below(&tree, &format!("out/{artifact}"));
        expected.remove(".kpack-artifact").unwrap();
        assert_eq!(below(&tree, &format!("again/{artifact}")), expected);
    }
    fs::write(tree.path("foreign/blas_lib_generic.tar.zst.sha256sum"), "00").unwrap();
    let output = kpack(&tree, &index);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("[wrong-digest]"), "{said}");
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn an_index_of_archives_says_what_is_in_them_and_replaces_none_that_says_more() {
    let tree = recombined();
    let index = packed(&tree, "out", "store");
    let before = files_in(&tree.path("store"));
    let archives_of = |run: &[&str]| {
        let output = kpack(&tree, &[&["artifact", "pack", "--archives", "store"], run].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), said)
    };
    let archives = || archives_of(&[]);
    let own = ["--run", "12345-linux", "--shard", "linux-a"];
    let (code, said) = archives_of(&own);
    let id = format!("[{}]", ids::OUTPUT_IN_THE_WAY);
    assert!(code == Some(3) && said.contains(&id), "{said}");
    assert!(files_in(&tree.path("store")) == before);

    let path = tree.path("store/index.json");
    fs::remove_file(&path).unwrap();
    assert_eq!(archives(), (Some(0), String::new()));
    let again = Index::read(&path).unwrap();
    let group = |index: &Index| {
        let mut artifacts = index.artifacts.iter();
        let group = artifacts.find(|entry| entry.target == "instinct");
        group.unwrap().targets.clone()
    };
    assert_eq!(group(&again), group(&index));
    // It is as good as what is there.
    assert_eq!(archives(), (Some(0), String::new()));

    let bytes = Tar::new().file("stage/file", b"text").compressed();
    fs::write(tree.path("store/other_lib_unheard.tar.zst"), bytes).unwrap();
    let (code, said) = archives();
    let id = format!("[{}]", ids::UNKNOWN_GROUP);
    assert!(code == Some(0) && said.contains(&id), "{said}");

    let name = "stage/lib/.kpack/blas_lib_gfx942.kpack";
    let bytes = Tar::new().file(name, b"x").compressed();
    fs::write(tree.path("store/other_lib_generic.tar.zst"), bytes).unwrap();
    let (code, said) = archives();
    let id = format!("[{}]", ids::MISPLACED_FILE);
    assert!(code == Some(3) && said.contains(&id), "{said}");
}

#[test]
fn one_gpu_gets_its_files_in_one_tree() {
    let tree = recombined();
    packed(&tree, "out", "store");
    let arguments =
        ["artifact", "unpack", "store", "--arch", "gfx942", "--flatten", "--output-dir", "root"];
    succeeds(&tree, &arguments);
    let mut expected = BTreeMap::new();
    for artifact in ["blas_lib_generic", "blas_lib_instinct"] {
        expected.extend(below(&tree, &format!("out/{artifact}/{PREFIX}")));
    }
    assert_eq!(below(&tree, "root"), expected);
    assert_eq!(faults(&check(&tree, "root")), [""; 0]);
    assert!(tree.path("root/share/empty").is_dir());
    // It is not known any more what was unpacked.
    let output = kpack(&tree, &arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(&format!("[{}]", ids::OUTPUT_IN_THE_WAY)), "{said}");

    // Layers of an image.
    for (only, root) in [("generic", "base"), ("device", "layer")] {
        let arguments = [
            "artifact",
            "unpack",
            "store",
            "--arch",
            "gfx942",
            "--only",
            only,
            "--flatten",
            "--output-dir",
            root,
        ];
        succeeds(&tree, &arguments);
    }
    let mut layers = below(&tree, "base");
    layers.extend(below(&tree, "layer"));
    assert_eq!(layers, expected);
}

#[test]
fn files_that_two_components_have_are_one_if_they_are_the_same() {
    let tree = recombined();
    let copy = |text: &str| {
        for name in ["out/blas_lib_generic", "out/copy_lib_generic"] {
            tree.write(&format!("{name}/{PREFIX}/LICENSE"), text);
            tree.write(&format!("{name}/artifact_manifest.txt"), format!("{PREFIX}\n"));
        }
    };
    copy("the same");
    packed(&tree, "out", "store");
    let flatten = |output: &str| {
        let mut options = UnpackOptions::new(tree.path("store"), tree.path(output));
        options.flatten = true;
        unpack(&options, &())
    };
    flatten("root").unwrap();
    assert_eq!(fs::read(tree.path("root/LICENSE")).unwrap(), b"the same");
    tree.write(&format!("out/copy_lib_generic/{PREFIX}/LICENSE"), b"another!");
    packed(&tree, "out", "store");
    let error = flatten("other").unwrap_err();
    assert_eq!(error.id(), ids::CONFLICTING_FILES);
    assert!(!tree.path("other").exists() && !tree.path(".other.tmp").exists());
    // An executable file is another one.
    copy("the same");
    let copied = tree.path(&format!("out/copy_lib_generic/{PREFIX}/LICENSE"));
    fs::set_permissions(&copied, fs::Permissions::from_mode(0o755)).unwrap();
    packed(&tree, "out", "store");
    assert_eq!(flatten("other").unwrap_err().id(), ids::CONFLICTING_FILES);
    // Several names of a file are compared as several files are.
    fs::set_permissions(&copied, fs::Permissions::from_mode(0o644)).unwrap();
    for name in ["blas", "copy"] {
        let file = tree.path(&format!("out/{name}_lib_generic/{PREFIX}/LICENSE"));
        fs::hard_link(&file, file.with_file_name("LICENSE.txt")).unwrap();
    }
    packed(&tree, "out", "store");
    flatten("linked").unwrap();
    assert_eq!(fs::read(tree.path("linked/LICENSE.txt")).unwrap(), b"the same");
    let copied = copied.with_file_name("LICENSE.txt");
    fs::remove_file(&copied).unwrap();
    write(&copied, b"another!");
    packed(&tree, "out", "store");
    assert_eq!(flatten("other").unwrap_err().id(), ids::CONFLICTING_FILES);
}

#[test]
fn a_gpu_needs_its_targets_their_variants_and_the_host_files() {
    let tree = three_shards();
    packed(&tree, "shards/linux-a", "store");
    packed(&tree, "shards/linux-b", "variants");
    let select = |arguments: &[&str]| {
        let output = kpack(&tree, &[&["artifact", "select"], arguments].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let (generic, device) = ("blas_lib_generic.tar.zst\n", "blas_lib_gfx1100.tar.zst\n");
    let index = "store/index.json";
    assert_eq!(select(&[index, "--arch", "gfx1100"]), format!("{generic}{device}"));
    assert_eq!(select(&[index, "--arch", "gfx1100", "--only", "device"]), device);
    assert_eq!(select(&[index, "--only", "generic"]), generic);
    assert_eq!(
        select(&["variants/index.json", "--arch", "gfx90a:xnack+"]),
        format!("{generic}blas_lib_gfx90a.tar.zst\n")
    );
    assert_eq!(
        select(&[
            index,
            "--arch",
            "gfx1100",
            "--only",
            "device",
            "--format",
            "curl",
            "--base-url",
            "https://a.example/b"
        ]),
        "url = \"https://a.example/b/blas_lib_gfx1100.tar.zst\"\noutput = \"blas_lib_gfx1100.tar.zst\"\n"
    );
    fs::write(tree.path("store/list"), select(&[index, "--format", "sha256sum"])).unwrap();
    let sum = Command::new("sha256sum")
        .current_dir(tree.path("store"))
        .args(["--check", "--status", "list"])
        .status();
    assert!(sum.unwrap().success());

    let output = kpack(&tree, &["artifact", "select", index, "--arch", "gfx942"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("lists no artifact for gfx942, only for gfx1100, gfx1101"), "{said}");

    // What is fetched and right is left out; what is half there is not.
    fs::create_dir(tree.path("have")).unwrap();
    let name = "blas_lib_generic.tar.zst";
    fs::copy(tree.path("store").join(name), tree.path("have").join(name)).unwrap();
    let bytes = fs::read(tree.path("store/blas_lib_gfx1100.tar.zst")).unwrap();
    fs::write(tree.path("have/blas_lib_gfx1100.tar.zst"), &bytes[..100]).unwrap();
    let have = [index, "--arch", "gfx1100", "--have", "have"];
    assert_eq!(select(&have), device);
    fs::write(tree.path("have/blas_lib_gfx1100.tar.zst"), vec![0; bytes.len()]).unwrap();
    let output = kpack(&tree, &[&["artifact", "select"], &have[..]].concat());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), device);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("[wrong-digest]"), "{said}");
}

#[test]
fn a_place_has_one_publisher() {
    let tree = three_shards();
    packed(&tree, "shards/linux-a", "store");
    let mut options = PackOptions::new(tree.path("shards/linux-b"), tree.path("store"));
    options.index.run = Some("12345-linux".to_owned());
    options.index.shard = Some("linux-b".to_owned());
    let before = files_in(&tree.path("store"));
    let error = pack(&options, &()).unwrap_err();
    assert_eq!(error.id(), ids::OTHER_PUBLISHER);
    assert!(files_in(&tree.path("store")) == before);
    // The same one replaces its artifacts, and removes those that it has no more.
    fs::remove_dir_all(tree.path("shards/linux-a/blas_lib_gfx1101")).unwrap();
    packed(&tree, "shards/linux-a", "store");
    let names: Vec<String> = files_in(&tree.path("store")).into_keys().collect();
    let expected = [
        "blas_lib_generic.tar.zst",
        "blas_lib_generic.tar.zst.sha256sum",
        "blas_lib_gfx1100.tar.zst",
        "blas_lib_gfx1100.tar.zst.sha256sum",
        "index.json",
    ];
    assert_eq!(names, expected);
}

#[test]
fn a_killed_run_leaves_a_place_to_its_publisher() {
    let tree = three_shards();
    packed(&tree, "shards/linux-a", "store");
    // It was killed when it had set the index aside.
    let aside = tree.path("store/.kpack-store.tmp/.kpack.tmp/.old-0.tmp");
    fs::create_dir_all(&aside).unwrap();
    fs::rename(tree.path("store/index.json"), aside.join("index.json")).unwrap();
    let mut options = PackOptions::new(tree.path("shards/linux-b"), tree.path("store"));
    options.index.shard = Some("linux-b".to_owned());
    let before = tree.snapshot();
    let error = pack(&options, &()).unwrap_err();
    assert_eq!(error.id(), ids::OTHER_PUBLISHER);
    let shown = error.in_one_line();
    assert!(shown.contains("store/.kpack-store.tmp/.kpack.tmp/.old-0.tmp/index.json"), "{shown}");
    let line = ["artifact", "pack", "--archives", "store", "--shard", "linux-b"];
    let refused = kpack(&tree, &line);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains(&format!("[{}]", ids::OTHER_PUBLISHER)), "{said}");
    assert!(tree.snapshot() == before);
    // Its own publisher finishes it, and removes what it has no more.
    fs::remove_dir_all(tree.path("shards/linux-a/blas_lib_gfx1101")).unwrap();
    packed(&tree, "shards/linux-a", "store");
    packed(&tree, "shards/linux-a", "expected");
    assert!(files_in(&tree.path("store")) == files_in(&tree.path("expected")));
}

#[test]
fn an_index_of_archives_replaces_none_of_another_publisher() {
    let tree = three_shards();
    packed(&tree, "shards/linux-a", "store");
    // As what other tools packed, it says no more than the archives.
    fs::remove_file(tree.path("store/index.json")).unwrap();
    let index = |run: &str, shard: &str| {
        let line = ["artifact", "pack", "--archives", "store", "--run", run, "--shard", shard];
        let output = kpack(&tree, &line);
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), said)
    };
    assert_eq!(index("1-linux", "linux-a").0, Some(0));
    let before = files_in(&tree.path("store"));
    for (run, shard) in [("2-linux", "linux-a"), ("1-linux", "linux-b")] {
        let (code, said) = index(run, shard);
        let id = format!("[{}]", ids::OTHER_PUBLISHER);
        assert!(code == Some(3) && said.contains(&id), "{said}");
        assert!(files_in(&tree.path("store")) == before);
    }
    assert_eq!(index("1-linux", "linux-a").0, Some(0));
}

#[test]
fn of_two_publishers_at_the_same_time_one_is_refused() {
    let tree = three_shards();
    for attempt in 0..5 {
        let store = format!("store{attempt}");
        let start = Barrier::new(2);
        let publish = |shard: &str| {
            let mut options =
                PackOptions::new(tree.path(&format!("shards/{shard}")), tree.path(&store));
            options.index.shard = Some(shard.to_owned());
            start.wait();
            pack(&options, &())
        };
        let outcomes = thread::scope(|scope| {
            ["linux-a", "linux-b"]
                .map(|shard| scope.spawn(move || publish(shard)))
                .map(|thread| thread.join().unwrap())
        });
        let refused: Vec<_> = outcomes.iter().filter_map(|o| o.as_ref().err()).collect();
        assert_eq!(refused.len(), 1, "{outcomes:?}");
        assert_eq!(refused[0].id(), ids::OTHER_PUBLISHER);
    }
}

#[test]
fn a_store_is_not_replaced_by_what_is_unpacked() {
    let tree = recombined();
    packed(&tree, "out", "store");
    packed(&tree, "out", "other");
    std::os::unix::fs::symlink("store", tree.path("alias")).unwrap();
    let before = tree.files();
    for (output, id) in [
        ("store", ids::USAGE),
        ("alias", ids::USAGE),
        (".", ids::USAGE),
        ("other", ids::OUTPUT_IN_THE_WAY),
    ] {
        for flatten in [false, true] {
            let mut options = UnpackOptions::new(tree.path("store"), tree.path(output));
            options.flatten = flatten;
            let error = unpack(&options, &()).expect_err(output);
            assert_eq!(error.id(), id, "{output}: {error}");
            assert_eq!(tree.files(), before, "{output}");
        }
    }
    // A tree that was unpacked is replaced, unless somebody has put something there.
    unpack(&UnpackOptions::new(tree.path("store"), tree.path("again")), &()).unwrap();
    let again = UnpackOptions::new(tree.path("store"), tree.path("again"));
    unpack(&again, &()).unwrap();
    for added in ["again/precious", "again/blas_lib_other/precious"] {
        tree.write(added, b"mine");
        let error = unpack(&again, &()).unwrap_err();
        assert_eq!(error.id(), ids::OUTPUT_IN_THE_WAY, "{error}");
        fs::remove_file(tree.path(added)).unwrap();
        let above = tree.path(added);
        let above = above.parent().unwrap();
        if !above.ends_with("again") {
            fs::remove_dir(above).unwrap();
        }
    }
    unpack(&again, &()).unwrap();
}

#[test]
fn families_of_builds_are_selected_by_their_gpus() {
    let tree = Tree::new();
    fs::create_dir(tree.path("store")).unwrap();
    for target in ["generic", "gfx94X-dcgpu", "gfx110X-all"] {
        let bytes = Tar::new().file("stage/file", target.as_bytes()).compressed();
        fs::write(tree.path(&format!("store/blas_lib_{target}.tar.zst")), bytes).unwrap();
    }
    succeeds(&tree, &["artifact", "pack", "--archives", "store"]);
    let output = kpack(&tree, &["artifact", "select", "store/index.json", "--arch", "gfx942"]);
    let expected = "blas_lib_generic.tar.zst\nblas_lib_gfx94X-dcgpu.tar.zst\n";
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}

/// A store with a library for two targets, its host file and a program.
fn small_store(tree: &Tree) {
    let mut entries = Vec::new();
    for (target, tar) in [
        ("gfx942", Tar::new().file("stage/lib/.kpack/blas_lib_gfx942.kpack", b"code")),
        ("gfx1100", Tar::new().file("stage/lib/.kpack/blas_lib_gfx1100.kpack", b"code")),
        (
            "generic",
            Tar::new()
                .file("stage/lib/libblas.so.1", b"host")
                .link("stage/lib/libblas.so", "libblas.so.1")
                .file("stage/bin/bench", b"program"),
        ),
    ] {
        let (files, size) = tar.contents;
        let bytes = tar.compressed();
        tree.write(&format!("store/blas_lib_{target}.tar.zst"), &bytes);
        entries.push(entry("blas_lib", target, &bytes, files, size));
    }
    write_index(&tree.path("store"), &entries);
}

#[test]
fn an_existing_empty_directory_is_filled_and_keeps_what_it_is() {
    for flatten in [false, true] {
        let tree = Tree::new();
        small_store(&tree);
        fs::create_dir(tree.path("out")).unwrap();
        for mode in [0o2770, 0o700] {
            fs::set_permissions(tree.path("out"), fs::Permissions::from_mode(mode)).unwrap();
            let before = tree.path("out").metadata().unwrap().ino();
            let said = command(&tree, &["artifact", "unpack", "../store", "--output-dir", "."])
                .args(flatten.then_some("--flatten"))
                .current_dir(tree.path("out"))
                .output()
                .unwrap();
            assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
            let after = tree.path("out").metadata().unwrap();
            assert_eq!((after.ino(), after.mode() & 0o7777), (before, mode));
            let names = fs::read_dir(tree.path("out")).unwrap();
            let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = names.collect();
            names.sort();
            let expected: &[&str] = if flatten {
                &["bin", "lib"]
            } else {
                &["blas_lib_generic", "blas_lib_gfx1100", "blas_lib_gfx942", "index.json"]
            };
            assert_eq!(names, expected);
            for name in names {
                let path = tree.path("out").join(name);
                if path.is_dir() {
                    fs::remove_dir_all(path).unwrap()
                } else {
                    fs::remove_file(path).unwrap()
                }
            }
        }
    }
}

#[test]
fn the_umask_is_obeyed() {
    let tree = Tree::new();
    small_store(&tree);
    let mut shell = Command::new("sh");
    let line = "umask 077; exec \"$0\" artifact unpack store --flatten --output-dir out --quiet";
    process::run(shell.args(["-c", line, env!("CARGO_BIN_EXE_kpack")]).current_dir(tree.root()));
    for (path, mode) in [("out", 0o700), ("out/lib", 0o700), ("out/lib/libblas.so.1", 0o600)] {
        assert_eq!(tree.path(path).metadata().unwrap().mode() & 0o777, mode, "{path}");
    }
}

/// A directory is not replaced by the system where it is mounted.
#[test]
fn a_mount_point_is_filled() {
    for flags in ["--flatten", "--quiet"] {
        let tree = Tree::new();
        small_store(&tree);
        fs::create_dir(tree.path("out")).unwrap();
        let line = format!(
            "mount -t tmpfs none out || exit 77; for run in 1 2; do \"$0\" artifact unpack store {flags} --output-dir out || exit; \
             find out | sort; {}; done",
            if flags == "--flatten" { "rm -r out/bin out/lib" } else { "true" }
        );
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--map-root-user", "sh", "-c", &line]);
        let said = unshare.arg(env!("CARGO_BIN_EXE_kpack")).current_dir(tree.root()).output();
        let said = said.unwrap();
        let text = String::from_utf8_lossy(&said.stderr);
        if said.status.code() == Some(77) || text.starts_with("unshare:") {
            require::skip(&format!("nothing can be mounted here: {text}"));
            return;
        }
        assert!(said.status.success(), "{text}");
        let files = String::from_utf8_lossy(&said.stdout);
        assert_eq!(files.matches("blas_lib_gfx942.kpack").count(), 2, "{files}");
        assert!(!files.contains(".tmp"), "{files}");
    }
}

#[test]
fn a_directory_that_appears_meanwhile_stays() {
    // Given two runs for one directory that is not there, then one of them gets it.
    for existing in [false, true] {
        let tree = Tree::new();
        small_store(&tree);
        if existing {
            fs::create_dir(tree.path("out")).unwrap();
        }
        let barrier = Barrier::new(2);
        let run = |target: &str| {
            let mut options = UnpackOptions::new(tree.path("store"), tree.path("out"));
            options.choice.architectures = vec![target.parse().unwrap()];
            options.flatten = true;
            barrier.wait();
            unpack(&options, &())
        };
        let done = thread::scope(|scope| {
            let runs = ["gfx942", "gfx1100"].map(|target| scope.spawn(move || run(target)));
            runs.map(|run| run.join().unwrap())
        });
        let failed: Vec<_> = done.iter().filter_map(|done| done.as_ref().err()).collect();
        assert_eq!(failed.len(), 1, "{done:?}");
        assert_eq!(failed[0].id(), ids::OUTPUT_IN_THE_WAY, "{}", failed[0]);
        let winner = if done[0].is_ok() { "gfx942" } else { "gfx1100" };
        let archives = fs::read_dir(tree.path("out/lib/.kpack")).unwrap();
        let archives: Vec<_> = archives.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(archives, [format!("blas_lib_{winner}.kpack").as_str()]);
    }
}

/// The run is killed at each call that changes names.
#[test]
fn what_an_interrupted_run_left_needs_nothing_that_is_not_there() {
    if !require::tool("strace") {
        return;
    }
    for flatten in [true, false] {
        for call in ["renameat2", "unlinkat", "mkdirat"] {
            for number in 1.. {
                let tree = Tree::new();
                small_store(&tree);
                fs::create_dir(tree.path("out")).unwrap();
                let mut arguments =
                    vec!["artifact", "unpack", "store", "--output-dir", "out", "--jobs", "1"];
                arguments.extend(flatten.then_some("--flatten"));
                let mut traced = Command::new("strace");
                traced.args(["-f", "-o", "trace", "-e", &format!("trace={call}")]);
                traced.arg(format!("-einject={call}:signal=KILL:when={number}"));
                traced.arg(env!("CARGO_BIN_EXE_kpack")).args(&arguments);
                let output = traced.current_dir(tree.root()).output().unwrap();
                if fs::read_to_string(tree.path("trace")).is_ok_and(|trace| trace.is_empty()) {
                    let why = String::from_utf8_lossy(&output.stderr);
                    require::skip(&format!("strace cannot trace here: {why}"));
                    return;
                }
                let what = format!("{call} {number} {flatten}");
                let is_there = |path: &str| tree.path("out").join(path).symlink_metadata().is_ok();
                let order: &[&str] = if flatten {
                    &[
                        "bin/bench",
                        "lib/libblas.so",
                        "lib/libblas.so.1",
                        "lib/.kpack/blas_lib_gfx942.kpack",
                        "lib/.kpack/blas_lib_gfx1100.kpack",
                    ]
                } else {
                    &["index.json", "blas_lib_generic", "blas_lib_gfx942"]
                };
                let first = order.iter().position(|path| is_there(path)).unwrap_or(order.len());
                assert!(order[first..].iter().all(|path| is_there(path)), "{what}");
                if output.status.success() {
                    break;
                }
                let complete = order.iter().all(|path| is_there(path));
                let again = kpack(&tree, &arguments);
                // Where nothing was left to do, the directory is one that was unpacked.
                let text = String::from_utf8_lossy(&again.stderr);
                assert!(again.status.success() || complete && flatten, "{what}: {text}");
                assert!(order.iter().all(|path| is_there(path)), "{what}");
            }
        }
    }
}
