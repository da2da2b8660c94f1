//! Verifies split binaries, archives and manifests.
//!
//! Findings go into a [`Report`]; an error means that the verification itself failed. Each thread
//! holds one code object at a time (two when it compares with an original).

mod against_binary;
mod against_tree;
mod archive;
mod artifact_sets;
mod artifacts;
mod binary;
mod context;
mod databases;
mod joined;
mod manifest;
mod options;
mod original;
mod report;
mod resolution;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use kpack_core::{Finding, ids};
use kpack_format::names::{Group, KernelName};
use walkdir::WalkDir;

use kpack_core::Error;
use kpack_core::parallel::{self, lock, processors};
use kpack_format::names::is_object;
use kpack_split::input::{self, FileKind, Lookup, ParsedBinaries, placed};
use kpack_split::leftover::{self, is_leftover_entry};

use crate::rules::without_host;
use artifact_sets::Artifacts;
use context::Context;
use original::Original;

pub use options::Options;
pub use report::Report;

/// Verifies files, install prefixes, artifact directories, and directories of artifact directories.
/// A directory with nothing to verify is a fault. Before each file is read, `on_file` gets its
/// path, its position, and the number of files.
///
/// # Errors
/// [`Error::Io`] if one of `paths` cannot be read, [`Error::Refused`] if one is of a kind that
/// cannot be verified, [`Error::Usage`] if `against` is a file and the path a directory, or the
/// reverse.
pub fn verify(
    paths: &[PathBuf],
    options: &Options,
    on_file: &mut (dyn FnMut(&Path, usize, usize) + Send),
) -> Result<Report, Error> {
    let jobs = options.jobs.unwrap_or_else(processors);
    parallel::with_jobs(jobs, || verify_all(paths, options, on_file))
}

fn verify_all(
    paths: &[PathBuf],
    options: &Options,
    on_file: &mut (dyn FnMut(&Path, usize, usize) + Send),
) -> Result<Report, Error> {
    let mut report = Report::default();
    let artifacts = Artifacts::find(paths)?;
    let mut context = Context {
        options,
        lookup: Lookup::in_overlay(artifacts.overlay().clone()),
        artifacts,
        original: Original::default(),
        whole: BTreeSet::new(),
        asked_for: Mutex::default(),
        parsed: ParsedBinaries::default(),
    };
    if let Some(original) = &options.against {
        let [path] = paths else {
            return Err(Error::usage("--against compares with one PATH, not with several"));
        };
        let kind = |path: &Path| {
            let kind = path.metadata().map(|metadata| metadata.is_dir());
            kind.map_err(|error| Error::io(path, "open", error))
        };
        if kind(path)? != kind(original)? {
            return Err(Error::usage("cannot compare a file with a directory"));
        }
        if !path.is_dir() {
            on_file(path, 0, 1);
            let binary = context.parsed.open(path)?;
            binary::verify(&binary, true, &context, &mut report)?;
            against_binary::compare(&binary, original, &context, &mut report)?;
            return Ok(report);
        }
        context.original = Original::read(original, context.known())?;
    }
    let files = files(paths, &mut report)?;
    verify_files(&files, &mut context, on_file, &mut report)?;
    context.nobody_asks_for(paths, &files, &mut report);
    artifacts::verify(&context, &mut report)?;
    for path in paths.iter().filter(|path| path.is_dir()) {
        if !context.artifacts.covers(path) {
            databases::verify(path, &context, &mut report)?;
        }
    }
    if let (Some(unsplit), [path]) = (&options.against, paths) {
        against_tree::compare(path, unsplit, &context, &mut report)?;
    }
    for path in paths {
        nothing_checked(path, &mut report);
    }
    Ok(report)
}

/// Finds the files at and below `paths` that can be verified.
fn files(paths: &[PathBuf], report: &mut Report) -> Result<Vec<Work>, Error> {
    let mut files = Vec::new();
    for path in paths {
        let metadata = path.metadata().map_err(|e| Error::io(path, "read", e))?;
        if metadata.is_dir() {
            collect(path, &mut files, report)?;
        } else {
            let file = input::open(path)?;
            let kind = input::identify(path, &file)?;
            files.push(Work { path: path.clone(), kind: verifiable(path, kind)?, asked_for: true });
        }
    }
    Ok(files)
}

