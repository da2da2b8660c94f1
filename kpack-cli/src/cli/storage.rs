//! Arguments of commands that write archives: how archives are stored, and by how many threads.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};

use super::output;
use super::print::print;
use kpack_core::{DebugInfo, Spirv, Storage};
use kpack_format::TargetId;

#[derive(Debug, Args)]
pub(super) struct StorageArguments {
    #[command(flatten)]
    compression: CompressionArguments,
    /// Number of threads. Default: the number of processors
    #[arg(long, short, value_name = "N")]
    jobs: Option<NonZeroUsize>,
}

#[derive(Debug, Args)]
pub(super) struct CompressionArguments {
    #[command(flatten)]
    frames: Frames,
    #[command(flatten)]
    spirv: SpirvTreatment,
    #[command(flatten)]
    strip: StripDebug,
}

#[derive(Debug, Args)]
pub(super) struct SpirvTreatment {
    /// What to do with bundles that contain SPIR-V. HIP runtimes do not read SPIR-V from archives.
    /// Default: keep, or archive if amdgcnspirv is listed as an expected target
    #[arg(long, value_enum)]
    spirv: Option<SpirvArgument>,
}

impl SpirvTreatment {
    pub(super) fn spirv(&self) -> Spirv {
        self.spirv.map_or(Spirv::Keep, |given| given.0)
    }

    /// The same if these targets are expected. One that is asked for is split, and so is all other code beside it.
    fn spirv_for(&self, expected: &[TargetId]) -> Spirv {
        if self.spirv.is_some() || !expected.iter().any(TargetId::is_spirv) {
            return self.spirv();
        }
        if !print().quiet {
            let text = "amdgcnspirv is listed, so kpack moves SPIR-V into an archive, but no released HIP runtime reads it there; to leave it in the binaries, pass --spirv keep";
            output::complain("note", text);
        }
        Spirv::Archive
    }
}

#[derive(Debug, Args)]
pub(super) struct StripDebug {
    /// Remove the debug sections of code objects, as strip does from host files. With DIR, write the complete
    /// code objects to DIR/.build-id, where debuggers look for debug information; code objects without a build
    /// ID keep it
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true)]
    strip_debug: Option<Option<PathBuf>>,
}

impl StripDebug {
    pub(super) fn debug(&self) -> DebugInfo {
        match &self.strip_debug {
            None => DebugInfo::Keep,
            Some(None) => DebugInfo::Strip,
            Some(Some(directory)) => DebugInfo::StripTo(directory.clone()),
        }
    }
}

/// What to do about variants of a processor beside plain code.
#[derive(Debug, Args)]
pub(super) struct Variants {
    /// Copy code that is only compiled for a plain processor, such as gfx90a, into the archives for its variants, such as
    /// gfx90a:xnack+, which ROCm 7.13 and 7.14 need to find it. The archives for variants grow by that code
    #[arg(long)]
    pub(super) complete_variants: bool,
}

/// How code objects are stored.
#[derive(Debug, Args)]
pub(super) struct Frames {
    /// How to store code objects
    #[arg(long, value_enum, default_value_t = CompressionArgument::Zstd)]
    compression: CompressionArgument,
    /// Zstandard level: 1 is fastest, 22 is smallest. Default: 3
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=22))]
    level: Option<i32>,
}

#[derive(Debug, Clone, Copy)]
struct SpirvArgument(Spirv);

impl ValueEnum for SpirvArgument {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [SpirvArgument; 3] = [
            SpirvArgument(Spirv::ALL[0].0),
            SpirvArgument(Spirv::ALL[1].0),
            SpirvArgument(Spirv::ALL[2].0),
        ];
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let mut all = Spirv::ALL.iter();
        let (_, name, help) = all.find(|(value, ..)| *value == self.0)?;
        Some(PossibleValue::new(*name).help(*help))
    }
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
        let mut storage = self.compression.storage();
        storage.jobs = self.jobs.unwrap_or(storage.jobs);
        storage
    }

    /// The same if these targets are expected.
    pub(super) fn storage_for(&self, expected: &[TargetId]) -> Storage {
        let mut storage = self.storage();
        storage.spirv = self.compression.spirv.spirv_for(expected);
        storage
    }
}

impl CompressionArguments {
    pub(super) fn storage(&self) -> Storage {
        let mut storage = self.frames.storage();
        storage.spirv = self.spirv.spirv();
        storage.debug = self.strip.debug();
        storage
    }
}

impl Frames {
    pub(super) fn storage(&self) -> Storage {
        let mut storage = match self.compression {
            CompressionArgument::Zstd => Storage::zstd(),
            CompressionArgument::None => {
                if self.level.is_some() && !print().quiet {
                    let text = "--level has no effect with `--compression none`";
                    output::complain("note", text);
                }
                Storage::uncompressed()
            }
        };
        storage.level = self.level.unwrap_or(storage.level);
        storage
    }
}
