//! Wheels that belong together: which device wheels the extras of a host wheel ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use kpack_format::{Delivery, TargetId};
use pep440_rs::{Operator, Version};
use pep508_rs::{
    ExtraName, MarkerEnvironment, PackageName, Requirement, VerbatimUrl, VersionOrUrl,
};

use super::archive::Wheel;
use super::metadata::{Fields, without_url};
use kpack_core::Error;

/// The extra that asks for all device wheels.
pub(super) const ALL: &str = "device-all";

/// A requirement of a wheel.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pin {
    pub(super) project: PackageName,
    /// The only version that it accepts, if it is one.
    pub(super) version: Option<Version>,
    /// The extras of the project that it asks for.
    pub(super) extras: BTreeSet<ExtraName>,
}

impl Pin {
    /// Whether `wheel` is what is required, in any version.
    pub(super) fn is_for(&self, wheel: &Wheel) -> bool {
        PackageName::from_str(&wheel.name.distribution).is_ok_and(|name| name == self.project)
    }

    /// Whether it accepts the version of `wheel` alone.
    pub(super) fn accepts(&self, wheel: &Wheel) -> bool {
        let version = Version::from_str(&wheel.name.version).ok();
        self.is_for(wheel) && version.is_some() && version == self.version
    }

    /// Whether it asks for `wheel`: for its version alone, or for no version alone.
    pub(super) fn asks_for(&self, wheel: &Wheel) -> bool {
        self.accepts(wheel) || self.version.is_none() && self.is_for(wheel)
    }
}

impl std::fmt::Display for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.version {
            Some(version) => write!(f, "{}=={version}", self.project),
            None => write!(f, "{}", self.project),
        }
    }
}

impl Wheel {
    /// What each of its extras for device wheels asks for, and what it requires without an extra.
    pub(super) fn pins(&self) -> Result<Pins, Error> {
        let pins = pins(&self.metadata, &|extra| extra.starts_with("device-"), None);
        pins.map_err(|text| self.refused("METADATA", text))
    }
}

/// What is required without an extra, and what each extra asks for that `is_extra` accepts, in an environment, or in any if
/// it is unknown.
///
/// # Errors
/// What is wrong with the fields.
pub(super) fn pins(
    fields: &Fields,
    is_extra: &dyn Fn(&str) -> bool,
    environment: Option<&MarkerEnvironment>,
) -> Result<Pins, String> {
    let mut pins = Pins::default();
    for text in fields.all("Provides-Extra") {
        let extra = ExtraName::from_str(text).map_err(|error| error.to_string())?;
        if is_extra(extra.as_ref()) {
            pins.extras.entry(extra).or_default();
        }
    }
    if pins.extras.len() > MAX_EXTRAS {
        return Err(format!("has more than {MAX_EXTRAS} extras"));
    }
    let length: usize = fields.all("Requires-Dist").map(str::len).sum();
    if length.saturating_mul(pins.extras.len()) > MAX_COMPARED {
        let extras = pins.extras.len();
        return Err(format!(
            "has {extras} extras and {length} bytes of requirements (expected a product of at most {MAX_COMPARED})"
        ));
    }
    for text in fields.all("Requires-Dist") {
        let requirement = requirement(text)?;
        let version = exact(&requirement);
        let marker = requirement.marker;
        let pin = Pin {
            version,
            extras: requirement.extras.into_iter().collect(),
            project: requirement.name,
        };
        if marker.evaluate_optional_environment(environment, &[]) {
            pins.always.insert(pin);
            continue;
        }
        for (extra, asked) in &mut pins.extras {
            let extra = std::slice::from_ref(extra);
            if marker.evaluate_optional_environment(environment, extra) {
                asked.insert(pin.clone());
            }
        }
    }
    Ok(pins)
}

/// The requirements of a wheel that matter to its set.
#[derive(Debug, Clone, Default)]
pub(super) struct Pins {
    pub(super) always: BTreeSet<Pin>,
    /// By extra, those for device wheels.
    pub(super) extras: BTreeMap<ExtraName, BTreeSet<Pin>>,
}

impl Pins {
    /// Whether they are those of a host wheel.
    pub(super) fn are_of_host(&self) -> bool {
        self.extras.keys().any(|extra| extra.to_string() == ALL)
    }

