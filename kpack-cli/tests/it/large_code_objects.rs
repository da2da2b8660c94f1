//! Given code objects that are large, or declare to be large, when they are split and verified, then the
//! memory for that does not depend on their size, and a code object that no reader accepts is rejected.

use std::fs;
use std::process::Command;

use crate::verified::assert_holds_against;
use kpack_artifact::verify::{self, verify};
use kpack_cli::inspect::SelectedCodeObjects;
use kpack_format::archive::{Encoder, Scheme};
use kpack_format::digest::blake3;
use kpack_split::install::{InstallOptions, install};
use kpack_tests::bytes;
use kpack_tests::fixture::{FatLibrary, Storage, code_object, code_with};
use kpack_tests::tree::Tree;

/// More bytes than a run may use as memory.
const SIZE: usize = 320 << 20;

/// A prefix with `lib/libvec.so`, whose wrappers all have one large code object for two targets that
/// compresses to almost nothing, and a small one.
fn prefix() -> Tree {
    let tree = Tree::new();
    let large = code_object("gfx1100", &vec![0; SIZE]).unwrap();
    let small = code_object("gfx942", b"small").unwrap();
    let library = FatLibrary::new()
        .wrapper(Storage::Zstd(3), [("gfx1100", large), ("gfx942", small.clone())])
        .wrapper(Storage::Plain, [("gfx942", small)]);
    library.build(&tree.path("lib/libvec.so")).unwrap();
    tree
}

/// Runs the command with 256 MiB of address space.
fn limited(tree: &Tree, arguments: &str) {
    let (status, said) = limited_to(256, tree, arguments);
    assert_eq!(status, Some(0), "{arguments}: {said}");
}

/// The command's status and messages with so many MiB of address space.
fn limited_to(limit: usize, tree: &Tree, arguments: &str) -> (Option<i32>, String) {
    limited_by("-v", limit, tree, arguments)
}

/// The command's status and messages with so many MiB of what `ulimit` limits by `option`.
fn limited_by(option: &str, limit: usize, tree: &Tree, arguments: &str) -> (Option<i32>, String) {
    let limit = limit << 10;
    let output = Command::new("sh")
        .args(["-c", &format!("ulimit {option} {limit}; exec \"$KPACK\" {arguments}")])
        .env("KPACK", env!("CARGO_BIN_EXE_kpack"))
        // Each thread's share of malloc would reserve 64 MiB of addresses.
        .env("MALLOC_ARENA_MAX", "1")
        .current_dir(tree.root())
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    (output.status.code(), said)
}

#[test]
fn memory_does_not_grow_with_a_code_object() {
    let tree = prefix();
    let fat = tree.path("fat.so");
    fs::copy(tree.path("lib/libvec.so"), &fat).unwrap();
    let install = "split --jobs 2 --prefix . --module vec lib/libvec.so";
    limited(&tree, install);
    limited(&tree, "verify lib");
    limited(&tree, "verify lib/libvec.so");
    assert_holds_against(&tree.path("lib/libvec.so"), &fat);

    limited(&tree, "join --jobs 2 --arch gfx1100 --prefix . --output joined.so lib/libvec.so");
    assert_holds_against(&tree.path("joined.so"), &fat);
    fs::remove_file(tree.path("joined.so")).unwrap();

    // The same code object again, merged into the archive that has it: the same bytes.
    let before = tree.snapshot();
    fs::copy(&fat, tree.path("lib/libvec.so")).unwrap();
    limited(&tree, install);
    assert_eq!(tree.snapshot(), before);
}

/// The window alone takes 128 MiB.
#[test]
fn a_compressed_bundle_with_the_largest_window_takes_little_more_memory_than_that() {
    let tree = Tree::new();
    let mut random = fastrand::Rng::with_seed(1);
    let targets = ["gfx906", "gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1201"];
    let code = targets.map(|target| {
        let payload = Vec::from_iter(std::iter::repeat_with(|| random.u8(..)).take(22 << 20));
        code_with(target, &payload)
    });
    let library = FatLibrary::new().wrapper(Storage::ZstdLong(3), code);
    library.build(&tree.path("lib/libvec.so")).unwrap();
    fs::copy(tree.path("lib/libvec.so"), tree.path("fat.so")).unwrap();
    for arguments in [
        "split --jobs 2 --prefix . --module vec lib/libvec.so",
        "verify lib/libvec.so --against fat.so",
    ] {
        let (status, said) = limited_to(220, &tree, arguments);
        assert_eq!(status, Some(0), "{arguments}: {said}");
    }
}

/// A large window takes the place of the smaller ones before it. The largest is 128 MiB; the limit is for all
/// memory but that of files.
#[test]
fn the_memory_of_windows_is_given_back() {
    let tree = Tree::new();
    let mut library = FatLibrary::new();
    for megabytes in [30, 24, 28, 8, 30, 16, 160] {
        let code = code_object("gfx1100", &vec![0; megabytes << 20]).unwrap();
        library = library.wrapper(Storage::ZstdLong(3), [("gfx1100", code)]);
    }
    library.build(&tree.path("lib/libvec.so")).unwrap();
    let install = "split --jobs 2 --prefix . --module vec lib/libvec.so";
    let (status, said) = limited_by("-d", 150, &tree, install);
    assert_eq!(status, Some(0), "{said}");
}

