//! Device code in files that were compressed as a whole, with zstd or gzip.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use kpack_core::files::{START, SharedFile, first_bytes, kind_of};
use kpack_core::publish::scratch_file;
use kpack_core::{Error, ids};
use kpack_format::archive::MAX_CODE_OBJECT;
use kpack_format::digest::{Blake3, Hasher};

use super::FileKind;

/// How a file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileCompression {
    Zstd {
        /// Whether a checksum follows the content.
        checksum: bool,
    },
    Gzip,
}

/// The level of the command `zstd`, which is what most files have been compressed with.
const ZSTD_LEVEL: i32 = 3;

/// A compressed code object or bundle, of which only the first bytes were decompressed.
pub struct CompressedCode {
    compression: FileCompression,
    kind: FileKind,
    content: Box<dyn Read>,
}

impl CompressedCode {
    /// What is in a compressed file, if it is a code object or a bundle.
    ///
    /// # Errors
    /// [`Error::Refused`] for what begins like a compressed file and is damaged; [`Error::Io`].
    pub fn find(path: &Path, file: &File) -> Result<Option<Self>, Error> {
        let failed = |e| Error::io(path, "read", e);
        let mut magic = [0; 5];
        first_bytes(file, &mut magic, 0).map_err(failed)?;
        let whole = || file.try_clone().map(SharedFile::new).map_err(failed);
        let (compression, mut decoder): (_, Box<dyn Read>) =
            if magic.starts_with(&zstd::zstd_safe::MAGICNUMBER.to_le_bytes()) {
                // The frame header's descriptor (RFC 8878, section 3.1.1.1.1) says so in its third bit.
                let checksum = magic[4] & 4 != 0;
                let decoder = zstd::Decoder::new(whole()?).map_err(failed)?;
                (FileCompression::Zstd { checksum }, Box::new(decoder))
            } else if magic.starts_with(&[0x1f, 0x8b]) {
                (FileCompression::Gzip, Box::new(MultiGzDecoder::new(BufReader::new(whole()?))))
            } else {
                return Ok(None);
            };
        let mut start = Vec::new();
        let read = Read::by_ref(&mut decoder).take(START as u64).read_to_end(&mut start);
        read.map_err(|error| damaged(path, error))?;
        Ok(match kind_of(&start) {
            Some(kind @ (FileKind::CodeObject | FileKind::Bundle)) => Some(Self {
                compression,
                kind,
                content: Box::new(io::Cursor::new(start).chain(decoder)),
            }),
            _ => None,
        })
    }

    /// What it is.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    pub(crate) fn compression(&self) -> FileCompression {
        self.compression
    }

    /// The content of the file at `path`, in a nameless file in the directory `scratch`, and its size in bytes.
    ///
    /// # Errors
    /// [`Error::Refused`] for damaged or too large device code; [`Error::Io`].
    pub fn decompress(self, path: &Path, scratch: &Path) -> Result<(File, u64), Error> {
        let failed = |error| Error::io(scratch, "write a scratch file in", error);
        let mut file = scratch_file(scratch)?;
        let size = self.decompress_into(path, &mut file, failed)?;
        Ok((file, size))
    }

    /// The same, into an empty file. `failed` says why that cannot be written.
    pub(crate) fn decompress_into(
        self,
        path: &Path,
        file: &mut File,
        failed: impl Fn(io::Error) -> Error,
    ) -> Result<u64, Error> {
        let size = self.pieces(path, &mut |piece| file.write_all(piece).map_err(&failed))?;
        file.rewind().map_err(failed)?;
        Ok(size)
    }

    pub(crate) fn digest(self, path: &Path) -> Result<Blake3, Error> {
        let mut hasher = Hasher::default();
        self.pieces(path, &mut |piece| {
            hasher.update(piece);
            Ok(())
        })?;
        Ok(hasher.finish())
    }

    fn pieces(
        self,
        path: &Path,
        each: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        let (mut content, mut buffer) = (self.content, vec![0; 1 << 16]);
        let mut size = 0;
        loop {
            let read = content.read(&mut buffer).map_err(|error| damaged(path, error))?;
            if read == 0 {
                return Ok(size);
            }
            size += read as u64;
            if size > MAX_CODE_OBJECT {
                let text =
                    format!("more than {MAX_CODE_OBJECT} bytes of device code, decompressed");
                return Err(Error::rejected(ids::DAMAGED_DATABASE_FILE, path, text));
            }
            each(&buffer[..read])?;
        }
    }
}

impl std::fmt::Debug for CompressedCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompressedCode").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl FileCompression {
    /// Compresses `input` into the empty file `output`. Returns the digest of `input`.
    pub(crate) fn compress(self, mut input: &File, output: &File) -> io::Result<Blake3> {
        let size = input.metadata()?.len();
        input.rewind()?;
        let output = BufWriter::new(output);
        match self {
            Self::Zstd { checksum } => {
                let mut encoder = zstd::Encoder::new(output, ZSTD_LEVEL)?;
                encoder.set_pledged_src_size(Some(size))?;
                encoder.include_checksum(checksum)?;
                let digest = copy(input, &mut encoder)?;
                encoder.finish()?.flush()?;
                Ok(digest)
            }
            Self::Gzip => {
                let mut encoder = GzEncoder::new(output, flate2::Compression::default());
                let digest = copy(input, &mut encoder)?;
                encoder.finish()?.flush()?;
                Ok(digest)
            }
        }
    }
}

fn copy(mut from: &File, to: &mut impl Write) -> io::Result<Blake3> {
    let (mut hasher, mut buffer) = (Hasher::default(), vec![0; 1 << 16]);
    loop {
        let read = from.read(&mut buffer)?;
        if read == 0 {
            return Ok(hasher.finish());
        }
        hasher.update(&buffer[..read]);
        to.write_all(&buffer[..read])?;
    }
}

/// The error of a decompressor. It reports damage as one without an error number.
fn damaged(path: &Path, error: io::Error) -> Error {
    if error.raw_os_error().is_some() || error.kind() == io::ErrorKind::OutOfMemory {
        return Error::io(path, "read", error);
    }
    let text = format!("damaged: it cannot be decompressed: {error}");
    Error::rejected(ids::DAMAGED_DATABASE_FILE, path, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_read_is_no_damage() {
        let path = Path::new("a.co.gz");
        let failed = damaged(path, io::Error::from_raw_os_error(5));
        assert!(matches!(failed, Error::Io { .. }), "{failed}");
        let mut content = Vec::new();
        let broken = MultiGzDecoder::new(&b"no gzip"[..]).read_to_end(&mut content).unwrap_err();
        assert!(matches!(damaged(path, broken), Error::Refused { .. }));
    }
}
