//! Program and section headers as plain values.
//!
//! The gABI's tables are unaligned little-endian records. Plain numbers let a plan be computed,
//! compared and printed.

use std::ops::Range;

use object::LittleEndian as LE;
use object::elf;
use object::pod;

/// Size of a program header in the file, in bytes.
pub(crate) const SEGMENT_ENTRY: u64 = size_of::<elf::ProgramHeader64<LE>>() as u64;
/// Size of a section header in the file, in bytes.
pub(crate) const SECTION_ENTRY: u64 = size_of::<elf::SectionHeader64<LE>>() as u64;

/// A program header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) kind: elf::ProgramType,
    pub(crate) flags: elf::ProgramFlags,
    pub(crate) offset: u64,
    pub(crate) vaddr: u64,
    pub(crate) paddr: u64,
    pub(crate) filesz: u64,
    pub(crate) memsz: u64,
    pub(crate) align: u64,
}

impl Segment {
    pub(crate) fn from_pod(header: &elf::ProgramHeader64<LE>) -> Self {
        Self {
            kind: header.p_type.get(LE),
            flags: header.p_flags.get(LE),
            offset: header.p_offset.get(LE),
            vaddr: header.p_vaddr.get(LE),
            paddr: header.p_paddr.get(LE),
            filesz: header.p_filesz.get(LE),
            memsz: header.p_memsz.get(LE),
            align: header.p_align.get(LE),
        }
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let header = elf::ProgramHeader64::<LE> {
            p_type: object::U32::new(LE, self.kind),
            p_flags: object::U32::new(LE, self.flags),
            p_offset: object::U64::new(LE, self.offset),
            p_vaddr: object::U64::new(LE, self.vaddr),
            p_paddr: object::U64::new(LE, self.paddr),
            p_filesz: object::U64::new(LE, self.filesz),
            p_memsz: object::U64::new(LE, self.memsz),
            p_align: object::U64::new(LE, self.align),
        };
        out.extend_from_slice(pod::bytes_of(&header));
    }

    pub(crate) fn is_load(&self) -> bool {
        self.kind == elf::PT_LOAD
    }

    /// End of the addresses loaded from the file.
    pub(crate) fn file_backed_end(&self) -> u64 {
        self.vaddr.saturating_add(self.filesz)
    }

    /// End of its bytes in the file.
    pub(crate) fn file_end(&self) -> u64 {
        self.offset.saturating_add(self.filesz)
    }

    /// Moves its start up by `by` bytes and keeps the end.
    pub(crate) fn trim_start(&mut self, by: u64) {
        self.offset += by;
        self.vaddr += by;
        self.paddr = self.paddr.wrapping_add(by);
        self.filesz -= by;
        self.memsz -= by;
    }
}

/// A section header, with its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) name: String,
    /// Offset of the name in the section header string table.
    pub(crate) name_offset: u32,
    pub(crate) kind: elf::SectionType,
    pub(crate) flags: elf::SectionFlags,
    pub(crate) addr: u64,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) link: u32,
    pub(crate) info: u32,
    pub(crate) align: u64,
    pub(crate) entsize: u64,
}

impl Section {
    /// Reads it without its name, which needs the string table.
    pub(crate) fn from_pod(header: &elf::SectionHeader64<LE>) -> Self {
        Self {
            name: String::new(),
            name_offset: header.sh_name.get(LE),
            kind: header.sh_type.get(LE),
            flags: header.sh_flags.get(LE),
            addr: header.sh_addr.get(LE),
            offset: header.sh_offset.get(LE),
            size: header.sh_size.get(LE),
            link: header.sh_link.get(LE),
            info: header.sh_info.get(LE),
            align: header.sh_addralign.get(LE),
            entsize: header.sh_entsize.get(LE),
        }
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let header = elf::SectionHeader64::<LE> {
            sh_name: object::U32::new(LE, self.name_offset),
            sh_type: object::U32::new(LE, self.kind),
            sh_flags: object::U64::new(LE, self.flags),
            sh_addr: object::U64::new(LE, self.addr),
            sh_offset: object::U64::new(LE, self.offset),
            sh_size: object::U64::new(LE, self.size),
            sh_link: object::U32::new(LE, self.link),
            sh_info: object::U32::new(LE, self.info),
            sh_addralign: object::U64::new(LE, self.align),
            sh_entsize: object::U64::new(LE, self.entsize),
        };
        out.extend_from_slice(pod::bytes_of(&header));
    }

    /// Makes it a section without contents at these addresses.
    pub(crate) fn empty(&mut self, addresses: Range<u64>) {
        self.kind = elf::SHT_NOBITS;
        self.addr = addresses.start;
        self.size = addresses.end - addresses.start;
        if self.align > 1 && !self.addr.is_multiple_of(self.align) {
            self.align = 1;
        }
    }

    /// Whether it occupies memory at run time.
    pub(crate) fn is_alloc(&self) -> bool {
        self.flags.0 & elf::SHF_ALLOC.0 != 0
    }

    /// Whether it occupies bytes of the file.
    pub(crate) fn has_bytes(&self) -> bool {
        self.kind != elf::SHT_NOBITS && self.kind != elf::SHT_NULL
    }

    /// Whether it has addresses of its own. Thread-local memory without content has none.
    pub(crate) fn occupies_memory(&self) -> bool {
        let is_tls = self.flags.0 & elf::SHF_TLS.0 != 0 && self.kind == elf::SHT_NOBITS;
        self.is_alloc() && self.size > 0 && !is_tls
    }

    /// End of its bytes in the file.
    pub(crate) fn file_end(&self) -> u64 {
        if self.has_bytes() {
            self.offset.saturating_add(self.size)
        } else {
            self.offset
        }
    }

    /// End of its addresses.
    pub(crate) fn addr_end(&self) -> u64 {
        self.addr.saturating_add(self.size)
    }
}
