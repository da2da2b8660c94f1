//! What gives a HIP runtime its code: the shim, and the doctor that says why a runtime gets none.
//!
//! The inputs are lists of files, as those of trees.

use std::fs::{self, File};
use std::io::Cursor;
use std::path::Path;

use kpack::internal::{Cache, Environment, Request, TargetId};
use kpack_doctor::{Options, examine};
use kpack_format::archive::Archive;
use kpack_format::marker::Marker;
use kpack_format::offload_bundle::Bundle as Parsed;
use kpack_hip::Bundle;
use kpack_split::join::{JoinOptions, join};

use super::formats::MAX_CODE_OBJECT;
use super::trees::{not_io, write_files};

/// A `marker`, and archives in `lib/.kpack`, for a library `lib/libvec.so`. Whether the runtime gets code.
///
/// # Panics
/// Where the runtime gets a bundle that it cannot read, or code that is in no archive.
pub fn shim(bytes: &[u8]) -> bool {
    let directory = tempfile::tempdir().expect("a temporary directory");
    write_files(directory.path(), bytes);
    let marker = fs::read(directory.path().join("marker")).unwrap_or_default();
    let Ok((marker, _)) = Marker::read(&marker) else {
        return false;
    };
    let mut archives = archives(&directory.path().join("lib/.kpack"));
    // It may truthfully be large; here that would only cost time.
    let is_large = |archive: &Archive<File>| {
        let kernels = archive.toc().kernels.values();
        let mut entries = kernels.flat_map(|targets| targets.iter());
        entries.any(|(_, entry)| entry.original_size > MAX_CODE_OBJECT)
    };
    // Other paths lead to files of this machine.
    let is_elsewhere = |path: &String| path.starts_with('/') || path.contains("..");
    if archives.iter().any(is_large) || marker.kpack_search_paths.iter().any(is_elsewhere) {
        return false;
    }
    let cache = Cache::new(Environment::default());
    let gpus: [TargetId; 2] = ["gfx1100", "gfx90a:xnack+"].map(|gpu| gpu.parse().expect("a GPU"));
    let mut has_code = false;
    for (co_index, gpus) in [(0, None), (0, Some(&gpus[..])), (1, Some(&gpus[..1]))] {
        let request = Request {
            marker: &marker,
            binary: &directory.path().join("lib/libvec.so"),
            co_index,
            isas: &[],
        };
        let Ok(bundle) = Bundle::new(&cache, &request, gpus) else {
            continue;
        };
        let bytes = bundle.bytes();
        let parsed = Parsed::read(&mut Cursor::new(bytes), bytes.len() as u64);
        let parsed = parsed.expect("runtimes read its table");
        let found = parsed.code_objects(Cursor::new(bytes), |_| true);
        for found in found.expect("runtimes read its entries") {
            let found = found.expect("runtimes read each entry");
            has_code = true;
            assert!(
                archives.iter_mut().any(|archive| has(archive, &found.bytes)),
                "no archive has the code for {}",
                found.target
            );
        }
    }
    has_code
}

fn archives(directory: &Path) -> Vec<Archive<File>> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| File::open(entry.path()).ok());
    files.filter_map(|file| Archive::open(file).ok()).collect()
}

/// Whether an archive has a code object. The loader does not compare digests, so it may have damaged ones.
fn has(archive: &mut Archive<File>, bytes: &[u8]) -> bool {
    let kernels = archive.toc().kernels.iter();
    let kernels = kernels.flat_map(|(name, targets)| {
        let of_size = targets.iter().filter(|(_, entry)| entry.original_size == bytes.len() as u64);
        of_size.map(|(target, _)| (name.clone(), target.clone()))
    });
    let mut kernels = Vec::from_iter(kernels).into_iter();
    kernels.any(|(name, target)| archive.read(&name, &target).map_or(true, |read| read == bytes))
}

/// An install prefix, `prefix`, with `lib/libvec.so`, and HIP runtimes elsewhere. Whether its kernels load on gfx1100.
///
/// # Panics
/// Where the doctor says something else the second time, or advises a join that fails or does not help.
pub fn doctor(bytes: &[u8]) -> bool {
    let directory = tempfile::tempdir().expect("a temporary directory");
    write_files(directory.path(), bytes);
    let prefix = directory.path().join("prefix");
    let library = prefix.join("lib/libvec.so");
    if !library.is_file() {
        return false;
    }
    let gpu: TargetId = "gfx1100".parse().expect("a GPU");
    let mut options = Options::default();
    options.targets.push(gpu.clone());
    let examine = |path: &Path| not_io(examine(&[path.to_owned()], &options));
    let _ = examine(&prefix);
    let Some(report) = examine(&library) else {
        return false;
    };
    assert_eq!(Some(&report), examine(&library).as_ref());
    let command = format!("run `kpack join --arch {gpu} --prefix {} ", prefix.display());
    let advises = |found: &kpack_doctor::Diagnosis| {
        let help = found.finding.help.as_deref();
        help.is_some_and(|help| help.starts_with(&command))
    };
    if report.findings.iter().any(advises) {
        let options = JoinOptions::new(&prefix, [gpu], [&library]);
        join(&options, &()).expect("the join that the doctor advises works");
        let after = examine(&library).expect("what was joined is read");
        assert!(!after.findings.iter().any(advises), "the join did not help");
    }
    report.faults() == 0
}
