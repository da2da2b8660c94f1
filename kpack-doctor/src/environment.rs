//! What a Python environment has: its distributions, their binaries with device code, and the HIP runtimes among them.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use super::dynamic_linker::{self, Library, Loading};
use super::facts::{HipRuntime, Process, Runtime, open_linked};
use super::image;
use super::index::{self, Sources};
use super::machine::{Machine, small_text};
use super::packages::{Origin, PackageManager};
use kpack_core::{Error, Finding, Severity, ids, parallel};
use kpack_format::names::is_archive;
use kpack_split::elf::DeviceCode;
use kpack_split::input::{self, LinkedBinary, or_refused};
use kpack_wheel::{Distribution, Environment};

/// A Python environment.
#[derive(Debug)]
pub(super) struct PythonEnvironment {
    pub(super) installed: Environment,
    pub(super) installer: Installer,
    /// Whether it is the one that its installer uses if none is named.
    pub(super) is_default: bool,
    pub(super) sources: Sources,
    /// Whose each binary with device code is, by path and by real path.
    pub(super) owners: BTreeMap<PathBuf, String>,
    /// The distributions whose binaries are links to files elsewhere.
    pub(super) linked: BTreeSet<String>,
    /// Archives and libraries that RECORD lists, by distribution, and what is wrong with them.
    pub(super) damaged: Vec<(String, PathBuf, String)>,
    /// The HIP runtimes, with the distribution of each.
    pub(super) runtimes: Vec<(String, PathBuf)>,
    /// What could not be read.
    pub(super) findings: Vec<Finding>,
    /// Directories that could not be read, where device code may be.
    pub(super) unread: Vec<Finding>,
}

/// The program that changes an environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Installer {
    Pip,
    Uv,
    /// uv, with the project in this directory.
    UvProject(PathBuf),
    /// One that kpack has no command for: what to do instead.
    Other(String),
}

/// The files of one distribution that matter.
#[derive(Default)]
struct Files {
    binaries: Vec<LinkedBinary>,
    damaged: Vec<(PathBuf, String)>,
    runtimes: Vec<PathBuf>,
    findings: Vec<Finding>,
    /// Whether nothing says which files the distribution has.
    is_unlisted: bool,
}

