//! The program that changes a Python environment, and its commands: pip or uv. These are made from what its configuration and
//! that of the environment say, without running it.

mod active;
mod pip;
mod sources;
mod uv;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use kpack_wheel::{Distribution, Environment};

use crate::remedy::{Remedy, masked, word};
use active::is_same;
use sources::Sources;
use uv::{Lock, UvScope};

pub(crate) use active::active;
pub(crate) use uv::nearest_environment;

/// How things are installed into an environment.
#[derive(Debug, Clone)]
pub(crate) struct Installer {
    root: PathBuf,
    /// Whether the environment is the one that the program uses if none is named.
    is_default: bool,
    program: InstallerKind,
}

/// The program that changes an environment.
#[derive(Debug, Clone)]
enum InstallerKind {
    Pip(Sources),
    Uv(Sources),
    /// uv, with a project.
    UvProject(Box<uv::Project>),
    /// uv, with a workspace in this directory.
    UvWorkspace(PathBuf),
    /// One that kpack has no command for: what to do instead.
    Other(String),
}

impl Installer {
    /// That of the environment `installed`.
    pub(crate) fn of(installed: &Environment) -> Self {
        let root = installed.root.clone();
        let is_active = active().is_some_and(|active| is_same(&active, &root));
        let is_default = match is_of_uv(installed) {
            false => is_active && pip::is_of(&root),
            true => is_active || uv::finds(&root),
        };
        let program = match advice(installed) {
            Some(help) => InstallerKind::Other(help),
            None if !is_of_uv(installed) => InstallerKind::Pip(pip::sources(&root, is_active)),
            None => match uv::Project::around(&root, is_active) {
                UvScope::Nothing => InstallerKind::Uv(uv::sources(&root, None, is_active)),
                UvScope::Project(project) => InstallerKind::UvProject(project),
                UvScope::Workspace(directory) => InstallerKind::UvWorkspace(directory),
            },
        };
        Self { root, is_default, program }
    }

    /// The same, which knows where everything came from that [`reinstall`](Self::reinstall) may install again. Lock files are
    /// large, and few answers need them.
    pub(crate) fn with_lock(mut self) -> Self {
        if let InstallerKind::UvProject(project) = &mut self.program {
            project.lock = Some(Lock::read(&self.root, &project.directory, self.is_default));
        }
        self
    }

    pub(crate) fn is_pip(&self) -> bool {
        matches!(self.program, InstallerKind::Pip(_))
    }

    /// How to install something where there is no command.
    pub(crate) fn advice(&self) -> Option<String> {
        match &self.program {
            InstallerKind::UvWorkspace(directory) => Some(uv::advice_in_workspace(directory)),
            _ => self.advice_to_reinstall().map(str::to_owned),
        }
    }

    /// How to remove something where there is no command.
    pub(crate) fn advice_to_remove(&self) -> Option<String> {
        match &self.program {
            InstallerKind::UvProject(project) => Some(project.advice_to_remove()),
            _ => self.advice(),
        }
    }

    /// How to install something again where there is no command.
    pub(crate) fn advice_to_reinstall(&self) -> Option<&str> {
        match &self.program {
            InstallerKind::Other(help) => Some(help),
            _ => None,
        }
    }

    /// The command that installs these requirements, which ask for extras of `hosts` that are there.
    pub(crate) fn install(
        &self,
        hosts: &[&Distribution],
        requirements: Vec<String>,
    ) -> Option<Remedy> {
        let mut options = Vec::new();
        if self.is_pip() && hosts.iter().any(|host| host.is_inherited) {
            // Code that is installed here is not beside the libraries of the base Python.
            options.push("--ignore-installed");
        }
        let (action, sources) = match &self.program {
            _ if requirements.is_empty() => return None,
            InstallerKind::Other(_) | InstallerKind::UvWorkspace(_) => return None,
            InstallerKind::Pip(sources) | InstallerKind::Uv(sources) => ("install", sources),
            InstallerKind::UvProject(project) => ("add", &project.sources),
        };
        self.fetching(action, hosts, requirements, &options, sources)
    }

    /// The command that installs these distributions again, without others. Even in a project of uv, it is one of `uv pip`,
    /// because `uv sync` would uninstall what the project does not ask for by default, such as extras. `None` if there are none,
    /// or one of them came [from elsewhere](again_from_elsewhere). This needs [the lock](Self::with_lock).
    pub(crate) fn reinstall(
        &self,
        distributions: &[&Distribution],
        options: &[&str],
    ) -> Option<Remedy> {
        let is_from_elsewhere = |own: &&Distribution| again_from_elsewhere(own).is_some();
        if distributions.is_empty() || distributions.iter().any(is_from_elsewhere) {
            return None;
        }
        let of_lock;
        let (flag, sources) = match &self.program {
            InstallerKind::Other(_) | InstallerKind::UvWorkspace(_) => return None,
            InstallerKind::Pip(sources) => ("--force-reinstall", sources),
            InstallerKind::Uv(sources) => ("--reinstall", sources),
            InstallerKind::UvProject(project) => {
                of_lock = project.lock.as_ref()?.sources(distributions);
                ("--reinstall", &of_lock)
            }
        };
        let mut words =
            Vec::from_iter([flag, "--no-deps"].iter().chain(options).map(|&word| word.to_owned()));
        words.extend(distributions.iter().map(|own| format!("{}=={}", own.name, own.version)));
        self.fetching("install", distributions, words, &[], sources)
    }

