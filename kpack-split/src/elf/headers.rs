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
pub struct Segment {
    /// `p_type`.
    pub kind: elf::ProgramType,
    /// `p_flags`.
    pub flags: elf::ProgramFlags,
    /// `p_offset`.
    pub offset: u64,
    /// `p_vaddr`.
    pub vaddr: u64,
    /// `p_paddr`.
    pub paddr: u64,
    /// `p_filesz`.
    pub filesz: u64,
    /// `p_memsz`.
    pub memsz: u64,
    /// `p_align`.
    pub align: u64,
}

impl Segment {
    /// Reads it.
    pub fn from_pod(header: &elf::ProgramHeader64<LE>) -> Self {
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

    /// Appends it to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
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

    /// Whether it is a PT_LOAD.
    pub fn is_load(&self) -> bool {
        self.kind == elf::PT_LOAD
    }

    /// Whether it names content of its own.
    pub(crate) fn is_content(&self) -> bool {
        let is_range = matches!(self.kind, elf::PT_LOAD | elf::PT_GNU_RELRO | elf::PT_TLS);
        self.filesz > 0 && !is_range
    }

    /// End of the addresses loaded from the file.
    pub fn file_backed_end(&self) -> u64 {
        self.vaddr.saturating_add(self.filesz)
    }

    /// End of its bytes in the file.
    pub fn file_end(&self) -> u64 {
        self.offset.saturating_add(self.filesz)
    }

    /// Moves its start up by `by` bytes and keeps the end.
    pub fn trim_start(&mut self, by: u64) {
        self.offset += by;
        self.vaddr += by;
        self.paddr = self.paddr.wrapping_add(by);
        self.filesz -= by;
        self.memsz -= by;
    }
}

/// A section header, with its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// The name.
    pub name: String,
    /// Offset of the name in the section header string table.
    pub name_offset: u32,
    /// `sh_type`.
    pub kind: elf::SectionType,
    /// `sh_flags`.
    pub flags: elf::SectionFlags,
    /// `sh_addr`.
    pub addr: u64,
    /// `sh_offset`.
    pub offset: u64,
    /// `sh_size`.
    pub size: u64,
    /// `sh_link`.
    pub link: u32,
    /// `sh_info`.
    pub info: u32,
    /// `sh_addralign`.
    pub align: u64,
    /// `sh_entsize`.
    pub entsize: u64,
}

impl Section {
    /// Reads it without its name, which needs the string table.
    pub fn from_pod(header: &elf::SectionHeader64<LE>) -> Self {
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

    /// Appends it to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
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
    pub fn empty(&mut self, addresses: Range<u64>) {
        self.kind = elf::SHT_NOBITS;
        self.addr = addresses.start;
        self.size = addresses.end - addresses.start;
        if self.align > 1 && !self.addr.is_multiple_of(self.align) {
            self.align = 1;
        }
    }

    /// Whether it occupies memory at run time.
    pub fn is_alloc(&self) -> bool {
        self.flags.0 & elf::SHF_ALLOC.0 != 0
    }

    /// Whether it occupies bytes of the file.
    pub fn has_bytes(&self) -> bool {
        self.kind != elf::SHT_NOBITS && self.kind != elf::SHT_NULL
    }

    /// Whether it has addresses of its own. Thread-local memory without content has none.
    pub fn occupies_memory(&self) -> bool {
        let is_tls = self.flags.0 & elf::SHF_TLS.0 != 0 && self.kind == elf::SHT_NOBITS;
        self.is_alloc() && self.size > 0 && !is_tls
    }

    /// End of its bytes in the file.
    pub fn file_end(&self) -> u64 {
        if self.has_bytes() { self.offset.saturating_add(self.size) } else { self.offset }
    }

    /// End of its addresses.
    pub fn addr_end(&self) -> u64 {
        self.addr.saturating_add(self.size)
    }
}
