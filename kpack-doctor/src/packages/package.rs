//! What the readers of packages have in common: packages, the files whose packages are looked for, and what cannot be read.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};

use kpack_core::{Finding, Severity, ids};
use kpack_format::names::is_archive;
use serde::{Deserialize, Serialize};

use crate::remedy::Remedy;
use crate::root::is_absent;

/// The largest list of the files of a package, in bytes.
pub(super) const MAX_LIST: u64 = 16 << 20;

/// The package manager that lists a package's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum PackageManager {
    /// dpkg, for which apt installs.
    Dpkg,
    /// RPM, for which dnf or zypper installs.
    Rpm,
    /// conda, which lists them in `conda-meta`.
    Conda,
    /// Python's installers, which list them in `RECORD`. Whether pip or uv installs depends on the environment.
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
#[non_exhaustive]
pub struct Origin {
    /// The package manager that lists its files.
    pub manager: PackageManager,
    /// Its name; for dpkg with the architecture, if that is not the system's.
    pub name: String,
    /// Its version.
    pub version: String,
}

impl Origin {
    /// How a package of conda is installed again. Several programs install these, and each breaks what another one manages, so
    /// there is no command.
    pub(crate) fn again_by_conda(&self) -> String {
        let Self { name, version, .. } = self;
        format!("with the program that made this conda environment, install {name} {version} again")
    }
}

/// A package, and some of its files.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub struct Owner {
    /// The package.
    #[serde(flatten)]
    pub package: Origin,
    /// The files.
    #[serde(serialize_with = "kpack_core::lossy::paths")]
    pub files: Vec<PathBuf>,
}

/// What the lists of a manager say.
#[derive(Debug, Default)]
pub(super) struct PackageLists {
    pub(super) packages: Vec<Package>,
    pub(super) unread: Vec<Unread>,
}

impl From<Unread> for PackageLists {
    fn from(unread: Unread) -> Self {
        Self { packages: Vec::new(), unread: vec![unread] }
    }
}

impl FromIterator<Result<Package, Unread>> for PackageLists {
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
    pub(super) suffix: String,
    /// The program that installs it, if the list tells.
    pub(super) program: Option<&'static PackageTool>,
    /// Archives, and other files that are wanted, as paths in the root.
    pub(crate) files: Vec<PathBuf>,
    /// The packages that it recommends and that are not installed, with their versions.
    pub(crate) lacks: Vec<(String, Option<String>)>,
}

/// A program that installs packages.
#[derive(Debug)]
pub(super) struct PackageTool {
    pub(super) name: &'static str,
    /// What is between a package's name and its version.
    pub(super) before_version: &'static str,
    /// The arguments that install packages again.
    pub(super) reinstall: &'static [&'static str],
}

impl Package {
    pub(super) fn without_command(origin: Origin, files: Vec<PathBuf>) -> Self {
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

    /// The commands that install these packages again, one for those of each manager.
    pub(crate) fn reinstall_all(packages: &[&Self]) -> BTreeMap<PackageManager, Option<Remedy>> {
        let mut by_manager: BTreeMap<PackageManager, Vec<&Self>> = BTreeMap::new();
        for package in packages {
            by_manager.entry(package.origin.manager).or_default().push(package);
        }
        let commands = by_manager.into_iter();
        commands.map(|(manager, packages)| (manager, Self::reinstall(&packages))).collect()
    }

    /// The command that installs these packages of one manager again, in the versions that they have.
    pub(crate) fn reinstall(packages: &[&Self]) -> Option<Remedy> {
        let program = packages.first()?.program?;
        let pinned = packages.iter().map(|Self { origin, .. }| {
            format!("{}{}{}", origin.name, program.before_version, origin.version)
        });
        let words = program.reinstall.iter().map(|&word| word.to_owned());
        Remedy::new(program.name, words.chain(pinned))
    }
}

/// A database of packages, or a part of one, that kpack does not read.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Unread {
    pub(super) path: PathBuf,
    pub(super) why: &'static str,
    /// The command that reads it, if there is one.
    pub(super) command: Option<&'static str>,
}

impl Unread {
    pub(super) fn finding(&self) -> Finding {
        let mut text =
            format!("{}, so kpack cannot tell which package a file belongs to", self.why);
        if let Some(command) = self.command {
            text.push_str(&format!("; run `{command}`"));
        }
        Finding::new(Severity::Note, ids::UNREAD_PACKAGE_DATABASE, &self.path, text)
    }
}

/// The files whose packages are looked for.
pub(crate) struct WantedFiles<'a> {
    files: BTreeSet<&'a Path>,
    /// Their names: a machine's packages list many thousands of files, and most are rejected by these alone.
    names: HashSet<&'a OsStr>,
    /// Directories all of whose archives are wanted.
    places: BTreeSet<PathBuf>,
}

impl<'a> WantedFiles<'a> {
    pub(crate) fn new(files: BTreeSet<&'a Path>, places: BTreeSet<PathBuf>) -> Self {
        let names = files.iter().filter_map(|path| path.file_name()).collect();
        Self { files, names, places }
    }

    /// Whether the package of this file is looked for.
    pub(super) fn contains(&self, path: &Path) -> bool {
        self.files.contains(path)
    }

    /// Those among the files that a package lists; `real` says where one is.
    pub(super) fn among<'l>(
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

/// Whether a name or version has the characters that dpkg and RPM allow, and is no option.
pub(super) fn is_plain(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".+-_~:^".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(is_plain)
}

/// What is in a directory, which may be missing.
pub(super) fn entries(directory: &Path) -> io::Result<Vec<DirEntry>> {
    match fs::read_dir(directory) {
        Err(error) if is_absent(&error) => Ok(Vec::new()),
        listed => listed?.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given packages of dpkg and of RPM on one machine, then each manager gets a command for its own.
    #[test]
    fn each_manager_installs_its_own_packages_again() {
        const APT: PackageTool = PackageTool {
            name: "apt-get",
            before_version: "=",
            reinstall: &["install", "--reinstall"],
        };
        const DNF: PackageTool =
            PackageTool { name: "dnf", before_version: "-", reinstall: &["reinstall"] };
        let package = |manager, program, name: &str| {
            let origin = Origin { manager, name: name.to_owned(), version: "1".to_owned() };
            Package { program: Some(program), ..Package::without_command(origin, Vec::new()) }
        };
        let one = package(PackageManager::Dpkg, &APT, "one");
        let two = package(PackageManager::Rpm, &DNF, "two");
        let three = package(PackageManager::Dpkg, &APT, "three");
        let commands = Package::reinstall_all(&[&one, &two, &three])
            .into_values()
            .map(|remedy| remedy.unwrap().command);
        let expected = ["apt-get install --reinstall 'one=1' 'three=1'", "dnf reinstall two-1"];
        assert_eq!(Vec::from_iter(commands), expected);
    }
}
