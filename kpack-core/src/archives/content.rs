//! A code object on its way into an archive: in memory, or if large, in a file.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Cursor, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use kpack_format::Reason;
use kpack_format::TargetId;
use kpack_format::archive::{ArchiveError, ArchiveWriter, Encoded, Encoder, MAX_CODE_OBJECT};
use kpack_format::code_object::CodeObjectError;
use kpack_format::digest::{Blake3, Hasher, blake3};
use kpack_format::offload_bundle::{BundleError, CodeObjectReader};

use super::debug_sections::Stripped;
use crate::Error;
use crate::files::{self, RangeReader};
use crate::publish::scratch_file;

/// Larger code objects, in bytes, are read and compressed in parts. The limit does not depend on where a
/// code object comes from, since it decides how the archive's frame looks.
pub const LARGE_CODE_OBJECT: u64 = 4 << 20;
/// The compressed form of a code object of up to this size is kept in memory, if the code object is not.
const LARGE_FRAME: u64 = 64 << 20;
/// Bytes of a large code object that are read at a time.
const PART: u64 = 256 << 10;
/// Bytes of a debug section by which the stored size of the whole is estimated.
const SAMPLE: u64 = 512 << 10;

/// An uncompressed code object.
#[derive(Clone)]
pub enum UncompressedCode {
    /// In memory.
    Held(Vec<u8>),
    /// In a file.
    Large(FileRange),
}

/// A part of a file: a large code object, uncompressed or compressed.
#[derive(Clone)]
pub struct FileRange {
    file: Arc<File>,
    range: Range<u64>,
    /// Its BLAKE3 digest, or that of the code object of which it is the compressed form; `None` if it is still to
    /// be read.
    checksum: Option<Blake3>,
}

impl FileRange {
    fn size(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn reader(&self) -> RangeReader<'_> {
        RangeReader::new(&self.file, self.range.clone())
    }
}

/// A code object as it is stored.
pub(super) enum Stored {
    Held(Encoded),
    Large { frame: FileRange, checksum: Blake3, original_size: u64 },
}

impl UncompressedCode {
    /// Reads a code object. A large one stays in `bundle`, the file and the offset of its bundle; one of a
    /// compressed bundle goes into a file in the directory `scratch`. `failed` adds the location to an error.
    ///
    /// # Errors
    /// [`Error::Refused`], before reading, for one that is too large for any reader.
    pub(super) fn read<R: Read + Seek>(
        mut entry: CodeObjectReader<'_, R>,
        bundle: Option<(&Arc<File>, u64)>,
        scratch: &Path,
        failed: &dyn Fn(BundleError) -> Error,
    ) -> Result<Self, Error> {
        let size = entry.size();
        if size > MAX_CODE_OBJECT {
            let targets = Vec::from_iter(entry.targets().map(TargetId::to_string)).join(", ");
            let text = format!(
                "the code object for {targets} has {size} bytes; expected at most {MAX_CODE_OBJECT}"
            );
            let reason = Reason::from(text).target(targets).differs(MAX_CODE_OBJECT, size);
            return Err(failed(BundleError::Malformed { offset: entry.offset(), reason }));
        }
        if size <= LARGE_CODE_OBJECT {
            return Ok(Self::Held(entry.read().map_err(failed)?));
        }
        if let Some((file, bundle)) = bundle {
            let start = bundle + entry.offset();
            return Ok(Self::Large(FileRange {
                file: Arc::clone(file),
                range: start..start + size,
                checksum: None,
            }));
        }
        let mut file = scratch_file(scratch)?;
        let mut hasher = Hasher::default();
        let mut part = Vec::new();
        while entry.append(&mut part, PART).map_err(failed)? > 0 {
            hasher.update(&part);
            let written = file.write_all(&part);
            written.map_err(|e| Error::io(scratch, "write a scratch file in", e))?;
            part.clear();
        }
        Ok(Self::Large(FileRange {
            file: Arc::new(file),
            range: 0..size,
            checksum: Some(hasher.finish()),
        }))
    }

