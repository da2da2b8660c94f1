//! The packages of a distribution and of conda: which one an archive or a binary belongs to, by the databases of dpkg and
//! RPM and by `conda-meta`, which are read without running any of these.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fs::{self, DirEntry};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use kpack_core::{Finding, Severity, ids, parallel, shown};
use kpack_format::names::is_archive;
use kpack_format::{Delivery, TargetId};
use kpack_split::input;
use kpack_wheel::within;
use serde::Deserialize;

use super::facts::{Binary, Code, Process};
use super::machine::{Machine, small_text};
use super::origins::{Origin, PackageManager};
use super::remedy::{Diagnosis, Remedy};
use super::restore::{AllLost, Restorer};
use super::rpm_database::{self, RpmPackage};

/// The largest list of the files of a package, and the largest database of dpkg, in bytes.
const MAX_LIST: u64 = 16 << 20;
const MAX_STATUS: u64 = 64 << 20;

/// The files of RPM's databases that are not of SQLite, and what each is.
const OTHER_RPM_DATABASES: [(&str, &str); 2] = [
    ("Packages.db", "RPM's database is in the format ndb, which kpack does not read"),
    ("Packages", "RPM's database is in the format Berkeley DB, which kpack does not read"),
];

/// A program that installs packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manager {
    Apt,
    Dnf,
    /// That of SUSE.
    Zypper,
    /// Several programs install packages of conda, and the prefix does not tell which of them made it.
    Conda,
}

/// An installed package, as far as it matters.
#[derive(Debug, Clone)]
pub(super) struct Package {
    pub(super) manager: Manager,
    pub(super) name: String,
    pub(super) version: String,
    /// Its architecture, if it is not that of the system.
    foreign: Option<String>,
    /// Archives, and binaries that are examined, as paths in the root.
    pub(super) files: Vec<PathBuf>,
    /// The packages that it recommends and that are not installed, with their versions.
    lacks: Vec<(String, Option<String>)>,
}

/// What dpkg knows about a package that is installed for an architecture.
struct DpkgPackage {
    version: String,
    architecture: String,
    /// Whether packages of other architectures can use it.
    is_for_all: bool,
    recommends: String,
}

/// What `conda-meta` says about a package.
#[derive(Deserialize)]
struct CondaPackage {
    name: String,
    version: String,
    build: String,
    files: Vec<String>,
}

/// What the examined binaries have to do with packages.
#[derive(Debug, Default)]
pub(super) struct Packages {
    pub(super) packages: Vec<Package>,
    missing: BTreeSet<PathBuf>,
    pub(super) unread: Vec<Unread>,
}

/// A database of packages, or a part of one, that kpack does not read.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Unread {
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

impl DpkgPackage {
    /// The installed packages by name. One can be installed for several architectures, in several versions.
    fn installed(root: &Root) -> Result<BTreeMap<String, Vec<Self>>, Unread> {
        let mut installed: BTreeMap<String, Vec<Self>> = BTreeMap::new();
        let Some(status) = root.inside("var/lib/dpkg/status") else { return Ok(installed) };
        let Some(text_of_status) = text(&status, MAX_STATUS) else {
            let why = "dpkg's database cannot be read";
            return Err(Unread { path: status, why, command: Some("dpkg --search FILE") });
        };
        for paragraph in text_of_status.split("\n\n") {
            let field = |name: &str| {
                let mut lines = paragraph.lines();
                lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
            };
            if let (Some(name), Some(version)) = (field("Package"), field("Version"))
                && field("Status").is_some_and(|status| status.ends_with(" installed"))
                && [name, version].into_iter().all(is_plain)
            {
                let architecture = field("Architecture").unwrap_or_default();
                installed.entry(name.to_owned()).or_default().push(Self {
                    version: version.to_owned(),
                    architecture: architecture.to_owned(),
                    is_for_all: architecture == "all" || field("Multi-Arch") == Some("foreign"),
                    recommends: field("Recommends").unwrap_or_default().to_owned(),
                });
            }
        }
        Ok(installed)
    }

