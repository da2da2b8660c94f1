//! Where to look if the user names nothing: what is active, and then what is installed.

use std::cmp::Reverse;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use kpack_wheel::Environment;

use super::runtime::numbers;
use crate::image;
use crate::installer::nearest_environment;

/// The directories of libraries that distributions have.
const LIBRARIES: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/powerpc64le-linux-gnu",
    "/usr/lib64",
];

/// The places that the user is likely to mean, the likeliest first.
pub(crate) fn likely() -> Vec<PathBuf> {
    let mut places = environments();
    places.extend(variable("ROCM_PATH"));
    places.extend(installed());
    places.extend(LIBRARIES.map(PathBuf::from));
    places.retain(|place| place.is_dir());
    places
}

/// The installations of ROCm: the one that the administrator chose, `rocm`, and then the newest.
fn installed() -> Vec<PathBuf> {
    let entries = fs::read_dir("/opt").into_iter().flatten().flatten();
    let mut installed = Vec::from_iter(entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let version = match name.strip_prefix("rocm")? {
            "" => None,
            version => Some(Reverse(numbers(version.strip_prefix('-')?))),
        };
        Some((version, entry.path()))
    }));
    installed.sort();
    installed.into_iter().map(|(_, path)| path).collect()
}

/// The Python environments that the user is likely to mean, the likeliest first.
pub(crate) fn environments() -> Vec<PathBuf> {
    let python_path = variable("PYTHONPATH").unwrap_or_default();
    // Most of its directories are those of sources.
    let has_packages = |path: &PathBuf| path.is_absolute() && Environment::read(path).is_some();
    let added = Vec::from_iter(env::split_paths(&python_path).filter(has_packages));
    let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable);
    added.into_iter().chain(active).chain(nearest_environment()).chain(of_user()).collect()
}

/// Where `pip install --user` installs.
fn of_user() -> Vec<PathBuf> {
    if variable("PYTHONNOUSERSITE").is_some() {
        return Vec::new();
    }
    let home = || Some(variable("HOME")?.join(".local"));
    let Some(base) = variable("PYTHONUSERBASE").or_else(home) else { return Vec::new() };
    let pythons = fs::read_dir(base.join("lib")).into_iter().flatten().flatten();
    let mut packages = Vec::from_iter(
        pythons.map(|entry| entry.path().join("site-packages")).filter(|path| path.is_dir()),
    );
    packages.sort();
    packages
}

/// The path that a variable has, unless it is empty.
fn variable(name: &str) -> Option<PathBuf> {
    image::variable(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Whether `path` is a directory that has libraries of the whole distribution.
pub(crate) fn is_of_distribution(path: &Path) -> bool {
    LIBRARIES.iter().any(|directory| Path::new(directory) == path)
}
