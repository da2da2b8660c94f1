//! Archives and manifests for tests.

#![allow(dead_code, reason = "each test file uses what it needs")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Cursor;
use std::path::Path;

use kpack_format::archive::{ArchiveWriter, Encoder, Scheme};
use kpack_format::digest::sha256;
use kpack_format::manifest::{KpackFile, Manifest};
use kpack_format::marker::Marker;

/// The bytes of an archive for `target` with these kernels.
pub(crate) fn archive(scheme: Scheme, target: &str, kernels: &[(&str, &[u8])]) -> Vec<u8> {
    let spool = Cursor::new(Vec::new());
    let mut writer = ArchiveWriter::new(spool, "vec_lib", &target.parse().unwrap(), scheme);
    let mut encoder = Encoder::new(scheme, 3).unwrap();
    for (name, code_object) in kernels {
        let encoded = encoder.encode(code_object, sha256(code_object)).unwrap();
        writer.add(name, &encoded).unwrap();
    }
    let mut bytes = Vec::new();
    writer.finish(&mut bytes).unwrap();
    bytes
}

/// Writes an archive of compressed kernels, and the directories above it.
pub(crate) fn write(path: &Path, target: &str, kernels: &[(&str, &[u8])]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, archive(Scheme::ZstdPerKernel, target, kernels)).unwrap();
}

/// Writes a manifest that lists archives of these targets, and may tell how to install them.
pub(crate) fn write_manifest(path: &Path, targets: &[&str], install_hint: Option<&str>) {
    let file = |target: &str| KpackFile {
        architecture: target.to_owned(),
        filename: format!("vec_lib_{target}.kpack"),
        size: 1000,
        kernel_count: 1,
        checksum: None,
    };
    let manifest = Manifest {
        component_name: "vec_lib".to_owned(),
        prefix: "lib".to_owned(),
        kpack_files: targets
            .iter()
            .map(|target| ((*target).to_owned(), file(target)))
            .collect::<BTreeMap<_, _>>(),
        install_hint: install_hint.map(str::to_owned),
    };
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, manifest.to_bytes()).unwrap();
}

/// The marker of `lib/libvec.so`, as the installer writes it.
pub(crate) fn marker() -> Marker {
    Marker {
        kernel_name: Some("lib/libvec.so".to_owned()),
        kpack_search_paths: vec![".kpack/vec_lib_@GFXARCH@.kpack".to_owned()],
        ..Marker::default()
    }
}