impl PythonEnvironment {
    /// Reads the environment at `root`, and the processes of its binaries with device code, or of those below `only`.
    pub(super) fn read(
        root: &Path,
        only: Option<&Path>,
        machine: &Machine,
    ) -> Result<Option<(Self, Vec<Process>)>, Error> {
        let root = std::path::absolute(root).map_err(|e| Error::io(root, "find", e))?;
        // Installers are told of the environment, not of its directory with packages.
        let whole = Environment::around(&root).filter(|_| only.is_none());
        let root = whole.unwrap_or(root);
        let Some(installed) = Environment::read(&root) else {
            return Ok(None);
        };
        let read = parallel::map(&installed.distributions, |distribution| {
            match distribution.files() {
                // Packages of distributions have no RECORD.
                Ok(Some(files)) => {
                    Files::read(files.into_iter().map(|file| (file.path, file.size)))
                }
                Ok(None) => Files { is_unlisted: true, ..Files::default() },
                Err(error) => {
                    let (id, text) = (error.id(), error.to_string());
                    let finding = Finding::general(Severity::Warning, id, text);
                    Files { findings: vec![finding], is_unlisted: true, ..Files::default() }
                }
            }
        });
        let of_one = |finding: &&Finding| finding.id == ids::DAMAGED_WHEEL;
        let damaged = installed.findings.iter().filter(of_one);
        let damaged = damaged.filter_map(|finding| finding.file().parent());
        let listed = read.iter().zip(&installed.distributions);
        let without_list = listed.filter(|(files, _)| files.is_unlisted);
        let unlisted_in = damaged.chain(without_list.map(|(_, own)| own.site_packages()));
        let unlisted_in: BTreeSet<PathBuf> = unlisted_in.map(Path::to_owned).collect();
        let mut environment = Self::of(root, installed);
        let mut binaries = Vec::new();
        for (files, distribution) in read.into_iter().zip(&environment.installed.distributions) {
            let name = &distribution.name;
            let own = |path: PathBuf| (name.clone(), path);
            environment.runtimes.extend(files.runtimes.into_iter().map(own));
            let damaged = files.damaged.into_iter();
            environment.damaged.extend(damaged.map(|(path, why)| (name.clone(), path, why)));
            environment.findings.extend(files.findings);
            for linked in &files.binaries {
                let real = linked.path.canonicalize().unwrap_or_else(|_| linked.path.clone());
                if linked.path.is_symlink() {
                    environment.linked.insert(name.clone());
                }
                environment.owners.insert(real, name.clone());
                environment.owners.insert(linked.path.clone(), name.clone());
            }
            binaries.extend(files.binaries);
        }
        let only = only.map(|path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
        for directory in &unlisted_in {
            binaries.extend(environment.add_unlisted(directory, only.as_deref()));
        }
        let own = environment.own_runtime()?;
        let mut processes = Vec::new();
        for linked in binaries {
            if only.as_ref().is_some_and(|only| !linked.path.starts_with(only)) {
                continue;
            }
            let loading = dynamic_linker::libraries(&linked.path, &linked.image)?;
            processes.push(Process::of_binary(&linked, &loading, own.as_ref(), machine)?);
        }
        if let Some(only) = &only {
            environment.keep(only);
        }
        Ok(Some((environment, processes)))
    }

    /// The environment at `root`, with what decides about commands, and nothing about files.
    pub(super) fn described(root: &Path) -> Option<Self> {
        Some(Self::of(root.to_owned(), Environment::read(root)?))
    }

    fn of(root: PathBuf, mut installed: Environment) -> Self {
        let is_active = is_active(&root);
        let installer = Installer::of(&root, &installed);
        Self {
            is_default: match installer {
                Installer::Pip => is_active && is_pip_of(&root),
                _ => is_active || is_found_by_uv(&root),
            },
            sources: match &installer {
                Installer::Pip | Installer::Other(_) => index::of_pip(&root, is_active),
                Installer::Uv => index::of_uv(&root, None, is_active),
                Installer::UvProject(project) => index::of_uv(&root, Some(project), is_active),
            },
            installer,
            owners: BTreeMap::new(),
            linked: BTreeSet::new(),
            damaged: Vec::new(),
            runtimes: Vec::new(),
            findings: std::mem::take(&mut installed.findings),
            unread: Vec::new(),
            installed,
        }
    }

    /// The binaries with device code in a directory of packages that belong to no distribution: its list of files is
    /// missing or damaged. Where there is no list, each file has to be looked at.
    fn add_unlisted(&mut self, directory: &Path, only: Option<&Path>) -> Vec<LinkedBinary> {
        let is_wanted = |path: &Path| only.is_none_or(|only| path.starts_with(only));
        let is_listed = |path: &PathBuf| {
            self.owners.contains_key(path)
                || self.runtimes.iter().any(|(_, own)| own == path)
                || self.damaged.iter().any(|(_, own, _)| own == path)
        };
        let mut found = Vec::new();
        for entry in input::walk(directory) {
            match entry {
                // Neither a FIFO nor a directory is a damaged archive, whatever its name.
                Ok(entry) => {
                    let (kind, path) = (entry.file_type(), entry.into_path());
                    let is_file = kind.is_file() || kind.is_symlink() && path.is_file();
                    found.extend((is_file && !is_listed(&path)).then_some((path, None)));
                }
                Err(error) => {
                    let path = error.path().unwrap_or(directory).to_owned();
                    let error = input::walk_error(directory, error);
                    // Another tool may have removed it.
                    let is_there = path.symlink_metadata().is_ok();
                    if is_there
                        && (is_wanted(&path) || only.is_some_and(|only| only.starts_with(&path)))
                    {
                        let text =
                            format!("{}; run kpack as a user who may read it", error.without_id());
                        self.unread.push(Finding::general(Severity::Note, error.id(), text));
                    }
                }
            }
        }
        let files = Files::read(found.into_iter());
        self.findings.extend(files.findings);
        for (path, why) in files.damaged {
            if is_wanted(&path) {
                let fault = Finding::new(Severity::Fault, ids::DAMAGED_BINARY, path, why);
                self.findings.push(fault.with_help("install it again"));
            }
        }
        for path in files.runtimes {
            // The directory stands for the name of the distribution.
            let inside = path.strip_prefix(directory).unwrap_or(&path);
            let first = inside.iter().next().unwrap_or_default();
            self.runtimes.push((first.to_string_lossy().into_owned(), path));
        }
        files.binaries
    }

    /// The HIP runtime that programs in the environment preload.
    fn own_runtime(&self) -> Result<Option<HipRuntime>, Error> {
        let Some((_, path)) = self.runtimes.first() else {
            return Ok(None);
        };
        let Ok(linked) = or_refused(LinkedBinary::open(path))? else {
            return Ok(None);
        };
        // Without its libraries, nobody knows which loader it calls.
        let Loading::Listed(listed) = dynamic_linker::libraries(path, &linked.image)? else {
            return Ok(None);
        };
        let mut libraries = vec![Library::at(path)];
        libraries.extend(listed);
        Ok(match Runtime::of_libraries(libraries)? {
            Runtime::Found(hip) => Some(hip),
            _ => None,
        })
    }

    /// Keeps what is about the distributions with binaries below `only`.
    fn keep(&mut self, only: &Path) {
        let owners = self.owners.iter().filter(|(path, _)| path.starts_with(only));
        let mut kept: BTreeSet<String> = owners.map(|(_, name)| name.clone()).collect();
        for name in kept.clone() {
            kept.extend(self.installed.get(&name).into_iter().flat_map(|own| own.may_require()));
        }
        self.damaged.retain(|(name, ..)| kept.contains(name));
        for distribution in &mut self.installed.distributions {
            if !kept.contains(&distribution.name) {
                distribution.forget_extras();
            }
        }
    }
}

impl Installer {
    fn of(root: &Path, installed: &Environment) -> Self {
        let own = || installed.distributions.iter().filter(|own| !own.is_inherited);
        let host = own().find(|own| own.has_device_extras());
        let has = |installer: &str| match host {
            Some(host) => host.installer == installer,
            None => own().any(|own| own.installer == installer),
        };
        if let Some(host) = host.filter(|host| host.installer == "conda") {
            let (name, version) = (host.name.clone(), host.version.clone());
            let origin = Origin { manager: PackageManager::Conda, name, version };
            return Self::Other(origin.by_conda());
        }
        let is_virtual = root.join("pyvenv.cfg").is_file();
        let is_own = |python: &&str| {
            let python = root.join(python);
            // Others install a link to their Python in directories such as `~/.local/bin`.
            python.symlink_metadata().is_ok_and(|found| is_virtual || !found.is_symlink())
                || is_within(&python, root)
        };
        let pythons = ["bin/python", "bin/python3", "Scripts/python.exe", "python.exe"];
        if !pythons.iter().any(is_own) {
            let text =
                "kpack prints no command for a directory without Python; install into it as before";
            return Self::Other(text.to_owned());
        }
        let mut packages = installed.distributions.iter().map(Distribution::site_packages);
        let is_managed = |packages: &Path| {
            packages.parent().is_some_and(|lib| lib.join("EXTERNALLY-MANAGED").is_file())
        };
        if !is_virtual && packages.any(is_managed) {
            let text =
                "the distribution manages this Python: use its packages, or a virtual environment";
            return Self::Other(text.to_owned());
        }
        if !has("uv") {
            return Self::Pip;
        }
        let environment =
            image::variable("UV_PROJECT_ENVIRONMENT").unwrap_or_else(|| ".venv".into());
        let project = root.parent().filter(|project| {
            project.join("uv.lock").is_file() && project.join(&environment) == root
        });
        let Some(project) = project else {
            return Self::Uv;
        };
        let table = small_text(&project.join("pyproject.toml"));
        let table = table.and_then(|text| text.parse::<toml::Table>().ok()).unwrap_or_default();
        if table.contains_key("project") {
            return Self::UvProject(project.to_owned());
        }
        Self::Other("run `uv add` in the member of the workspace that needs it".to_owned())
    }
}

/// The environment that is active.
pub(super) fn active() -> Option<PathBuf> {
    let mut variables = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(image::variable);
    variables.find(|active| !active.is_empty()).map(PathBuf::from)
}

fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    real(one) == real(other)
}

