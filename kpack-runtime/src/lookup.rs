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

/// Finds the code object and reads it.
pub(crate) fn load<M: Memory>(cache: &Cache, request: &Request<'_>) -> Result<M, Error> {
    if request.isas.is_empty() {
        return Err(Error::NoIsa);
    }
    let directories = cache.directories(request.binary);
    let search = Search::begin(cache, request, &directories);
    let mut other_builds = Vec::new();
    let Some(found) = search.find(&mut other_builds) else {
        return Err(search.failure(&other_builds, &directories));
    };
    let loaded = found.archive.load_into::<M>(found.kernel, found.target);
    if cache.environment().debug {
        say(&success(&found, &loaded, &search.tried, &other_builds));
    }
    loaded
}

/// Where to look for a code object, and the archives there.
struct Search<'a> {
    cache: &'a Cache,
    request: &'a Request<'a>,
    /// Best first.
    targets: Vec<String>,
    kernels: Vec<String>,
    /// In the order of the search paths, each archive once.
    tried: Vec<Tried>,
}

/// A path, and the archive there.
type Tried = (PathBuf, Result<Arc<Archive>, Error>);

/// A code object.
struct Found<'a> {
    archive: Arc<Archive>,
    kernel: &'a String,
    target: &'a str,
}

impl<'a> Search<'a> {
    /// Opens the archives that the search paths lead to.
    fn begin(cache: &'a Cache, request: &'a Request<'a>, directories: &[PathBuf]) -> Self {
        let targets = candidates::targets(request.isas);
        let patterns = candidates::patterns(cache.environment(), request, directories);
        let mut tried: Vec<Tried> = Vec::new();
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
        Self {
            cache,
            request,
            kernels: candidates::kernels(request),
            targets,
            tried,
        }
    }

    fn opened(&self) -> impl Iterator<Item = (&PathBuf, &Arc<Archive>)> {
        let tried = self.tried.iter();
        tried.filter_map(|(path, opened)| Some((path, opened.as_ref().ok()?)))
    }

    fn has_a_target(&self, archive: &Archive) -> bool {
        self.targets.iter().any(|target| archive.has_target(target))
    }

    /// Targets come before archives: for each matching target, the best first, this asks every archive
    /// that has the target for the kernel, in the order of the search paths. The first archive that has
    /// it, and does not belong to another build of the binary, wins. The others go to `other_builds`.
    fn find<'s>(&'s self, other_builds: &mut Vec<&'s Arc<Archive>>) -> Option<Found<'s>> {
        let marker = self.request.marker;
        for target in &self.targets {
            for (path, archive) in self.opened().filter(|(_, a)| a.has_target(target)) {
                let offer = |archive| Offer::of(archive, marker, &self.kernels, target);
                let found = |archive: &Arc<Archive>, kernel| Found {
                    archive: Arc::clone(archive),
                    kernel,
                    target,
                };
                match offer(archive) {
                    Offer::Kernel(kernel) => return Some(found(archive, kernel)),
                    Offer::OtherBuild => other_builds.push(archive),
                    Offer::Nothing => {}
                }
                // Since the archive was opened, an upgrade may have put there what the marker expects.
                if marker.code_ids.contains_key(target)
                    && let Some(now) = self.cache.replacement(path, archive)
                    && let Offer::Kernel(kernel) = offer(&now)
                {
                    return Some(found(&now, kernel));
                }
            }
        }
        None
    }

    /// Why nothing was found.
    fn failure(&self, other_builds: &[&Arc<Archive>], directories: &[PathBuf]) -> Error {
        let archives = || self.opened().map(|(_, archive)| archive);
        let out_of_resources =
            |(_, opened): &Tried| opened.as_ref().is_err_and(Error::is_exhaustion);
        let code = if self.tried.iter().any(out_of_resources) {
            // Nobody knows whether this archive has the kernel.
            ErrorCode::KPACK_ERROR_IO_ERROR
        } else if archives().next().is_none() {
            ErrorCode::KPACK_ERROR_ARCHIVE_NOT_FOUND
        } else if !archives().any(|archive| self.has_a_target(archive)) {
            ErrorCode::KPACK_ERROR_ARCH_NOT_FOUND
        } else {
            ErrorCode::KPACK_ERROR_KERNEL_NOT_FOUND
        };
        let is_other =
            |archive: &Arc<Archive>| other_builds.iter().any(|o| Arc::ptr_eq(o, archive));
        let attempt = |(path, opened): &Tried| Attempt {
            path: path.clone(),
            outcome: match opened {
                Err(error) => outcome(error),
                Ok(archive) if is_other(archive) => Outcome::OtherBuild(binary_of(&self.kernels)),
                Ok(archive) if self.has_a_target(archive) => Outcome::NoKernel,
                Ok(archive) => Outcome::NoTarget(archive.toc().gfx_arches.clone()),
            },
        };
        let attempts = self.tried.iter().map(attempt).collect();
        let installed = candidates::of_marker(self.request, directories);
        let environment = self.cache.environment();
        let kernels = self.kernels.clone();
        let report = Report::new(environment, self.request, kernels, installed, attempts);
        if environment.debug {
            match self.cache.is_news(self.request.binary, &self.targets) {
                true => say(&report.to_string()),
                false => say(&report.headline()),
            }
        }
        Error::NoCodeObject {
            code,
            report: Box::new(report),
        }
    }
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
    found: &Found<'_>,
    loaded: &Result<M, Error>,
    tried: &[Tried],
    other_builds: &[&Arc<Archive>],
) -> String {
    let Found {
        archive,
        kernel,
        target,
    } = found;
    let found = format!(
        "`{}` for {target} in {}",
        kernel.escape_debug(),
        escaped(archive.path())
    );
    let mut text = match loaded {
        Ok(_) => format!("loaded {found}"),
        Err(error) => format!("{found} cannot be loaded: {error}"),
    };
    for archive in other_builds {
        let outcome = Outcome::OtherBuild(KernelName::parse(kernel).binary.to_owned());
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
