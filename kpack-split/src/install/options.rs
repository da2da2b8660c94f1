//! What to install, and how.

use std::path::PathBuf;

use kpack_format::TargetId;

use crate::publish::check_names;
use crate::split::Unexpected;
use crate::{Error, Storage};

/// What to install, and how: the arguments of `kpack split`.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "clap", command(group(clap::ArgGroup::new("binaries").required(true))))]
#[non_exhaustive]
pub struct InstallOptions {
    /// Install prefix: the directory that the binaries are in
    #[cfg_attr(feature = "clap", arg(skip))]
    pub prefix: PathBuf,
    /// Module that the binaries belong to, the first part of the archives' names
    #[cfg_attr(feature = "clap", arg(skip))]
    pub module: String,
    /// Component of the module, the second part of the archives' names
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME", default_value = "lib"))]
    pub component: String,
    /// Directory of the archives, relative to the prefix
    #[cfg_attr(feature = "clap", arg(long, value_name = "REL", default_value = "lib/.kpack"))]
    pub kpack_dir: PathBuf,
    /// Expected GPU target, such as gfx90a:xnack+. Can be repeated. If no file has code for it, that is
    /// an error. Default: keep every target
    #[cfg_attr(
        feature = "clap",
        arg(long = "arch", value_name = "TARGET", value_parser = kpack_format::unstable::spelling::read_target, value_delimiter = ',')
    )]
    pub architectures: Vec<TargetId>,
    /// What to do with device code for targets that --arch does not list
    #[cfg_attr(feature = "clap", arg(long, value_enum, default_value_t = Unexpected::Drop, requires = "architectures"))]
    pub unexpected: Unexpected,
    /// Do only half of the work. The two halves together write the same bytes as one plain run
    #[cfg_attr(feature = "clap", arg(long, value_enum))]
    pub only: Option<Only>,
    /// For `--only device`: the unsplit binary to read the device code from. Give one for each FILE, in
    /// the same order
    #[cfg_attr(feature = "clap", arg(long = "source", value_name = "FILE"))]
    pub sources: Vec<PathBuf>,
    /// How users install the archive of a target, for the manifests; see
    /// [`Manifest::install_hint`](kpack_format::manifest::Manifest::install_hint).
    #[cfg_attr(feature = "clap", arg(skip))]
    pub install_hint: Option<String>,
    /// How code objects are stored.
    #[cfg_attr(feature = "clap", arg(skip = Storage::zstd()))]
    pub storage: Storage,
    /// Print what would be split, and write nothing
    #[cfg_attr(feature = "clap", arg(long))]
    pub dry_run: bool,
    /// Find all binaries with device code in the prefix, instead of naming them
    #[cfg_attr(feature = "clap", arg(long, conflicts_with = "sources", group = "binaries"))]
    pub all: bool,
    /// Binaries; paths are relative to the prefix, or else to the working directory
    #[cfg_attr(feature = "clap", arg(value_name = "FILE", group = "binaries"))]
    pub files: Vec<PathBuf>,
}

/// A part of the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Only {
    /// The host binaries and the manifest
    Host,
    /// The archives
    Device,
}

impl InstallOptions {
    /// InstallOptions with defaults for everything else: component `lib`, archives in `lib/.kpack`,
    /// Zstandard at level 3, one thread per processor.
    pub fn new(
        prefix: impl Into<PathBuf>,
        module: impl Into<String>,
        files: impl IntoIterator<Item = impl Into<PathBuf>>,
    ) -> Self {
        Self {
            prefix: prefix.into(),
            module: module.into(),
            component: "lib".to_owned(),
            kpack_dir: PathBuf::from("lib/.kpack"),
            architectures: Vec::new(),
            unexpected: Unexpected::default(),
            only: None,
            sources: Vec::new(),
            install_hint: None,
            storage: Storage::zstd(),
            files: files.into_iter().map(Into::into).collect(),
            dry_run: false,
            all: false,
        }
    }

    pub(super) fn validate(&self) -> Result<(), Error> {
        check_names(&self.module, &self.component)?;
        if self.files.is_empty() != self.all {
            return Err(Error::usage(if self.all {
                "all binaries are taken, so none can be named"
            } else {
                "no binary is named"
            }));
        }
        if self.sources.is_empty() {
            return Ok(());
        }
        if self.only != Some(Only::Device) {
            return Err(Error::usage("sources of device code require `--only device`"));
        }
        if self.sources.len() != self.files.len() {
            return Err(Error::usage(format!(
                "{} sources for {} binaries; expected one for each, in their order",
                self.sources.len(),
                self.files.len()
            )));
        }
        Ok(())
    }
}
