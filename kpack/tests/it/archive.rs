//! Given an archive, when a code object is loaded, then its bytes are right; given a damaged one,
//! then there is an error with the right number, and nothing worse.

use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::sync::Barrier;
use std::thread;

use crate::common::{archive, code_of};
use kpack::internal::{Archive, ErrorCode};
use kpack_format::archive::Scheme;
use kpack_tests::bytes::{self, patched};
use kpack_tests::tree::Tree;

const TARGET: &str = "gfx1100";
const SCHEMES: [Scheme; 2] = [Scheme::None, Scheme::ZstdPerKernel];

fn file(tree: &Tree, bytes: &[u8]) -> PathBuf {
    let path = tree.path("a.kpack");
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn code_objects_come_back_as_they_were() {
    let tree = Tree::new();
    let large = vec![3; 10 << 20];
    let kernels: [(&str, &[u8]); 3] = [("a#0", b"one"), ("a#1", &large), ("a#2", b"")];
    for scheme in SCHEMES {
        let path = file(&tree, &archive(scheme, TARGET, &kernels));
        let archive = Archive::open(&path).unwrap();
        for (name, expected) in kernels {
            assert_eq!(archive.load(name, TARGET).unwrap(), expected);
        }
        assert_eq!(archive.borrow("a#0", TARGET).unwrap(), None, "not mapped");
        let error = archive.load("a#3", TARGET);
        assert_eq!(code_of(error), ErrorCode::KPACK_ERROR_KERNEL_NOT_FOUND);
    }
}

#[test]
#[allow(unsafe_code)]
fn what_is_not_compressed_can_be_borrowed() {
    let tree = Tree::new();
    let path = file(&tree, &archive(Scheme::None, TARGET, &[("a#0", b"one")]));
    // SAFETY: nothing changes the file.
    let mapped = unsafe { Archive::open_mapped(&path) }.unwrap();
    assert_eq!(mapped.borrow("a#0", TARGET).unwrap(), Some(&b"one"[..]));
    assert_eq!(mapped.load("a#0", TARGET).unwrap(), b"one");
    mapped.borrow("a#1", TARGET).unwrap_err();
    let path = file(&tree, &archive(Scheme::ZstdPerKernel, TARGET, &[("a#0", b"one")]));
    // SAFETY: nothing changes the file.
    let mapped = unsafe { Archive::open_mapped(&path) }.unwrap();
    assert_eq!(mapped.borrow("a#0", TARGET).unwrap(), None);
    assert_eq!(mapped.load("a#0", TARGET).unwrap(), b"one");
}

#[test]
fn frames_are_found_without_frame_offsets() {
    let tree = Tree::new();
    let kernels: [(&str, &[u8]); 3] = [("a#0", b"one"), ("a#1", b"two"), ("a#2", b"three")];
    let bytes = archive(Scheme::ZstdPerKernel, TARGET, &kernels);
    // Under another name they are a key that is not known.
    let bytes = patched(&bytes, b"frame_offsets", b"frame_0ffsets");
    let archive = Archive::open(&file(&tree, &bytes)).unwrap();
    for (name, expected) in kernels.iter().rev() {
        assert_eq!(archive.load(name, TARGET).unwrap(), *expected);
    }
}

#[test]
fn files_that_are_no_archives() {
    let tree = Tree::new();
    let open = |bytes: &[u8]| code_of(Archive::open(&file(&tree, bytes)));
    let whole = archive(Scheme::ZstdPerKernel, TARGET, &[("a#0", b"one")]);
    assert_eq!(open(b""), ErrorCode::KPACK_ERROR_IO_ERROR);
    assert_eq!(open(b"KPAK"), ErrorCode::KPACK_ERROR_INVALID_FORMAT);
    assert_eq!(open(&[7; 100]), ErrorCode::KPACK_ERROR_INVALID_FORMAT);
    let mut version = whole.clone();
    version[4] = 2;
    assert_eq!(open(&version), ErrorCode::KPACK_ERROR_UNSUPPORTED_VERSION);
    let cut = &whole[..whole.len() - 1];
    assert_eq!(open(cut), ErrorCode::KPACK_ERROR_MSGPACK_PARSE_FAILED);
    let wrong_type = patched(&whole, b"\xa7ordinal\x00", b"\xa7ordinal\xc0");
    assert_eq!(open(&wrong_type), ErrorCode::KPACK_ERROR_MSGPACK_PARSE_FAILED);
    let beyond = patched(&whole, b"\xa7ordinal\x00", b"\xa7ordinal\x01");
    assert_eq!(open(&beyond), ErrorCode::KPACK_ERROR_INVALID_FORMAT);
    let scheme = patched(&whole, b"zstd-per-kernel", b"zstd-per-kernfl");
    assert_eq!(open(&scheme), ErrorCode::KPACK_ERROR_INVALID_FORMAT);

    let missing = Archive::open(&tree.path("missing.kpack"));
    assert_eq!(code_of(missing), ErrorCode::KPACK_ERROR_FILE_NOT_FOUND);
    let below_a_file = Archive::open(&tree.path("a.kpack/b.kpack"));
    assert_eq!(code_of(below_a_file), ErrorCode::KPACK_ERROR_FILE_NOT_FOUND);
    assert_eq!(code_of(Archive::open(tree.root())), ErrorCode::KPACK_ERROR_IO_ERROR);
}

/// An archive with a header of 16 bytes, which is all that other writers may have, and keys that readers
/// cannot do without.
fn shortest(data: &[u8], toc: &[u8]) -> Vec<u8> {
    let toc_offset = 16 + data.len() as u64;
    let header = [&b"KPAK\x01\0\0\0"[..], &toc_offset.to_le_bytes()].concat();
    [&header[..], data, toc].concat()
}

/// The contents of an archive that has `one` at offset 16.
const SHORTEST: &[u8] = b"\x82\xa5blobs\x91\x82\xa6offset\x10\xa4size\x03\
    \xa3toc\x81\xa3a#0\x81\xa7gfx1100\x82\xa4type\xa5hsaco\xa7ordinal\x00";

#[test]
fn an_archive_whose_data_follows_sixteen_bytes() {
    let tree = Tree::new();
    let bytes = shortest(b"one", SHORTEST);
    let archive = Archive::open(&file(&tree, &bytes)).unwrap();
    assert_eq!(archive.load("a#0", TARGET).unwrap(), b"one");
    let empty = shortest(b"", b"\x82\xa5blobs\x90\xa3toc\x80");
    assert!(empty.len() < 64);
    Archive::open(&file(&tree, &empty)).unwrap();
    let inside = patched(&bytes, b"offset\x10", b"offset\x0f");
    let error = Archive::open(&file(&tree, &inside));
    assert_eq!(code_of(error), ErrorCode::KPACK_ERROR_INVALID_FORMAT);
}

#[test]
fn entries_of_any_type_are_served() {
    let tree = Tree::new();
    for kind in [&b"\xa3ptx"[..], b"\xa2co", b"\xa0"] {
        let at = bytes::position(SHORTEST, b"\xa5hsaco");
        let toc = [&SHORTEST[..at], kind, &SHORTEST[at + 6..]].concat();
        let archive = Archive::open(&file(&tree, &shortest(b"one", &toc))).unwrap();
        assert_eq!(archive.load("a#0", TARGET).unwrap(), b"one");
    }
}

#[test]
fn an_entry_without_original_size_has_that_of_what_is_stored() {
    let tree = Tree::new();
    let kernels: [(&str, &[u8]); 2] = [("a#0", b"one"), ("a#1", &[7; 1000])];
    for (scheme, offsets) in
        [(Scheme::None, true), (Scheme::ZstdPerKernel, true), (Scheme::ZstdPerKernel, false)]
    {
        // Under other names they are keys that are not known.
        let whole = archive(scheme, TARGET, &kernels);
        let mut bytes = whole.clone();
        for at in 0..whole.len() {
            let key: &[u8] = if offsets { b"original_size" } else { b"frame_offsets" };
            if whole[at..].starts_with(b"original_size") || whole[at..].starts_with(key) {
                bytes[at] = b'0';
            }
        }
        let archive = Archive::open(&file(&tree, &bytes)).unwrap();
        for (name, expected) in kernels {
            assert_eq!(archive.load(name, TARGET).unwrap(), expected);
        }
    }
}

#[test]
fn the_version_is_looked_at_before_anything_that_follows_it() {
    let tree = Tree::new();
    for more in [8, 12, 40] {
        let bytes = [&b"KPAK\x02\0\0\0"[..], &vec![0; more]].concat();
        let error = Archive::open(&file(&tree, &bytes));
        assert_eq!(code_of(error), ErrorCode::KPACK_ERROR_UNSUPPORTED_VERSION);
    }
}

#[test]
fn numbers_of_the_wrong_type_are_told_from_damage_whatever_the_files_size() {
    let tree = Tree::new();
    let frames = b"\x84\xb2compression_scheme\xafzstd-per-kernel\
        \xabzstd_offset\x10\xa9zstd_size\x04\xa3toc\x80";
    let sized = patched(SHORTEST, b"\x82\xa4type", b"\x83\xadoriginal_size\x03\xa4type");
    let (blobs, frames) = (shortest(b"one", &sized), shortest(&[0; 4], frames));
    for (whole, key, number) in [
        (&blobs, &b"offset"[..], 0x10),
        (&blobs, b"size", 0x03),
        (&blobs, b"ordinal", 0x00),
        (&blobs, b"original_size", 0x03),
        (&frames, b"zstd_offset", 0x10),
        (&frames, b"zstd_size", 0x04),
    ] {
        Archive::open(&file(&tree, whole)).unwrap();
        let key = [&[0xa0 | key.len() as u8], key].concat();
        // A text, nothing, and a negative number.
        for wrong in [&b"\xa1x"[..], b"\xc0", b"\xff"] {
            let bytes = patched(whole, &[&key[..], &[number]].concat(), &[&key, wrong].concat());
            let error = Archive::open(&file(&tree, &bytes));
            assert_eq!(code_of(error), ErrorCode::KPACK_ERROR_MSGPACK_PARSE_FAILED);
        }
    }
}

#[test]
fn a_pipe_is_not_waited_for() {
    let tree = Tree::new();
    let path = tree.path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    assert_eq!(code_of(Archive::open(&path)), ErrorCode::KPACK_ERROR_IO_ERROR);
}

#[test]
fn code_objects_that_are_not_what_the_toc_says() {
    let tree = Tree::new();
    let whole = archive(Scheme::ZstdPerKernel, TARGET, &[("a#0", &[7; 1000])]);
    let load = |bytes: &[u8]| {
        let archive = Archive::open(&file(&tree, bytes)).unwrap();
        code_of(archive.load("a#0", TARGET))
    };
    let size = b"\xadoriginal_size\xcd\x03\xe8";
    let more = patched(&whole, size, b"\xadoriginal_size\xcd\x03\xe9");
    assert_eq!(load(&more), ErrorCode::KPACK_ERROR_DECOMPRESSION_FAILED);
    let huge = patched(&whole, size, b"\xadoriginal_size\xce\x7f\xff\xff\xff");
    assert_eq!(load(&huge), ErrorCode::KPACK_ERROR_DECOMPRESSION_FAILED);
    let too_huge = patched(&whole, size, b"\xadoriginal_size\xce\xff\xff\xff\xff");
    let error = Archive::open(&file(&tree, &too_huge));
    assert_eq!(code_of(error), ErrorCode::KPACK_ERROR_INVALID_FORMAT);
    let mut damaged = whole.clone();
    damaged[80] ^= 1;
    assert_eq!(load(&damaged), ErrorCode::KPACK_ERROR_DECOMPRESSION_FAILED);
    let mut frame_size = whole;
    frame_size[71] = 0xff;
    assert_eq!(load(&frame_size), ErrorCode::KPACK_ERROR_INVALID_FORMAT);
}

#[test]
fn a_file_that_shrinks_while_it_is_open() {
    let tree = Tree::new();
    for scheme in SCHEMES {
        let path = file(&tree, &archive(scheme, TARGET, &[("a#0", &[7; 100_000])]));
        let archive = Archive::open(&path).unwrap();
        let open = OpenOptions::new().write(true).open(&path).unwrap();
        open.set_len(70).unwrap();
        let error = archive.load("a#0", TARGET);
        assert_eq!(code_of(error), ErrorCode::KPACK_ERROR_IO_ERROR);
    }
}

#[test]
fn threads_read_from_one_archive_at_once() {
    let tree = Tree::new();
    let kernels: Vec<(String, Vec<u8>)> =
        (0..64usize).map(|n| (format!("a#{n}"), vec![n as u8; 1000 + 5000 * n])).collect();
    let borrowed: Vec<(&str, &[u8])> = kernels.iter().map(|(n, b)| (&**n, &**b)).collect();
    for (scheme, offsets) in
        [(Scheme::None, true), (Scheme::ZstdPerKernel, true), (Scheme::ZstdPerKernel, false)]
    {
        let mut bytes = archive(scheme, TARGET, &borrowed);
        if !offsets {
            bytes = patched(&bytes, b"frame_offsets", b"frame_0ffsets");
        }
        let archive = Archive::open(&file(&tree, &bytes)).unwrap();
        let start = Barrier::new(8);
        thread::scope(|scope| {
            for first in 0..8 {
                let (archive, kernels, start) = (&archive, &kernels, &start);
                scope.spawn(move || {
                    start.wait();
                    for (name, expected) in kernels.iter().skip(first).chain(kernels) {
                        assert_eq!(archive.load(name, TARGET).unwrap(), *expected);
                    }
                });
            }
        });
    }
}

#[test]
fn a_library_of_very_many_kernels_with_long_names_loads() {
    let tree = Tree::new();
    let end = "_Cijk_Alik_Bljk_HHS_BH_MT128x128x32_MI32x32x8x1_SN".repeat(3);
    let names = (0..100_000).map(|n| format!("lib/{n}{end}#0"));
    let names: Vec<String> = names.collect();
    let kernels: Vec<(&str, &[u8])> = names.iter().map(|n| (&**n, &b"code"[..])).collect();
    let bytes = archive(Scheme::None, TARGET, &kernels);
    assert!(bytes.len() > 16 << 20, "{}", bytes.len());
    let archive = Archive::open(&file(&tree, &bytes)).unwrap();
    assert_eq!(archive.load(&names[99_999], TARGET).unwrap(), b"code");
}

#[test]
#[allow(unsafe_code)]
fn no_damage_of_an_uncompressed_archive_alters_what_is_loaded() {
    // Given an archive of uncompressed code objects,
    let tree = Tree::new();
    let code: Vec<Vec<u8>> = (0..8u8).map(|n| vec![n; 50 + 90 * usize::from(n)]).collect();
    let names: Vec<String> = (0..8).map(|n| format!("a#{n}")).collect();
    let kernels: Vec<(&str, &[u8])> =
        names.iter().map(|n| &**n).zip(code.iter().map(|c| &**c)).collect();
    let whole = archive(Scheme::None, TARGET, &kernels);
    let mut random = fastrand::Rng::with_seed(1);
    let mut refused = 0;
    for _ in 0..2000 {
        // when some bytes in a row are damaged,
        let mut damaged = whole.clone();
        let start = random.usize(..whole.len());
        let end = whole.len().min(start + 1 + random.usize(..8));
        for byte in &mut damaged[start..end] {
            *byte ^= 1 + random.usize(..255) as u8;
        }
        let path = file(&tree, &damaged);
        // SAFETY: nothing changes the file while it is open.
        let Ok(opened) = (unsafe { Archive::open_mapped(&path) }) else {
            continue;
        };
        for name in &names {
            // then what is loaded or borrowed is a code object as it was, or nothing.
            let loaded = opened.load(name, TARGET).ok();
            let borrowed = opened.borrow(name, TARGET).ok().flatten();
            assert_eq!(loaded.as_deref(), borrowed, "{start}..{end}: {name}");
            let is_whole = |bytes: &Vec<u8>| code.contains(bytes);
            assert!(loaded.iter().all(is_whole), "{start}..{end}: {name}");
            refused += usize::from(loaded.is_none());
        }
    }
    assert!(refused > 100, "{refused}");
}
