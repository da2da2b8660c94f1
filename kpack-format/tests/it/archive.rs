//! Archives: what is written is read again, the same entries give the same bytes, and no bytes
//! make the reader panic, allocate without measure, or return wrong data.

use kpack_tests::bytes;
use std::io::{Cursor, Read, Seek, Write};

use kpack_format::TargetId;
use kpack_format::archive::{
    Archive, ArchiveError, ArchiveWriter, Decoder, Encoder, Index, Scheme, Written, check_frame,
};
use kpack_format::digest::blake3;
use kpack_format::unstable::raw_map;
use proptest::prelude::*;

const SCHEMES: [Scheme; 2] = [Scheme::None, Scheme::ZstdPerKernel];

type Spool = Cursor<Vec<u8>>;

fn target() -> TargetId {
    "gfx90a:xnack+".parse().unwrap()
}

fn writer(scheme: Scheme) -> ArchiveWriter<Spool> {
    ArchiveWriter::new(Cursor::new(Vec::new()), "vec_lib", &target(), scheme)
}

fn add<S: Read + Write + Seek>(
    writer: &mut ArchiveWriter<S>,
    scheme: Scheme,
    kernel: &str,
    code: &[u8],
) {
    let encoded = Encoder::new(scheme, 3).unwrap().encode(code, blake3(code)).unwrap();
    writer.add(kernel, &encoded).unwrap();
}

fn finish(writer: ArchiveWriter<Spool>) -> (Vec<u8>, Written) {
    let mut bytes = Vec::new();
    let written = writer.finish(&mut bytes).unwrap();
    (bytes, written)
}

fn archive(scheme: Scheme, kernels: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = writer(scheme);
    for (kernel, code) in kernels {
        add(&mut writer, scheme, kernel, code);
    }
    finish(writer).0
}

fn open(bytes: &[u8]) -> Result<Archive<Cursor<&[u8]>>, ArchiveError> {
    Archive::open(Cursor::new(bytes))
}

const KERNELS: [(&str, &[u8]); 4] = [
    ("lib/libvec.so#0", b"add add add add add"),
    ("lib/libvec.so#2", b"mul"),
    ("lib/libvec.so#10", b"add add add add add"),
    ("bin/vec#0", b""),
];

#[test]
fn what_is_written_is_read_again() {
    for scheme in SCHEMES {
        let bytes = archive(scheme, &KERNELS);
        let mut archive = open(&bytes).unwrap();
        for (kernel, code) in KERNELS {
            assert_eq!(archive.read(kernel, "gfx90a:xnack+").unwrap(), code, "{kernel}");
        }
        assert_eq!(archive.toc().group_name, "vec_lib");
        assert_eq!(archive.toc().gfx_arch_family, "gfx90a:xnack+");
        assert_eq!(archive.toc().gfx_arches, ["gfx90a:xnack+"]);
    }
}

#[test]
fn what_finish_tells_is_true() {
    for scheme in SCHEMES {
        let mut writer = writer(scheme);
        add(&mut writer, scheme, "a#0", b"code");
        let (bytes, written) = finish(writer);
        assert_eq!(written.size, bytes.len() as u64);
        assert_eq!(written.kernel_count, 1);
        assert_eq!(written.checksum, blake3(&bytes));
    }
}

#[test]
fn an_identical_code_object_is_stored_once() {
    for scheme in SCHEMES {
        let bytes = archive(scheme, &KERNELS);
        let archive = open(&bytes).unwrap();
        let ordinal = |kernel: &str| archive.toc().kernels[kernel]["gfx90a:xnack+"].ordinal;
        assert_eq!(ordinal("lib/libvec.so#0"), ordinal("lib/libvec.so#10"));
        assert_eq!(archive.toc().checksums.as_ref().unwrap().len(), 3);
    }
}

#[test]
fn ordinals_follow_the_index_as_a_number() {
    let bytes = archive(Scheme::None, &[("a#10", b"ten"), ("a#9", b"nine"), ("a#0", b"zero")]);
    let archive = open(&bytes).unwrap();
    let ordinal = |kernel: &str| archive.toc().kernels[kernel]["gfx90a:xnack+"].ordinal;
    assert_eq!([ordinal("a#0"), ordinal("a#9"), ordinal("a#10")], [0, 1, 2]);
}