    /// It by its name, where the system has the architecture `own`.
    fn named(&self, name: &str, own: Option<&str>) -> Package {
        let is_foreign = own.is_some_and(|own| own != self.architecture)
            && self.architecture != "all"
            && is_plain(&self.architecture);
        Package {
            manager: Manager::Apt,
            name: name.to_owned(),
            version: self.version.clone(),
            foreign: is_foreign.then(|| self.architecture.clone()),
            files: Vec::new(),
            lacks: Vec::new(),
        }
    }
}

/// The architecture of the system, if others are known. dpkg writes this list when the first foreign one is added, and the
/// system's own one is first.
fn own_architecture(root: &Root) -> Option<String> {
    let architectures = root.inside("var/lib/dpkg/arch").and_then(|path| small_text(&path))?;
    Some(architectures.lines().next()?.trim().to_owned())
}

/// The packages in RPM's database, and the program that installs them; `None` if there is no database.
fn rpm_packages(root: &Root) -> Result<Option<(Manager, Vec<RpmPackage>)>, Unread> {
    let find = |name: &str| {
        let places = ["usr/lib/sysimage/rpm", "var/lib/rpm"].into_iter();
        let mut files = places.filter_map(|place| root.inside(&format!("{place}/{name}")));
        files.find(|path| path.is_file())
    };
    let command = Some("rpm --query --file FILE");
    let unread = |path, why| Err(Unread { path, why, command });
    let Some(database) = find("rpmdb.sqlite") else {
        for (name, why) in OTHER_RPM_DATABASES {
            if let Some(path) = find(name) {
                return unread(path, why);
            }
        }
        return Ok(None);
    };
    let Some(packages) = rpm_database::read(&database) else {
        let why = "kpack cannot read RPM's database: it is damaged, or part of it is still in the write-ahead log";
        return unread(database, why);
    };
    let releases = ["etc/os-release", "usr/lib/os-release"].into_iter();
    let mut releases = releases.filter_map(|path| root.inside(path));
    let release = releases.find_map(|path| small_text(&path)).unwrap_or_default();
    let mut lines = release.lines().filter_map(|line| line.split_once('='));
    let is_suse = lines.any(|(key, ids)| ["ID", "ID_LIKE"].contains(&key) && ids.contains("suse"));
    let manager = if is_suse { Manager::Zypper } else { Manager::Dnf };
    let is_sound =
        |own: &RpmPackage| [&own.name, &own.version].into_iter().all(|text| is_plain(text));
    Ok(Some((manager, packages.into_iter().filter(is_sound).collect())))
}

/// The directory that paths in databases are below.
pub(super) struct Root {
    path: PathBuf,
    /// The same without links.
    pub(super) real: PathBuf,
    /// The directories `/lib` and others that are links into `/usr`.
    merged: Vec<&'static str>,
}

impl Root {
    pub(super) fn new(path: PathBuf) -> Self {
        let mut merged = Vec::from(["lib", "lib64", "bin", "sbin"]);
        merged.retain(|name| {
            let target = fs::read_link(path.join(name));
            let usr = Path::new("usr").join(name);
            target.is_ok_and(|target| target == usr || target == Path::new("/").join(&usr))
        });
        let real = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
        Self { path, real, merged }
    }

    /// Whether there is something at this path, and no link leads outside.
    ///
    /// # Errors
    /// Those of the system, unless nothing is there.
    pub(super) fn has(&self, path: &Path) -> io::Result<bool> {
        match fs::canonicalize(path) {
            Err(error) if is_absent(&error) => Ok(false),
            found => Ok(found?.starts_with(&self.real)),
        }
    }

    /// A file or directory of the root by its real path, unless a link leads outside.
    fn inside(&self, path: &str) -> Option<PathBuf> {
        let path = fs::canonicalize(self.path.join(path)).ok()?;
        path.starts_with(&self.real).then_some(path)
    }

    /// Where a file is that a database lists: packages may list it as it was before `/lib` became a link.
    fn join(&self, listed: &str) -> PathBuf {
        let listed = listed.trim_start_matches('/');
        let first = listed.split('/').next().unwrap_or_default();
        if self.merged.contains(&first) {
            self.path.join("usr").join(listed)
        } else {
            self.path.join(listed)
        }
    }
}

