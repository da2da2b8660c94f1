//! The notes of a run, and the packages that they name.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use kpack_core::{Error, Finding};
use kpack_doctor::Owner;
use kpack_doctor::internal::{Packages, Root};

use super::note::{Goes, OpenNote};
use super::plan::TreePlan;
use super::tree::Given;

/// The notes in the directories of what is given.
pub(super) struct Ledger<'a> {
    notes: Vec<OpenNote>,
    root: &'a Root,
    plan: &'a TreePlan<'a>,
    /// The packages of the files, found when the first one is about to change.
    packages: OnceCell<Packages>,
}

impl<'a> Ledger<'a> {
    pub(super) fn new(notes: Vec<OpenNote>, root: &'a Root, plan: &'a TreePlan<'a>) -> Self {
        Self { notes, root, plan, packages: OnceCell::new() }
    }

    /// Notes what goes from files; `kept` are the GPUs whose code stays. Returns the given paths whose notes cannot be written,
    /// and why.
    pub(super) fn add(
        &mut self,
        kept: &[String],
        goes: &[Goes<'_>],
    ) -> (Vec<&'a Given>, Vec<Error>) {
        let (mut without, mut errors) = (Vec::new(), Vec::new());
        let packages = self.packages.get_or_init(|| find_packages(self.root, self.plan));
        for note in &mut self.notes {
            if let Err(error) = note.add(kept, goes, packages) {
                errors.push(error);
                without.extend(self.plan.given.iter().filter(|given| note.is_of(given)));
            }
        }
        (without, errors)
    }

    /// Notes that the run is complete.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn finish(&mut self) -> Result<(), Error> {
        self.notes.iter_mut().try_for_each(OpenNote::finish)
    }

    /// The packages of `files`, whose managers report that they changed, and why some are not known.
    pub(super) fn owners(&self, files: BTreeSet<&Path>) -> (Vec<Owner>, Vec<Finding>) {
        if files.is_empty() {
            return (Vec::new(), Vec::new());
        }
        let packages = self.packages.get_or_init(|| find_packages(self.root, self.plan));
        (packages.owners(files), packages.findings())
    }
}

/// The packages of everything in the given paths: while files change, lists lose those that went.
fn find_packages(root: &Root, TreePlan { tree, given, wholes, .. }: &TreePlan<'_>) -> Packages {
    let links = tree.links.iter().map(|(link, _)| link);
    // Links within the given paths go as well.
    let removed = wholes.iter().flat_map(|whole| &whole.files).map(|removed| &removed.path);
    let files = tree.files.iter().flatten().chain(links).chain(removed);
    let given = Vec::from_iter(given.iter().map(|given| given.0.as_path()));
    Packages::find(root, &given, files.map(PathBuf::as_path).collect())
}
