//! What a machine does not need: device wheels for GPUs that it does not have.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::facts::environment::PythonEnvironment;
use crate::facts::machine::{Machine, Options, Reader, no_gpu};
use crate::facts::places;
use crate::findings::is_for;
use crate::image;
use crate::remedy::Remedy;
use kpack_core::{Error, Finding, ids};

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
    let reader = Reader::new(machine, None);
    let mut environment = None;
    for place in &places {
        environment = PythonEnvironment::read(place, None, &reader)?;
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
    let names = Vec::from_iter(unused.packages.iter().map(|package| package.name.clone()));
    if !names.is_empty() {
        unused.remedy = environment.installer.uninstall(names);
        unused.help = environment.installer.advice_to_remove();
    }
    unused.remedy.as_mut().into_iter().for_each(image::mark);
    Ok(unused)
}
