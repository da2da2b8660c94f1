//! Device wheels: one for each processor or group, and the extras of the host wheel that ask for them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::str::FromStr;

use kpack_format::digest::sha256;
use kpack_format::names::in_package_name;
use kpack_format::{Sha256, TargetId};
use pep508_rs::{ExtraName, PackageName};

use super::archive::Wheel;
use super::metadata::Fields;
use super::options::{DeviceGroup, Options};
use super::plan::{DeviceFile, Plan};
use super::set;
use super::writer::{Content, Item};
use crate::Error;
use crate::input;

/// The extra that asks for all device wheels.
pub(super) const ALL: &str = "device-all";

/// The device wheels of a host.
pub(super) struct Devices {
    project: String,
    version: String,
    device_name: String,
    groups: Vec<DeviceGroup>,
    /// By label.
    devices: BTreeMap<String, Device>,
    /// The members of the fat wheel that moved.
    moved: BTreeSet<String>,
    names: Vec<String>,
}

/// A device wheel.
pub(super) struct Device {
    /// The processor, or the group's name.
    pub(super) label: String,
    /// The name of its project.
    pub(super) project: String,
    pub(super) targets: BTreeSet<TargetId>,
    /// By path in `site-packages`.
    pub(super) files: BTreeMap<String, DeviceFile>,
}

impl Device {
    /// The extras of the host that ask for it alone: its label, its processors, and its targets with
    /// features as hints name them.
    pub(super) fn extras(&self) -> BTreeSet<String> {
        let processors = self
            .targets
            .iter()
            .map(|target| target.processor().to_owned());
        let targets = self.targets.iter();
        let targets = targets.map(|target| in_package_name(&target.to_string()));
        let labels = processors.chain(targets).chain([self.label.clone()]);
        labels
            .map(|label| normalized(&format!("device-{label}")))
            .collect()
    }
}

/// The normal form of an extra's name.
pub(super) fn normalized(extra: &str) -> String {
    ExtraName::from_str(extra).map_or_else(|_| extra.to_owned(), |name| name.to_string())
}

impl Devices {
    pub(super) fn new(wheel: &Wheel, options: &Options) -> Result<Self, Error> {
        Ok(Self {
            project: wheel.required("Name")?.to_owned(),
            version: wheel.required("Version")?.to_owned(),
            device_name: options.device_name.clone(),
            groups: options.groups.clone(),
            devices: BTreeMap::new(),
            moved: BTreeSet::new(),
            names: wheel.members.iter().map(|m| m.name.clone()).collect(),
        })
    }

