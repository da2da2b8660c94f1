//! Reads an AMDGPU code object's target and size from its headers, and its kernels from its metadata.

mod metadata;

use std::fmt;
use std::io::{Read, Seek, SeekFrom};

use object::LittleEndian as LE;
use object::elf;
use object::pod;

use crate::TargetId;

pub use metadata::{kernel_names, metadata_end};

/// Maximum number of section or program headers; real code objects have dozens.
const MOST_HEADERS: u64 = 65_535;

/// The properties of a code object in its ELF header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeObject {
    /// Its target; `None` if this version does not know the processor.
    pub target: Option<TargetId>,
    /// The raw `e_flags`.
    pub flags: u32,
    /// The ELF ABI version (`e_ident[EI_ABIVERSION]`): 2 for code object version 4, 3 for version
    /// 5.
    pub abi_version: u8,
    /// Size of the ELF file in bytes, computed from its headers.
    pub size: u64,
}

/// Why bytes are not an AMDGPU code object.
#[derive(Debug)]
#[non_exhaustive]
pub enum CodeObjectError {
    /// Reading failed.
    Io(std::io::Error),
    /// The bytes are not a code object; the text says what was expected and what was found.
    Malformed(String),
    /// The code object is for another target than expected.
    OtherTarget {
        /// Its target.
        found: TargetId,
        /// Its raw `e_flags`.
        flags: u32,
    },
    /// The code object is sound, but laid out in a way that debug sections cannot be removed from; the
    /// text says what it has.
    Unsupported(String),
}

impl fmt::Display for CodeObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Malformed(reason) => write!(f, "not an AMDGPU code object: {reason}"),
            Self::OtherTarget { found, flags } => {
                write!(f, "its ELF header is for {found} (e_flags {flags:#x})")
            }
            Self::Unsupported(reason) => {
                write!(f, "the debug sections cannot be removed: {reason}")
            }
        }
    }
}

crate::wraps_io!(CodeObjectError);

impl CodeObject {
    /// Reads the headers of the code object at the current position of `source`, of which
    /// `available` bytes may be used.
    pub fn read<R: Read + Seek>(source: &mut R, available: u64) -> Result<Self, CodeObjectError> {
        let start = source.stream_position()?;
        if available < HEADER_SIZE {
            return malformed(format!("has {available} bytes; an ELF header has {HEADER_SIZE}"));
        }
        let mut bytes = [0; HEADER_SIZE as usize];
        source.read_exact(&mut bytes)?;
        let (header, this) = Self::head(&bytes, available)?;
        let size = extent(source, start, available, &header)?;
        Ok(Self { size, ..this })
    }

    /// Reads only the ELF header: the first bytes of a code object of `size` bytes.
    ///
    /// # Errors
    /// [`CodeObjectError::Malformed`].
    pub fn read_head(bytes: &[u8], size: u64) -> Result<Self, CodeObjectError> {
        Ok(Self::head(bytes, size)?.1)
    }

    fn head(bytes: &[u8], size: u64) -> Result<(elf::FileHeader64<LE>, Self), CodeObjectError> {
        let header = match pod::from_bytes::<elf::FileHeader64<LE>>(bytes) {
            Ok((header, _)) => header,
            Err(()) => return malformed("the header cannot be read"),
        };
        if header.e_ident.magic != elf::ELFMAG {
            return malformed(format!(
                "starts with {:02x?}; expected 7f 45 4c 46",
                header.e_ident.magic
            ));
        }
        let (class, data) = (header.e_ident.class, header.e_ident.data);
        if class != elf::ELFCLASS64 || data != elf::ELFDATA2LSB {
            return malformed(format!(
                "expected a 64-bit little-endian ELF file (class 2, data 1), found class {}, data {}",
                class.0, data.0
            ));
        }
        let machine = header.e_machine.get(LE);
        if machine != elf::EM_AMDGPU {
            return malformed(format!("expected machine EM_AMDGPU (224), found {}", machine.0));
        }
        let flags = header.e_flags.get(LE).0;
        let abi_version = header.e_ident.abi_version;
        let this = Self { target: target(flags, abi_version), flags, abi_version, size };
        Ok((*header, this))
    }

