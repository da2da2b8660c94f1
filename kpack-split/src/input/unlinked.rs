//! Reads relocatable objects and static libraries, whose device code is split before the link.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use kpack_core::elf::DeviceSection;
use kpack_core::platform::FileExt;

use kpack_format::offload_binary::{self, OffloadImage};
use object::read::archive::ArchiveFile;
use object::read::elf::{FileHeader, SectionHeader};
use object::read::{ReadCache, ReadRef};
use object::{LittleEndian, elf};

use crate::{Error, ids};

/// A relocatable object or static library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unlinked {
    /// Whether it is a static library.
    pub static_library: bool,
    /// Whether it is a thin archive, whose members are files of their own, which are not read.
    pub thin: bool,
    /// Number of members of a static library; 1 for an object.
    pub members: usize,
    /// The objects with device code.
    pub device_objects: Vec<DeviceObject>,
}

/// An object with device code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceObject {
    /// Name of the member in its static library; `None` for an object in its own file.
    pub member: Option<String>,
    /// Size of its device code in bytes, without images for other runtimes than HIP.
    pub device_bytes: u64,
    /// Whether it has wrappers for its device code. With `-fgpu-rdc` that is for a device link, or the wrappers are
    /// in other objects, and only the host's linker knows what belongs together.
    pub has_wrappers: bool,
    /// Its images in LLVM's format, for any offloading runtime.
    pub images: Vec<OffloadImage>,
}

/// Reads an object or static library.
///
/// # Errors
/// [`Error::Refused`] if it is damaged; [`Error::Io`].
pub fn read(path: &Path, file: &File) -> Result<Unlinked, Error> {
    let cache = ReadCache::new(ErrorKeeper { reader: BufReader::new(file), failed: None });
    let unlinked = parse(&cache);
    match (cache.into_inner().failed, unlinked) {
        (Some(error), _) => Err(Error::io(path, "read", error)),
        (None, unlinked) => unlinked.map_err(|e| {
            let id =
                if is_unsupported(file) { ids::UNSUPPORTED_BINARY } else { ids::DAMAGED_BINARY };
            Error::rejected(id, path, e.to_string())
        }),
    }
}

/// Whether it begins as an ELF file of another class or byte order.
fn is_unsupported(file: &File) -> bool {
    let mut start = [0; 6];
    let is_read = file.read_exact_at(&mut start, 0).is_ok();
    let expected = (elf::ELFCLASS64.0, elf::ELFDATA2LSB.0);
    is_read && start.starts_with(&elf::ELFMAG) && (start[4], start[5]) != expected
}

/// A reader that keeps its first error, because the parser drops the details.
struct ErrorKeeper<'a> {
    reader: BufReader<&'a File>,
    failed: Option<io::Error>,
}

impl ErrorKeeper<'_> {
    fn note<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        result.map_err(|error| {
            let kind = error.kind();
            self.failed.get_or_insert(error);
            kind.into()
        })
    }
}

impl Read for ErrorKeeper<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(bytes);
        self.note(read)
    }
}

impl Seek for ErrorKeeper<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = self.reader.seek(to);
        self.note(position)
    }
}

fn parse(cache: &ReadCache<ErrorKeeper<'_>>) -> object::read::Result<Unlinked> {
    let mut start = [0; 8];
    let magic = cache.read_bytes_at(0, 8).unwrap_or_default();
    start[..magic.len()].copy_from_slice(magic);
    if &start != b"!<arch>\n" && &start != b"!<thin>\n" {
        let device_objects = device_object(cache, None)?;
        return Ok(Unlinked {
            static_library: false,
            thin: false,
            members: 1,
            device_objects: device_objects.into_iter().collect(),
        });
    }

    let archive = ArchiveFile::parse(cache)?;
    let mut library = Unlinked {
        static_library: true,
        thin: archive.is_thin(),
        members: 0,
        device_objects: Vec::new(),
    };
    for member in archive.members() {
        let member = member?;
        library.members += 1;
        // The members of a thin archive are separate files.
        if archive.is_thin() {
            continue;
        }
        let (offset, size) = member.file_range();
        let range = cache.range(offset, size);
        // Members that are not ELF (an import list, LLVM bitcode) have no `.hip_fatbin`.
        let name = String::from_utf8_lossy(member.name()).into_owned();
        if let Ok(found) = device_object(range, Some(name)) {
            library.device_objects.extend(found);
        }
    }
    Ok(library)
}

/// The device code of an object; `None` if it has none.
fn device_object<'a, R: ReadRef<'a>>(
    data: R,
    member: Option<String>,
) -> object::read::Result<Option<DeviceObject>> {
    let header = elf::FileHeader64::<LittleEndian>::parse(data)?;
    let sections = header.sections(LittleEndian, data)?;
    let mut device_bytes: Option<u64> = None;
    let mut has_wrappers = false;
    let mut is_for_device_link = false;
    let mut images = Vec::new();
    for section in sections.iter() {
        let name = sections.section_name(LittleEndian, section).unwrap_or_default();
        match DeviceSection::of(name, section.sh_type(LittleEndian)) {
            None => continue,
            Some(DeviceSection::Wrappers) => {
                has_wrappers = true;
                continue;
            }
            Some(DeviceSection::Bundles) => {}
            Some(DeviceSection::ForDeviceLink) => is_for_device_link = true,
            Some(DeviceSection::ForLinkerWrapper) => {
                let start = section.sh_offset(LittleEndian);
                // Of damaged ones, only the size is told.
                let found =
                    offload_binary::read(section.sh_size(LittleEndian), &mut |at, buffer| {
                        let bytes =
                            data.read_bytes_at(start.saturating_add(at), buffer.len() as u64);
                        buffer.copy_from_slice(bytes.map_err(|()| io::ErrorKind::UnexpectedEof)?);
                        Ok(())
                    });
                let found = found.unwrap_or_default();
                let may_be_hip = offload_binary::may_be_hip(&found);
                images.extend(found);
                if !may_be_hip {
                    device_bytes.get_or_insert(0);
                    continue;
                }
                is_for_device_link = true;
            }
        }
        let more = section.sh_size(LittleEndian);
        device_bytes = Some(device_bytes.unwrap_or(0).saturating_add(more));
    }
    Ok(device_bytes.map(|device_bytes| DeviceObject {
        member,
        device_bytes,
        has_wrappers: has_wrappers && !is_for_device_link,
        images,
    }))
}