    /// A command that gets wheels from `sources`, or from the directories that distributions came from.
    fn fetching(
        &self,
        action: &str,
        distributions: &[&Distribution],
        mut words: Vec<String>,
        options: &[&str],
        sources: &Sources,
    ) -> Option<Remedy> {
        let first = distributions.first().map_or("", |own| &own.name);
        let (links, mut cautions) = origins(distributions);
        if links.is_empty() {
            cautions.extend(sources.caution(first));
        }
        words
            .extend(links.into_iter().flat_map(|directory| ["--find-links".to_owned(), directory]));
        words.extend(options.iter().map(|&option| option.to_owned()));
        if action != "add" {
            words.extend(sources.arguments());
        }
        let caution = (!cautions.is_empty()).then(|| cautions.join("; "));
        Some(self.command(action, words)?.with_caution(caution))
    }

    /// The command that removes these distributions.
    pub(crate) fn uninstall(&self, names: Vec<String>) -> Option<Remedy> {
        let words = match &self.program {
            InstallerKind::Other(_)
            | InstallerKind::UvProject(_)
            | InstallerKind::UvWorkspace(_) => return None,
            InstallerKind::Pip(_) => [vec!["--yes".to_owned()], names].concat(),
            InstallerKind::Uv(_) => names,
        };
        self.command("uninstall", words)
    }

    fn command(&self, action: &str, words: Vec<String>) -> Option<Remedy> {
        let environment = if self.is_default || action == "add" {
            Vec::new()
        } else {
            vec!["--python".to_owned(), word(&self.root)?]
        };
        let action = action.to_owned();
        let (program, start) = match &self.program {
            InstallerKind::Other(_) | InstallerKind::UvWorkspace(_) => return None,
            InstallerKind::Pip(_) => ("pip", [environment, vec![action]].concat()),
            InstallerKind::UvProject(project) if action == "add" => {
                let project = match project.is_current {
                    true => Vec::new(),
                    false => vec!["--project".to_owned(), word(&project.directory)?],
                };
                ("uv", [vec![action], project].concat())
            }
            InstallerKind::Uv(_) | InstallerKind::UvProject(_) => {
                ("uv", [vec!["pip".to_owned(), action], environment].concat())
            }
        };
        Remedy::new(program, [start, words].concat())
    }
}

/// The distribution of an environment that has device wheels.
fn host(installed: &Environment) -> Option<&Distribution> {
    let mut own = installed.distributions.iter().filter(|own| !own.is_inherited);
    own.find(|own| own.has_device_extras())
}

/// Whether uv installed it.
fn is_of_uv(installed: &Environment) -> bool {
    let mut own = installed.distributions.iter().filter(|own| !own.is_inherited);
    match host(installed) {
        Some(host) => host.installer == "uv",
        None => own.any(|own| own.installer == "uv"),
    }
}

/// What to do in an environment that neither pip nor uv changes.
fn advice(installed: &Environment) -> Option<String> {
    let root = &installed.root;
    if let Some(host) = host(installed).filter(|host| host.installer == "conda") {
        let Distribution { name, version, .. } = host;
        return Some(format!(
            "conda installed {name} {version}: change its device code with the program that made this environment"
        ));
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
        let text = "kpack prints no command for a directory without Python; change it with the program that installed into it";
        return Some(text.to_owned());
    }
    let mut packages = installed.distributions.iter().map(Distribution::site_packages);
    let is_managed = |packages: &Path| {
        packages.parent().is_some_and(|lib| lib.join("EXTERNALLY-MANAGED").is_file())
    };
    (!is_virtual && packages.any(is_managed)).then(|| {
        "the distribution manages this Python: use its packages, or a virtual environment"
            .to_owned()
    })
}

/// Whether `path` leads to something in the directory `root`.
fn is_within(path: &Path, root: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    real(path).is_some_and(|path| real(root).is_some_and(|root| path.starts_with(root)))
}

/// The directories of the wheels from which distributions were installed that did not come from an index, and what to say
/// about each of these.
fn origins(distributions: &[&Distribution]) -> (BTreeSet<String>, Vec<String>) {
    let (mut links, mut cautions) = (BTreeSet::new(), Vec::new());
    for Distribution { name, origin, .. } in distributions {
        let Some(origin) = origin else { continue };
        links.extend(directory_of_wheel(origin));
        let shown = masked(origin);
        cautions.push(format!("{name} was installed from {shown}, not from an index"));
    }
    (links, cautions)
}

/// The directory of a wheel with this URL, if an installer can look for it there.
fn directory_of_wheel(origin: &str) -> Option<String> {
    let path =
        origin.strip_prefix("file://").filter(|path| !path.starts_with("//")).map(Path::new)?;
    let is_wheel = path.extension().is_some_and(|ending| ending == "whl");
    let directory = path.parent().filter(|_| is_wheel && path.is_absolute())?;
    word(directory).filter(|path| !path.contains('%'))
}

/// What to do to install a distribution again that came neither from an index nor from a directory of wheels. An index may
/// have another project of that name, so there is no command.
pub(crate) fn again_from_elsewhere(own: &Distribution) -> Option<String> {
    let origin = own.origin.as_ref().filter(|origin| directory_of_wheel(origin).is_none())?;
    Some(format!("install {} again from {}", own.name, masked(origin)))
}