#[test]
fn an_id_tells_the_device_code_of_a_binary() {
    // Given an archive with the code objects 0, 2 and 10 of a binary, and others.
    let kernels = [KERNELS[2], KERNELS[0], KERNELS[3], KERNELS[1]];
    let target = "gfx90a:xnack+";
    let binary = "lib/libvec.so";
    let expected: Vec<u8> = [
        &0u32.to_le_bytes()[..],
        &blake3(KERNELS[0].1),
        &2u32.to_le_bytes(),
        &blake3(KERNELS[1].1),
        &10u32.to_le_bytes(),
        &blake3(KERNELS[2].1),
    ]
    .concat();
    let expected: [u8; 8] = blake3(&expected)[..8].try_into().unwrap();
    for scheme in SCHEMES {
        // Then the writer and the table of contents tell it, whatever came first.
        let mut writer = writer(scheme);
        for (kernel, code) in kernels {
            add(&mut writer, scheme, kernel, code);
        }
        assert_eq!(writer.code_id(binary), Some(expected));
        assert_eq!(writer.code_id("lib/libvec"), None);
        let bytes = finish(writer).0;
        let archive = open(&bytes).unwrap();
        let mut toc = archive.toc().clone();
        assert_eq!(toc.code_id(binary, target), Some(expected));
        assert_eq!(toc.code_id(binary, "gfx90a"), None);
        assert_eq!(toc.code_id("lib/libvec", target), None);
        // Kernels of other binaries do not count.
        for name in ["lib/libvec.so#00", "lib/libvec.so#+1", "lib/libvec.so#1#0"] {
            let entry = toc.kernels["bin/vec#0"].clone();
            toc.kernels.insert(name.to_owned(), entry);
        }
        assert_eq!(toc.code_id(binary, target), Some(expected));
        // Another code object gives another ID, and without checksums there is none.
        let mut other = toc.clone();
        other.checksums.as_mut().unwrap()[1] = [0; 32];
        assert_ne!(other.code_id(binary, target), Some(expected));
        toc.checksums = None;
        assert_eq!(toc.code_id(binary, target), None);
    }
}

#[test]
fn a_kernel_cannot_have_two_code_objects() {
    let mut writer = writer(Scheme::None);
    add(&mut writer, Scheme::None, "a#0", b"one");
    add(&mut writer, Scheme::None, "a#0", b"one");
    let other = Encoder::new(Scheme::None, 3).unwrap().encode(b"two", blake3(b"two")).unwrap();
    let error = writer.add("a#0", &other).unwrap_err();
    assert!(matches!(error, ArchiveError::Conflict { .. }), "{error}");
    let bytes = finish(writer).0;
    let mut archive = open(&bytes).unwrap();
    assert_eq!(archive.read("a#0", "gfx90a:xnack+").unwrap(), b"one");
}

#[test]
fn merging_gives_the_bytes_of_one_run() {
    for scheme in SCHEMES {
        let at_once = archive(scheme, &KERNELS);
        let first = archive(scheme, &[KERNELS[2], KERNELS[3], ("lib/libold.so#0", b"old")]);
        let mut merged = writer(scheme);
        add(&mut merged, scheme, KERNELS[1].0, KERNELS[1].1);
        add(&mut merged, scheme, KERNELS[0].0, KERNELS[0].1);
        merged
            .merge(&mut open(&first).unwrap(), |kernel| !kernel.starts_with("lib/libold"))
            .unwrap();
        assert_eq!(finish(merged).0, at_once);
    }
}

#[test]
fn merging_into_another_scheme_gives_the_bytes_of_one_run() {
    for (from, to) in [(SCHEMES[0], SCHEMES[1]), (SCHEMES[1], SCHEMES[0])] {
        let mut merged = writer(to);
        merged.merge(&mut open(&archive(from, &KERNELS)).unwrap(), |_| true).unwrap();
        assert_eq!(finish(merged).0, archive(to, &KERNELS));
    }
}

#[test]
fn merging_an_archive_without_checksums_gives_the_bytes_of_one_run() {
    for scheme in ["none", "zstd-per-kernel"] {
        let bytes = foreign(scheme);
        let new = |scheme| {
            let spool = Cursor::new(Vec::new());
            ArchiveWriter::new(spool, "vec_lib", &"gfx1100".parse().unwrap(), scheme).level(1)
        };
        let scheme = open(&bytes).unwrap().toc().scheme;
        let mut merged = new(scheme);
        merged.merge(&mut open(&bytes).unwrap(), |_| true).unwrap();
        let mut fresh = new(scheme);
        for (kernel, code) in [("lib/a.so#0", &b"one"[..]), ("lib/a.so#1", b"two!")] {
            let encoded = Encoder::new(scheme, 1).unwrap().encode(code, blake3(code)).unwrap();
            fresh.add(kernel, &encoded).unwrap();
        }
        assert_eq!(finish(merged).0, finish(fresh).0);
    }
}

