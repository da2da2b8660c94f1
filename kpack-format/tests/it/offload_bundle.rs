//! Offload bundles: of all forms, from clang's own bundler, and damaged.

use std::fs;
use std::io::Cursor;
use std::path::Path;
use std::process::Command;

use kpack_format::digest::blake3;
use kpack_format::offload_bundle::{Bundle, BundleError, BundledCode, Format};
use kpack_tests::fixture::{Storage, bundle, code_with};
use kpack_tests::require::tool;
use proptest::prelude::*;

const STORAGES: [Storage; 7] = [
    Storage::Plain,
    Storage::Zlib(1),
    Storage::Zlib(2),
    Storage::Zlib(3),
    Storage::Zstd(1),
    Storage::Zstd(2),
    Storage::Zstd(3),
];

type CodeObjects = Vec<(String, Vec<u8>)>;

fn entries() -> CodeObjects {
    let entry = |target: &str| code_with(target, target.as_bytes());
    vec![
        entry("gfx1100"),
        entry("gfx90a:xnack+"),
        ("amdgcnspirv".to_owned(), b"\x03\x02\x23\x07".to_vec()),
    ]
}

fn read(bytes: &[u8]) -> Result<(Bundle, CodeObjects), BundleError> {
    let bundle = Bundle::read(&mut Cursor::new(bytes), bytes.len() as u64)?;
    let code_objects = bundle.code_objects(Cursor::new(bytes), |_| true)?;
    let pair = |code: BundledCode| (code.target.to_string(), code.bytes);
    let code_objects = code_objects.map(|code| code.map(pair)).collect::<Result<_, _>>()?;
    Ok((bundle, code_objects))
}

#[test]
fn all_forms_give_the_same_code_objects() {
    for storage in STORAGES {
        let bytes = bundle(storage, &entries()).unwrap();
        let (bundle, code_objects) =
            read(&bytes).unwrap_or_else(|error| panic!("{storage:?}: {error}"));
        assert_eq!(code_objects, entries(), "{storage:?}");
        assert_eq!(bundle.size, bytes.len() as u64, "{storage:?}");
    }
}

#[test]
fn what_is_behind_a_bundle_is_padding() {
    for storage in STORAGES {
        let bytes = bundle(storage, &entries()).unwrap();
        let padded = [bytes.clone(), vec![0xaa; 8192]].concat();
        let (bundle, code_objects) =
            read(&padded).unwrap_or_else(|error| panic!("{storage:?}: {error}"));
        assert_eq!(code_objects, entries(), "{storage:?}");
        assert_eq!(bundle.size, bytes.len() as u64, "{storage:?}");
    }
}

#[test]
fn a_code_object_can_stand_where_a_bundle_could() {
    let entry = vec![entries().remove(1)];
    let bytes = bundle(Storage::Bare, &entry).unwrap();
    let padded = [bytes.clone(), vec![0; 100]].concat();
    let (bundle, code_objects) = read(&padded).unwrap();
    assert_eq!((bundle.format, bundle.size), (Format::CodeObject, bytes.len() as u64));
    assert_eq!(code_objects, entry);
}

#[test]
fn only_what_is_wanted_is_returned() {
    for storage in STORAGES {
        let bytes = bundle(storage, &entries()).unwrap();
        let bundle = Bundle::read(&mut Cursor::new(&bytes), bytes.len() as u64).unwrap();
        let wanted = |target: &kpack_format::TargetId| target.processor() == "gfx90a";
        let found: Vec<_> = bundle.code_objects(Cursor::new(&bytes), wanted).unwrap().collect();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].as_ref().unwrap().bytes, entries()[1].1);
    }
}

/// A plain bundle with these entries: ID, offset, size.
fn table(entries: &[(&str, u64, u64)], data: &[u8]) -> Vec<u8> {
    let mut bytes = b"__CLANG_OFFLOAD_BUNDLE__".to_vec();
    bytes.extend((entries.len() as u64).to_le_bytes());
    for (id, offset, size) in entries {
        for field in [*offset, *size, id.len() as u64] {
            bytes.extend(field.to_le_bytes());
        }
        bytes.extend(id.as_bytes());
    }
    [bytes, data.to_vec()].concat()
}

