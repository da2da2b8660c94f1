//! Recognises binaries that kpack cannot split: files for other hosts, ELF files without section headers, and objects
//! for Windows.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use kpack_core::platform::FileExt;

use kpack_core::files::HostFormat;
use kpack_split::elf::{BinaryError, Machine};
use kpack_split::pe;
use object::read::{File as Object, FileKind, ReadCache};
use object::{LittleEndian as LE, Object as _, ObjectSection as _, elf};

/// What the header of a linked file says of whether there can be device code in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Headers {
    /// It is of a class or machine that no host of a GPU is.
    Foreign,
    /// Its section headers were stripped.
    WithoutSections,
    Readable,
}

impl Headers {
    /// Reads the header of a file of `size` bytes.
    pub(super) fn read(file: &File, size: u64) -> io::Result<Self> {
        let mut header = [0u8; size_of::<elf::FileHeader64<LE>>()];
        if size < header.len() as u64 {
            return Ok(Self::Foreign);
        }
        file.read_exact_at(&mut header, 0)?;
        if HostFormat::of(&header) == Some(HostFormat::Pe) {
            return Self::of_pe(file);
        }
        let Ok((header, _)) = object::pod::from_bytes::<elf::FileHeader64<LE>>(&header) else {
            return Ok(Self::Foreign);
        };
        let (class, data) = (header.e_ident.class, header.e_ident.data);
        let machine = header.e_machine.get(LE);
        Ok(
            if class != elf::ELFCLASS64
                || data != elf::ELFDATA2LSB
                || Machine::of(machine).is_none()
            {
                Self::Foreign
            } else if header.e_shoff.get(LE) == 0 {
                Self::WithoutSections
            } else {
                Self::Readable
            },
        )
    }
}

impl Headers {
    /// Of a PE file.
    fn of_pe(file: &File) -> io::Result<Self> {
        Ok(match pe::Image::read(file) {
            Err(BinaryError::Io(error)) if error.kind() != io::ErrorKind::UnexpectedEof => {
                return Err(error);
            }
            Err(BinaryError::Unsupported(_)) => Self::Foreign,
            _ => Self::Readable,
        })
    }
}

/// Names of sections with device code: `.hip_fatbin` in objects and where the linker keeps long
/// names, `.hip_fat` where it cuts them to eight bytes.
const SECTION: &str = ".hip_fat";

/// The section of a PE/COFF image or object that holds device code, if any; `None` for other files.
pub(super) fn device_section(file: &File) -> io::Result<Option<String>> {
    let size = file.metadata()?.len();
    let failed = Cell::new(None);
    let found = section_in(size, &ReadCache::new(Reader { file, failed: &failed }));
    failed.take().map_or(Ok(found), Err)
}

/// To the cache, any failed read is the end of the file, so this remembers why it failed.
struct Reader<'f> {
    file: &'f File,
    failed: &'f Cell<Option<io::Error>>,
}

impl Read for Reader<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.file.read(bytes).inspect_err(|error| {
            if error.kind() != io::ErrorKind::Interrupted {
                self.failed.set(error.raw_os_error().map(io::Error::from_raw_os_error));
            }
        })
    }
}

impl Seek for Reader<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

fn section_in(size: u64, cache: &ReadCache<Reader<'_>>) -> Option<String> {
    let kind = FileKind::parse(cache);
    let is_pe =
        matches!(kind, Ok(FileKind::Pe32 | FileKind::Pe64 | FileKind::Coff | FileKind::CoffBig));
    if size == 0 || !is_pe {
        return None;
    }
    let object = Object::parse(cache).ok()?;
    object.sections().find_map(|section| {
        let name = section.name().ok()?;
        name.starts_with(SECTION).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.obj");
        std::fs::write(&path, [0; 64]).unwrap();
        assert!(device_section(&File::open(&path).unwrap()).unwrap().is_none());
        // It is not open for reading.
        let file = File::options().write(true).open(&path).unwrap();
        device_section(&file).unwrap_err();
    }
}
