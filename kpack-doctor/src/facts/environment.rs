//! What a Python environment has: its distributions, their binaries with device code, and the HIP runtimes among them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::lacking::Lacking;
use super::machine::Reader;
use super::process::{Process, open_linked};
use super::runtime::{HipRuntime, is_runtime};
use crate::installer::Installer;
use kpack_core::{Error, Finding, Severity, ids, parallel};
use kpack_format::names::is_archive;
use kpack_split::elf::DeviceCode;
use kpack_split::input::{self, LinkedBinary, or_refused};
use kpack_wheel::Environment;

/// A Python environment.
#[derive(Debug, Clone)]
pub(crate) struct PythonEnvironment {
    pub(crate) installed: Environment,
    pub(crate) installer: Installer,
    /// Whose each binary with device code is, by path and by real path.
    pub(crate) owners: BTreeMap<PathBuf, String>,
    /// The distributions whose binaries are links to files elsewhere.
    pub(crate) linked: BTreeSet<String>,
    /// Archives and libraries that RECORD lists, by distribution, and what is wrong with them.
    pub(crate) damaged: Vec<(String, PathBuf, String)>,
    /// The HIP runtimes, with the distribution of each.
    pub(crate) runtimes: Vec<(String, PathBuf)>,
    /// What could not be read.
    pub(crate) findings: Vec<Finding>,
    /// Directories that could not be read, where device code may be.
    pub(crate) unread: Vec<Finding>,
}

/// The files of one distribution that matter.
#[derive(Default)]
struct DistributionFiles {
    binaries: Vec<LinkedBinary>,
    damaged: Vec<(PathBuf, String)>,
    runtimes: Vec<PathBuf>,
    findings: Vec<Finding>,
    /// Whether nothing says which files the distribution has.
    is_unlisted: bool,
}

impl PythonEnvironment {
    /// Reads the environment at `root`, and the processes of its binaries with device code, or of those below `only`.
    pub(crate) fn read(
        root: &Path,
        only: Option<&Path>,
        reader: &Reader,
    ) -> Result<Option<(Self, Vec<Process>)>, Error> {
        let given = std::path::absolute(root).map_err(|e| Error::io(root, "find", e))?;
        // Installers are told of the environment, not of its directory with packages.
        let root = Environment::around(&given).filter(|_| only.is_none()).unwrap_or(given);
        let Some(installed) = Environment::read(&root) else {
            return Ok(None);
        };
        let read = parallel::map(&installed.distributions, |distribution| {
            match distribution.files() {
                // Packages of distributions have no RECORD.
                Ok(Some(files)) => {
                    DistributionFiles::read(files.into_iter().map(|file| (file.path, file.size)))
                }
                Ok(None) => DistributionFiles { is_unlisted: true, ..DistributionFiles::default() },
                Err(error) => {
                    let (id, text) = (error.id(), error.to_string());
                    let finding = Finding::general(Severity::Warning, id, text);
                    DistributionFiles {
                        findings: vec![finding],
                        is_unlisted: true,
                        ..DistributionFiles::default()
                    }
                }
            }
        });
        let of_one = |finding: &&Finding| finding.id == ids::DAMAGED_WHEEL;
        let damaged =
            installed.findings.iter().filter(of_one).filter_map(|finding| finding.file().parent());
        let listed = read.iter().zip(&installed.distributions);
        let without_list = listed.filter(|(files, _)| files.is_unlisted);
        let unlisted_in: BTreeSet<PathBuf> = damaged
            .chain(without_list.map(|(_, own)| own.site_packages()))
            .map(Path::to_owned)
            .collect();
        let mut environment = Self::of(installed);
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
        // Programs in the environment preload it.
        let own = match environment.runtimes.first() {
            Some((_, path)) => HipRuntime::at(path, reader.scope.as_ref())?,
            None => None,
        };
        let mut processes = Vec::new();
        for linked in binaries {
            if only.as_ref().is_some_and(|only| !linked.path.starts_with(only)) {
                continue;
            }
            let mut process = Process::of_binary(&linked, own.as_ref(), &[], reader)?;
            // Packages load libraries of each other before, and installers tell which packages are missing.
            process.lacking = Lacking::default();
            processes.push(process);
        }
        if let Some(only) = &only {
            environment.keep(only);
        }
        // Only these are installed again.
        if !environment.damaged.is_empty() || !environment.linked.is_empty() {
            environment.installer = environment.installer.with_lock();
        }
        Ok(Some((environment, processes)))
    }

    fn of(mut installed: Environment) -> Self {
        Self {
            installer: Installer::of(&installed),
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
        let files = DistributionFiles::read(found.into_iter());
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

impl DistributionFiles {
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
