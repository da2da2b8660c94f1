//! Wheel variants, an experiment of Python's packaging (PEP 825): a project whose wheels have no files, and each
//! requires the device wheel of one processor or group. Installers that know variants choose one by the GPU.

use kpack_format::TargetId;
use serde_json::Value;

use super::archive::SitePackages;
use super::device::Devices;
use super::variant_json;
use super::writer::{Content, Item, NewWheel};
use kpack_core::Error;

/// The label of the variant for machines that no other fits.
const FALLBACK: &str = "null";

/// The most characters of a label.
const MAX_LABEL: usize = 16;

/// A wheel of the project.
pub(super) struct Variant {
    /// `None` for the wheel that installers without variants take.
    label: Option<String>,
    /// The processors that it is for.
    processors: Vec<String>,
    /// The device wheel that it requires.
    requirement: Option<String>,
}

/// The variants that the device wheels of one host call for, those that have no GPU last. Generic code and files of
/// families have none: no GPU is one of these.
pub(super) fn variants(devices: &Devices<'_>) -> Result<Vec<Variant>, Error> {
    let version = devices.version()?;
    let mut variants = Vec::new();
    for device in devices.iter() {
        let processors: Vec<String> = device
            .processors
            .iter()
            .map(TargetId::processor)
            .filter(|name| TargetId::family(name).is_none() && !name.contains('-'))
            .map(str::to_owned)
            .collect();
        if processors.is_empty() {
            continue;
        }
        let label = device.label.to_lowercase().replace('-', "_");
        if label.len() > MAX_LABEL {
            return Err(Error::usage(format!(
                "group `{}`: labels of variants have at most {MAX_LABEL} characters; rename the group",
                device.label
            )));
        }
        variants.push(Variant {
            label: Some(label),
            processors,
            requirement: Some(format!("{}=={version}", device.project)),
        });
    }
    for label in [Some(FALLBACK.to_owned()), None] {
        variants.push(Variant { label, processors: Vec::new(), requirement: None });
    }
    Ok(variants)
}

impl Variant {
    /// Its wheel.
    pub(super) fn members<'a>(
        &self,
        devices: &Devices<'a>,
        project: &str,
        any_python: bool,
    ) -> Result<NewWheel<'a>, Error> {
        let mut name = devices.host().of_device(project, any_python);
        name.variant.clone_from(&self.label);
        let what = match self.processors.as_slice() {
            [] => "no GPU".to_owned(),
            processors => processors.join(", "),
        };
        let requirements = self.requirement.clone().into_iter().collect();
        let scheme = SitePackages::Platlib;
        let mut items =
            Vec::from(devices.metadata(&name, (project, &what), requirements, scheme)?);
        let dist_info = name.directory("dist-info");
        if let Some(label) = &self.label {
            let text = variant_json::text(&[(label.clone(), self.properties())].into());
            items.push(Item {
                name: format!("{dist_info}/{}", variant_json::FILE),
                mode: 0o644,
                content: Content::Bytes(text),
            });
        }
        Ok(NewWheel { name: name.to_string(), record: format!("{dist_info}/RECORD"), items })
    }

    /// Its label and its properties, unless it is for installers without variants.
    pub(super) fn entry(&self) -> Option<(String, Value)> {
        Some((self.label.clone()?, self.properties()))
    }

    /// Whether it is for some GPU.
    pub(super) fn is_for_gpu(&self) -> bool {
        self.requirement.is_some()
    }

    fn properties(&self) -> Value {
        variant_json::properties(&self.processors)
    }
}
