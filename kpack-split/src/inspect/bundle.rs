//! Inspects offload bundles and code objects.

use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::Path;

use kpack_format::code_object::{self, CodeObjectError};
use kpack_format::offload_bundle::{self, Format, Method};
use serde::Serialize;

use crate::Error;
use crate::input::bundle_error;

/// An offload bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Bundle {
    /// `plain`, `code object`, or `CCOB` with version and method.
    pub format: String,
    /// Its size in bytes.
    pub size: u64,
    /// Uncompressed size in bytes, if compressed.
    pub uncompressed_size: Option<u64>,
    /// Its entries in order, including the host's.
    pub entries: Vec<BundleEntry>,
}

/// One entry of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BundleEntry {
    /// The entry ID, verbatim.
    pub id: String,
    /// The GPU target; `None` for the host's entry.
    pub target: Option<String>,
    /// Size in bytes.
    pub size: u64,
}

/// A code object: an AMDGPU ELF file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CodeObject {
    /// Its target; `None` for an unknown processor.
    pub target: Option<String>,
    /// `e_flags`.
    pub flags: u32,
    /// `e_ident[EI_ABIVERSION]`.
    pub abi_version: u8,
    /// The code object version for its ABI version; `None` for an unknown ABI version.
    pub code_object_version: Option<u8>,
    /// Size in bytes according to its headers.
    pub size: u64,
}

impl Bundle {
    /// Reads the bundle at the current position of `source`, using at most `available` bytes.
    pub(crate) fn read<R: Read + Seek>(
        source: &mut R,
        available: u64,
    ) -> Result<Self, offload_bundle::BundleError> {
        Ok(Self::from(&offload_bundle::Bundle::read(
            source, available,
        )?))
    }
}

impl From<&offload_bundle::Bundle> for Bundle {
    fn from(bundle: &offload_bundle::Bundle) -> Self {
        let (format, uncompressed_size) = match bundle.format {
            Format::Plain => ("plain".to_owned(), None),
            Format::CodeObject => ("code object".to_owned(), None),
            Format::Compressed {
                version,
                method,
                uncompressed_size,
            } => {
                let method = match method {
                    Method::Zlib => "zlib",
                    Method::Zstd => "zstd",
                };
                (format!("CCOB {version}, {method}"), Some(uncompressed_size))
            }
        };
        let entry = |entry: &offload_bundle::Entry| BundleEntry {
            id: entry.id.to_string(),
            target: entry.id.target().map(ToString::to_string),
            size: entry.size,
        };
        Self {
            format,
            size: bundle.size,
            uncompressed_size,
            entries: bundle.entries.iter().map(entry).collect(),
        }
    }
}

pub(super) fn inspect(path: &Path, file: File, size: u64) -> Result<Bundle, Error> {
    Bundle::read(&mut BufReader::new(file), size).map_err(|e| bundle_error(path, "", e))
}

pub(super) fn inspect_code_object(path: &Path, file: File, size: u64) -> Result<CodeObject, Error> {
    let read =
        code_object::CodeObject::read(&mut BufReader::new(file), size).map_err(
            |error| match error {
                CodeObjectError::Io(e) if e.raw_os_error().is_some() => Error::io(path, "read", e),
                error => Error::refused(path, error.to_string()),
            },
        )?;
    Ok(CodeObject {
        target: read.target.map(|t| t.to_string()),
        flags: read.flags,
        abi_version: read.abi_version,
        // ELFABIVERSION_AMDGPU_HSA_V2 is 0, and so on (LLVM's AMDGPU usage document).
        code_object_version: (read.abi_version <= 4).then(|| read.abi_version + 2),
        size: read.size,
    })
}
