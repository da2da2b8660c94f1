//! Arguments of commands that write archives: how archives are stored, and by how many threads.

use std::num::NonZeroUsize;

use clap::{Args, ValueEnum};
use kpack_format::archive::Scheme;

use kpack_core::Storage;

#[derive(Debug, Args)]
pub(super) struct StorageArguments {
    #[command(flatten)]
    compression: Compression,
    /// Number of threads. Default: the number of processors
    #[arg(long, short, value_name = "N")]
    jobs: Option<NonZeroUsize>,
}

#[derive(Debug, Args)]
pub(super) struct Compression {
    /// How to store code objects
    #[arg(long, value_enum, default_value_t = CompressionArgument::Zstd)]
    compression: CompressionArgument,
    /// Zstandard level: 1 is fastest, 22 is smallest
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(i32).range(1..=22))]
    level: i32,
}

#[derive(Debug, Args)]
pub(super) struct InstallHint {
    /// How users install the archive of a target, such as "apt install vec-@GFXARCH@"; @GFXARCH@ stands for
    /// the target ID, written gfx90a.xnack-on. The manifest keeps it, and the loader prints it if that
    /// archive is missing
    #[arg(long, value_name = "TEXT")]
    pub(super) install_hint: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum CompressionArgument {
    /// Compress each code object with Zstandard
    Zstd,
    /// Do not compress
    None,
}

impl StorageArguments {
    pub(super) fn storage(&self) -> Storage {
        let storage = self.compression.storage();
        Storage {
            jobs: self.jobs.unwrap_or(storage.jobs),
            ..storage
        }
    }
}

impl Compression {
    pub(super) fn storage(&self) -> Storage {
        Storage {
            scheme: match self.compression {
                CompressionArgument::Zstd => Scheme::ZstdPerKernel,
                CompressionArgument::None => Scheme::None,
            },
            level: self.level,
            ..Storage::zstd()
        }
    }
}
