//! Given files, when `kpack create` stores them by name, then commands, the loader and Python read the same bytes, and
//! what cannot be stored is named.

use std::fs;
use std::path::Path;
use std::process::Command;

use kpack_core::ids;
use kpack_tests::fixture::code;
use kpack_tests::process;
use kpack_tests::require::tool;
use kpack_tests::tree::Tree;
use rocm_kpack::Archive;
use serde_json::Value;

use crate::command::{kpack, said};

const ARCHIVE: &str = "vec_kernels_gfx942.kpack";

/// A directory `build` with two code objects and another file.
fn files() -> Tree {
    let tree = Tree::new();
    fs::create_dir_all(tree.path("build/fast")).unwrap();
    fs::write(tree.path("build/add.hsaco"), code("gfx942", "add").1).unwrap();
    fs::write(tree.path("build/fast/add.co"), code("gfx942", "fast").1).unwrap();
    fs::write(tree.path("build/fast/table"), b"any bytes").unwrap();
    fs::write(tree.path("build/empty"), b"").unwrap();
    tree
}

const FILES: [&str; 4] =
    ["build/add.hsaco", "./build/fast/add.co", "build/fast/table", "build/empty"];

fn create(tree: &Tree, more: &[&str]) {
    let arguments = ["create", ARCHIVE, "--arch", "gfx942", "--strip-prefix", "build"];
    let output = kpack(tree, &[&arguments, more, &FILES].concat());
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn commands_and_the_loader_read_what_was_stored() {
    for compression in ["zstd", "none"] {
        let tree = files();
        create(&tree, &["--compression", compression]);
        let archive = Archive::open(&tree.path(ARCHIVE)).unwrap();
        for name in ["add.hsaco", "fast/add.co", "fast/table", "empty"] {
            let expected = fs::read(tree.path("build").join(name)).unwrap();
            assert_eq!(archive.load(name, "gfx942").unwrap(), expected, "{name}");
            let arguments = ["extract", ARCHIVE, "--kernel", name, "--arch", "gfx942", "-o", "-"];
            assert_eq!(kpack(&tree, &arguments).stdout, expected, "{name}");
        }
        let listed = kpack(&tree, &["list", ARCHIVE, "--json"]);
        let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
        assert_eq!(listed["group_name"], "vec_kernels");
        assert_eq!(listed["targets"][0], "gfx942");
        assert!(kpack(&tree, &["verify", ARCHIVE]).status.success());
        let all = kpack(&tree, &["extract", ARCHIVE, "--output-dir", "out"]);
        assert!(all.status.success(), "{all:?}");
        let table = fs::read(tree.path("out/fast_table-gfx942")).unwrap();
        assert_eq!(table, b"any bytes");
        let object = fs::read(tree.path("out/fast_add-gfx942.co")).unwrap();
        assert_eq!(object, code("gfx942", "fast").1);
    }
}

#[test]
fn the_same_files_give_the_same_bytes() {
    let tree = files();
    create(&tree, &["--jobs", "1"]);
    let first = fs::read(tree.path(ARCHIVE)).unwrap();
    fs::remove_file(tree.path(ARCHIVE)).unwrap();
    create(&tree, &["--jobs", "4"]);
    assert_eq!(fs::read(tree.path(ARCHIVE)).unwrap(), first);
}

#[test]
fn an_archive_may_have_several_targets_with_metadata() {
    let tree = files();
    let list = r#"{"group_name": "vec", "gfx_arch_family": "gfx94X", "gfx_arches": ["gfx942", "gfx950"], "kernels": [
        {"name": "v0", "target": "gfx942", "file": "build/add.hsaco", "metadata": {"entry_id": 5, "variant": {"tile": 16}}},
        {"name": "v0", "target": "gfx950", "file": "build/fast/table", "type": "ptx"}]}"#;
    fs::write(tree.path("list.json"), list).unwrap();
    let output = kpack(&tree, &["create", "vec.kpack", "--from", "list.json"]);
    assert!(output.status.success(), "{output:?}");
    let archive = Archive::open(&tree.path("vec.kpack")).unwrap();
    assert_eq!(archive.load("v0", "gfx942").unwrap(), code("gfx942", "add").1);
    assert_eq!(archive.load("v0", "gfx950").unwrap(), b"any bytes");
    let listed = kpack(&tree, &["list", "vec.kpack", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["target"], "gfx94X");
    assert_eq!(listed["kernels"][0]["metadata"]["variant"]["tile"], 16);
    assert_eq!(listed["kernels"][1]["type"], "ptx");
    let verified = said(&tree, &["verify", "--verbose", "vec.kpack"]);
    let note = format!("is of type `ptx`, not `hsaco` [{}]", ids::OTHER_TYPE);
    assert!(verified.contains(&note), "{verified}");
}

