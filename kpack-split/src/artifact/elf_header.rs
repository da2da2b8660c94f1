//! Tells from an ELF file's header whether it can have device code, and whether kpack could find
//! it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// What an ELF file's own header says of whether there can be device code in it.
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
        use object::LittleEndian as LE;
        use object::elf;
        let mut header = [0u8; size_of::<elf::FileHeader64<LE>>()];
        if size < header.len() as u64 {
            return Ok(Self::Foreign);
        }
        file.read_exact_at(&mut header, 0)?;
        let Ok((header, _)) = object::pod::from_bytes::<elf::FileHeader64<LE>>(&header) else {
            return Ok(Self::Foreign);
        };
        let (class, data) = (header.e_ident.class, header.e_ident.data);
        let machine = header.e_machine.get(LE);
        Ok(
            if class != elf::ELFCLASS64
                || data != elf::ELFDATA2LSB
                || !matches!(machine, elf::EM_X86_64 | elf::EM_AARCH64)
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
