//! Collects and merges the content of an archive, and writes it in canonical order.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::ops::Range;

use super::error::malformed;
use super::limits::{self, MAX_CODE_OBJECT, MAX_FRAME, MAX_KERNELS, MAX_TARGETS, MAX_TOC};
use super::toc::{FORMAT_VERSION, Storage};
use super::{
    Archive, ArchiveError, DATA_OFFSET, Encoded, Encoder, MAGIC, Scheme, Targets, Toc, TocEntry,
};
use crate::code_id::index_in;
use crate::digest::{Blake3, LateStart};
use crate::names::KernelName;
use crate::offload_bundle::code_object_id;
use crate::{CodeId, TargetId, code_id};

/// zstd's default level.
pub(crate) const DEFAULT_LEVEL: i32 = 3;

/// Bytes read and written at a time. With larger writes, Linux uses larger blocks of memory for the
/// file, and in virtual machines that can take several times as long.
const PIECE: usize = 64 << 10;

/// Collects code objects for one archive. Stored bytes go to the spool at once, and only the TOC is
/// kept in memory. [`finish`](Self::finish) writes code objects in canonical order, so the same
/// entries give the same file, whatever the order they came in. If they came in that order,
/// [`finish_in_place`](Self::finish_in_place) makes the spool the archive.
pub struct ArchiveWriter<S> {
    spool: S,
    /// The end of the last code object in the spool, where they are as in an archive.
    spool_end: u64,
    /// Of the archive that the spool becomes, whose header is known last.
    digest: LateStart,
    group_name: String,
    family: String,
    /// An archive of device code that was in binaries has one. A kernel has its position.
    targets: Vec<String>,
    scheme: Scheme,
    level: i32,
    pub(super) stored: Vec<Stored>,
    by_checksum: HashMap<Blake3, usize>,
    pub(super) kernels: BTreeMap<KernelOrder, Entered>,
    /// [`MAX_TOC`], or less in tests.
    max_toc: u64,
}

/// Size of the number of frames, and of the size before each frame, in bytes.
fn prefix(scheme: Scheme) -> u64 {
    match scheme {
        Scheme::None => 0,
        Scheme::ZstdPerKernel => 4,
    }
}

/// A code object in the spool.
pub(super) struct Stored {
    offset: u64,
    size: u64,
    pub(super) original_size: u64,
    checksum: Blake3,
}

/// A kernel.
pub(super) struct Entered {
    /// Index in `stored`.
    pub(super) index: usize,
    entry_id: Option<Box<str>>,
    kind: Option<Box<str>>,
    metadata: Option<Box<[u8]>>,
}

/// A kernel for a target, ordered by the path before `#`, then by the number after it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KernelOrder {
    path: String,
    index: Option<u32>,
    pub(super) name: String,
    target: usize,
}

impl KernelOrder {
    fn new(name: &str, target: usize) -> Self {
        let KernelName { binary, index } = KernelName::parse(name);
        Self { path: binary.to_owned(), index, name: name.to_owned(), target }
    }
}

impl<S> fmt::Debug for ArchiveWriter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArchiveWriter")
            .field("group_name", &self.group_name)
            .field("family", &self.family)
            .field("kernels", &self.kernels.len())
            .finish_non_exhaustive()
    }
}

impl<S: Read + Write + Seek> ArchiveWriter<S> {
    /// `group_name` is module and component (`rocblas_lib`); `spool` is an empty scratch file.
    pub fn new(spool: S, group_name: &str, target: &TargetId, scheme: Scheme) -> Self {
        let target = target.to_string();
        Self::for_family(spool, group_name, &target, vec![target.clone()], scheme)
    }

    /// An archive of several targets, which belong to a family.
    pub fn for_family(
        spool: S,
        group_name: &str,
        family: &str,
        targets: Vec<String>,
        scheme: Scheme,
    ) -> Self {
        Self {
            spool,
            spool_end: DATA_OFFSET + prefix(scheme),
            digest: LateStart::new((DATA_OFFSET + prefix(scheme)) as usize),
            group_name: group_name.to_owned(),
            family: family.to_owned(),
            targets,
            scheme,
            level: DEFAULT_LEVEL,
            stored: Vec::new(),
            by_checksum: HashMap::new(),
            kernels: BTreeMap::new(),
            max_toc: MAX_TOC,
        }
    }

    /// Sets the Zstandard level for code objects that [`merge`](Self::merge) has to recompress;
    /// defaults to 3.
    pub fn level(mut self, level: i32) -> Self {
        self.level = level;
        self
    }

