//! What to split, and how.

use std::path::PathBuf;
use std::str::FromStr;

use kpack_artifact::packaging::misnamed;
use kpack_core::Error;
use kpack_core::Storage;
use kpack_format::TargetId;
use kpack_format::unstable::spelling;
use kpack_tree::kernel_files::KernelFiles;

/// What to split, and how: the arguments of `kpack wheel split`.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[non_exhaustive]
pub struct Options {
    /// Directory to write the wheels to
    #[cfg_attr(feature = "clap", arg(long, value_name = "DIR"))]
    pub output_dir: PathBuf,
    /// Directory to write the device wheels to. Default: that of the host wheels
    #[cfg_attr(feature = "clap", arg(long, value_name = "DIR"))]
    pub device_dir: Option<PathBuf>,
    /// Name of a device wheel: {dist} stands for the host's name, {target} for the processor or group
    #[cfg_attr(feature = "clap", arg(long, value_name = "PATTERN", default_value = DEVICE_NAME))]
    pub device_name: String,
    /// Further requirement of each device wheel, such as rocm-sdk-device-{target}==7.14.0, where {target} stands for
    /// each of its processors. Can be repeated
    #[cfg_attr(feature = "clap", arg(long = "device-requires", value_name = "REQUIREMENT"))]
    pub device_requires: Vec<String>,
    /// Further requirement of each host wheel, such as rocm-bootstrap. Can be repeated
    #[cfg_attr(feature = "clap", arg(long = "host-requires", value_name = "REQUIREMENT"))]
    pub host_requires: Vec<String>,
    /// Directory in the wheel whose .kpack contains the archives of all binaries. Default: the top-level directory of
    /// each binary
    #[cfg_attr(feature = "clap", arg(long, value_name = "DIR"))]
    pub overlay_root: Option<PathBuf>,
    /// Prefix with the archives of libraries that another tool split, such as those that auditwheel copied from
    /// /opt/rocm. Can be repeated
    #[cfg_attr(feature = "clap", arg(long, value_name = "PREFIX"))]
    pub archives: Vec<PathBuf>,
    /// Also write wheel variants (an experiment of Python's packaging), with which installers choose the device wheel
    /// by the GPU: a project named by --device-name without {target}
    #[cfg_attr(feature = "clap", arg(long))]
    pub variant: bool,
    /// Processors that share a device wheel, such as gfx11=gfx1100,gfx1101. Can be repeated
    #[cfg_attr(feature = "clap", arg(long = "group", value_name = "NAME=PROCESSORS"))]
    pub groups: Vec<DeviceGroup>,
    /// Rules for kernel files outside of the kernel databases that kpack knows.
    #[cfg_attr(feature = "clap", arg(skip))]
    pub kernel_files: Vec<KernelFiles>,
    /// How code objects are stored.
    #[cfg_attr(feature = "clap", arg(skip = Storage::zstd()))]
    pub storage: Storage,
    /// Wheels with device code
    // Those of one version for several Pythons share device wheels where these are equal.
    #[cfg_attr(feature = "clap", arg(value_name = "WHEEL", required = true))]
    pub wheels: Vec<PathBuf>,
}

impl Options {
    /// Options with defaults for everything else: a device wheel for each processor, called
    /// `{dist}-device-{target}`, Zstandard at level 3, one thread per processor.
    pub fn new(
        wheels: impl IntoIterator<Item = impl Into<PathBuf>>,
        output_dir: impl Into<PathBuf>,
    ) -> Self {
        Self {
            wheels: wheels.into_iter().map(Into::into).collect(),
            output_dir: output_dir.into(),
            device_dir: None,
            device_name: DEVICE_NAME.to_owned(),
            device_requires: Vec::new(),
            host_requires: Vec::new(),
            overlay_root: None,
            archives: Vec::new(),
            variant: false,
            groups: Vec::new(),
            kernel_files: Vec::new(),
            storage: Storage::zstd(),
        }
    }

    /// The name of the project with the wheel variants, where `{dist}` stands for the host's name.
    pub(crate) fn variant_project(&self) -> String {
        let name = self.device_name.replace("{target}", "").replace("--", "-");
        name.trim_matches(|c| "-_.".contains(c)).to_owned()
    }
}

/// The default name of a device wheel's project.
pub(crate) const DEVICE_NAME: &str = "{dist}-device-{target}";

/// Processors that share a device wheel: `gfx11=gfx1100,gfx1101`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceGroup {
    /// What stands for the target in the wheel's name.
    pub name: String,
    /// The processors; a device wheel has all of their variants.
    pub processors: Vec<TargetId>,
}

impl FromStr for DeviceGroup {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let is_name = |name: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            !name.is_empty() && name.chars().all(plain)
        };
        let expected = || Error::usage(format!("`{text}`: expected NAME=PROCESSOR,PROCESSOR…"));
        let (name, processors) = text.split_once('=').ok_or_else(expected)?;
        if !is_name(name) {
            return Err(expected());
        }
        let refuse = |reason: String| Error::usage(format!("group `{name}`: {reason}"));
        let mut known: Vec<TargetId> = Vec::new();
        for text in processors.split(',') {
            let target = spelling::read_target(text).map_err(|error| refuse(error.to_string()))?;
            if target.features().next().is_some() {
                let processor = target.processor();
                let text = format!(
                    "{target} is a variant; name {processor}: a device wheel has all variants of a processor"
                );
                return Err(refuse(text));
            }
            let owner = target.package_owner();
            if owner != target {
                let text = format!(
                    "the device wheel of {owner} contains the code for {target}; name {owner}"
                );
                return Err(refuse(text));
            }
            known.push(target);
        }
        if let Some(named) = misnamed(&name.to_lowercase(), &known) {
            return Err(refuse(format!("it is named like {named}, which is not in it")));
        }
        Ok(Self { name: name.to_owned(), processors: known })
    }
}
