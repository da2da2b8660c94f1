//! Device wheels: one for each processor or group, and the extras of the host wheel that ask for them.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use kpack_format::{Delivery, Selection, TargetId};
use pep508_rs::{ExtraName, PackageName};
use sha2::{Digest as _, Sha256};

use super::archive::{SitePackages, Wheel};
use super::members::in_member;
use super::metadata::Fields;
use super::name::WheelName;
use super::options::Options;
use super::record;
use super::set::{self, ALL};
use super::writer::{Content, Item, NewWheel};
use kpack_core::{Error, ids};

/// The device wheels of a host.
pub(super) struct Devices<'a> {
    wheel: &'a Wheel,
    options: &'a Options,
    /// By label.
    devices: BTreeMap<String, DeviceWheel<'a>>,
}

/// A device wheel.
pub(super) struct DeviceWheel<'a> {
    /// The processor, or the group's name.
    pub(super) label: String,
    /// The name of its project.
    pub(super) project: String,
    /// The GPUs that it is for: those of the group that need something in the host, or what its targets name.
    pub(super) processors: BTreeSet<TargetId>,
    pub(super) targets: BTreeSet<TargetId>,
    /// By path in `site-packages`.
    files: BTreeMap<String, Item<'a>>,
}

impl<'a> DeviceWheel<'a> {
    /// The names of the processors that it is for, without families of processors.
    fn processor_names(&self) -> BTreeSet<&str> {
        names_of(&self.processors).collect()
    }

    /// Those, and of the generic targets that it has code for.
    fn names_of_code(&self) -> BTreeSet<String> {
        let owners = self.targets.iter().map(TargetId::package_owner).collect();
        let names = names_of(&self.processors).chain(names_of(&owners));
        names.map(str::to_owned).collect()
    }

    /// Whether it has files that one of `other`'s processors needs: for its family, or generic code.
    fn is_needed_by(&self, other: &Self) -> bool {
        let is_needed = |found: &TargetId| {
            other.processors.iter().any(|own| own.needs(found, Delivery::Archive))
        };
        self.label != other.label && self.targets.iter().any(is_needed)
    }

    /// The packages that it has files in, as top_level.txt lists them; `None` if there are none. Without it,
    /// `importlib.metadata` and inspection tools find no packages of a wheel that has no Python files.
    fn top_level(&self) -> Option<Vec<u8>> {
        let directories = self.files.keys().filter_map(|path| Some(path.split_once('/')?.0));
        let is_name = |name: &&str| {
            let is_part = |c: char| c == '_' || c.is_alphanumeric();
            name.chars().all(is_part) && !name.starts_with(|c: char| c.is_numeric())
        };
        let packages = BTreeSet::from_iter(directories.filter(is_name));
        let lines = packages.iter().map(|package| format!("{package}\n"));
        (!packages.is_empty()).then(|| lines.collect::<String>().into_bytes())
    }

    /// Sets the file at a path in `site-packages`.
    pub(super) fn set(&mut self, path: String, mode: u32, content: Content<'a>) {
        let name = path.clone();
        self.files.insert(path, Item { name, mode, content });
    }
}

/// The names of processors, without families of processors.
fn names_of(targets: &BTreeSet<TargetId>) -> impl Iterator<Item = &str> {
    let processors = targets.iter().map(TargetId::processor);
    processors.filter(|processor| TargetId::family(processor).is_none())
}

/// The normal form of an extra's name.
pub(super) fn normalized(extra: &str) -> String {
    ExtraName::from_str(extra).map_or_else(|_| extra.to_owned(), |name| name.to_string())
}

impl<'a> Devices<'a> {
    pub(super) fn new(wheel: &'a Wheel, options: &'a Options) -> Self {
        let devices = BTreeMap::new();
        Self { wheel, options, devices }
    }

    /// Adds a file of `target` at a path in `site-packages`, where it takes the place of another.
    pub(super) fn add(
        &mut self,
        target: &TargetId,
        path: &str,
        mode: u32,
        content: Content<'a>,
    ) -> Result<(), Error> {
        let groups = &self.options.groups;
        let owner = target.package_owner();
        for group in groups {
            let is_needing = |own: &&TargetId| own.needs(&owner, Delivery::Archive);
            let needing = Vec::from_iter(group.processors.iter().filter(is_needing).cloned());
            if !needing.is_empty() {
                self.device(&group.name)?.processors.extend(needing);
            }
        }
        let selections: Vec<Selection> =
            groups.iter().map(|group| group.processors.iter().collect()).collect();
        // Two wheels cannot have one file. What several groups need has a wheel that they require.
        let device = match Selection::groups_of(&selections, &owner)[..] {
            [only] => self.device(&groups[only].name)?,
            _ => {
                let device = self.device(owner.processor())?;
                device.processors.insert(owner.plain());
                device
            }
        };
        device.targets.insert(target.clone());
        device.set(path.to_owned(), mode, content);
        Ok(())
    }

