//! The marker in `.rocm_kpack_ref`, which replaces a binary's device code.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess};
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::CodeId;
use crate::wire::{
    self, Bytes, Digest, Input, ListOf, MapOf, Record, TextOrOther, field, required,
};

/// The name of the section that holds the marker.
pub const SECTION_NAME: &str = ".rocm_kpack_ref";
/// Its name while the device code is in the binary again, and no wrapper leads to the marker: other tools take a binary
/// with [`SECTION_NAME`] for split. As long as that, to be written in its place.
pub const KEPT_SECTION_NAME: &str = ".kept_kpack_ref";
/// `HIPF`: magic of a wrapper (`__CudaFatBinaryWrapper`) that points to a bundle.
pub const MAGIC_FAT: u32 = 0x4849_5046;
/// `HIPK`: magic of a wrapper that points to a marker.
pub const MAGIC_SPLIT: u32 = 0x4b50_4948;
/// The only version of a wrapper.
pub const WRAPPER_VERSION: u32 = 1;
/// Maximum size of a marker, in bytes.
pub const MAX_SIZE: usize = 64 * 1024;
/// The bytes that padding in a marker takes at least: its key, and the start of its value.
pub const LEAST_PADDING: usize = 11;
/// Maximum number of search paths in a marker.
pub const MAX_SEARCH_PATHS: usize = 64;

/// Whether a section of this name has a marker, be the binary split or joined.
pub fn is_section(name: &str) -> bool {
    [SECTION_NAME, KEPT_SECTION_NAME].contains(&name)
}

/// Tells where a binary's device code is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Marker {
    /// The binary's path in the install prefix; kernels are `<kernel_name>#<co_index>`. The early
    /// plain-text form lacks it.
    pub kernel_name: Option<String>,
    /// Archives to look in, relative to the directory of the binary or absolute, with
    /// [`GFXARCH`](crate::names::GFXARCH) in place of the target ID. In the plain-text form: directories.
    pub kpack_search_paths: Vec<String>,
    /// The ID of the device code that the host binary was built with, by target ID. An archive with
    /// other code for the binary and such a target is from another build. For targets without an
    /// ID, any code is accepted.
    pub code_ids: BTreeMap<String, CodeId>,
    /// The wrappers that shared a bundle before the split: for each such bundle, the ranges of their
    /// code object indices. All other wrappers had bundles of their own.
    pub shared_bundles: Vec<Vec<Range<u32>>>,
}

/// Why bytes are not a marker.
#[derive(Debug)]
pub struct MarkerError(pub(crate) String);

impl fmt::Display for MarkerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a kpack marker: {}", self.0)
    }
}

impl std::error::Error for MarkerError {}

/// The message for an archive whose device code `binary` does not accept.
pub fn of_another_build(binary: &str) -> String {
    format!("made for another build of {binary}; install the matching package")
}

/// The message for an archive without checksums, where the marker of `binary` has a code ID.
pub fn without_checksums(binary: &str) -> String {
    format!(
        "has no checksums, which {binary} needs to tell its own build's code (damaged, or changed by another tool)"
    )
}

impl Marker {
    /// The marker of the binary with this kernel name, whose archives are at these paths.
    pub fn new(kernel_name: impl Into<String>, kpack_search_paths: Vec<String>) -> Self {
        Self {
            kernel_name: Some(kernel_name.into()),
            kpack_search_paths,
            code_ids: BTreeMap::new(),
            shared_bundles: Vec::new(),
        }
    }

    /// The marker with these code IDs, by target ID.
    pub fn with_code_ids(self, code_ids: BTreeMap<String, CodeId>) -> Self {
        Self { code_ids, ..self }
    }

    /// Whether device code for `target` with the ID `found` matches the binary's build. Without an
    /// ID in the marker or the archive, it is assumed to match.
    pub fn accepts(&self, target: &str, found: Option<CodeId>) -> bool {
        match (self.code_ids.get(target), found) {
            (Some(expected), Some(found)) => *expected == found,
            _ => true,
        }
    }

    /// Whether it has all search paths of `other`.
    pub fn refers_to(&self, other: &Self) -> bool {
        let mut wanted = other.kpack_search_paths.iter();
        wanted.all(|path| self.kpack_search_paths.contains(path))
    }

    /// The marker without code IDs.
    pub fn without_code_ids(&self) -> Self {
        Self { code_ids: BTreeMap::new(), ..self.clone() }
    }

    /// The marker without what kpack adds to it. It leads to the same code.
    pub fn without_additions(&self) -> Self {
        Self { shared_bundles: Vec::new(), ..self.without_code_ids() }
    }

