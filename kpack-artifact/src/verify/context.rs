//! What all checks of a run share.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Mutex;

use kpack_core::Error;
use kpack_core::parallel::lock;
use kpack_format::marker::Marker;
use kpack_split::input::{LinkedBinary, Lookup, ParsedBinaries, Resolver};

use super::artifact_sets::Artifacts;
use super::options::Options;
use super::original::Original;
use crate::classify::Parsed;

/// The options of a run, and what is read once.
pub(super) struct Context<'a> {
    pub(super) options: &'a Options,
    pub(super) artifacts: Artifacts,
    /// What the tree was split from, if it is compared with that.
    pub(super) original: Original,
    /// Undamaged archives, by their resolved paths.
    pub(super) whole: BTreeSet<PathBuf>,
    /// The binaries whose markers refer to an archive, by its resolved path.
    pub(super) asked_for: Mutex<BTreeMap<PathBuf, BTreeSet<String>>>,
    pub(super) lookup: Lookup,
    pub(super) parsed: ParsedBinaries,
}

impl Context<'_> {
    pub(super) fn known(&self) -> Parsed<'_> {
        Parsed { binaries: Some(&self.parsed), archives: Some(&self.lookup.archives.parsed) }
    }

    /// Opens the archives that `marker`, of `binary`, refers to.
    pub(super) fn resolver(
        &self,
        binary: &LinkedBinary,
        marker: &Marker,
        kernel_name: &str,
    ) -> Result<Resolver, Error> {
        Resolver::open(&self.lookup, &binary.loaded_as(), marker, kernel_name)
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