    /// Whether a code object with this checksum is already stored.
    pub fn contains(&self, checksum: &Blake3) -> bool {
        self.by_checksum.contains_key(checksum)
    }

    /// The ID of the device code added for `binary` and the first target; `None` if there is none.
    pub fn code_id(&self, binary: &str) -> Option<CodeId> {
        let first =
            KernelOrder { path: binary.to_owned(), index: None, name: String::new(), target: 0 };
        let own = self
            .kernels
            .range(first..)
            .take_while(|(kernel, _)| kernel.path == binary)
            .filter(|(kernel, _)| kernel.target == 0);
        let checksums = own.filter_map(|(kernel, stored)| {
            let index = index_in(&kernel.name, binary)?;
            Some((index, self.stored[stored.index].checksum))
        });
        code_id(&checksums.collect())
    }

    /// Adds `kernel` with a stored code object, as reported by [`contains`](Self::contains).
    ///
    /// # Errors
    /// [`ArchiveError::Conflict`] where the kernel is there with other content;
    /// [`ArchiveError::Malformed`] where no such code object is stored.
    pub fn add_stored(&mut self, kernel: &str, checksum: &Blake3) -> Result<(), ArchiveError> {
        match self.by_checksum.get(checksum).copied() {
            Some(index) => self.enter(kernel, 0, index).map(drop),
            None => malformed!(0, "kernel `{kernel}` cannot share a code object: none is stored"),
        }
    }

    /// Adds `kernel`. An identical code object is stored only once.
    ///
    /// # Errors
    /// [`ArchiveError::Conflict`] where the kernel is there with other content;
    /// [`ArchiveError::TooLarge`], [`ArchiveError::Io`].
    pub fn add(&mut self, kernel: &str, code_object: &Encoded) -> Result<(), ArchiveError> {
        let (size, checksum) = (code_object.original_size, code_object.checksum);
        let stored = &code_object.bytes[..];
        self.add_from(kernel, &mut &*stored, stored.len() as u64, size, checksum)
    }