    /// Writes all of it.
    pub fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Self::Held(bytes) => out.write_all(bytes),
            Self::Large(large) => io::copy(&mut large.reader(), out).map(drop),
        }
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        match self {
            Self::Held(bytes) => bytes.len() as u64,
            Self::Large(large) => large.size(),
        }
    }

    /// Passes a reader of all of it to `read`.
    pub(super) fn read_with<T>(&self, read: impl FnOnce(&mut dyn ReadSeek) -> T) -> T {
        match self {
            Self::Held(bytes) => read(&mut Cursor::new(bytes)),
            Self::Large(large) => read(&mut BufReader::new(large.reader())),
        }
    }

    /// About how many bytes its debug sections take where it is stored: compressed, the sections differ much,
    /// since some are compressed already.
    ///
    /// # Errors
    /// It is no code object, or its debug sections cannot be removed.
    pub fn stored_debug(&self, encoder: &mut Encoder) -> Result<u64, CodeObjectError> {
        let size = self.size();
        self.read_with(|mut source| {
            let Some(plan) = Stripped::plan(&mut source, size)? else {
                return Ok(0);
            };
            let mut total = 0;
            for section in plan.removed().iter().filter(|section| !section.is_empty()) {
                let size = section.end - section.start;
                let mut part = vec![0; SAMPLE.min(size) as usize];
                source.seek(SeekFrom::Start(section.start))?;
                source.read_exact(&mut part)?;
                let stored =
                    encoder.encode(&part, [0; 32]).map_or(0, |stored| stored.bytes.len() as u64);
                total += (u128::from(size) * u128::from(stored) / part.len() as u128) as u64;
            }
            Ok(total)
        })
    }

    /// The same without debug sections; `None` if it has none. A large one goes into a file in the directory
    /// `scratch`. `path` is the file that it is from.
    ///
    /// # Errors
    /// [`Error::Refused`] for what is no code object, or laid out as no compiler does; [`Error::Io`].
    pub fn without_debug(&self, path: &Path, scratch: &Path) -> Result<Option<Self>, Error> {
        let plan = self.read_with(|mut source| Stripped::plan(&mut source, self.size()));
        let Some(plan) = plan.map_err(|error| files::failed_code_object(path, error))? else {
            return Ok(None);
        };
        let size = plan.size();
        let write = |mut out: &mut dyn Write| {
            let written = self.read_with(|mut source| plan.write(&mut source, &mut out));
            written.map_err(|error| Error::io(path, "read", error))
        };
        if size <= LARGE_CODE_OBJECT {
            let mut bytes = Vec::with_capacity(size as usize);
            write(&mut bytes)?;
            return Ok(Some(Self::Held(bytes)));
        }
        let mut out = HashingFile {
            file: BufWriter::with_capacity(PART as usize, scratch_file(scratch)?),
            hasher: Hasher::default(),
        };
        write(&mut out)?;
        let file = out
            .file
            .into_inner()
            .map_err(|e| Error::io(scratch, "write a scratch file in", e.into_error()))?;
        Ok(Some(Self::Large(FileRange {
            file: Arc::new(file),
            range: 0..size,
            checksum: Some(out.hasher.finish()),
        })))
    }

    /// Bytes in memory, now or while it is compressed.
    pub(super) fn held(&self) -> u64 {
        match self {
            Self::Held(bytes) => bytes.len() as u64,
            Self::Large(large) if large.frame_is_held() => large.size() / 2,
            Self::Large(_) => 0,
        }
    }

    /// Its BLAKE3 digest, if that takes no more than memory. Compressing tells it in any case.
    pub(super) fn known_checksum(&self) -> Option<Blake3> {
        match self {
            Self::Held(bytes) => Some(blake3(bytes)),
            Self::Large(large) => large.checksum,
        }
    }

    /// Its BLAKE3 digest.
    pub fn checksum(&self) -> io::Result<Blake3> {
        if let Some(known) = self.known_checksum() {
            return Ok(known);
        }
        let mut hashing = HashingWriter::default();
        self.write_to(&mut hashing)?;
        Ok(hashing.0.finish())
    }

    /// Checks by its own header that it is for `target`; the error says what differs.
    pub(super) fn check(&self, target: &TargetId) -> Result<(), String> {
        match self {
            Self::Held(bytes) => files::check_code_object(bytes, target),
            Self::Large(large) => files::check_code_object_in(large.reader(), large.size(), target),
        }
    }

    /// Compresses it; `checksum` is the code object's, if it is known: no byte is hashed twice.
    pub(super) fn encode(
        &self,
        encoder: &mut Encoder,
        checksum: Option<Blake3>,
        scratch: &Path,
    ) -> Result<Stored, EncodeFailure> {
        let large = match self {
            Self::Held(bytes) => {
                let checksum = checksum.unwrap_or_else(|| blake3(bytes));
                return Ok(Stored::Held(encoder.encode(bytes, checksum)?));
            }
            Self::Large(large) => large,
        };
        let original_size = large.size();
        let mut hasher = Hasher::default();
        let mut source = HashedReader {
            source: large.reader(),
            hasher: checksum.is_none().then_some(&mut hasher),
        };
        if large.frame_is_held() {
            let mut bytes = Vec::new();
            encoder.encode_stream(&mut source, original_size, &mut bytes)?;
            return Ok(Stored::Held(Encoded {
                bytes,
                original_size,
                checksum: checksum.unwrap_or_else(|| hasher.finish()),
            }));
        }
        let mut file = scratch_file(scratch).map_err(EncodeFailure::Scratch)?;
        encoder.encode_stream(&mut source, original_size, &mut file)?;
        let size = file.stream_position().map_err(ArchiveError::Io)?;
        Ok(Stored::Large {
            frame: FileRange { file: Arc::new(file), range: 0..size, checksum: None },
            checksum: checksum.unwrap_or_else(|| hasher.finish()),
            original_size,
        })
    }
}

