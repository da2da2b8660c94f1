//! The packages of a distribution and of conda that the examined binaries belong to.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::binary::Binary;
use super::process::Process;
use super::restore::Restorer;
use crate::packages::{Packages, WantedFiles};
use crate::root::Root;

/// What the examined binaries have to do with packages.
#[derive(Debug, Default)]
pub(crate) struct DevicePackages {
    pub(crate) packages: Packages,
    /// The files of these that are gone.
    missing: BTreeSet<PathBuf>,
}

impl DevicePackages {
    /// The packages in the databases of the root that have something to do with these processes.
    pub(crate) fn of(processes: &[Process], root: &Root) -> Self {
        let binaries = || processes.iter().flat_map(|process| &process.binaries);
        // A machine may have thousands of packages, and what lists their files has to be read.
        if !binaries().any(Binary::lacks_code) {
            return Self::default();
        }
        let binaries: BTreeSet<&Path> = binaries().map(|binary| binary.path.as_path()).collect();
        let prefixes: BTreeSet<&Path> =
            binaries.iter().flat_map(|path| path.ancestors().skip(1)).collect();
        // The directories `.kpack` beside and above the binaries.
        let places = prefixes.iter().map(|directory| directory.join(".kpack")).collect();
        let wanted = &WantedFiles::new(binaries, places);
        let mut packages = Packages::of_system(root, wanted);
        packages.add_conda(prefixes, root, wanted);
        let files = packages.all.iter().flat_map(|package| &package.files);
        let mut restorer = Restorer::new(root);
        // What trim removed is missed only where a binary lacks it.
        let is_missing =
            |path: &&PathBuf| path.symlink_metadata().is_err() && !restorer.has_removed(path);
        let missing = files.filter(is_missing).cloned().collect();
        Self { packages, missing }
    }

    pub(crate) fn is_missing(&self, path: &PathBuf) -> bool {
        self.missing.contains(path)
    }
}
