//! How to bring back code that `kpack trim` removed. Its note says which packages files belong to. The command depends on what is
//! installed, and on the index that the machine's configuration names.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kpack_core::{Error, shown};
use kpack_format::{Delivery, TargetId};
use kpack_wheel::Environment;

use super::machine::Machine;
use super::process::Process;
use crate::history::{History, RemovedCode, Subject};
use crate::installer::{Installer, again_from_elsewhere};
use crate::packages::{self, Origin, Package, PackageManager, Packages, WantedFiles};
use crate::remedy::Remedy;
use crate::root::Root;

/// What trim removed from something, and how it comes back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lost {
    /// What went, for the end of a message.
    pub(crate) text: String,
    /// What to do.
    pub(crate) help: String,
    /// The command that does it, if there is one.
    pub(crate) remedy: Option<Remedy>,
}

/// The code that was removed from binaries and databases, by path and GPU.
pub(crate) type AllLost = BTreeMap<(PathBuf, TargetId), Lost>;

/// Finds how packages are installed again.
#[derive(Debug)]
pub struct Restorer<'r> {
    /// The root directory, with the databases of packages.
    root: &'r Root,
    history: History,
    state: State,
}

/// The installed packages, as far as they were needed so far.
#[derive(Debug, Default)]
struct State {
    /// The packages of dpkg and RPM.
    installed: OnceCell<Vec<Origin>>,
    /// The full names of the packages of dpkg and RPM that list a directory.
    in_directories: BTreeMap<PathBuf, BTreeSet<String>>,
    /// The environments around files, by root.
    environments: BTreeMap<PathBuf, Option<Environment>>,
}

/// How packages are installed again.
struct Ways<'p> {
    /// The commands for the packages of dpkg and RPM, by manager.
    commands: BTreeMap<PackageManager, Option<Remedy>>,
    /// Those packages.
    of_system: Vec<&'p Package>,
    /// What installs the packages of Python, by root of the environment, and the command.
    of_python: BTreeMap<PathBuf, (Installer, Option<Remedy>)>,
}

impl State {
    fn environment(&mut self, path: &Path) -> Option<&Environment> {
        let root = Environment::around(path)?;
        let read = || Environment::read(&root);
        self.environments.entry(root.clone()).or_insert_with(read).as_ref()
    }

    /// Whether a package is installed in this version, or may be: a file in an unpacked image, or one that was copied, comes from
    /// another system, so this one's databases do not list its package.
    fn is_installed(&mut self, root: &Root, origin: &Origin, path: &Path) -> bool {
        let (name, version) = (&origin.name, &origin.version);
        match origin.manager {
            PackageManager::Dpkg | PackageManager::Rpm => {
                let installed = self.installed.get_or_init(|| packages::installed(root));
                installed.is_empty()
                    || installed.contains(origin)
                    || !self.has_files_beside(root, name, path)
            }
            PackageManager::Python => self.environment(path).is_none_or(|installed| {
                let own = installed.get(name);
                own.is_some_and(|own| own.version == *version)
            }),
            PackageManager::Conda => {
                let mut lists = path
                    .ancestors()
                    .map(|prefix| prefix.join("conda-meta"))
                    .filter(|lists| lists.is_dir());
                // The version has the build after it.
                let version = version.replace(" (build ", "-").replace(')', "");
                let list = format!("{name}-{version}.json");
                lists.next().is_none_or(|lists| lists.join(list).is_file())
            }
        }
    }

    /// Whether the package lists the directory of a file.
    fn has_files_beside(&mut self, root: &Root, name: &str, path: &Path) -> bool {
        let Some(directory) = path.parent() else { return false };
        let read = || {
            let packages = listing(root, BTreeSet::from([directory]));
            packages.into_iter().map(|own| own.origin.name).collect()
        };
        self.in_directories.entry(directory.to_owned()).or_insert_with(read).contains(name)
    }
}

impl<'r> Restorer<'r> {
    /// A restorer for files in this root.
    pub fn new(root: &'r Root) -> Self {
        Self { root, history: History::default(), state: State::default() }
    }