impl FileRange {
    /// Whether its compressed form is kept in memory: not beside a decompressor's window.
    fn frame_is_held(&self) -> bool {
        self.checksum.is_none() && self.size() <= LARGE_FRAME
    }
}

/// What can be read from any position.
pub(super) trait ReadSeek: Read + Seek {}

impl<T: Read + Seek> ReadSeek for T {}

/// A file that is hashed while it is written.
struct HashingFile {
    file: BufWriter<File>,
    hasher: Hasher,
}

impl Write for HashingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Hashes what is read, unless that was hashed before.
struct HashedReader<'a, R> {
    source: R,
    hasher: Option<&'a mut Hasher>,
}

impl<R: Read> Read for HashedReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&buffer[..read]);
        }
        Ok(read)
    }
}

/// Hashes what is written to it.
#[derive(Default)]
struct HashingWriter(Hasher);

impl Write for HashingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stored {
    /// Its size in bytes.
    pub(super) fn size(&self) -> u64 {
        match self {
            Self::Held(encoded) => encoded.bytes.len() as u64,
            Self::Large { frame, .. } => frame.size(),
        }
    }

    /// Bytes in memory.
    pub(super) fn held(&self) -> u64 {
        match self {
            Self::Held(encoded) => encoded.bytes.len() as u64,
            Self::Large { .. } => 0,
        }
    }

    /// The BLAKE3 digest of the code object.
    pub(super) fn checksum(&self) -> Blake3 {
        match self {
            Self::Held(encoded) => encoded.checksum,
            Self::Large { checksum, .. } => *checksum,
        }
    }

    /// Adds it to an archive.
    pub(super) fn add_to(
        &self,
        archive: &mut ArchiveWriter<File>,
        kernel: &str,
    ) -> Result<(), ArchiveError> {
        match self {
            Self::Held(encoded) => archive.add(kernel, encoded),
            Self::Large { frame, checksum, original_size } => {
                let mut reader = frame.reader();
                archive.add_from(kernel, &mut reader, frame.size(), *original_size, *checksum)
            }
        }
    }
}

/// Why a code object was not compressed.
pub(super) enum EncodeFailure {
    Archive(ArchiveError),
    Scratch(Error),
}

impl From<ArchiveError> for EncodeFailure {
    fn from(error: ArchiveError) -> Self {
        Self::Archive(error)
    }
}

#[cfg(test)]
mod tests {
    use kpack_format::archive::Scheme;

    use super::*;

    #[test]
    fn a_code_object_whose_sha_256_is_known_is_not_hashed_again() {
        let scratch = tempfile::tempdir().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 1000]).unwrap();
        let file = Arc::new(file);
        // Not that of these bytes.
        let known = [1; 32];
        for (size, checksum) in [(1000, None), (1000, Some(known))] {
            file.set_len(size).unwrap();
            let large = UncompressedCode::Large(FileRange {
                file: Arc::clone(&file),
                range: 0..size,
                checksum,
            });
            let mut encoder = Encoder::new(Scheme::None, 3).unwrap();
            for known in [checksum, Some(known)] {
                let stored = large.encode(&mut encoder, known, scratch.path());
                let found = stored.unwrap_or_else(|_| panic!("not stored")).checksum();
                let read = large.checksum().unwrap();
                assert_eq!(found, known.unwrap_or(read), "{size} bytes");
            }
        }
    }
}
