//! A code object on its way into an archive: in memory, or if large, in a nameless file.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use kpack_format::TargetId;
use kpack_format::archive::{ArchiveError, ArchiveWriter, Encoded, Encoder, MAX_CODE_OBJECT};
use kpack_format::digest::{Hasher, Sha256, sha256};
use kpack_format::offload_bundle::{BundleError, CodeObjectReader};

use crate::Error;
use crate::files;
use crate::publish::scratch_file;

/// Code objects larger than this, in bytes, are not kept in memory. Those of real libraries are
/// smaller.
pub const LARGE_CODE_OBJECT: u64 = 64 << 20;
/// Bytes of a large code object that are kept in memory at a time.
const PART: u64 = 1 << 20;

/// An uncompressed code object.
pub enum Content {
    /// In memory.
    Held(Vec<u8>),
    /// In a file of its own.
    Spooled(Spooled),
}

/// A file that holds a large code object, uncompressed or compressed.
pub struct Spooled {
    file: File,
    size: u64,
    checksum: Sha256,
}

/// A code object as it is stored.
pub(super) enum Stored {
    Held(Encoded),
    Spooled { stored: Spooled, original_size: u64 },
}

impl Content {
    /// Reads a code object; a large one goes into a file in the directory `scratch`. `failed` adds
    /// the location to an error.
    ///
    /// # Errors
    /// [`Error::Refused`], before reading, for one that is too large for any reader.
    pub(super) fn read<R: Read + Seek>(
        mut entry: CodeObjectReader<'_, R>,
        scratch: &Path,
        failed: &dyn Fn(BundleError) -> Error,
    ) -> Result<Self, Error> {
        let size = entry.size();
        if size > MAX_CODE_OBJECT {
            let targets: Vec<String> = entry.targets().map(TargetId::to_string).collect();
            return Err(failed(BundleError::Malformed {
                offset: entry.offset(),
                reason: format!(
                    "the code object for {} has {size} bytes; expected at most {MAX_CODE_OBJECT}",
                    targets.join(", ")
                ),
            }));
        }
        if size <= LARGE_CODE_OBJECT {
            return Ok(Self::Held(entry.read().map_err(failed)?));
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
        let checksum = hasher.finish();
        Ok(Self::Spooled(Spooled {
            file,
            size,
            checksum,
        }))
    }

    /// A copy.
    pub(super) fn copy(&self, scratch: &Path) -> Result<Self, Error> {
        Ok(match self {
            Self::Held(bytes) => Self::Held(bytes.clone()),
            Self::Spooled(spooled) => {
                let mut file = scratch_file(scratch)?;
                self.write_to(&mut file)
                    .map_err(|e| Error::io(scratch, "write a scratch file in", e))?;
                Self::Spooled(Spooled { file, ..*spooled })
            }
        })
    }

    /// Writes all of it.
    pub fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Self::Held(bytes) => out.write_all(bytes),
            Self::Spooled(spooled) => {
                let mut from = &spooled.file;
                from.rewind()?;
                io::copy(&mut from, out).map(drop)
            }
        }
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        match self {
            Self::Held(bytes) => bytes.len() as u64,
            Self::Spooled(spooled) => spooled.size,
        }
    }

    /// Bytes in memory.
    pub(super) fn held(&self) -> u64 {
        match self {
            Self::Held(bytes) => bytes.len() as u64,
            Self::Spooled(_) => 0,
        }
    }

    /// Its SHA-256.
    pub(super) fn checksum(&self) -> Sha256 {
        match self {
            Self::Held(bytes) => sha256(bytes),
            Self::Spooled(spooled) => spooled.checksum,
        }
    }

    /// Checks by its own header that it is for `target`; the error says what differs.
    pub(super) fn check(&self, target: &TargetId) -> Result<(), String> {
        match self {
            Self::Held(bytes) => files::check_code_object(bytes, target),
            Self::Spooled(Spooled { file, size, .. }) => {
                let mut file = file;
                file.rewind().map_err(|e| e.to_string())?;
                files::check_code_object_file(file, *size, target)
            }
        }
    }

    /// Compresses it; `checksum` is the code object's.
    pub(super) fn encode(
        &self,
        encoder: &mut Encoder,
        checksum: Sha256,
        scratch: &Path,
    ) -> Result<Stored, Failure> {
        let spooled = match self {
            Self::Held(bytes) => return Ok(Stored::Held(encoder.encode(bytes, checksum)?)),
            Self::Spooled(spooled) => spooled,
        };
        let mut from = &spooled.file;
        from.rewind().map_err(ArchiveError::Io)?;
        let mut file = scratch_file(scratch).map_err(Failure::Scratch)?;
        encoder.encode_stream(&mut from, spooled.size, &mut file)?;
        let size = file.stream_position().map_err(ArchiveError::Io)?;
        let stored = Spooled {
            file,
            size,
            checksum,
        };
        let original_size = spooled.size;
        Ok(Stored::Spooled {
            stored,
            original_size,
        })
    }
}

impl Stored {
    /// Its size in bytes.
    pub(super) fn size(&self) -> u64 {
        match self {
            Self::Held(encoded) => encoded.bytes.len() as u64,
            Self::Spooled { stored, .. } => stored.size,
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
            Self::Spooled {
                stored,
                original_size,
            } => {
                let mut file = &stored.file;
                file.rewind()?;
                let (size, checksum) = (stored.size, stored.checksum);
                archive.add_from(kernel, &mut file, size, *original_size, checksum)
            }
        }
    }
}

/// Why a code object was not compressed.
pub(super) enum Failure {
    Archive(ArchiveError),
    Scratch(Error),
}

impl From<ArchiveError> for Failure {
    fn from(error: ArchiveError) -> Self {
        Self::Archive(error)
    }
}
