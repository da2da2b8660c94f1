//! An open archive, read by position.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use kpack_format::archive::{
    ArchiveError, DecodeError, Index, Targets, Toc, TocEntry, check_frame,
};
use kpack_format::digest::blake3;
use kpack_format::{CodeId, Reason};
use parking_lot::{Mutex, RwLock};
use zstd::zstd_safe::WriteBuf;

use crate::decoder::Decoder;
use crate::error::Error;
use crate::lookup::Listing;
use crate::mapping::Mapping;
use crate::platform::{self, FileId};
use crate::regular_file;
use crate::scratch::Scratch;

/// An archive. Any number of threads may read from it at once.
#[derive(Debug)]
pub struct Archive {
    path: PathBuf,
    file: File,
    id: FileId,
    mapping: Option<Mapping>,
    index: Index,
    /// Every target that it lists, or has a code object for.
    targets: BTreeSet<String>,
    /// Where the first frames are, as far as this has walked, in an archive without `frame_offsets`.
    walked: Mutex<Vec<(u64, u64)>>,
    /// The IDs of device code that were requested so far, by binary and target.
    code_ids: RwLock<HashMap<String, HashMap<String, Option<CodeId>>>>,
    /// By ordinal, whether the checksum of a mapped code object was compared.
    compared: RwLock<BTreeSet<u32>>,
}

/// Where a code object is in an archive.
#[derive(Clone, Copy)]
struct Stored<'a> {
    kernel: &'a str,
    target: &'a str,
    entry: &'a TocEntry,
    offset: u64,
}

/// Room for a code object.
pub trait Room: WriteBuf + Sized {
    /// What has been written.
    fn written(&mut self) -> &mut [u8];
}

/// Memory for a code object.
pub trait Memory: Room {
    /// Room for `size` bytes, not yet written.
    fn with_capacity(size: usize) -> Option<Self>;
    /// `size` zero bytes.
    fn zeroed(size: usize) -> Option<Self>;
}

impl Memory for Vec<u8> {
    fn with_capacity(size: usize) -> Option<Self> {
        let mut bytes = Self::new();
        bytes.try_reserve_exact(size).ok()?;
        Some(bytes)
    }

    fn zeroed(size: usize) -> Option<Self> {
        let mut bytes = <Self as Memory>::with_capacity(size)?;
        bytes.resize(size, 0);
        Some(bytes)
    }
}

impl Room for Vec<u8> {
    fn written(&mut self) -> &mut [u8] {
        self
    }
}

impl Archive {
    /// Opens the archive at `path`, and reads its header and TOC.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Io`] (also for an empty file and for what is not a file),
    /// [`Error::Archive`].
    pub fn open(path: &Path) -> Result<Self, Error> {
        let io = |error| Error::io(path, error);
        let (file, metadata) = regular_file::open(path).map_err(io)?;
        if metadata.len() == 0 {
            return Err(io(io::Error::new(io::ErrorKind::UnexpectedEof, "it is empty")));
        }
        let index = Index::read(&mut At::new(&file)).map_err(|source| match source {
            ArchiveError::Io(source) => io(source),
            source => Error::Archive { path: path.to_owned(), source },
        })?;
        let toc = index.toc();
        let of_kernels = toc.kernels.values().flat_map(Targets::keys);
        let mut targets = BTreeSet::new();
        for target in toc.gfx_arches.iter().chain(of_kernels) {
            // Many kernels, few targets.
            if !targets.contains(target) {
                targets.insert(target.clone());
            }
        }
        Ok(Self {
            path: path.to_owned(),
            id: FileId::of(&file, &metadata).map_err(io)?,
            file,
            mapping: None,
            targets,
            index,
            walked: Mutex::default(),
            code_ids: RwLock::default(),
            compared: RwLock::default(),
        })
    }

