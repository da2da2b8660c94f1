//! Types of the C interface.

#![allow(non_camel_case_types)]

use std::ffi::{CString, c_char, c_void};

use kpack::internal::{Archive, Cache, Error};

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
            architectures: toc.gfx_arches.iter().map(c_string).collect::<Result<_, _>>()?,
            names: toc.kernels.keys().map(c_string).collect::<Result<_, _>>()?,
            archive,
        })
    }
}