#[test]
fn entry_ids_of_all_kinds_are_read() {
    for (id, target) in [
        ("hipv4-amdgcn-amd-amdhsa--gfx90a:xnack+", Some("gfx90a:xnack+")),
        ("hipv4-amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-", Some("gfx90a:sramecc+:xnack-")),
        ("hip-amdgcn-amd-amdhsa--gfx906", Some("gfx906")),
        ("hip-amdgcn-amd-amdhsa-unknown-gfx906", Some("gfx906")),
        ("hipv4-amdgcn-amd-amdhsa--gfx9-4-generic", Some("gfx9-4-generic")),
        ("hip-spirv64-amd-amdhsa--amdgcnspirv", Some("amdgcnspirv")),
        ("host-x86_64-unknown-linux--", None),
        ("host-x86_64-unknown-linux-gnu-", None),
        ("host-x86_64-unknown-linux", None),
    ] {
        let bytes = table(&[(id, 0, 0)], b"");
        let (bundle, _) = read(&bytes).unwrap();
        let found = bundle.entries[0].id.target().map(ToString::to_string);
        assert_eq!(found.as_deref(), target, "{id}");
        assert_eq!(bundle.entries[0].id.as_str(), id);
    }
}

#[test]
fn what_does_not_fit_is_refused_with_offset_and_reason() {
    let gpu = "hipv4-amdgcn-amd-amdhsa--gfx1100";
    let mut count = table(&[], b"");
    count[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
    let mut id_length = table(&[(gpu, 0, 0)], b"");
    id_length[48..56].copy_from_slice(&u64::MAX.to_le_bytes());
    let mut method = bundle(Storage::Zstd(2), &entries()).unwrap();
    method[6] = 7;
    let mut version = bundle(Storage::Zstd(2), &entries()).unwrap();
    version[4] = 9;
    for (bytes, reason) in [
        (
            b"garbage".to_vec(),
            "at offset 0x0 of the bundle: expected the magic of an offload bundle",
        ),
        (count, "at offset 0x18 of the bundle: 18446744073709551615 entries"),
        (
            id_length,
            "at offset 0x30 of the bundle: the ID of entry 0 has 18446744073709551615 bytes",
        ),
        (
            table(&[(gpu, 4096, 10)], b""),
            "(0xa bytes at offset 0x1000), ends past the end of the bundle (0x58)",
        ),
        (table(&[(gpu, u64::MAX, 10)], b""), "at offset 0x20 of the bundle: truncated: entry 0"),
        (table(&[(gpu, 8, 10)], b""), "begins within the table"),
        (table(&[("hipv4-amdgcn-amd-amdhsa--../x", 0, 0)], b""), "expected a processor"),
        (method, "at offset 0x6 of the bundle: unsupported compression method 7"),
        (version, "at offset 0x4 of the bundle: unsupported version 9"),
    ] {
        let error = read(&bytes).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn a_decompressed_size_that_lies_is_refused() {
    for storage in &STORAGES[1..] {
        let bytes = bundle(*storage, &entries()).unwrap();
        let (at, size) = match bytes[4] {
            1 => (8, 4),
            2 => (12, 4),
            _ => (16, 8),
        };
        for change in [-1i64, 1, -4000] {
            let mut bytes = bytes.clone();
            let mut field = [0; 8];
            field[..size].copy_from_slice(&bytes[at..at + size]);
            let lie = u64::from_le_bytes(field).wrapping_add_signed(change);
            bytes[at..at + size].copy_from_slice(&lie.to_le_bytes()[..size]);
            assert!(read(&bytes).is_err(), "{storage:?} {change}");
        }
        let mut huge = bytes.clone();
        huge[at..at + size].fill(0xff);
        assert!(read(&huge).is_err(), "{storage:?}");
    }
}

#[test]
fn content_that_decompresses_to_other_bytes_is_refused() {
    // Nothing repeats in it.
    let code = Vec::from_iter((0..4000_u32).flat_map(|n| blake3(&n.to_le_bytes())));
    let entries = vec![code_with("gfx1100", &code)];
    for storage in &STORAGES[4..] {
        let bytes = bundle(*storage, &entries).unwrap();
        // Code that cannot be compressed is stored as it is.
        let place = bytes.windows(64).position(|window| *window == code[50_000..50_064]).unwrap();
        let mut flipped = bytes.clone();
        flipped[place] ^= 4;
        let refused = |bytes: &[u8]| {
            let error = read(bytes).unwrap_err().to_string();
            let expected = "damaged: its content does not have the hash that its header says";
            assert!(error.contains(expected), "{storage:?}: {error}");
            let bundle = Bundle::read(&mut Cursor::new(bytes), bytes.len() as u64).unwrap();
            bundle.check_hash(Cursor::new(bytes)).unwrap_err();
        };
        refused(&flipped);
        let mut hash = bytes.clone();
        let size = [20, 24, 32][usize::from(bytes[4]) - 1];
        hash[size - 1] ^= 1;
        refused(&hash);
        let bundle = Bundle::read(&mut Cursor::new(&bytes), bytes.len() as u64).unwrap();
        bundle.check_hash(Cursor::new(&bytes)).unwrap();
    }
}

/// The bundler of the installed LLVM, on two code objects.
fn clang_bundle(directory: &Path, flags: &[&str]) -> (Vec<u8>, CodeObjects) {
    let mut targets = String::from("-targets=host-x86_64-unknown-linux-gnu");
    let mut command = Command::new("clang-offload-bundler-19");
    command.current_dir(directory).args(["-type=o", "-input=/dev/null"]);
    let entries: Vec<_> = entries().into_iter().take(2).collect();
    for (index, (target, code)) in entries.iter().enumerate() {
        fs::write(directory.join(format!("{index}.o")), code).unwrap();
        command.arg(format!("-input={index}.o"));
        targets += &format!(",hipv4-amdgcn-amd-amdhsa--{target}");
    }
    command.arg(targets).arg("-output=bundle").args(flags);
    assert!(command.status().unwrap().success(), "{command:?}");
    (fs::read(directory.join("bundle")).unwrap(), entries)
}

#[test]
fn clangs_own_bundles_are_read() {
    if !tool("clang-offload-bundler-19") {
        return;
    }
    for flags in [&[][..], &["-compress"], &["-compress", "-compression-level=19"]] {
        let directory = tempfile::tempdir().unwrap();
        let (bytes, entries) = clang_bundle(directory.path(), flags);
        let (bundle, code_objects) = read(&bytes).unwrap();
        assert_eq!(code_objects, entries, "{flags:?}");
        let compressed = matches!(bundle.format, Format::Compressed { .. });
        assert_eq!(compressed, !flags.is_empty());
    }
}

proptest! {
    #[test]
    fn truncation_is_noticed(storage in prop::sample::select(&STORAGES), cut in any::<prop::sample::Index>()) {
        let bytes = bundle(storage, &entries()).unwrap();
        prop_assert!(read(&bytes[..cut.index(bytes.len())]).is_err());
    }

    #[test]
    fn flipped_bytes_make_no_panic(
        storage in prop::sample::select(&STORAGES),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..4),
    ) {
        let mut bytes = bundle(storage, &entries()).unwrap();
        for (index, flip) in flips {
            // Most in the headers, where they do most.
            let length = if flip % 2 == 0 { bytes.len() } else { bytes.len().min(200) };
            let at = index.index(length);
            bytes[at] ^= flip;
        }
        let _ = read(&bytes);
    }

    #[test]
    fn no_bytes_make_the_reader_panic(magic in 0usize..3, bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let magic: &[u8] = [&b"__CLANG_OFFLOAD_BUNDLE__"[..], b"CCOB\x02\0\x01\0", b"\x7fELF\x02\x01\x01"][magic];
        let _ = read(&[magic, &bytes].concat());
    }
}
