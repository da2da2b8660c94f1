//! What to join, and how.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use kpack_core::Id;
use kpack_format::TargetId;

use crate::Error;
use crate::parallel::processors;

/// What to join, and how: the arguments of `kpack join`.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[non_exhaustive]
pub struct JoinOptions {
    /// Install prefix: the directory that the binaries are in
    #[cfg_attr(feature = "clap", arg(skip))]
    pub prefix: PathBuf,
    /// Join only binaries of this module. Default: of all modules
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME"))]
    pub module: Option<String>,
    /// Skip targets whose archives are not installed. It is no error if nothing is split, or if this machine has no
    /// GPU, unless --output or --against asks for a result. Package managers need this, because they install one package
    /// after the other
    #[cfg_attr(feature = "clap", arg(long))]
    pub installed: bool,
    /// GPU targets to put back. A target without features, such as gfx90a, stands for all of its variants
    #[cfg_attr(feature = "clap", arg(skip))]
    pub architectures: Vec<TargetId>,
    /// Whether to put back the code for every target that each binary was split for, besides
    #[cfg_attr(feature = "clap", arg(skip))]
    pub all_architectures: bool,
    /// Write the joined binary to this file instead of replacing FILE. Needs exactly one FILE, which must be split
    #[cfg_attr(feature = "clap", arg(long, short, value_name = "OUT"))]
    pub output: Option<PathBuf>,
    /// Unsplit original to compare every code object and all host code with. Needs exactly one FILE
    #[cfg_attr(feature = "clap", arg(long, value_name = "ORIGINAL"))]
    pub against: Option<PathBuf>,
    /// Compare the content of each compressed bundle that stays in a binary, with SPIR-V, with the hash in its header.
    /// Code objects in archives are always compared with theirs
    #[cfg_attr(feature = "clap", arg(long))]
    pub check: bool,
    /// Number of threads. Default: the number of processors
    #[cfg_attr(feature = "clap", arg(long, short, value_name = "N", default_value_t = processors(), hide_default_value = true))]
    pub jobs: NonZeroUsize,
    /// Split binaries; paths are relative to the prefix, or else to the working directory. Default: all in
    /// the prefix
    #[cfg_attr(feature = "clap", arg(value_name = "FILE"))]
    pub files: Vec<PathBuf>,
}

impl JoinOptions {
    /// JoinOptions with defaults for everything else: any module, in place, one thread per processor.
    pub fn new(
        prefix: impl Into<PathBuf>,
        architectures: impl IntoIterator<Item = TargetId>,
        files: impl IntoIterator<Item = impl Into<PathBuf>>,
    ) -> Self {
        Self {
            prefix: prefix.into(),
            module: None,
            installed: false,
            architectures: architectures.into_iter().collect(),
            all_architectures: false,
            files: files.into_iter().map(Into::into).collect(),
            output: None,
            against: None,
            check: false,
            jobs: processors(),
        }
    }

    pub(super) fn validate(&self) -> Result<(), Error> {
        if self.architectures.is_empty() && !self.all_architectures {
            return Err(Error::usage("no GPU target is named"));
        }
        let of_one = [("--output", &self.output), ("--against", &self.against)];
        let mut given = of_one.iter().filter(|(_, file)| file.is_some());
        match given.next() {
            Some((option, _)) if self.files.len() != 1 => {
                Err(Error::usage(format!("{option} needs exactly one binary")))
            }
            _ => Ok(()),
        }
    }

    /// Whether the caller goes on with the file in `output`, or relies on the comparison with `against`.
    pub fn need_result(&self) -> bool {
        self.output.is_some() || self.against.is_some()
    }

    /// Checks that nobody relies on a result, because the binary at `path` is not joined, for this `reason`.
    pub(super) fn need_no_result(&self, id: Id, path: &Path, reason: &str) -> Result<(), Error> {
        let missing = match (&self.output, &self.against) {
            (Some(output), _) => format!("{} is not written", output.display()),
            (None, Some(original)) => format!("{} is not compared", original.display()),
            (None, None) => return Ok(()),
        };
        Err(Error::rejected(id, path, format!("cannot be joined: {reason}; {missing}")))
    }
}
