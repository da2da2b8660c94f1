//! Writes the wheels of a plan under hidden names, and gives them their final ones.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use kpack_core::publish::{CreatedDirectories, Directory, NewNames, Stage};
use kpack_core::{Error, ids};
use kpack_split::input;
use serde_json::Value;
use zip::DateTime;

use super::plan::{DevicePlan, PlannedDevice};
use super::report::WrittenWheel;
use crate::archive::Wheel;
use crate::options::Options;
use crate::variant_json;
use crate::writer::{self, NewWheel};

/// Where wheels are written.
pub(super) struct Outputs {
    hosts: Stage,
    /// If device wheels have a directory of their own.
    devices: Option<Stage>,
    /// Of all members.
    time: DateTime,
    /// The directories, as far as they were created.
    _made: CreatedDirectories,
}

impl Outputs {
    /// Creates the directories and locks them for wheels of this distribution.
    pub(super) fn lock(options: &Options, distribution: &str) -> Result<Self, Error> {
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

    /// The final path of the host wheel made from `wheel`.
    pub(super) fn host(&self, wheel: &Wheel) -> PathBuf {
        self.hosts.output(wheel.name.to_string())
    }

    /// An empty directory to unpack the wheel with this number into.
    pub(super) fn scratch(&self, number: usize) -> Result<Directory, Error> {
        self.hosts.make(number.to_string())
    }

    /// Writes a wheel into one of the stages.
    fn write(&self, stage: &Stage, wheel: &NewWheel<'_>) -> Result<WrittenWheel, Error> {
        Ok(WrittenWheel {
            path: stage.output(&wheel.name),
            size: writer::write(stage.directory(), wheel, self.time)?,
            targets: Vec::new(),
            extra: None,
        })
    }

    /// Writes a host wheel.
    pub(super) fn write_host(&self, wheel: &NewWheel<'_>) -> Result<WrittenWheel, Error> {
        self.write(&self.hosts, wheel)
    }

    /// Writes the device wheels of all hosts, and wheel variants with their indexes. Returns them with the
    /// distributions of their hosts.
    pub(super) fn write_devices<'p>(
        &self,
        plan: &'p DevicePlan<'_>,
    ) -> Result<Vec<(&'p str, WrittenWheel)>, Error> {
        let stage = self.devices.as_ref().unwrap_or(&self.hosts);
        let write = |planned: &'p PlannedDevice<'_>| {
            let wheel = WrittenWheel {
                targets: planned.targets.clone(),
                extra: planned.extra.clone(),
                ..self.write(stage, &planned.wheel)?
            };
            Ok((planned.host, wheel))
        };
        let written = plan.wheels.iter().map(write).collect::<Result<_, Error>>()?;
        for (name, variants) in &plan.indexes {
            let path = stage.output(name);
            let mut variants = variants.clone();
            add_listed(&path, &mut variants)?;
            let text = variant_json::text(&variants);
            stage
                .directory()
                .create_open(name.as_ref(), false)
                .and_then(|mut file| file.write_all(text.as_ref()))
                .map_err(|e| Error::io(&path, "write", e))?;
        }
        Ok(written)
    }

    /// Gives all files their final names, host wheels last, since their extras name the device wheels.
    pub(super) fn publish(
        self,
        plan: &DevicePlan<'_>,
        hosts: &[WrittenWheel],
    ) -> Result<(), Error> {
        let indexes = plan.indexes.keys().map(String::as_str);
        let wheels = plan.wheels.iter().map(|planned| &*planned.wheel.name);
        let devices = Vec::from_iter(indexes.chain(wheels));
        let names = hosts.iter().filter_map(|host| host.path.file_name()?.to_str());
        let last = Vec::from_iter(names);
        match self.devices {
            Some(stage) => {
                let hosts = NewNames::new::<&str>(&[]).with_last(&last);
                self.hosts.publish_after((&stage, &NewNames::new(&devices)), &hosts)
            }
            None => self.hosts.publish(&NewNames::new(&devices).with_last(&last)),
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