#[test]
fn what_cannot_be_stored_is_named_and_nothing_is_written() {
    let tree = files();
    fs::write(tree.path("build/other.hsaco"), code("gfx1100", "add").1).unwrap();
    let bad = r#"{"group_name": "", "gfx_arch_family": "", "gfx_arches": ["gfx942"], "kernels": [{"nam": 1}]}"#;
    fs::write(tree.path("bad.json"), bad).unwrap();
    let unlisted =
        bad.replace(r#"{"nam": 1}"#, r#"{"name": "a", "target": "gfx90a", "file": "bad.json"}"#);
    fs::write(tree.path("unlisted.json"), unlisted).unwrap();
    let twice = bad.replace(r#"["gfx942"]"#, r#"["gfx942", "gfx942"]"#);
    let twice = twice.replace(r#"{"nam": 1}"#, "");
    fs::write(tree.path("twice.json"), twice).unwrap();
    let absolute = tree.path("build/add.hsaco");
    let absolute = absolute.to_str().unwrap();
    for (code, arguments, expected) in [
        (2, vec!["add.hsaco", "--arch", "gfx942", "build/add.hsaco"], "ends in `.kpack`"),
        (2, vec!["a.kpack", "--arch", "gfx942", absolute], "--strip-prefix"),
        (
            2,
            vec!["a.kpack", "--arch", "gfx942", "--strip-prefix", "x", "build/add.hsaco"],
            "does not begin with x",
        ),
        (2, vec!["a.kpack", "--arch", "gfx942"], "FILE"),
        (2, vec!["a.kpack", "build/add.hsaco"], "--arch"),
        (
            3,
            vec!["a.kpack", "--arch", "gfx942", "build/add.hsaco", "./build/add.hsaco"],
            ids::NAME_CLASH.as_str(),
        ),
        (
            3,
            vec!["a.kpack", "--arch", "gfx942", "build/other.hsaco"],
            ids::DAMAGED_CODE_OBJECT.as_str(),
        ),
        (3, vec!["a.kpack", "--from", "bad.json"], ids::BAD_CONFIGURATION.as_str()),
        (3, vec!["a.kpack", "--from", "unlisted.json"], "which `gfx_arches` does not list"),
        (3, vec!["a.kpack", "--from", "twice.json"], "`gfx_arches` lists gfx942 twice"),
        (4, vec!["a.kpack", "--arch", "gfx942", "missing"], "missing"),
    ] {
        let text = said(&tree, &[&["create"], &arguments[..]].concat());
        assert!(text.ends_with(&format!("exit code {code}\n")), "{text}");
        assert!(text.contains(expected), "{text}");
        assert!(!tree.path("a.kpack").exists(), "{arguments:?}");
    }
}

/// Writes and reads an archive as builders of kernel databases do.
const PYTHON: &str = r#"
import sys
from rocm_kpack.compression import NoOpCompressor, ZstdCompressor
from rocm_kpack.kpack import PackedKernelArchive

for compressor in (ZstdCompressor(compression_level=3), NoOpCompressor()):
    archive = PackedKernelArchive(
        group_name="provider", gfx_arch_family="gfx942", gfx_arches=["gfx942"], compressor=compressor
    )
    for name, data in (("v0", b"first" * 100), ("dir/v1#0", b"first" * 100), ("-v2", b"")):
        prepared = archive.prepare_kernel(
            relative_path=name, gfx_arch="gfx942", hsaco_data=data, metadata={"variant_key": name}
        )
        archive.add_kernel(prepared)
    try:
        archive.add_kernel(prepared)
        sys.exit("added twice")
    except ValueError:
        pass
    archive.add_kernel(archive.prepare_kernel("text", "gfx942", b"ptx", payload_type="ptx"))
    archive.finalize_archive()
    path = PackedKernelArchive.compute_pack_filename("provider", "gfx942")
    archive.write(path)
    read = PackedKernelArchive.read(path)
    assert read.group_name == "provider" and read.gfx_arches == ["gfx942"], vars(read)
    assert read.compressor.SCHEME_NAME == compressor.SCHEME_NAME
    assert set(read.toc) == {"v0", "dir/v1#0", "-v2", "text"}
    assert read.toc["v0"]["gfx942"]["metadata"] == {"variant_key": "v0"}
    assert read.toc["text"]["gfx942"]["type"] == "ptx" and read.toc["v0"]["gfx942"]["type"] == "hsaco"
    assert read.get_kernel("v0", "gfx942") == read.get_kernel("dir/v1#0", "gfx942") == b"first" * 100
    assert read.get_kernel("-v2", "gfx942") == b""
    assert read.get_kernel("v0", "gfx950") is None and read.get_kernel("v9", "gfx942") is None
try:
    PackedKernelArchive.read("missing.kpack")
    sys.exit("read a file that does not exist")
except ValueError as error:
    assert "missing.kpack" in str(error), error
"#;

#[test]
fn python_writes_and_reads_archives() {
    if !tool("python3") {
        return;
    }
    let tree = Tree::new();
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../therock/python");
    let mut python = Command::new("python3");
    python.args(["-c", PYTHON]).current_dir(tree.root());
    python.env("PYTHONPATH", modules).env("PYTHONDONTWRITEBYTECODE", "1");
    process::run(python.env("KPACK_EXECUTABLE", env!("CARGO_BIN_EXE_kpack")));
    let archive = Archive::open(&tree.path("provider_gfx942.kpack")).unwrap();
    assert_eq!(archive.load("text", "gfx942").unwrap(), b"ptx");
}
