//! Writing and merging archives.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{self, Read, Seek, SeekFrom, Write};

use super::index::malformed;
use super::limits::{self, MAX_CODE_OBJECT, MAX_FRAME, MAX_KERNELS, MAX_TOC};
use super::toc::{FORMAT_VERSION, Storage};
use super::{
    Archive, ArchiveError, DATA_OFFSET, Encoded, Encoder, MAGIC, Scheme, Targets, Toc, TocEntry,
};
use crate::code_id::index_in;
use crate::digest::{Hasher, Sha256};
use crate::names::KernelName;
use crate::{CodeId, TargetId, code_id};

/// zstd's own default level.
const DEFAULT_LEVEL: i32 = 3;

/// Collects code objects for one archive. Stored bytes go to the spool as they come and only the
/// TOC is held; [`finish`](Self::finish) puts them in their canonical order, so that the same
/// entries give the same file whatever the order in which they came.
pub struct ArchiveWriter<S> {
    spool: S,
    spool_size: u64,
    group_name: String,
    target: String,
    scheme: Scheme,
    level: i32,
    stored: Vec<Stored>,
    by_checksum: HashMap<Sha256, usize>,
    /// Index in `stored`.
    kernels: BTreeMap<KernelOrder, usize>,
    /// [`MAX_TOC`]; tests have no use for one of that size.
    max_toc: u64,
}

/// A code object in the spool.
struct Stored {
    offset: u64,
    size: u64,
    original_size: u64,
    checksum: Sha256,
}

/// What [`ArchiveWriter::finish`] wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Size of the file in bytes.
    pub size: u64,
    /// Number of TOC entries.
    pub kernel_count: u64,
    /// SHA-256 of the file.
    pub checksum: Sha256,
}

/// A kernel name; ordered by the path in front of `#`, then by the index behind it as a number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct KernelOrder {
    path: String,
    index: Option<u32>,
    name: String,
}

impl KernelOrder {
    fn new(name: &str) -> Self {
        let KernelName { binary, index } = KernelName::parse(name);
        Self {
            path: binary.to_owned(),
            index,
            name: name.to_owned(),
        }
    }
}

impl<S> fmt::Debug for ArchiveWriter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArchiveWriter")
            .field("group_name", &self.group_name)
            .field("target", &self.target)
            .field("kernels", &self.kernels.len())
            .finish_non_exhaustive()
    }
}

impl<S: Read + Write + Seek> ArchiveWriter<S> {
    /// `group_name` is module and component (`rocblas_lib`); `spool` an empty scratch file.
    pub fn new(spool: S, group_name: &str, target: &TargetId, scheme: Scheme) -> Self {
        Self {
            spool,
            spool_size: 0,
            group_name: group_name.to_owned(),
            target: target.to_string(),
            scheme,
            level: DEFAULT_LEVEL,
            stored: Vec::new(),
            by_checksum: HashMap::new(),
            kernels: BTreeMap::new(),
            max_toc: MAX_TOC,
        }
    }

    /// The Zstandard level for what [`merge`](Self::merge) has to compress anew; 3 where this is
    /// not called.
    pub fn level(mut self, level: i32) -> Self {
        self.level = level;
        self
    }

    /// Whether a code object with this checksum is stored already.
    pub fn contains(&self, checksum: &Sha256) -> bool {
        self.by_checksum.contains_key(checksum)
    }

    /// The ID of the device code that was added of `binary`; `None` where there is none.
    pub fn code_id(&self, binary: &str) -> Option<CodeId> {
        let first = KernelOrder {
            path: binary.to_owned(),
            index: None,
            name: String::new(),
        };
        let own = self.kernels.range(first..);
        let own = own.take_while(|(kernel, _)| kernel.path == binary);
        let checksums = own.filter_map(|(kernel, stored)| {
            let index = index_in(&kernel.name, binary)?;
            Some((index, self.stored[*stored].checksum))
        });
        code_id(&checksums.collect())
    }

    /// Adds `kernel` with a code object that [`contains`](Self::contains) knows.
    ///
    /// # Errors
    /// [`ArchiveError::Conflict`] where the kernel is there with other content;
    /// [`ArchiveError::Malformed`] where no such code object is stored.
    pub fn add_stored(&mut self, kernel: &str, checksum: &Sha256) -> Result<(), ArchiveError> {
        match self.by_checksum.get(checksum).copied() {
            Some(index) => self.enter(kernel, index),
            None => malformed(
                0,
                format!("kernel `{kernel}` cannot share a code object: none is stored"),
            ),
        }
    }

    /// Adds `kernel`. A code object that is stored already is not stored again.
    ///
    /// # Errors
    /// [`ArchiveError::Conflict`] where the kernel is there with other content;
    /// [`ArchiveError::TooLarge`], [`ArchiveError::Io`].
    pub fn add(&mut self, kernel: &str, code_object: &Encoded) -> Result<(), ArchiveError> {
        let (size, checksum) = (code_object.original_size, code_object.checksum);
        let stored = &mut &code_object.bytes[..];
        self.add_from(
            kernel,
            stored,
            code_object.bytes.len() as u64,
            size,
            checksum,
        )
    }

