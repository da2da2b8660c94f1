//! What Cargo watches after a build that failed, before the compiler could list the files that it reads.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::directories;
use super::environment::Environment;
use super::flags::{include_flags, is_of_system};
use super::options::{Flag, Hip};

/// The files that the package names, and the directories in which they find headers.
pub(super) fn of_package(hip: &Hip, environment: &Environment) -> BTreeSet<PathBuf> {
    let package = environment.directory("CARGO_MANIFEST_DIR").unwrap_or_default();
    let given = hip.device_files.iter().map(|file| &file.path);
    let files = hip.files.iter().chain(&hip.objects).chain(given);
    let mut inputs: BTreeSet<PathBuf> = files.cloned().collect();
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
