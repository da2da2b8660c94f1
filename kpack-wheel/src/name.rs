//! The names of projects and wheels.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use pep440_rs::Version;
use pep508_rs::PackageName;

use kpack_core::{Error, ids};

/// What the file name of a wheel says: `NAME-VERSION[-BUILD]-PYTHON-ABI-PLATFORM[-VARIANT].whl`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WheelName {
    /// Name, version and build as the file name has them.
    pub(super) distribution: String,
    pub(super) version: String,
    pub(super) build: Option<String>,
    /// Each may list several tags, with dots between them.
    pub(super) python: String,
    pub(super) abi: String,
    pub(super) platform: String,
    /// The label of a wheel variant.
    pub(super) variant: Option<String>,
}

impl WheelName {
    /// Parses the file name of `path`.
    pub(super) fn of(path: &Path) -> Result<Self, Error> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let refused = || {
            let expected = "the name is not that of a wheel (expected NAME-VERSION[-BUILD]-PYTHON-ABI-PLATFORM.whl)";
            Error::rejected(ids::WHEEL_NAME, path, expected)
        };
        let stem = name.strip_suffix(".whl").ok_or_else(refused)?;
        let mut parts: Vec<String> = stem.split('-').map(str::to_owned).collect();
        let is_plain = |part: &String| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "._+!".contains(c);
            !part.is_empty() && part.chars().all(plain)
        };
        if !parts.iter().all(is_plain) {
            return Err(refused());
        }
        let is_build = |part: &String| part.starts_with(|c: char| c.is_ascii_digit());
        let build = (parts.len() > 5 && is_build(&parts[2])).then(|| parts.remove(2));
        let variant = if parts.len() == 6 { parts.pop() } else { None };
        let parts = <[String; 5]>::try_from(parts).map_err(|_| refused())?;
        if !variant.iter().all(|label| is_label(label)) {
            return Err(refused());
        }
        let [distribution, version, python, abi, platform] = parts;
        Ok(Self { distribution, version, build, python, abi, platform, variant })
    }

    /// The name of the wheel of another project, with the same version, build and platform.
    pub(super) fn of_device(&self, project: &str, any_python: bool) -> Self {
        let mut name = Self { distribution: escaped(project), variant: None, ..self.clone() };
        if any_python {
            (name.python, name.abi) = ("py3".to_owned(), "none".to_owned());
        }
        name
    }

    /// The directory of its metadata, or of its data, by `suffix`.
    pub(super) fn directory(&self, suffix: &str) -> String {
        format!("{}-{}.{suffix}", self.distribution, self.version)
    }

    /// Whether `directory` is its directory with this suffix: names and versions may be written in
    /// several ways.
    pub(super) fn has_directory(&self, directory: &str, suffix: &str) -> bool {
        let stem = directory.strip_suffix(suffix).and_then(|d| d.strip_suffix('.'));
        let Some((name, version)) = stem.and_then(|stem| stem.rsplit_once('-')) else {
            return false;
        };
        same_project(name, &self.distribution) && same_version(version, &self.version)
    }

    /// Its tags, one for each combination.
    pub(super) fn tags(&self) -> Vec<String> {
        let mut tags = Vec::new();
        for python in self.python.split('.') {
            for abi in self.abi.split('.') {
                for platform in self.platform.split('.') {
                    tags.push(format!("{python}-{abi}-{platform}"));
                }
            }
        }
        tags
    }
}

impl fmt::Display for WheelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-", self.distribution, self.version)?;
        if let Some(build) = &self.build {
            write!(f, "{build}-")?;
        }
        write!(f, "{}-{}-{}", self.python, self.abi, self.platform)?;
        if let Some(variant) = &self.variant {
            write!(f, "-{variant}")?;
        }
        f.write_str(".whl")
    }
}

/// Whether a wheel variant may have this label, which becomes a part of its file name.
pub(super) fn is_label(text: &str) -> bool {
    let is_of_label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._".contains(c);
    text.chars().all(is_of_label)
}

/// A project's name as file names have it.
pub(super) fn escaped(project: &str) -> String {
    match PackageName::from_str(project) {
        Ok(name) => name.as_dist_info_name().into_owned(),
        Err(_) => project.to_owned(),
    }
}

/// A project's name, normalised.
pub(super) fn project_name(project: &str) -> String {
    PackageName::from_str(project).map_or_else(|_| project.to_owned(), |name| name.to_string())
}

/// Whether both are names of one project.
pub(super) fn same_project(a: &str, b: &str) -> bool {
    match (PackageName::from_str(a), PackageName::from_str(b)) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    }
}

/// Whether both are one version.
pub(super) fn same_version(a: &str, b: &str) -> bool {
    let version = |text: &str| Version::from_str(&text.replace('_', "-")).ok();
    a == b || version(a).is_some_and(|a| Some(a) == version(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names() {
        let parse = |name: &str| WheelName::of(Path::new(name));
        for name in [
            "torch-2.5.1+rocm6.2-cp311-cp311-manylinux_2_28_x86_64.whl",
            "pyg_lib-0.4-1-cp39.cp310-abi3-linux_x86_64.whl",
            "vec_device-1.0-py3-none-any-gfx942.whl",
            "vec_device-1.0-1-py3-none-any-null.whl",
        ] {
            assert_eq!(parse(name).unwrap().to_string(), name);
        }
        for name in [
            "torch.whl",
            "a-1-b-c-d-e-f.whl",
            "a-1-py3-none-any-GFX942.whl",
            "a--1-py3-none-any.whl",
            "a.zip",
        ] {
            assert!(parse(name).is_err(), "{name}");
        }
        let name = parse("Pyg.Lib-1.0-py2.py3-none-any.whl").unwrap();
        assert_eq!(name.tags(), ["py2-none-any", "py3-none-any"]);
        assert!(name.has_directory("pyg_lib-1.dist-info", "dist-info"));
        assert!(!name.has_directory("pyg_lib-2.dist-info", "dist-info"));
        let device = name.of_device("pyg-lib-device-gfx942", false);
        assert_eq!(device.to_string(), "pyg_lib_device_gfx942-1.0-py2.py3-none-any.whl");
    }
}