    /// Like [`add`](Self::add), for a code object of `original_size` bytes whose stored form is
    /// `stored`, of `size` bytes.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn add_from(
        &mut self,
        kernel: &str,
        stored: &mut impl Read,
        size: u64,
        original_size: u64,
        checksum: Blake3,
    ) -> Result<(), ArchiveError> {
        let index = self.store(kernel, stored, size, original_size, checksum)?;
        self.enter(kernel, 0, index).map(drop)
    }

    /// Like [`add`](Self::add), for one of several targets, with the [type](TocEntry::kind) and the
    /// [metadata](TocEntry::metadata) of its entry.
    ///
    /// # Errors
    /// As [`add`](Self::add); [`ArchiveError::Malformed`] for another target.
    pub fn add_for(
        &mut self,
        (kernel, target): (&str, &str),
        (kind, metadata): (Option<&str>, Option<&[u8]>),
        code_object: &Encoded,
    ) -> Result<(), ArchiveError> {
        let target = self.place(kernel, target)?;
        let (size, checksum) = (code_object.original_size, code_object.checksum);
        let mut stored = &code_object.bytes[..];
        let stored_size = stored.len() as u64;
        let index = self.store(kernel, &mut stored, stored_size, size, checksum)?;
        let entered = self.enter(kernel, target, index)?;
        entered.kind = kind.map(Box::from);
        entered.metadata = metadata.map(Box::from);
        Ok(())
    }

    /// Sets the [ID](TocEntry::entry_id) of the bundle's entry that a kernel, which was added, was in.
    pub fn set_entry_id(&mut self, kernel: &str, id: Option<&str>) {
        if let Some(entered) = self.kernels.get_mut(&KernelOrder::new(kernel, 0)) {
            entered.entry_id = id.map(Box::from);
        }
    }

    /// Copies the entries of `old` whose kernel name `keep` accepts, in their stored form.
    /// Recompresses code objects if the schemes differ. Copied bytes are not decompressed, so
    /// damage in them remains, and readers find it by its checksum. Of two frames of one code
    /// object at different levels, the first one stays.
    ///
    /// # Errors
    /// As [`add`](Self::add); [`ArchiveError::Malformed`] for an archive that cannot be read, or
    /// that has entries for another target.
    pub fn merge<R: Read + Seek>(
        &mut self,
        old: &mut Archive<R>,
        keep: impl Fn(&str) -> bool,
    ) -> Result<(), ArchiveError> {
        self.merge_as(old, |kernel| Vec::from_iter(keep(kernel).then(|| kernel.to_owned())))
    }

    /// Like [`merge`](Self::merge), with the names that `names` gives each entry: none, one, or
    /// several.
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
        // Index in `stored` by ordinal in the old archive.
        let mut known: HashMap<u32, usize> = HashMap::new();
        for (kernel, targets) in &toc.kernels {
            let names = names(kernel);
            if names.is_empty() {
                continue;
            }
            for (target, entry) in targets {
                let place = self.place(kernel, target)?;
                let index = match known.get(&entry.ordinal) {
                    Some(index) => *index,
                    None => {
                        let index = self.take_over(old, kernel, target, entry, &mut encoder)?;
                        known.insert(entry.ordinal, index);
                        index
                    }
                };
                for name in &names {
                    let entered = self.enter(name, place, index)?;
                    entered.entry_id.clone_from(&entry.entry_id);
                    entered.kind.clone_from(&entry.kind);
                    entered.metadata.clone_from(&entry.metadata);
                }
            }
        }
        Ok(())
    }

    /// The kernels for the first target.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        let own = self.kernels.keys().filter(|kernel| kernel.target == 0);
        own.map(|kernel| &*kernel.name)
    }

    /// Copies the code objects of kernels that this archive lacks from `other`, which is for a less specific target
    /// and stored by the same scheme. Their entries keep the [ID](TocEntry::entry_id) of the bundle's entry, which names
    /// that target.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn complete_from<T: Read + Write + Seek>(
        &mut self,
        other: &mut ArchiveWriter<T>,
    ) -> Result<(), ArchiveError> {
        for (kernel, entered) in &other.kernels {
            let own = KernelOrder { target: 0, ..kernel.clone() };
            if kernel.target != 0 || self.kernels.contains_key(&own) {
                continue;
            }
            let Stored { offset, size, original_size, checksum } = other.stored[entered.index];
            other.spool.seek(SeekFrom::Start(offset))?;
            let mut stored = (&mut other.spool).take(size);
            let index = self.store(&kernel.name, &mut stored, size, original_size, checksum)?;
            let usual = || code_object_id(&other.targets[0]).into();
            let copy = self.enter(&kernel.name, 0, index)?;
            copy.entry_id = Some(entered.entry_id.clone().unwrap_or_else(usual));
        }
        Ok(())
    }

    /// The position of a target.
    fn place(&self, kernel: &str, target: &str) -> Result<usize, ArchiveError> {
        match self.targets.iter().position(|known| known == target) {
            Some(place) => Ok(place),
            None => malformed!(
                0,
                "it holds kernel `{kernel}` for {target}; expected only {}",
                self.targets.join(", ")
            ),
        }
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
        let told =
            old.toc().checksums.as_ref().and_then(|all| all.get(entry.ordinal as usize)).copied();
        // Trust the checksum if only entries of the old archive depend on it.
        let believed =
            told.filter(|checksum| same_scheme && !self.by_checksum.contains_key(checksum));
        let checksum = match believed {
            Some(checksum) => checksum,
            None => old.digest(kernel, target, entry, &mut |_| Ok(()))?,
        };
        if let Some(index) = self.by_checksum.get(&checksum) {
            return Ok(*index);
        }
        let bytes = if same_scheme {
            old.stored_bytes(entry.ordinal)?
        } else {
            let plain = old.read_entry(kernel, target, entry)?;
            let encoder = match encoder {
                Some(encoder) => encoder,
                None => encoder.insert(Encoder::new(self.scheme, self.level)?),
            };
            encoder.encode(&plain, checksum)?.bytes
        };
        let size = bytes.len() as u64;
        self.store(kernel, &mut &bytes[..], size, entry.original_size, checksum)
    }

    /// The index of the code object with this checksum, which is stored unless it is there.
    fn store(
        &mut self,
        kernel: &str,
        stored: &mut impl Read,
        size: u64,
        original_size: u64,
        checksum: Blake3,
    ) -> Result<usize, ArchiveError> {
        if let Some(index) = self.by_checksum.get(&checksum) {
            return Ok(*index);
        }
        let what = || format!("kernel `{kernel}` has {original_size} bytes");
        limits::check(what, original_size, MAX_CODE_OBJECT)?;
        if self.scheme == Scheme::ZstdPerKernel {
            let what = || format!("kernel `{kernel}` has {size} bytes compressed");
            limits::check(what, size, MAX_FRAME)?;
        }
        self.spool.seek(SeekFrom::Start(self.spool_end))?;
        // If the code object cannot be read to its end, the archive goes on without it.
        let mut out = Hashing { out: &mut self.spool, digest: self.digest.clone() };
        if self.scheme == Scheme::ZstdPerKernel {
            out.write_all(&(size as u32).to_le_bytes())?;
        }
        let mut stored = BufReader::with_capacity(PIECE, stored);
        if io::copy(&mut stored, &mut out)? != size {
            return Err(ArchiveError::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        self.digest = out.digest;
        let offset = self.spool_end + prefix(self.scheme);
        let index = self.stored.len();
        self.stored.push(Stored { offset, size, original_size, checksum });
        self.by_checksum.insert(checksum, index);
        self.spool_end = offset + size;
        Ok(index)
    }

    fn enter(
        &mut self,
        kernel: &str,
        target: usize,
        index: usize,
    ) -> Result<&mut Entered, ArchiveError> {
        let count = self.kernels.len() as u64 + 1;
        match self.kernels.entry(KernelOrder::new(kernel, target)) {
            Entry::Occupied(known) if known.get().index == index => Ok(known.into_mut()),
            Entry::Occupied(_) => Err(ArchiveError::Conflict {
                kernel: kernel.to_owned(),
                target: self.targets[target].clone(),
            }),
            Entry::Vacant(place) => {
                let what = || format!("the archive has {count} kernels");
                limits::check(what, count, MAX_KERNELS as u64)?;
                Ok(place.insert(Entered { index, entry_id: None, kind: None, metadata: None }))
            }
        }
    }

    /// The spool, with the stored code objects.
    pub fn spool(&self) -> &S {
        &self.spool
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.kernels.is_empty()
    }
}

/// The archive that [`ArchiveWriter::finish`] wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// Size of the file in bytes.
    pub size: u64,
    /// Number of TOC entries.
    pub kernel_count: u64,
    /// BLAKE3 digest of the file.
    pub checksum: Blake3,
}

