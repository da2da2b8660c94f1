//! Describes wheels: which extra of a host wheel is for which GPU.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use kpack_format::manifest::Manifest;
use kpack_format::names::is_manifest;
use serde::Serialize;

use super::archive::Wheel;
use super::set::device_of;
use kpack_core::{Error, Finding, Severity, ids};

/// A wheel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Description {
    /// The file.
    #[serde(serialize_with = "kpack_core::lossy::path")]
    pub path: PathBuf,
    /// The project.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The tags of its file name.
    pub tags: Vec<String>,
    /// Its size in bytes.
    pub size: u64,
    /// The targets that it has archives for (device wheels), or that its device wheels have archives for
    /// (host wheels).
    pub targets: Vec<String>,
    /// The targets of the device code in a wheel that was not split: of its binaries, and of the files of kernel databases.
    pub fat_targets: Vec<String>,
    /// The device wheels that its extras ask for; none but for a host wheel.
    pub devices: Vec<Device>,
    /// The libraries that another tool split, each with what is missing and what to do.
    pub findings: Vec<Finding>,
}

/// A device wheel that a host asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Device {
    /// The project.
    pub name: String,
    /// The extras that ask for it, but for `device-all`.
    pub extras: Vec<String>,
    /// Its file, if it was named.
    #[serde(serialize_with = "kpack_core::lossy::optional_path")]
    pub path: Option<PathBuf>,
    /// Its size in bytes, if it was named.
    pub size: Option<u64>,
}

/// Describes wheels, with the device wheels of hosts among them.
///
/// # Errors
/// [`Error::Refused`] for a wheel that is damaged; [`Error::Io`].
pub fn describe(paths: &[PathBuf]) -> Result<Vec<Description>, Error> {
    let wheels: Vec<Wheel> =
        paths.iter().map(|path| Wheel::open(path)).collect::<Result<_, _>>()?;
    wheels.iter().map(|wheel| one(wheel, &wheels)).collect()
}

fn one(wheel: &Wheel, all: &[Wheel]) -> Result<Description, Error> {
    let mut targets = Vec::new();
    for member in &wheel.members {
        if is_manifest(Path::new(&member.name)) {
            let manifest = Manifest::read(&wheel.bytes(&member.name)?).map_err(|error| {
                super::members::member_error(&wheel.path, &member.name, error.to_string())
            })?;
            targets.extend(manifest.kpack_files.into_keys());
        }
    }
    targets.sort();
    targets.dedup();
    let pins = wheel.pins()?;
    let sections = if pins.are_of_host() { Vec::new() } else { wheel.sections()? };
    let libraries = wheel.split_elsewhere(&sections)?;
    let is_split = pins.are_of_host() || !targets.is_empty() || !libraries.is_empty();
    let fat_targets = if is_split { BTreeSet::new() } else { wheel.device_code(&sections)? };
    let elsewhere = libraries.into_iter().map(|library| {
        let id = ids::SPLIT_BY_ANOTHER_TOOL;
        Finding::new(Severity::Warning, id, &wheel.path, library.to_string())
    });
    let devices = pins.devices().into_iter().map(|(pin, extras)| {
        let device = device_of(pin, wheel, all);
        Device {
            name: pin.project.to_string(),
            extras,
            path: device.map(|device| device.path.clone()),
            size: device.map(|device| device.size),
        }
    });
    Ok(Description {
        path: wheel.path.clone(),
        name: wheel.required("Name")?.to_owned(),
        version: wheel.required("Version")?.to_owned(),
        tags: wheel.name.tags(),
        size: wheel.size,
        targets,
        fat_targets: fat_targets.into_iter().collect(),
        devices: devices.collect(),
        findings: elsewhere.collect(),
    })
}
