//! The table of contents.

use std::cell::Cell;
use std::collections::BTreeMap;

use serde::de::{DeserializeSeed, Deserializer, MapAccess};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::entries::TargetsIn;
use super::error::malformed;
use super::limits::{MAX_FRAMES, MAX_KERNELS, MAX_TARGETS};
use super::{ArchiveError, Targets, TocEntry};
use crate::code_id::index_in;
use crate::digest::hex;
use crate::wire::{
    self, Bytes, Digest, Input, ListOf, PairsOf, Record, TEXT, Writer, field, number, required,
};
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

/// The TOC while it is read. Other writers may leave out anything that is not needed to find a code object.
struct Fields<'i, 'a> {
    input: &'i Input<'a>,
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
    kernels: Option<Vec<(String, Targets)>>,
}

impl<'de> Record<'de> for Fields<'_, '_> {
    const KEYS: &'static [&'static str] = &[
        "format_version",
        "group_name",
        "gfx_arch_family",
        "gfx_arches",
        "compression_scheme",
        "blobs",
        "zstd_offset",
        "zstd_size",
        "frame_offsets",
        "blake3",
        "toc",
    ];

    fn value<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "format_version" => field(&mut self.format_version, key, number(), map),
            "group_name" => field(&mut self.group_name, key, TEXT, map),
            "gfx_arch_family" => field(&mut self.gfx_arch_family, key, TEXT, map),
            "gfx_arches" => field(&mut self.gfx_arches, key, ListOf(MAX_TARGETS, TEXT), map),
            "compression_scheme" => field(&mut self.compression_scheme, key, TEXT, map),
            "blobs" => field(&mut self.blobs, key, ListOf(MAX_FRAMES, Blob), map),
            "zstd_offset" => field(&mut self.zstd_offset, key, number(), map),
            "zstd_size" => field(&mut self.zstd_size, key, number(), map),
            "frame_offsets" => {
                field(&mut self.frame_offsets, key, ListOf(MAX_FRAMES, number()), map)
            }
            "blake3" => field(&mut self.checksums, key, ListOf(MAX_FRAMES, Digest), map),
            _ => {
                let count = Cell::new(0);
                let targets = TargetsIn { input: self.input, count: &count };
                field(&mut self.kernels, key, PairsOf(MAX_KERNELS, targets), map)
            }
        }
    }
}

impl<'i, 'a> Fields<'i, 'a> {
    fn new(input: &'i Input<'a>) -> Self {
        Self {
            input,
            format_version: None,
            group_name: None,
            gfx_arch_family: None,
            gfx_arches: None,
            compression_scheme: None,
            blobs: None,
            zstd_offset: None,
            zstd_size: None,
            frame_offsets: None,
            checksums: None,
            kernels: None,
        }
    }
}

impl<'de> DeserializeSeed<'de> for Fields<'_, '_> {
    type Value = Self;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self, D::Error> {
        let fields = wire::record(self, deserializer)?;
        let kernels = required(fields.kernels, "toc")?;
        Ok(Self { kernels: Some(kernels), ..fields })
    }
}

/// Offset and size of a stored code object.
#[derive(Clone, Copy)]
struct Blob;

#[derive(Default)]
struct BlobFields {
    offset: Option<u64>,
    size: Option<u64>,
}

impl<'de> Record<'de> for BlobFields {
    const KEYS: &'static [&'static str] = &["offset", "size"];

    fn value<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "offset" => field(&mut self.offset, key, number(), map),
            _ => field(&mut self.size, key, number(), map),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Blob {
    type Value = (u64, u64);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(u64, u64), D::Error> {
        let BlobFields { offset, size } = wire::record(BlobFields::default(), deserializer)?;
        Ok((required(offset, "offset")?, required(size, "size")?))
    }
}

/// A TOC as a map, up to the key of its kernels.
struct Head<'a>(&'a Toc, &'a Storage);

impl Serialize for Head<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(toc, storage) = self;
        let of_storage = match storage {
            Storage::Blobs(_) => 1,
            Storage::Frames { frame_offsets, .. } => 2 + usize::from(frame_offsets.is_some()),
        };
        let count = 6 + of_storage + usize::from(toc.checksums.is_some());
        let mut map = serializer.serialize_map(Some(count))?;
        map.serialize_entry("format_version", &FORMAT_VERSION)?;
        map.serialize_entry("group_name", &toc.group_name)?;
        map.serialize_entry("gfx_arch_family", &toc.gfx_arch_family)?;
        map.serialize_entry("gfx_arches", &toc.gfx_arches)?;
        map.serialize_entry("compression_scheme", toc.scheme.as_str())?;
        match storage {
            Storage::Blobs(blobs) => map.serialize_entry("blobs", &List(blobs, BlobOut))?,
            Storage::Frames { offset, size, frame_offsets } => {
                map.serialize_entry("zstd_offset", offset)?;
                map.serialize_entry("zstd_size", size)?;
                if let Some(offsets) = frame_offsets {
                    map.serialize_entry("frame_offsets", offsets)?;
                }
            }
        }
        if let Some(checksums) = &toc.checksums {
            map.serialize_entry("blake3", &List(checksums, |checksum| Bytes(checksum)))?;
        }
        map.serialize_key("toc")?;
        map.end()
    }
}

/// A list, and what each of its elements is written as.
struct List<'a, T, W>(&'a [T], fn(&'a T) -> W);

impl<T, W: Serialize> Serialize for List<'_, T, W> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(self.1))
    }
}

/// A code object's place as a map.
struct BlobOut<'a>(&'a (u64, u64));

impl Serialize for BlobOut<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (offset, size) = self.0;
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("offset", offset)?;
        map.serialize_entry("size", size)?;
        map.end()
    }
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
        let mut out = Writer::new(Vec::new());
        let written = Head(self, storage).serialize(&mut out).and_then(|()| {
            (&mut out).serialize_map(Some(self.kernels.len()))?;
            self.kernels.iter().try_for_each(|(kernel, targets)| {
                kernel.serialize(&mut out)?;
                targets.write(&mut out)
            })
        });
        written.expect("a TOC can be written to memory");
        out.into_inner()
    }

    /// Reads the TOC that fills `bytes`, which are at `offset` of the file.
    pub(super) fn read(bytes: &[u8], offset: u64) -> Result<(Self, Storage), ArchiveError> {
        let malformed = |reason: String| ArchiveError::Malformed { offset, reason: reason.into() };
        let input = Input::new(bytes);
        let wire = input.read(Fields::new(&input)).map_err(|error| ArchiveError::Toc {
            offset: offset + error.offset as u64,
            reason: error.reason,
        })?;
        let size = input.offset();
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
            // Kernels are sorted in most files. Building their map at once takes a fraction of the comparisons that
            // inserting one after another does. Of equal names, it keeps the last one.
            kernels: BTreeMap::from_iter(wire.kernels.unwrap_or_default()),
            checksums: wire.checksums,
        };
        Ok((toc, storage))
    }
}
