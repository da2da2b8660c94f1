//! Errors, and their numbers in the C interface.

use std::io;
use std::path::{Path, PathBuf};

use kpack_format::Delivery;
use kpack_format::archive::ArchiveError;
use kpack_format::code_object::CodeObjectError;
use kpack_format::finding::{self, Id};
use kpack_format::marker::MarkerError;
use kpack_format::offload_bundle::BundleError;
use kpack_format::target_id::ParseTargetIdError;

use crate::error_code::kpack_error_t as ErrorCode;
use crate::{Report, TargetId};

/// Why an archive could not be read, or a code object was not found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such file.
    #[error("{}: no such file", path.display())]
    NotFound {
        /// The file.
        path: PathBuf,
    },
    /// A file that cannot be read.
    #[error("{}: it cannot be read: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file that is damaged or not an archive.
    #[error("{}: {source}", path.display())]
    Archive {
        /// The file.
        path: PathBuf,
        /// Where, what was expected, and what was found.
        source: ArchiveError,
    },
    /// An archive with a name that C cannot represent.
    #[error("{}: the name {name:?} has a NUL character", path.display())]
    NulInName {
        /// The file.
        path: PathBuf,
        /// A target ID or a kernel name.
        name: String,
    },
    /// Too little memory for a code object.
    #[error("not enough memory for a code object of {size} bytes")]
    OutOfMemory {
        /// Size in bytes.
        size: u64,
    },
    /// An address at which no file is mapped.
    #[error("no file is mapped at address {address:#x}")]
    NotMapped {
        /// The address.
        address: usize,
    },
    /// An address at which there is no marker.
    #[error("at address {address:#x}: {source}")]
    Marker {
        /// The address.
        address: usize,
        /// What was expected, and what was found.
        source: MarkerError,
    },
    /// An address that cannot be read.
    #[error("the marker's address {address:#x} cannot be read")]
    NotReadable {
        /// The address.
        address: usize,
    },
    /// A text that is not a target ID.
    #[error(transparent)]
    Target(#[from] ParseTargetIdError),
    /// No ISA was given.
    #[error("no GPU ISA was given")]
    NoIsa,
    /// `ROCM_KPACK_DISABLE` is set.
    #[error("ROCM_KPACK_DISABLE turns off loading from archives")]
    Disabled,
    /// A text that is not the name of a GPU.
    #[error(
        "module `{module}`: {source}; pass gcnArchName of hipGetDeviceProperties, such as gfx90a:sramecc+:xnack-"
    )]
    NotGpu {
        /// The module.
        module: &'static str,
        /// Why.
        source: ParseTargetIdError,
    },
    /// The program has the module, but not for this GPU.
    #[error("module `{module}` has {}", no_code(gpu, there))]
    NoCode {
        /// The module.
        module: &'static str,
        /// The GPU.
        gpu: TargetId,
        /// The targets that it has code for.
        there: Vec<TargetId>,
    },
    /// The program was built without the code of its modules.
    #[error(
        "module `{module}` has no code, because the build skipped it ({reason}); build the program without that"
    )]
    Skipped {
        /// The module.
        module: &'static str,
        /// Why.
        reason: &'static str,
    },
    /// The program's bundle of a module is damaged.
    #[error(
        "module `{module}`: its code in the program is damaged: {source}; build or install the program again"
    )]
    Bundle {
        /// The module.
        module: &'static str,
        /// Where, what was expected, and what was found.
        source: BundleError,
    },
    /// A code object in the program is damaged, or for another target than its entry says.
    #[error(
        "module `{module}`: its code for {target} in the program is damaged: {source}; build or install the program again"
    )]
    CodeObject {
        /// The module.
        module: &'static str,
        /// The target of its entry.
        target: TargetId,
        /// What was expected, and what was found.
        source: CodeObjectError,
    },
    /// The program's wrapper of a module is damaged.
    #[error(
        "module `{module}`: its wrapper in the program is damaged (expected the magic HIPF or HIPK, found {magic:#010x}); build or install the program again"
    )]
    Wrapper {
        /// The module.
        module: &'static str,
        /// Its first word.
        magic: u32,
    },
    /// The code of a module is not in the program, and could not be loaded from an archive.
    #[error("module `{module}`: {source}")]
    Archived {
        /// The module.
        module: &'static str,
        /// Why: the errors of [`Cache::load_code_object`](crate::Cache::load_code_object), and those of the marker.
        source: Box<Self>,
    },
    /// The code object was not found; the report lists where the loader looked.
    #[error("{report}")]
    NoCodeObject {
        /// [`ErrorCode::KPACK_ERROR_IO_ERROR`], [`ErrorCode::KPACK_ERROR_ARCHIVE_NOT_FOUND`],
        /// [`ErrorCode::KPACK_ERROR_ARCH_NOT_FOUND`], [`ErrorCode::KPACK_ERROR_INVALID_FORMAT`] or
        /// [`ErrorCode::KPACK_ERROR_KERNEL_NOT_FOUND`].
        code: ErrorCode,
        /// The attempts.
        report: Box<Report>,
    },
}

