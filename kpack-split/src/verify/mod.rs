//! Verifies binaries, archives and manifests: single files, and those of an install prefix. `kpack-artifact` verifies
//! trees of artifacts with it.
//!
//! Findings go into a [`VerifyReport`]; an error means that the verification itself failed. Each thread
//! holds one code object at a time (two when it compares with an original).

mod against_binary;
mod archive;
mod binary;
mod context;
mod device_code;
mod kernels;
mod manifest;
mod not_installed;
mod report;
mod resolution;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kpack_core::files::describe_package;
use kpack_core::parallel::{self, lock};
use kpack_core::report::Progress;
use kpack_core::{Error, Severity, ids};
use kpack_format::names::{Group, KernelName, is_object};

use crate::input::{self, FileKind, LinkedBinary, placed};
use crate::leftover::{self, is_leftover_entry};

pub use context::{Context, Demanded, Options, Surroundings};
pub use manifest::{Difference, not_as_listed};
pub use report::VerifyReport;

impl Context<'_> {
    /// Finds the files at and below `paths` that can be verified.
    ///
    /// # Errors
    /// [`Error::Io`] if one of `paths` cannot be read, [`Error::Refused`] if one is of a kind that cannot be verified.
    pub fn find(&self, paths: &[PathBuf], report: &mut VerifyReport) -> Result<Vec<Work>, Error> {
        let mut files = Vec::new();
        for path in paths {
            let metadata = path.metadata().map_err(|e| Error::io(path, "read", e))?;
            if metadata.is_dir() {
                collect(path, &mut files, report)?;
            } else {
                let file = input::open(path)?;
                let kind = input::identify(path, &file)?;
                if kind.is_none()
                    && let Some(text) = describe_package(path, &file)?
                {
                    return Err(Error::rejected(ids::UNKNOWN_FILE, path, text));
                }
                let kind = verifiable(path, kind)?;
                files.push(Work { path: path.clone(), kind, asked_for: true });
            }
        }
        Ok(files)
    }

    /// Verifies files, archives first: code objects in an undamaged archive need not be read again for
    /// each binary.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Refused`] for a file that was named.
    pub fn verify(
        &mut self,
        files: &[Work],
        progress: &dyn Progress,
        report: &mut VerifyReport,
    ) -> Result<(), Error> {
        progress.start(files.len() as u64);
        let stage = |kind| match kind {
            FileKind::Archive => 0,
            FileKind::Manifest => 1,
            _ => 2,
        };
        for now in 0..3 {
            let of_stage = files.iter().filter(|file| stage(file.kind) == now);
            let shared = &*self;
            let checked = parallel::try_map(Vec::from_iter(of_stage), |file| {
                progress.file(&file.path);
                let checked = file.verify(shared);
                progress.advance(1);
                checked
            })?;
            for (own, archive) in checked {
                let faults = own.count(Severity::Fault);
                report.extend([own]);
                if faults == 0 {
                    self.whole.extend(archive);
                } else {
                    lock(&self.damaged).extend(archive);
                }
            }
        }
        Ok(())
    }

    /// Verifies the binary `path`, and compares it with its unsplit `original`.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Refused`] for a binary that cannot be read.
    pub fn verify_against(
        &self,
        path: &Path,
        original: &Path,
        report: &mut VerifyReport,
    ) -> Result<(), Error> {
        let binary = self.parsed.open(path)?;
        binary::verify(&binary, true, self, report)?;
        self.compare(&binary, original, report)
    }

    /// Compares a split or joined binary with its unsplit `original`: its code objects, and its host code.
    ///
    /// # Errors
    /// As [`verify_against`](Self::verify_against).
    pub fn compare(
        &self,
        binary: &LinkedBinary,
        original: &Path,
        report: &mut VerifyReport,
    ) -> Result<(), Error> {
        against_binary::compare(binary, original, self, report)
    }

    /// Reports kernels that no marker refers to. If a file exists in the binary's place, that is a
    /// fault: a truncated host binary has no marker any more.
    pub fn unused_kernels(&self, paths: &[PathBuf], files: &[Work], report: &mut VerifyReport) {
        let roots: Vec<PathBuf> = paths.iter().filter_map(|p| p.canonicalize().ok()).collect();
        let asked_for = lock(&self.asked_for);
        // A link to an archive belongs to the tree that it is in.
        let archives: BTreeMap<PathBuf, PathBuf> = files
            .iter()
            .filter(|file| file.kind == FileKind::Archive)
            .filter_map(|file| Some((file.path.canonicalize().ok()?, placed(&file.path)?)))
            .collect();
        for (real, archive) in &archives {
            // Next to a single binary, there may be others that were not given.
            let in_a_directory = |root: &PathBuf| root.is_dir() && archive.starts_with(root);
            let Some(root) = roots.iter().find(|root| in_a_directory(root)) else {
                continue;
            };
            let asked_for = asked_for.get(real);
            // The checks of artifacts report this.
            if asked_for.is_none() && self.surroundings.covers(archive) {
                continue;
            }
            // A damaged one was reported already.
            let Ok(toc) = self.lookup.archives.toc(archive) else {
                continue;
            };
            let kernels = toc.kernels.keys();
            let binaries = kernels.filter_map(|kernel| KernelName::binary_of(kernel));
            let is_unknown = |binary: &&str| {
                !is_object(binary) && !asked_for.is_some_and(|known| known.contains(*binary))
            };
            let others: BTreeSet<&str> = binaries.filter(is_unknown).collect();
            let (not_split, missing): (Vec<&str>, Vec<&str>) =
                others.into_iter().partition(|binary| {
                    let above = archive.ancestors().skip(1);
                    let mut prefixes = above.take_while(|prefix| prefix.starts_with(root));
                    prefixes.any(|prefix| prefix.join(binary).is_file())
                });
            let name = archive.file_name().unwrap_or_default().to_string_lossy();
            let group = Group::from(toc.group_name.as_str());
            let is_misnamed = group.target_of(&name).is_none();
            for binary in not_split {
                let text = if is_misnamed {
                    format!(
                        "has kernels of `{binary}`, which looks for `{}`; rename the archive",
                        group.archive(&toc.gfx_arch_family)
                    )
                } else {
                    without_host(binary)
                };
                report.fault(ids::UNUSED_KERNELS, archive, text);
            }
            if !missing.is_empty() {
                let text =
                    format!("has kernels of `{}`, which no marker refers to", missing.join("`, `"));
                report.note(ids::UNUSED_KERNELS, archive, text);
            }
        }
    }
}

