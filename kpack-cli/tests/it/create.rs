//! Given files, when `kpack create` stores them by name, then commands, the loader and Python read the same bytes, and
//! what cannot be stored is named.

use std::fs;
use std::process::Command;

use kpack::internal::Archive;
use kpack_core::ids;
use kpack_tests::fixture::{FatLibrary, Storage, code};
use kpack_tests::page::repository;
use kpack_tests::process;
use kpack_tests::require::tool;
use kpack_tests::tree::Tree;
use serde_json::Value;

use crate::command::{kpack, said, succeeds};

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
    succeeds(tree, &[&arguments, more, &FILES].concat());
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
    succeeds(&tree, &["create", "vec.kpack", "--from", "list.json"]);
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

/// Before each of the scripts below.
const BEGIN: &str = r#"
from pathlib import Path

from rocm_kpack.compression import NoOpCompressor, ZstdCompressor
from rocm_kpack.kpack import PackedKernelArchive


def fails(kind, text, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except kind as error:
        assert text in str(error), error
        return
    raise AssertionError(f"no {kind}: {text}")
"#;

/// Writes and reads an archive as builders of kernel databases do.
const PYTHON: &str = r#"
for compressor in (ZstdCompressor(compression_level=3), NoOpCompressor()):
    archive = PackedKernelArchive(
        group_name="provider", gfx_arch_family="gfx942", gfx_arches=["gfx942"], compressor=compressor
    )
    for name, data in (("v0", b"first" * 100), ("dir/v1#0", b"first" * 100), ("-v2", b"")):
        prepared = archive.prepare_kernel(
            relative_path=name, gfx_arch="gfx942", hsaco_data=data, metadata={"variant_key": name}
        )
        archive.add_kernel(prepared)
    fails(ValueError, "Kernel already exists for -v2 @ gfx942", archive.add_kernel, prepared)
    fails(RuntimeError, "not finalized", archive.write, "early.kpack")
    archive.add_kernel(archive.prepare_kernel("text", "gfx942", b"ptx", payload_type="ptx"))
    archive.finalize_archive()
    path = PackedKernelArchive.compute_pack_filename("provider", "gfx942")
    archive.write(path)
    read = PackedKernelArchive.read(path)
    assert read.group_name == "provider" and read.gfx_arches == ["gfx942"], vars(read)
    assert set(read.toc) == {"v0", "dir/v1#0", "-v2", "text"}
    assert read.toc["v0"]["gfx942"]["metadata"] == {"variant_key": "v0"}
    assert read.toc["text"]["gfx942"]["type"] == "ptx" and read.toc["v0"]["gfx942"]["type"] == "hsaco"
    assert read.get_kernel("v0", "gfx942") == read.get_kernel("dir/v1#0", "gfx942") == b"first" * 100
    assert read.get_kernel("-v2", "gfx942") == b""
    assert read.get_kernel("v0", "gfx950") is None and read.get_kernel("v9", "gfx942") is None
    fails(RuntimeError, "already finalized", archive.finalize_archive)
fails(FileNotFoundError, "missing.kpack", PackedKernelArchive.read, "missing.kpack")
Path("text.kpack").write_text("text, not an archive")
fails(ValueError, "Invalid magic number", PackedKernelArchive.read, "text.kpack")
"#;

/// Names, targets and sizes as scripts for ROCm's own module expect them.
const NAMES: &str = r#"
assert PackedKernelArchive.compute_pack_filename("blas", "gfx1100") == "blas-gfx1100.kpack"
archive = PackedKernelArchive("blas", "gfx9X", ["gfx90a:xnack+:sramecc-"], compressor=NoOpCompressor())
# Features in any order, and a target that the list does not have.
for name, target in (("bin\\a", "gfx90a:xnack+:sramecc-"), ("./b", "gfx942")):
    prepared = archive.prepare_kernel(name, target, target.encode())
    assert prepared.compression_input.data == target.encode() and prepared.kernel_id.endswith(target)
    archive.add_kernel(prepared)
assert "gfx90a:xnack+:sramecc-" in archive.toc["bin/a"]
assert repr(archive) == "PackedKernelArchive(group=blas, family=gfx9X, binaries=2, kernels=2)"
archive.finalize_archive()
archive.write(Path("new/directory/blas.kpack"))
read = PackedKernelArchive.read(Path("new/directory/blas.kpack"))
assert read.gfx_arches == ["gfx90a:sramecc-:xnack+", "gfx942"], read.gfx_arches
for target in ("gfx90a:xnack+:sramecc-", "gfx90a:sramecc-:xnack+"):
    assert read.get_kernel("bin/a", target) == b"gfx90a:xnack+:sramecc-"
assert read.get_kernel("./b", "gfx942") == b"gfx942"
fails(ValueError, "Streaming write mode", PackedKernelArchive, "blas", "gfx9X", [], output_path="a.kpack")
# What compressors make of kernels on their own.
kernels = [(str(size), b"x" * size) for size in (5000, 7, 0)]
for compressor in (NoOpCompressor(), ZstdCompressor(19)):
    inputs = [(name, compressor.prepare_kernel(data, name)) for name, data in kernels]
    stored, about = compressor.finalize(inputs)
    if compressor.SCHEME_NAME == "none":
        assert stored == b"x" * 5007 and about["blobs"][1] == {"offset": 5000, "size": 7}
    else:
        assert inputs[0][1].original_size == 5000 and len(inputs[0][1].compressed_frame) < 100
        assert stored[:4] == b"\3\0\0\0" and about["zstd_size"] == len(stored)
"#;

/// Takes a library apart as rocm-xio's build does it.
const SPLIT: &str = r#"
from rocm_kpack.artifact_utils import (
    extract_architecture_from_target, is_fat_binary, read_artifact_manifest, scan_directory, write_artifact_manifest
)
from rocm_kpack.binutils import BundledBinary, Toolchain
from rocm_kpack.elf import NotFatBinaryError, kpack_offload_binary
from rocm_kpack.platform_utils import configure_windows_console

configure_windows_console()
library = Path("lib/libvec.so")
kernels = {}
binary = BundledBinary(library, toolchain=Toolchain())
assert binary.list_bundles() == ["gfx1100", "gfx942", "gfx942"], binary.list_bundles()
with binary.unbundle() as unbundled:
    for target_name, file_name in unbundled.target_list:
        arch = extract_architecture_from_target(target_name)
        assert target_name == f"hipv4-amdgcn-amd-amdhsa--{arch}" and file_name.endswith(".hsaco")
        kernels.setdefault(arch, []).append((unbundled.dest_dir / file_name).read_bytes())
assert not unbundled.dest_dir.exists()
kept = binary.unbundle(dest_dir=Path("code"), delete_on_close=False, gfx_arch="gfx1100")
kept.close()
assert [path.name for path in Path("code").iterdir()] == kept.file_names
for arch, data in kernels.items():
    archive = PackedKernelArchive(group_name="vec", gfx_arch_family=arch, gfx_arches=[arch])
    for index, kernel in enumerate(data):
        archive.add_kernel(archive.prepare_kernel(f"libvec.so#{index}", arch, kernel))
    archive.finalize_archive()
    archive.write(Path(f"lib/.kpack/vec_{arch}.kpack"))
assert is_fat_binary(library, toolchain=Toolchain())
sizes = kpack_offload_binary(library, library, [".kpack/vec_@GFXARCH@.kpack"])
assert sizes["new_size"] == library.stat().st_size and not is_fat_binary(library)
fails(NotFatBinaryError, "no device code", kpack_offload_binary, library, library, ["/a/b_@GFXARCH@.kpack"])
fails(ValueError, "a list of paths", kpack_offload_binary, library, library)
assert extract_architecture_from_target("host") is None
write_artifact_manifest(Path("lib"), ["a/stage", "b/stage"])
assert read_artifact_manifest(Path("lib")) == ["a/stage", "b/stage"]
fails(FileNotFoundError, "artifact_manifest.txt", read_artifact_manifest, Path("code"))
found = {path.name for path, _ in scan_directory(Path("lib"), lambda path, _: path.name != ".kpack")}
assert found == {"libvec.so", "artifact_manifest.txt"}, found
"#;

/// The names that scripts import from the package and its modules, besides those above.
const MODULES: &str = r#"
import subprocess
from argparse import Namespace

import rocm_kpack
from rocm_kpack import UnsupportedBinaryFormat, coff, detect_binary_format, is_elf_binary, is_fat_binary, is_pe_binary
from rocm_kpack import kpack_offload_binary, read_kpack_ref_marker
from rocm_kpack.artifact_splitter import ArtifactSplitter
from rocm_kpack.coff.kpack_transform import kpack_offload_binary as of_windows
from rocm_kpack.database_handlers import get_database_handlers
from rocm_kpack.elf.kpack_transform import NotFatBinaryError, kpack_offload_binary as of_linux
from rocm_kpack.tools import bulk_unbundle

assert of_windows is of_linux is kpack_offload_binary is coff.kpack_offload_binary
assert all(hasattr(rocm_kpack, name) for name in rocm_kpack.__all__)
library, dll, text = Path("built/vec_lib/stage/libvec.so"), Path("vec.dll"), Path("text")
text.write_text("MZ, but no program")
dll.write_bytes(b"MZ".ljust(60, b"\0") + b"\x40\0\0\0PE\0\0")
assert detect_binary_format(library) == "elf" and is_elf_binary(library) and not is_pe_binary(library)
assert detect_binary_format(dll) == "coff" and is_pe_binary(dll) and not is_elf_binary(Path("missing"))
assert is_fat_binary(library) and not is_fat_binary(text) and not is_pe_binary(text)
fails(UnsupportedBinaryFormat, "neither ELF nor PE", detect_binary_format, text)
fails(UnsupportedBinaryFormat, "neither ELF nor PE", read_kpack_ref_marker, text)

# An artifact,
(Path("built/vec_lib") / "artifact_manifest.txt").write_text("stage\n")
databases = get_database_handlers(["rocblas", "miopen"])
assert [database.name() for database in databases] == ["rocblas", "miopen"]
splitter = ArtifactSplitter("vec_lib", database_handlers=databases, gpu_targets=["gfx942"])
splitter.split(Path("built/vec_lib"), Path("split"))
assert sorted(path.name for path in Path("split").iterdir()) == ["vec_lib_generic", "vec_lib_gfx942"]
assert Path("split/vec_lib_gfx942/stage/lib/rocblas/library/a_gfx942.co").exists()
ArtifactSplitter("vec_lib", verbose=True).split(Path("built/vec_lib"), Path("without"))
assert Path("without/vec_lib_generic/stage/lib/rocblas/library/a_gfx942.co").exists()
unknown = ArtifactSplitter("vec_lib", database_handlers=get_database_handlers(["unknown"]))
fails(RuntimeError, "exit code 2", unknown.split, Path("built/vec_lib"), Path("split"))
fails(FileNotFoundError, "missing", splitter.split, Path("missing"), Path("split"))

# code objects,
bulk_unbundle.run(Namespace(files=[library], output_dir=Path("code"), gfx_arch="gfx942"))
assert [path.name for path in Path("code").iterdir()] == ["libvec.so-0-gfx942.hsaco"]
fails(subprocess.CalledProcessError, "status 3", bulk_unbundle.run, Namespace(files=[text]), toolchain=None)
fails(ValueError, "takes one FILE", bulk_unbundle.run, Namespace(files=[library, text], output_dir=Path("code")))

# and a marker, with paths shorter than those that kpack chooses.
assert read_kpack_ref_marker(library) is None
for paths in (["fallback.kpack"], ["kernels.kpack"], [".kpack/a_@GFXARCH@.kpack", "b"]):
    output = Path("output.so")
    result = kpack_offload_binary(library, output, paths, kernel_name="vec")
    assert result["format"] == "elf" and result["new_size"] == output.stat().st_size
    assert read_kpack_ref_marker(output) == {"kpack_search_paths": paths, "kernel_name": "vec"}
"#;

/// The same for a library whose wrappers share a bundle.
const SPLIT_SHARED: &str = r#"
from rocm_kpack.artifact_utils import extract_architecture_from_target
from rocm_kpack.binutils import BundledBinary
from rocm_kpack.elf import kpack_offload_binary

library = Path("lib/libxio.so")
kernels = {}
with BundledBinary(library).unbundle() as unbundled:
    for target_name, file_name in unbundled.target_list:
        arch = extract_architecture_from_target(target_name)
        kernels.setdefault(arch, []).append((unbundled.dest_dir / file_name).read_bytes())
for arch, data in kernels.items():
    archive = PackedKernelArchive(group_name="xio", gfx_arch_family=arch, gfx_arches=[arch])
    for index, kernel in enumerate(data):
        archive.add_kernel(archive.prepare_kernel(f"libxio.so#{index}", arch, kernel))
    archive.finalize_archive()
    archive.write(Path(f"lib/.kpack/xio_{arch}.kpack"))
kpack_offload_binary(library, library, PATHS)
"#;

/// The list of search paths takes the place of one path, whatever the lengths, up to a maximum.
const LENGTHS: &str = r#"
from rocm_kpack import elf, kpack_transform

library = Path("lib/libxio.so")
fails(ValueError, "expected at most", elf.kpack_offload_binary, library, library, LONG)
fails(ValueError, "a list of paths", elf.kpack_offload_binary, library, library, ".kpack/x")
fails(ValueError, "expected paths of 13 bytes", elf.kpack_offload_binary, library, library, ["x", "y"])
for first in range(1, 600):
    for second in (1, 31, 32, 255, 256):
        if first + second > 12:
            listed, placeholder = kpack_transform._listed(["x" * first, "y" * second])
            assert len(listed) == 1 + len(kpack_transform._shortest_text(placeholder)), (first, second)
"#;

/// Runs a script with the modules of the adapter.
pub(crate) fn python(tree: &Tree, script: &str) {
    let modules = repository().join("therock/python");
    let mut python = Command::new("python3");
    python.args(["-c", &format!("{BEGIN}{script}")]).current_dir(tree.root());
    python.env("PYTHONPATH", modules).env("PYTHONDONTWRITEBYTECODE", "1");
    process::run(python.env("KPACK_EXECUTABLE", env!("CARGO_BIN_EXE_kpack")));
}

#[test]
fn python_writes_and_reads_archives() {
    if !tool("python3") {
        return;
    }
    let tree = Tree::new();
    python(&tree, PYTHON);
    let archive = Archive::open(&tree.path("provider-gfx942.kpack")).unwrap();
    assert_eq!(archive.load("text", "gfx942").unwrap(), b"ptx");
}

#[test]
fn python_names_archives_targets_and_kernels_as_rocms_own_module_does() {
    if !tool("python3") {
        return;
    }
    python(&Tree::new(), NAMES);
}

#[test]
fn python_splits_a_library_and_the_loader_finds_its_code() {
    if !tool("python3") {
        return;
    }
    let tree = Tree::new();
    let library = FatLibrary::new()
        .wrapper(Storage::Plain, [code("gfx942", "add"), code("gfx1100", "add")])
        .wrapper(Storage::Zstd(3), [code("gfx942", "mul")]);
    library.build(&tree.path("lib/libvec.so")).unwrap();
    python(&tree, SPLIT);
    let said = said(&tree, &["verify", "lib/libvec.so"]);
    assert!(said.ends_with("exit code 0\n"), "{said}");
}

/// With `-fgpu-rdc`, each wrapper has the same code; a wrapper of an object without it has its own.
#[test]
fn python_splits_a_library_whose_wrappers_share_a_bundle() {
    if !tool("python3") {
        return;
    }
    let shared = FatLibrary::new()
        .wrapper(Storage::Plain, [code("gfx942", "add"), code("gfx1100", "add")])
        .wrapper_sharing(0);
    let mixed = FatLibrary::new()
        .wrapper(Storage::Plain, [code("gfx942", "add")])
        .wrapper(Storage::Zstd(3), [code("gfx942", "mul")])
        .wrapper_sharing(0);
    for library in [shared, mixed] {
        let tree = Tree::new();
        library.build(&tree.path("lib/libxio.so")).unwrap();
        library.build(&tree.path("fat.so")).unwrap();
        python(&tree, &format!("PATHS = ['.kpack/xio_@GFXARCH@.kpack']\n{SPLIT_SHARED}"));
        for arguments in [&["lib/libxio.so"][..], &["lib/libxio.so", "--against", "fat.so"]] {
            let said = said(&tree, &[&["verify"], arguments].concat());
            assert!(said.ends_with("exit code 0\n") && !said.contains("warning"), "{said}");
        }
    }
}

#[test]
fn python_writes_several_search_paths() {
    if !tool("python3") {
        return;
    }
    let own = ".kpack/xio_@GFXARCH@.kpack".to_owned();
    let many = (0..20).map(|index| format!("{index}_@GFXARCH@.kpack"));
    let far = format!("{}_@GFXARCH@.kpack", "directory/".repeat(250));
    let lists = [vec![own.clone(), far], Vec::from_iter(many.chain([own.clone()]))];
    let library = FatLibrary::new().wrapper(Storage::Plain, [code("gfx942", "add")]);
    for paths in lists {
        let tree = Tree::new();
        library.build(&tree.path("lib/libxio.so")).unwrap();
        python(&tree, &format!("PATHS = {paths:?}\n{SPLIT_SHARED}"));
        let shown = succeeds(&tree, &["show", "--json", "lib/libxio.so"]);
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown["kpack_search_paths"], serde_json::json!(paths));
        let said = said(&tree, &["verify", "lib/libxio.so", "--arch", "gfx942"]);
        assert!(said.ends_with("exit code 0\n"), "{said}");
    }
    let long = ["x".repeat(3000), own];
    let tree = Tree::new();
    library.build(&tree.path("lib/libxio.so")).unwrap();
    python(&tree, &format!("LONG = {long:?}\n{LENGTHS}"));
}

#[test]
fn python_has_the_modules_that_scripts_import() {
    if !tool("python3") {
        return;
    }
    let tree = Tree::new();
    let library = FatLibrary::new()
        .wrapper(Storage::Plain, [code("gfx942", "add"), code("gfx1100", "add")])
        .wrapper(Storage::Zstd(3), [code("gfx1100", "mul")]);
    library.build(&tree.path("built/vec_lib/stage/libvec.so")).unwrap();
    let database = tree.path("built/vec_lib/stage/lib/rocblas/library/a_gfx942.co");
    fs::create_dir_all(database.parent().unwrap()).unwrap();
    fs::write(database, code("gfx942", "gemm").1).unwrap();
    python(&tree, MODULES);
}
