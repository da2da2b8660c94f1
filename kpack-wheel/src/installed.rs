//! The distributions of a Python environment, as their `.dist-info` directories, or older `.egg-info`, describe them. Only
//! names and metadata are read, and nothing is trusted: names are parsed by PEP 503, versions by PEP 440.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use kpack_format::unstable::target_names;
use kpack_format::{Delivery, TargetId};
use pep440_rs::Version;
use pep508_rs::{MarkerEnvironment, MarkerEnvironmentBuilder, PackageName};

use super::metadata::Fields;
use super::record::{self, Change, Digest};
use super::set::{ALL, Pin, Pins, pins};
use kpack_core::{Error, Finding, Severity, ids, parallel};
use kpack_split::input;

/// The largest METADATA or RECORD, in bytes.
const MAX_METADATA: u64 = 64 << 20;
/// What is read in a `.dist-info` or `.egg-info` directory.
const FILES: [&str; 6] =
    ["METADATA", "PKG-INFO", "INSTALLER", "direct_url.json", RECORD, INSTALLED_FILES];
/// The list of a distribution's files, with their paths from `site-packages`, hashes and sizes.
const RECORD: &str = "RECORD";
/// The list that older tools write to an `.egg-info` directory: their paths from there.
const INSTALLED_FILES: &str = "installed-files.txt";
/// The longest name or version of a distribution.
const LONGEST: usize = 200;

/// A Python environment.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Environment {
    /// Its directory, which has `lib/python3.*/site-packages`.
    pub root: PathBuf,
    /// What is installed, by name.
    pub distributions: Vec<Distribution>,
    /// The distributions whose metadata cannot be read.
    pub findings: Vec<Finding>,
}

/// An installed distribution.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Distribution {
    /// Its name, normalised.
    pub name: String,
    /// Its version, normalised, with its local version.
    pub version: String,
    /// Its `.dist-info` directory.
    pub dist_info: PathBuf,
    /// The program that installed it, such as `pip`; empty if unknown.
    pub installer: String,
    /// The URL or file that it was installed from, if not from an index.
    pub origin: Option<String>,
    /// Whether it is not in the environment itself, but in that of its base Python.
    pub is_inherited: bool,
    /// The prefix outside which none of its files is.
    root: PathBuf,
    parsed: Version,
    pins: Pins,
}

/// A file of a distribution.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InstalledFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its size as RECORD has it.
    pub size: Option<u64>,
}

/// A distribution that another one requires.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Required {
    /// Its name, normalised.
    pub name: String,
    /// The only version that is accepted, if it is one.
    pub version: Option<String>,
    /// Its extras that are asked for.
    pub extras: BTreeSet<String>,
    parsed: Option<Version>,
}

/// What a GPU needs of a distribution that has device wheels.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Needed {
    /// The extras that ask for its device wheels.
    pub extras: BTreeSet<String>,
    /// What these ask for.
    pub required: BTreeSet<Required>,
    /// Device wheels for a family of the GPU that no extra for this GPU asks for.
    pub families: BTreeSet<Required>,
}

impl Environment {
    /// Reads the environment at `root`: a virtual environment, a prefix, a directory `site-packages`, or another one that
    /// distributions were installed into (`pip install --target`). `None` if it is none.
    pub fn read(root: &Path) -> Option<Self> {
        let packages = site_packages(root);
        if packages.is_empty() {
            return None;
        }
        let mut environment = Self { root: root.to_owned(), ..Self::default() };
        environment.add(root, &packages, false, &|_| true);
        if let Some((base, packages)) = inherited(root, &packages) {
            environment.add(&base, &packages, true, &|_| true);
        }
        environment.distributions.sort_by(|a, b| a.name.cmp(&b.name));
        Some(environment)
    }