#[test]
fn a_wrong_checksum_is_not_believed_where_content_would_be_shared() {
    let scheme = Scheme::ZstdPerKernel;
    let old = archive(scheme, &[("a#0", b"one")]);
    let lying = patched(&old, &blake3(b"one"), &blake3(b"two"));
    let mut merged = writer(scheme);
    add(&mut merged, scheme, "b#0", b"two");
    let error = merged.merge(&mut open(&lying).unwrap(), |_| true).unwrap_err().to_string();
    assert!(error.contains("`a#0`") && error.contains("is damaged"), "{error}");
}

#[test]
fn entries_of_other_types_are_read_and_keep_their_type() {
    let ours = archive(Scheme::None, &KERNELS);
    for kind in ["ptx", "co", ""] {
        let other = [&[0xa0 | kind.len() as u8], kind.as_bytes()].concat();
        let at = bytes::position(&ours, b"\xa5hsaco");
        let bytes = [&ours[..at], &other, &ours[at + 6..]].concat();
        let mut old = open(&bytes).unwrap();
        let kinds = old.toc().entries().map(|entry| entry.kind.as_deref());
        let kinds: Vec<&str> = kinds.flatten().collect();
        assert_eq!(kinds, [kind]);
        assert_eq!(old.read(KERNELS[0].0, "gfx90a:xnack+").unwrap(), KERNELS[0].1);
        let mut merged = writer(Scheme::None);
        merged.merge(&mut old, |_| true).unwrap();
        assert_eq!(finish(merged).0, bytes);
    }
}

#[test]
fn an_archive_with_another_target_is_not_merged() {
    let bytes = foreign("none");
    let error = writer(Scheme::None).merge(&mut open(&bytes).unwrap(), |_| true).unwrap_err();
    assert!(error.to_string().contains("for gfx1100; expected only gfx90a:xnack+"), "{error}");
}

#[test]
fn what_follows_the_toc_is_refused() {
    let bytes = [archive(Scheme::None, &KERNELS), vec![0xc1; 3]].concat();
    assert!(open(&bytes).unwrap_err().to_string().contains("the file has 3 more"));
}

/// An archive as another writer makes it, byte by byte from the description of the format: without
/// `frame_offsets` and `blake3`, and with keys that are not known here.
fn foreign(scheme: &str) -> Vec<u8> {
    let frame = |bytes: &[u8]| {
        let mut compressor = zstd::bulk::Compressor::new(1).unwrap();
        compressor.include_checksum(true).unwrap();
        compressor.compress(bytes).unwrap()
    };
    let mut data = Vec::new();
    let mut toc = Vec::new();
    let text = |text: &str| [&[0xd9, text.len() as u8], text.as_bytes()].concat();
    let uint = |number: u64| [&[0xcf][..], &number.to_be_bytes()].concat();
    toc.push(if scheme == "none" { 0x87 } else { 0x88 });
    for (key, value) in [
        ("format_version", uint(1)),
        ("unknown", [&[0x92, 0xc0, 0x81][..], &text("x"), &[0x90]].concat()),
        ("group_name", text("vec_lib")),
        ("gfx_arch_family", text("gfx1100")),
        ("gfx_arches", [&[0x91][..], &text("gfx1100")].concat()),
        ("compression_scheme", text(scheme)),
    ] {
        toc.extend([text(key), value].concat());
    }
    // That was six; the map also has these.
    toc[0] = if scheme == "none" { 0x88 } else { 0x89 };
    if scheme == "none" {
        data.extend(b"onetwo!");
        toc.extend([text("blobs"), vec![0x92]].concat());
        for (offset, size) in [(64, 3), (67, 4)] {
            toc.extend(
                [vec![0x82], text("offset"), uint(offset), text("size"), uint(size)].concat(),
            );
        }
    } else {
        data.extend(2u32.to_le_bytes());
        for code in [&b"one"[..], b"two!"] {
            data.extend((frame(code).len() as u32).to_le_bytes());
            data.extend(frame(code));
        }
        toc.extend(
            [text("zstd_offset"), uint(64), text("zstd_size"), uint(data.len() as u64)].concat(),
        );
    }
    toc.extend([text("toc"), vec![0x82]].concat());
    for (kernel, ordinal, size) in [("lib/a.so#0", 0, 3), ("lib/a.so#1", 1, 4)] {
        toc.extend([text(kernel), vec![0x81], text("gfx1100"), vec![0x84]].concat());
        toc.extend([text("type"), text("hsaco"), text("ordinal"), uint(ordinal)].concat());
        toc.extend([text("original_size"), uint(size), text("metadata"), vec![0x80]].concat());
    }
    let mut bytes = b"KPAK\x01\0\0\0".to_vec();
    bytes.extend((64 + data.len() as u64).to_le_bytes());
    bytes.resize(64, 0);
    [bytes, data, toc].concat()
}