impl<S: Read + Write + Seek> ArchiveWriter<S> {
    /// Writes the archive. `out` is written from its current position and not flushed to disk.
    ///
    /// # Errors
    /// [`ArchiveError::TooLarge`], with nothing written; [`ArchiveError::Io`].
    pub fn finish<W: Write>(mut self, mut out: W) -> Result<Written, ArchiveError> {
        let (kernels, order) = self.in_order();
        let (head, toc) = self.head_and_toc(kernels, &order)?;
        out.write_all(&head)?;
        let mut out = Hashing { out, digest: LateStart::new(head.len()) };
        let prefix = prefix(self.scheme);
        for index in order {
            let Stored { offset, size, .. } = self.stored[index];
            self.copy_spool(offset - prefix..offset + size, &mut out)?;
        }
        out.write_all(&toc)?;
        Ok(written(&out.digest, &head, self.kernels.len()))
    }

    /// Whether the spool has the code objects in canonical order.
    pub fn is_in_order(&self) -> bool {
        let mut next = 0;
        let kernels_agree = self.kernels.values().all(|Entered { index, .. }| {
            next += usize::from(*index == next);
            *index < next
        });
        kernels_agree && next == self.stored.len()
    }

    /// Makes the spool the archive that [`finish`](Self::finish) would write, without reading it. It has to be
    /// [in order](Self::is_in_order).
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub fn finish_in_place(mut self) -> Result<Written, ArchiveError> {
        let (kernels, order) = self.in_order();
        let (head, toc) = self.head_and_toc(kernels, &order)?;
        self.spool.rewind()?;
        self.spool.write_all(&head)?;
        self.spool.seek(SeekFrom::Start(self.spool_end))?;
        self.spool.write_all(&toc)?;
        self.digest.update(&toc);
        Ok(written(&self.digest, &head, self.kernels.len()))
    }

    /// What is before the code objects and after them.
    fn head_and_toc(
        &self,
        kernels: BTreeMap<String, Targets>,
        order: &[usize],
    ) -> Result<(Vec<u8>, Vec<u8>), ArchiveError> {
        let targets = self.targets.len();
        let what = || format!("the archive has {targets} targets");
        limits::check(what, targets as u64, MAX_TARGETS as u64)?;
        let stored = || order.iter().map(|index| &self.stored[*index]);
        let (storage, end) = layout(self.scheme, stored());
        let toc = Toc {
            group_name: self.group_name.clone(),
            gfx_arch_family: self.family.clone(),
            gfx_arches: self.targets.clone(),
            scheme: self.scheme,
            kernels,
            checksums: Some(stored().map(|stored| stored.checksum).collect()),
        };
        let toc = toc.to_bytes(&storage);
        let what = || format!("the table of contents has {} bytes", toc.len());
        limits::check(what, toc.len() as u64, self.max_toc)?;

        let mut head = vec![0; DATA_OFFSET as usize];
        head[..4].copy_from_slice(&MAGIC);
        head[4..8].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        head[8..16].copy_from_slice(&end.to_le_bytes());
        if self.scheme == Scheme::ZstdPerKernel {
            head.extend((order.len() as u32).to_le_bytes());
        }
        Ok((head, toc))
    }

