//! What libraries of ROCm load by name, or read, while a program runs. Nothing in the files says so, hence these tables.

use std::path::{Path, PathBuf};

use kpack_core::Error;
use kpack_core::files::{list, metadata_of};
use kpack_tree::databases::{self, Database};
use kpack_tree::place::matches_pattern;

/// Libraries that others load by names that are made up while they run, from their own directory. Other names are in the files.
const LOADED_BY_NAME: &[(&str, &[&str])] = &[
    ("libhiprtc.so*", &["libhiprtc-builtins.so.*"]),
    ("libhsa-runtime64.so*", &["libhsa-amd-aqlprofile64.so.*"]),
    ("libMIOpen.so*", &["libMIOpenCK*.so*"]),
];

/// Directories and files that a library reads, relative to its own directory. A `*` stands for anything in a name.
const READ: &[(&str, &[&str])] = &[
    // Clang's bitcode for the functions of the device, unless they are in the library.
    (
        "libamd_comgr.so*",
        &["amdgcn/bitcode", "../amdgcn/bitcode", "llvm/lib/clang/*/lib/amdgcn/bitcode"],
    ),
    ("librocfft.so*", &["rocfft", "../bin/rocfft_rtc_helper", "rocfft_rtc_helper"]),
    ("librccl.so*", &["../share/rccl"]),
    ("libMIOpen.so*", &["../share/miopen"]),
    // The names of GPUs.
    ("librocm_sysdeps_drm_amdgpu.so*", &["../share/libdrm"]),
];

/// The libraries in `directory` that the library `name` there loads by name.
///
/// # Errors
/// [`Error::Io`].
pub(super) fn libraries(directory: &Path, name: &str) -> Result<Vec<PathBuf>, Error> {
    let wanted = matching(LOADED_BY_NAME, name);
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let mut found = list(directory)?;
    found.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        wanted.iter().any(|pattern| matches_pattern(pattern, &name)) && path.is_file()
    });
    Ok(found)
}

/// The files and directories that the library `name` in `directory` reads: its kernel databases, and others.
///
/// # Errors
/// [`Error::Io`].
pub(super) fn data(directory: &Path, name: &str) -> Result<Vec<PathBuf>, Error> {
    let lower = name.to_lowercase();
    let parent = directory.parent().unwrap_or(directory);
    let is_own = |database: &Database| lower.contains(database.name);
    let (installed, unlisted) = databases::installed(&[directory, parent], &is_own);
    if let Some(error) = unlisted.into_iter().next() {
        return Err(error);
    }
    let mut found = Vec::from_iter(installed.into_iter().map(|database| database.directory));
    for pattern in matching(READ, name) {
        found.extend(paths(directory, pattern)?);
    }
    found.sort();
    // What is in another one is found with it.
    found.dedup_by(|next, first| next.starts_with(&*first));
    Ok(found)
}

fn matching(table: &[(&str, &'static [&'static str])], name: &str) -> Vec<&'static str> {
    let rows = table.iter().filter(|(of, _)| matches_pattern(of, name));
    rows.flat_map(|(_, wanted)| wanted.iter().copied()).collect()
}

/// What is at a path relative to `directory`, with patterns in its names.
fn paths(directory: &Path, pattern: &str) -> Result<Vec<PathBuf>, Error> {
    let mut found = vec![directory.to_owned()];
    for part in pattern.split('/') {
        let mut next = Vec::new();
        for above in found {
            if part == ".." {
                next.extend(above.parent().map(Path::to_owned));
            } else if part.contains('*') {
                if metadata_of(&above)?.is_some_and(|there| there.is_dir()) {
                    let names = list(&above)?.into_iter();
                    next.extend(names.filter(|path| {
                        let name = path.file_name().unwrap_or_default().to_string_lossy();
                        matches_pattern(part, &name)
                    }));
                }
            } else {
                next.push(above.join(part));
            }
        }
        found = next;
    }
    let mut there = Vec::new();
    for path in found {
        if metadata_of(&path)?.is_some() {
            there.push(path);
        }
    }
    Ok(there)
}