#[test]
fn archives_of_other_writers_are_read() {
    for scheme in ["none", "zstd-per-kernel"] {
        let bytes = foreign(scheme);
        let mut archive = open(&bytes).unwrap();
        assert_eq!(archive.toc().checksums, None);
        assert_eq!(archive.read("lib/a.so#0", "gfx1100").unwrap(), b"one");
        assert_eq!(archive.read("lib/a.so#1", "gfx1100").unwrap(), b"two!");
        let error = archive.read("lib/a.so#2", "gfx1100").unwrap_err();
        assert_eq!(error.to_string(), "the archive has no kernel `lib/a.so#2` for gfx1100");
    }
}

#[test]
fn the_header_is_as_others_read_it() {
    let bytes = archive(Scheme::ZstdPerKernel, &[("a#0", b"code")]);
    assert_eq!(&bytes[..8], b"KPAK\x01\0\0\0");
    let toc = u64::from_le_bytes(bytes[8..16].try_into().unwrap()) as usize;
    assert_eq!(bytes[16..64], [0; 48]);
    // One frame, its size, and the frame, which has the Zstandard magic and ends at the TOC.
    assert_eq!(bytes[64..68], 1u32.to_le_bytes());
    let size = u32::from_le_bytes(bytes[68..72].try_into().unwrap()) as usize;
    assert_eq!(bytes[72..76], 0xfd2f_b528u32.to_le_bytes());
    assert_eq!(72 + size, toc);
    // A map, whose first key is `format_version`.
    assert_eq!(bytes[toc] & 0xf0, 0x80);
    assert_eq!(&bytes[toc + 1..toc + 16], b"\xaeformat_version");
}

/// Replaces `old` by `new`, of the same length.
fn patched(bytes: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let at = bytes.windows(old.len()).rposition(|window| window == old).expect("is there");
    let mut bytes = bytes.to_vec();
    bytes[at..at + new.len()].copy_from_slice(new);
    bytes
}

