//! Which installed package a file belongs to, by the lists that dpkg, RPM, conda and Python keep. These are read without running
//! any of these programs.
//!
//! Each list has a reader of its own, beside the others; [`PackageManager::read`] calls it.

mod conda;
mod dpkg;
mod python;
mod rpm;
mod rpm_database;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, DirEntry};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use kpack_core::{Finding, Severity, ids};
use kpack_format::names::is_archive;
use kpack_split::input;
use kpack_wheel::Environment;
use serde::{Deserialize, Serialize};

use crate::remedy::Remedy;
use crate::root::{Root, is_absent};

/// The largest list of the files of a package, in bytes.
const MAX_LIST: u64 = 16 << 20;

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

impl Origin {
    /// What to do about a package of conda. Several programs install these, and each breaks what another one manages, so there
    /// is no command.
    pub(crate) fn by_conda(&self) -> String {
        let Self { name, version, .. } = self;
        format!(
            "with the program that made this conda environment, install {name} {version} again, or a build of it with code for this GPU"
        )
    }
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

impl PackageManager {
    /// The packages of this manager that list a file that is wanted: those of the root for dpkg and RPM, and those in `directory`
    /// for conda, which keeps its list in a prefix, and Python.
    fn read(self, directory: &Path, root: &Root, wanted: &Wanted<'_>) -> Found {
        match self {
            Self::Dpkg => dpkg::read(root, wanted),
            Self::Rpm => rpm::read(root, wanted),
            Self::Conda => conda::read(directory, root, wanted),
            Self::Python => python::read(directory, root, wanted),
        }
    }
}

/// What the lists of a manager say.
#[derive(Debug, Default)]
struct Found {
    packages: Vec<Package>,
    unread: Vec<Unread>,
}

impl From<Unread> for Found {
    fn from(unread: Unread) -> Self {
        Self { packages: Vec::new(), unread: vec![unread] }
    }
}

impl FromIterator<Result<Package, Unread>> for Found {
    fn from_iter<I: IntoIterator<Item = Result<Package, Unread>>>(all: I) -> Self {
        let mut found = Self::default();
        for one in all {
            match one {
                Ok(package) => found.packages.push(package),
                Err(unread) => found.unread.push(unread),
            }
        }
        found
    }
}

/// An installed package that lists files which are wanted.
#[derive(Debug, Clone)]
pub(crate) struct Package {
    /// How notes and commands name it.
    pub(crate) origin: Origin,
    /// What comes after the name for dpkg: the architecture, if it is not that of the system.
    suffix: String,
    /// The program that installs it, if the list tells.
    program: Option<&'static Program>,
    /// Archives, and other files that are wanted, as paths in the root.
    pub(crate) files: Vec<PathBuf>,
    /// The packages that it recommends and that are not installed, with their versions.
    pub(crate) lacks: Vec<(String, Option<String>)>,
}

/// A program that installs packages.
#[derive(Debug)]
struct Program {
    name: &'static str,
    /// What is between a package's name and its version.
    before_version: &'static str,
    /// The arguments that install packages again.
    reinstall: &'static [&'static str],
}

impl Package {
    fn without_command(origin: Origin, files: Vec<PathBuf>) -> Self {
        Self { origin, suffix: String::new(), program: None, files, lacks: Vec::new() }
    }

    /// Its name without the architecture.
    pub(crate) fn name(&self) -> &str {
        self.origin.name.strip_suffix(&self.suffix).unwrap_or(&self.origin.name)
    }

    /// The command that installs another package beside it, for the same architecture.
    pub(crate) fn install(&self, name: &str, version: Option<&str>) -> Option<Remedy> {
        let program = self.program?;
        let version = version.map(|version| format!("{}{version}", program.before_version));
        let pinned = format!("{name}{}{}", self.suffix, version.unwrap_or_default());
        Remedy::new(program.name, ["install", &pinned])
    }

    /// The command that installs these packages of one program again, in the versions that they have.
    pub(crate) fn reinstall(packages: &[&Self]) -> Option<Remedy> {
        let program = packages.first()?.program?;
        let pinned = packages.iter().map(|Self { origin, .. }| {
            format!("{}{}{}", origin.name, program.before_version, origin.version)
        });
        let words = program.reinstall.iter().map(|&word| word.to_owned());
        Remedy::new(program.name, words.chain(pinned))
    }
}

