//! The files that the package names.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use kpack_core::{Error, shown};

use super::directories;
use super::environment::{Environment, words};
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
    let mut flags = Vec::from_iter(hip.flags.iter().map(|flag| match flag {
        Flag::Always(flag) | Flag::IfSupported(flag) => flag.clone(),
    }));
    let variables = [
        ("CXXFLAGS", environment.for_target("CXXFLAGS")),
        ("HIPFLAGS", environment.get("HIPFLAGS")),
    ];
    for (name, value) in variables {
        flags.extend(words(name, &value.unwrap_or_default()).unwrap_or_default());
    }
    let beside = hip.files.iter().filter_map(|file| Some(file.parent()?.to_owned()));
    let directories = beside.chain(hip.includes.iter().cloned()).chain(include_flags(&flags));
    let resolved = |path: &Path| {
        let path = package.join(path);
        fs::canonicalize(&path).unwrap_or(path)
    };
    let out_dir = directories::out_dir(hip, environment).unwrap_or_default();
    let (own, out_dir) = (resolved(&package), resolved(&out_dir));
    for directory in directories {
        let place = resolved(&directory);
        if is_of_system(&place) && !place.starts_with(&own) {
            continue;
        }
        // Cargo looks into all directories below, and a build changes those in OUT_DIR.
        if out_dir.starts_with(&place) {
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

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::fs::symlink;

    use kpack_tests::tree::Tree;

    use super::*;

    /// Given header directories in variables, and one above OUT_DIR through a link, then all are watched, the last by its files.
    #[test]
    fn directories_of_headers() {
        let tree = Tree::new();
        for file in ["package/src/a.hip", "package/inc/b.h", "more/c.h", "target/out/x", "top.h"] {
            tree.write(file, "");
        }
        symlink(tree.path("target"), tree.path("package/link")).unwrap();
        let variables = [
            ("CARGO_MANIFEST_DIR", tree.path("package").into_os_string()),
            ("OUT_DIR", tree.path("package/link/out").into_os_string()),
            ("HIPFLAGS", "-I../more -isystem /usr/include".into()),
            ("CXXFLAGS", "-I inc".into()),
        ];
        let variables = variables.map(|(name, value)| (OsString::from(name), value));
        let environment = Environment::of(variables.into_iter().collect());
        let mut hip = Hip::new();
        hip.file("src/a.hip").include("..").include("../target");
        let watched = to_watch(&hip, &environment);
        let expected = ["../more", "../top.h", "inc", "src", "src/a.hip"];
        assert_eq!(watched, expected.map(PathBuf::from).into());
    }
}