#[test]
fn sizes_that_lie_are_refused() {
    let uint = |number: u64| [&[0xcf][..], &number.to_be_bytes()].concat();
    let zstd = foreign("zstd-per-kernel");
    for size in [2, 5, 1 << 31] {
        let key = b"\xd9\x0doriginal_size".to_vec();
        let bytes = patched(&zstd, &[key.clone(), uint(4)].concat(), &[key, uint(size)].concat());
        let error = open(&bytes).unwrap().read("lib/a.so#1", "gfx1100").unwrap_err().to_string();
        assert!(
            error.contains("lib/a.so#1") && error.contains(&format!("the TOC says {size}")),
            "{error}"
        );
    }
    let key = b"\xd9\x0doriginal_size".to_vec();
    let bytes = patched(&zstd, &[key.clone(), uint(4)].concat(), &[key, uint(u64::MAX)].concat());
    let error = open(&bytes).unwrap_err().to_string();
    assert!(error.contains("expected at most 2147483648"), "{error}");
    let none = foreign("none");
    let bytes = patched(&none, &uint(67), &uint(u64::MAX - 1));
    assert!(open(&bytes).unwrap_err().to_string().contains("code object 1"), "blob offset");
    let mut bytes = zstd.clone();
    bytes[64..68].copy_from_slice(&u32::MAX.to_le_bytes());
    let error = open(&bytes).unwrap_err().to_string();
    assert!(error.contains("4294967295 zstd frames"), "{error}");
    let mut bytes = zstd;
    bytes[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    let error = open(&bytes).unwrap_err().to_string();
    assert!(error.contains("the TOC's offset is 0xffffffffffffffff"), "{error}");
}

#[test]
fn code_objects_that_overlap_are_refused() {
    let uint = |number: u64| [&[0xcf][..], &number.to_be_bytes()].concat();
    let number = |at: u64| [&[0xd9, 6][..], b"offset", &uint(at)].concat();
    // Given blobs at 64..67 and 67..71, the second of which moves into the first.
    let none = foreign("none");
    let overlapping = patched(&none, &number(67), &number(66));
    let error = open(&overlapping).unwrap_err().to_string();
    assert!(error.contains("code object 1 overlaps code object 0"), "{error}");
    // Then neither another order is an overlap, nor an empty blob within another one.
    let swapped = patched(&none, &number(64), &number(60));
    let swapped = patched(&swapped, &number(67), &number(63));
    let swapped = patched(&swapped, &number(60), &number(67));
    open(&swapped).unwrap();
    let size =
        |key: &str, size: u64| [&[0xd9, key.len() as u8], key.as_bytes(), &uint(size)].concat();
    let empty = patched(&none, &number(67), &number(65));
    let empty = patched(&empty, &size("size", 4), &size("size", 0));
    let key = "original_size";
    let empty = patched(&empty, &size(key, 4), &size(key, 0));
    assert_eq!(open(&empty).unwrap().read("lib/a.so#1", "gfx1100").unwrap(), b"");
}

#[test]
fn entries_that_give_one_code_object_several_sizes_are_refused() {
    let uint = |number: u64| [&[0xcf][..], &number.to_be_bytes()].concat();
    let ordinal = |number: u64| [&[0xd9, 7][..], b"ordinal", &uint(number)].concat();
    let bytes = patched(&foreign("zstd-per-kernel"), &ordinal(1), &ordinal(0));
    let error = open(&bytes).unwrap_err().to_string();
    assert!(error.contains("has 4 bytes, but 3 in another entry with ordinal 0"), "{error}");
}

#[test]
fn frames_that_overlap_are_refused() {
    let kernels: [(&str, &[u8]); 2] = [("a#0", b"zero"), ("a#1", b"one")];
    let bytes = archive(Scheme::ZstdPerKernel, &kernels);
    let mut known = open(&bytes).unwrap();
    let ((first, size), (second, _)) = (known.stored(0).unwrap(), known.stored(1).unwrap());
    let offsets = |numbers: [u64; 2]| {
        let numbers = numbers.map(|number| u8::try_from(number).unwrap());
        assert!(numbers.iter().all(|number| *number < 0x80));
        [&b"frame_offsets\x92"[..], &numbers].concat()
    };
    let there = offsets([first, second]);
    for wrong in [[first, first], [second, first], [first, first + 3]] {
        // When `frame_offsets` does not ascend, then the archive is refused as it is opened.
        let bytes = patched(&bytes, &there, &offsets(wrong));
        let error = Index::read(&mut Cursor::new(&bytes)).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("`frame_offsets`"), "{wrong:?}: {error}");
    }
    // When a frame reaches into the size of the next one, then it is refused as it is read, and
    // the other one is not.
    let mut bytes = bytes;
    let at = first as usize - 4;
    bytes[at..at + 4].copy_from_slice(&(size as u32 + 1).to_le_bytes());
    let mut source = Cursor::new(&bytes);
    let index = Index::read(&mut source).unwrap();
    let error = index.place(&mut source, 0).unwrap_err().to_string();
    assert!(error.contains("zstd frame 0"), "{error}");
    assert!(index.place(&mut source, 1).unwrap().is_some());
    assert!(open(&bytes).is_err());
}

