//! Splits wheels: a host wheel each, and device wheels.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use kpack_format::{Selection, TargetId};
use pep508_rs::PackageName;
use serde_json::Value;
use zip::DateTime;

use super::archive::Wheel;
use super::device::normalized;
use super::members::{Member, in_member};
use super::options::{DEVICE_NAME, Options};
use super::plan::SplitWheel;
use super::rocm;
use super::set::{self, ALL};
use super::variant::{self, Variant};
use super::variant_json;
use super::vendor::Sources;
use super::writer::{self, Item};
use kpack_core::finding::Id;
use kpack_core::parallel;
use kpack_core::publish::{CreatedDirectories, Directory, NewNames, Stage};
use kpack_core::report::Progress;
use kpack_core::words::{counted, list};
use kpack_core::{Error, Finding, Reason, Severity, ids, shown};
use kpack_split::input;
use kpack_split::split::DebugFiles;

/// The size up to which PyPI accepts files by default.
const PYPI_LIMIT: u64 = 100_000_000;

/// The results of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The fat wheels.
    pub inputs: Vec<(PathBuf, u64)>,
    /// The device wheels, then the host wheels.
    pub wheels: Vec<Written>,
    /// Notes, and problems that did not stop the run.
    pub findings: Vec<Finding>,
}

/// A wheel that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// The file.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// The targets of its device code; none for a host wheel.
    pub targets: Vec<String>,
    /// The extra of the host that is named after it. A wheel for a family comes with those of its processors.
    pub extra: Option<String>,
}

/// Splits wheels.
///
/// # Errors
/// [`Error::Usage`] for options that make no sense; [`Error::Refused`] for wheels that are damaged,
/// unsupported, or have no device code; [`Error::Io`]. No wheel has appeared under its final name then.
pub fn split(options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
    parallel::with_jobs(options.storage.jobs, || split_all(options, progress))
}

fn split_all(options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
    check_options(options)?;
    let wheels = options.wheels.iter().map(|path| Wheel::open(path));
    let wheels: Vec<Wheel> = wheels.collect::<Result<_, _>>()?;
    let Some(first) = wheels.first() else {
        return Err(Error::usage("no wheel is named"));
    };
    let sources = Sources::list(&options.archives)?;
    let mut findings = Vec::new();
    let outputs = Outputs::lock(options, &first.name.distribution)?;
    let debug_files = DebugFiles::new(&options.storage.debug, true);
    let mut plans = Vec::new();
    let mut hosts = Vec::new();
    for (index, wheel) in wheels.iter().enumerate() {
        check_input(wheel, &outputs.hosts, &mut findings)?;
        let scratch = outputs.hosts.make(format!("{index}"))?;
        let plan = SplitWheel::new(
            wheel,
            scratch,
            options,
            &sources,
            &debug_files,
            progress,
            &mut findings,
        )?;
        let (name, record) = (wheel.name.to_string(), wheel.in_dist_info("RECORD"));
        hosts.push(outputs.write(&outputs.hosts, &name, &plan.host()?, &record)?);
        plan.clean()?;
        findings.extend(rocm::notes(wheel)?);
        plans.push(plan);
    }
    check_groups(options, &plans)?;
    let devices = outputs.write_devices(&plans, options.variant, &mut findings)?;
    warn_of_sizes(&wheels, &hosts, &devices, &mut findings);
    debug_files.publish()?;
    let written = devices.wheels.iter().map(|(_, wheel)| wheel);
    let names = written.filter_map(|wheel| wheel.path.file_name()?.to_str());
    let indexes = devices.indexes.iter().map(String::as_str);
    outputs.publish(&Vec::from_iter(indexes.chain(names)), &hosts)?;
    let devices = devices.wheels.into_iter().map(|(_, wheel)| wheel);
    Ok(Report {
        inputs: wheels.iter().map(|w| (w.path.clone(), w.size)).collect(),
        wheels: devices.chain(hosts).collect(),
        findings,
    })
}

/// Where wheels are written.
struct Outputs {
    hosts: Stage,
    /// If device wheels have a directory of their own.
    devices: Option<Stage>,
    /// Of all members.
    time: DateTime,
    /// The directories, as far as they were created.
    _made: CreatedDirectories,
}

/// What was written besides host wheels.
#[derive(Default)]
struct WrittenDevices<'a> {
    /// With the name of the host.
    wheels: Vec<(&'a str, Written)>,
    /// The files that list wheel variants.
    indexes: BTreeSet<String>,
}

