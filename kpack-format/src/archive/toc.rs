//! The table of contents.

use std::collections::BTreeMap;

use super::error::malformed;
use super::limits::{MAX_FRAMES, MAX_KERNELS, MAX_TARGETS};
use super::{ArchiveError, Targets, TocEntry};
use crate::code_id::index_in;
use crate::digest::hex;
use crate::message_pack::{MessagePackError, Reader, Writer};
use crate::{Blake3, CodeId, Reason, code_id};

/// The version of the format, in the header and in the TOC.
pub(super) const FORMAT_VERSION: u32 = 1;

/// How code objects are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scheme {
    /// As they are.
    None,
    /// A Zstandard frame each. Needs the feature `compression`.
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

    /// Whether the stored bytes of a code object are not the code object itself.
    pub fn is_compressed(self) -> bool {
        match self {
            Self::None => false,
            Self::ZstdPerKernel => true,
        }
    }
}

/// The table of contents of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Toc {
    /// Module and component, such as `rocblas_lib`.
    pub group_name: String,
    /// The archive's target ID.
    pub gfx_arch_family: String,
    /// All target IDs in the archive.
    pub gfx_arches: Vec<String>,
    /// How code objects are stored.
    pub scheme: Scheme,
    /// Kernel name, then target ID.
    pub kernels: BTreeMap<String, Targets>,
    /// BLAKE3 digest of each uncompressed code object, by ordinal, if the archive has checksums.
    pub checksums: Option<Vec<Blake3>>,
}

/// Locations of the code objects in the TOC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Storage {
    /// Offset and size of each, by ordinal.
    Blobs(Vec<(u64, u64)>),
    /// The area that starts with the number of frames, and the offset of each frame.
    Frames { offset: u64, size: u64, frame_offsets: Option<Vec<u64>> },
}

impl Storage {
    fn write(&self, out: &mut Writer) {
        match self {
            Self::Blobs(blobs) => {
                out.text("blobs").list(blobs.len());
                for (offset, size) in blobs {
                    out.map(2).text("offset").integer(*offset);
                    out.text("size").integer(*size);
                }
            }
            Self::Frames { offset, size, frame_offsets } => {
                out.text("zstd_offset").integer(*offset);
                out.text("zstd_size").integer(*size);
                if let Some(offsets) = frame_offsets {
                    out.text("frame_offsets").list(offsets.len());
                    for offset in offsets {
                        out.integer(*offset);
                    }
                }
            }
        }
    }
}

/// The TOC as stored. Other writers may leave out anything that is not needed to find a code
/// object.
#[derive(Default)]
struct Wire {
    format_version: Option<u32>,
    group_name: Option<String>,
    gfx_arch_family: Option<String>,
    gfx_arches: Option<Vec<String>>,
    compression_scheme: Option<String>,
    blobs: Option<Vec<(u64, u64)>>,
    zstd_offset: Option<u64>,
    zstd_size: Option<u64>,
    frame_offsets: Option<Vec<u64>>,
    checksums: Option<Vec<Blake3>>,
    toc: BTreeMap<String, Targets>,
}

impl Wire {
    fn read(reader: &mut Reader<'_>) -> Result<Self, MessagePackError> {
        let mut wire = Self::default();
        let mut kernels = None;
        reader.map(|key, value| match key {
            "format_version" => value.field(&mut wire.format_version, key, Reader::integer),
            "group_name" => value.field(&mut wire.group_name, key, Reader::string),
            "gfx_arch_family" => value.field(&mut wire.gfx_arch_family, key, Reader::string),
            "gfx_arches" => value
                .field(&mut wire.gfx_arches, key, |value| value.list(MAX_TARGETS, Reader::string)),
            "compression_scheme" => value.field(&mut wire.compression_scheme, key, Reader::string),
            "blobs" => value.field(&mut wire.blobs, key, |value| value.list(MAX_FRAMES, blob)),
            "zstd_offset" => value.field(&mut wire.zstd_offset, key, Reader::integer),
            "zstd_size" => value.field(&mut wire.zstd_size, key, Reader::integer),
            "frame_offsets" => value.field(&mut wire.frame_offsets, key, |value| {
                value.list(MAX_FRAMES, Reader::integer)
            }),
            "blake3" => value
                .field(&mut wire.checksums, key, |value| value.list(MAX_FRAMES, Reader::digest)),
            "toc" => {
                value.field(&mut kernels, key, |value| value.map_of(MAX_KERNELS, Targets::read))
            }
            _ => value.skip().map(drop),
        })?;
        wire.toc = reader.required(kernels, "toc")?;
        Ok(wire)
    }
}

/// Offset and size of a stored code object.
fn blob(reader: &mut Reader<'_>) -> Result<(u64, u64), MessagePackError> {
    let (mut offset, mut size) = (None, None);
    reader.map(|key, value| match key {
        "offset" => value.field(&mut offset, key, Reader::integer),
        "size" => value.field(&mut size, key, Reader::integer),
        _ => value.skip().map(drop),
    })?;
    let offset = reader.required(offset, "offset")?;
    Ok((offset, reader.required(size, "size")?))
}

