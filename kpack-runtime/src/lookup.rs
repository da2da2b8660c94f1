//! Looking a code object up.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use crate::archive::Memory;
use crate::{
    Archive, Attempt, Cache, Error, ErrorCode, Marker, Outcome, Report, TargetId, candidates,
};

/// Which code object is wanted.
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

/// Targets first, then archives: for each target that fits, from the best on, every archive that has
/// it is asked for the kernel, in the order of the search paths. The first that has it wins.
pub(crate) fn load<M: Memory>(cache: &Cache, request: &Request<'_>) -> Result<M, Error> {
    if request.isas.is_empty() {
        return Err(Error::NoIsa);
    }
    let targets = candidates::targets(request.isas);
    let kernels = candidates::kernels(request);
    let patterns = candidates::patterns(cache.environment(), request);

    let mut attempts = Vec::new();
    let mut archives: Vec<Arc<Archive>> = Vec::new();
    for path in candidates::archives(&patterns, &targets) {
        match cache.archive(&path) {
            Ok(archive) if archives.iter().any(|known| Arc::ptr_eq(known, &archive)) => {}
            Ok(archive) => {
                let outcome = match targets.iter().any(|target| archive.has_target(target)) {
                    true => Outcome::NoKernel,
                    false => Outcome::NoTarget(archive.toc().gfx_arches.clone()),
                };
                attempts.push(Attempt { path, outcome });
                archives.push(archive);
            }
            Err(error) => attempts.push(Attempt {
                outcome: outcome(&error),
                path,
            }),
        }
    }

    let report = |attempts| Report::new(cache.environment(), request, &patterns, attempts);
    for target in &targets {
        for archive in archives.iter().filter(|archive| archive.has_target(target)) {
            for kernel in &kernels {
                if archive.toc().entry(kernel, target).is_err() {
                    continue;
                }
                let loaded = archive.load_into::<M>(kernel, target);
                if cache.environment().debug {
                    let found = format!("`{kernel}` for {target} in {}", archive.path().display());
                    say(&match &loaded {
                        Ok(_) => format!("loaded {found}"),
                        Err(error) => format!("{found} cannot be loaded: {error}"),
                    });
                }
                return loaded;
            }
        }
    }
    let missing_target = |attempt: &Attempt| !matches!(attempt.outcome, Outcome::NoKernel);
    let code = if archives.is_empty() {
        ErrorCode::KPACK_ERROR_ARCHIVE_NOT_FOUND
    } else if attempts.iter().all(missing_target) {
        ErrorCode::KPACK_ERROR_ARCH_NOT_FOUND
    } else {
        ErrorCode::KPACK_ERROR_KERNEL_NOT_FOUND
    };
    let report = Box::new(report(attempts));
    if cache.environment().debug {
        say(&report.to_string());
    }
    Err(Error::NoCodeObject { code, report })
}

/// What became of an archive that could not be opened; the path stands beside it.
fn outcome(error: &Error) -> Outcome {
    match error {
        Error::NotFound { .. } => Outcome::Missing,
        Error::Io { source, .. } => Outcome::NotOpened(format!("it cannot be read: {source}")),
        Error::Archive { source, .. } => Outcome::NotOpened(source.to_string()),
        other => Outcome::NotOpened(other.to_string()),
    }
}

/// Says something on standard error, which need not be there.
pub(crate) fn say(text: &str) {
    let text = format!("kpack: {text}\n");
    let _ = std::io::stderr().write_all(text.as_bytes());
}
