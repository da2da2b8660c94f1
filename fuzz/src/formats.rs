//! The formats of kpack's own files, and of offload bundles.

use std::fs::File;
use std::io::{Cursor, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

use kpack::internal::{Cache, Environment, Request};
use kpack_core::archives::debug_sections::{Stripped, build_id};
use kpack_format::archive::{Archive, Toc};
use kpack_format::manifest::Manifest;
use kpack_format::marker::{MAX_SIZE, Marker};
use kpack_format::offload_bundle::Bundle;
use kpack_format::unstable::raw_map;
use kpack_format::unstable::tensile::Library;

/// A code object may truthfully be large; here that would only cost time. Sizes that the bytes cannot
/// justify are no reason to leave one out.
pub(crate) const MAX_CODE_OBJECT: u64 = 32 << 20;
/// What one byte of a Zstandard frame can stand for at the most: a block of 128 KiB has four.
const MAX_RATIO: u64 = 32 << 10;
/// How many kernels of an archive are loaded at most.
const MAX_KERNELS: usize = 64;

/// An archive, from its first byte to its last.
///
/// # Panics
/// Where the reader of the formats and the loader disagree, or a code object has not the size that
/// the table of contents says.
pub fn archive(bytes: &[u8]) {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(bytes).expect("a temporary file");
    let loader = open(&file);
    let Ok(mut archive) = Archive::open(Cursor::new(bytes)) else {
        // The loader leaves frames alone until they are asked for; it may open what has damaged ones.
        if let Ok(loader) = loader {
            for (kernel, target, _) in kernels(loader.toc(), bytes) {
                let _ = loader.load(&kernel, &target);
            }
        }
        return;
    };
    let loader = loader.expect("the loader opens every whole archive");
    for (kernel, target, size) in kernels(archive.toc(), bytes) {
        let loaded = loader.load(&kernel, &target);
        match archive.read(&kernel, &target) {
            Ok(code_object) => {
                assert_eq!(code_object.len() as u64, size);
                assert_eq!(loaded.expect("the loader loads what is whole"), code_object);
            }
            Err(_) => {
                if let Ok(loaded) = loaded {
                    // It does not compare digests.
                    assert_eq!(loaded.len() as u64, size);
                }
            }
        }
    }
}

fn open(file: &File) -> Result<kpack::internal::Archive, kpack::internal::Error> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    kpack::internal::Archive::open(Path::new(&path))
}

fn kernels(toc: &Toc, bytes: &[u8]) -> Vec<(String, String, u64)> {
    let justified = bytes.len() as u64 * MAX_RATIO;
    let entries = toc.kernels.iter().flat_map(|(kernel, targets)| {
        targets
            .iter()
            .map(move |(target, entry)| (kernel.clone(), target.clone(), entry.original_size))
    });
    entries
        .filter(|(_, _, size)| *size <= MAX_CODE_OBJECT || *size > justified)
        .take(MAX_KERNELS)
        .collect()
}

/// A table of contents, after data that has two frames.
///
/// # Panics
/// As [`archive`].
pub fn toc(bytes: &[u8]) {
    archive(&with_toc(bytes));
}

/// The archive that has `toc`, at offset 128; its data begins at 64.
pub fn with_toc(toc: &[u8]) -> Vec<u8> {
    let mut archive = Vec::from(*b"KPAK\x01\0\0\0");
    archive.extend(128u64.to_le_bytes());
    archive.resize(64, 0);
    archive.extend(2u32.to_le_bytes());
    // Raw blocks with checksums (RFC 8878): "one", and "two!".
    for (text, checksum) in [("one", 0x2408_a1f6_u32), ("two!", 0xf457_06bd)] {
        let size = text.len() as u8;
        let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x24, size, size << 3 | 1, 0, 0];
        archive.extend((frame.len() as u32 + u32::from(size) + 4).to_le_bytes());
        archive.extend(frame);
        archive.extend(text.bytes());
        archive.extend(checksum.to_le_bytes());
    }
    archive.resize(128, 0);
    archive.extend(toc);
    archive
}

