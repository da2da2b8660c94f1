//! Relocatable objects and static libraries: their device code is split before the link, not
//! after.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use object::read::archive::ArchiveFile;
use object::read::elf::{FileHeader, SectionHeader};
use object::read::{ReadCache, ReadRef};
use object::{LittleEndian, elf};
use serde::Serialize;

use crate::Error;

/// A relocatable object or static library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unlinked {
    /// Whether it is a static library.
    pub static_library: bool,
    /// Number of members of a static library; 1 for an object.
    pub members: usize,
    /// The objects with device code in them.
    pub device_objects: Vec<DeviceObject>,
}

/// An object with device code in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceObject {
    /// Name of the member in its static library; `None` for an object in a file of its own.
    pub member: Option<String>,
    /// Size of `.hip_fatbin` in bytes.
    pub device_bytes: u64,
}

pub(super) fn inspect(path: &Path, file: File) -> Result<Unlinked, Error> {
    let cache = ReadCache::new(Noting {
        reader: BufReader::new(file),
        failed: None,
    });
    let unlinked = parse(&cache);
    match (cache.into_inner().failed, unlinked) {
        (Some(error), _) => Err(Error::io(path, "read", error)),
        (None, unlinked) => unlinked.map_err(|e| Error::refused(path, e.to_string())),
    }
}

/// A reader that keeps its first error, of which a parser tells only that there was one.
struct Noting {
    reader: BufReader<File>,
    failed: Option<io::Error>,
}

impl Noting {
    fn note<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        result.map_err(|error| {
            let kind = error.kind();
            self.failed.get_or_insert(error);
            kind.into()
        })
    }
}

impl Read for Noting {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(bytes);
        self.note(read)
    }
}

impl Seek for Noting {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = self.reader.seek(to);
        self.note(position)
    }
}

fn parse(cache: &ReadCache<Noting>) -> object::read::Result<Unlinked> {
    let mut start = [0; 8];
    let magic = cache.read_bytes_at(0, 8).unwrap_or_default();
    start[..magic.len()].copy_from_slice(magic);
    if &start != b"!<arch>\n" && &start != b"!<thin>\n" {
        let device_bytes = device_bytes(cache)?;
        let device_objects = device_bytes.map(|device_bytes| DeviceObject {
            member: None,
            device_bytes,
        });
        return Ok(Unlinked {
            static_library: false,
            members: 1,
            device_objects: device_objects.into_iter().collect(),
        });
    }

    let archive = ArchiveFile::parse(cache)?;
    let mut library = Unlinked {
        static_library: true,
        members: 0,
        device_objects: Vec::new(),
    };
    for member in archive.members() {
        let member = member?;
        library.members += 1;
        // A thin archive names its members' files, which are objects of their own.
        if archive.is_thin() {
            continue;
        }
        let (offset, size) = member.file_range();
        let range = cache.range(offset, size);
        // What is not ELF (an import list, LLVM bitcode) holds no `.hip_fatbin`.
        if let Ok(Some(device_bytes)) = device_bytes(range) {
            let name = String::from_utf8_lossy(member.name()).into_owned();
            library.device_objects.push(DeviceObject {
                member: Some(name),
                device_bytes,
            });
        }
    }
    Ok(library)
}

/// Bytes of `.hip_fatbin` of an object; `None` where it has no such section.
fn device_bytes<'a, R: ReadRef<'a>>(data: R) -> object::read::Result<Option<u64>> {
    let header = elf::FileHeader64::<LittleEndian>::parse(data)?;
    let sections = header.sections(LittleEndian, data)?;
    let found = sections.iter().filter(|section| {
        sections
            .section_name(LittleEndian, section)
            .is_ok_and(|name| name == b".hip_fatbin" || name.starts_with(b".hip_fatbin."))
    });
    let sizes: Vec<u64> = found.map(|section| section.sh_size(LittleEndian)).collect();
    Ok((!sizes.is_empty()).then(|| {
        sizes
            .iter()
            .fold(0u64, |sum, size| sum.saturating_add(*size))
    }))
}