    /// Which of the shared bundles the wrapper with this code object index had; `None` if it had one of
    /// its own.
    pub fn shared_bundle(&self, index: u32) -> Option<usize> {
        let mut bundles = self.shared_bundles.iter();
        bundles.position(|ranges| ranges.iter().any(|range| range.contains(&index)))
    }

    /// Records which wrappers share a bundle: `bundles` has the code object indices of each bundle's
    /// wrappers. If there is no room for that in a marker, their bundles will be separate.
    pub fn set_shared_bundles<'a>(&mut self, bundles: impl Iterator<Item = &'a [u32]>) {
        let shared = bundles.filter(|indices| indices.len() > 1);
        self.shared_bundles = shared.map(ranges).collect();
        if self.without_code_ids().to_bytes().len() > MAX_SIZE / 2 {
            self.shared_bundles.clear();
        }
    }

    /// The MessagePack form; a marker without kernel name gets an empty one.
    pub fn to_bytes(&self) -> Vec<u8> {
        wire::write(&Wire { marker: self, has_padding: false })
    }

    /// The MessagePack form, with this many bytes of padding in it.
    fn with_padding(&self, padding: usize) -> Vec<u8> {
        let mut bytes = wire::write(&Wire { marker: self, has_padding: true });
        bytes.extend(wire::write(&"padding"));
        // Always as `bin 16`: what comes before the padding has the same size for any number.
        bytes.push(0xc5);
        bytes.extend((padding as u16).to_be_bytes());
        bytes.resize(bytes.len() + padding, 0);
        bytes
    }

    /// The MessagePack form in `room` bytes, to overwrite another marker. Padding in the map takes up the rest, so
    /// that the bytes end with the map, as readers expect that unpack a whole section; up to
    /// [`LEAST_PADDING`] bytes, which are too few for that, are zeroes after it.
    ///
    /// Drops what does not fit: first the record of shared bundles, which are then joined separately; then code
    /// IDs, the last ones first, so any code is accepted for their targets.
    /// `None` if it does not fit even without IDs.
    pub fn to_bytes_within(&self, room: usize) -> Option<Vec<u8>> {
        let mut fitting = self.clone();
        loop {
            let mut bytes = fitting.to_bytes();
            if bytes.len() <= room {
                // No reader reads more.
                let rest = room.min(MAX_SIZE).saturating_sub(bytes.len());
                if let Some(padding) = rest.checked_sub(LEAST_PADDING) {
                    bytes = fitting.with_padding(padding);
                }
                bytes.resize(room, 0);
                return Some(bytes);
            }
            if fitting.shared_bundles.is_empty() {
                fitting.code_ids.pop_last()?;
            }
            fitting.shared_bundles.clear();
        }
    }

    /// Reads a marker of either form at the start of `bytes`, and returns its size too. Ignores
    /// what follows it.
    ///
    /// # Errors
    /// Bytes that are neither a MessagePack map with the marker's keys nor text.
    pub fn read(bytes: &[u8]) -> Result<(Self, usize), MarkerError> {
        let bytes = &bytes[..bytes.len().min(MAX_SIZE)];
        match bytes.first() {
            Some(first) if wire::begins_map(*first) => {
                let input = Input::new(bytes);
                let marker = input.read(Fields::new(&input));
                let marker = marker.map_err(|error| MarkerError(error.to_string()))?;
                if marker.kpack_search_paths.is_empty() {
                    return Err(MarkerError("no search paths".to_owned()));
                }
                Ok((marker, input.offset()))
            }
            Some(_) => plain_text(bytes),
            None => Err(MarkerError("empty".to_owned())),
        }
    }
}

/// A marker as a map.
struct Wire<'a> {
    marker: &'a Marker,
    /// Whether an entry with padding will follow.
    has_padding: bool,
}

impl Serialize for Wire<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Marker { kernel_name, kpack_search_paths, code_ids, shared_bundles } = self.marker;
        let additions = [!code_ids.is_empty(), !shared_bundles.is_empty(), self.has_padding];
        let count = 2 + additions.map(usize::from).iter().sum::<usize>();
        let mut map = serializer.serialize_map(Some(count))?;
        map.serialize_entry("kpack_search_paths", kpack_search_paths)?;
        map.serialize_entry("kernel_name", kernel_name.as_deref().unwrap_or_default())?;
        if !code_ids.is_empty() {
            let ids = code_ids.iter().map(|(target, id)| (target, Bytes(id)));
            map.serialize_entry("code_blake3", &BTreeMap::from_iter(ids))?;
        }
        if !shared_bundles.is_empty() {
            let starts_and_sizes = |ranges: &Vec<Range<u32>>| {
                let pairs = ranges.iter().map(|range| [range.start, range.end - range.start]);
                pairs.flatten().collect()
            };
            let bundles = shared_bundles.iter().map(starts_and_sizes);
            map.serialize_entry("shared_bundles", &Vec::<Vec<u32>>::from_iter(bundles))?;
        }
        map.end()
    }
}

