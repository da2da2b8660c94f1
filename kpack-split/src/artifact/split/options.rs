//! What to split, and how.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use kpack_format::TargetId;
use kpack_format::archive::Scheme;

use crate::Error;
use crate::artifact::databases::Selection;
use crate::install::{Unexpected, is_name_part};
use crate::parallel::processors;

/// What to split, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// The artifact directory, with its `artifact_manifest.txt`. It is only read.
    pub artifact_dir: PathBuf,
    /// Where the split artifacts go.
    pub output_dir: PathBuf,
    /// Name and component, such as `blas_lib`: what the split artifacts are named after. The
    /// component, behind the last `_`, is a part of the archives' names too.
    pub artifact_prefix: String,
    /// The kernel databases whose files are moved to their targets.
    pub databases: Selection,
    /// The targets that are expected; where empty, every target that is there.
    pub targets: Vec<TargetId>,
    /// Whether to refuse an artifact, or a batch, with device code for none of them.
    pub require_targets: bool,
    /// How to treat files for targets that are not expected.
    pub unexpected: Unexpected,
    /// How to treat files outside of kernel databases that look architecture-specific.
    pub unknown: Unknown,
    /// Where archives go, and how they are named.
    pub layout: Layout,
    /// How users install the archive of a target, for the manifests; see
    /// [`Manifest::install_hint`](kpack_format::manifest::Manifest::install_hint).
    pub install_hint: Option<String>,
    /// How code objects are stored.
    pub scheme: Scheme,
    /// The Zstandard level, where it applies.
    pub level: i32,
    /// How many threads work at a time.
    pub jobs: NonZeroUsize,
}

/// How to treat files outside of kernel databases that look architecture-specific.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unknown {
    /// It stays in the generic artifact, and is reported.
    #[default]
    Report,
    /// Device code of one target, and data files that are named after one, are moved to it. What
    /// else a host may need stays, whatever its name. Both are reported.
    Move,
    /// The artifact is refused.
    Error,
}

/// Where archives go in an install prefix, and how they are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// `lib/.kpack/<module>_<component>_<target>.kpack`, one archive for each prefix.
    #[default]
    Module,
    /// `.kpack/<artifact prefix>_<target>.kpack`, one archive for all prefixes, in the first of them.
    Artifact,
}

impl Options {
    /// For an artifact directory, with the defaults of everything else: all kernel databases, all
    /// targets, Zstandard at level 3, and as many threads as there are processors.
    pub fn new(
        artifact_dir: impl Into<PathBuf>,
        output_dir: impl Into<PathBuf>,
        artifact_prefix: impl Into<String>,
    ) -> Self {
        Self {
            artifact_dir: artifact_dir.into(),
            output_dir: output_dir.into(),
            artifact_prefix: artifact_prefix.into(),
            databases: Selection::default(),
            targets: Vec::new(),
            require_targets: false,
            unexpected: Unexpected::default(),
            unknown: Unknown::default(),
            layout: Layout::default(),
            install_hint: None,
            scheme: Scheme::ZstdPerKernel,
            level: 3,
            jobs: processors(),
        }
    }

    /// The component: what is behind the last `_` of the prefix.
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