impl Outputs {
    fn lock(options: &Options, distribution: &str) -> Result<Self, Error> {
        let time = writer::time()?;
        let mut made = CreatedDirectories::default();
        let mut real = |path: &Path| {
            Directory::make(path, &mut made)?;
            fs::canonicalize(path).map_err(|e| Error::io(path, "find", e))
        };
        let lock = |path: &Path| Stage::lock(path, distribution);
        let output = &options.output_dir;
        let (hosts, devices) = match &options.device_dir {
            None => (lock(output)?, None),
            // In one order, or two runs whose directories are swapped would wait for each other for ever.
            Some(directory) => match real(output)?.cmp(&real(directory)?) {
                Ordering::Equal => (lock(output)?, None),
                Ordering::Less => (lock(output)?, Some(lock(directory)?)),
                Ordering::Greater => {
                    let devices = lock(directory)?;
                    (lock(output)?, Some(devices))
                }
            },
        };
        Ok(Self { hosts, devices, time, _made: made })
    }

    /// Writes a wheel into one of the stages.
    fn write(
        &self,
        stage: &Stage,
        name: &str,
        items: &[Item<'_>],
        record: &str,
    ) -> Result<Written, Error> {
        Ok(Written {
            path: stage.output(name),
            size: writer::write(stage.directory(), name, items, record, self.time)?,
            targets: Vec::new(),
            extra: None,
        })
    }

    /// Writes the device wheels of all hosts, and wheel variants.
    fn write_devices<'a>(
        &self,
        plans: &'a [SplitWheel<'_>],
        with_variants: bool,
        findings: &mut Vec<Finding>,
    ) -> Result<WrittenDevices<'a>, Error> {
        let stage = self.devices.as_ref().unwrap_or(&self.hosts);
        let mut known: BTreeSet<String> = plans.iter().map(|p| p.wheel.name.to_string()).collect();
        let mut add = |name: &str, items: &[Item<'_>], record: &str| {
            if known.insert(name.to_owned()) {
                return self.write(stage, name, items, record);
            }
            Err(Error::usage(format!(
                "two wheels would be named {name}; split them one after the other, into separate directories"
            )))
        };
        let mut done = WrittenDevices::default();
        let mut indexes: BTreeMap<String, BTreeMap<String, Value>> = BTreeMap::new();
        for (plan, any_python) in with_devices(plans, findings)? {
            let host = plan.wheel.name.distribution.as_str();
            for device in plan.devices.iter() {
                let (name, record, items) =
                    plan.devices.members(device, plan.scheme, any_python)?;
                let wheel = Written {
                    targets: device.targets.iter().map(ToString::to_string).collect(),
                    extra: plan.devices.own_extra(device),
                    ..add(&name, &items, &record)?
                };
                done.wheels.push((host, wheel));
            }
            if !with_variants {
                continue;
            }
            let project = plan.devices.variant_project()?;
            let variants = variant::variants(&plan.devices)?;
            if !variants.iter().any(Variant::is_for_gpu) {
                let text = "no wheel variant for a GPU, since variants name processors and all device code is generic or for families; tell users to install the extras";
                findings.push(warning(ids::NO_VARIANT, &plan.wheel.path, text));
            }
            let index = variant_json::index_name(&plan.wheel.name.of_device(&project, any_python));
            let index = indexes.entry(index).or_default();
            for variant in variants {
                let (name, record, items) = variant.members(&plan.devices, &project, any_python)?;
                done.wheels.push((host, add(&name, &items, &record)?));
                index.extend(variant.entry());
            }
        }
        for (name, mut variants) in indexes {
            add_listed(&stage.output(&name), &mut variants)?;
            let file = stage.directory().create_open(name.as_ref(), false);
            let written =
                file.and_then(|mut file| file.write_all(variant_json::text(&variants).as_ref()));
            written.map_err(|e| Error::io(&stage.output(&name), "write", e))?;
            done.indexes.insert(name);
        }
        Ok(done)
    }

    /// Gives all files their final names, host wheels last, since their extras name the device wheels.
    fn publish(self, devices: &[&str], hosts: &[Written]) -> Result<(), Error> {
        let hosts = hosts.iter().filter_map(|host| host.path.file_name()?.to_str());
        let hosts: Vec<&str> = hosts.collect();
        match self.devices {
            Some(stage) => {
                let hosts = NewNames::new::<&str>(&[]).with_last(&hosts);
                self.hosts.publish_after((&stage, &NewNames::new(devices)), &hosts)
            }
            None => self.hosts.publish(&NewNames::new(devices).with_last(&hosts)),
        }
    }
}

