//! A release of Rust programs with HIP kernels: programs, libraries and archives in a directory that
//! can be moved, packed and installed.
//!
//! While a program is developed, its device code is where Cargo built it: an archive in the `OUT_DIR`
//! of each package with kernels, to which the markers in the program lead. Staging copies what the
//! program really has of them, of all packages that are linked into it, into one archive for each
//! module and GPU target, and changes the markers to relative paths.

mod build_paths;
mod messages;
mod output_dir;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::BufRead;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::archive::{ArchiveWriter, Scheme};
use kpack_format::manifest::Manifest;
use kpack_format::marker::{GFXARCH, Marker};

use crate::Error;
use crate::hip::DIRECTORY;
use crate::inspect;
use crate::install::presplit::Presplit;
use crate::install::{ArchiveReport, FileReport, Outcome, Report, stage_edited};
use crate::kpack_dir::{self, KpackDir};
use crate::split::{self, Input};
use messages::{Binary, Built, Script};
use output_dir::OutputDir;

/// Where the archives go, in the staged directory.
const KPACK_DIR: &str = "lib/.kpack";

/// What to stage, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// The directory to make. One that an earlier run made is replaced, as long as it has nothing
    /// that was not staged; an empty one is filled.
    pub output_dir: PathBuf,
    /// Whether files may have paths of the machine that they were built on. Markers never do.
    pub allow_build_paths: bool,
}

impl Options {
    /// For an output directory, in which no file may have a path of the build machine.
    pub fn new(output_dir: impl Into<PathBuf>) -> Self {
        Self {
            output_dir: output_dir.into(),
            allow_build_paths: false,
        }
    }
}

/// Stages what a build made, of which Cargo told in `messages`: what `cargo build
/// --message-format=json` printed. Executables go into `bin/`, libraries into `lib/`, archives into
/// `lib/.kpack/`.
///
/// # Errors
/// [`Error::Refused`] for messages of a build that failed, for two packages with one module, for
/// archives that are gone, and for binaries with paths of the build machine; [`Error::Io`].
pub fn stage(options: &Options, messages: impl BufRead) -> Result<Report, Error> {
    let built = messages::read(messages)?;
    modules_are_unique(&built.scripts)?;
    let staging = Staging::begin(&options.output_dir)?;
    let mut report = Report::default();
    let mut archives = BTreeMap::new();
    for binary in built
        .binaries
        .iter()
        .chain(&shared_libraries(&built.scripts)?)
    {
        staging.binary(binary, &mut archives, &mut report)?;
    }
    staging.archives(archives, &mut report)?;
    staging.check_paths(options, &built, &mut report)?;
    staging.output.commit()?;
    Ok(report)
}

/// The directories of the libraries that a build script made.
fn libraries(script: &Script) -> Result<Vec<PathBuf>, Error> {
    list(&script.out_dir.join(DIRECTORY))
}

/// What is in a directory, in order; nothing in one that is not there.
fn list(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |e| Error::io(directory, "list", e);
    if !directory.is_dir() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        found.push(entry.map_err(failed)?.path());
    }
    found.sort();
    Ok(found)
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}

/// Refuses two packages whose archives would have the same names.
fn modules_are_unique(scripts: &[Script]) -> Result<(), Error> {
    let mut owners: BTreeMap<String, &Script> = BTreeMap::new();
    for script in scripts {
        for library in libraries(script)? {
            for manifest in list(&library.join(".kpack"))? {
                if !has_extension(&manifest, "kpm") {
                    continue;
                }
                let group = inspect::read_manifest(&manifest)?.component_name;
                match owners.entry(group) {
                    Entry::Vacant(new) => {
                        new.insert(script);
                    }
                    Entry::Occupied(known) if known.get().package != script.package => {
                        let group = known.key();
                        let module = group.rsplit_once('_').map_or(group.as_str(), |(m, _)| m);
                        return Err(Error::refused(
                            &manifest,
                            format!(
                                "packages `{}` and `{}` both have module `{module}`, and their archives would be one file; give one of them another, with `.module(\"…\")` in its build.rs",
                                known.get().package,
                                script.package
                            ),
                        ));
                    }
                    Entry::Occupied(_) => {}
                }
            }
        }
    }
    Ok(())
}