#[test]
fn a_frame_that_cannot_hold_as_much_is_refused_before_anything_is_allocated() {
    let plain = vec![7; 300_000];
    let frame = zstd::bulk::compress(&plain, 3).unwrap();
    check_frame(&frame, 300_000).unwrap();
    assert_eq!(
        check_frame(&frame, 300_001).unwrap_err(),
        "the frame holds 300000 bytes; the TOC says 300001"
    );
    // A header that agrees with the TOC: single segment, a content size of 8 bytes.
    let mut lie = vec![0x28, 0xb5, 0x2f, 0xfd, 0b1110_0000];
    lie.extend((1u64 << 40).to_le_bytes());
    // Its only block: 100,000 bytes by RLE.
    lie.extend(&(100_000u32 << 3 | 0b011).to_le_bytes()[..3]);
    lie.push(7);
    assert_eq!(
        check_frame(&lie, 1 << 40).unwrap_err(),
        "the frame holds at most 100000 bytes; the TOC says 1099511627776"
    );
    let error = Decoder::default().decode(&lie, 1 << 40).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("at most 100000 bytes"), "{error}");
    lie[13..16].copy_from_slice(&(300_000u32 << 3 | 0b011).to_le_bytes()[..3]);
    let error = check_frame(&lie, 1 << 40).unwrap_err();
    assert!(error.contains("a block of 300000 bytes"), "{error}");
    for cut in 0..frame.len() {
        check_frame(&frame[..cut], 300_000).unwrap_err();
    }
    assert_eq!(
        check_frame(&[&frame[..], b"x"].concat(), 300_000).unwrap_err(),
        "1 bytes follow its frame"
    );
    // If the header has no size, the blocks alone have it.
    let mut streamed = zstd::stream::Encoder::new(Vec::new(), 3).unwrap();
    streamed.write_all(&plain).unwrap();
    let streamed = streamed.finish().unwrap();
    assert_eq!(Decoder::default().decode(&streamed, 300_000).unwrap(), plain);
    let error = Decoder::default().decode(&streamed, 299_999).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("cannot be decompressed"), "{error}");
    check_frame(&streamed, 1 << 30).unwrap_err();
}

#[test]
fn damage_is_noticed_without_digests() {
    let mut encoder = Encoder::new(Scheme::ZstdPerKernel, 3).unwrap();
    // Incompressible, so that it stands in the frame as it is and only a checksum can tell.
    let plain: Vec<u8> = (0..64u32).flat_map(|n| blake3(&n.to_le_bytes())).collect();
    let mut frame = encoder.encode(&plain, blake3(&plain)).unwrap().bytes;
    let middle = frame.len() / 2;
    frame[middle] ^= 1;
    let error = Decoder::default().decode(&frame, plain.len() as u64).unwrap_err().to_string();
    assert!(error.contains("checksum"), "{error}");
}

/// One byte in the file takes many in memory, so lists must be short whatever the size of the file.
#[test]
fn lists_of_nothing_are_refused() {
    let bytes = archive(Scheme::None, &[]);
    let toc = u64::from_le_bytes(bytes[8..16].try_into().unwrap()) as usize;
    let with = |toc_bytes: Vec<u8>| {
        let archive = [&bytes[..toc], &toc_bytes].concat();
        Index::read(&mut Cursor::new(archive)).unwrap_err()
    };
    // `bytes`' TOC with `old` replaced, and so many bytes added after it.
    let table = |old: &[u8], new: &[u8], more: Vec<u8>| {
        let table = &bytes[toc..];
        let at = bytes::position(table, old);
        [&table[..at], new, &more, &table[at + old.len()..]].concat()
    };
    let targets = b"gfx_arches\x91\xadgfx90a:xnack+";
    let many = b"gfx_arches\xdd\x00\xf0\x00\x00";
    let bomb = table(targets, many, vec![0xa0; 0xf0_0000]);
    let error = with(bomb).to_string();
    assert!(error.contains("at most 4096 elements"), "{error}");

    // A kernel without code objects is refused, so each of these has one.
    let names = (0..0x5_0000u32).flat_map(|n| {
        let name = [14, 7, 0].map(|shift| (n >> shift) as u8 & 0x7f);
        let entry = b"\x81\xa0\x83\xa4type\xa5hsaco\xa7ordinal\x00\xadoriginal_size\x00";
        [&b"\xa3"[..], &name, entry].concat()
    });
    let many = b"\xa3toc\xdf\x00\x05\x00\x00";
    let error = with(table(b"\xa3toc\x80", many, names.collect())).to_string();
    assert!(error.contains("at most 262144 entries"), "{error}");
    let nothing = table(b"\xa3toc\x80", b"\xa3toc\x81\xa0", vec![0x80]);
    let error = with(nothing).to_string();
    assert!(error.contains("at least one code object by target"), "{error}");
}