/// Adds the variants of earlier runs that the index at `path` lists: their wheels are still beside it.
fn add_listed(path: &Path, variants: &mut BTreeMap<String, Value>) -> Result<(), Error> {
    // What is not a file is rejected when the index gets its name.
    if !input::metadata_of(path)?.is_some_and(|found| found.is_file()) {
        return Ok(());
    }
    let bytes = fs::read(path).map_err(|e| Error::io(path, "read", e))?;
    let refused = |text: &str| Error::rejected(ids::OUTPUT_IN_THE_WAY, path, text);
    let Some(listed) = variant_json::listed(&bytes) else {
        let text = "not an index of wheel variants as this version of kpack writes it; remove it, or choose another output directory";
        return Err(refused(text));
    };
    for (label, properties) in listed {
        if *variants.entry(label.clone()).or_insert(properties.clone()) != properties {
            let text = format!(
                "lists the variant `{label}` of an earlier run for other GPUs; rename the group, or choose another output directory"
            );
            return Err(refused(&text));
        }
    }
    Ok(())
}

/// The plans whose device wheels are written, and whether these are for any Python. The wheels of one
/// version share device wheels if these have the same files; a note says where they do not.
fn with_devices<'p, 'w>(
    plans: &'p [SplitWheel<'w>],
    findings: &mut Vec<Finding>,
) -> Result<Vec<(&'p SplitWheel<'w>, bool)>, Error> {
    let mut versions: BTreeMap<_, Vec<&SplitWheel<'_>>> = BTreeMap::new();
    for plan in plans {
        let name = &plan.wheel.name;
        let version = (&name.distribution, &name.version, &name.build, &name.platform);
        versions.entry(version).or_default().push(plan);
    }
    let mut with = Vec::new();
    for plans in versions.into_values() {
        let (first, more) = match plans.as_slice() {
            [] => continue,
            [first, more @ ..] => (*first, more),
        };
        let digests = first.devices.digests()?;
        let mut is_same = !more.is_empty();
        for plan in more {
            is_same &= plan.scheme == first.scheme && plan.devices.digests()? == digests;
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
            with.extend(plans.iter().map(|plan| (*plan, false)))
        }
    }
    Ok(with)
}