/// Whether an archive can be opened, and every kernel in it read.
pub fn opens(bytes: &[u8]) -> bool {
    Archive::open(Cursor::new(bytes)).is_ok_and(|mut archive| {
        kernels(archive.toc(), bytes)
            .iter()
            .all(|(kernel, target, _)| archive.read(kernel, target).is_ok())
    })
}

/// A marker, and looking for what it leads to.
///
/// # Panics
/// Where what was read is not read again from what is written, or does not depend on its own bytes
/// alone.
pub fn marker(bytes: &[u8]) {
    let Ok((marker, size)) = Marker::read(bytes) else {
        return;
    };
    assert!(size <= bytes.len().min(MAX_SIZE));
    let request = Request {
        marker: &marker,
        binary: Path::new("/none/lib/libvec.so"),
        co_index: 0,
        isas: &["gfx942:sramecc+:xnack-".parse().expect("a target ID")],
    };
    let cache = Cache::new(Environment::default());
    let found = cache.load_code_object(&request);
    let _ = found.expect_err("nothing is there").to_string();
    if marker.kernel_name.is_some() {
        let alone = Marker::read(&bytes[..size]).expect("nothing after it is needed");
        assert_eq!(alone, (marker.clone(), size));
        let written = marker.to_bytes();
        if written.len() <= MAX_SIZE {
            let again = Marker::read(&written).expect("what is written is read");
            assert_eq!(again, (marker, written.len()));
        }
    }
}

/// An offload bundle.
///
/// # Panics
/// Where it is told to be longer than the bytes.
pub fn bundle(bytes: &[u8]) {
    let Ok(bundle) = Bundle::read(&mut Cursor::new(bytes), bytes.len() as u64) else {
        return;
    };
    assert!(bundle.size <= bytes.len() as u64);
    let Ok(code_objects) = bundle.code_objects(Cursor::new(bytes), |_| true) else {
        return;
    };
    let mut total = 0;
    for code_object in code_objects.take(MAX_KERNELS).map_while(Result::ok) {
        total += code_object.bytes.len() as u64;
        if total > MAX_CODE_OBJECT {
            return;
        }
    }
}

/// A manifest.
///
/// # Panics
/// Where what was read is not read again from what is written.
pub fn manifest(bytes: &[u8]) {
    if let Ok(manifest) = Manifest::read(bytes) {
        let again = Manifest::read(&manifest.to_bytes()).expect("what is written is read");
        assert_eq!(again, manifest);
    }
}

/// A MessagePack map of a kernel database.
///
/// # Panics
/// Where its entries, written again, are not the same map.
pub fn map(bytes: &[u8]) {
    let library = Library::read(bytes);
    let Ok(entries) = raw_map::read(bytes) else {
        return;
    };
    let pairs = entries.iter().map(|entry| (entry.key_bytes, entry.value_bytes));
    let written = raw_map::to_bytes(pairs);
    assert_eq!(raw_map::read(&written).expect("what is written is read"), entries);
    assert_eq!(Library::read(&written).ok(), library.ok());
}

/// A code object, whose debug sections are removed.
///
/// # Panics
/// Where the result is larger, is not what was planned, or has debug sections.
pub fn code_object(bytes: &[u8]) {
    let size = bytes.len() as u64;
    let _ = build_id(&mut Cursor::new(bytes), size);
    let Ok(Some(plan)) = Stripped::plan(&mut Cursor::new(bytes), size) else {
        return;
    };
    let mut stripped = Vec::new();
    let written = plan.write(&mut Cursor::new(bytes), &mut stripped);
    written.expect("what was planned is within the input");
    assert!(stripped.len() as u64 == plan.size() && plan.size() <= size);
    let again = Stripped::plan(&mut Cursor::new(&stripped), plan.size());
    let again = again.expect("what was written is read");
    assert!(again.is_none(), "nothing is left to remove");
}