/// The message for an archive with kernels of a file that does not load them.
pub fn without_host(binary: &str) -> String {
    format!(
        "has kernels of `{binary}`, which does not look for them here: it is truncated, another file, or was split with other archives"
    )
}

/// A file to verify.
#[derive(Debug)]
pub struct Work {
    path: PathBuf,
    kind: FileKind,
    /// Whether the caller named it, rather than its directory.
    asked_for: bool,
}

impl Work {
    /// Runs the checks. Also returns the resolved path of an archive.
    fn verify(&self, context: &Context<'_>) -> Result<(VerifyReport, Option<PathBuf>), Error> {
        let mut report = VerifyReport::default();
        let path = &self.path;
        let result = match self.kind {
            FileKind::Archive => archive::verify(path, context, &mut report),
            FileKind::Manifest => manifest::verify(path, context, &mut report),
            FileKind::CodeObject | FileKind::Bundle => self.device_code(&mut report),
            _ => self.binary(context, &mut report),
        };
        match result {
            Err(error) if self.asked_for || error.is_exhaustion() => return Err(error),
            Err(error) => report.failed(path, &error),
            Ok(()) => {}
        }
        let is_archive = self.kind == FileKind::Archive;
        let real = is_archive.then(|| path.canonicalize().ok());
        Ok((report, real.flatten()))
    }