    /// Whether this is a code object for `expected`: the same processor and, from code object
    /// version 4 on, the same features (older headers do not store them). An unknown processor agrees
    /// with all. The error says what it is for instead.
    ///
    /// # Errors
    /// [`CodeObjectError::OtherTarget`].
    pub fn check_target(&self, expected: &TargetId) -> Result<(), CodeObjectError> {
        let agrees = |own: &TargetId| {
            let tells_features = self.abi_version >= FIRST_WITH_FEATURES;
            own == expected || !tells_features && own.processor() == expected.processor()
        };
        match &self.target {
            Some(own) if !agrees(own) => {
                Err(CodeObjectError::OtherTarget { found: own.clone(), flags: self.flags })
            }
            _ => Ok(()),
        }
    }
}

/// Size of the ELF header that [`CodeObject::read_head`] needs, in bytes.
pub const HEAD_SIZE: usize = HEADER_SIZE as usize;
/// The ABI version of code object version 4, the first that stores the sign of features.
const FIRST_WITH_FEATURES: u8 = 2;
const HEADER_SIZE: u64 = size_of::<elf::FileHeader64<LE>>() as u64;

fn malformed<T>(reason: impl Into<String>) -> Result<T, CodeObjectError> {
    Err(CodeObjectError::Malformed(reason.into()))
}

/// Where the file ends: the last of its header tables, sections and segments.
fn extent<R: Read + Seek>(
    source: &mut R,
    start: u64,
    available: u64,
    header: &elf::FileHeader64<LE>,
) -> Result<u64, CodeObjectError> {
    let mut end = u64::from(header.e_ehsize.get(LE)).max(HEADER_SIZE);
    if end > available {
        return malformed(format!("truncated: its header says {end} bytes, found {available}"));
    }
    let tables = [
        (
            "section header",
            header.e_shoff.get(LE),
            header.e_shnum.get(LE),
            header.e_shentsize.get(LE),
            64,
        ),
        (
            "program header",
            header.e_phoff.get(LE),
            header.e_phnum.get(LE),
            header.e_phentsize.get(LE),
            56,
        ),
    ];
    for (what, offset, count, entry, expected) in tables {
        if offset == 0 || count == 0 {
            continue;
        }
        if entry != expected {
            return malformed(format!("the {what}s have {entry} bytes each; expected {expected}"));
        }
        let size = u64::from(count).min(MOST_HEADERS) * u64::from(entry);
        let table_end = within(available, offset, size, &format!("{what} table"))?;
        source.seek(SeekFrom::Start(start + offset))?;
        let mut table = vec![0; size as usize];
        source.read_exact(&mut table)?;
        end = end.max(table_end);
        for (index, record) in table.chunks_exact(usize::from(entry)).enumerate() {
            let (offset, size) = match expected {
                64 => section_extent(record),
                _ => segment_extent(record),
            };
            if size > 0 {
                let what = format!("content of {what} {index}");
                end = end.max(within(available, offset, size, &what)?);
            }
        }
    }
    Ok(end)
}

fn within(available: u64, offset: u64, size: u64, what: &str) -> Result<u64, CodeObjectError> {
    match offset.checked_add(size).filter(|end| *end <= available) {
        Some(end) => Ok(end),
        None => malformed(format!(
            "the {what} ({size:#x} bytes at offset {offset:#x}) ends past the end ({available:#x})"
        )),
    }
}

/// Offset and size in the file.
fn section_extent(record: &[u8]) -> (u64, u64) {
    pod::from_bytes::<elf::SectionHeader64<LE>>(record).map_or((0, 0), |(section, _)| {
        let size = match section.sh_type.get(LE) {
            elf::SHT_NOBITS | elf::SHT_NULL => 0,
            _ => section.sh_size.get(LE),
        };
        (section.sh_offset.get(LE), size)
    })
}

