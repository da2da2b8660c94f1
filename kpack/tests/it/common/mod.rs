//! Archives and manifests for tests.

#![allow(dead_code, reason = "each test file uses what it needs")]

use std::fmt::Debug;
use std::io::Cursor;
use std::path::Path;

use kpack::internal::{Error, ErrorCode};
use kpack_format::archive::{ArchiveWriter, Encoder, Scheme};
use kpack_format::digest::blake3;
use kpack_format::manifest::{KpackFile, Manifest};
use kpack_format::marker::Marker;
use kpack_tests::tree;

/// The bytes of an archive for `target` with these kernels.
pub(crate) fn archive(scheme: Scheme, target: &str, kernels: &[(&str, &[u8])]) -> Vec<u8> {
    let spool = Cursor::new(Vec::new());
    let mut writer = ArchiveWriter::new(spool, "vec_lib", &target.parse().unwrap(), scheme);
    let mut encoder = Encoder::new(scheme, 3).unwrap();
    for (name, code_object) in kernels {
        let encoded = encoder.encode(code_object, blake3(code_object)).unwrap();
        writer.add(name, &encoded).unwrap();
    }
    let mut bytes = Vec::new();
    writer.finish(&mut bytes).unwrap();
    bytes
}

/// Writes an archive of compressed kernels, and the directories above it.
pub(crate) fn write(path: &Path, target: &str, kernels: &[(&str, &[u8])]) {
    tree::write(path, archive(Scheme::ZstdPerKernel, target, kernels));
}

/// Writes a manifest that lists archives of these targets, and may tell how to install them.
pub(crate) fn write_manifest(path: &Path, targets: &[&str], install_hint: Option<&str>) {
    let mut manifest = Manifest::new("vec_lib", "lib");
    manifest.install_hint = install_hint.map(str::to_owned);
    for &target in targets {
        let file = KpackFile::new(target, format!("vec_lib_{target}.kpack"), 1000, 1, None);
        manifest.kpack_files.insert(target.to_owned(), file);
    }
    tree::write(path, manifest.to_bytes());
}

/// The code of an error.
pub(crate) fn code_of<T: Debug>(result: Result<T, Error>) -> ErrorCode {
    result.unwrap_err().code()
}

/// The marker of `lib/libvec.so`, as the installer writes it.
pub(crate) fn marker() -> Marker {
    Marker::new("lib/libvec.so", vec![".kpack/vec_lib_@GFXARCH@.kpack".to_owned()])
}