    /// What was removed from something.
    ///
    /// # Errors
    /// As [`History::removed`].
    pub(crate) fn removed(
        &mut self,
        subject: Subject<'_>,
        is_wanted: &dyn Fn(&TargetId, Delivery) -> bool,
    ) -> Result<Option<RemovedCode>, Error> {
        let (root, state) = (self.root, &mut self.state);
        let mut is_installed =
            |origin: &Origin, path: &Path| state.is_installed(root, origin, path);
        self.history.removed(subject, is_wanted, &mut is_installed)
    }

    /// Whether trim removed the file that is no longer at `path`.
    pub(crate) fn has_removed(&mut self, path: &Path) -> bool {
        let removed = self.removed(Subject::File(path, &[]), &|_, _| true);
        removed.is_ok_and(|removed| removed.is_some())
    }

    /// How to bring all of this back: one command for the packages of each manager, since code loads only with all of them.
    pub(crate) fn restore(&mut self, all: &[RemovedCode]) -> Vec<Lost> {
        let origins = || all.iter().flat_map(|removed| &removed.origins);
        let mut names: BTreeMap<PathBuf, BTreeSet<&str>> = BTreeMap::new();
        let mut system: BTreeSet<&Path> = BTreeSet::new();
        for (origin, path) in origins() {
            let Some(Origin { manager, name, .. }) = origin else { continue };
            match manager {
                PackageManager::Dpkg | PackageManager::Rpm => _ = system.insert(path),
                PackageManager::Python => {
                    if let Some(installed) = self.state.environment(path) {
                        let root = installed.root.clone();
                        names.entry(root).or_default().insert(name);
                    }
                }
                PackageManager::Conda => {}
            }
        }
        // The same package may be installed here and in an image, so its name alone does not say whose file this is.
        let listing = if system.is_empty() { Vec::new() } else { listing(self.root, system) };
        let is_ours = |own: &Package| {
            origins().any(|(origin, path)| {
                origin.as_ref() == Some(&own.origin) && own.files.contains(path)
            })
        };
        let mut of_system = Vec::from_iter(listing.iter().filter(|own| is_ours(own)));
        of_system.sort_by(|one, other| one.origin.cmp(&other.origin));
        let mut of_python = BTreeMap::new();
        for (root, names) in names {
            let environment = self.state.environments.get(&root).and_then(Option::as_ref);
            let Some(installed) = environment else { continue };
            let installer = Installer::of(installed).with_lock();
            // What the base Python has would come into this environment instead.
            let own: Vec<_> = names
                .iter()
                .filter_map(|name| installed.get(name))
                .filter(|own| !own.is_inherited && again_from_elsewhere(own).is_none())
                .collect();
            let remedy = installer.reinstall(&own, &[]);
            of_python.insert(root, (installer, remedy));
        }
        let ways = Ways { commands: Package::reinstall_all(&of_system), of_system, of_python };
        all.iter().map(|removed| self.lost(removed, &ways)).collect()
    }

