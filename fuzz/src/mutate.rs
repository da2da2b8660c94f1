//! Changes single fields of ELF and PE files: a change of any byte is most often one of code or padding.

/// The largest table whose every field is as likely as another's.
const MAX_TABLE: usize = 1 << 16;

/// A table of records in the file: where it begins, and its size in bytes.
type Table = (usize, usize);

/// Changes a field of the header, of a table of headers, or of a section that has pointers. `None`
/// where bytes should be changed instead: in half of the cases, and where it is neither an ELF nor a PE file.
pub(crate) fn field(bytes: &mut [u8], seed: u32) -> Option<()> {
    let mut random = fastrand::Rng::with_seed(seed.into());
    if random.bool() {
        return None;
    }
    let mut tables = match &*bytes {
        [0x7f, b'E', b'L', b'F', 2, 1, ..] => elf_tables(bytes)?,
        [b'M', b'Z', ..] => pe_tables(bytes)?,
        _ => return None,
    };
    tables.retain(|(at, size)| {
        let end = at.checked_add(*size);
        (8..=MAX_TABLE).contains(size) && end.is_some_and(|end| end <= bytes.len())
    });
    let (at, size) = random.choice(tables)?;
    let width = random.choice([8, 4, 2])?;
    let fields = (size / width).max(1);
    let field = at + random.usize(..fields) * width;
    let other = at + random.usize(..fields) * width;
    let old = number(bytes, field, width)?;
    let value = match random.usize(..7) {
        0 => 0,
        1 => u64::MAX >> random.usize(..64),
        2 => 1 << random.usize(..64),
        3 => bytes.len() as u64,
        4 => number(bytes, other, width)?,
        5 => old.wrapping_add(random.choice([1, 8, 24, 0x1000])?),
        _ => old.wrapping_sub(random.choice([1, 8, 24, 0x1000])?),
    };
    bytes[field..field + width].copy_from_slice(&value.to_le_bytes()[..width]);
    Some(())
}

/// The header, the tables of headers, and each section with symbols, relocations, dynamic entries or
/// initialised data.
fn elf_tables(bytes: &[u8]) -> Option<Vec<Table>> {
    let field = |at, width| number(bytes, at, width).map(|number| number as usize);
    let (program, sections) = (field(32, 8)?, field(40, 8)?);
    let counted = |at, size: usize, count: usize| (at, size.saturating_mul(count));
    let mut tables = vec![
        (16, 48),
        counted(program, field(54, 2)?, field(56, 2)?),
        counted(sections, field(58, 2)?, field(60, 2)?),
    ];
    for section in 0..field(60, 2)?.min(100) {
        let at = sections.checked_add(64 * section)?;
        let Some(kind) = field(at.checked_add(4)?, 4) else {
            break;
        };
        // PROGBITS, SYMTAB, RELA, DYNAMIC, DYNSYM, RELR.
        if matches!(kind, 1 | 2 | 4 | 6 | 11 | 19) {
            tables.push((field(at + 24, 8)?, field(at + 32, 8)?));
        }
    }
    Some(tables)
}

/// The headers, each section, and each data directory.
fn pe_tables(bytes: &[u8]) -> Option<Vec<Table>> {
    let field = |at, width| number(bytes, at, width).map(|number| number as usize);
    let coff = field(0x3c, 4)?.checked_add(4)?;
    let (count, optional) = (field(coff + 2, 2)?.min(96), field(coff + 16, 2)?);
    let sections = coff + 20 + optional;
    let mut tables =
        vec![(coff, 20), (coff + 20, optional), (coff + 132, 128), (sections, 40 * count)];
    for section in (0..count).map(|index| sections + 40 * index) {
        let (address, size, at) =
            (field(section + 12, 4)?, field(section + 16, 4)?, field(section + 20, 4)?);
        tables.push((at, size));
        for directory in (coff + 132..coff + 260).step_by(8) {
            let (start, length) = (field(directory, 4)?, field(directory + 4, 4)?);
            if let Some(inside) = start.checked_sub(address).filter(|inside| *inside < size) {
                tables.push((at + inside, length));
            }
        }
    }
    Some(tables)
}

/// The number in `width` bytes.
fn number(bytes: &[u8], at: usize, width: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(width)?)?;
    let bytes = bytes.iter().rev();
    Some(bytes.fold(0, |number, byte| number << 8 | u64::from(*byte)))
}
