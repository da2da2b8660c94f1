//! Directories of a build, whose paths must not appear in a release.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::build_paths;
use super::libraries::KernelLibrary;
use super::messages::Built;
use super::options::Options;
use super::output_dir::OutputDir;
use kpack_core::report::Report;
use kpack_core::staging::workspaces;
use kpack_core::{Error, ids};
use kpack_format::names::is_archive;
use kpack_split::input::{RangeReader, open_archive, walk, walk_error};

/// Name of a file that Cargo creates in every target directory.
pub(super) const TARGET_DIRECTORY: &str = "CACHEDIR.TAG";

/// Directories of a build.
pub(super) struct BuildDirectories {
    /// Of local packages and build output; paths in them are refused.
    own: Vec<PathBuf>,
    /// Of packages that Cargo fetched; their panic messages may contain source paths.
    fetched: Vec<PathBuf>,
    /// Whether Cargo built there.
    is_cargo: bool,
}

impl BuildDirectories {
    /// These directories.
    pub(super) fn new(own: Vec<PathBuf>) -> Self {
        let is_cargo = own.iter().any(|directory| directory.join(TARGET_DIRECTORY).is_file());
        Self { own, fetched: Vec::new(), is_cargo }
    }

    pub(super) fn of_build(built: &Built, libraries: &[KernelLibrary]) -> Result<Self, Error> {
        let (mut own, mut fetched) = (BTreeSet::new(), BTreeSet::new());
        for (directory, local) in &built.packages {
            if *local {
                own.insert(directory.clone());
                own.extend(workspaces(directory));
            } else {
                fetched.insert(directory.clone());
            }
        }
        let scripts = built.scripts.iter().map(|script| script.out_dir.as_path());
        // The profile's directory in Cargo's target directory.
        let profiles = built.binaries.iter().filter_map(|binary| binary.path.parent());
        for directory in scripts.chain(profiles) {
            own.insert(directory.to_owned());
            let mut above = directory.ancestors();
            let target = above.find(|directory| directory.join(TARGET_DIRECTORY).is_file());
            own.extend(target.map(Path::to_owned));
        }
        for library in libraries {
            let directories = library.include_directories()?.into_iter();
            own.extend(directories.filter(|directory| {
                let mut packages = fetched.iter();
                !packages.any(|package| directory.starts_with(package))
            }));
        }
        // The root and relative paths are not specific enough.
        own.retain(|place| place.is_absolute() && place.parent().is_some());
        let (own, fetched) = (own.into_iter().collect(), fetched.into_iter().collect());
        Ok(Self { own, fetched, is_cargo: true })
    }

    /// Looks for these paths in every file of a release and every code object of its archives.
    pub(super) fn check(
        &self,
        options: &Options,
        output: &OutputDir,
        report: &mut Report,
    ) -> Result<(), Error> {
        for file in walk(&output.hidden) {
            let file = file.map_err(|e| walk_error(&output.hidden, e))?;
            if !file.file_type().is_file() {
                continue;
            }
            let shown = output.shown(file.path());
            let found = if is_archive(file.path()) {
                self.in_archive(file.path())?
            } else {
                self.in_file(file.path())?
            };
            if let Some(text) = found {
                if !options.allow_build_paths {
                    return Err(Error::rejected(ids::BUILD_PATH, &shown, text));
                }
                report.warn(ids::BUILD_PATH, &shown, text);
                continue;
            }
            let bytes = File::open(file.path()).map_err(|e| Error::io(file.path(), "open", e))?;
            let place = build_paths::find(bytes, &self.fetched, &[]);
            if let Some(place) = place.map_err(|e| Error::io(file.path(), "read", e))? {
                report.note(
                    ids::BUILD_PATH,
                    &shown,
                    format!(
                        "contains the path `{}` of Cargo's registry, for panic messages; \
                         --remap-path-prefix removes it",
                        place.display()
                    ),
                );
            }
        }
        Ok(())
    }

    /// Describes a build path in a file, if any.
    pub(super) fn in_file(&self, path: &Path) -> Result<Option<String>, Error> {
        let file = File::open(path).map_err(|e| Error::io(path, "open", e))?;
        self.in_bytes(path, file)
    }

    /// Describes a build path in some parts of a file, if any.
    pub(super) fn in_parts(
        &self,
        path: &Path,
        file: &File,
        parts: impl IntoIterator<Item = Range<u64>>,
    ) -> Result<Option<String>, Error> {
        for part in parts {
            if let Some(text) = self.in_bytes(path, RangeReader::new(file, part))? {
                return Ok(Some(text));
            }
        }
        Ok(None)
    }

    fn in_bytes(&self, path: &Path, bytes: impl Read) -> Result<Option<String>, Error> {
        let place = build_paths::find(bytes, &self.own, &self.fetched)
            .map_err(|e| Error::io(path, "read", e))?;
        Ok(place.map(|place| {
            let place = place.display();
            let how = match self.is_cargo {
                true => format!(
                    "build it without debug information (profile release, or strip = true), and, if code contains the path, \
                     with RUSTFLAGS=\"--remap-path-prefix={place}=.\" (C and C++: -ffile-prefix-map={place}=.)"
                ),
                false => format!(
                    "build it without debug information (or link it with -s), and, if code contains the path, with \
                     -ffile-prefix-map={place}=."
                ),
            };
            format!("contains the path `{place}` of this machine; {how}")
        }))
    }

    /// Describes a build path in a code object of an archive, if any.
    fn in_archive(&self, path: &Path) -> Result<Option<String>, Error> {
        let mut archive = open_archive(path)?;
        let mut seen = BTreeSet::new();
        let mut entries = Vec::new();
        for (kernel, targets) in &archive.toc().kernels {
            for (target, entry) in targets {
                if seen.insert(entry.ordinal) {
                    entries.push((kernel.clone(), target.clone()));
                }
            }
        }
        for (kernel, target) in entries {
            let bytes =
                archive.read(&kernel, &target).map_err(|e| Error::archive(path, "read", e))?;
            let place = build_paths::find(bytes.as_slice(), &self.own, &self.fetched);
            if let Some(place) = place.map_err(|e| Error::io(path, "read", e))? {
                let place = place.display();
                return Ok(Some(format!(
                    "the device code of `{kernel}` contains the path `{place}` of this machine; \
                     compile it without debug information (profile release), and, if code \
                     contains the path, with HIPFLAGS=\"-ffile-prefix-map={place}=.\""
                )));
            }
        }
        Ok(None)
    }
}
