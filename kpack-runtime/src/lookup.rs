//! Looks up a code object.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kpack_format::names::KernelName;

use crate::archive::Memory;
use crate::{
    Archive, Attempt, Cache, Error, ErrorCode, Marker, Outcome, Report, TargetId, candidates,
};

/// The code object to look up.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The marker that the wrapper points to.
    pub marker: &'a Marker,
    /// The binary that it is in.
    pub binary: &'a Path,
    /// The index in the wrapper.
    pub co_index: u32,
    /// ISAs of the GPU, the preferred one first: its own, then the generic ones that it can run.
    pub isas: &'a [TargetId],
}

/// Targets come before archives: for each matching target, the best first, this asks every archive that
/// has the target for the kernel, in the order of the search paths. The first archive that has it, and
/// does not belong to another build of the binary, wins.
pub(crate) fn load<M: Memory>(cache: &Cache, request: &Request<'_>) -> Result<M, Error> {
    if request.isas.is_empty() {
        return Err(Error::NoIsa);
    }
    let targets = candidates::targets(request.isas);
    let kernels = candidates::kernels(request);
    let directories = cache.directories(request.binary);
    let patterns = candidates::patterns(cache.environment(), request, &directories);
    let debug = cache.environment().debug;

    let mut tried: Vec<(PathBuf, Result<Arc<Archive>, Error>)> = Vec::new();
    for path in candidates::archives(&patterns, &targets) {
        let opened = cache.archive(&path);
        let known = |archive: &Arc<Archive>| {
            let mut others = tried.iter().filter_map(|(_, other)| other.as_ref().ok());
            others.any(|other| Arc::ptr_eq(other, archive))
        };
        if !opened.as_ref().is_ok_and(known) {
            tried.push((path, opened));
        }
    }
    let opened = || {
        tried
            .iter()
            .filter_map(|(path, o)| Some((path, o.as_ref().ok()?)))
    };
    let archives = || opened().map(|(_, archive)| archive);
    let mut of_other_builds: Vec<&Arc<Archive>> = Vec::new();
    for target in &targets {
        for (path, archive) in opened().filter(|(_, archive)| archive.has_target(target)) {
            let offer = |archive| Offer::of(archive, request.marker, &kernels, target);
            let first = offer(archive);
            if let Offer::OtherBuild = first {
                of_other_builds.push(archive);
            }
            // Since the archive was opened, an upgrade may have put there what the marker expects.
            let replacement = match first {
                Offer::Kernel(_) => None,
                _ if !request.marker.code_ids.contains_key(target) => None,
                _ => cache.replacement(path, archive),
            };
            let (archive, found) = match &replacement {
                Some(now) => (now, offer(now)),
                None => (archive, first),
            };
            let Offer::Kernel(kernel) = found else {
                continue;
            };
            let loaded = archive.load_into::<M>(kernel, target);
            if debug {
                say(&success(
                    kernel,
                    target,
                    archive,
                    &loaded,
                    &tried,
                    &of_other_builds,
                ));
            }
            return loaded;
        }
    }
    let fits = |archive: &Arc<Archive>| targets.iter().any(|target| archive.has_target(target));
    let out_of_resources =
        |(_, opened): &(_, Result<_, Error>)| opened.as_ref().is_err_and(Error::is_exhaustion);
    let code = if tried.iter().any(out_of_resources) {
        // Nobody knows whether this archive has the kernel.
        ErrorCode::KPACK_ERROR_IO_ERROR
    } else if archives().next().is_none() {
        ErrorCode::KPACK_ERROR_ARCHIVE_NOT_FOUND
    } else if !archives().any(fits) {
        ErrorCode::KPACK_ERROR_ARCH_NOT_FOUND
    } else {
        ErrorCode::KPACK_ERROR_KERNEL_NOT_FOUND
    };
    let is_other = |archive: &Arc<Archive>| of_other_builds.iter().any(|o| Arc::ptr_eq(o, archive));
    let attempt = |(path, opened): &(PathBuf, Result<Arc<Archive>, Error>)| Attempt {
        path: path.clone(),
        outcome: match opened {
            Err(error) => outcome(error),
            Ok(archive) if is_other(archive) => Outcome::OtherBuild(binary_of(&kernels)),
            Ok(archive) if fits(archive) => Outcome::NoKernel,
            Ok(archive) => Outcome::NoTarget(archive.toc().gfx_arches.clone()),
        },
    };
    let attempts = tried.iter().map(attempt).collect();
    let installed = candidates::of_marker(request, &directories);
    let report = Report::new(cache.environment(), request, installed, attempts);
    if debug {
        match cache.is_news(request.binary, &targets) {
            true => say(&report.to_string()),
            false => say(&report.headline()),
        }
    }
    Err(Error::NoCodeObject {
        code,
        report: Box::new(report),
    })
}