    fn lost(&self, removed: &RemovedCode, ways: &Ways<'_>) -> Lost {
        let (mut remedies, mut others) = (Vec::new(), BTreeSet::new());
        for (origin, path) in &removed.origins {
            let Some(origin) = origin else {
                let text = "install it again from where it came, since it belongs to no package that kpack knows";
                others.insert(text.to_owned());
                continue;
            };
            let what = format!("{} {}", origin.name, origin.version);
            match origin.manager {
                PackageManager::Dpkg | PackageManager::Rpm => {
                    let is_ours =
                        |own: &&Package| own.origin == *origin && own.files.contains(path);
                    let command = ways.commands.get(&origin.manager).and_then(Option::as_ref);
                    match command.filter(|_| ways.of_system.iter().any(is_ours)) {
                        Some(remedy) => remedies.push(remedy.clone()),
                        None => {
                            others.insert(format!(
                                "install the package {what} again in the system that {} belongs to",
                                shown(path)
                            ));
                        }
                    }
                }
                PackageManager::Conda => {
                    others.insert(origin.again_by_conda());
                }
                PackageManager::Python => {
                    let root = Environment::around(path);
                    let way = root.as_ref().and_then(|root| ways.of_python.get(root));
                    let installed =
                        root.as_ref().and_then(|root| self.state.environments.get(root)?.as_ref());
                    let elsewhere = installed
                        .and_then(|installed| installed.get(&origin.name))
                        .and_then(again_from_elsewhere);
                    if let Some(help) = elsewhere {
                        others.insert(help);
                        continue;
                    }
                    let remedy = way.and_then(|(_, remedy)| remedy.as_ref());
                    let advice = way.and_then(|(installer, _)| installer.advice_to_reinstall());
                    match (remedy, advice) {
                        (Some(remedy), _) => remedies.push(remedy.clone()),
                        (None, Some(help)) => {
                            others.insert(format!("install {what} again; {help}"));
                        }
                        (None, None) => _ = others.insert(format!("install {what} again")),
                    }
                }
            }
        }
        remedies.dedup();
        let commands = remedies.iter().map(|remedy| {
            let caution = remedy.caution.iter().map(|caution| format!(" ({caution})"));
            format!("run `{}`{}", remedy.command, String::from_iter(caution))
        });
        let help = Vec::from_iter(commands.chain(others)).join("; and ");
        Lost { text: removed.text(), help, remedy: remedies.into_iter().next() }
    }

    /// Why there is no code in something for targets that are wanted, and what brings it back; `None` if trim did not remove it.
    pub fn explain(
        &mut self,
        subject: Subject<'_>,
        is_wanted: &dyn Fn(&TargetId, Delivery) -> bool,
    ) -> Option<String> {
        match self.removed(subject, is_wanted) {
            Ok(None) => None,
            Ok(Some(removed)) => {
                let lost = self.restore(&[removed]).pop()?;
                Some(format!("{}; to get it back, {}", lost.text, lost.help))
            }
            Err(error) => Some(untold(&error)),
        }
    }
}

/// Why nobody knows whether trim removed something. Its finding has an ID already.
fn untold(error: &Error) -> String {
    format!("kpack cannot tell whether `kpack trim` removed it: {}", error.without_id())
}

/// The packages of dpkg and RPM that list any of these files and directories, each with those that it lists.
fn listing(root: &Root, paths: BTreeSet<&Path>) -> Vec<Package> {
    Packages::of_system(root, &WantedFiles::new(paths, BTreeSet::new())).all
}

/// What trim removed of the code that processes lack.
pub(crate) fn all_lost<'a>(
    processes: impl Iterator<Item = &'a Process>,
    machine: &Machine,
    root: &Root,
) -> AllLost {
    let mut restorer = Restorer::new(root);
    let (mut found, mut lost) = (Vec::new(), AllLost::new());
    let mut look = |key: (PathBuf, TargetId), subject: Subject<'_>| {
        let gpu = key.1.clone();
        let is_wanted = |target: &TargetId, delivery| target.may_be_taken_for(&gpu, delivery);
        match restorer.removed(subject, &is_wanted) {
            Ok(removed) => found.extend(removed.map(|removed| (key, removed))),
            Err(error) => {
                let text = untold(&error);
                let help = "install it again".to_owned();
                lost.insert(key, Lost { text, help, remedy: None });
            }
        }
    };
    for binary in processes.flat_map(|process| &process.binaries) {
        for (gpu, _) in binary.code.iter().filter(|(_, code)| code.is_missing()) {
            look((binary.path.clone(), gpu.clone()), Subject::File(&binary.path, &binary.archives));
        }
        for (gpu, database) in binary.lacking_databases(machine) {
            let directory = &database.directory;
            look((directory.clone(), gpu.clone()), Subject::Directory(directory));
        }
    }
    let (keys, removed): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    lost.extend(keys.into_iter().zip(restorer.restore(&removed)));
    lost
}