    /// Reads what is in the directory `packages` alone, without what its environment inherits from a base Python: that may be
    /// outside of what the caller examines. A distribution with a file for which `may_read` is false is left out.
    pub fn in_packages(packages: &Path, may_read: &(dyn Fn(&Path) -> bool + Sync)) -> Self {
        let root = Self::around(packages).unwrap_or_else(|| packages.to_owned());
        let mut environment = Self { root: root.clone(), ..Self::default() };
        environment.add(&root, &[packages.to_owned()], false, may_read);
        environment
    }

    /// Whether distributions are installed in this directory: by its name, or by what is in it.
    pub fn is_packages(directory: &Path) -> bool {
        is_packages(directory)
    }

    /// Adds what is in these directories of the prefix `root`. What is there by the same name comes first.
    fn add(
        &mut self,
        root: &Path,
        packages: &[PathBuf],
        is_inherited: bool,
        may_read: &(dyn Fn(&Path) -> bool + Sync),
    ) {
        let mut found = BTreeSet::new();
        for directory in packages {
            let listed = fs::read_dir(directory).and_then(Iterator::collect);
            let entries: Vec<fs::DirEntry> = match listed {
                Ok(entries) => entries,
                Err(error) if is_absent(&error) => continue,
                Err(error) => {
                    let text = format!("{error}, so kpack knows no Python package in it");
                    let id = ids::UNREAD_PACKAGE_DATABASE;
                    self.findings.push(Finding::new(Severity::Warning, id, directory, text));
                    continue;
                }
            };
            let described = entries.iter().map(fs::DirEntry::path).filter(|path| {
                let ending = path.extension().unwrap_or_default();
                ending == "dist-info" && path.is_dir() || ending == "egg-info"
            });
            found.extend(described);
        }
        // A link can lead elsewhere.
        let is_allowed = |path: &Path| {
            let is_there = |path: &PathBuf| path.symlink_metadata().is_ok();
            let files = FILES.iter().map(|name| path.join(name)).filter(is_there);
            may_read(path) && { files }.all(|path| may_read(&path))
        };
        let real = root.canonicalize().unwrap_or_else(|_| root.to_owned());
        let read = parallel::map(found, |path| {
            is_allowed(&path).then(|| {
                let read = Distribution::read(&path, &real);
                (path, read)
            })
        });
        for (path, read) in read.into_iter().flatten() {
            match read {
                Ok(found) if self.get(&found.name).is_some() => {}
                Ok(found) => self.distributions.push(Distribution { is_inherited, ..found }),
                // Old tools wrote what PEP 440 forbids.
                Err(_) if path.extension().is_some_and(|ending| ending == "egg-info") => {}
                Err(text) => self.findings.push(Finding::new(
                    Severity::Warning,
                    ids::DAMAGED_WHEEL,
                    path,
                    text,
                )),
            }
        }
    }

    /// The environment that the file or directory at `path` is in.
    pub fn around(path: &Path) -> Option<PathBuf> {
        let packages = path.ancestors().find(|path| is_packages(path))?;
        // `lib/python3.12/site-packages`, or `Lib/site-packages` on Windows.
        let mut roots = [3, 2].into_iter().filter_map(|above| packages.ancestors().nth(above));
        let root = roots.find(|root| site_packages(root).iter().any(|found| found == packages));
        Some(root.unwrap_or(packages).to_owned())
    }

    /// The distribution with this name.
    pub fn get(&self, name: &str) -> Option<&Distribution> {
        self.distributions.iter().find(|distribution| distribution.name == name)
    }
}

/// The directories of the base Python that a virtual environment at `root`, which has these `packages`, includes, and
/// the prefix that they are in.
fn inherited(root: &Path, packages: &[PathBuf]) -> Option<(PathBuf, Vec<PathBuf>)> {
    let configuration = bytes(&root.join("pyvenv.cfg")).ok()?;
    let text = String::from_utf8_lossy(&configuration);
    let value = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once('='));
        lines.find_map(|(key, value)| (key.trim() == name).then_some(value.trim()))
    };
    value("include-system-site-packages").filter(|value| value.eq_ignore_ascii_case("true"))?;
    // The directory of the program, in Unix's layout.
    let home = Path::new(value("home")?);
    let base = if home.ends_with("bin") { home.parent()? } else { home };
    let version = python_of(packages);
    let may_be_for = |at: &PathBuf| {
        let own = python_of(std::slice::from_ref(at));
        own.is_none() || version.is_none() || own == version
    };
    let found = [base.join("local"), base.to_owned()].into_iter().flat_map(|at| site_packages(&at));
    Some((base.to_owned(), found.filter(may_be_for).collect()))
}

