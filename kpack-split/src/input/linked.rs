//! Executables and shared objects.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use kpack_format::marker::{MAX_SIZE, Marker};
use kpack_format::offload_binary::OffloadImage;
use kpack_format::offload_bundle::{Bundle, COMPRESSED_MAGIC, PLAIN_MAGIC};
use kpack_format::target_id::SPIRV;

use super::{SharedFile, binary_error, open, open_bundle, wrapper_error};
use crate::device_code::{DeviceCode, FatBinary};
use crate::elf::{BinaryError, DataBundles, ReadAt, Wrapper};
use crate::host::Image;
use crate::parallel::lock;
use crate::pe::CODE_SECTIONS;
use crate::publish::Identity;
use crate::{Error, ids};
use kpack_core::words::{counted, list};

/// An executable or shared object, open and parsed.
#[derive(Debug)]
pub struct LinkedBinary {
    /// The file.
    pub path: PathBuf,
    /// Its headers.
    pub image: Image<File>,
    /// Its device code, or what stands for it.
    pub code: DeviceCode,
    /// The bundles with SPIR-V that a split binary keeps.
    pub kept: Option<FatBinary>,
}

/// What was read of a binary. The file is closed, because there may be thousands of binaries.
#[derive(Debug, Clone)]
pub struct ClosedBinary {
    path: PathBuf,
    identity: Identity,
    headers: Image<()>,
    code: DeviceCode,
    kept: Option<FatBinary>,
}

impl ClosedBinary {
    /// Whether it is a DLL or a program for Windows.
    pub fn is_for_windows(&self) -> bool {
        self.headers.is_for_windows()
    }

    /// Opens the file again, without parsing it.
    ///
    /// # Errors
    /// [`Error::Changed`] if it was replaced or modified.
    pub fn open(&self) -> Result<LinkedBinary, Error> {
        Ok(self.over(&self.path, self.identity.open(&self.path)?))
    }

    /// The same binary, opened as `file` at `path`.
    fn over(&self, path: &Path, file: File) -> LinkedBinary {
        LinkedBinary {
            path: path.to_owned(),
            image: self.headers.over(file),
            code: self.code.clone(),
            kept: self.kept.clone(),
        }
    }
}

/// The binaries that a run parsed, so that it parses none twice.
#[derive(Debug, Default)]
pub struct ParsedBinaries(Mutex<BTreeMap<Identity, Arc<ClosedBinary>>>);

impl ParsedBinaries {
    /// Opens the binary at `path`.
    pub fn open(&self, path: &Path) -> Result<LinkedBinary, Error> {
        self.read(path, open(path)?)
    }

    /// Reads `file`, which is at `path`.
    pub fn read(&self, path: &Path, file: File) -> Result<LinkedBinary, Error> {
        self.read_headers(path, file)?
    }

    /// As [`read`](Self::read); the inner error says why the headers cannot be read, as those of files for other
    /// hosts.
    pub fn read_headers(
        &self,
        path: &Path,
        file: File,
    ) -> Result<Result<LinkedBinary, Error>, Error> {
        let identity = Identity::of(path, &file)?;
        let known = lock(&self.0).get(&identity).cloned();
        if let Some(known) = known {
            return Ok(Ok(known.over(path, file)));
        }
        let image = match Image::read(file).map_err(|e| binary_error(path, e)) {
            Err(error @ Error::Refused { .. }) => return Ok(Err(error)),
            image => image?,
        };
        let linked = LinkedBinary::of(path, image)?;
        lock(&self.0).insert(identity, Arc::new(linked.close()?));
        Ok(Ok(linked))
    }
}

impl LinkedBinary {
    /// What was read of it, without the open file.
    pub fn close(&self) -> Result<ClosedBinary, Error> {
        Ok(ClosedBinary {
            path: self.path.clone(),
            identity: Identity::of(&self.path, self.image.source())?,
            headers: self.image.over(()),
            code: self.code.clone(),
            kept: self.kept.clone(),
        })
    }

