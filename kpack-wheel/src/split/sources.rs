//! What is split: the wheels, and the archives of libraries that another tool split.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path};
use std::str::FromStr;

use kpack_core::{Error, Finding, Reason, ids, shown};
use pep508_rs::PackageName;

use super::report::warning;
use crate::archive::Wheel;
use crate::device::normalized;
use crate::members::{Member, in_member};
use crate::options::{DEVICE_NAME, Options};
use crate::set::{self, ALL};
use crate::vendor::ArchiveSources;

/// The wheels, opened, and where archives are looked for.
pub(super) struct WheelSources {
    pub(super) wheels: Vec<Wheel>,
    pub(super) archives: ArchiveSources,
}

impl WheelSources {
    /// Checks the options and opens what they name.
    pub(super) fn open(options: &Options) -> Result<Self, Error> {
        check_options(options)?;
        let opened = options.wheels.iter().map(|path| Wheel::open(path));
        let wheels = opened.collect::<Result<Vec<_>, _>>()?;
        if wheels.is_empty() {
            return Err(Error::usage("no wheel is named"));
        }
        Ok(Self { wheels, archives: ArchiveSources::list(&options.archives)? })
    }

    /// The distribution of the first wheel.
    pub(super) fn distribution(&self) -> &str {
        self.wheels.first().map_or("", |wheel| &wheel.name.distribution)
    }
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

/// Checks what can be told before a wheel is unpacked, whose host wheel is written to `output`.
pub(super) fn check(
    wheel: &Wheel,
    output: &Path,
    findings: &mut Vec<Finding>,
) -> Result<(), Error> {
    let path = &wheel.path;
    let real = |path: &Path| fs::canonicalize(path).ok();
    if real(path).is_some() && real(path) == real(output) {
        let text = "the host wheel has the same name and would replace it; choose another output directory";
        return Err(Error::rejected(ids::OUTPUT_IN_THE_WAY, path, text));
    }
    let is_host = |path: &Path| {
        let pins = Wheel::open(path).and_then(|wheel| wheel.pins());
        pins.is_ok_and(|pins| pins.are_of_host())
    };
    if output.exists() && !is_host(output) {
        let text = "not a host wheel and would be replaced by one; choose another output directory";
        return Err(Error::rejected(ids::OUTPUT_IN_THE_WAY, output, text));
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