/// The shared libraries that build scripts made.
fn shared_libraries(scripts: &[Script]) -> Result<Vec<Binary>, Error> {
    let mut found = Vec::new();
    for script in scripts {
        for library in libraries(script)? {
            for path in list(&library)? {
                if has_extension(&path, "so") {
                    let directory = "lib";
                    found.push(Binary { path, directory });
                }
            }
        }
    }
    Ok(found)
}

/// Archives in the making, by module with component, and target.
type Archives = BTreeMap<(String, TargetId), ArchiveWriter<File>>;

/// What is put into a release.
struct Staging {
    output: OutputDir,
}

impl Staging {
    fn begin(path: &Path) -> Result<Self, Error> {
        let output = OutputDir::begin(path)?;
        let kpacks = output.hidden.join(KPACK_DIR);
        fs::create_dir_all(&kpacks).map_err(|e| Error::io(&kpacks, "create directory", e))?;
        Ok(Self { output })
    }

    /// Copies a binary, and its code objects into the archives of their modules.
    fn binary(
        &self,
        binary: &Binary,
        archives: &mut Archives,
        report: &mut Report,
    ) -> Result<(), Error> {
        let file_name = binary.path.file_name().unwrap_or_default();
        let name = format!("{}/{}", binary.directory, file_name.display());
        let to = self.output.hidden.join(&name);
        if to.exists() {
            return Err(Error::refused(
                &binary.path,
                format!(
                    "another binary of the build is called `{name}`, too; they cannot be staged together"
                ),
            ));
        }
        let directory = self.output.hidden.join(binary.directory);
        fs::create_dir_all(&directory).map_err(|e| Error::io(&directory, "create directory", e))?;
        let input = split::read(&binary.path)?;
        let presplit = match input {
            Input::Split => Presplit::read(&binary.path)?,
            _ => None,
        };
        let outcome = match (presplit, input) {
            (Some(presplit), _) => {
                presplit.collect(&name, &|_| true, &mut |group, target, fill| {
                    let archive = match archives.entry((group.to_owned(), target.clone())) {
                        Entry::Occupied(known) => known.into_mut(),
                        Entry::Vacant(new) => {
                            let spool = kpack_dir::scratch_file(&self.output.hidden)?;
                            new.insert(ArchiveWriter::new(
                                spool,
                                group,
                                target,
                                Scheme::ZstdPerKernel,
                            ))
                        }
                    };
                    fill(archive)
                })?;
                let edits = presplit.edits(&|group| marker(&name, binary.directory, group))?;
                stage_edited(&to, &presplit.file, &edits)?.commit()?;
                let targets = presplit.targets().into_iter();
                Outcome::Placed {
                    wrappers: presplit.wrapper_count(),
                    targets: targets.map(|target| target.to_string()).collect(),
                }
            }
            (None, input) => {
                fs::copy(&binary.path, &to).map_err(|e| Error::io(&to, "write", e))?;
                match input {
                    Input::Fat(_) => {
                        report.warn(&binary.path, "has device code that was not split before the link, and keeps it; `kpack install` can split it in the staged directory");
                        Outcome::LeftAlone {
                            reason: "a fat binary".to_owned(),
                        }
                    }
                    Input::Split => Outcome::AlreadySplit,
                    Input::LeftAlone(reason) => Outcome::LeftAlone { reason },
                }
            }
        };
        report.files.push(FileReport {
            path: name,
            outcome,
        });
        Ok(())
    }