/// The version of Python in the path of the first of these directories that has one, such as `3.12`.
fn python_of(packages: &[PathBuf]) -> Option<&str> {
    packages.iter().find_map(|packages| {
        let name = packages.parent()?.file_name()?.to_str()?;
        name.strip_prefix("python").filter(|version| version.contains('.'))
    })
}

/// Whether a directory is named as those with installed distributions are, or has some.
fn is_packages(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    let is_named = name == "site-packages" || name == "dist-packages";
    let has_some = || {
        let mut entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.any(|entry| {
            let path = entry.path();
            let is_described = path.extension().is_some_and(|ending| ending == "dist-info");
            is_described && path.join("METADATA").is_file()
        })
    };
    is_named || has_some()
}

/// The directories with installed distributions of the environment at `root`.
fn site_packages(root: &Path) -> Vec<PathBuf> {
    if is_packages(root) && root.is_dir() {
        return vec![root.to_owned()];
    }
    let mut found = package_directories(root, &mut |directory| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name()).collect()
    });
    found.retain(|path| path.is_dir());
    found.sort();
    // `lib64` is often a link to `lib`.
    let mut real = BTreeSet::new();
    found.retain(|path| real.insert(path.canonicalize().unwrap_or_else(|_| path.clone())));
    found
}

/// Where the directories with installed distributions of the prefix `root` may be. `names_in` lists a directory, which
/// may be missing.
pub fn package_directories(
    root: &Path,
    names_in: &mut dyn FnMut(&Path) -> Vec<OsString>,
) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for lib in ["lib", "lib64", "Lib"].map(|name| root.join(name)) {
        let is_python = |name: &OsString| {
            let bytes = name.as_encoded_bytes();
            bytes.starts_with(b"python3") || bytes.starts_with(b"pypy3")
        };
        let pythons = names_in(&lib).into_iter().filter(is_python).map(|name| lib.join(name));
        for python in pythons.chain([lib.clone()]) {
            found.extend(["site-packages", "dist-packages"].map(|name| python.join(name)));
        }
    }
    found
}