    /// Opens and reads the file at `path`.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::read(path, open(path)?)
    }

    /// Reads `file`, which is at `path`.
    pub fn read(path: &Path, file: File) -> Result<Self, Error> {
        Self::of(path, Image::read(file).map_err(|e| binary_error(path, e))?)
    }

    /// Finds the device code of `image`, the file at `path`.
    pub fn of(path: &Path, image: Image<File>) -> Result<Self, Error> {
        let mut linked = Self {
            path: path.to_owned(),
            code: image.device_code().map_err(|e| binary_error(path, e))?,
            image,
            kept: None,
        };
        // Other fat binaries with split wrappers are linked from objects of both kinds.
        if let DeviceCode::Fat(fat) = &linked.code
            && !fat.split_before.is_empty()
            && linked.has_only_spirv(fat)
        {
            let fat = fat.clone();
            linked.code = DeviceCode::Split(fat.split_before.clone());
            linked.kept = Some(fat);
        }
        Ok(linked)
    }

    /// Whether all of its bundles have SPIR-V.
    pub fn has_only_spirv(&self, fat: &FatBinary) -> bool {
        let mut bundles = self.bundles(&fat.wrappers);
        bundles.all(|bundle| bundle.is_ok_and(|bundle| bundle.has_spirv()))
    }

    /// The indices of wrappers whose bundles a split keeps because of their SPIR-V; none if `marker` says
    /// that it is in archives.
    pub fn with_spirv(
        &self,
        fat: &FatBinary,
        marker: Option<&Marker>,
    ) -> Result<BTreeSet<u32>, Error> {
        let mut found = BTreeSet::new();
        if is_spirv_archived(marker) {
            return Ok(found);
        }
        for (wrapper, bundle) in fat.wrappers.iter().zip(self.bundles(&fat.wrappers)) {
            if bundle?.has_spirv() {
                found.insert(wrapper.co_index);
            }
        }
        Ok(found)
    }

    /// The path by which a loader knows it. The dynamic linker tells those of libraries; for a program, the
    /// kernel tells only the real one.
    pub fn loaded_as(&self) -> PathBuf {
        let is_program = self.image.has_real_path();
        let real = is_program.then(|| self.path.canonicalize().ok()).flatten();
        real.unwrap_or_else(|| self.path.clone())
    }

    /// Adds the path to an error.
    pub fn error(&self, error: BinaryError) -> Error {
        binary_error(&self.path, error)
    }

    /// Reads the tables of the bundles of unsplit `wrappers`.
    pub fn bundles<'a>(
        &'a self,
        wrappers: &'a [Wrapper],
    ) -> impl Iterator<Item = Result<Bundle, Error>> + 'a {
        let mut reader = BufReader::new(SharedFile::of(self.image.source()));
        // Wrappers that share a bundle usually follow each other.
        let mut last: Option<(u64, Bundle)> = None;
        wrappers.iter().map(move |wrapper| {
            let at = wrapper.bundle_offset;
            if let Some((_, bundle)) = last.as_ref().filter(|(offset, _)| *offset == at) {
                return Ok(bundle.clone());
            }
            let bundle = open_bundle(&mut reader, wrapper)
                .map_err(|error| wrapper_error(&self.path, wrapper.co_index, at, error))?;
            last = Some((at, bundle.clone()));
            Ok(bundle)
        })
    }

    /// The targets of the code in a fat binary, of the wrappers with `wanted` indices.
    pub fn targets(
        &self,
        fat: &FatBinary,
        wanted: &dyn Fn(u32) -> bool,
    ) -> Result<BTreeSet<String>, Error> {
        let mut targets = BTreeSet::new();
        for (wrapper, bundle) in fat.wrappers.iter().zip(self.bundles(&fat.wrappers)) {
            let bundle = bundle?;
            if !wanted(wrapper.co_index) {
                continue;
            }
            let own = bundle.entries.iter().filter_map(|entry| entry.id.target());
            targets.extend(own.map(ToString::to_string));
        }
        Ok(targets)
    }

    /// Says that offload bundles are in read-only data, if any are.
    pub fn bundles_in_data(&self) -> Result<Option<String>, Error> {
        let found = self.image.bundles_in_data().map_err(|e| self.error(e))?;
        Ok((!found.is_empty()).then(|| {
            format!("{} outside of the section for device code: the program loads them itself, so they stay in the file", in_sections(&found))
        }))
    }

    /// The images for other offloading runtimes, such as OpenMP's.
    pub fn offload_images(&self) -> Result<Vec<OffloadImage>, Error> {
        self.image.offload_images().map_err(|error| offload_error(&self.path, error))
    }

    /// Names the images for other offloading runtimes, if there are any.
    pub fn offload_note(&self) -> Result<Option<String>, Error> {
        let images = self.offload_images()?;
        let (count, named) = (counted(images.len(), "image"), list(images.iter()));
        let text = format!(
            "{count} for other offloading runtimes: {named}; kpack leaves them in the file"
        );
        Ok((!images.is_empty()).then_some(text))
    }

    /// Room for the marker at a file offset, in bytes: up to the next marker or the end of the
    /// section.
    pub fn marker_room(&self, offset: u64) -> Result<usize, Error> {
        // There may be a second section of markers, from splitting the rest of the binary.
        let mut sections = self.image.marker_sections().into_iter();
        let ends = sections.find(|section| section.contains(&offset)).map(|section| section.end);
        let next = self
            .code
            .split_wrappers()
            .iter()
            .map(|other| other.marker_offset)
            .filter(|at| *at > offset);
        let end = next.fold(ends.unwrap_or(offset), u64::min);
        let mut bytes = vec![0; (end - offset).min(MAX_SIZE as u64) as usize];
        let read = self.image.source().read_exact_at(offset, &mut bytes);
        read.map_err(|e| Error::io(&self.path, "read", e))?;
        let Ok((_, size)) = Marker::read(&bytes) else {
            return Ok(0);
        };
        let zeroes = bytes[size..].iter().take_while(|byte| **byte == 0).count();
        Ok(size + zeroes)
    }
}

