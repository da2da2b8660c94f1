//! The installers of Python packages, and where each puts a wheel's files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use kpack_tests::process::try_run;
use kpack_tests::python::Tools;

/// How packages are installed, and so where their files are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Installer {
    Pip,
    /// `--target`: a directory of packages.
    PipTarget,
    /// With the value of `--link-mode`. Links lead to files in a cache.
    Uv(&'static str),
    /// The same. The host and the device wheel are installed one after the other.
    UvTarget,
}

impl Installer {
    /// Whether it manages an environment, and so can remove what it installed.
    fn removes(self) -> bool {
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
                let python = tools.programs().join("python");
                let mut create = tools.program("uv", &["venv", "--quiet", "--python"]);
                try_run(create.arg(python).arg(directory))?;
                let mut versions = fs::read_dir(directory.join("lib"))?;
                let version = versions.next().context("an environment has a library")??;
                version.path().join("site-packages")
            }
        };
        Ok(Self { tools, installer, directory: directory.to_owned(), packages })
    }

    /// Whether the installer can remove what it installed.
    pub(super) fn removes(&self) -> bool {
        self.installer.removes()
    }

    /// `pip` or `uv pip` for this environment.
    fn command(&self, action: &str) -> Command {
        let (name, arguments): (_, &[&str]) = match self.installer {
            Installer::PipTarget => ("python", &["-m", "pip", action]),
            Installer::UvTarget => ("uv", &["pip", action, "--quiet"]),
            Installer::Pip => ("python", &["-m", "pip", "--python"]),
            Installer::Uv(_) => ("uv", &["pip", action, "--quiet", "--python"]),
        };
        let mut command = self.tools.program(name, arguments);
        if self.installer.removes() {
            command.arg(self.directory.join("bin/python"));
        }
        if self.installer == Installer::Pip {
            command.arg(action);
        }
        command
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
            let mut command = self.command("install");
            command.args(["--no-index", "--upgrade", "--find-links"]).arg(wheels).args(options);
            match self.installer {
                Installer::PipTarget | Installer::UvTarget => {
                    command.arg("--target").arg(&self.packages);
                }
                Installer::Uv(mode) => {
                    command.args(["--link-mode", mode]);
                }
                Installer::Pip => {}
            }
            try_run(command.args(requirements)).map(drop)
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
            let mut command = self.command("uninstall");
            if self.installer == Installer::Pip {
                command.arg("--yes");
            }
            try_run(command.arg(package))?;
        }
        Ok(())
    }

    /// Whether all dependencies are there in the versions that the packages ask for.
    ///
    /// # Errors
    /// The installer's list of what is wrong.
    pub(super) fn check(&self) -> Result<()> {
        try_run(&mut self.command("check")).map(drop)
    }
}