impl Distribution {
    /// Reads the distribution that a file or directory describes, in the prefix `root`.
    fn read(dist_info: &Path, root: &Path) -> Result<Self, String> {
        let is_egg = dist_info.extension().is_some_and(|ending| ending == "egg-info");
        let fields = Fields::parse(match is_egg {
            false => bytes(&dist_info.join("METADATA"))?,
            true if dist_info.is_dir() => bytes(&dist_info.join("PKG-INFO"))?,
            true => bytes(dist_info)?,
        })?;
        let field = |name| fields.get(name).ok_or_else(|| format!("METADATA has no {name}"));
        let name = project(field("Name")?)?;
        let version = field("Version")?;
        if version.len() > LONGEST {
            return Err(format!("METADATA has a version of {} bytes", version.len()));
        }
        let parsed = Version::from_str(version)
            .map_err(|_| format!("METADATA has the version `{version}`, which PEP 440 forbids"))?;
        let text = |name: &str| bytes(&dist_info.join(name)).ok();
        let installer = text("INSTALLER").unwrap_or_default();
        let origin = text("direct_url.json")
            .and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok())
            .and_then(|value| value.get("url")?.as_str().map(str::to_owned));
        Ok(Self {
            name,
            version: parsed.to_string(),
            dist_info: dist_info.to_owned(),
            installer: String::from_utf8_lossy(&installer).trim().to_owned(),
            origin,
            is_inherited: false,
            root: root.to_owned(),
            parsed,
            pins: pins(&fields, &|_| true, markers(dist_info).as_ref())?,
        })
    }

    /// The directory with its files.
    pub fn site_packages(&self) -> &Path {
        self.dist_info.parent().unwrap_or(Path::new("/"))
    }

    /// The files that RECORD lists, or `installed-files.txt` of an `.egg-info` directory, without those outside its prefix;
    /// `None` if there is no such list, as in packages of distributions.
    ///
    /// # Errors
    /// [`Error::Refused`] if the list cannot be read.
    pub fn files(&self) -> Result<Option<Vec<InstalledFile>>, Error> {
        let is_there = |path: &PathBuf| !path.symlink_metadata().is_err_and(|e| is_absent(&e));
        let list = |name: &str| Some(self.dist_info.join(name)).filter(is_there);
        let read = |path: &Path| {
            bytes(path).map_err(|text| Error::rejected(ids::DAMAGED_WHEEL, path, text))
        };
        if let Some(path) = list(RECORD) {
            let rows = record::parse(&read(&path)?)
                .map_err(|text| Error::rejected(ids::DAMAGED_WHEEL, &path, text))?;
            let listed = rows.iter().map(|(name, row)| (name.as_str(), row.size()));
            return Ok(Some(self.below(self.site_packages(), listed)));
        }
        let Some(path) = list(INSTALLED_FILES) else { return Ok(None) };
        let text = read(&path)?;
        let names = String::from_utf8_lossy(&text);
        Ok(Some(self.below(&self.dist_info, names.lines().map(|name| (name, None)))))
    }

    /// The files with these paths from a directory that are in its prefix.
    fn below<'n>(
        &self,
        directory: &Path,
        listed: impl Iterator<Item = (&'n str, Option<u64>)>,
    ) -> Vec<InstalledFile> {
        // Rows of one directory come one after the other.
        let mut known: Option<(PathBuf, bool)> = None;
        let files = listed.filter_map(|(name, size)| {
            let path = joined(directory, Path::new(name))?;
            let parent = path.parent()?;
            if known.as_ref().is_none_or(|(known, _)| known != parent) {
                known = Some((parent.to_owned(), self.contains(parent)));
            }
            let is_inside = known.as_ref().is_some_and(|(_, is_inside)| *is_inside);
            is_inside.then_some(InstalledFile { path, size })
        });
        files.collect()
    }

    /// Whether a directory is in its prefix, with links resolved. What is missing is in the directory that it would
    /// be in.
    fn contains(&self, directory: &Path) -> bool {
        let real = directory.ancestors().find_map(|path| path.canonicalize().ok());
        real.is_some_and(|real| real.starts_with(&self.root))
    }

    /// Whether its extras ask for device wheels.
    pub fn has_device_extras(&self) -> bool {
        self.device_extras().next().is_some()
    }

    /// The targets of its extras.
    pub fn device_targets(&self) -> BTreeSet<String> {
        self.device_extras().map(|(target, ..)| target.plain_name().to_owned()).collect()
    }

    /// The target that this is the device wheel of.
    pub fn device_target(&self) -> Option<TargetId> {
        device_target(&self.name)
    }

    /// What it requires with these extras, in one version alone.
    pub fn pinned(&self, extras: &BTreeSet<String>) -> BTreeSet<Required> {
        let asked = self.pins.extras.iter().filter(|(extra, _)| extras.contains(extra.as_ref()));
        let pins = asked.flat_map(|(_, pins)| pins).chain(&self.pins.always);
        pins.map(Required::of).filter(|required| required.version.is_some()).collect()
    }

    /// The names of all distributions that it may require.
    pub fn may_require(&self) -> BTreeSet<String> {
        let pins = self.pins.extras.values().flatten().chain(&self.pins.always);
        pins.map(|pin| pin.project.to_string()).collect()
    }

    /// What `gpu` needs of its device wheels; `None` if there is none for it.
    pub fn needed_by(&self, gpu: &TargetId) -> Option<Needed> {
        let mut needed = Needed::default();
        let mut others = BTreeSet::new();
        let owner = gpu.package_owner();
        let has = |gpu: &TargetId| {
            let mut extras = self.device_extras();
            extras.any(|(target, ..)| target.processor() == gpu.processor())
        };
        // Versions from before such packages were shared have one for each.
        let gpu = if has(gpu) { gpu } else { &owner };
        let is_own = |target: &TargetId| target.processor() == gpu.processor();
        let has_own = has(gpu);
        for (target, extra, pins) in self.device_extras() {
            if !gpu.needs(&target, Delivery::Archive) && !target.covers(gpu) {
                continue;
            }
            let pins = pins.iter().map(Required::of);
            if is_own(&target) || !has_own {
                needed.extras.insert(extra.to_owned());
                needed.required.extend(pins);
            } else {
                others.extend(pins);
            }
        }
        if needed.extras.is_empty() {
            return None;
        }
        others.extend(self.pins.extras.iter().filter(|(extra, _)| extra.as_ref() == ALL).flat_map(
            |(_, pins)| {
                let of_family = pins.iter().filter(|pin| {
                    let target = device_target(pin.project.as_ref());
                    target.is_some_and(|target| !is_own(&target) && target.covers(gpu))
                });
                of_family.map(Required::of)
            },
        ));
        needed.families = others.difference(&needed.required).cloned().collect();
        Some(needed)
    }

    /// The extra that asks for `required` and for one target alone, if there is one.
    pub fn extra_for(&self, required: &Required) -> Option<&str> {
        let mut extras = self.device_extras();
        extras.find_map(|(_, extra, pins)| {
            let mut pins = pins.iter();
            pins.any(|pin| Required::of(pin) == *required).then_some(extra)
        })
    }

    /// Leaves out its extras, so that nothing is needed because of them.
    pub fn forget_extras(&mut self) {
        self.pins.extras.clear();
    }

    fn device_extras(&self) -> impl Iterator<Item = (TargetId, &str, &BTreeSet<Pin>)> {
        self.pins.extras.iter().filter_map(|(extra, pins)| {
            let extra: &str = extra.as_ref();
            Some((target_names::of_project(extra.strip_prefix("device-")?)?, extra, pins))
        })
    }
}