    fn device_code(&self, report: &mut VerifyReport) -> Result<(), Error> {
        let checked = device_code::file(&self.path, &input::open(&self.path)?, self.kind);
        if report.accepted(&self.path, checked)?.is_some() {
            device_code::sound(&self.path, self.kind, report);
        }
        Ok(())
    }

    fn binary(&self, context: &Context<'_>, report: &mut VerifyReport) -> Result<(), Error> {
        let path = &self.path;
        let linked = match context.parsed.read_headers(path, input::open(path)?)? {
            // Most files found are for other hosts or have no section headers.
            Err(_) if !self.asked_for => return Ok(()),
            linked => linked?,
        };
        binary::verify(&linked, self.asked_for, context, report)
    }
}

/// Collects the files below `root` that can be verified, sorted by path. Follows symbolic links to files, once
/// for each file, not those to directories.
fn collect(root: &Path, files: &mut Vec<Work>, report: &mut VerifyReport) -> Result<(), Error> {
    let mut walk = input::walk(root).into_iter();
    let (mut found, mut links) = (Vec::new(), Vec::new());
    while let Some(entry) = walk.next() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) if error.depth() == 0 => return Err(input::walk_error(root, error)),
            Err(error) => {
                let path = error.path().unwrap_or(root).to_owned();
                let why = error.io_error().map_or_else(|| error.to_string(), ToString::to_string);
                report.fault(ids::SYSTEM, &path, format!("cannot be read: {why}"));
                continue;
            }
        };
        if is_leftover_entry(&entry) {
            report.note(ids::LEFTOVER, entry.path(), leftover::TEXT);
            if entry.file_type().is_dir() {
                walk.skip_current_dir();
            }
            continue;
        }
        if entry.file_type().is_file() {
            found.push(entry.into_path());
        } else if entry.path_is_symlink() {
            links.push(entry.into_path());
        }
    }
    input::add_linked(&mut found, links);
    let identified = parallel::map(&found, |path| input::identify(path, &input::open(path)?));
    for (path, kind) in found.into_iter().zip(identified) {
        match kind {
            Ok(Some(kind @ (FileKind::Linked | FileKind::Archive | FileKind::Manifest))) => {
                files.push(Work { path, kind, asked_for: false });
            }
            Ok(Some(kind @ (FileKind::CodeObject | FileKind::Bundle)))
                if device_code::is_named_like_it(&path) =>
            {
                files.push(Work { path, kind, asked_for: false });
            }
            Ok(_) => {}
            Err(error) if error.is_exhaustion() => return Err(error),
            Err(error) => report.failed(&path, &error),
        }
    }
    Ok(())
}

fn verifiable(path: &Path, kind: Option<FileKind>) -> Result<FileKind, Error> {
    match kind {
        Some(
            kind @ (FileKind::Linked
            | FileKind::Archive
            | FileKind::Manifest
            | FileKind::CodeObject
            | FileKind::Bundle),
        ) => Ok(kind),
        Some(FileKind::Object | FileKind::StaticLibrary) => Err(Error::rejected(
            ids::UNKNOWN_FILE,
            path,
            "an object or static library; expected a linked binary, a .kpack \
             archive, a .kpm manifest, or a directory",
        )),
        Some(FileKind::OffloadBinary) => Err(Error::rejected(
            ids::UNKNOWN_FILE,
            path,
            "images for other offloading runtimes than HIP; expected a linked binary, a .kpack \
             archive, a .kpm manifest, a code object, an offload bundle, or a directory",
        )),
        None => Err(Error::rejected(
            ids::UNKNOWN_FILE,
            path,
            "not recognised: expected a program, a library, a .kpack archive, a .kpm manifest or a \
             directory",
        )),
    }
}