/// A marker while it is read from a map.
struct Fields<'i, 'a> {
    input: &'i Input<'a>,
    /// `None` for an element that is no string, which is skipped, as other readers do.
    paths: Option<Vec<Option<String>>>,
    kernel_name: Option<String>,
    code_ids: Option<BTreeMap<String, CodeId>>,
    shared_bundles: Option<Vec<Vec<Range<u32>>>>,
}

impl<'i, 'a> Fields<'i, 'a> {
    fn new(input: &'i Input<'a>) -> Self {
        Self { input, paths: None, kernel_name: None, code_ids: None, shared_bundles: None }
    }
}

impl<'de> DeserializeSeed<'de> for Fields<'_, '_> {
    type Value = Marker;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Marker, D::Error> {
        let fields = wire::record(self, deserializer)?;
        let paths = required(fields.paths, "kpack_search_paths")?;
        Ok(Marker {
            kernel_name: Some(required(fields.kernel_name, "kernel_name")?),
            kpack_search_paths: paths.into_iter().flatten().collect(),
            code_ids: fields.code_ids.unwrap_or_default(),
            shared_bundles: fields.shared_bundles.unwrap_or_default(),
        })
    }
}

impl<'de> Record<'de> for Fields<'_, '_> {
    const KEYS: &'static [&'static str] =
        &["kpack_search_paths", "kernel_name", "code_blake3", "shared_bundles"];

    fn value<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "kpack_search_paths" => {
                field(&mut self.paths, key, ListOf(MAX_SEARCH_PATHS, PathIn(self.input)), map)
            }
            "kernel_name" => field(&mut self.kernel_name, key, wire::TEXT, map),
            "code_blake3" => field(&mut self.code_ids, key, MapOf(usize::MAX, Digest), map),
            _ => field(&mut self.shared_bundles, key, ListOf(usize::MAX, Ranges), map),
        }
    }
}

/// A search path, or `None` for a value of another type.
#[derive(Clone, Copy)]
struct PathIn<'i, 'a>(&'i Input<'a>);

impl<'de> DeserializeSeed<'de> for PathIn<'_, '_> {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let start = self.0.offset();
        let path = TextOrOther.deserialize(deserializer)?;
        if path.is_none() && self.0.has_bad_text(start) {
            return Err(Error::custom("a string is not UTF-8"));
        }
        Ok(path)
    }
}

/// Ranges, each as its start and size.
#[derive(Clone, Copy)]
struct Ranges;

impl<'de> DeserializeSeed<'de> for Ranges {
    type Value = Vec<Range<u32>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let numbers = ListOf(usize::MAX, wire::number::<u32>()).deserialize(deserializer)?;
        let pairs = numbers.chunks_exact(2);
        let rest = pairs.remainder();
        let ranges = pairs.map(|pair| Some(pair[0]..pair[0].checked_add(pair[1])?));
        match ranges.collect() {
            Some(ranges) if rest.is_empty() => Ok(ranges),
            _ => Err(Error::custom("expected ranges, each as its start and size")),
        }
    }
}

/// Ascending indices as ranges.
fn ranges(indices: &[u32]) -> Vec<Range<u32>> {
    let mut ranges: Vec<Range<u32>> = Vec::new();
    for &index in indices {
        match ranges.last_mut() {
            Some(last) if last.end == index => last.end += 1,
            _ => ranges.push(index..index + 1),
        }
    }
    ranges
}

/// A list of directories separated by colons, up to a NUL or the end.
fn plain_text(bytes: &[u8]) -> Result<(Marker, usize), MarkerError> {
    let size = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let text = std::str::from_utf8(&bytes[..size])
        .ok()
        .filter(|text| !text.is_empty() && !text.contains(|c: char| c.is_control()))
        // Any text could be a list; only this looks like directories.
        .filter(|text| {
            let paths = text.split(':').filter(|path| !path.is_empty());
            let (mut paths, count) = (paths.clone(), paths.count());
            (1..=MAX_SEARCH_PATHS).contains(&count)
                && paths.all(|p| p.starts_with('.') || p.contains('/'))
        });
    let Some(text) = text else {
        let start = &bytes[..bytes.len().min(8)];
        return Err(MarkerError(format!(
            "expected a MessagePack map or a list of paths, found {start:02x?}"
        )));
    };
    let paths = text.split(':').filter(|path| !path.is_empty());
    let marker = Marker::new("", paths.map(str::to_owned).collect());
    Ok((Marker { kernel_name: None, ..marker }, size))
}
