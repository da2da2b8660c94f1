//! Given a compressed bundle with flipped bits that can still be decompressed, when it is split, verified, extracted or
//! trimmed, or joined with `--check`, then the hash in its header tells, and the message says what to do. So do the
//! headers of code objects that are files.

use std::fs;
use std::path::Path;

use crate::command::{kpack, words};
use crate::spirv::CLANG_19;
use crate::strip_debug::{SMALL, TOOLS};
use kpack_core::ids;
use kpack_tests::bytes;
use kpack_tests::fixture::{FatLibrary, Storage, TargetCode, bundle, code_with};
use kpack_tests::require;
use kpack_tests::tree::Tree;

const LIBRARY: &str = "lib/libvec.so";
const HASH: &str = "damaged: its content does not have the hash that its header says (expected ";
const ADVICE: &str = "; get the file again, for example by reinstalling its package";

/// Code in which nothing repeats, so that compressors store it as it is.
fn noise(seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| random.u8(..)).take(40_000).collect()
}

fn code(target: &str, seed: u64) -> TargetCode {
    code_with(target, &noise(seed))
}

/// Flips a bit in that code.
fn flip(path: &Path, seed: u64) {
    let mut content = fs::read(path).unwrap();
    let at = bytes::position(&content, &noise(seed)[20_000..20_064]);
    content[at] ^= 1;
    fs::write(path, content).unwrap();
}

/// What a command prints, which must end with this exit code.
#[track_caller]
fn says(tree: &Tree, line: &str, code: i32) -> String {
    let output = kpack(tree, &words(line));
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{line}: {said}");
    said.into_owned()
}

#[track_caller]
fn names_the_hash(said: &str) {
    assert!(said.contains(HASH) && said.contains(ADVICE), "{said}");
    assert!(said.contains("[damaged-bundle]"), "{said}");
}

#[test]
fn in_a_fat_binary_they_are_refused_before_anything_is_written() {
    for version in [1, 2, 3] {
        let library = FatLibrary::new()
            .wrapper(Storage::Plain, [code("gfx1100", 1)])
            .wrapper(Storage::Zstd(version), [code("gfx1100", 2), code("gfx942", 3)]);
        let tree = Tree::new();
        library.build(&tree.path(LIBRARY)).unwrap();
        says(&tree, "verify lib", 0);
        flip(&tree.path(LIBRARY), 3);
        let before = tree.snapshot();
        names_the_hash(&says(&tree, "verify lib", 1));
        for line in [
            "split --prefix . --module vec lib/libvec.so",
            "split --prefix . --module vec --arch gfx1100 lib/libvec.so",
            "extract lib/libvec.so --arch gfx942 --output-dir out",
        ] {
            names_the_hash(&says(&tree, line, 3));
            assert_eq!(tree.snapshot(), before, "{line}");
        }
    }
}

#[test]
fn a_trim_compares_the_hash_of_what_it_rewrites_and_writes_one_that_holds() {
    let tree = Tree::new();
    let stays = [code("gfx1100", 2), code("gfx942", 3)];
    let library = FatLibrary::new()
        .wrapper(Storage::Zstd(2), stays)
        .wrapper(Storage::ZstdLong(3), [code("gfx1100", 4), code("gfx942", 5)]);
    library.build(&tree.path(LIBRARY)).unwrap();
    fs::copy(tree.path(LIBRARY), tree.path("lib/libgood.so")).unwrap();
    flip(&tree.path(LIBRARY), 3);
    let before = fs::read(tree.path(LIBRARY)).unwrap();
    let said = says(&tree, "trim --arch gfx1100 lib", 0);
    names_the_hash(&said);
    assert!(said.contains("libvec.so: stays as it is: "), "{said}");
    assert_eq!(fs::read(tree.path(LIBRARY)).unwrap(), before);
    // The other one was trimmed.
    let said = says(&tree, "verify lib/libgood.so --arch gfx942", 1);
    assert!(said.contains("without code for gfx942"), "{said}");
    says(&tree, "verify lib/libgood.so", 0);
    names_the_hash(&says(&tree, "verify lib/libvec.so", 1));
}

/// A bundle of which nothing goes is read as well.
#[test]
fn a_trim_that_leaves_a_bundle_as_it_is_compares_its_hash_on_demand() {
    let tree = Tree::new();
    let bytes = bundle(Storage::Zstd(3), &[code("gfx1100", 2)]).unwrap();
    fs::write(tree.path("a.hipfb"), bytes).unwrap();
    flip(&tree.path("a.hipfb"), 2);
    says(&tree, "trim --arch gfx1100 a.hipfb", 0);
    names_the_hash(&says(&tree, "trim --arch gfx1100 --check a.hipfb", 0));
}

#[test]
fn in_a_bundle_that_a_split_keeps_they_are_refused_too() {
    let spirv =
        |seed| (CLANG_19.to_owned(), [&[3, 2, 35, 7, 0, 6, 1, 0][..], &noise(seed)].concat());
    let library = FatLibrary::new()
        .wrapper(Storage::Plain, [code("gfx1100", 1)])
        .wrapper(Storage::Zstd(3), [code("gfx1100", 2), spirv(3)]);
    let tree = Tree::new();
    library.build(&tree.path(LIBRARY)).unwrap();
    fs::copy(tree.path(LIBRARY), tree.path("fat")).unwrap();
    flip(&tree.path(LIBRARY), 3);
    let split = "split --prefix . --module vec lib/libvec.so";
    names_the_hash(&says(&tree, split, 3));
    // They flip later.
    fs::copy(tree.path("fat"), tree.path(LIBRARY)).unwrap();
    says(&tree, split, 0);
    says(&tree, "verify lib", 0);
    flip(&tree.path(LIBRARY), 3);
    names_the_hash(&says(&tree, "verify lib", 1));
    let join = "join --prefix . --arch gfx1100 --output joined.so";
    names_the_hash(&says(&tree, &format!("{join} --check lib/libvec.so"), 3));
    assert!(!tree.path("joined.so").exists());
    says(&tree, &format!("{join} lib/libvec.so"), 0);
    names_the_hash(&says(&tree, "verify joined.so", 1));
}