/// Counts bundles in read-only data, by section.
pub(crate) fn in_sections(found: &[DataBundles]) -> String {
    let sections = found.iter().map(|found| {
        format!("{} in `{}`", counted(found.starts.len(), "offload bundle"), found.section)
    });
    Vec::from_iter(sections).join(", ")
}

/// The error for offload images that cannot be read.
pub fn offload_error(path: &Path, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
            Error::rejected(ids::DAMAGED_BINARY, path, error.to_string())
        }
        _ => Error::io(path, "read", error),
    }
}

/// The wrappers of each bundle, in order of offset: some share one.
pub fn by_bundle<'a>(wrappers: impl Iterator<Item = &'a Wrapper>) -> Vec<Vec<&'a Wrapper>> {
    let mut bundles: BTreeMap<u64, Vec<&Wrapper>> = BTreeMap::new();
    for wrapper in wrappers {
        bundles.entry(wrapper.bundle_offset).or_default().push(wrapper);
    }
    bundles.into_values().collect()
}

/// Whether the SPIR-V of a binary with this marker was moved to archives.
pub fn is_spirv_archived(marker: Option<&Marker>) -> bool {
    marker.is_some_and(|marker| marker.code_ids.contains_key(SPIRV))
}

/// Whether `file`, which is at `path`, contains the start of an offload bundle anywhere.
pub fn has_bundle(path: &Path, file: &File) -> Result<bool, Error> {
    contains(path, file, &[PLAIN_MAGIC, COMPRESSED_MAGIC])
}

/// Whether a linked binary that cannot be read may have device code: it contains the start of a bundle, or the name of
/// the section that has code without bundles.
pub(crate) fn may_have_code(path: &Path, file: &File) -> Result<bool, Error> {
    let mut words = vec![&PLAIN_MAGIC[..], COMPRESSED_MAGIC];
    words.extend(CODE_SECTIONS.iter().map(|name| name.as_bytes()));
    contains(path, file, &words)
}

fn contains(path: &Path, file: &File, words: &[&[u8]]) -> Result<bool, Error> {
    ReadAt::contains(file, words).map_err(|e| Error::io(path, "read", e))
}
