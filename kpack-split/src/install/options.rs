//! What to install, and how.

use std::path::PathBuf;

use clap::ValueEnum;
use kpack_format::TargetId;

use crate::split::Unexpected;
use crate::store::check_names;
use crate::{Error, Storage};

/// What to install, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// The install prefix.
    pub prefix: PathBuf,
    /// The module, such as `rocblas`: what the archives are named after.
    pub module: String,
    /// The component, such as `lib`: the second part of the archives' names.
    pub component: String,
    /// The directory of the archives, relative to the prefix.
    pub kpack_dir: PathBuf,
    /// The expected targets; if empty, all targets found.
    pub architectures: Vec<TargetId>,
    /// How to treat device code for a target that `architectures` does not list.
    pub unexpected: Unexpected,
    /// The part of the work to do; `None` for all of it.
    pub only: Option<Only>,
    /// Unsplit binaries to take device code from, one for each of `files`; requires
    /// [`Only::Device`]. If empty, `files` themselves.
    pub sources: Vec<PathBuf>,
    /// How users install the archive of a target, for the manifests; see
    /// [`Manifest::install_hint`](kpack_format::manifest::Manifest::install_hint).
    pub install_hint: Option<String>,
    /// How code objects are stored.
    pub storage: Storage,
    /// The binaries, relative to the prefix.
    pub files: Vec<PathBuf>,
    /// Whether to find all binaries with device code in the prefix, instead of `files`.
    pub all: bool,
}

/// A part of the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Only {
    /// The host binaries and the manifest
    Host,
    /// The archives
    Device,
}

impl Options {
    /// Options with defaults for everything else: component `lib`, archives in `lib/.kpack`,
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
            storage: Storage::default(),
            files: files.into_iter().map(Into::into).collect(),
            all: false,
        }
    }

    pub(super) fn validate(&self) -> Result<(), Error> {
        check_names(&self.module, &self.component)?;
        if self.files.is_empty() != self.all {
            return Err(Error::usage(match self.all {
                true => "all binaries are taken, so none can be named",
                false => "no binary is named",
            }));
        }
        if self.sources.is_empty() {
            return Ok(());
        }
        if self.only != Some(Only::Device) {
            return Err(Error::usage(
                "sources of device code require `--only device`",
            ));
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