    /// As [`add`](Self::add), for a code object of `original_size` bytes that is stored as the `size`
    /// bytes of `stored`.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn add_from(
        &mut self,
        kernel: &str,
        stored: &mut impl Read,
        size: u64,
        original_size: u64,
        checksum: Sha256,
    ) -> Result<(), ArchiveError> {
        let index = match self.by_checksum.get(&checksum) {
            Some(index) => *index,
            None => self.store(kernel, stored, size, original_size, checksum)?,
        };
        self.enter(kernel, index)
    }

    /// Takes over the entries of `old` whose kernel name `keep` accepts, stored bytes as they are.
    /// Where the schemes differ, code objects are stored anew. What is copied is not decompressed, so
    /// damage in it stays, for readers to find by its checksum. Of two frames of one code object at
    /// different levels, the one that came first stays.
    ///
    /// # Errors
    /// As [`add`](Self::add); [`ArchiveError::Malformed`] for an archive that cannot be read, or
    /// that has entries for another target.
    pub fn merge<R: Read + Seek>(
        &mut self,
        old: &mut Archive<R>,
        keep: impl Fn(&str) -> bool,
    ) -> Result<(), ArchiveError> {
        self.merge_as(old, |kernel| {
            Vec::from_iter(keep(kernel).then(|| kernel.to_owned()))
        })
    }

    /// As [`merge`](Self::merge), with the names that `names` gives each entry: none, one, or several.
    ///
    /// # Errors
    /// As [`merge`](Self::merge).
    pub fn merge_as<R: Read + Seek>(
        &mut self,
        old: &mut Archive<R>,
        names: impl Fn(&str) -> Vec<String>,
    ) -> Result<(), ArchiveError> {
        let toc = old.toc().clone();
        let mut encoder = None;
        // Where it is here, by its ordinal there.
        let mut known: HashMap<u32, usize> = HashMap::new();
        for (kernel, targets) in &toc.kernels {
            let names = names(kernel);
            if names.is_empty() {
                continue;
            }
            for (target, entry) in targets {
                if *target != self.target {
                    return malformed(
                        0,
                        format!(
                            "it holds kernel `{kernel}` for {target}; expected only {}",
                            self.target
                        ),
                    );
                }
                let index = match known.get(&entry.ordinal) {
                    Some(index) => *index,
                    None => {
                        let index = self.take_over(old, kernel, target, entry, &mut encoder)?;
                        known.insert(entry.ordinal, index);
                        index
                    }
                };
                for name in &names {
                    self.enter(name, index)?;
                }
            }
        }
        Ok(())
    }

    fn take_over<R: Read + Seek>(
        &mut self,
        old: &mut Archive<R>,
        kernel: &str,
        target: &str,
        entry: &TocEntry,
        encoder: &mut Option<Encoder>,
    ) -> Result<usize, ArchiveError> {
        let same_scheme = old.toc().scheme == self.scheme;
        let told = old
            .toc()
            .checksums
            .as_ref()
            .and_then(|all| all.get(entry.ordinal as usize))
            .copied();
        // A checksum is believed as long as nothing but the old archive depends on it.
        let believed =
            told.filter(|checksum| same_scheme && !self.by_checksum.contains_key(checksum));
        let checksum = match believed {
            Some(checksum) => checksum,
            None => old.digest(kernel, target, entry, &mut |_| {})?,
        };
        if let Some(index) = self.by_checksum.get(&checksum) {
            return Ok(*index);
        }
        let bytes = match same_scheme {
            true => old.stored_bytes(entry.ordinal)?,
            false => {
                let plain = old.read_entry(kernel, target, entry)?;
                let encoder = match encoder {
                    Some(encoder) => encoder,
                    None => encoder.insert(Encoder::new(self.scheme, self.level)?),
                };
                encoder.encode(&plain, checksum)?.bytes
            }
        };
        let size = bytes.len() as u64;
        self.store(kernel, &mut &bytes[..], size, entry.original_size, checksum)
    }

    fn store(
        &mut self,
        kernel: &str,
        stored: &mut impl Read,
        size: u64,
        original_size: u64,
        checksum: Sha256,
    ) -> Result<usize, ArchiveError> {
        let what = || format!("kernel `{kernel}` has {original_size} bytes");
        limits::check(what, original_size, MAX_CODE_OBJECT)?;
        if self.scheme == Scheme::ZstdPerKernel {
            let what = || format!("kernel `{kernel}` has {size} bytes compressed");
            limits::check(what, size, MAX_FRAME)?;
        }
        self.spool.seek(SeekFrom::Start(self.spool_size))?;
        if io::copy(&mut stored.take(size), &mut self.spool)? < size {
            return Err(ArchiveError::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        let index = self.stored.len();
        self.stored.push(Stored {
            offset: self.spool_size,
            size,
            original_size,
            checksum,
        });
        self.by_checksum.insert(checksum, index);
        self.spool_size += size;
        Ok(index)
    }

    fn enter(&mut self, kernel: &str, index: usize) -> Result<(), ArchiveError> {
        let count = self.kernels.len() as u64 + 1;
        match self.kernels.entry(KernelOrder::new(kernel)) {
            Entry::Occupied(known) if *known.get() == index => Ok(()),
            Entry::Occupied(_) => Err(ArchiveError::Conflict {
                kernel: kernel.to_owned(),
                target: self.target.clone(),
            }),
            Entry::Vacant(place) => {
                let what = || format!("the archive has {count} kernels");
                limits::check(what, count, MAX_KERNELS as u64)?;
                place.insert(index);
                Ok(())
            }
        }
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.kernels.is_empty()
    }

    /// Writes the archive. `out` is written from its current position and not flushed to disk.
    ///
    /// # Errors
    /// [`ArchiveError::TooLarge`], with nothing written; [`ArchiveError::Io`].
    pub fn finish<W: Write>(mut self, out: W) -> Result<Written, ArchiveError> {
        let mut kernels: BTreeMap<String, Targets> = BTreeMap::new();
        // Ordinals in the order in which the kernels name them.
        let mut ordinals: HashMap<usize, u32> = HashMap::new();
        let mut in_order: Vec<&Stored> = Vec::new();
        for (kernel, index) in &self.kernels {
            let stored = &self.stored[*index];
            let ordinal = *ordinals.entry(*index).or_insert_with(|| {
                in_order.push(stored);
                in_order.len() as u32 - 1
            });
            let entry = TocEntry {
                ordinal,
                original_size: stored.original_size,
            };
            kernels
                .entry(kernel.name.clone())
                .or_default()
                .insert(self.target.clone(), entry);
        }
        let toc = Toc {
            group_name: self.group_name.clone(),
            gfx_arch_family: self.target.clone(),
            gfx_arches: vec![self.target.clone()],
            scheme: self.scheme,
            kernels,
            checksums: Some(in_order.iter().map(|stored| stored.checksum).collect()),
        };

        let mut out = Hashing {
            out,
            hasher: Hasher::default(),
            size: 0,
        };
        let prefix = match self.scheme {
            Scheme::None => 0,
            Scheme::ZstdPerKernel => 4,
        };
        let mut at = DATA_OFFSET + prefix;
        let places: Vec<(u64, u64)> = in_order
            .iter()
            .map(|stored| {
                let offset = at + prefix;
                at = offset + stored.size;
                (offset, stored.size)
            })
            .collect();
        let storage = match self.scheme {
            Scheme::None => Storage::Blobs(places),
            Scheme::ZstdPerKernel => Storage::Frames {
                offset: DATA_OFFSET,
                size: at - DATA_OFFSET,
                frame_offsets: Some(places.into_iter().map(|(offset, _)| offset).collect()),
            },
        };
        let toc = toc.to_bytes(&storage);
        let what = || format!("the table of contents has {} bytes", toc.len());
        limits::check(what, toc.len() as u64, self.max_toc)?;
        let mut header = [0; DATA_OFFSET as usize];
        header[..4].copy_from_slice(&MAGIC);
        header[4..8].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        header[8..16].copy_from_slice(&at.to_le_bytes());
        out.write_all(&header)?;
        if self.scheme == Scheme::ZstdPerKernel {
            out.write_all(&(in_order.len() as u32).to_le_bytes())?;
        }
        for stored in &in_order {
            if self.scheme == Scheme::ZstdPerKernel {
                out.write_all(&(stored.size as u32).to_le_bytes())?;
            }
            self.spool.seek(SeekFrom::Start(stored.offset))?;
            let copied = io::copy(
                &mut Read::by_ref(&mut self.spool).take(stored.size),
                &mut out,
            )?;
            if copied != stored.size {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
        out.write_all(&toc)?;
        Ok(Written {
            size: out.size,
            kernel_count: self.kernels.len() as u64,
            checksum: out.hasher.finish(),
        })
    }
}

/// Hashes what is written.
struct Hashing<W> {
    out: W,
    hasher: Hasher,
    size: u64,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn contents_that_no_reader_takes_are_not_written() {
        let target = "gfx1100".parse().unwrap();
        let spool = Cursor::new(Vec::new());
        let mut writer = ArchiveWriter::new(spool, "vec_lib", &target, Scheme::None);
        writer.max_toc = 1000;
        let (name, code) = (format!("{}#0", "a".repeat(1000)), b"code");
        writer
            .add_from(&name, &mut &code[..], 4, 4, [0; 32])
            .unwrap();
        let mut out = Vec::new();
        let error = writer.finish(&mut out).unwrap_err().to_string();
        assert!(error.contains("at most 1000 are supported"), "{error}");
        assert_eq!(out, b"", "nothing was written");
    }
}
