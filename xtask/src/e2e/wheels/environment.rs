//! The installers of Python packages, and where each puts a wheel's files.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use xshell::{Cmd, cmd};

use crate::{process, python, repository};

/// The programs of `tests/wheels/requirements.txt`, in an environment of their own.
pub(crate) struct Tools {
    directory: PathBuf,
}

impl Tools {
    /// Installs them in `directory`.
    ///
    /// # Errors
    /// The package index does not answer, or has no such version.
    pub(crate) fn install(directory: PathBuf) -> Result<Self> {
        process::step("Installing the tools for Python wheels");
        let requirements = repository::root().join("tests/wheels/requirements.txt");
        let requirements = requirements.display().to_string();
        python::environment(&directory, &["--requirement", &requirements])?;
        Ok(Self { directory })
    }

    /// A command. It uses no index, and nothing that another run has cached.
    pub(crate) fn program(&self, name: &str, arguments: &[&str]) -> Cmd<'static> {
        let program = self.directory.join("bin").join(name);
        cmd!(process::shell(), "{program} {arguments...}")
            .env("PIP_DISABLE_PIP_VERSION_CHECK", "1")
            .env("PIP_ROOT_USER_ACTION", "ignore")
            .env("UV_CACHE_DIR", self.directory.join("uv-cache"))
            .env("UV_PYTHON_DOWNLOADS", "never")
    }

    pub(super) fn programs(&self) -> PathBuf {
        self.directory.join("bin")
    }

    pub(super) fn python(&self) -> PathBuf {
        self.directory.join("bin/python")
    }
}

/// How packages are installed, and so where their files are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Installer {
    Pip,
    /// `--target`: a directory of packages.
    PipTarget,
    /// With the value of `--link-mode`. Links lead to files in a cache.
    Uv(&'static str),
    UvTarget,
}

impl Installer {
    pub(super) const ALL: [Self; 6] = [
        Self::Pip,
        Self::PipTarget,
        Self::Uv("copy"),
        Self::Uv("hardlink"),
        Self::Uv("symlink"),
        Self::UvTarget,
    ];

    pub(super) fn name(self) -> String {
        match self {
            Self::Pip => "pip".to_owned(),
            Self::PipTarget => "pip --target".to_owned(),
            Self::Uv(mode) => format!("uv --link-mode {mode}"),
            Self::UvTarget => "uv --target, host and device after each other".to_owned(),
        }
    }

    /// Whether the installer manages an environment, and so can remove what it installed.
    pub(super) fn removes(self) -> bool {
        matches!(self, Self::Pip | Self::Uv(_))
    }
}

/// A place to install packages in.
pub(super) struct Environment<'a> {
    tools: &'a Tools,
    installer: Installer,
    directory: PathBuf,
    /// The directory of the packages.
    pub(super) packages: PathBuf,
}

impl<'a> Environment<'a> {
    /// An empty one.
    ///
    /// # Errors
    /// It cannot be created.
    pub(super) fn new(tools: &'a Tools, installer: Installer, directory: &Path) -> Result<Self> {
        let _ = fs::remove_dir_all(directory);
        let packages = match installer {
            Installer::PipTarget | Installer::UvTarget => directory.to_owned(),
            Installer::Pip | Installer::Uv(_) => {
                let python = tools.python();
                let create = tools.program("uv", &["venv", "--quiet", "--python"]);
                process::output(create.arg(python).arg(directory))?;
                let mut versions = fs::read_dir(directory.join("lib"))?;
                let version = versions.next().context("an environment has a library")??;
                version.path().join("site-packages")
            }
        };
        Ok(Self { tools, installer, directory: directory.to_owned(), packages })
    }

    fn python(&self) -> PathBuf {
        self.directory.join("bin/python")
    }

    /// `pip` or `uv pip` for this environment.
    fn command(&self, action: &str) -> Cmd<'static> {
        match self.installer {
            Installer::PipTarget => self.tools.program("python", &["-m", "pip", action]),
            Installer::UvTarget => self.tools.program("uv", &["pip", action, "--quiet"]),
            Installer::Pip => self
                .tools
                .program("python", &["-m", "pip", "--python"])
                .arg(self.python())
                .arg(action),
            Installer::Uv(_) => {
                self.tools.program("uv", &["pip", action, "--quiet", "--python"]).arg(self.python())
            }
        }
    }

    /// Installs a package from a directory of wheels: its host wheel with the device wheels of an extra.
    /// `version` is empty, or as in `==1.0`.
    ///
    /// # Errors
    /// The installer's message.
    pub(super) fn install(
        &self,
        wheels: &Path,
        package: &str,
        extra: &str,
        version: &str,
    ) -> Result<()> {
        let requirements = match self.installer {
            Installer::UvTarget => {
                vec![format!("{package}{version}"), format!("{package}-{extra}{version}")]
            }
            _ => vec![format!("{package}[{extra}]{version}")],
        };
        self.install_each(wheels, &requirements, &[])
    }

    /// Installs what is asked for from a directory of wheels.
    ///
    /// # Errors
    /// The installer's message.
    pub(super) fn install_each(
        &self,
        wheels: &Path,
        requirements: &[String],
        options: &[&str],
    ) -> Result<()> {
        let run = |requirements: &[String]| {
            let command = self
                .command("install")
                .args(["--no-index", "--upgrade", "--find-links"])
                .arg(wheels)
                .args(options);
            let command = match self.installer {
                Installer::PipTarget | Installer::UvTarget => {
                    command.arg("--target").arg(&self.packages)
                }
                Installer::Uv(mode) => command.args(["--link-mode", mode]),
                Installer::Pip => command,
            };
            process::output(command.args(requirements)).map(drop)
        };
        match self.installer {
            Installer::UvTarget => requirements.chunks(1).try_for_each(run),
            _ => run(requirements),
        }
    }

    /// Removes packages, one run for each.
    ///
    /// # Errors
    /// The installer's message.
    pub(super) fn uninstall(&self, packages: &[&str]) -> Result<()> {
        for package in packages {
            let command = match self.installer {
                Installer::Pip => self.command("uninstall").arg("--yes"),
                _ => self.command("uninstall"),
            };
            process::output(command.arg(package))?;
        }
        Ok(())
    }

    /// Whether all dependencies are there in the versions that the packages ask for.
    ///
    /// # Errors
    /// The installer's list of what is wrong.
    pub(super) fn check(&self) -> Result<()> {
        process::output(self.command("check"))?;
        Ok(())
    }
}

/// What all checks use.
pub(super) struct Wheels<'a> {
    /// The prefix with the helper and the loader.
    pub(super) kpack: &'a Path,
    pub(super) tools: &'a Tools,
    /// A program that loads libraries.
    pub(super) load: PathBuf,
}

impl Wheels<'_> {
    /// Splits wheels, and verifies the results against each.
    pub(super) fn split(&self, fat: &[&Path], output: &Path) -> Result<()> {
        let helper = self.kpack.join("bin/kpack");
        process::run!("{helper} wheel split {fat...} --output-dir {output}")?;
        for fat in fat {
            let split = repository::files(output)?;
            process::run!("{helper} wheel verify {split...} --against {fat}")?;
        }
        Ok(())
    }

    pub(super) fn unpack(&self, wheel: &Path, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory)?;
        python::unpack(wheel, directory)
    }
}