impl Toc {
    /// The entries of all kernels.
    pub fn entries(&self) -> impl Iterator<Item = &TocEntry> {
        self.kernels.values().flat_map(Targets::values)
    }

    /// The entry of `kernel` for `target`.
    ///
    /// # Errors
    /// [`ArchiveError::NoSuchKernel`].
    pub fn entry(&self, kernel: &str, target: &str) -> Result<&TocEntry, ArchiveError> {
        let entry = self.kernels.get(kernel).and_then(|targets| targets.get(target));
        entry.ok_or_else(|| ArchiveError::NoSuchKernel {
            kernel: kernel.to_owned(),
            target: target.to_owned(),
        })
    }

    /// The ID of the device code of `binary` for `target`; `None` if the archive has none, or no
    /// checksums.
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

    /// Whether it has code of `binary` for `target`, but no checksums, which a binary's code IDs are made of. Where
    /// a marker has such an ID, that is damage.
    pub fn lacks_checksums(&self, binary: &str, target: &str) -> bool {
        let first = format!("{binary}#");
        let kernels = self.kernels.range(first.clone()..);
        let mut own = kernels.take_while(|(kernel, _)| kernel.starts_with(&first));
        self.checksums.is_none()
            && own.any(|(kernel, targets)| {
                index_in(kernel, binary).is_some() && targets.contains_key(target)
            })
    }

    /// Compares `found`, the BLAKE3 digest of the code object of `kernel` for `target` at `offset`, with
    /// the archive's checksum, if any.
    ///
    /// # Errors
    /// [`ArchiveError::Malformed`].
    pub fn check(
        &self,
        kernel: &str,
        target: &str,
        entry: &TocEntry,
        offset: u64,
        found: &Blake3,
    ) -> Result<(), ArchiveError> {
        let checksums = self.checksums.as_ref();
        match checksums.and_then(|all| all.get(entry.ordinal as usize)) {
            Some(expected) if expected != found => {
                let (found, expected) = (hex(found), hex(expected));
                let text = format!(
                    "kernel `{kernel}` for {target} is damaged: its BLAKE3 digest is {found}, expected {expected}"
                );
                let reason = Reason::from(text).kernel(kernel).target(target);
                malformed(offset, reason.differs(expected, found))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn to_bytes(&self, storage: &Storage) -> Vec<u8> {
        let mut out = Writer::default();
        let of_storage = match storage {
            Storage::Blobs(_) => 1,
            Storage::Frames { frame_offsets, .. } => 2 + usize::from(frame_offsets.is_some()),
        };
        out.map(6 + of_storage + usize::from(self.checksums.is_some()));
        out.text("format_version").integer(FORMAT_VERSION.into());
        out.text("group_name").text(&self.group_name);
        out.text("gfx_arch_family").text(&self.gfx_arch_family);
        out.text("gfx_arches").list(self.gfx_arches.len());
        for target in &self.gfx_arches {
            out.text(target);
        }
        out.text("compression_scheme").text(self.scheme.as_str());
        storage.write(&mut out);
        if let Some(checksums) = &self.checksums {
            out.text("blake3").list(checksums.len());
            for checksum in checksums {
                out.bytes(checksum);
            }
        }
        out.text("toc").map(self.kernels.len());
        for (kernel, targets) in &self.kernels {
            targets.write(out.text(kernel));
        }
        out.0
    }

    /// Reads the TOC that fills `bytes`, which are at `offset` of the file.
    pub(super) fn read(bytes: &[u8], offset: u64) -> Result<(Self, Storage), ArchiveError> {
        let malformed = |reason: String| ArchiveError::Malformed { offset, reason: reason.into() };
        let mut reader = Reader::new(bytes);
        let wire = Wire::read(&mut reader).map_err(|error| ArchiveError::Toc {
            offset: offset + error.offset as u64,
            reason: error.reason,
        })?;
        let size = reader.offset();
        if size != bytes.len() {
            return Err(malformed(format!(
                "the TOC ends after {size} bytes, but the file has {} more",
                bytes.len() - size
            )));
        }
        if let Some(version) = wire.format_version.filter(|v| *v != FORMAT_VERSION) {
            return Err(ArchiveError::UnsupportedVersion { found: u64::from(version) });
        }
        let scheme = wire.compression_scheme.as_deref();
        let scheme = scheme.unwrap_or(Scheme::None.as_str());
        let missing =
            |key: &str| malformed(format!("the TOC has no `{key}`, which scheme `{scheme}` needs"));
        let (scheme, storage) = match scheme {
            "none" => {
                let blobs = wire.blobs.ok_or_else(|| missing("blobs"))?;
                (Scheme::None, Storage::Blobs(blobs))
            }
            "zstd-per-kernel" => {
                let frames = Storage::Frames {
                    offset: wire.zstd_offset.ok_or_else(|| missing("zstd_offset"))?,
                    size: wire.zstd_size.ok_or_else(|| missing("zstd_size"))?,
                    frame_offsets: wire.frame_offsets,
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
            gfx_arches: wire.gfx_arches.unwrap_or_default(),
            scheme,
            kernels: wire.toc,
            checksums: wire.checksums,
        };
        Ok((toc, storage))
    }
}
