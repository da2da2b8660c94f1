//! The bytes that are written and the errors about damaged files, recorded: another reader or writer of MessagePack may
//! change neither by accident.

use std::fs;
use std::io::Cursor;
use std::path::Path;

use kpack_format::archive::{Archive, ArchiveWriter, Encoder, Scheme};
use kpack_format::digest::{blake3, hex};
use kpack_format::manifest::{KpackFile, Manifest};
use kpack_format::marker::Marker;
use kpack_tests::bytes;

/// Around the sizes where MessagePack takes a longer form.
const SIZES: [usize; 13] = [0, 1, 15, 16, 31, 32, 127, 128, 255, 256, 300, 65_535, 65_536];

/// A text for a snapshot: sizes and digests of what was written.
fn recorded(written: impl IntoIterator<Item = (String, Vec<u8>)>) -> String {
    let lines = written.into_iter().map(|(what, bytes)| {
        format!("{what}: {} bytes, {}\n", bytes.len(), &hex(&blake3(&bytes))[..16])
    });
    lines.collect()
}

fn manifest(files: usize, size: usize) -> Manifest {
    let mut manifest = Manifest::new("n".repeat(size), "lib");
    for index in 0..files {
        let number = u64::MAX >> (index % 64);
        let checksum = (index % 2 == 0).then(|| blake3(&number.to_le_bytes()));
        let file = KpackFile::new("gfx1100", format!("{index}.kpack"), number, !number, checksum);
        manifest.kpack_files.insert(format!("target{index}"), file);
    }
    manifest.install_hint = (size % 2 == 0).then(|| "h".repeat(size));
    manifest
}

fn marker(paths: usize, size: usize) -> Marker {
    let mut marker = Marker::new("n".repeat(size % 1000), vec!["../lib/.kpack".to_owned(); paths]);
    let ids = (0..size % 300).map(|index| (format!("target{index}"), [index as u8; 8]));
    marker.code_ids = ids.collect();
    let indices: Vec<u32> = (0..size as u32).map(|index| index * index / 3).collect();
    marker.set_shared_bundles([&indices[..]].into_iter());
    marker
}

fn archive(scheme: Scheme, kernels: usize, size: usize) -> Vec<u8> {
    let target = "gfx90a:xnack+".parse().unwrap();
    let mut writer =
        ArchiveWriter::new(Cursor::new(Vec::new()), &"g".repeat(size % 300), &target, scheme);
    for kernel in 0..kernels {
        let code = format!("{}", kernel % 100_000);
        let code = Encoder::new(scheme, 3)
            .and_then(|mut encoder| encoder.encode(code.as_bytes(), blake3(code.as_bytes())));
        let name = format!("lib/{}{kernel}#0", "k".repeat(size));
        writer.add(&name, &code.unwrap()).unwrap();
        if kernel % 3 == 1 {
            writer.set_entry_id(&name, Some("hip-amdgcn-amd-amdhsa--gfx906"));
        }
    }
    let mut bytes = Vec::new();
    writer.finish(&mut bytes).unwrap();
    bytes
}

#[test]
fn manifests_of_all_sizes() {
    let written = SIZES.map(|size| {
        let manifest = manifest(size % 1000, size);
        let bytes = manifest.to_bytes();
        assert_eq!(Manifest::read(&bytes).unwrap(), manifest, "{size}");
        (format!("{size}"), bytes)
    });
    insta::assert_snapshot!(recorded(written));
}

#[test]
fn markers_of_all_sizes() {
    let written = SIZES.into_iter().flat_map(|size| {
        let marker = marker(size.clamp(1, 64), size);
        let bytes = marker.to_bytes();
        assert_eq!(Marker::read(&bytes).unwrap(), (marker.clone(), bytes.len()), "{size}");
        [0, 11, 40, 300, 20_000].map(|more| {
            let within = marker.to_bytes_within(bytes.len() + more).unwrap();
            (format!("{size} and {more} more"), within)
        })
    });
    insta::assert_snapshot!(recorded(written));
}

#[test]
fn archives_of_all_sizes() {
    let written = [Scheme::None, Scheme::ZstdPerKernel].into_iter().flat_map(|scheme| {
        let sizes = SIZES.into_iter().map(|size| (size.min(1000), size.min(300)));
        sizes.map(move |(kernels, size)| {
            let bytes = archive(scheme, kernels, size);
            let archive = Archive::open(Cursor::new(&bytes)).unwrap();
            assert_eq!(archive.kernel_count(), kernels as u64);
            (format!("{}, {kernels} kernels of {size}", scheme.as_str()), bytes)
        })
    });
    insta::assert_snapshot!(recorded(written));
}

/// The archive with this TOC, and one code object.
fn with_toc(toc: &[u8]) -> Vec<u8> {
    let mut bytes = b"KPAK\x01\0\0\0\x44\0\0\0\0\0\0\0".to_vec();
    bytes.resize(64, 0);
    [&bytes[..], b"code", toc].concat()
}

