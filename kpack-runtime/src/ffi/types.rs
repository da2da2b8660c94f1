//! Types of the C interface.

#![allow(non_camel_case_types)]

use std::ffi::{CString, c_char, c_void};

use crate::{Archive, Cache, Error};

/// The result of a function.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum kpack_error_t {
    /// Success.
    KPACK_SUCCESS = 0,
    /// A null argument, an index out of range, a buffer that is too small, or no valid target ID.
    KPACK_ERROR_INVALID_ARGUMENT = 1,
    /// There is no such file.
    KPACK_ERROR_FILE_NOT_FOUND = 2,
    /// The file is not an archive, or its parts contradict each other.
    KPACK_ERROR_INVALID_FORMAT = 3,
    /// An archive of an unsupported version.
    KPACK_ERROR_UNSUPPORTED_VERSION = 4,
    /// No such kernel.
    KPACK_ERROR_KERNEL_NOT_FOUND = 5,
    /// A stored code object is damaged.
    KPACK_ERROR_DECOMPRESSION_FAILED = 6,
    /// Too little memory.
    KPACK_ERROR_OUT_OF_MEMORY = 7,
    /// ROCM_KPACK_DISABLE is set.
    KPACK_ERROR_NOT_IMPLEMENTED = 8,
    /// A file that is empty or cannot be read.
    KPACK_ERROR_IO_ERROR = 9,
    /// The archive's table of contents is not a MessagePack map of the right types.
    KPACK_ERROR_MSGPACK_PARSE_FAILED = 10,
    /// No file is mapped at the address.
    KPACK_ERROR_PATH_DISCOVERY_FAILED = 11,
    /// There is no marker.
    KPACK_ERROR_INVALID_METADATA = 12,
    /// No archive could be opened.
    KPACK_ERROR_ARCHIVE_NOT_FOUND = 13,
    /// No archive has a matching target.
    KPACK_ERROR_ARCH_NOT_FOUND = 14,
}

/// The version of the archive format.
pub const KPACK_CURRENT_VERSION: u32 = 1;

/// How an archive stores code objects.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum kpack_compression_scheme_t {
    /// As they are: "none".
    KPACK_COMPRESSION_NOOP = 0,
    /// A Zstandard frame each: "zstd-per-kernel".
    KPACK_COMPRESSION_ZSTD_PER_KERNEL = 1,
}

/// An open archive.
pub struct kpack_archive {
    pub(super) archive: Archive,
    pub(super) architectures: Vec<CString>,
    pub(super) names: Vec<CString>,
}

/// An open archive.
pub type kpack_archive_t = *mut kpack_archive;

/// Open archives, and the settings of the environment.
pub struct kpack_cache {
    pub(super) cache: Cache,
}

/// Open archives, and the settings of the environment.
pub type kpack_cache_t = *mut kpack_cache;

/// Gets a target ID, which is valid during the call, and the caller's pointer; returns whether to continue.
/// It must not throw.
pub type kpack_arch_callback_t =
    Option<unsafe extern "C" fn(arch: *const c_char, user_data: *mut c_void) -> bool>;

impl kpack_archive {
    /// With the names as C reads them.
    pub(super) fn new(archive: Archive) -> Result<Self, Error> {
        let c_string = |name: &String| {
            CString::new(name.as_str()).map_err(|_| Error::NulInName {
                path: archive.path().to_owned(),
                name: name.clone(),
            })
        };
        let toc = archive.toc();
        Ok(Self {
            architectures: toc
                .gfx_arches
                .iter()
                .map(c_string)
                .collect::<Result<_, _>>()?,
            names: toc.kernels.keys().map(c_string).collect::<Result<_, _>>()?,
            archive,
        })
    }
}
