//! The table of contents.

use std::collections::BTreeMap;

use super::limits::{MAX_FRAMES, MAX_KERNELS, MAX_TARGETS};
use super::{ArchiveError, Targets, TocEntry};
use crate::code_id::index_in;
use crate::digest::Digest;
use crate::message_pack::{self, List, Map, record};
use crate::{CodeId, Sha256, code_id};

/// The version of the format, in the header and in the TOC.
pub(super) const FORMAT_VERSION: u32 = 1;

/// How code objects are stored.
///
/// By default compressed; in a program without zstd (feature `compression`) as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Scheme {
    /// As they are.
    #[cfg_attr(not(feature = "compression"), default)]
    None,
    /// A Zstandard frame each.
    #[cfg_attr(feature = "compression", default)]
    ZstdPerKernel,
}

impl Scheme {
    /// The name in the file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::ZstdPerKernel => "zstd-per-kernel",
        }
    }
}

/// The table of contents of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toc {
    /// Module and component, such as `rocblas_lib`.
    pub group_name: String,
    /// The archive's target ID.
    pub gfx_arch_family: String,
    /// Every target ID in it.
    pub gfx_arches: Vec<String>,
    /// How code objects are stored.
    pub scheme: Scheme,
    /// Kernel name, then target ID.
    pub kernels: BTreeMap<String, Targets>,
    /// SHA-256 of each uncompressed code object, by ordinal, where the archive tells.
    pub checksums: Option<Vec<Sha256>>,
}

/// Where the code objects are stored, as the TOC tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Storage {
    /// Offset and size of each, by ordinal.
    Blobs(Vec<(u64, u64)>),
    /// The area that begins with the number of frames, and the offset of each frame.
    Frames {
        offset: u64,
        size: u64,
        frame_offsets: Option<Vec<u64>>,
    },
}

record! {
    /// The TOC as it stands in the file. What finding a code object does not need, other writers may
    /// leave out.
    struct Wire {
        format_version = "format_version": Option<u32>,
        group_name = "group_name": Option<String>,
        gfx_arch_family = "gfx_arch_family": Option<String>,
        gfx_arches = "gfx_arches": Option<List<String, MAX_TARGETS>>,
        compression_scheme = "compression_scheme": Option<String>,
        blobs = "blobs": Option<List<WireBlob, MAX_FRAMES>>,
        zstd_offset = "zstd_offset": Option<u64>,
        zstd_size = "zstd_size": Option<u64>,
        frame_offsets = "frame_offsets": Option<List<u64, MAX_FRAMES>>,
        checksums = "checksums": Option<List<Digest, MAX_FRAMES>>,
        toc = "toc": Map<Targets, MAX_KERNELS>,
    }
}

record! {
    struct WireBlob {
        offset = "offset": u64,
        size = "size": u64,
    }
}

impl Toc {
    /// The entry of `kernel` for `target`.
    ///
    /// # Errors
    /// [`ArchiveError::NoSuchKernel`].
    pub fn entry(&self, kernel: &str, target: &str) -> Result<&TocEntry, ArchiveError> {
        let entry = self
            .kernels
            .get(kernel)
            .and_then(|targets| targets.get(target));
        entry.ok_or_else(|| ArchiveError::NoSuchKernel {
            kernel: kernel.to_owned(),
            target: target.to_owned(),
        })
    }

    /// The ID of the device code that the archive has of `binary` for `target`. `None` where it has
    /// none, and where it has no checksums to tell.
    pub fn code_id(&self, binary: &str, target: &str) -> Option<CodeId> {
        let all = self.checksums.as_ref()?;
        let first = format!("{binary}#");
        let kernels = self.kernels.range(first.clone()..);
        let own = kernels.take_while(|(kernel, _)| kernel.starts_with(&first));
        let mut checksums = BTreeMap::new();
        for (kernel, targets) in own {
            if let (Some(index), Some(entry)) = (index_in(kernel, binary), targets.get(target)) {
                checksums.insert(index, *all.get(entry.ordinal as usize)?);
            }
        }
        code_id(&checksums)
    }