/// Other MessagePack readers accept a list of the values in place of a map.
#[test]
fn a_list_in_place_of_a_map_is_refused() {
    let bytes = archive(Scheme::None, &[("a#0", b"code")]);
    let toc = u64::from_le_bytes(bytes[8..16].try_into().unwrap()) as usize;
    let (data, contents) = bytes.split_at(toc);
    let values = raw_map::read(contents).unwrap();
    let list = |values: Vec<&[u8]>| [&[0x90 | values.len() as u8], &values.concat()[..]].concat();
    let all = list(values.iter().map(|entry| entry.value_bytes).collect());
    let error = open(&[data, &all].concat()).unwrap_err();
    assert!(matches!(error, ArchiveError::Toc { .. }), "{error}");
    assert!(error.to_string().contains("expected a map"), "{error}");

    // And so is one in place of a kernel's targets, of an entry, and of a place.
    let entry = list(vec![b"\xa5hsaco", b"\x00", b"\x04"]);
    let with_entry = [&b"\x81\xa3a#0\x81\xadgfx90a:xnack+"[..], &entry].concat();
    let without_target = [&b"\x81\xa3a#0"[..], &entry].concat();
    let place = [&b"\x91"[..], &list(vec![b"\x40", b"\x04"])].concat();
    for (key, value) in [("toc", with_entry), ("toc", without_target), ("blobs", place)] {
        let parts = values.iter().map(|entry| match &entry.key {
            raw_map::Key::Text(text) if text == key => (entry.key_bytes, &value[..]),
            _ => (entry.key_bytes, entry.value_bytes),
        });
        let changed = raw_map::to_bytes(parts);
        let error = open(&[data, &changed].concat()).unwrap_err().to_string();
        assert!(error.contains("expected a map"), "{key}: {error}");
    }
}

#[test]
fn damage_in_one_frame_is_not_the_end_of_those_before_it() {
    let bytes = foreign("zstd-per-kernel");
    let index = Index::read(&mut Cursor::new(&bytes)).unwrap();
    let mut damaged = bytes.clone();
    // The second frame's size.
    let (second, _) = open(&bytes).unwrap().stored(1).unwrap();
    damaged[second as usize - 1] = 0xff;
    let mut walked = Vec::new();
    let mut source = Cursor::new(&damaged);
    let first = index.walk(&mut source, &mut walked, 0).unwrap();
    assert_eq!(first, open(&bytes).unwrap().stored(0).unwrap());
    index.walk(&mut source, &mut walked, 1).unwrap_err();
    assert_eq!(index.walk(&mut source, &mut walked, 0).unwrap(), first);
    index.walk(&mut source, &mut walked, 2).unwrap_err();
}

#[test]
fn nested_values_do_not_exhaust_the_stack() {
    let mut bytes = archive(Scheme::None, &[]);
    let toc = u64::from_le_bytes(bytes[8..16].try_into().unwrap()) as usize;
    bytes.truncate(toc);
    bytes.extend(b"\x81\xa1x");
    bytes.extend(std::iter::repeat_n(0x91, 1 << 20));
    assert!(open(&bytes).is_err());
}

proptest! {
    #[test]
    fn the_order_of_calls_does_not_matter(order in Just(vec![0usize, 1, 2, 3]).prop_shuffle()) {
        for scheme in SCHEMES {
            let shuffled: Vec<_> = order.iter().map(|index| KERNELS[*index]).collect();
            prop_assert_eq!(archive(scheme, &shuffled), archive(scheme, &KERNELS));
        }
    }

    /// Of `KERNELS`, the last comes first, and the third shares the code object of the first.
    #[test]
    fn a_spool_in_order_becomes_the_same_archive(order in Just(vec![0usize, 1, 2, 3]).prop_shuffle()) {
        for scheme in SCHEMES {
            let shuffled: Vec<_> = order.iter().map(|index| KERNELS[*index]).collect();
            let mut spool = Cursor::new(Vec::new());
            let mut writer = ArchiveWriter::new(&mut spool, "vec_lib", &target(), scheme);
            for (kernel, code) in &shuffled {
                add(&mut writer, scheme, kernel, code);
            }
            let place = |kernel| order.iter().position(|index| *index == kernel).unwrap();
            let in_order = place(3) < place(0).min(place(2)) && place(0).min(place(2)) < place(1);
            prop_assert_eq!(writer.is_in_order(), in_order);
            if in_order {
                let written = writer.finish_in_place().unwrap();
                let bytes = archive(scheme, &KERNELS);
                prop_assert_eq!(written.checksum, blake3(&bytes));
                prop_assert_eq!(written.size, bytes.len() as u64);
                prop_assert_eq!(spool.into_inner(), bytes);
            }
        }
    }

    /// With checksums, every read returns the original bytes or an error.
    #[test]
    fn damage_is_noticed(
        scheme in prop::sample::select(&SCHEMES),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 0..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = archive(scheme, &KERNELS);
        for (index, flip) in flips {
            let at = index.index(bytes.len());
            bytes[at] ^= flip;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let Ok(mut archive) = open(&bytes) else { return Ok(()) };
        let has_checksums = archive.toc().checksums.is_some();
        for (kernel, code) in KERNELS {
            if let Ok(read) = archive.read(kernel, "gfx90a:xnack+") {
                // A flip may turn the key `blake3` into one that is not known, or let a kernel
                // name another code object.
                let known = KERNELS.iter().any(|(_, code)| *code == read);
                prop_assert!(read == code || !has_checksums || known);
            }
        }
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), toc in 16u64..300) {
        let mut bytes = [b"KPAK\x01\0\0\0".to_vec(), toc.to_le_bytes().to_vec(), vec![0; 48], bytes].concat();
        let _ = open(&bytes);
        bytes[0] ^= 1;
        prop_assert!(open(&bytes).is_err());
    }
}

