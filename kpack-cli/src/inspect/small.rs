//! Describes objects, manifests, bundles and code objects.

use std::path::Path;

use kpack_build::internal::Unlinked;
use kpack_format::code_object::CodeObject;
use kpack_format::digest::hex;
use kpack_format::manifest::Manifest;
use kpack_format::offload_bundle::Bundle;
use kpack_split::elf::NoDeviceCode;
use serde::Serialize;

/// A binary without device code to split off.
#[derive(Debug, Serialize)]
pub(crate) struct HostDescription {
    /// Why it has none, for programs.
    pub(crate) reason: &'static str,
    /// Why it has none, for people.
    pub(crate) explanation: String,
}

/// A relocatable object or static library.
#[derive(Debug, Serialize)]
pub(crate) struct UnlinkedDescription {
    pub(crate) static_library: bool,
    /// Number of members of a static library; 1 for an object.
    pub(crate) members: usize,
    pub(crate) device_objects: Vec<UnlinkedMember>,
    #[serde(skip)]
    pub(crate) thin: bool,
}

/// An object with device code.
#[derive(Debug, Serialize)]
pub(crate) struct UnlinkedMember {
    /// Name of the member in its static library; `None` for an object in its own file.
    pub(crate) member: Option<String>,
    /// Size of its device code in bytes, without images for other runtimes than HIP.
    pub(crate) device_bytes: u64,
    /// Whether it has wrappers for its device code.
    #[serde(skip)]
    pub(crate) has_wrappers: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct ManifestDescription {
    /// Module and component, such as `rocblas_lib`.
    pub(crate) component_name: String,
    /// The directory in the install prefix that holds the kpack directory.
    pub(crate) prefix: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) install_hint: Option<String>,
    /// Its archives, by target.
    pub(crate) kpacks: Vec<ManifestEntry>,
}

/// An archive that a manifest lists.
#[derive(Debug, Serialize)]
pub(crate) struct ManifestEntry {
    pub(crate) target: String,
    pub(crate) filename: String,
    pub(crate) size: u64,
    pub(crate) kernel_count: u64,
    pub(crate) blake3: Option<String>,
    pub(crate) present: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct BundleDescription {
    pub(crate) format: String,
    /// `None` for a bundle in its own file: an [`Inspection`](super::Inspection) has the file's size already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) size: Option<u64>,
    /// Declared size of a compressed bundle's content.
    pub(crate) uncompressed_size: Option<u64>,
    /// Its entries, in table order.
    pub(crate) entries: Vec<BundleEntry>,
}

/// An entry of a bundle.
#[derive(Debug, Serialize)]
pub(crate) struct BundleEntry {
    pub(crate) id: String,
    /// The target ID in it; `None` for the host's entry.
    pub(crate) target: Option<String>,
    pub(crate) size: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct CodeObjectDescription {
    /// Target ID; `None` for an unknown processor.
    pub(crate) target: Option<String>,
    pub(crate) flags: u32,
    pub(crate) abi_version: u8,
    /// The code object version; `None` for an unknown ABI version.
    pub(crate) code_object_version: Option<u8>,
    /// Number of its kernels, if it has symbols.
    pub(crate) kernel_count: Option<usize>,
}

impl From<NoDeviceCode> for HostDescription {
    fn from(reason: NoDeviceCode) -> Self {
        let name = match reason {
            NoDeviceCode::Absent => "absent",
            NoDeviceCode::DebugFile => "debug-file",
            NoDeviceCode::NoWrappers => "no-wrappers",
        };
        Self { reason: name, explanation: reason.to_string() }
    }
}

impl From<Unlinked> for UnlinkedDescription {
    fn from(unlinked: Unlinked) -> Self {
        let objects = unlinked.device_objects.into_iter().map(|object| UnlinkedMember {
            member: object.member,
            device_bytes: object.device_bytes,
            has_wrappers: object.has_wrappers,
        });
        Self {
            static_library: unlinked.static_library,
            members: unlinked.members,
            device_objects: objects.collect(),
            thin: unlinked.thin,
        }
    }
}

impl ManifestDescription {
    /// Describes the manifest at `path`.
    pub(super) fn new(path: &Path, manifest: Manifest) -> Self {
        let kpacks = manifest.kpack_files.into_iter().map(|(target, file)| ManifestEntry {
            target,
            present: path.with_file_name(&file.filename).is_file(),
            filename: file.filename,
            size: file.size,
            kernel_count: file.kernel_count,
            blake3: file.checksum.map(|digest| hex(&digest)),
        });
        Self {
            kpacks: kpacks.collect(),
            component_name: manifest.component_name,
            prefix: manifest.prefix,
            install_hint: manifest.install_hint,
        }
    }
}

impl From<&Bundle> for BundleDescription {
    fn from(bundle: &Bundle) -> Self {
        let entries = bundle.entries.iter().map(|entry| BundleEntry {
            id: entry.id.to_string(),
            target: entry.id.target().map(ToString::to_string),
            size: entry.size,
        });
        Self {
            format: bundle.format.to_string(),
            size: Some(bundle.size),
            uncompressed_size: bundle.format.uncompressed_size(),
            entries: entries.collect(),
        }
    }
}

impl CodeObjectDescription {
    pub(super) fn new(code_object: &CodeObject, kernel_count: Option<usize>) -> Self {
        let abi_version = code_object.abi_version;
        Self {
            target: code_object.target.as_ref().map(ToString::to_string),
            flags: code_object.flags,
            abi_version,
            // ELFABIVERSION_AMDGPU_HSA_V2 is 0, and so on (LLVM's AMDGPU usage document).
            code_object_version: (abi_version <= 4).then(|| abi_version + 2),
            kernel_count,
        }
    }
}
