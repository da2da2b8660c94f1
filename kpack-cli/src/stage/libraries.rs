//! Finds the libraries and modules of build scripts that this build's programs contain. An `OUT_DIR`
//! may also hold those of earlier builds, so Cargo's messages decide.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::messages::{Built, BuiltBinary};
use kpack_core::report::Report;
use kpack_core::staging::{INCLUDE_DIRECTORIES, NATIVE_TARGETS};
use kpack_core::words::list;
use kpack_core::{Error, ids};
use kpack_format::names::{Group, is_manifest};
use kpack_split::input;

/// A library with kernels, or modules of device code.
#[derive(Debug)]
pub(super) struct KernelLibrary {
    /// The package, by name and version.
    package: String,
    /// The directory of the library and its archives, or of the modules.
    directory: PathBuf,
}

/// The libraries and modules of a build, each once.
pub(super) fn of_build(built: &Built) -> Vec<KernelLibrary> {
    let mut found: Vec<KernelLibrary> = Vec::new();
    // Cargo separates builds for the build machine from those for a target.
    let profiles: Vec<&Path> =
        built.binaries.iter().filter_map(|binary| binary.path.parent()).collect();
    let is_near = |directory: &Path| profiles.iter().any(|place| directory.starts_with(place));
    let any_near = built.scripts.iter().any(|script| is_near(&script.out_dir));
    for script in &built.scripts {
        if any_near && !is_near(&script.out_dir) {
            continue;
        }
        for directory in &script.directories {
            let known = found.iter().any(|library| library.directory == *directory);
            if !known && directory.join(INCLUDE_DIRECTORIES).is_file() {
                found.push(KernelLibrary {
                    package: script.package.clone(),
                    directory: directory.clone(),
                });
            }
        }
    }
    found
}

impl KernelLibrary {
    /// The header directories outside of the package that it was compiled with.
    pub(super) fn include_directories(&self) -> Result<Vec<PathBuf>, Error> {
        let path = self.directory.join(INCLUDE_DIRECTORIES);
        let text = fs::read_to_string(&path).map_err(|e| Error::io(&path, "read", e))?;
        Ok(text.lines().map(PathBuf::from).collect())
    }
}

/// Warns of libraries and modules with code only for the GPUs of the machine that built them.
pub(super) fn warn_of_native_targets(
    libraries: &[KernelLibrary],
    report: &mut Report,
) -> Result<(), Error> {
    for library in libraries {
        let path = library.directory.join(NATIVE_TARGETS);
        let targets = match fs::read_to_string(&path) {
            Ok(targets) => targets,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Error::io(&path, "read", error)),
        };
        let text = format!(
            "package `{}` has code only for {}, the GPUs of the machine that built it, because nothing names its targets; \
             name them in its build.rs or in KPACK_OFFLOAD_ARCH",
            library.package,
            list(targets.lines()),
        );
        report.warn(ids::NATIVE_TARGETS, &library.directory, text);
    }
    Ok(())
}

/// Refuses two packages whose archives would have the same names.
pub(super) fn modules_are_unique(libraries: &[KernelLibrary]) -> Result<(), Error> {
    let mut owners: BTreeMap<Group, &KernelLibrary> = BTreeMap::new();
    for library in libraries {
        let kpacks = library.directory.join(".kpack");
        let manifests = if kpacks.is_dir() { input::list(&kpacks)? } else { Vec::new() };
        for manifest in manifests {
            if !is_manifest(&manifest) {
                continue;
            }
            let group = input::read_manifest(&manifest)?.component_name.into();
            match owners.entry(group) {
                Entry::Vacant(new) => {
                    new.insert(library);
                }
                Entry::Occupied(known) if known.get().package != library.package => {
                    let module = known.key().module();
                    return Err(Error::rejected(
                        ids::NAME_CLASH,
                        &manifest,
                        format!(
                            "packages `{}` and `{}` both have module `{module}`, so their \
                             archives would have one name; give one of them another module, \
                             with `.module(\"…\")` in its build.rs",
                            known.get().package,
                            library.package
                        ),
                    ));
                }
                Entry::Occupied(_) => {}
            }
        }
    }
    Ok(())
}

/// The shared libraries among them.
pub(super) fn shared(libraries: &[KernelLibrary]) -> Result<Vec<BuiltBinary>, Error> {
    let mut found = Vec::new();
    let mut owners: BTreeMap<PathBuf, (&KernelLibrary, PathBuf)> = BTreeMap::new();
    for library in libraries {
        let files = input::list(&library.directory)?.into_iter();
        for binary in files.filter_map(BuiltBinary::library) {
            let path = &binary.path;
            let name = PathBuf::from(path.file_name().unwrap_or_default());
            if let Some((owner, other)) = owners.get(&name) {
                let (name, other) = (name.display(), other.display());
                let package = &library.package;
                let reason = if owner.package == *package {
                    format!(
                        "package `{package}` was built twice, for programs and for build \
                         scripts or procedural macros, and {other} has the same name; build \
                         with `--target` and the target triple, so that Cargo keeps them apart"
                    )
                } else {
                    format!(
                        "packages `{}` and `{package}` both have a shared library `{name}`; give one of them another name in its build.rs",
                        owner.package
                    )
                };
                return Err(Error::rejected(ids::NAME_CLASH, path, reason));
            }
            owners.insert(name, (library, path.clone()));
            found.push(binary);
        }
    }
    Ok(found)
}
