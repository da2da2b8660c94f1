//! What to recombine, and how.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use kpack_core::parallel::processors;

use crate::packaging::Configuration;

/// What to recombine, and how.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// A directory for each shard, with its split artifacts. It is only read.
    pub shards_dir: PathBuf,
    /// Which targets go into which artifacts.
    pub configuration: Configuration,
    /// The output directory.
    pub output_dir: PathBuf,
    /// The components to recombine; if empty, all.
    pub components: Vec<String>,
    /// Number of threads.
    pub jobs: NonZeroUsize,
}

impl Options {
    /// Options with defaults for everything else: all components, one thread per processor.
    pub fn new(
        shards_dir: impl Into<PathBuf>,
        configuration: Configuration,
        output_dir: impl Into<PathBuf>,
    ) -> Self {
        Self {
            shards_dir: shards_dir.into(),
            configuration,
            output_dir: output_dir.into(),
            components: Vec::new(),
            jobs: processors(),
        }
    }
}