/// Offset and size in the file.
fn segment_extent(record: &[u8]) -> (u64, u64) {
    pod::from_bytes::<elf::ProgramHeader64<LE>>(record)
        .map_or((0, 0), |(segment, _)| (segment.p_offset.get(LE), segment.p_filesz.get(LE)))
}

/// The target in `e_flags` (LLVM, "User Guide for AMDGPU Backend", "ELF Header").
fn target(flags: u32, abi_version: u8) -> Option<TargetId> {
    let mach = flags & 0xff;
    let (_, processor) = PROCESSORS.iter().find(|(value, _)| *value == mach)?;
    let mut features = Vec::new();
    // Code object v4 and later have two bits for each feature: 0 unsupported, 1 any, 2 off, 3 on.
    // In v3, one bit cannot tell off from any.
    if abi_version >= FIRST_WITH_FEATURES {
        for (name, shift) in [("sramecc", 10), ("xnack", 8)] {
            match flags >> shift & 3 {
                2 => features.push((name, false)),
                3 => features.push((name, true)),
                _ => {}
            }
        }
    }
    Some(TargetId::new(processor, &features))
}

/// The names of the known processors, such as `gfx90a`.
pub fn processors() -> impl Iterator<Item = &'static str> {
    PROCESSORS.iter().map(|(_, name)| *name)
}

/// `EF_AMDGPU_MACH`, by value (LLVM, "User Guide for AMDGPU Backend", "AMDGPU ELF Header e_flags").
#[rustfmt::skip]
const PROCESSORS: &[(u32, &str)] = &[
    (0x20, "gfx600"), (0x21, "gfx601"), (0x22, "gfx700"), (0x23, "gfx701"), (0x24, "gfx702"),
    (0x25, "gfx703"), (0x26, "gfx704"), (0x28, "gfx801"), (0x29, "gfx802"), (0x2a, "gfx803"),
    (0x2b, "gfx810"), (0x2c, "gfx900"), (0x2d, "gfx902"), (0x2e, "gfx904"), (0x2f, "gfx906"),
    (0x30, "gfx908"), (0x31, "gfx909"), (0x32, "gfx90c"), (0x33, "gfx1010"), (0x34, "gfx1011"),
    (0x35, "gfx1012"), (0x36, "gfx1030"), (0x37, "gfx1031"), (0x38, "gfx1032"), (0x39, "gfx1033"),
    (0x3a, "gfx602"), (0x3b, "gfx705"), (0x3c, "gfx805"), (0x3d, "gfx1035"), (0x3e, "gfx1034"),
    (0x3f, "gfx90a"), (0x40, "gfx940"), (0x41, "gfx1100"), (0x42, "gfx1013"), (0x43, "gfx1150"),
    (0x44, "gfx1103"), (0x45, "gfx1036"), (0x46, "gfx1101"), (0x47, "gfx1102"), (0x48, "gfx1200"),
    (0x49, "gfx1250"), (0x4a, "gfx1151"), (0x4b, "gfx941"), (0x4c, "gfx942"), (0x4e, "gfx1201"),
    (0x4f, "gfx950"), (0x50, "gfx1310"), (0x51, "gfx9-generic"), (0x52, "gfx10-1-generic"),
    (0x53, "gfx10-3-generic"), (0x54, "gfx11-generic"), (0x55, "gfx1152"), (0x58, "gfx1153"),
    (0x59, "gfx12-generic"), (0x5a, "gfx1251"), (0x5b, "gfx12-5-generic"), (0x5c, "gfx1172"),
    (0x5d, "gfx1170"), (0x5e, "gfx1171"), (0x5f, "gfx9-4-generic"), (0x62, "gfx11-7-generic"),
    (0x63, "gfx13-generic"), (0xeb, "gfx1250-strict"),
];