/// The packages of dpkg and RPM that are installed. Of a database that cannot be read, none are known.
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
        let wanted = &Wanted::new(files, BTreeSet::new());
        let mut found = Self::of_system(root, wanted);
        found.add_conda(directories.iter().copied(), root, wanted);
        // What a distribution or conda installed is theirs, even if it has a RECORD.
        let above = given.iter().flat_map(|given| given.ancestors());
        let above = above.filter(|path| root.inside(path).is_some());
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
    pub(crate) fn of_system(root: &Root, wanted: &Wanted<'_>) -> Self {
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
        wanted: &Wanted<'_>,
    ) {
        for prefix in prefixes {
            self.add(PackageManager::Conda.read(prefix, root, wanted));
        }
    }

    /// Adds what a list says. A file belongs to the first package that lists it.
    fn add(&mut self, found: Found) {
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

/// The files whose packages are looked for.
pub(crate) struct Wanted<'a> {
    files: BTreeSet<&'a Path>,
    /// Their names: a machine's packages list many thousands of files, and most are rejected by these alone.
    names: HashSet<&'a OsStr>,
    /// Directories all of whose archives are wanted.
    places: BTreeSet<PathBuf>,
}

impl<'a> Wanted<'a> {
    pub(crate) fn new(files: BTreeSet<&'a Path>, places: BTreeSet<PathBuf>) -> Self {
        let names = files.iter().filter_map(|path| path.file_name()).collect();
        Self { files, names, places }
    }

    /// Whether the package of this file is looked for.
    fn contains(&self, path: &Path) -> bool {
        self.files.contains(path)
    }

    /// Those among the files that a package lists; `real` says where one is.
    fn among<'l>(
        &self,
        listed: impl Iterator<Item = &'l str>,
        real: impl Fn(&str) -> Option<PathBuf>,
    ) -> Vec<PathBuf> {
        let may_be = |listed: &&str| {
            let name = listed.rsplit('/').next().unwrap_or(listed);
            self.names.contains(OsStr::new(name)) || is_archive(Path::new(name))
        };
        let is_wanted = |path: &PathBuf| {
            self.files.contains(path.as_path())
                || is_archive(path)
                    && path.parent().is_some_and(|place| self.places.contains(place))
        };
        listed.filter(may_be).filter_map(real).filter(is_wanted).collect()
    }
}

/// A database of packages, or a part of one, that kpack does not read.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Unread {
    path: PathBuf,
    why: &'static str,
    /// The command that reads it, if there is one.
    command: Option<&'static str>,
}

impl Unread {
    fn finding(&self) -> Finding {
        let mut text =
            format!("{}, so kpack cannot tell which package a file belongs to", self.why);
        if let Some(command) = self.command {
            text.push_str(&format!("; run `{command}`"));
        }
        Finding::new(Severity::Note, ids::UNREAD_PACKAGE_DATABASE, &self.path, text)
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
        let new = above.take_while(|path| root.inside(path).is_some() && !found.contains(path));
        let new = Vec::from_iter(new);
        found.extend(new);
    }
    found.into_iter().collect()
}

/// Whether a name or version has the characters that dpkg and RPM allow, and is no option.
fn is_plain(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".+-_~:^".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(is_plain)
}

/// The content of a text file, if it is one of at most `size` bytes. A name in it can have any bytes.
fn text(path: &Path, size: u64) -> Option<String> {
    // Otherwise a list is read in many small pieces.
    let mut bytes = Vec::with_capacity(16 << 10);
    input::open(path).ok()?.take(size + 1).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8(bytes);
    let text = text.unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
    (text.len() as u64 <= size).then_some(text)
}

/// What is in a directory, which may be missing.
fn entries(directory: &Path) -> io::Result<Vec<DirEntry>> {
    match fs::read_dir(directory) {
        Err(error) if is_absent(&error) => Ok(Vec::new()),
        listed => listed?.collect(),
    }
}
