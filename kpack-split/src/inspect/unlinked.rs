//! Relocatable objects and static libraries: their device code is split before the link, not
//! after.

use std::fs::File;
use std::io::BufReader;
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
    let cache = ReadCache::new(BufReader::new(file));
    let damaged = |e: object::read::Error| Error::refused(path, e.to_string());
    let mut start = [0; 8];
    let magic = (&cache).read_bytes_at(0, 8).unwrap_or_default();
    start[..magic.len()].copy_from_slice(magic);
    if &start != b"!<arch>\n" && &start != b"!<thin>\n" {
        let device_bytes = device_bytes(&cache).map_err(damaged)?;
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

    let archive = ArchiveFile::parse(&cache).map_err(damaged)?;
    let mut library = Unlinked {
        static_library: true,
        members: 0,
        device_objects: Vec::new(),
    };
    for member in archive.members() {
        let member = member.map_err(damaged)?;
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
