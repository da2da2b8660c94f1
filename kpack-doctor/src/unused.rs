//! What a machine does not need: device wheels for GPUs that it does not have.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::device_packages::is_for;
use super::environment::{Installer, PythonEnvironment};
use super::image;
use super::machine::{Machine, Options, no_gpu};
use super::places;
use super::remedy::Remedy;
use kpack_core::{Error, Finding, ids, shown};

/// The device wheels of environments that no GPU of the machine needs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Unused {
    /// The GPUs that are there.
    pub gpus: Vec<String>,
    /// What they do not need, with the bytes of the files.
    pub packages: Vec<UnusedPackage>,
    /// The command that removes it, if there is some.
    pub remedy: Option<Remedy>,
    /// What to do if there is no command.
    pub help: Option<String>,
    /// What could not be read, and may be a device wheel.
    pub findings: Vec<Finding>,
}

/// A device wheel that no GPU needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UnusedPackage {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The target that it is for.
    pub target: String,
    /// The bytes of its files.
    pub bytes: u64,
}

/// Lists the device wheels that no GPU needs, in the environment at `path`, or in the one that the user is likely to
/// mean.
///
/// # Errors
/// [`Error::Refused`] if there is no environment, or no GPU is known; [`Error::Io`].
pub fn unused(path: Option<&Path>, options: &Options) -> Result<Unused, Error> {
    let machine = Machine::new(options);
    // What is asked for instead of a GPU is needed, and the GPU may be without the variable.
    let mut gpus = machine.to_join();
    gpus.extend(
        machine
            .native
            .iter()
            .flatten()
            .filter(|gpu| !gpus.contains(gpu))
            .cloned()
            .collect::<Vec<_>>(),
    );
    if gpus.is_empty() {
        return Err(no_gpu(&options.nodes));
    }
    let places = path.map_or_else(places::likely, |path| vec![path.to_owned()]);
    let mut environment = None;
    for place in &places {
        environment = PythonEnvironment::read(place, None, &machine)?;
        if environment.is_some() {
            break;
        }
    }
    let Some((mut environment, _)) = environment else {
        let path = path.map_or_else(|| PathBuf::from("this machine"), Path::to_owned);
        let text = "there is no Python environment (expected lib/python3.*/site-packages)";
        return Err(Error::rejected(ids::NO_DEVICE_CODE, &path, text));
    };
    let mut unused = Unused {
        gpus: gpus.iter().map(ToString::to_string).collect(),
        findings: std::mem::take(&mut environment.findings),
        ..Unused::default()
    };
    let own = environment.installed.distributions.iter().filter(|own| !own.is_inherited);
    for distribution in own {
        let Some(target) = distribution.device_target() else { continue };
        if gpus.iter().any(|gpu| is_for(&target, gpu)) {
            continue;
        }
        let files = distribution.files()?.unwrap_or_default();
        let size = |path: &Path| path.symlink_metadata().map_or(0, |found| found.len());
        unused.packages.push(UnusedPackage {
            name: distribution.name.clone(),
            version: distribution.version.clone(),
            target: target.plain_name().to_owned(),
            bytes: files.iter().map(|file| size(&file.path)).sum(),
        });
    }
    let names = unused.packages.iter().map(|package| package.name.clone());
    let mut words = Vec::from_iter(names);
    match &environment.installer {
        _ if words.is_empty() => {}
        Installer::Other(help) => unused.help = Some(help.clone()),
        // It would install them again.
        Installer::UvProject(project) => {
            unused.help = Some(format!(
                "in {}, ask for the extras of these GPUs instead of all, and run `uv sync`",
                shown(&project.join("pyproject.toml"))
            ));
        }
        Installer::Pip => {
            words.insert(0, "--yes".to_owned());
            unused.remedy = environment.command("uninstall", words);
        }
        Installer::Uv => unused.remedy = environment.command("uninstall", words),
    }
    unused.remedy.as_mut().into_iter().for_each(image::mark);
    Ok(unused)
}