    /// Opens the archive at `path` and maps it into memory, so that uncompressed code objects can be
    /// [borrowed](Self::borrow).
    ///
    /// # Safety
    /// Nobody may change or truncate the file while the archive is open: borrowed code objects would
    /// change, and reading a truncated part ends the process with a signal. Replacing the file by
    /// renaming another one is harmless; kpack itself writes that way.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    #[allow(unsafe_code)]
    pub unsafe fn open_mapped(path: &Path) -> Result<Self, Error> {
        let mut archive = Self::open(path)?;
        // SAFETY: the caller leaves the file unchanged.
        let mapping = unsafe { Mapping::new(&archive.file) };
        archive.mapping = Some(mapping.map_err(|error| Error::io(path, error))?);
        Ok(archive)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The identity of its file.
    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    /// The table of contents.
    pub fn toc(&self) -> &Toc {
        self.index.toc()
    }

    /// Every target that it lists, or has a code object for.
    pub(crate) fn targets(&self) -> &BTreeSet<String> {
        &self.targets
    }

    /// The code object of `kernel` for `target`, decompressed.
    ///
    /// Checks its size, and Zstandard's checksum if the frame has one. Compares the BLAKE3 digest in the TOC
    /// only for uncompressed code objects, since it takes longer than decompressing. `kpack verify`
    /// always compares it.
    ///
    /// # Errors
    /// [`Error::Archive`] if there is no such kernel or it is damaged, [`Error::OutOfMemory`],
    /// [`Error::Io`], also for a file that was truncated.
    pub fn load(&self, kernel: &str, target: &str) -> Result<Vec<u8>, Error> {
        self.load_into(kernel, target)
    }

    /// The code object of `kernel` for `target`, in the mapped file. `None` if it is compressed, or the
    /// archive was not opened by [`open_mapped`](Self::open_mapped). Compares its BLAKE3 digest the first time.
    ///
    /// # Errors
    /// [`Error::Archive`] if there is no such kernel or it is damaged.
    pub fn borrow(&self, kernel: &str, target: &str) -> Result<Option<&[u8]>, Error> {
        let entry = self.entry(kernel, target)?;
        if self.toc().scheme.is_compressed() {
            return Ok(None);
        }
        let (offset, size) = self.place(entry.ordinal)?;
        let Some(bytes) = self.mapped(offset, size) else {
            return Ok(None);
        };
        if !self.compared.read().contains(&entry.ordinal) {
            let stored = Stored { kernel, target, entry, offset };
            self.compare(bytes, stored)?;
            self.compared.write().insert(entry.ordinal);
        }
        Ok(Some(bytes))
    }

    /// As [`load`](Self::load), into memory of the caller's kind.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_into<M: Memory>(&self, kernel: &str, target: &str) -> Result<M, Error> {
        let is_compressed = self.toc().scheme.is_compressed();
        let room = |size| if is_compressed { M::with_capacity(size) } else { M::zeroed(size) };
        Scratch::with(|scratch| self.load_with(scratch, kernel, target, &room))
    }

    /// The code object in the room of its size that `room` returns. Uncompressed, it needs zeroed bytes.
    pub(crate) fn load_with<R: Room>(
        &self,
        scratch: &mut Scratch,
        kernel: &str,
        target: &str,
        room: &dyn Fn(usize) -> Option<R>,
    ) -> Result<R, Error> {
        let entry = self.entry(kernel, target)?;
        let (offset, size) = self.place(entry.ordinal)?;
        let stored = Stored { kernel, target, entry, offset };
        if !self.toc().scheme.is_compressed() {
            let memory = usize::try_from(size).ok().and_then(room);
            let mut memory = memory.ok_or(Error::OutOfMemory { size })?;
            self.read_at(memory.written(), offset)?;
            self.compare(memory.written(), stored)?;
            return Ok(memory);
        }
        if let Some(frame) = self.mapped(offset, size) {
            return self.decompress(&mut scratch.decoder, frame, stored, room);
        }
        let frame = scratch.frame(size).ok_or(Error::OutOfMemory { size })?;
        self.read_at(frame, offset)?;
        let (decoder, frame) = scratch.parts(size);
        self.decompress(decoder, frame, stored, room)
    }