impl Required {
    fn of(pin: &Pin) -> Self {
        let version = pin.version.as_ref().map(Version::to_string);
        let extras = pin.extras.iter().map(ToString::to_string).collect();
        Self { name: pin.project.to_string(), version, extras, parsed: pin.version.clone() }
    }

    /// Whether it is met by `installed`, by name and version. A pin without a local version accepts all of them.
    pub fn is_met_by(&self, installed: &Distribution) -> bool {
        let accepts = |pin: &Version| {
            *pin == installed.parsed
                || pin.local().is_empty() && *pin == installed.parsed.clone().without_local()
        };
        self.name == installed.name && self.parsed.as_ref().is_none_or(accepts)
    }

    /// The target that this is the device wheel of.
    pub fn device_target(&self) -> Option<TargetId> {
        device_target(&self.name)
    }
}

impl std::fmt::Display for Required {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)?;
        if !self.extras.is_empty() {
            let extras = Vec::from_iter(self.extras.iter().map(String::as_str));
            write!(f, "[{}]", extras.join(","))?;
        }
        match &self.version {
            Some(version) => write!(f, "=={version}"),
            None => Ok(()),
        }
    }
}

/// The target at the end of the name of a device wheel: that of `amd-torch-device-gfx1100`.
fn device_target(name: &str) -> Option<TargetId> {
    let (_, label) = name.rsplit_once("-device-")?;
    target_names::of_project(label)
}

