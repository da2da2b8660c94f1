//! The files that the package names.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use kpack_core::{Error, shown};

use super::directories;
use super::environment::Environment;
use super::flags::{include_flags, is_of_system};
use super::options::{Flag, Hip};

/// Checks that all files exist, so that a wrong path is not one of many messages of the compiler.
pub(super) fn check(hip: &Hip, package: &Path) -> Result<(), Error> {
    for path in files(hip) {
        let path = package.join(path);
        if fs::metadata(&path).map_err(|e| Error::io(&path, "read", e))?.is_dir() {
            return Err(Error::usage(format!("{}: is a directory; add its files", shown(&path))));
        }
    }
    Ok(())
}

fn files(hip: &Hip) -> impl Iterator<Item = &PathBuf> {
    let given = hip.device_files.iter().map(|file| &file.path);
    hip.files.iter().chain(&hip.objects).chain(given)
}

/// The files, and the directories in which sources find headers: what Cargo watches if the build fails before the compiler
/// lists the files that it reads.
pub(super) fn to_watch(hip: &Hip, environment: &Environment) -> BTreeSet<PathBuf> {
    let package = environment.directory("CARGO_MANIFEST_DIR").unwrap_or_default();
    let mut inputs: BTreeSet<PathBuf> = files(hip).cloned().collect();
    let flags = Vec::from_iter(hip.flags.iter().map(|flag| match flag {
        Flag::Always(flag) | Flag::IfSupported(flag) => flag.clone(),
    }));
    let beside = hip.files.iter().filter_map(|file| Some(file.parent()?.to_owned()));
    let directories = beside.chain(hip.includes.iter().cloned()).chain(include_flags(&flags));
    let out_dir = directories::out_dir(hip, environment).unwrap_or_default();
    for directory in directories.filter(|directory| !is_of_system(directory)) {
        // Cargo looks into all directories below, and a build changes those in OUT_DIR.
        if package.join(&out_dir).starts_with(package.join(&directory)) {
            inputs.extend(files_in(&package, &directory));
        } else {
            inputs.insert(directory);
        }
    }
    inputs
}

/// The files in a directory, but not those below it.
fn files_in(package: &Path, directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(package.join(directory)).into_iter().flatten().flatten();
    let files = entries.filter(|entry| entry.path().is_file());
    files.map(|entry| directory.join(entry.file_name())).collect()
}