/// Whether `path` leads to something in the directory `root`.
fn is_within(path: &Path, root: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    real(path).is_some_and(|path| real(root).is_some_and(|root| path.starts_with(root)))
}

/// Whether the environment at `root` is the active one.
fn is_active(root: &Path) -> bool {
    active().is_some_and(|active| is_same(&active, root))
}

/// Whether `pip` is that of the environment at `root`.
fn is_pip_of(root: &Path) -> bool {
    let directories = image::variable("PATH").unwrap_or_default();
    let name = format!("pip{}", env::consts::EXE_SUFFIX);
    let mut directories = env::split_paths(&directories);
    let found = directories.find(|directory| directory.join(&name).is_file());
    let own =
        |found: PathBuf| ["bin", "Scripts"].iter().any(|own| is_same(&root.join(own), &found));
    found.is_some_and(own)
}

/// Whether uv finds the environment at `root` from the current directory.
fn is_found_by_uv(root: &Path) -> bool {
    let found = active().or_else(super::places::nearest_venv);
    found.is_some_and(|found| is_same(&found, root))
}

impl Files {
    /// Reads the files at these paths, whose sizes RECORD may have.
    fn read(files: impl Iterator<Item = (PathBuf, Option<u64>)>) -> Self {
        let mut read = Self::default();
        for (path, size) in files {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if is_archive(&path) {
                read.damaged.extend(damage(&path, size).map(|why| (path, why)));
            } else if may_be_linked(&path, &name) {
                if is_runtime(&name) && path.is_file() {
                    read.runtimes.push(path.clone());
                }
                match or_refused(open_linked(&path)) {
                    Ok(Ok(Some(linked))) if !matches!(linked.code, DeviceCode::None(_)) => {
                        read.binaries.push(linked);
                    }
                    Ok(Err(found)) if found.id == ids::DAMAGED_BINARY => {
                        let why = damage(&path, size);
                        read.damaged
                            .push((path, why.unwrap_or(format!("is damaged: {}", found.text))));
                    }
                    Ok(_) => {}
                    // Another tool may have removed it.
                    Err(_) if !path.exists() => {}
                    Err(error) => read.findings.push(Finding::general(
                        Severity::Warning,
                        error.id(),
                        error.to_string(),
                    )),
                }
            }
        }
        read
    }
}

/// Whether a file may be a library or a program, by its name.
fn may_be_linked(path: &Path, name: &str) -> bool {
    let is_program = || {
        let directory = path.parent().and_then(Path::file_name).unwrap_or_default();
        directory == "bin" && !name.contains('.')
    };
    let endings = [".so", ".pyd", ".dll", ".exe"];
    endings.iter().any(|ending| name.ends_with(ending)) || name.contains(".so.") || is_program()
}

/// Whether a file is named as a HIP runtime is, also one that a tool for wheels renamed, or that of Windows.
fn is_runtime(name: &str) -> bool {
    name.starts_with("libamdhip64") && name.contains(".so")
        || name.starts_with("amdhip64") && name.ends_with(".dll")
}

/// How a file differs from what RECORD says of it.
fn damage(path: &Path, size: Option<u64>) -> Option<String> {
    match fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some("is missing".to_owned()),
        Err(error) => Some(format!("cannot be read: {error}")),
        Ok(found) => match size {
            Some(size) if size != found.len() => {
                Some(format!("has {} bytes, but RECORD says {size}", found.len()))
            }
            _ => input::open(path).err().map(|error| format!("cannot be read: {error}")),
        },
    }
}