    /// Compares the BLAKE3 digest of an uncompressed code object, if the archive has one.
    fn compare(&self, bytes: &[u8], stored: Stored<'_>) -> Result<(), Error> {
        if self.toc().checksums.is_none() {
            return Ok(());
        }
        let Stored { kernel, target, .. } = stored;
        let (entry, offset) = (stored.entry, stored.offset);
        let compared = self.toc().check(kernel, target, entry, offset, &blake3(bytes));
        compared.map_err(|source| self.damaged(source))
    }

    fn decompress<R: Room>(
        &self,
        decoder: &mut Decoder,
        frame: &[u8],
        stored: Stored<'_>,
        room: &dyn Fn(usize) -> Option<R>,
    ) -> Result<R, Error> {
        let size = stored.entry.original_size;
        let damaged = |reason: String| {
            let Stored { kernel, target, .. } = stored;
            self.damaged(ArchiveError::Decompression {
                offset: stored.offset,
                reason: Reason::from(format!("kernel `{kernel}` for {target}: {reason}"))
                    .kernel(kernel)
                    .target(target),
            })
        };
        check_frame(frame, size).map_err(damaged)?;
        let memory = usize::try_from(size).ok().and_then(room);
        let mut memory = memory.ok_or(Error::OutOfMemory { size })?;
        match decoder.decode(frame, size, &mut memory) {
            Ok(()) => Ok(memory),
            Err(DecodeError::OutOfMemory) => Err(Error::OutOfMemory { size }),
            Err(DecodeError::Damaged(reason)) => Err(damaged(reason)),
            Err(error) => Err(damaged(error.to_string())),
        }
    }

    fn entry(&self, kernel: &str, target: &str) -> Result<&TocEntry, Error> {
        let entry = self.toc().entry(kernel, target);
        entry.map_err(|source| self.damaged(source))
    }

    /// Offset and size of a stored code object.
    fn place(&self, ordinal: u32) -> Result<(u64, u64), Error> {
        let mut source = At::new(&self.file);
        let known = self.index.place(&mut source, ordinal);
        if let Some(place) = known.map_err(|source| self.damaged(source))? {
            return Ok(place);
        }
        let mut walked = self.walked.lock();
        let place = self.index.walk(&mut BufReader::new(source), &mut walked, ordinal);
        place.map_err(|source| self.damaged(source))
    }

    fn mapped(&self, offset: u64, size: u64) -> Option<&[u8]> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(usize::try_from(size).ok()?)?;
        self.mapping.as_ref()?.bytes().get(start..end)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<(), Error> {
        let mut source = At { file: &self.file, position: offset };
        let read = source.read_exact(bytes);
        read.map_err(|error| Error::io(&self.path, error))
    }

    fn damaged(&self, source: ArchiveError) -> Error {
        Error::Archive { path: self.path.clone(), source }
    }
}

impl Listing for Archive {
    fn has_target(&self, target: &str) -> bool {
        self.targets.contains(target)
    }

    fn has_kernel(&self, kernel: &str, target: &str) -> bool {
        self.toc().entry(kernel, target).is_ok()
    }

    /// Computed once.
    fn code_id(&self, binary: &str, target: &str) -> Option<CodeId> {
        let known = self.code_ids.read();
        if let Some(id) = known.get(binary).and_then(|targets| targets.get(target)) {
            return *id;
        }
        drop(known);
        let id = self.toc().code_id(binary, target);
        let mut known = self.code_ids.write();
        let targets = known.entry(binary.to_owned()).or_default();
        targets.insert(target.to_owned(), id);
        id
    }
}

/// A file with its own position, which other readers of the same open file do not move.
struct At<'a> {
    file: &'a File,
    position: u64,
}

impl<'a> At<'a> {
    fn new(file: &'a File) -> Self {
        Self { file, position: 0 }
    }
}

impl Read for At<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = platform::read_at(self.file, bytes, self.position)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl Seek for At<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (from, by) = match to {
            SeekFrom::Start(offset) => (offset, 0),
            SeekFrom::Current(by) => (self.position, by),
            SeekFrom::End(by) => (self.file.metadata()?.len(), by),
        };
        self.position = from
            .checked_add_signed(by)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.position)
    }
}