    /// Adds a file of `target`, which takes the place of another at this path.
    pub(super) fn add(&mut self, target: &TargetId, path: &str, file: DeviceFile) {
        let processor = target.processor();
        let mut groups = self.groups.iter();
        let group = groups.find(|group| group.processors.iter().any(|own| own == processor));
        let label = group.map_or(processor, |group| &group.name);
        if let DeviceFile::Moved(index) = &file {
            self.moved.extend(self.names.get(*index).cloned());
        }
        let device = self.devices.entry(label.to_owned());
        let device = device.or_insert_with(|| Device {
            label: label.to_owned(),
            project: self
                .device_name
                .replace("{dist}", &self.project)
                .replace("{target}", label),
            targets: BTreeSet::new(),
            files: BTreeMap::new(),
        });
        device.targets.insert(target.clone());
        device.files.insert(path.to_owned(), file);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Device> {
        self.devices.values()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Device> {
        self.devices.values_mut()
    }

    /// The members of the fat wheel that moved.
    pub(super) fn moved(&self) -> &BTreeSet<String> {
        &self.moved
    }

    /// Whether the file at this path is an archive of a device wheel.
    pub(super) fn has_archive(&self, path: &Path) -> bool {
        let path = path.to_string_lossy();
        let mut devices = self.devices.values();
        devices.any(|device| matches!(device.files.get(&*path), Some(DeviceFile::Archive(_))))
    }

    /// The metadata of the host wheel: with an extra for each device wheel, and one for all.
    pub(super) fn host_metadata(&self, wheel: &Wheel) -> Result<Fields, Error> {
        let mut extras: BTreeMap<String, Vec<&Device>> = BTreeMap::new();
        for device in self.devices.values() {
            for extra in device.extras() {
                extras.entry(extra).or_default().push(device);
            }
        }
        if let Some((extra, _)) = extras.iter().find(|(_, devices)| devices.len() > 1) {
            return Err(Error::usage(format!(
                "two device wheels have the extra `{extra}`; name the groups otherwise"
            )));
        }
        extras.insert(ALL.to_owned(), self.devices.values().collect());
        let known = wheel.metadata.all("Provides-Extra").map(normalized);
        if let Some(extra) = known.into_iter().find(|extra| extras.contains_key(extra)) {
            let text =
                format!("it has the extra `{extra}` already; split the wheel as it was before");
            return Err(wheel.refused("METADATA", text));
        }
        let mut fields = Vec::new();
        for (extra, devices) in &extras {
            fields.push(("Provides-Extra", extra.clone()));
            for device in devices {
                let pin = format!("{}=={} ; extra == '{extra}'", device.project, self.version);
                fields.push(("Requires-Dist", pin));
            }
        }
        let with = wheel.metadata.with(&fields).and_then(checked);
        with.map_err(|text| wheel.refused("METADATA", text))
    }
}

impl Plan<'_> {
    /// The members of a device wheel, but for its RECORD.
    pub(super) fn device(
        &self,
        device: &Device,
        any_python: bool,
    ) -> Result<(String, String, Vec<Item<'_>>), Error> {
        let host = self.wheel;
        let name = host.name.of_device(&device.project, any_python);
        let dist_info = name.directory("dist-info");
        let item = |name, mode, content| Item {
            name,
            mode,
            content,
        };
        let mut items = Vec::new();
        for (path, file) in &device.files {
            let (mode, content) = match file {
                DeviceFile::Archive(from) => (0o644, Content::Archive(from.clone())),
                DeviceFile::Fragment(bytes) => (0o644, Content::Bytes(bytes.clone())),
                DeviceFile::Moved(index) => {
                    let (member, digest) = self.member(*index);
                    (member.mode, Content::Copied(host, member, digest))
                }
            };
            items.push(item(path.clone(), mode, content));
        }
        for licence in host.licences() {
            let within = licence
                .name
                .strip_prefix(&host.dist_info)
                .unwrap_or_default();
            let bytes = host.bytes(&licence.name)?;
            items.push(item(
                format!("{dist_info}{within}"),
                licence.mode,
                Content::Bytes(bytes),
            ));
        }
        let (project, version) = (host.required("Name")?, host.required("Version")?);
        let summary = format!("GPU code of {project} for {}", device.label);
        let description = format!("{summary}. An extra of {project} installs it.");
        let own = [
            ("Name", device.project.clone()),
            ("Version", version.to_owned()),
            ("Summary", summary),
            ("Requires-Dist", format!("{project}=={version}")),
        ];
        let metadata = host.metadata.of_device(&own, &description);
        let metadata = metadata.and_then(checked);
        let metadata = metadata.map_err(|text| host.refused("METADATA", text))?;
        let metadata = Content::Bytes(metadata.bytes().to_vec());
        items.push(item(format!("{dist_info}/METADATA"), 0o644, metadata));

        let mut wheel = format!(
            "Wheel-Version: 1.0\nGenerator: kpack {}\nRoot-Is-Purelib: {}\n",
            env!("CARGO_PKG_VERSION"),
            self.scheme.is_pure()
        );
        for tag in name.tags() {
            wheel += &format!("Tag: {tag}\n");
        }
        if let Some(build) = &name.build {
            wheel += &format!("Build: {build}\n");
        }
        let wheel = Content::Bytes(wheel.into_bytes());
        items.push(item(format!("{dist_info}/WHEEL"), 0o644, wheel));
        Ok((name.to_string(), format!("{dist_info}/RECORD"), items))
    }

    /// The bytes of all device wheels' files, which tells whether two hosts can share the wheels.
    pub(super) fn device_digests(&self) -> Result<BTreeMap<(&str, &str), Sha256>, Error> {
        let mut digests = BTreeMap::new();
        for device in self.devices.iter() {
            for (path, file) in &device.files {
                let digest = match file {
                    DeviceFile::Archive(from) => input::digest(from)?,
                    DeviceFile::Fragment(bytes) => sha256(bytes),
                    DeviceFile::Moved(index) => self.member(*index).1.sha256,
                };
                digests.insert((device.project.as_str(), path.as_str()), digest);
            }
        }
        Ok(digests)
    }
}

/// Checks that metadata has valid names and requirements.
fn checked(fields: Fields) -> Result<Fields, String> {
    for name in fields.all("Name") {
        PackageName::from_str(name).map_err(|error| error.to_string())?;
    }
    for requirement in fields.all("Requires-Dist") {
        set::requirement(requirement)?;
    }
    Ok(fields)
}