    /// Compares `found`, the SHA-256 of the code object of `kernel` for `target` that is stored at
    /// `offset`, with the checksum that the archive tells, if it does.
    ///
    /// # Errors
    /// [`ArchiveError::Malformed`].
    pub fn check(
        &self,
        kernel: &str,
        target: &str,
        entry: &TocEntry,
        offset: u64,
        found: &Sha256,
    ) -> Result<(), ArchiveError> {
        let checksums = self.checksums.as_ref();
        match checksums.and_then(|all| all.get(entry.ordinal as usize)) {
            Some(expected) if expected != found => {
                let (found, expected) = (hex(found), hex(expected));
                let reason = format!(
                    "kernel `{kernel}` for {target} is damaged: its SHA-256 is {found}, expected {expected}"
                );
                Err(ArchiveError::Malformed { offset, reason })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn to_bytes(&self, storage: &Storage) -> Vec<u8> {
        let mut wire = Wire {
            format_version: Some(FORMAT_VERSION),
            group_name: Some(self.group_name.clone()),
            gfx_arch_family: Some(self.gfx_arch_family.clone()),
            gfx_arches: Some(List(self.gfx_arches.clone())),
            compression_scheme: Some(self.scheme.as_str().to_owned()),
            blobs: None,
            zstd_offset: None,
            zstd_size: None,
            frame_offsets: None,
            checksums: self
                .checksums
                .as_ref()
                .map(|all| List(all.iter().copied().map(Digest).collect())),
            toc: Map(self.kernels.clone()),
        };
        match storage {
            Storage::Blobs(blobs) => {
                let blob = |(offset, size): &(u64, u64)| WireBlob {
                    offset: *offset,
                    size: *size,
                };
                wire.blobs = Some(List(blobs.iter().map(blob).collect()));
            }
            Storage::Frames {
                offset,
                size,
                frame_offsets,
            } => {
                wire.zstd_offset = Some(*offset);
                wire.zstd_size = Some(*size);
                wire.frame_offsets = frame_offsets.clone().map(List);
            }
        }
        message_pack::to_bytes(&wire)
    }

    /// Reads the TOC that fills `bytes`, which are at `offset` of the file.
    pub(super) fn read(bytes: &[u8], offset: u64) -> Result<(Self, Storage), ArchiveError> {
        let malformed = |reason: String| ArchiveError::Malformed { offset, reason };
        let (wire, size): (Wire, _) =
            message_pack::read(bytes).map_err(|error| ArchiveError::Toc {
                offset,
                reason: error.to_string(),
            })?;
        if size != bytes.len() {
            return Err(malformed(format!(
                "the TOC ends after {size} bytes, but the file has {} more",
                bytes.len() - size
            )));
        }
        if let Some(version) = wire.format_version.filter(|v| *v != FORMAT_VERSION) {
            return Err(ArchiveError::UnsupportedVersion {
                found: u64::from(version),
            });
        }
        let scheme = wire.compression_scheme.as_deref();
        let scheme = scheme.unwrap_or(Scheme::None.as_str());
        let missing = |key: &str| {
            malformed(format!(
                "the TOC has no `{key}`, which scheme `{scheme}` needs"
            ))
        };
        let (scheme, storage) = match scheme {
            "none" => {
                let blobs = wire.blobs.as_ref().ok_or_else(|| missing("blobs"))?;
                let blobs = blobs
                    .0
                    .iter()
                    .map(|blob| (blob.offset, blob.size))
                    .collect();
                (Scheme::None, Storage::Blobs(blobs))
            }
            "zstd-per-kernel" => {
                let frames = Storage::Frames {
                    offset: wire.zstd_offset.ok_or_else(|| missing("zstd_offset"))?,
                    size: wire.zstd_size.ok_or_else(|| missing("zstd_size"))?,
                    frame_offsets: wire.frame_offsets.map(|list| list.0),
                };
                (Scheme::ZstdPerKernel, frames)
            }
            other => {
                return Err(malformed(format!(
                    "compression scheme `{other}`; expected `none` or `zstd-per-kernel`"
                )));
            }
        };
        let toc = Self {
            group_name: wire.group_name.unwrap_or_default(),
            gfx_arch_family: wire.gfx_arch_family.unwrap_or_default(),
            gfx_arches: wire.gfx_arches.map(|list| list.0).unwrap_or_default(),
            scheme,
            kernels: wire.toc.0,
            checksums: wire
                .checksums
                .map(|all| all.0.into_iter().map(|digest| digest.0).collect()),
        };
        Ok((toc, storage))
    }
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