#[test]
fn files_of_device_code_are_verified_wherever_they_are() {
    for directory in ["share/kernels", "lib/rocblas/library"] {
        let tree = Tree::new();
        let write = |name: &str, bytes: &[u8]| {
            let path = tree.path(&format!("{directory}/{name}"));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, bytes).unwrap();
            path
        };
        let elf = code("gfx942", 1).1;
        write("Kernels.so-000-gfx942.hsaco", &elf);
        let compressed = bundle(Storage::Zstd(2), &[code("gfx942", 2)]).unwrap();
        write("Kernels.so-001-gfx942.hsaco", &compressed);
        says(&tree, "verify .", 0);
        let sound =
            says(&tree, &format!("verify --json {directory}/Kernels.so-000-gfx942.hsaco"), 0);
        assert!(sound.contains(ids::DEVICE_CODE_SOUND.as_str()), "{sound}");
        assert!(sound.contains("an undamaged code object"), "{sound}");

        // Its segment leaves the file.
        let mut damaged = elf.clone();
        damaged[64 + 32 + 6] = 1;
        let path = write("Kernels.so-000-gfx942.hsaco", &damaged);
        for line in ["verify .".to_owned(), format!("verify {}", path.display())] {
            let said = says(&tree, &line, 1);
            assert_eq!(said.matches("[damaged-code-object]").count(), 1, "{said}");
            assert!(said.contains("content of program header 0"), "{said}");
        }
        // It ends early.
        let path = write("Kernels.so-000-gfx942.hsaco", &elf[..elf.len() - 1]);
        assert!(says(&tree, "verify .", 1).contains("ends past the end"));
        fs::remove_file(path).unwrap();

        flip(&tree.path(&format!("{directory}/Kernels.so-001-gfx942.hsaco")), 2);
        let said = says(&tree, "verify .", 1);
        names_the_hash(&said);
        assert_eq!(said.matches("[damaged-bundle]").count(), 1, "{said}");
        // The code object in a bundle is for another GPU.
        let wrong = bundle(Storage::Zstd(2), &[("gfx942".to_owned(), code("gfx1100", 2).1)]);
        write("Kernels.so-001-gfx942.hsaco", &wrong.unwrap());
        let said = says(&tree, "verify .", 1);
        assert!(said.contains("its ELF header is for gfx1100"), "{said}");
    }
}

#[test]
fn the_structure_of_code_objects_is_verified() {
    if !require::tools(&TOOLS) {
        return;
    }
    let tree = Tree::new();
    let code = SMALL.compile(&tree, "gfx1100");
    let word = |at: usize| u64::from_le_bytes(code[at..at + 8].try_into().unwrap()) as usize;
    let half = |at: usize| usize::from(u16::from_le_bytes(code[at..at + 2].try_into().unwrap()));
    // ELF header: e_shoff, e_shnum, e_shstrndx. Section header: sh_name, sh_type, sh_offset, sh_link.
    let (sections, count, names) = (word(40), half(60), half(62));
    let header = |index: usize| sections + 64 * index;
    let of_kind = |kind: u8| {
        let index = (1..count).find(|index| code[header(*index) + 4] == kind).unwrap();
        (header(index), word(header(index) + 24))
    };
    let (symbols, symbols_at) = of_kind(11);
    let (_, notes_at) = of_kind(7);
    let says_of = |at: usize, to: u8| {
        let mut damaged = code.clone();
        assert_ne!(damaged[at], to);
        damaged[at] = to;
        fs::create_dir_all(tree.path("share")).unwrap();
        fs::write(tree.path("share/add.co"), &damaged).unwrap();
        let bundled = bundle(Storage::Plain, &[("gfx1100".to_owned(), damaged)]).unwrap();
        fs::write(tree.path("share/add.hipfb"), bundled).unwrap();
        let said = says(&tree, "verify share", 1);
        assert_eq!(said.matches("[damaged-").count(), 2, "{said}");
        said
    };
    for (at, to, expected) in [
        (62, 0xf0, "the names of its sections are in section"),
        (header(names) + 24 + 5, 1, "ends past the end"),
        (symbols + 40, 0xf0, "refers to section 240 of"),
        (symbols_at + 24 + 6, 0xf0, "is in a section that does not exist"),
        (notes_at + 6, 1, "ends past its segment"),
    ] {
        let said = says_of(at, to);
        assert!(said.contains(expected), "{expected}: {said}");
    }
    fs::write(tree.path("share/add.co"), &code).unwrap();
    fs::remove_file(tree.path("share/add.hipfb")).unwrap();
    says(&tree, "verify share", 0);
}

/// A test's data, for instance, may be damaged on purpose.
#[test]
fn other_files_that_begin_like_device_code_are_not_verified() {
    let tree = Tree::new();
    fs::create_dir(tree.path("share")).unwrap();
    fs::write(tree.path("share/data.bin"), &code("gfx942", 1).1[..500]).unwrap();
    fs::write(tree.path("share/good.co"), code("gfx942", 1).1).unwrap();
    says(&tree, "verify .", 0);
}