    /// Writes the archives, and a manifest for each module.
    fn archives(&self, archives: Archives, report: &mut Report) -> Result<(), Error> {
        let path = self.output.hidden.join(KPACK_DIR);
        let mut manifests: BTreeMap<String, Manifest> = BTreeMap::new();
        for ((group, target), archive) in archives {
            let directory = KpackDir::lock(&path, group.clone())?;
            let (staged, written) = directory.stage_archive(&target, archive)?;
            staged.commit()?;
            let name = directory.archive_name(&target);
            let path = self.output.path.join(KPACK_DIR).join(&name);
            let line = ArchiveReport::written(path, &target, &written);
            report.archives.push(line);
            let manifest = manifests.entry(group.clone()).or_insert_with(|| Manifest {
                component_name: group,
                prefix: "lib".to_owned(),
                kpack_files: BTreeMap::new(),
            });
            let entry = kpack_dir::entry(&target, name, &written);
            manifest.kpack_files.insert(target.to_string(), entry);
        }
        if manifests.is_empty() {
            let binaries = Vec::from_iter(report.files.iter().map(|file| file.path.as_str()));
            report.warn(
                &self.output.path,
                format!("no program has kernels: {}", binaries.join(", ")),
            );
            let _ = fs::remove_dir(&path);
            let _ = fs::remove_dir(self.output.hidden.join("lib"));
        }
        for (group, manifest) in manifests {
            KpackDir::lock(&path, group)?
                .stage_manifest(&manifest)?
                .commit()?;
        }
        Ok(())
    }

    /// Looks for paths of the build machine in every file: of what was built, which are refused, and
    /// of the packages that Cargo fetched, whose code may name its sources in panic messages.
    fn check_paths(
        &self,
        options: &Options,
        built: &Built,
        report: &mut Report,
    ) -> Result<(), Error> {
        let (mut own, mut fetched) = (BTreeSet::new(), BTreeSet::new());
        for script in &built.scripts {
            own.insert(script.out_dir.clone());
        }
        for binary in &built.binaries {
            // The profile's directory in Cargo's target directory.
            own.extend(binary.path.parent().map(Path::to_owned));
        }
        for (directory, local) in &built.packages {
            match local {
                true => own.insert(directory.clone()),
                false => fetched.insert(directory.clone()),
            };
        }
        let (own, fetched) = (Vec::from_iter(own), Vec::from_iter(fetched));
        for file in walkdir::WalkDir::new(&self.output.hidden).sort_by_file_name() {
            let file = file.map_err(|e| Error::io(&self.output.hidden, "list", e.into()))?;
            if !file.file_type().is_file() {
                continue;
            }
            let name = file
                .path()
                .strip_prefix(&self.output.hidden)
                .unwrap_or(file.path());
            let shown = self.output.path.join(name);
            if let Some(place) = build_paths::find(file.path(), &own)? {
                let text = format!(
                    "it has the path `{}` of this machine. Build it without debug information (profile release, or strip = true), and with RUSTFLAGS=\"--remap-path-prefix={}=.\" where code has it",
                    place.display(),
                    place.display()
                );
                if !options.allow_build_paths {
                    return Err(Error::refused(&shown, text));
                }
                report.warn(&shown, text);
            } else if let Some(place) = build_paths::find(file.path(), &fetched)? {
                report.note(
                    &shown,
                    format!(
                        "it has the path `{}` of Cargo's registry on this machine, for messages of panics; --remap-path-prefix takes it out",
                        place.display()
                    ),
                );
            }
        }
        Ok(())
    }
}

/// The marker of a staged binary for the kernels of one module.
fn marker(name: &str, directory: &str, group: &str) -> Marker {
    let kpacks = match directory {
        "lib" => ".kpack",
        _ => "../lib/.kpack",
    };
    Marker {
        kernel_name: Some(name.to_owned()),
        kpack_search_paths: vec![format!("{kpacks}/{group}_{GFXARCH}.kpack")],
    }
}
