//! What to split, and how.

use std::path::PathBuf;

use kpack_format::TargetId;

use kpack_core::Error;
use kpack_core::Storage;
use kpack_core::publish::is_name_part;
use kpack_split::split::Unexpected;
use kpack_tree::DatabaseSelection;

/// What to split, and how.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// The artifact directory, with its `artifact_manifest.txt`. It is only read.
    pub artifact_dir: PathBuf,
    /// Where the split artifacts go.
    pub output_dir: PathBuf,
    /// Name and component, such as `blas_lib`: what the split artifacts are named after. The
    /// component, after the last `_`, is also a part of the archives' names.
    pub artifact_prefix: String,
    /// The kernel databases whose files are moved to their targets.
    pub databases: DatabaseSelection,
    /// The expected targets; if empty, all targets found.
    pub targets: Vec<TargetId>,
    /// Whether to refuse an artifact, or a batch, with something for targets, but for none of them, also if
    /// only kernel databases have it. Fat binaries without code for any of them are refused anyway; in a batch with
    /// [`Layout::Module`], only if no artifact has any.
    pub require_targets: bool,
    /// What to do with files for targets that are not expected.
    pub unexpected: Unexpected,
    /// What to do with files outside of kernel databases that look architecture-specific.
    pub unknown: Unknown,
    /// Where archives go, and how they are named.
    pub layout: Layout,
    /// How users install the archive of a target, for the manifests of [`Layout::Module`]; see
    /// [`Manifest::install_hint`](kpack_format::manifest::Manifest::install_hint).
    pub install_hint: Option<String>,
    /// Whether to replace artifact directories that kpack did not write, or that have lost their mark.
    pub replace_artifacts: bool,
    /// How code objects are stored.
    pub storage: Storage,
}

/// What to do with files outside of kernel databases that look architecture-specific.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Unknown {
    /// Keep them in the generic artifact, with a warning
    #[default]
    Report,
    /// Move device code and data files of one target to its artifact; keep all others generic
    Move,
    /// Reject the artifact
    Error,
}

/// Where archives go in an install prefix, and how they are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Layout {
    /// lib/.kpack/MODULE_COMPONENT_TARGET.kpack, an archive for each prefix
    #[default]
    Module,
    /// .kpack/NAME_COMPONENT_TARGET.kpack, one archive for all prefixes and no manifest, as TheRock packages them
    Artifact,
}

impl Options {
    /// Options with defaults for everything else: all kernel databases, all targets, Zstandard at
    /// level 3, one thread per processor.
    pub fn new(
        artifact_dir: impl Into<PathBuf>,
        output_dir: impl Into<PathBuf>,
        artifact_prefix: impl Into<String>,
    ) -> Self {
        Self {
            artifact_dir: artifact_dir.into(),
            output_dir: output_dir.into(),
            artifact_prefix: artifact_prefix.into(),
            databases: DatabaseSelection::default(),
            targets: Vec::new(),
            require_targets: false,
            unexpected: Unexpected::default(),
            unknown: Unknown::default(),
            layout: Layout::default(),
            install_hint: None,
            replace_artifacts: false,
            storage: Storage::zstd(),
        }
    }

    /// The component: the part of the prefix after the last `_`.
    pub(super) fn component(&self) -> Result<&str, Error> {
        match self.artifact_prefix.rsplit_once('_') {
            Some((name, component)) if is_name_part(name) && is_name_part(component) => {
                Ok(component)
            }
            _ => Err(Error::usage(format!(
                "artifact prefix `{}`: expected NAME_COMPONENT, such as blas_lib, of letters, \
                 digits, `.`, `_`, `+` and `-`",
                self.artifact_prefix
            ))),
        }
    }
}
