//! What to stage, and how.

use std::path::PathBuf;

use clap::Args;

use kpack_core::{DebugInfo, Spirv};

/// What to stage, and how: the arguments of `kpack stage`.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct Options {
    /// Directory to create. An existing one is filled if it is empty, or was staged before and nothing was added to it
    #[arg(long, value_name = "DIR")]
    pub output_dir: PathBuf,
    /// Only warn about files that contain paths of this machine
    // Markers never do.
    #[arg(long)]
    pub allow_build_paths: bool,
    /// Leave device code that is in programs and libraries where it is, instead of moving it into archives. Rust programs
    /// load their modules from either place
    #[arg(long)]
    pub embed: bool,
    /// What to do with debug sections.
    #[arg(skip)]
    pub debug: DebugInfo,
    /// What to do with kernels of Windows binaries that have SPIR-V. For others, the build script decides.
    #[arg(skip)]
    pub spirv: Spirv,
}

impl Options {
    /// Options for an output directory, without paths of the build machine.
    pub fn new(output_dir: impl Into<PathBuf>) -> Self {
        Self {
            output_dir: output_dir.into(),
            allow_build_paths: false,
            embed: false,
            debug: DebugInfo::default(),
            spirv: Spirv::default(),
        }
    }
}
