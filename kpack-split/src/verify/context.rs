//! What to verify, and what all checks of a run share.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use kpack_core::files::RealPaths;
use kpack_core::parallel::lock;
use kpack_core::{Error, Severity};
use kpack_format::marker::Marker;
use kpack_format::{Delivery, TargetId};

use super::not_installed::{ListedArchives, Module};
use crate::input::{LinkedBinary, Lookup, ParsedBinaries, Resolver};

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
    /// Which archives must be present if `targets` is empty.
    pub demanded: Demanded,
    /// Number of threads; `None` for the number of processors.
    pub jobs: Option<NonZeroUsize>,
}

/// Which of the archives that manifests list must be present.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Demanded {
    /// Those of the installed packages, which fragments of manifests list; without fragments, all.
    #[default]
    Installed,
    /// As [`Installed`](Self::Installed), but the archives of whole targets may be missing if those of another target are
    /// complete.
    OneGpu,
    /// All, even if the packages that contain them are not installed.
    All,
}

impl Options {
    /// Whether the caller wants what is for `target`, of the targets `there` are: generic code counts where a
    /// GPU has none of its own.
    pub fn wants<T: AsRef<str>>(&self, target: &str, there: impl IntoIterator<Item = T>) -> bool {
        // A manifest may list thousands, and each is compared with all others below.
        if self.targets.is_empty() {
            return true;
        }
        let Ok(target): Result<TargetId, _> = target.parse() else {
            return false;
        };
        let there: Vec<TargetId> =
            there.into_iter().filter_map(|own| own.as_ref().parse().ok()).collect();
        let wants = |wanted: &TargetId| wanted.taken(&there, Delivery::Archive).contains(&&target);
        self.targets.iter().any(wants)
    }
}

/// Whether a caller who names `wanted` may need what is for the target ID `target`.
pub(super) fn means(wanted: &TargetId, target: &str) -> bool {
    let target: Result<TargetId, _> = target.parse();
    target.is_ok_and(|target| wanted.needs(&target, Delivery::Archive))
}

/// What is around the files that are verified. In an install prefix, it is nothing but the prefix.
pub trait Surroundings: Sync {
    /// The artifact directory and the install prefix around a file, if any.
    fn around_file(&self, file: &Path) -> Option<(PathBuf, PathBuf)> {
        let _ = file;
        None
    }

    /// Every path that may stand for `path` in an overlay, starting with itself.
    fn places(&self, path: &Path) -> Vec<PathBuf> {
        vec![path.to_owned()]
    }

    /// Whether `path` is in a tree whose own checks report what nothing refers to.
    fn covers(&self, path: &Path) -> bool {
        let _ = path;
        false
    }
}

impl Surroundings for () {}

/// The options of a run, and what is read once.
#[non_exhaustive]
pub struct Context<'a> {
    /// The options.
    pub options: &'a Options,
    /// Finds archives, which stay parsed.
    pub lookup: Lookup,
    /// The binaries that were parsed.
    pub parsed: ParsedBinaries,
    pub(super) surroundings: &'a dyn Surroundings,
    /// Undamaged archives, by their resolved paths.
    pub(super) whole: BTreeSet<PathBuf>,
    /// Archives whose faults were reported, by their resolved paths.
    pub(super) damaged: Mutex<BTreeSet<PathBuf>>,
    /// The binaries whose markers refer to an archive, by its resolved path.
    pub(super) asked_for: Mutex<BTreeMap<PathBuf, BTreeSet<String>>>,
    /// The archives that manifests list.
    pub(super) listed: Mutex<ListedArchives>,
    pub(super) paths: Mutex<RealPaths>,
    /// What split binaries were built for, by their paths.
    pub(super) needed: Mutex<BTreeMap<PathBuf, Module>>,
}

impl<'a> Context<'a> {
    /// A run that has read nothing yet.
    pub fn new(options: &'a Options, lookup: Lookup, surroundings: &'a dyn Surroundings) -> Self {
        Self {
            options,
            lookup,
            parsed: ParsedBinaries::default(),
            surroundings,
            whole: BTreeSet::new(),
            damaged: Mutex::default(),
            asked_for: Mutex::default(),
            listed: Mutex::default(),
            paths: Mutex::default(),
            needed: Mutex::default(),
        }
    }

    /// Opens the archives that `marker`, of `binary`, refers to.
    pub(super) fn resolver(
        &self,
        binary: &LinkedBinary,
        marker: &Marker,
        kernel_name: &str,
    ) -> Result<Resolver, Error> {
        Resolver::open(&self.lookup, &binary.image, &binary.loaded_as(), marker, kernel_name)
    }

    /// Whether faults of `archive` itself were reported.
    pub(super) fn is_damaged(&self, archive: &Path) -> bool {
        archive.canonicalize().is_ok_and(|real| lock(&self.damaged).contains(&real))
    }

    /// How bad it is that what refers to `archive` finds it damaged: one fault is enough for one cause.
    pub(super) fn severity_of_damage(&self, archive: &Path) -> Severity {
        if self.is_damaged(archive) { Severity::Note } else { Severity::Fault }
    }

    /// Records that the marker of `binary` refers to the archives of `resolver`.
    pub(super) fn reached(&self, binary: &str, resolver: &Resolver) {
        let mut asked_for = lock(&self.asked_for);
        for path in resolver.archives() {
            let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
            asked_for.entry(real).or_default().insert(binary.to_owned());
        }
    }
}