/// An entry's metadata: its ID, which is kept as such, and those of other writers, of which each byte is kept. Some are
/// not in their shortest form.
#[test]
fn metadata_is_written_as_it_was_read() {
    for (metadata, is_kept) in [
        (&b"\x80"[..], false),
        (b"\x81\xa8entry_id\xa2id", true),
        (b"\x81\xa8entry_id\x2a", true),
        (b"\xde\0\x01\xa1k\xcf\0\0\0\0\0\0\0\x01", true),
        (b"\x83\xd9\x01a\x92\xc0\xc3\xa8entry_id\xa2id\xa1n\xca\0\0\0\0", true),
        (b"\x81\xa1x\xc7\x02\x05ab", true),
        (b"\x81\xa1x\xc5\0\x01\xff", true),
        (b"\x81\xa1x\xa1\xff", true),
    ] {
        let toc = |metadata: &[u8]| {
            let size = 3 + u8::from(!metadata.is_empty());
            let entry =
                [&[0x80 | size][..], b"\xa4type\xa5hsaco\xa7ordinal\0\xadoriginal_size\x04"];
            let metadata =
                if size == 4 { [b"\xa8metadata", metadata].concat() } else { Vec::new() };
            [&b"\xa3toc\x81\xa3a#0\x81\xa7gfx1100"[..], &entry.concat(), &metadata].concat()
        };
        let head = b"\x82\xa5blobs\x91\x82\xa6offset\x40\xa4size\x04";
        let bytes = with_toc(&[&head[..], &toc(metadata)].concat());
        let mut archive = Archive::open(Cursor::new(&bytes[..])).unwrap();
        let target = "gfx1100".parse().unwrap();
        let mut writer =
            ArchiveWriter::new(Cursor::new(Vec::new()), "vec_lib", &target, Scheme::None);
        writer.merge(&mut archive, |_| true).unwrap();
        let mut merged = Vec::new();
        writer.finish(&mut merged).unwrap();
        let expected = toc(if is_kept { metadata } else { b"" });
        let shown = merged.escape_ascii();
        assert!(merged.ends_with(&expected), "{}: {shown}", metadata.escape_ascii());
    }
}

#[test]
fn kernels_need_no_order_and_the_last_of_equal_names_counts() {
    let blobs = b"\x82\xa5blobs\x92\x82\xa6offset\x40\xa4size\x02\x82\xa6offset\x42\xa4size\x02";
    let kernel = |name: &[u8], ordinal: u8| {
        [b"\xa3", name, b"\x81\xa7gfx1100\x81\xa7ordinal", &[ordinal]].concat()
    };
    let kernels = [kernel(b"b#0", 0), kernel(b"a#0", 1), kernel(b"b#0", 1)].concat();
    let bytes = with_toc(&[&blobs[..], b"\xa3toc\x83", &kernels].concat());
    let mut archive = Archive::open(Cursor::new(bytes)).unwrap();
    assert!(archive.toc().kernels.keys().eq(["a#0", "b#0"]));
    assert_eq!(archive.read("b#0", "gfx1100").unwrap(), b"de");
}

/// The files that other readers are asked about as well.
#[test]
fn conformance_vectors_are_written_as_they_were() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/files");
    let mut files: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let lines = files.into_iter().filter_map(|path| {
        let bytes = fs::read(&path).unwrap();
        let read = match path.extension()?.to_str()? {
            "marker" => match Marker::read(&bytes) {
                Ok((marker, size)) => {
                    format!("{marker:?}, {size} bytes, the same: {}", marker.to_bytes() == bytes)
                }
                Err(error) => error.to_string(),
            },
            "kpack" => match Archive::open(Cursor::new(bytes)) {
                Ok(archive) => format!("{:?}", archive.toc()),
                Err(error) => error.to_string(),
            },
            _ => return None,
        };
        Some(format!("{}: {read}\n", path.file_name()?.to_str()?))
    });
    insta::assert_snapshot!(lines.collect::<String>());
}