impl Error {
    /// The number that the C interface returns for it.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NotFound { .. } => ErrorCode::KPACK_ERROR_FILE_NOT_FOUND,
            Self::Io { .. } => ErrorCode::KPACK_ERROR_IO_ERROR,
            Self::Archive { source, .. } => match source {
                ArchiveError::Io(_) => ErrorCode::KPACK_ERROR_IO_ERROR,
                ArchiveError::Toc { .. } => ErrorCode::KPACK_ERROR_MSGPACK_PARSE_FAILED,
                ArchiveError::Decompression { .. } => ErrorCode::KPACK_ERROR_DECOMPRESSION_FAILED,
                ArchiveError::UnsupportedVersion { .. } => {
                    ErrorCode::KPACK_ERROR_UNSUPPORTED_VERSION
                }
                ArchiveError::NoSuchKernel { .. } => ErrorCode::KPACK_ERROR_KERNEL_NOT_FOUND,
                _ => ErrorCode::KPACK_ERROR_INVALID_FORMAT,
            },
            Self::NulInName { .. } => ErrorCode::KPACK_ERROR_INVALID_FORMAT,
            Self::OutOfMemory { .. } => ErrorCode::KPACK_ERROR_OUT_OF_MEMORY,
            Self::NotMapped { .. } => ErrorCode::KPACK_ERROR_PATH_DISCOVERY_FAILED,
            Self::Marker { .. } | Self::NotReadable { .. } => {
                ErrorCode::KPACK_ERROR_INVALID_METADATA
            }
            Self::Target(_) | Self::NotGpu { .. } | Self::NoIsa => {
                ErrorCode::KPACK_ERROR_INVALID_ARGUMENT
            }
            Self::NoCode { .. } | Self::Skipped { .. } => ErrorCode::KPACK_ERROR_ARCH_NOT_FOUND,
            Self::Bundle { .. } | Self::CodeObject { .. } => ErrorCode::KPACK_ERROR_INVALID_FORMAT,
            Self::Wrapper { .. } => ErrorCode::KPACK_ERROR_INVALID_METADATA,
            Self::Disabled => ErrorCode::KPACK_ERROR_NOT_IMPLEMENTED,
            Self::Archived { source, .. } => source.code(),
            Self::NoCodeObject { code, .. } => *code,
        }
    }

    /// What kind of problem it is; `kpack explain` says more about it.
    pub fn id(&self) -> Id {
        match self {
            Self::NotFound { .. } => finding::MISSING_ARCHIVE,
            Self::Archive { source: ArchiveError::Io(_), .. }
            | Self::Io { .. }
            | Self::OutOfMemory { .. } => finding::SYSTEM,
            Self::Archive { .. } | Self::NulInName { .. } => finding::DAMAGED_ARCHIVE,
            Self::Marker { .. } | Self::NotReadable { .. } => finding::DAMAGED_MARKER,
            Self::NotMapped { .. } | Self::Target(_) | Self::NotGpu { .. } | Self::NoIsa => {
                finding::USAGE
            }
            Self::NoCode { .. } | Self::Skipped { .. } => finding::MISSING_TARGET,
            Self::Bundle { .. } | Self::CodeObject { .. } => finding::DAMAGED_BUNDLE,
            Self::Wrapper { .. } => finding::DAMAGED_MARKER,
            Self::Disabled => finding::LOADER_DISABLED,
            Self::Archived { source, .. } => source.id(),
            Self::NoCodeObject { report, .. } => report.id(),
        }
    }

    /// Whether it is a failed system call that says nothing about the file, as
    /// [`kpack_format::is_exhaustion`] decides.
    pub(crate) fn is_exhaustion(&self) -> bool {
        matches!(self, Self::Io { source, .. } if kpack_format::is_exhaustion(source))
    }

    /// For an operation on the file at `path`.
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::NotFound { path },
            _ => Self::Io { path, source },
        }
    }
}

/// What a module has instead of code for `gpu`, and what to do.
fn no_code(gpu: &TargetId, there: &[TargetId]) -> String {
    if there.is_empty() {
        return format!(
            "no code for {gpu} or any other target; build or install the program again"
        );
    }
    let list = |targets: &mut dyn Iterator<Item = &TargetId>| {
        Vec::from_iter(targets.map(TargetId::to_string)).join(", ")
    };
    let may_run = list(&mut there.iter().filter(|target| target.may_run_on(gpu)));
    if !may_run.is_empty() {
        return format!(
            "code for {may_run}, and it is not known whether {gpu} runs that; pass all of gcnArchName, with the features"
        );
    }
    let why: Vec<String> =
        there.iter().filter_map(|target| gpu.why_not_generic(target, Delivery::Bundle)).collect();
    let why = if why.is_empty() { String::new() } else { format!(" ({})", why.join("; ")) };
    let processor = gpu.processor();
    format!(
        "no code for {gpu}, only for {}{why}; use a build with code for {processor} (build.rs or KPACK_OFFLOAD_ARCH lists the targets)",
        list(&mut there.iter())
    )
}