    /// The device wheel with this label, made if there is none yet.
    fn device(&mut self, label: &str) -> Result<&mut DeviceWheel<'a>, Error> {
        let project = self.wheel.required("Name")?;
        let device = self.devices.entry(label.to_owned());
        Ok(device.or_insert_with(|| DeviceWheel {
            label: label.to_owned(),
            project: self.options.device_name.replace("{dist}", project).replace("{target}", label),
            processors: BTreeSet::new(),
            targets: BTreeSet::new(),
            files: BTreeMap::new(),
        }))
    }

    /// A device wheel. `scheme` is where the host has its device code.
    pub(super) fn members(
        &self,
        device: &DeviceWheel<'a>,
        scheme: SitePackages,
        any_python: bool,
    ) -> Result<NewWheel<'a>, Error> {
        let name = self.wheel.name.of_device(&device.project, any_python);
        let dist_info = name.directory("dist-info");
        let mut items = Vec::from_iter(device.files.values().cloned());
        for licence in self.wheel.licences() {
            let within = licence.name.strip_prefix(&self.wheel.dist_info).unwrap_or_default();
            items.push(Item {
                name: format!("{dist_info}{within}"),
                mode: licence.mode,
                content: Content::Bytes(self.wheel.bytes(&licence.name)?),
            });
        }
        if let Some(bytes) = device.top_level() {
            let name = format!("{dist_info}/top_level.txt");
            items.push(Item { name, mode: 0o644, content: Content::Bytes(bytes) });
        }
        let requirements = self.requirements(device)?;
        let what = (&*device.project, &*device.label);
        items.extend(self.metadata(&name, what, requirements, scheme)?);
        Ok(NewWheel { name: name.to_string(), record: format!("{dist_info}/RECORD"), items })
    }

    /// METADATA and WHEEL of a wheel with this name, of a project and for a label. Its requirements come after that
    /// of the host.
    pub(super) fn metadata(
        &self,
        name: &WheelName,
        (own, label): (&str, &str),
        requirements: Vec<String>,
        scheme: SitePackages,
    ) -> Result<[Item<'a>; 2], Error> {
        let host = self.wheel;
        let (project, version) = (host.required("Name")?, host.required("Version")?);
        let summary = format!("GPU code of {project} for {label}");
        let description = format!("{summary}. An extra of {project} installs it.");
        let mut fields =
            vec![("Name", own.to_owned()), ("Version", version.to_owned()), ("Summary", summary)];
        let required = [format!("{project}=={version}")].into_iter().chain(requirements);
        fields.extend(required.map(|requirement| ("Requires-Dist", requirement)));
        let metadata = host
            .metadata
            .of_device(&fields, &description)
            .and_then(checked)
            .map_err(|text| host.refused("METADATA", text))?;
        let mut wheel = format!(
            "Wheel-Version: 1.0\nGenerator: kpack {}\nRoot-Is-Purelib: {}\n",
            env!("CARGO_PKG_VERSION"),
            scheme.is_pure()
        );
        for tag in name.tags() {
            wheel += &format!("Tag: {tag}\n");
        }
        if let Some(build) = &name.build {
            wheel += &format!("Build: {build}\n");
        }
        let item = |file: &str, bytes| Item {
            name: format!("{}/{file}", name.directory("dist-info")),
            mode: 0o644,
            content: Content::Bytes(bytes),
        };
        Ok([item("METADATA", metadata.bytes().to_vec()), item("WHEEL", wheel.into_bytes())])
    }

    /// The project of its wheel variants.
    pub(super) fn variant_project(&self) -> Result<String, Error> {
        let project = self.wheel.required("Name")?;
        Ok(self.options.variant_project().replace("{dist}", project))
    }

    /// The version of all its wheels.
    pub(super) fn version(&self) -> Result<&'a str, Error> {
        self.wheel.required("Version")
    }

    /// The name of the host wheel.
    pub(super) fn host(&self) -> &'a WheelName {
        &self.wheel.name
    }

    pub(super) fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &DeviceWheel<'a>> {
        self.devices.values()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut DeviceWheel<'a>> {
        self.devices.values_mut()
    }

    /// The other device wheels with files that the processors of `device` need.
    fn needed_by<'d>(
        &'d self,
        device: &'d DeviceWheel<'a>,
    ) -> impl Iterator<Item = &'d DeviceWheel<'a>> {
        let all = self.devices.values();
        all.filter(move |other| other.is_needed_by(device))
    }

    /// The extra of the host that is named after `device`. A device wheel for a family has none if the extras of its
    /// processors ask for it.
    pub(super) fn own_extra(&self, device: &DeviceWheel<'a>) -> Option<String> {
        let comes_with_others = device.processor_names().is_empty()
            && self.devices.values().any(|other| device.is_needed_by(other));
        (!comes_with_others).then(|| format!("device-{}", device.label))
    }

    /// What `device` requires besides the host: the device wheels that its processors need, and what the options ask
    /// for.
    pub(super) fn requirements(&self, device: &DeviceWheel<'a>) -> Result<Vec<String>, Error> {
        let version = self.version()?;
        let needed = self.needed_by(device).map(|other| format!("{}=={version}", other.project));
        let processors = device.processor_names();
        let of_options = self.options.device_requires.iter().flat_map(|text| {
            if !text.contains("{target}") {
                return BTreeSet::from([text.clone()]);
            }
            let each = processors.iter();
            each.map(|processor| text.replace("{target}", processor)).collect()
        });
        Ok(needed.chain(of_options).collect())
    }

    /// What a device wheel has at a path in `site-packages`.
    pub(super) fn content(&self, path: &str) -> Option<&Content<'a>> {
        let mut devices = self.devices.values();
        devices.find_map(|device| Some(&device.files.get(path)?.content))
    }

    /// The bytes of all device wheels' files, which tells whether two hosts can share the wheels.
    pub(super) fn digests(&self) -> Result<BTreeMap<(&str, &str), [u8; 32]>, Error> {
        let mut digests = BTreeMap::new();
        for device in self.devices.values() {
            for (path, file) in &device.files {
                let digest = match &file.content {
                    Content::Archive(from) | Content::File(from) => record::sha256(from)?,
                    Content::Bytes(bytes) => Sha256::digest(bytes).into(),
                    Content::Copied(_, _, digest) => digest.sha256,
                };
                digests.insert((device.project.as_str(), path.as_str()), digest);
            }
        }
        Ok(digests)
    }

    /// The metadata of the host wheel: with an extra for each processor and group, which asks for the wheels that
    /// these need as well, and one for all.
    pub(super) fn host_metadata(&self) -> Result<Fields, Error> {
        let (wheel, version) = (self.wheel, self.version()?);
        let mut extras: BTreeMap<String, Vec<&DeviceWheel<'_>>> = BTreeMap::new();
        for device in self.devices.values() {
            let processors = device.names_of_code().into_iter();
            let names = processors
                .map(|processor| format!("device-{processor}"))
                .chain(self.own_extra(device))
                .map(|name| normalized(&name));
            for extra in BTreeSet::from_iter(names) {
                extras.entry(extra).or_default().push(device);
            }
        }
        if let Some((extra, _)) = extras.iter().find(|(_, devices)| devices.len() > 1) {
            return Err(Error::usage(format!(
                "two device wheels have the extra `{extra}`; change the groups' names"
            )));
        }
        for devices in extras.values_mut() {
            let own = devices.clone();
            devices.extend(own.iter().flat_map(|device| self.needed_by(device)));
        }
        extras.insert(ALL.to_owned(), self.devices.values().collect());
        let known = wheel.metadata.all("Provides-Extra").map(normalized);
        if let Some(extra) = known.into_iter().find(|extra| extras.contains_key(extra)) {
            let text = format!("has the extra `{extra}` already; split the wheel as it was before");
            let file = wheel.in_dist_info("METADATA");
            return Err(in_member(ids::SPLIT_ALREADY, &wheel.path, &file, &text));
        }
        let requires = self.options.host_requires.iter();
        let mut fields = Vec::from_iter(requires.map(|text| ("Requires-Dist", text.clone())));
        if self.options.variant {
            let project = self.variant_project()?;
            fields.push(("Requires-Dist", format!("{project}=={version}")));
        }
        for (extra, devices) in &extras {
            fields.push(("Provides-Extra", extra.clone()));
            for device in devices {
                let pin = format!("{}=={version} ; extra == \"{extra}\"", device.project);
                fields.push(("Requires-Dist", pin));
            }
        }
        let with = wheel.metadata.with(&fields).and_then(checked);
        with.map_err(|text| wheel.refused("METADATA", text))
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