/// Early versions and other readers have archives with exactly these bytes, so a writer that changes them
/// changes the format.
#[test]
fn the_bytes_of_an_archive_do_not_change() {
    let kernels: [(&str, &[u8]); 3] =
        [("lib/libvec.so#0", b"add"), ("lib/libvec.so#1", b"mul"), ("bin/vec#0", b"add")];
    let archive_of = |scheme, data: &[u8], toc: &[&[u8]]| {
        let start = (64 + data.len() as u64).to_le_bytes();
        let header = [&b"KPAK\x01\0\0\0"[..], &start, &[0; 48]].concat();
        let expected = [&header, data, &toc.concat()].concat();
        let written = archive(scheme, &kernels);
        assert!(written == expected, "{}", written.escape_ascii());
    };
    let group = b"\xaeformat_version\x01\xaagroup_name\xa7vec_lib\
        \xafgfx_arch_family\xadgfx90a:xnack+\xaagfx_arches\x91\xadgfx90a:xnack+";
    let checksums = b"\xa6blake3\x92\
        \xc4 :\x03\xcc\xc1-uD\xd0)\xee\x0b\x0d\xa9\xfa\xb4\xd7\x16\x04+\xe2\xb3\"\xb6\xbcU1\xdd'\x96b\xdc\x9c\
        \xc4 \xf5U\x1ey\x1c\xd8\x7fa\xa2\x89,C\x88\xe61\xdfw8\xca\x1c\x93\xdd><O;8\x9c\xeb\x14\xb2\x96";
    let toc = b"\xa3toc\x83\
        \xa9bin/vec#0\x81\xadgfx90a:xnack+\
        \x83\xa4type\xa5hsaco\xa7ordinal\x00\xadoriginal_size\x03\
        \xaflib/libvec.so#0\x81\xadgfx90a:xnack+\
        \x83\xa4type\xa5hsaco\xa7ordinal\x00\xadoriginal_size\x03\
        \xaflib/libvec.so#1\x81\xadgfx90a:xnack+\
        \x83\xa4type\xa5hsaco\xa7ordinal\x01\xadoriginal_size\x03";
    let blobs = b"\xb2compression_scheme\xa4none\
        \xa5blobs\x92\x82\xa6offset\x40\xa4size\x03\x82\xa6offset\x43\xa4size\x03";
    archive_of(Scheme::None, b"addmul", &[b"\x88", group, blobs, checksums, toc]);
    // Zstandard stores so few bytes as they are.
    let frames = b"\x02\0\0\0\
        \x10\0\0\0(\xb5/\xfd$\x03\x19\0\0add\x10@\x10\x13\
        \x10\0\0\0(\xb5/\xfd$\x03\x19\0\0mul\x9aL\x86G";
    let zstd = b"\xb2compression_scheme\xafzstd-per-kernel\
        \xabzstd_offset\x40\xa9zstd_size\x2c\xadframe_offsets\x92\x48\x5c";
    archive_of(Scheme::ZstdPerKernel, frames, &[b"\x8a", group, zstd, checksums, toc]);
}
