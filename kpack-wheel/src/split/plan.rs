//! Which wheels there will be, as data: the name of each, its members and what it requires. Nothing is written here.

use std::collections::{BTreeMap, BTreeSet};

use kpack_core::files::with_slashes;
use kpack_core::words::{counted, list};
use kpack_core::{Error, Finding, Severity, ids};
use kpack_format::{Selection, TargetId};
use serde_json::Value;

use super::contents::WheelContents;
use super::report::warning;
use crate::archive::Destination;
use crate::options::Options;
use crate::variant::{self, Variant};
use crate::variant_json;
use crate::writer::{Content, Item, NewWheel};

/// What is written besides host wheels.
#[derive(Default)]
pub(super) struct DevicePlan<'a> {
    pub(super) wheels: Vec<PlannedDevice<'a>>,
    /// The files that list wheel variants, and the variants in each.
    pub(super) indexes: BTreeMap<String, BTreeMap<String, Value>>,
}

/// A device wheel, or a wheel variant.
pub(super) struct PlannedDevice<'a> {
    /// The distribution of the host.
    pub(super) host: &'a str,
    pub(super) wheel: NewWheel<'a>,
    /// The targets of its device code; none for a wheel variant.
    pub(super) targets: Vec<String>,
    /// The extra of the host that is named after it.
    pub(super) extra: Option<String>,
}

/// The host wheel made from a wheel: its metadata is last.
pub(super) fn host<'a>(contents: &'a WheelContents<'_>) -> Result<NewWheel<'a>, Error> {
    let (wheel, devices) = (contents.wheel, &contents.devices);
    let metadata = devices.host_metadata()?;
    let metadata_name = wheel.in_dist_info("METADATA");
    let (mut items, mut last) = (Vec::new(), Vec::new());
    for (member, digest) in wheel.members.iter().zip(&contents.digests) {
        let path = match wheel.place(member) {
            Destination::Site(_, path) => with_slashes(&path),
            Destination::Elsewhere => String::new(),
        };
        let content = if member.name == metadata_name {
            Content::Bytes(metadata.bytes().to_vec())
        } else if contents.is_rewritten(&path) {
            Content::File(contents.tree.join(&path))
        } else {
            Content::Copied(wheel, member, *digest)
        };
        let is_left_out = devices.content(&path).is_some()
            || wheel.is_record(member)
            || contents.manifests.contains(&path);
        if is_left_out {
            continue;
        }
        let item = Item { name: member.name.clone(), mode: member.mode, content };
        if wheel.is_metadata(member) { last.push(item) } else { items.push(item) }
    }
    items.extend(contents.manifests.iter().map(|path| Item {
        name: wheel.member_at(contents.scheme, path),
        mode: 0o644,
        content: Content::File(contents.tree.join(path)),
    }));
    items.extend(last);
    let (name, record) = (wheel.name.to_string(), wheel.in_dist_info("RECORD"));
    Ok(NewWheel { name, record, items })
}

/// The device wheels of all hosts, and wheel variants.
pub(super) fn devices<'a>(
    options: &Options,
    all: &'a [WheelContents<'_>],
    findings: &mut Vec<Finding>,
) -> Result<DevicePlan<'a>, Error> {
    check_groups(options, all)?;
    let mut known: BTreeSet<String> = all.iter().map(|host| host.wheel.name.to_string()).collect();
    let mut plan = DevicePlan::default();
    let mut add = |planned: PlannedDevice<'a>, plan: &mut DevicePlan<'a>| {
        let name = &planned.wheel.name;
        if !known.insert(name.clone()) {
            return Err(Error::usage(format!(
                "two wheels would be named {name}; split them one after the other, into separate directories"
            )));
        }
        plan.wheels.push(planned);
        Ok(())
    };
    for (contents, any_python) in with_devices(all, findings)? {
        let (devices, name) = (&contents.devices, &contents.wheel.name);
        let host = name.distribution.as_str();
        for device in devices.iter() {
            let planned = PlannedDevice {
                host,
                wheel: devices.members(device, contents.scheme, any_python)?,
                targets: device.targets.iter().map(ToString::to_string).collect(),
                extra: devices.own_extra(device),
            };
            add(planned, &mut plan)?;
        }
        if !options.variant {
            continue;
        }
        let project = devices.variant_project()?;
        let variants = variant::variants(devices)?;
        if !variants.iter().any(Variant::is_for_gpu) {
            let text = "no wheel variant for a GPU, since variants name processors and all device code is generic or for families; tell users to install the extras";
            findings.push(warning(ids::NO_VARIANT, &contents.wheel.path, text));
        }
        let index = variant_json::index_name(&name.of_device(&project, any_python));
        for variant in variants {
            let wheel = variant.members(devices, &project, any_python)?;
            add(PlannedDevice { host, wheel, targets: Vec::new(), extra: None }, &mut plan)?;
            plan.indexes.entry(index.clone()).or_default().extend(variant.entry());
        }
    }
    Ok(plan)
}

/// The wheels whose device wheels are written, and whether these are for any Python. The wheels of one version share device
/// wheels if these have the same files; a note says where they do not.
fn with_devices<'p, 'w>(
    all: &'p [WheelContents<'w>],
    findings: &mut Vec<Finding>,
) -> Result<Vec<(&'p WheelContents<'w>, bool)>, Error> {
    let mut versions: BTreeMap<_, Vec<&WheelContents<'_>>> = BTreeMap::new();
    for contents in all {
        let name = &contents.wheel.name;
        let version = (&name.distribution, &name.version, &name.build, &name.platform);
        versions.entry(version).or_default().push(contents);
    }
    let mut with = Vec::new();
    for pythons in versions.into_values() {
        let (first, more) = match pythons.as_slice() {
            [] => continue,
            [first, more @ ..] => (*first, more),
        };
        let digests = first.devices.digests()?;
        let mut is_same = !more.is_empty();
        for other in more {
            is_same &= other.scheme == first.scheme && other.devices.digests()? == digests;
        }
        if is_same {
            with.push((first, true))
        } else {
            if !more.is_empty() {
                let text = format!(
                    "its device code differs from that of {} for other Pythons, so each gets its own device wheels; compile with -fuse-cuid=none to share them",
                    counted(more.len() as u64, "wheel")
                );
                let path = &first.wheel.path;
                findings.push(Finding::new(Severity::Note, ids::OTHER_PYTHONS, path, text));
            }
            with.extend(pythons.iter().map(|contents| (*contents, false)))
        }
    }
    Ok(with)
}

/// Refuses groups with processors that no wheel has code for: their device wheels would lack them.
fn check_groups(options: &Options, all: &[WheelContents<'_>]) -> Result<(), Error> {
    let devices = all.iter().flat_map(|contents| contents.devices.iter());
    let targets = devices.flat_map(|device| &device.targets);
    let found: BTreeSet<TargetId> = targets.map(TargetId::package_owner).collect();
    for group in &options.groups {
        let selection: Selection = group.processors.iter().collect();
        let lacks = selection.unmatched(&Vec::from_iter(&found));
        if !lacks.is_empty() {
            return Err(Error::usage(format!(
                "group `{}`: no wheel has code for {}; there is code for {}",
                group.name,
                list(lacks),
                list(&found)
            )));
        }
    }
    Ok(())
}