/// Verifies files, archives first: code objects in an undamaged archive need not be read again for
/// each binary.
fn verify_files(
    files: &[Work],
    context: &mut Context<'_>,
    on_file: &mut (dyn FnMut(&Path, usize, usize) + Send),
    report: &mut Report,
) -> Result<(), Error> {
    let begun = Mutex::new((0, on_file));
    let stage = |kind| match kind {
        FileKind::Archive => 0,
        FileKind::Manifest => 1,
        _ => 2,
    };
    for now in 0..3 {
        let of_stage = files.iter().filter(|file| stage(file.kind) == now);
        let of_stage: Vec<&Work> = of_stage.collect();
        let shared = &*context;
        let checked = parallel::try_map(of_stage, |file| {
            let mut begun = lock(&begun);
            let (position, on_file) = &mut *begun;
            on_file(&file.path, *position, files.len());
            *position += 1;
            drop(begun);
            file.verify(shared)
        })?;
        for (own, whole) in checked {
            report.extend([own]);
            context.whole.extend(whole);
        }
    }
    Ok(())
}

/// Reports a directory with nothing to verify: it is probably the wrong one.
fn nothing_checked(path: &Path, report: &mut Report) {
    let real = path.canonicalize();
    let is_below = |check: &Finding| {
        let mut roots = [Some(path), real.as_deref().ok()].into_iter().flatten();
        roots.any(|root| check.file().starts_with(root))
    };
    let mut checks = report.findings.iter();
    if !checks.any(|check| is_below(check) && check.id != ids::LEFTOVER) {
        let text = "there is nothing to verify: no artifact directory, and no binary with device \
                    code, split or not, no .kpack archive, no .kpm manifest and no kernel \
                    database";
        report.fault(ids::NOTHING_SPLIT, path, text);
    }
}

impl Context<'_> {
    /// Reports kernels that no marker refers to. If a file exists in the binary's place, that is a
    /// fault: a truncated host binary has no marker any more.
    fn nobody_asks_for(&self, paths: &[PathBuf], files: &[Work], report: &mut Report) {
        let roots: Vec<PathBuf> = paths.iter().filter_map(|p| p.canonicalize().ok()).collect();
        let asked_for = lock(&self.asked_for);
        let archives = files.iter().filter(|file| file.kind == FileKind::Archive);
        // A link to an archive belongs to the tree that it is in.
        let archives: BTreeMap<PathBuf, PathBuf> = archives
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
            if asked_for.is_none() && self.artifacts.covers(archive) {
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

struct Work {
    path: PathBuf,
    kind: FileKind,
    /// Whether the caller named it, rather than its directory.
    asked_for: bool,
}

impl Work {
    /// Runs the checks. Also returns the resolved path of an undamaged archive.
    fn verify(&self, context: &Context<'_>) -> Result<(Report, Option<PathBuf>), Error> {
        let mut report = Report::default();
        let path = &self.path;
        let result = match self.kind {
            FileKind::Archive => archive::verify(path, context, &mut report),
            FileKind::Manifest => manifest::verify(path, context, &mut report).map(|()| false),
            _ => self.binary(context, &mut report).map(|()| false),
        };
        let is_whole = match result {
            Err(error) if self.asked_for || error.is_exhaustion() => return Err(error),
            Err(error) => {
                report.failed(path, &error);
                false
            }
            Ok(is_whole) => is_whole,
        };
        let real = is_whole.then(|| path.canonicalize().ok());
        Ok((report, real.flatten()))
    }

    fn binary(&self, context: &Context<'_>, report: &mut Report) -> Result<(), Error> {
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
fn collect(root: &Path, files: &mut Vec<Work>, report: &mut Report) -> Result<(), Error> {
    let walk = WalkDir::new(root).follow_root_links(true).sort_by_file_name();
    let mut walk = walk.into_iter();
    let (mut found, mut links) = (Vec::new(), Vec::new());
    while let Some(entry) = walk.next() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) if error.depth() == 0 => return Err(Error::io(root, "list", error.into())),
            Err(error) => {
                let path = error.path().unwrap_or(root).to_owned();
                report.fault(ids::SYSTEM, &path, format!("cannot be read: {error}"));
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
            Ok(_) => {}
            Err(error) if error.is_exhaustion() => return Err(error),
            Err(error) => report.failed(&path, &error),
        }
    }
    Ok(())
}

fn verifiable(path: &Path, kind: Option<FileKind>) -> Result<FileKind, Error> {
    match kind {
        Some(kind @ (FileKind::Linked | FileKind::Archive | FileKind::Manifest)) => Ok(kind),
        Some(FileKind::Object | FileKind::StaticLibrary) => Err(Error::rejected(
            ids::UNKNOWN_FILE,
            path,
            "an object or static library; expected a linked binary, a .kpack \
             archive, a .kpm manifest, or a directory",
        )),
        Some(FileKind::Bundle | FileKind::CodeObject) => Err(Error::rejected(
            ids::UNKNOWN_FILE,
            path,
            "a file of device code, which has nothing to compare with; expected a linked binary, a \
             .kpack archive, a .kpm manifest, or a directory",
        )),
        None => Err(Error::rejected(
            ids::UNKNOWN_FILE,
            path,
            "not recognised: expected a linked ELF binary, a .kpack archive, a .kpm manifest, or a \
             directory",
        )),
    }
}