/// What an archive has for a binary and a target.
enum Offer<'a> {
    /// The kernel with this name.
    Kernel(&'a String),
    /// The kernel, but its code for the binary is not what the marker expects.
    OtherBuild,
    /// No such kernel.
    Nothing,
}

impl<'a> Offer<'a> {
    fn of(archive: &Archive, marker: &Marker, kernels: &'a [String], target: &str) -> Self {
        let mut kernels = kernels.iter();
        let Some(kernel) = kernels.find(|k| archive.toc().entry(k, target).is_ok()) else {
            return Self::Nothing;
        };
        let KernelName { binary, .. } = KernelName::parse(kernel);
        // The ID takes time to compute, and is useless if the marker lists none.
        let is_of_this_build = !marker.code_ids.contains_key(target)
            || marker.accepts(target, archive.code_id(binary, target));
        match is_of_this_build {
            true => Self::Kernel(kernel),
            false => Self::OtherBuild,
        }
    }
}

/// The binary that the kernels belong to.
fn binary_of(kernels: &[String]) -> String {
    let kernel = kernels.first().map_or("", String::as_str);
    KernelName::parse(kernel).binary.to_owned()
}

/// The kernel that was found, and the archives that could not be read.
fn success<M>(
    kernel: &String,
    target: &str,
    archive: &Archive,
    loaded: &Result<M, Error>,
    tried: &[(PathBuf, Result<Arc<Archive>, Error>)],
    of_other_builds: &[&Arc<Archive>],
) -> String {
    let found = format!(
        "`{}` for {target} in {}",
        kernel.escape_debug(),
        escaped(archive.path())
    );
    let mut text = match loaded {
        Ok(_) => format!("loaded {found}"),
        Err(error) => format!("{found} cannot be loaded: {error}"),
    };
    for archive in of_other_builds {
        let outcome = Outcome::OtherBuild(binary_of(std::slice::from_ref(kernel)));
        let _ = write!(text, "\n  skipped {}: {outcome}", escaped(archive.path()));
    }
    for (path, opened) in tried {
        if let Err(error) = opened
            && !matches!(error, Error::NotFound { .. })
        {
            let (path, outcome) = (escaped(path), outcome(error));
            let _ = write!(text, "\n  tried {path}: {outcome}");
        }
    }
    text
}

/// A path, safe to print on a terminal.
pub(crate) fn escaped(path: &Path) -> String {
    path.to_string_lossy().escape_debug().to_string()
}

/// The outcome for an archive that could not be opened, without its path.
fn outcome(error: &Error) -> Outcome {
    match error {
        Error::NotFound { .. } => Outcome::Missing,
        Error::Io { source, .. } if error.is_exhaustion() => Outcome::Exhausted(source.to_string()),
        Error::Io { source, .. } => Outcome::NotOpened(format!("it cannot be read: {source}")),
        Error::Archive { source, .. } => Outcome::NotOpened(source.to_string()),
        other => Outcome::NotOpened(other.to_string()),
    }
}

/// Prints on standard error, if there is one.
pub(crate) fn say(text: &str) {
    let text = format!("kpack: {text}\n");
    let _ = std::io::stderr().write_all(text.as_bytes());
}
