//! Which installed package a file belongs to, by the lists that dpkg, RPM, conda and Python keep. These are read without running
//! any of these programs.
//!
//! Each list has a reader of its own, beside the others; [`PackageManager::read`] calls it.

mod conda;
mod dpkg;
mod package;
mod python;
mod rpm;
mod rpm_database;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use kpack_core::Finding;
use kpack_wheel::Environment;

use crate::root::Root;
use package::{PackageLists, Unread};

pub use package::{Origin, Owner, PackageManager};
pub(crate) use package::{Package, WantedFiles};

impl PackageManager {
    /// The packages of this manager that list a file that is wanted: those of the root for dpkg and RPM, and those in `directory`
    /// for conda, which keeps its list in a prefix, and Python.
    fn read(self, directory: &Path, root: &Root, wanted: &WantedFiles<'_>) -> PackageLists {
        match self {
            Self::Dpkg => dpkg::read(root, wanted),
            Self::Rpm => rpm::read(root, wanted),
            Self::Conda => conda::read(directory, root, wanted),
            Self::Python => python::read(directory, root, wanted),
        }
    }
}

/// The packages of dpkg and RPM that are installed, without those of a database that cannot be read.
pub(crate) fn installed(root: &Root) -> Vec<Origin> {
    [dpkg::installed(root), rpm::installed(root)].concat()
}

/// The packages of a set of files.
#[derive(Debug, Default)]
pub struct Packages {
    pub(crate) all: Vec<Package>,
    owners: HashMap<PathBuf, usize>,
    /// The databases that kpack does not read.
    pub(crate) unread: Vec<Unread>,
}

impl Packages {
    /// Finds the packages of `files`, which are below `given`, by the databases of `root` and those of the environments
    /// that the files are in. All paths are real ones in the root.
    pub fn find(root: &Root, given: &[&Path], files: BTreeSet<&Path>) -> Self {
        let directories = directories(&files, given, root);
        let wanted = &WantedFiles::new(files, BTreeSet::new());
        let mut found = Self::of_system(root, wanted);
        found.add_conda(directories.iter().copied(), root, wanted);
        // What a distribution or conda installed is theirs, even if it has a RECORD.
        let above = given
            .iter()
            .flat_map(|given| given.ancestors())
            .filter(|path| root.inside(path).is_some());
        let mut described =
            BTreeSet::from_iter(above.filter(|path| Environment::is_packages(path)));
        let is_dist_info = |path: &&&Path| path.extension().is_some_and(|end| end == "dist-info");
        described.extend(directories.iter().filter(is_dist_info).filter_map(|path| path.parent()));
        let is_packages = |path: &&&Path| {
            let name = path.file_name().unwrap_or_default();
            name == "site-packages" || name == "dist-packages" || described.contains(*path)
        };
        for packages in directories.iter().filter(is_packages) {
            found.add(PackageManager::Python.read(packages, root, wanted));
        }
        found
    }

    /// Those of dpkg and RPM.
    pub(crate) fn of_system(root: &Root, wanted: &WantedFiles<'_>) -> Self {
        let mut found = Self::default();
        for manager in [PackageManager::Dpkg, PackageManager::Rpm] {
            found.add(manager.read(root.directory(), root, wanted));
        }
        found
    }

    /// Adds those of prefixes of conda.
    pub(crate) fn add_conda<'p>(
        &mut self,
        prefixes: impl IntoIterator<Item = &'p Path>,
        root: &Root,
        wanted: &WantedFiles<'_>,
    ) {
        for prefix in prefixes {
            self.add(PackageManager::Conda.read(prefix, root, wanted));
        }
    }

    /// Adds what a list says. A file belongs to the first package that lists it.
    fn add(&mut self, found: PackageLists) {
        for package in found.packages {
            for path in &package.files {
                self.owners.entry(path.clone()).or_insert(self.all.len());
            }
            self.all.push(package);
        }
        self.unread.extend(found.unread);
    }

    /// The package of a file.
    pub(crate) fn owner(&self, path: &Path) -> Option<&Package> {
        self.all.get(*self.owners.get(path)?)
    }

    /// How notes name the package of a file.
    pub fn origin(&self, path: &Path) -> Option<&Origin> {
        self.owner(path).map(|package| &package.origin)
    }

    /// The packages of these files, with the files of each.
    pub fn owners<'p>(&self, files: impl IntoIterator<Item = &'p Path>) -> Vec<Owner> {
        let mut owners: BTreeMap<&Origin, BTreeSet<&Path>> = BTreeMap::new();
        for path in files {
            if let Some(origin) = self.origin(path) {
                owners.entry(origin).or_default().insert(path);
            }
        }
        let owner = |(package, files): (&Origin, BTreeSet<&Path>)| Owner {
            package: package.clone(),
            files: files.into_iter().map(Path::to_owned).collect(),
        };
        owners.into_iter().map(owner).collect()
    }

    /// The databases that kpack does not read, each once.
    pub fn findings(&self) -> Vec<Finding> {
        let unread = BTreeSet::from_iter(&self.unread);
        unread.into_iter().map(Unread::finding).collect()
    }
}

/// The directories that the files are in, and those above them in the root.
fn directories<'a>(
    files: &BTreeSet<&'a Path>,
    given: &[&'a Path],
    root: &Root,
) -> BTreeSet<&'a Path> {
    let mut found = HashSet::new();
    for path in files.iter().chain(given) {
        let above = path.ancestors().skip(1);
        let new = Vec::from_iter(
            above.take_while(|path| root.inside(path).is_some() && !found.contains(path)),
        );
        found.extend(new);
    }
    found.into_iter().collect()
}
