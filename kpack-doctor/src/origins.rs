//! Which installed package a file belongs to: of dpkg, RPM or conda, or of Python.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use kpack_core::Finding;
use kpack_wheel::Environment;
use serde::{Deserialize, Serialize};

use super::packages::{Packages, Root, Unread, Wanted};

/// What keeps the list of a package's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PackageManager {
    /// dpkg, for which apt installs.
    Dpkg,
    /// RPM, for which dnf or zypper installs.
    Rpm,
    /// `conda-meta`.
    Conda,
    /// The `RECORD` of Python. Whether pip or uv installs depends on the environment.
    Python,
}

impl std::fmt::Display for PackageManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Dpkg => "dpkg",
            Self::Rpm => "rpm",
            Self::Conda => "conda",
            Self::Python => "python",
        })
    }
}

/// An installed package.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Origin {
    /// What lists its files.
    pub manager: PackageManager,
    /// Its name; for dpkg with the architecture, if that is not the system's.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// A package, and some of its files.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Owner {
    /// The package.
    #[serde(flatten)]
    pub package: Origin,
    /// The files.
    #[serde(serialize_with = "kpack_core::lossy::paths")]
    pub files: Vec<PathBuf>,
}

/// The packages of a set of files.
#[derive(Debug, Default)]
pub struct Origins {
    packages: Vec<Origin>,
    of: HashMap<PathBuf, usize>,
    /// Databases that kpack does not read.
    pub findings: Vec<Finding>,
}

impl Origins {
    /// Finds the packages of `files`, which are below `given`, by the databases below `root` and those of the environments
    /// that the files are in. All paths are real ones below `root`.
    pub fn find(root: &Path, given: &[&Path], files: BTreeSet<&Path>) -> Self {
        let mut found = Packages::default();
        let root = &Root::new(root.to_owned());
        let directories = directories(&files, given, root);
        let wanted = &Wanted::new(files, BTreeSet::new());
        found.add_dpkg(root, wanted);
        found.add_rpm(root, wanted);
        for prefix in &directories {
            found.add_conda(prefix, wanted, Some(root));
        }
        let mut origins = Self::default();
        for package in found.packages {
            let manager = package.manager.lists();
            let (name, version) = (package.full_name(), package.version);
            origins.add(Origin { manager, name, version }, package.files);
        }
        // What a distribution or conda installed is theirs, even if it has a RECORD.
        let above = given.iter().flat_map(|given| given.ancestors());
        let above = above.filter(|path| path.starts_with(&root.real));
        let mut described =
            BTreeSet::from_iter(above.filter(|path| Environment::is_packages(path)));
        let is_dist_info = |path: &&&Path| path.extension().is_some_and(|end| end == "dist-info");
        described.extend(directories.iter().filter(is_dist_info).filter_map(|path| path.parent()));
        let is_packages = |path: &&&Path| {
            let name = path.file_name().unwrap_or_default();
            name == "site-packages" || name == "dist-packages" || described.contains(*path)
        };
        for packages in directories.iter().filter(is_packages) {
            found.unread.extend(origins.add_python(packages, root, wanted));
        }
        origins.findings = found.unread.iter().map(Unread::finding).collect();
        origins
    }

    /// Adds the distributions in a directory, and returns what of them cannot be read.
    fn add_python(&mut self, packages: &Path, root: &Root, wanted: &Wanted<'_>) -> Vec<Unread> {
        // uv can link these from its cache, which an image need not contain.
        let may_read = |path: &Path| root.has(path).unwrap_or(true);
        let environment = Environment::in_packages(packages, &may_read);
        let unread = |path, why| Unread { path, why, command: None };
        // Installers that were interrupted leave directories without METADATA.
        let is_leftover = |path: &Path| {
            path != packages && root.has(&path.join("METADATA")).is_ok_and(|is_there| !is_there)
        };
        let damaged = environment.findings.iter().map(Finding::file);
        let damaged = damaged.filter(|path| !is_leftover(path));
        let why = "the description of a Python package cannot be read";
        let mut all = Vec::from_iter(damaged.map(|path| unread(path.to_owned(), why)));
        for own in environment.distributions {
            if own.installer == "conda" {
                continue;
            }
            let Ok(files) = own.files() else {
                let why = "this list of the files of a Python package cannot be read";
                all.push(unread(own.dist_info.join("RECORD"), why));
                continue;
            };
            let files = files.into_iter().flatten().map(|file| file.path);
            let files = files.filter(|path| wanted.contains(path)).collect();
            let (name, version) = (own.name, own.version);
            self.add(Origin { manager: PackageManager::Python, name, version }, files);
        }
        all
    }

    fn add(&mut self, origin: Origin, files: Vec<PathBuf>) {
        let index = self.packages.len();
        let mut is_used = false;
        for path in files {
            self.of.entry(path).or_insert_with(|| {
                is_used = true;
                index
            });
        }
        self.packages.extend(is_used.then_some(origin));
    }

    /// The package of a file.
    pub fn of(&self, path: &Path) -> Option<&Origin> {
        self.packages.get(*self.of.get(path)?)
    }

    /// The packages of these files, with the files of each.
    pub fn owners<'p>(&self, files: impl IntoIterator<Item = &'p Path>) -> Vec<Owner> {
        let mut owners: BTreeMap<&Origin, BTreeSet<&Path>> = BTreeMap::new();
        for path in files {
            if let Some(origin) = self.of(path) {
                owners.entry(origin).or_default().insert(path);
            }
        }
        let owner = |(package, files): (&Origin, BTreeSet<&Path>)| Owner {
            package: package.clone(),
            files: files.into_iter().map(Path::to_owned).collect(),
        };
        owners.into_iter().map(owner).collect()
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
        let new = above.take_while(|path| path.starts_with(&root.real) && !found.contains(path));
        let new = Vec::from_iter(new);
        found.extend(new);
    }
    found.into_iter().collect()
}
