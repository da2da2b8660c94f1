//! `.kpm`: which archives a module has.

use std::collections::BTreeMap;
use std::fmt;

use crate::Sha256;
use crate::digest::Digest;
use crate::message_pack::{self, record};

/// The version of the format.
const FORMAT_VERSION: u32 = 1;

/// A module's manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// Module and component, such as `rocblas_lib`.
    pub component_name: String,
    /// The directory in the install prefix that holds the kpack directory, as installed: `lib`.
    pub prefix: String,
    /// By target ID.
    pub kpack_files: BTreeMap<String, KpackFile>,
    /// How users install the archive of a target, such as `apt install vec-@GFXARCH@`, where
    /// [`GFXARCH`](crate::names::GFXARCH) stands for the target ID.
    pub install_hint: Option<String>,
}

/// One archive of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KpackFile {
    /// Target ID.
    pub architecture: String,
    /// File name, in the manifest's directory.
    pub filename: String,
    /// Size in bytes.
    pub size: u64,
    /// Number of entries.
    pub kernel_count: u64,
    /// SHA-256 of the file.
    pub checksum: Option<Sha256>,
}

/// Why bytes are no manifest.
#[derive(Debug)]
pub struct ManifestError(pub(crate) String);

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a kpack manifest: {}", self.0)
    }
}

impl std::error::Error for ManifestError {}

record! {
    /// The manifest as it stands in the file.
    struct Wire {
        format_version = "format_version": u32,
        component_name = "component_name": String,
        prefix = "prefix": String,
        kpack_files = "kpack_files": BTreeMap<String, WireFile>,
        install_hint = "install_hint": Option<String>,
    }
}

record! {
    struct WireFile {
        architecture = "architecture": String,
        filename = "filename": String,
        size = "size": u64,
        kernel_count = "kernel_count": u64,
        checksum = "checksum": Option<Digest>,
    }
}

impl Manifest {
    /// The MessagePack form.
    pub fn to_bytes(&self) -> Vec<u8> {
        let file = |file: &KpackFile| WireFile {
            architecture: file.architecture.clone(),
            filename: file.filename.clone(),
            size: file.size,
            kernel_count: file.kernel_count,
            checksum: file.checksum.map(Digest),
        };
        let files = self.kpack_files.iter();
        message_pack::to_bytes(&Wire {
            format_version: FORMAT_VERSION,
            component_name: self.component_name.clone(),
            prefix: self.prefix.clone(),
            kpack_files: files.map(|(target, f)| (target.clone(), file(f))).collect(),
            install_hint: self.install_hint.clone(),
        })
    }

    /// Reads a manifest that fills `bytes`. Keys that are not known are ignored.
    ///
    /// # Errors
    /// Bytes that are no manifest, another version, bytes behind it, and an archive's name that
    /// is no plain file name.
    pub fn read(bytes: &[u8]) -> Result<Self, ManifestError> {
        let (wire, size): (Wire, _) =
            message_pack::read(bytes).map_err(|error| ManifestError(error.to_string()))?;
        if wire.format_version != FORMAT_VERSION {
            return Err(ManifestError(format!(
                "format version {}; this program reads version {FORMAT_VERSION}",
                wire.format_version
            )));
        }
        if size != bytes.len() {
            return Err(ManifestError(format!(
                "{} bytes follow the manifest, which ends at {size:#x}",
                bytes.len() - size
            )));
        }
        let mut kpack_files = BTreeMap::new();
        for (target, file) in wire.kpack_files {
            let name = file.filename.as_str();
            if matches!(name, "" | "." | "..") || name.contains(['/', '\0']) {
                return Err(ManifestError(format!(
                    "the archive of {target} is named {name:?}; expected a file name without directory"
                )));
            }
            let file = KpackFile {
                architecture: file.architecture,
                filename: file.filename,
                size: file.size,
                kernel_count: file.kernel_count,
                checksum: file.checksum.map(|digest| digest.0),
            };
            kpack_files.insert(target, file);
        }
        Ok(Self {
            component_name: wire.component_name,
            prefix: wire.prefix,
            kpack_files,
            install_hint: wire.install_hint,
        })
    }
}
