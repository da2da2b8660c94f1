//! What to verify, and how.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use kpack_format::{Delivery, TargetId};

/// What to verify, and how.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Options {
    /// The unsplit original of the only path, a binary or a directory. Code objects and host code
    /// are compared; in directories, also whether files were lost.
    pub against: Option<PathBuf>,
    /// The targets that must be present, each as in a [`Selection`](kpack_format::Selection); if empty, those that the
    /// manifests list.
    pub targets: Vec<TargetId>,
    /// Number of threads; `None` for the number of processors.
    pub jobs: Option<NonZeroUsize>,
}

impl Options {
    /// Whether the caller wants what is for `target`, of the targets `there` are: generic code counts where a
    /// GPU has none of its own.
    pub(super) fn wants<T: AsRef<str>>(
        &self,
        target: &str,
        there: impl IntoIterator<Item = T>,
    ) -> bool {
        let Ok(target): Result<TargetId, _> = target.parse() else {
            return self.targets.is_empty();
        };
        let there = there.into_iter();
        let there: Vec<TargetId> = there.filter_map(|own| own.as_ref().parse().ok()).collect();
        let wants = |wanted: &TargetId| wanted.taken(&there, Delivery::Archive).contains(&&target);
        self.targets.is_empty() || self.targets.iter().any(wants)
    }
}

/// Whether a caller who names `wanted` may need what is for the target ID `target`.
pub(super) fn means(wanted: &TargetId, target: &str) -> bool {
    let target: Result<TargetId, _> = target.parse();
    target.is_ok_and(|target| wanted.needs(&target, Delivery::Archive))
}