    /// The TOC's kernels, and the stored code objects by ordinal, in the order of their first
    /// kernels.
    fn in_order(&self) -> (BTreeMap<String, Targets>, Vec<usize>) {
        let mut kernels: BTreeMap<String, Targets> = BTreeMap::new();
        let mut ordinals: HashMap<usize, u32> = HashMap::new();
        let mut order = Vec::new();
        for (kernel, entered) in &self.kernels {
            let index = entered.index;
            let ordinal = *ordinals.entry(index).or_insert_with(|| {
                order.push(index);
                order.len() as u32 - 1
            });
            let entry = TocEntry {
                ordinal,
                original_size: self.stored[index].original_size,
                lacks_size: false,
                entry_id: entered.entry_id.clone(),
                kind: entered.kind.clone(),
                metadata: entered.metadata.clone(),
            };
            let targets = kernels.entry(kernel.name.clone()).or_default();
            targets.insert(self.targets[kernel.target].clone(), entry);
        }
        (kernels, order)
    }

    fn copy_spool(&mut self, range: Range<u64>, out: &mut impl Write) -> Result<(), ArchiveError> {
        let size = range.end - range.start;
        self.spool.seek(SeekFrom::Start(range.start))?;
        let mut spool = BufReader::with_capacity(PIECE, Read::by_ref(&mut self.spool).take(size));
        if io::copy(&mut spool, out)? == size {
            Ok(())
        } else {
            Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())
        }
    }
}

/// The offsets of the code objects, and the end of the last.
fn layout<'a>(scheme: Scheme, stored: impl Iterator<Item = &'a Stored>) -> (Storage, u64) {
    let prefix = prefix(scheme);
    let mut end = DATA_OFFSET + prefix;
    let places: Vec<(u64, u64)> = stored
        .map(|stored| {
            let offset = end + prefix;
            end = offset + stored.size;
            (offset, stored.size)
        })
        .collect();
    let storage = match scheme {
        Scheme::None => Storage::Blobs(places),
        Scheme::ZstdPerKernel => Storage::Frames {
            offset: DATA_OFFSET,
            size: end - DATA_OFFSET,
            frame_offsets: Some(places.into_iter().map(|(offset, _)| offset).collect()),
        },
    };
    (storage, end)
}

fn written(digest: &LateStart, head: &[u8], kernels: usize) -> Written {
    let (size, kernel_count) = (digest.size(), kernels as u64);
    Written { size, kernel_count, checksum: digest.finish(head) }
}

/// Hashes what is written.
struct Hashing<W> {
    out: W,
    digest: LateStart,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.digest.update(&bytes[..written]);
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
    use crate::digest::blake3;

    #[test]
    fn contents_that_no_reader_takes_are_not_written() {
        let target = "gfx1100".parse().unwrap();
        let spool = Cursor::new(Vec::new());
        let mut writer = ArchiveWriter::new(spool, "vec_lib", &target, Scheme::None);
        writer.max_toc = 1000;
        let (name, code) = (format!("{}#0", "a".repeat(1000)), b"code");
        writer.add_from(&name, &mut &code[..], 4, 4, [0; 32]).unwrap();
        let mut out = Vec::new();
        let error = writer.finish(&mut out).unwrap_err().to_string();
        assert!(error.contains("at most 1000 are supported"), "{error}");
        assert_eq!(out, b"", "nothing was written");
    }

    #[test]
    fn a_code_object_that_ends_too_soon_is_not_in_the_digest() {
        let target = "gfx1100".parse().unwrap();
        let mut spool = Cursor::new(Vec::new());
        let mut writer = ArchiveWriter::new(&mut spool, "vec_lib", &target, Scheme::None);
        writer.add_from("lib/a#0", &mut &b"cut"[..], 4, 4, [0; 32]).unwrap_err();
        writer.add_from("lib/a#1", &mut &b"code"[..], 4, 4, [1; 32]).unwrap();
        let written = writer.finish_in_place().unwrap();
        let bytes = spool.into_inner();
        assert_eq!(written.size, bytes.len() as u64);
        assert_eq!(written.checksum, blake3(&bytes));
    }
}
