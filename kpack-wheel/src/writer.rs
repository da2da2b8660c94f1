//! Writes a wheel. The same members give the same bytes, whatever the number of threads.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use time::{OffsetDateTime, PrimitiveDateTime};
use zip::System;
use zip::result::ZipError;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipArchive, ZipWriter};

use super::archive::Wheel;
use super::members::{Member, with_memory, zip_error};
use super::record::{self, Digest};
use kpack_core::Error;
use kpack_core::files::sought;
use kpack_core::parallel;
use kpack_core::platform::FileExt;
use kpack_core::publish::{Directory, scratch_file};
use kpack_split::input;
use kpack_split::source_date;

/// A wheel to write.
pub(super) struct NewWheel<'a> {
    /// Its file name.
    pub(super) name: String,
    /// The name of its RECORD.
    pub(super) record: String,
    /// Its other members.
    pub(super) items: Vec<Item<'a>>,
}

/// A member to write.
#[derive(Clone)]
pub(super) struct Item<'a> {
    pub(super) name: String,
    /// The permission bits.
    pub(super) mode: u32,
    pub(super) content: Content<'a>,
}

/// Where the bytes of a member come from.
#[derive(Clone)]
pub(super) enum Content<'a> {
    /// From another wheel, compressed as they are there.
    Copied(&'a Wheel, &'a Member, Digest),
    /// From a file, to be compressed.
    File(PathBuf),
    /// From an archive of kernels, which is compressed already.
    Archive(PathBuf),
    Bytes(Vec<u8>),
}

/// The level of compression. The library needs it to be as good as others at level 6.
const LEVEL: i64 = 9;

/// The size from which a member needs ZIP64.
const LARGE: u64 = u32::MAX as u64;

/// The time of all members: that of `SOURCE_DATE_EPOCH`, or the earliest that ZIP archives can tell.
pub(super) fn time() -> Result<DateTime, Error> {
    let time = source_date(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok())?;
    Ok(time.map_or(DateTime::DEFAULT, |time| {
        let time = PrimitiveDateTime::new(time.date(), time.time());
        DateTime::try_from(time).unwrap_or(DateTime::DEFAULT)
    }))
}

/// Writes a wheel. Intermediate files are written to the same directory. Returns its size in bytes.
pub(super) fn write(
    directory: &Directory,
    NewWheel { name, record, items }: &NewWheel<'_>,
    time: DateTime,
) -> Result<u64, Error> {
    let (path, scratch) = (&directory.path().join(name), &directory.anchor());
    let failed = |e: io::Error| Error::io(path, "write", e);
    // Without the system, a wheel that is written on Windows has no modes.
    let options = SimpleFileOptions::default().last_modified_time(time).system(System::Unix);
    let prepared = prepare(items, options, scratch)?;

    let file = directory.create_open(name.as_ref(), false).map_err(failed)?;
    let mut zip = ZipWriter::new(io::BufWriter::new(CheckedFile::new(file)));
    let broken = |error: ZipError| match error {
        ZipError::Io(error) => failed(error),
        error => zip_error(path, None, error),
    };
    let mut members = Vec::new();
    for (item, prepared) in items.iter().zip(prepared) {
        let digest = match (&item.content, prepared) {
            (Content::Copied(wheel, member, digest), _) => {
                let mode = Some(item.mode);
                wheel.raw(member, |raw| zip.raw_copy_file_touch(raw, time, mode))?;
                *digest
            }
            (Content::Archive(from), _) => {
                let archive = input::open(from)?;
                let size = archive.metadata().map_err(|e| Error::io(from, "read", e))?;
                let options = options
                    .unix_permissions(item.mode)
                    .compression_method(CompressionMethod::Stored)
                    .large_file(size.len() >= LARGE);
                zip.start_file(&item.name, options).map_err(broken)?;
                record::copy(archive, &mut zip, &|e| Error::io(from, "read", e), &failed)?
            }
            (_, Some((mut spool, digest))) => {
                let raw = spool.by_index_raw(0).map_err(broken)?;
                zip.raw_copy_file(raw).map_err(broken)?;
                digest
            }
            (Content::File(_) | Content::Bytes(_), None) => continue,
        };
        members.push((item.name.clone(), digest));
    }
    let bytes = record::to_bytes(&members, record);
    let (mut spool, _) = deflated(record, bytes.as_slice(), bytes.len() as u64, options, scratch)?;
    let raw = spool.by_index_raw(0).map_err(broken)?;
    zip.raw_copy_file(raw).map_err(broken)?;
    let output =
        zip.finish().map_err(broken)?.into_inner().map_err(|error| failed(error.into_error()))?;
    let metadata = output.close().and_then(|file| file.metadata());
    Ok(metadata.map_err(failed)?.len())
}

/// A file that keeps its first error until it is closed. `ZipWriter` finishes an archive whenever it is
/// dropped, and prints to standard error if that fails.
struct CheckedFile {
    file: File,
    position: u64,
    error: Option<io::Error>,
}

impl CheckedFile {
    fn new(file: File) -> Self {
        Self { file, position: 0, error: None }
    }

    /// The file, if all was written.
    fn close(self) -> io::Result<File> {
        self.error.map_or(Ok(self.file), Err)
    }
}

impl Write for CheckedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.error.is_none() {
            self.error = self.file.write_all_at(bytes, self.position).err();
        }
        self.position += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for CheckedFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.position = sought(&self.file, self.position, to)?;
        Ok(self.position)
    }
}

/// A member that is compressed, in its own archive, and its digest.
type Compressed = (ZipArchive<File>, Digest);

/// Compresses the members that are not compressed yet, several at once.
fn prepare(
    items: &[Item<'_>],
    options: SimpleFileOptions,
    scratch: &Path,
) -> Result<Vec<Option<Compressed>>, Error> {
    parallel::try_map(items, |item| {
        let options = options.unix_permissions(item.mode);
        match &item.content {
            Content::Copied(..) | Content::Archive(_) => Ok(None),
            Content::File(from) => {
                let file = input::open(from)?;
                let size = file.metadata().map_err(|e| Error::io(from, "read", e))?;
                deflated(&item.name, file, size.len(), options, scratch).map(Some)
            }
            Content::Bytes(bytes) => {
                let size = bytes.len() as u64;
                deflated(&item.name, bytes.as_slice(), size, options, scratch).map(Some)
            }
        }
    })
}

/// Compresses a member into its own archive, from which it can be copied.
fn deflated(
    name: &str,
    from: impl Read,
    size: u64,
    options: SimpleFileOptions,
    scratch: &Path,
) -> Result<Compressed, Error> {
    let mut zip = ZipWriter::new(CheckedFile::new(scratch_file(scratch)?));
    let failed = |error: ZipError| match error {
        ZipError::Io(error) => Error::io(scratch, "write to", error),
        error => zip_error(scratch, Some(name), error),
    };
    let options =
        options.compression_method(CompressionMethod::Deflated).compression_level(Some(LEVEL));
    let started = with_memory(|| zip.start_file(name, options.large_file(size >= LARGE)));
    started.map_err(failed)?;
    let digest =
        record::copy(from, &mut zip, &|e| Error::io(scratch, "read", e), &|e| failed(e.into()))?;
    let written = zip.finish().and_then(|output| Ok(output.close()?));
    let readable = written.and_then(ZipArchive::new);
    Ok((readable.map_err(failed)?, digest))
}