/// The message must be about memory, and not call a file damaged.
#[test]
fn too_little_memory_is_not_damage() {
    let tree = Tree::new();
    let code = code_object("gfx1100", &vec![0; 100 << 20]).unwrap();
    let library = FatLibrary::new().wrapper(Storage::ZstdLong(3), [("gfx1100", code)]);
    library.build(&tree.path("lib/libvec.so")).unwrap();
    fs::copy(tree.path("lib/libvec.so"), tree.path("fat.so")).unwrap();
    let install = "split --jobs 1 --prefix . --module vec lib/libvec.so";
    let assert_short = |limit, arguments| {
        let (status, said) = limited_to(limit, &tree, arguments);
        assert_eq!(status, Some(4), "{arguments} in {limit} MiB: {said}");
        let said = said.to_lowercase();
        let reasons =
            ["out of memory", "memory allocation failed", "allocate memory", "not enough memory"];
        assert!(reasons.iter().any(|reason| said.contains(reason)), "{said}");
        assert!(!said.contains("fault"), "{said}");
    };
    for limit in [60, 90, 110] {
        assert_short(limit, install);
    }
    assert_eq!(tree.files(), ["fat.so", "lib/libvec.so"]);

    limited(&tree, install);
    let against = "verify lib/libvec.so --against fat.so";
    assert_short(60, against);
    // These read the archive alone, in parts.
    for arguments in ["verify lib", "verify lib/libvec.so"] {
        let (status, said) = limited_to(60, &tree, arguments);
        assert_eq!(status, Some(0), "{arguments}: {said}");
    }
}

/// One of a plain bundle is read where it is.
#[test]
fn only_code_objects_of_compressed_bundles_take_scratch_files() {
    let tree = Tree::new();
    let size = 5 << 20;
    for (storage, scratch) in [(Storage::Plain, 0), (Storage::Zstd(3), size as u64)] {
        let mut code = code_object("gfx1100", &[]).unwrap();
        code.resize(size, 0);
        let path = tree.path("lib/libvec.so");
        let library = FatLibrary::new().wrapper(storage, [("gfx1100", code)]);
        library.build(&path).unwrap();
        let found = SelectedCodeObjects::find(&path, None, None).unwrap();
        assert_eq!((found.size(), found.scratch_size()), (size as u64, scratch));
    }
}

#[test]
fn damage_in_a_large_code_object_is_found() {
    let tree = prefix();
    limited(&tree, "split --prefix . --module vec lib/libvec.so");
    let archive = tree.path("lib/.kpack/vec_lib_gfx1100.kpack");
    let mut bytes = fs::read(&archive).unwrap();
    // The middle of the file is within its only frame.
    let middle = bytes.len() / 3;
    bytes[middle] ^= 1;
    fs::write(&archive, bytes).unwrap();
    let report = verify(&[archive], &verify::Options::default(), &()).unwrap();
    assert!(!report.holds(), "{report:#?}");
}

/// The declared size is enough to refuse it; nothing is decompressed.
#[test]
fn a_code_object_that_no_reader_accepts_is_refused_by_its_declared_size() {
    let tree = Tree::new();
    let mut bundle = b"__CLANG_OFFLOAD_BUNDLE__".to_vec();
    let id = b"hipv4-amdgcn-amd-amdhsa--gfx1100";
    for word in [1, 4096, (2_u64 << 30) + 1, id.len() as u64] {
        bundle.extend(word.to_le_bytes());
    }
    bundle.extend(id);
    let mut encoder = Encoder::new(Scheme::ZstdPerKernel, 3).unwrap();
    let inside = encoder.encode(&bundle, blake3(&bundle)).unwrap().bytes;
    let mut compressed = b"CCOB\x03\x00\x01\x00".to_vec();
    for word in [32 + inside.len() as u64, 4096 + (2_u64 << 30) + 1, 0] {
        compressed.extend(word.to_le_bytes());
    }
    compressed.extend(inside);

    let library = FatLibrary::new()
        .wrapper(Storage::Plain, [("gfx1100", code_object("gfx1100", &[7; 5000]).unwrap())]);
    let path = tree.path("lib/libvec.so");
    library.build(&path).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let [old] = &library.bundles().unwrap()[..] else {
        panic!("one wrapper has one bundle");
    };
    let at = bytes::position(&bytes, &old[..24]);
    bytes[at..at + old.len()].fill(0);
    bytes[at..at + compressed.len()].copy_from_slice(&compressed);
    fs::write(&path, bytes).unwrap();

    let error =
        install(&InstallOptions::new(tree.root(), "vec", ["lib/libvec.so"]), &()).unwrap_err();
    let text = error.in_one_line();
    let expected = "the code object for gfx1100 has 2147483649 bytes; expected at most 2147483648";
    assert!(text.contains(expected), "{text}");
    assert_eq!(tree.files(), ["lib/libvec.so"]);
}