/// What a list of installed files should say of one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listed {
    /// What it says.
    Same,
    /// The file has this digest and size.
    Now(Digest),
    /// The file is no longer there.
    Gone,
}

/// Says what a list should say of a file, by its name and the size that the list has.
pub type Lister<'a> = dyn FnMut(&str, Option<u64>) -> Result<Listed, Error> + 'a;

/// The new content of a RECORD whose content is `bytes`, if anything in it changes. `listed` gets the name of each file and
/// its size. Rows that are right keep their bytes, and those without a digest and a size stay without.
///
/// # Errors
/// Those of `listed`.
pub fn update_record(bytes: &[u8], listed: &mut Lister<'_>) -> Result<Option<Vec<u8>>, Error> {
    record::with_changes(bytes, &mut |name, row| {
        Ok(match listed(name, row.size())? {
            Listed::Same => Change::Nothing,
            Listed::Gone => Change::Gone,
            Listed::Now(digest) => match row.contradiction(&digest.hash(), digest.size) {
                Some(_) => Change::To(digest),
                None => Change::Nothing,
            },
        })
    })
}

fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// A project's name, normalised.
fn project(name: &str) -> Result<String, String> {
    let wrong = || format!("METADATA has the name `{name}`, which PEP 503 forbids");
    // The library panics for names that end so.
    if name.len() > LONGEST || name.ends_with(['.', '_', '-']) {
        return Err(wrong());
    }
    PackageName::from_str(name).map(|name| name.to_string()).map_err(|_| wrong())
}

/// The content of a file that must fit into memory.
fn bytes(path: &Path) -> Result<Vec<u8>, String> {
    let file = input::open(path).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    let read = file.take(MAX_METADATA + 1).read_to_end(&mut bytes);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    read.map_err(|error| format!("cannot read {name}: {error}"))?;
    if bytes.len() as u64 > MAX_METADATA {
        return Err(format!("{name} has more than {MAX_METADATA} bytes"));
    }
    Ok(bytes)
}

/// The path that `name` means in `directory`, if it is below `root`.
pub fn within(root: &Path, directory: &Path, name: &Path) -> Option<PathBuf> {
    joined(directory, name).filter(|path| path.starts_with(root))
}

/// The path that `name` means in `directory`, if it is relative.
fn joined(directory: &Path, name: &Path) -> Option<PathBuf> {
    let mut path = directory.to_owned();
    for component in name.components() {
        match component {
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            Component::ParentDir => _ = path.pop(),
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(path)
}

/// What decides about requirements in the environment of a `.dist-info` directory, as far as its path tells; `None` if
/// that does not name the version of Python.
fn markers(dist_info: &Path) -> Option<MarkerEnvironment> {
    let packages = dist_info.parent()?;
    let is_of_windows = packages.parent()?.file_name()? == "Lib";
    let configuration = || {
        let file = bytes(&packages.ancestors().nth(2)?.join("pyvenv.cfg")).ok()?;
        let text = String::from_utf8_lossy(&file);
        let mut lines = text.lines().filter_map(|line| line.split_once('='));
        let version = lines.find(|(key, _)| ["version", "version_info"].contains(&key.trim()))?.1;
        Some(version.trim().split('.').take(2).collect::<Vec<_>>().join("."))
    };
    let python = if is_of_windows {
        configuration()?
    } else {
        python_of(&[packages.to_owned()])?.to_owned()
    };
    let [system, platform, os] =
        if is_of_windows { ["Windows", "win32", "nt"] } else { ["Linux", "linux", "posix"] };
    let machine = if is_of_windows { "AMD64" } else { std::env::consts::ARCH };
    MarkerEnvironment::try_from(MarkerEnvironmentBuilder {
        implementation_name: "cpython",
        implementation_version: &python,
        os_name: os,
        platform_machine: machine,
        platform_python_implementation: "CPython",
        platform_release: "",
        platform_system: system,
        platform_version: "",
        python_full_version: &python,
        python_version: &python,
        sys_platform: platform,
    })
    .ok()
}