    /// The extras for GPUs that need what is for `found`, and what each asks for.
    pub(super) fn needing(
        &self,
        found: &TargetId,
    ) -> impl Iterator<Item = (&ExtraName, &BTreeSet<Pin>)> {
        self.targets().filter_map(|(target, extra, asked)| {
            target.needs(found, Delivery::Archive).then_some((extra, asked))
        })
    }

    /// The extras that are named after targets.
    pub(super) fn targets(&self) -> impl Iterator<Item = (TargetId, &ExtraName, &BTreeSet<Pin>)> {
        self.extras.iter().filter_map(|(extra, asked)| {
            let label = extra.to_string();
            let target = label.strip_prefix("device-")?.parse().ok()?;
            Some((target, extra, asked))
        })
    }

    /// The projects of all device wheels, with the extras that ask for each.
    pub(super) fn devices(&self) -> BTreeMap<&Pin, Vec<String>> {
        let mut devices: BTreeMap<&Pin, Vec<String>> = BTreeMap::new();
        for (extra, pins) in &self.extras {
            for pin in pins {
                let extras = devices.entry(pin).or_default();
                if extra.to_string() != ALL {
                    extras.push(extra.to_string());
                }
            }
        }
        devices
    }
}

/// The most extras: each is compared with each requirement.
const MAX_EXTRAS: usize = 1000;

/// The most bytes of requirements, counted once for each extra that they are compared with: 1000 extras that each
/// have a requirement of their own need half of it.
const MAX_COMPARED: usize = 1 << 28;

/// The most parentheses in a requirement. The library parses them recursively.
const MAX_PARENTHESES: usize = 100;

/// Parses the value of `Requires-Dist`.
///
/// # Errors
/// What is wrong with it.
pub(super) fn requirement(text: &str) -> Result<Requirement<VerbatimUrl>, String> {
    let shown = without_url(text);
    if text.matches('(').count() > MAX_PARENTHESES {
        let start: String = shown.chars().take(40).collect();
        return Err(format!(
            "`Requires-Dist: {start}…` has more than {MAX_PARENTHESES} parentheses"
        ));
    }
    // The library panics for names of projects and extras that end so.
    let is_in_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let (name, rest) = split_at_first(text.trim_start(), |c| !is_in_name(c));
    let extras = rest.trim_start().strip_prefix('[').unwrap_or_default();
    let (extras, _) = split_at_first(extras, |c| c == ']');
    let mut names = extras.split(',').map(str::trim).chain([name]);
    if let Some(name) = names.find(|name| name.ends_with(['.', '_', '-'])) {
        let name = without_url(name);
        return Err(format!(
            "`Requires-Dist: {shown}`: `{name}` is not a name (expected a letter or a digit at its end)"
        ));
    }
    Requirement::from_str(text).map_err(|error| {
        let error = error.to_string();
        let first = error.lines().next().unwrap_or_default();
        // It can quote the URL.
        let why = if shown == text { first } else { "not a valid requirement" };
        format!("`Requires-Dist: {shown}`: {why}")
    })
}

fn split_at_first(text: &str, is_end: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(is_end).unwrap_or(text.len()))
}

/// The only version that a requirement accepts.
fn exact(requirement: &Requirement<VerbatimUrl>) -> Option<Version> {
    let Some(VersionOrUrl::VersionSpecifier(specifiers)) = &requirement.version_or_url else {
        return None;
    };
    let exact = specifiers.iter().find(|specifier| *specifier.operator() == Operator::Equal);
    exact.map(|specifier| specifier.version().clone())
}

/// The device wheel for `pin` that is installed with `host`, of those in `wheels`.
pub(super) fn device_of<'w>(pin: &Pin, host: &Wheel, wheels: &'w [Wheel]) -> Option<&'w Wheel> {
    let has_same_tags = |wheel: &&Wheel| {
        let (own, other) = (&wheel.name, &host.name);
        let any = own.python == "py3" && own.abi == "none";
        own.platform == other.platform
            && (any || (&own.python, &own.abi) == (&other.python, &other.abi))
    };
    let wheels = wheels.iter().filter(|wheel| pin.is_for(wheel)).filter(has_same_tags);
    // Those of other versions and builds may be among them.
    wheels.min_by_key(|wheel| (!pin.accepts(wheel), wheel.name.build != host.name.build))
}