/// The files whose packages are looked for.
pub(super) struct Wanted<'a> {
    files: BTreeSet<&'a Path>,
    /// Their names: a machine's packages list many thousands of files, and most are rejected by these alone.
    names: HashSet<&'a OsStr>,
    /// Directories all of whose archives are wanted.
    places: BTreeSet<PathBuf>,
}

impl<'a> Wanted<'a> {
    pub(super) fn new(files: BTreeSet<&'a Path>, places: BTreeSet<PathBuf>) -> Self {
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

/// The installed packages of dpkg and RPM, without their files. Of a database that cannot be read, none are known.
#[derive(Debug, Default)]
pub(super) struct Installed(Vec<Package>);

impl Installed {
    /// Reads the databases below `root`.
    pub(super) fn read(root: &Path) -> Self {
        let root = &Root::new(root.to_owned());
        let own = own_architecture(root);
        let dpkg = DpkgPackage::installed(root).unwrap_or_default().into_iter();
        let mut found = Vec::from_iter(dpkg.flat_map(|(name, packages)| {
            let own = own.as_deref();
            Vec::from_iter(packages.iter().map(|package| package.named(&name, own)))
        }));
        if let Ok(Some((manager, packages))) = rpm_packages(root) {
            found.extend(packages.into_iter().map(|own| Package {
                manager,
                name: own.name,
                version: own.version,
                foreign: None,
                files: Vec::new(),
                lacks: Vec::new(),
            }));
        }
        Self(found)
    }

    /// Whether none is known.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The package of that full name in that version.
    pub(super) fn get(&self, name: &str, version: &str) -> Option<&Package> {
        self.0.iter().find(|own| own.full_name() == name && own.version == version)
    }
}

/// The packages of dpkg and RPM, by the databases below `root`, that list any of these files and directories, with those.
/// Of a database that cannot be read, none are known.
pub(super) fn listing(root: &Path, paths: BTreeSet<&Path>) -> Vec<Package> {
    let root = &Root::new(root.canonicalize().unwrap_or_else(|_| root.to_owned()));
    let wanted = &Wanted::new(paths, BTreeSet::new());
    let mut found = Packages::default();
    found.add_dpkg(root, wanted);
    found.add_rpm(root, wanted);
    found.packages
}

impl Packages {
    /// The packages in the databases below the root of `machine` that have something to do with these processes.
    pub(super) fn of(processes: &[Process], machine: &Machine) -> Self {
        let binaries = || processes.iter().flat_map(|process| &process.binaries);
        let lacks_code = |binary: &Binary| binary.code.iter().any(|(_, code)| !code.is_here());
        // A machine may have thousands of packages, and what lists their files has to be read.
        if !binaries().any(lacks_code) {
            return Self::default();
        }
        let binaries: BTreeSet<&Path> = binaries().map(|binary| binary.path.as_path()).collect();
        // Paths of binaries have links resolved.
        let system = machine.system.canonicalize();
        let root = &Root::new(system.unwrap_or_else(|_| machine.system.clone()));
        // The directories `.kpack` beside and above the binaries.
        let places: BTreeSet<PathBuf> = binaries
            .iter()
            .flat_map(|path| path.ancestors().skip(1))
            .map(|directory| directory.join(".kpack"))
            .collect();
        let prefixes: BTreeSet<&Path> =
            binaries.iter().flat_map(|path| path.ancestors().skip(1)).collect();
        let wanted = &Wanted::new(binaries, places);
        let mut found = Self::default();
        found.add_dpkg(root, wanted);
        found.add_rpm(root, wanted);
        for prefix in prefixes {
            found.add_conda(prefix, wanted, None);
        }
        let files = found.packages.iter().flat_map(|package| &package.files);
        let mut restorer = Restorer::new(&machine.system);
        // What trim removed is missed only where a binary lacks it.
        let is_missing =
            |path: &&PathBuf| fs::symlink_metadata(path).is_err() && !restorer.has_removed(path);
        found.missing = files.filter(is_missing).cloned().collect();
        found
    }

    pub(super) fn add_dpkg(&mut self, root: &Root, wanted: &Wanted<'_>) {
        let installed = match DpkgPackage::installed(root) {
            Ok(installed) => installed,
            Err(unread) => return self.unread.push(unread),
        };
        if installed.is_empty() {
            return;
        }
        let own = own_architecture(root);
        let Some(info) = root.inside("var/lib/dpkg/info") else { return };
        let Ok(lists) = entries(&info) else {
            let why = "dpkg's lists of the files of packages cannot be listed";
            let command = Some("dpkg --search FILE");
            return self.unread.push(Unread { path: info, why, command });
        };
        // dpkg writes no links there.
        let lists = lists.into_iter();
        let lists = lists.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
        let lists = Vec::from_iter(lists.map(|entry| entry.path()));
        let read = parallel::map(lists, |path| {
            let name = path.file_name()?.to_string_lossy();
            let name = name.strip_suffix(".list")?;
            // Only the lists of packages that may be installed for several architectures name theirs.
            let (name, architecture) = match name.split_once(':') {
                Some((name, architecture)) => (name, Some(architecture)),
                None => (name, None),
            };
            let mut packages = installed.get(name)?.iter();
            let package =
                packages.find(|own| architecture.is_none_or(|name| own.architecture == name))?;
            let Some(list) = text(&path, MAX_LIST) else {
                let why = "this list of a package's files cannot be read";
                return Some(Err(Unread { path, why, command: Some("dpkg --search FILE") }));
            };
            let files = wanted.among(list.lines(), |line| Some(root.join(line)));
            if files.is_empty() {
                return None;
            }
            let serves = |other: &DpkgPackage| {
                other.is_for_all || other.architecture == package.architecture
            };
            let is_there = |name: &str| {
                let mut others = installed.get(name).into_iter().flatten();
                others.any(serves)
            };
            let recommends = recommended(&package.recommends);
            let lacks = recommends.filter(|(name, _)| !is_there(name)).collect();
            Some(Ok(Package { files, lacks, ..package.named(name, own.as_deref()) }))
        });
        for found in read.into_iter().flatten() {
            match found {
                Ok(package) => self.packages.push(package),
                Err(unread) => self.unread.push(unread),
            }
        }
    }

    pub(super) fn add_rpm(&mut self, root: &Root, wanted: &Wanted<'_>) {
        let (manager, packages) = match rpm_packages(root) {
            Ok(Some(found)) => found,
            Ok(None) => return,
            Err(unread) => return self.unread.push(unread),
        };
        let installed: BTreeSet<String> = packages.iter().map(|own| own.name.clone()).collect();
        for package in packages {
            let RpmPackage { name, version, files, recommends, .. } = package;
            let files =
                wanted.among(files.iter().map(String::as_str), |path| Some(root.join(path)));
            if !files.is_empty() {
                let lacks = recommends.into_iter().filter(|(name, version)| {
                    let is_sound = is_plain(name) && version.as_deref().is_none_or(is_plain);
                    is_sound && !installed.contains(name)
                });
                let lacks = lacks.collect();
                self.packages.push(Package { manager, name, version, foreign: None, files, lacks });
            }
        }
    }

    /// Adds the packages of a prefix. Of an `image`, nothing that a link leads out of is read.
    pub(super) fn add_conda(&mut self, prefix: &Path, wanted: &Wanted<'_>, image: Option<&Root>) {
        let may_read = |path: &Path| image.map_or(Ok(true), |image| image.has(path));
        let command = Some("conda list");
        let directory = prefix.join("conda-meta");
        let listed = may_read(&directory)
            .and_then(|may| if may { entries(&directory) } else { Ok(Vec::new()) });
        let Ok(listed) = listed else {
            let why = "conda's descriptions of packages cannot be listed";
            return self.unread.push(Unread { path: directory, why, command });
        };
        let mut lists = Vec::from_iter(listed.iter().map(DirEntry::path));
        lists.retain(|path| path.extension().is_some_and(|end| end == "json"));
        lists.sort();
        for path in lists {
            if may_read(&path).is_ok_and(|may| !may) {
                continue;
            }
            let package = text(&path, MAX_LIST);
            let package = package.and_then(|text| serde_json::from_str::<CondaPackage>(&text).ok());
            let Some(package) = package else {
                let why = "conda's description of a package cannot be read";
                self.unread.push(Unread { path, why, command });
                continue;
            };
            let CondaPackage { name, version, build, files } = package;
            if ![&name, &version, &build].into_iter().all(|text| is_plain(text)) {
                continue;
            }
            let files = files.iter().map(String::as_str);
            let files = wanted.among(files, |path| within(prefix, prefix, Path::new(path)));
            if !files.is_empty() {
                self.packages.push(Package {
                    manager: Manager::Conda,
                    name,
                    version: format!("{version} (build {build})"),
                    foreign: None,
                    files,
                    lacks: Vec::new(),
                });
            }
        }
    }

    /// What was not read, if a binary that lacks code belongs to no known package.
    fn judge_unread(&self, processes: &[Process]) -> impl Iterator<Item = Diagnosis> {
        let binaries = processes.iter().flat_map(|process| &process.binaries);
        let lacking = binaries
            .filter(|binary| binary.code.iter().any(|(_, code)| !code.is_here()))
            .map(|binary| &binary.path);
        let is_known = |path| self.packages.iter().any(|package| package.files.contains(path));
        let is_wanted = { lacking }.any(|path| !is_known(path));
        let mut unread = BTreeSet::from_iter(&self.unread);
        unread.retain(|_| is_wanted);
        unread.into_iter().map(|unread| unread.finding().into())
    }

    /// The findings: archives that a package lists and that are gone, and device packages that are recommended for a GPU
    /// and not installed. `all_lost` is what trim removed, which `judge` explains.
    pub(super) fn judge(
        &self,
        processes: &[Process],
        machine: &Machine,
        all_lost: &AllLost,
    ) -> Vec<Diagnosis> {
        let mut found = Vec::new();
        for package in &self.packages {
            let mut gone = package.files.iter().filter(|path| self.missing.contains(*path));
            let Some(path) = gone.next() else { continue };
            let text = format!(
                "the package {} {} is installed, but its archive is missing",
                package.named(&package.name),
                package.version
            );
            let mut fault = Finding::new(Severity::Fault, ids::DEVICE_PACKAGE_DAMAGED, path, text);
            if package.manager == Manager::Conda {
                fault = fault.with_help(package.of_conda());
            }
            found.push(Diagnosis::from(fault).mended_by(package.reinstall()));
        }
        for gpu in machine.gpus() {
            let mut missing: BTreeMap<&str, (&Package, Option<&str>)> = BTreeMap::new();
            let binaries = processes.iter().flat_map(|process| &process.binaries);
            let lacks = |code: &[(TargetId, Code)]| {
                code.iter().any(|(known, code)| known == gpu && !code.is_here())
            };
            for binary in binaries.filter(|binary| lacks(&binary.code)) {
                let mut owners = self.packages.iter();
                let Some(owner) = owners.find(|owner| owner.files.contains(&binary.path)) else {
                    continue;
                };
                let has = binary.code.iter().any(|(_, code)| code.is_here());
                let is_lost = all_lost.contains_key(&(binary.path.clone(), gpu.clone()));
                let is_there =
                    || !is_lost && !owner.files.iter().any(|path| self.missing.contains(path));
                if owner.manager == Manager::Conda && (!has || machine.asked) && is_there() {
                    let text = format!("{} {} has no code for {gpu}", owner.name, owner.version);
                    let id = ids::DEVICE_PACKAGE_MISSING;
                    let fault = Finding::new(Severity::Fault, id, &binary.path, text);
                    let fault = Diagnosis::from(fault.with_help(owner.of_conda()));
                    found.push(fault.about([gpu.clone()]));
                }
                for (name, version) in &owner.lacks {
                    if target_of(name).is_some_and(|target| is_for(&target, gpu)) {
                        missing.insert(name, (owner, version.as_deref()));
                    }
                }
            }
            for (name, (owner, version)) in missing {
                let text = format!(
                    "{} {} recommends {name} for {gpu}, which is not installed",
                    owner.name, owner.version
                );
                let path = owner.files.first().map_or(Path::new("/"), PathBuf::as_path);
                let text = format!("{text}: {} has no code for it", shown(path));
                let fault = Finding::general(Severity::Fault, ids::DEVICE_PACKAGE_MISSING, text);
                let remedy = owner.manager.install(&owner.named(name), version);
                found.push(Diagnosis::from(fault).mended_by(remedy).about([gpu.clone()]));
            }
        }
        found.extend(self.judge_unread(processes));
        found
    }
}

impl Package {
    /// Its name, as programs are told it.
    pub(super) fn full_name(&self) -> String {
        self.named(&self.name)
    }

    /// The name of a package for the same architecture, as programs are told it.
    fn named(&self, name: &str) -> String {
        match &self.foreign {
            Some(architecture) => format!("{name}:{architecture}"),
            None => name.to_owned(),
        }
    }

    /// Whether this is the package that a note names. The note does not tell DNF from Zypper.
    pub(super) fn is(&self, origin: &Origin) -> bool {
        self.manager.lists() == origin.manager
            && self.full_name() == origin.name
            && self.version == origin.version
    }

    fn reinstall(&self) -> Option<Remedy> {
        self.manager.reinstall(&[self])
    }

    /// What to do about a package of conda, for which there is no command that is sure.
    fn of_conda(&self) -> String {
        let Self { name, version, .. } = self;
        format!(
            "with the program that made this conda environment, install {name} {version} again, or a build of it with code for this GPU"
        )
    }
}

impl Manager {
    /// What keeps the lists of its packages.
    pub(super) fn lists(self) -> PackageManager {
        match self {
            Self::Apt => PackageManager::Dpkg,
            Self::Dnf | Self::Zypper => PackageManager::Rpm,
            Self::Conda => PackageManager::Conda,
        }
    }

    /// The program, and what is between a name and its version there.
    fn program(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Apt => Some(("apt-get", "=")),
            Self::Dnf => Some(("dnf", "-")),
            Self::Zypper => Some(("zypper", "=")),
            Self::Conda => None,
        }
    }

    fn install(self, name: &str, version: Option<&str>) -> Option<Remedy> {
        let (program, between) = self.program()?;
        let pinned = version.map_or(name.to_owned(), |version| format!("{name}{between}{version}"));
        Remedy::new(program, ["install", &pinned])
    }

    /// The command that installs these packages again, in the versions that they have.
    pub(super) fn reinstall(self, packages: &[&Package]) -> Option<Remedy> {
        let (program, between) = self.program()?;
        let action = match self {
            Self::Dnf => &["reinstall"][..],
            Self::Zypper => &["install", "--force"],
            Self::Apt | Self::Conda => &["install", "--reinstall"],
        };
        let pinned =
            packages.iter().map(|own| format!("{}{between}{}", own.full_name(), own.version));
        Remedy::new(program, action.iter().map(|&word| word.to_owned()).chain(pinned))
    }
}

/// Whether a name or version has the characters that dpkg and RPM allow, and is no option.
fn is_plain(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".+-_~:^".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(is_plain)
}

/// Whether the package of a target has what a GPU needs: its code, or files for its family.
pub(super) fn is_for(package: &TargetId, gpu: &TargetId) -> bool {
    [gpu, &gpu.package_owner()]
        .iter()
        .any(|gpu| package.covers(gpu) || gpu.needs(package, Delivery::Archive))
}

/// The target at the end of the name of a device package: that of `libvec1-gfx90a.xnack-on`.
fn target_of(name: &str) -> Option<TargetId> {
    let label = &name[name.rfind("-gfx")? + 1..];
    let processor = label.split('.').next()?;
    TargetId::family(processor).or_else(|| processor.parse().ok())
}

/// What a field like `a (= 1) | b, c` asks for first of all: `a` and `c`, with the versions that alone are accepted.
fn recommended(field: &str) -> impl Iterator<Item = (String, Option<String>)> {
    let groups = field.split(',');
    groups.filter_map(|group| {
        let text = group.split('|').next()?.trim();
        let (name, rest) = text.split_once(' ').unwrap_or((text, ""));
        let version = rest.trim().strip_prefix("(=").and_then(|rest| rest.strip_suffix(')'));
        let version = version.map(|version| version.trim().to_owned());
        let is_sound = is_plain(name) && version.as_ref().is_none_or(|version| is_plain(version));
        is_sound.then(|| (name.to_owned(), version))
    })
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

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}