#[test]
fn damage_is_described() {
    let manifest = manifest(1, 3).to_bytes();
    let marker = marker(1, 3).to_bytes();
    let archive = archive(Scheme::None, 2, 0);
    let toc = u64::from_le_bytes(archive[8..16].try_into().unwrap()) as usize;
    let of_manifest = |bytes: &[u8]| Manifest::read(bytes).unwrap_err().to_string();
    let of_marker = |bytes: &[u8]| Marker::read(bytes).unwrap_err().to_string();
    let of_archive = |bytes: &[u8]| Archive::open(Cursor::new(bytes)).unwrap_err().to_string();
    type Read<'a> = &'a dyn Fn(&[u8]) -> String;
    let mut lines = Vec::new();
    let mut changed = |bytes: &[u8], read: Read<'_>, old: &[u8], new: &[u8]| {
        let at = bytes::position(bytes, old);
        let bytes = [&bytes[..at], new, &bytes[at + old.len()..]].concat();
        let (old, new) = (old.escape_ascii(), new.escape_ascii());
        lines.push(format!("{old} -> {new}\n    {}\n", read(&bytes)));
    };
    for (old, new) in [
        (&b"\xa6prefix\xa3lib"[..], &b"\xa6prefix\x01"[..]),
        (b"\xa6prefix\xa3lib", b"\xa6prefix\xc4\x03lib"),
        (b"\xa6prefix\xa3lib", b"\xa6prefix\xa1\xff"),
        (b"\xa6prefix", b"\xa6prefi_"),
        (b"\xa6prefix\xa3lib", b"\xaecomponent_name\xa3lib"),
        (b"\xabkpack_files\x81", b"\xabkpack_files\x91"),
        (b"\xa4size\xcf", b"\xa4size\xd3"),
        (b"\xa4size\xcf", b"\xa4size\xcb"),
        (b"\xackernel_count", b"\xackernel_coun_"),
        (b"\xc4\x20", b"\xc4\x1f"),
        (b"\xc4\x20", b"\xc4\xff"),
        (b"\xaeformat_version\x01", b"\xaeformat_version\x02"),
        (b"\xaeformat_version\x01", b"\xaeformat_version\xc1"),
        (b"\x84\xae", b"\x85\xae"),
        (b"\x84\xae", b"\x94\xae"),
        (b"\x84\xae", b"\x83\xae"),
    ] {
        changed(&manifest, &of_manifest, old, new);
    }
    for (old, new) in [
        (&b"\x91\xad../lib/.kpack"[..], &b"\x90"[..]),
        (b"\x91\xad../lib/.kpack", b"\x92\xa1x\xa1\xff"),
        (b"\x91\xad../lib/.kpack", b"\x81\xa1x\x01"),
        (b"\x91\xad../lib/.kpack", b"\xdd\xff\xff\xff\xff"),
        (b"\xabkernel_name", b"\xabkernel_nam_"),
        (b"\xabkernel_name\xa3nnn", b"\xabkernel_name\xc2"),
        (b"\xabkernel_name", b"\x2a"),
        (b"\xc4\x08\0", b"\xc4\x07"),
        (b"\xc4\x08\0\0\0\0\0\0\0\0", b"\x92\0\0"),
        (b"\xc4\x08\0\0\0\0\0\0\0\0", b"\x98\0\0\0\0\0\0\0\xcd\x01\x00"),
        (b"shared_bundles\x91\x94", b"shared_bundles\x91\x93"),
        (b"shared_bundles\x91\x94", b"shared_bundles\x91\xc4"),
    ] {
        changed(&marker, &of_marker, old, new);
    }
    for (old, new) in [
        (&b"\xa4type\xa5hsaco"[..], &b"\xa7ordinal\x00"[..]),
        (b"lib/0#0\x81", b"lib/0#0\x80"),
        (b"lib/0#0\x81\xadgfx90a:xnack+\x83", b"lib/0#0\x81\xadgfx90a:xnack+\x93"),
        (b"hsaco\xa7ordinal\x00", b"hsaco\xa7ordina_\x00"),
        (b"hsaco\xa7ordinal\x00", b"hsaco\xa7ordinal\xff"),
        (b"hsaco\xa7ordinal\x00", b"hsaco\xa7ordinal\xcf\0\0\0\x01\0\0\0\0"),
        (b"hsaco\xa7ordinal\x00", b"hsaco\xa7ordinal\xa2no"),
        (b"\xa5blobs\x92", b"\xa5blobs\x82"),
        (b"\xa6offset\x40", b"\xa6offse_\x40"),
        (b"\xa6offset\x40", b"\xa6offset\xc0"),
        (b"gfx_arches\x91", b"gfx_arches\xdc\x10\x01"),
        (b"\xa3toc\x82", b"\xa3toc\xdf\x00\x04\x00\x01"),
        (b"\xa3toc\x82", b"\xa3tok\x82"),
        (b"\xa8metadata\x81", b"\xa8metadata\x01"),
    ] {
        changed(&archive, &of_archive, old, new);
    }
    let mut truncated = |what: &str, bytes: &[u8], from: usize, read: Read<'_>| {
        for end in [from, from + 1, (from + bytes.len()) / 2, bytes.len() - 1] {
            lines.push(format!("{what}, {end} bytes\n    {}\n", read(&bytes[..end])));
        }
    };
    truncated("manifest", &manifest, 0, &of_manifest);
    truncated("marker", &marker, 0, &of_marker);
    truncated("archive", &archive, toc + 1, &of_archive);
    insta::assert_snapshot!(lines.concat());
}