/// Refuses groups with processors that no wheel has code for: their device wheels would lack them.
fn check_groups(options: &Options, plans: &[SplitWheel<'_>]) -> Result<(), Error> {
    let devices = plans.iter().flat_map(|plan| plan.devices.iter());
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

fn check_options(options: &Options) -> Result<(), Error> {
    if !options.device_name.contains("{target}") {
        return Err(Error::usage(format!(
            "device name `{}`: expected {{target}} in it, such as {DEVICE_NAME}",
            options.device_name
        )));
    }
    let name = options.device_name.replace("{dist}", "dist");
    if let Err(error) = PackageName::from_str(&name.replace("{target}", "target")) {
        let text = format!("device name `{}`: {error}", options.device_name);
        return Err(Error::usage(text));
    }
    if options.variant && matches!(&*options.variant_project(), "{dist}" | "") {
        return Err(Error::usage(format!(
            "device name `{}`: the wheel variants need a different name (expected more than {{dist}} and {{target}}, such as {DEVICE_NAME})",
            options.device_name
        )));
    }
    for (option, texts) in [
        ("--device-requires", &options.device_requires),
        ("--host-requires", &options.host_requires),
    ] {
        for text in texts {
            let error = if text.contains(|c: char| c.is_control()) {
                Some("has a control character".to_owned())
            } else if option == "--device-requires" {
                set::requirement(&text.replace("{target}", "target")).err()
            } else {
                set::requirement(text).err()
            };
            if let Some(error) = error {
                let text = text.escape_debug();
                return Err(Error::usage(format!("{option} `{text}`: {error}")));
            }
        }
    }
    if let Some(root) = &options.overlay_root
        && !is_package_directory(root)
    {
        return Err(Error::usage(format!(
            "--overlay-root {}: expected a directory in the wheel, such as torch",
            shown(root)
        )));
    }
    let mut groups = options.groups.iter();
    if let Some(group) = groups.find(|g| normalized(&format!("device-{}", g.name)) == ALL) {
        let text = format!(
            "group `{}`: the extra {ALL} asks for all device wheels; rename the group",
            group.name
        );
        return Err(Error::usage(text));
    }
    let mut known = BTreeSet::new();
    for processor in options.groups.iter().flat_map(|group| &group.processors) {
        if !known.insert(processor) {
            return Err(Error::usage(format!("{processor} is in two groups")));
        }
    }
    let mut names = BTreeSet::new();
    for wheel in &options.wheels {
        if !names.insert(wheel.file_name()) {
            let text = "another wheel has the same name; split them one after the other";
            return Err(Error::rejected(ids::NAME_CLASH, wheel, text));
        }
    }
    Ok(())
}

/// Whether it is a directory below `site-packages` that may have archives.
fn is_package_directory(path: &Path) -> bool {
    path.components().all(|part| match part {
        Component::Normal(name) => {
            let name = name.to_string_lossy();
            !name.ends_with(".dist-info") && !name.ends_with(".data")
        }
        _ => false,
    })
}

/// Checks what can be told before the wheel is unpacked.
fn check_input(wheel: &Wheel, stage: &Stage, findings: &mut Vec<Finding>) -> Result<(), Error> {
    let path = &wheel.path;
    let output = stage.output(wheel.name.to_string());
    let real = |path: &Path| fs::canonicalize(path).ok();
    if real(path).is_some() && real(path) == real(&output) {
        let text = "the host wheel has the same name and would replace it; choose another output directory";
        return Err(Error::rejected(ids::OUTPUT_IN_THE_WAY, path, text));
    }
    let is_host = |path: &Path| {
        let pins = Wheel::open(path).and_then(|wheel| wheel.pins());
        pins.is_ok_and(|pins| pins.are_of_host())
    };
    if output.exists() && !is_host(&output) {
        let text = "not a host wheel and would be replaced by one; choose another output directory";
        return Err(Error::rejected(ids::OUTPUT_IN_THE_WAY, &output, text));
    }
    let is_in_the_way = |member: &&Member| member.name.rsplit('/').next() == Some(".kpack");
    if let Some(member) = wheel.members.iter().find(is_in_the_way) {
        let text = "a file, where archives need a directory; rename it";
        let id = ids::OUTPUT_IN_THE_WAY;
        return Err(in_member(id, path, &member.name, text));
    }
    let platform = &wheel.name.platform;
    if platform.split('.').any(|tag| tag.starts_with("linux_")) {
        let text = format!(
            "PyPI rejects the platform tag {platform}; run `auditwheel repair` before the split"
        );
        findings.push(warning(ids::NOT_FOR_PYPI, path, text));
    }
    let tags: BTreeSet<String> = wheel.name.tags().into_iter().collect();
    let listed: BTreeSet<String> = wheel.wheel.all("Tag").map(str::to_owned).collect();
    if tags != listed {
        let text = format!(
            "WHEEL lists the tags {} (expected {}, as the file name says); installers go by the file name",
            Vec::from_iter(listed).join(", "),
            Vec::from_iter(tags).join(", ")
        );
        findings.push(warning(ids::WHEEL_NAME, path, text));
    }
    if let Some(signature) = wheel.signature() {
        let text = Reason::from("left out, because RECORD changes").in_member(&signature.name);
        findings.push(warning(ids::SIGNATURE_DROPPED, path, text));
    }
    Ok(())
}

fn warning(id: Id, path: &Path, text: impl Into<Reason>) -> Finding {
    Finding::new(Severity::Warning, id, path, text)
}

/// Warns where splitting saves little, project by project, and of files too large for PyPI.
fn warn_of_sizes(
    fat: &[Wheel],
    hosts: &[Written],
    devices: &WrittenDevices<'_>,
    findings: &mut Vec<Finding>,
) {
    let projects: BTreeSet<&str> = fat.iter().map(|w| w.name.distribution.as_str()).collect();
    for project in projects {
        let devices = devices.wheels.iter().filter(|(of, _)| *of == project);
        let devices = devices.map(|(_, device)| device.size);
        let most = devices.clone().max().unwrap_or(0);
        let own = fat.iter().zip(hosts);
        let own = own.filter(|(wheel, _)| wheel.name.distribution == project);
        for (wheel, host) in own.clone() {
            let download = host.size + most;
            if download.saturating_mul(10) > wheel.size.saturating_mul(9) {
                let percent = download.saturating_mul(100) / wheel.size.max(1);
                let text = format!(
                    "splitting saves less than 10%: host wheel and largest device wheel together have {percent}% of the fat wheel's size"
                );
                findings.push(warning(ids::SMALL_GAIN, &wheel.path, text));
            }
        }
        let before: u64 = own.clone().map(|(wheel, _)| wheel.size).sum();
        let after: u64 = own.clone().map(|(_, host)| host.size).sum();
        let after = after + devices.sum::<u64>();
        if let (true, Some((wheel, _))) = (after > before, own.clone().next()) {
            let text = format!(
                "all wheels together are larger than before ({after} bytes, {before} before)"
            );
            findings.push(warning(ids::SMALL_GAIN, &wheel.path, text));
        }
    }
    let devices = devices.wheels.iter().map(|(_, device)| device);
    for wheel in hosts.iter().chain(devices) {
        if wheel.size > PYPI_LIMIT {
            let text = "larger than 100 MB, the most that PyPI accepts unless it grants more";
            findings.push(warning(ids::NOT_FOR_PYPI, &wheel.path, text));
        }
    }
}
