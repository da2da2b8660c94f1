//! Objects for Windows (COFF). They are not split before the link: `kpack install` and `kpack stage` split what is linked
//! from them.

use kpack_core::elf::{BinaryError, ReadAt, read_range, refuse, unsupported};

use super::relocatable::text_at;

/// IMAGE_FILE_MACHINE_AMD64.
const X86_64: u16 = 0x8664;
const HEADER_SIZE: u64 = 20;
const SYMBOL_SIZE: usize = 18;
/// IMAGE_SYM_CLASS_EXTERNAL.
const EXTERNAL: u8 = 2;

/// Whether this is an object for Windows on x86-64.
pub(super) fn is_coff<S: ReadAt>(source: &S) -> Result<bool, BinaryError> {
    let mut machine = [0; 2];
    let is_long = source.size()? >= HEADER_SIZE;
    if is_long {
        source.read_exact_at(0, &mut machine)?;
    }
    Ok(is_long && u16::from_le_bytes(machine) == X86_64)
}

/// The names of its global definitions, which a static library's symbol table lists.
pub(super) fn defined_symbols<S: ReadAt>(source: &S) -> Result<Vec<Vec<u8>>, BinaryError> {
    let size = source.size()?;
    let header = read_range(source, size, 0, HEADER_SIZE, "the COFF header")?;
    let (start, count) = (u64::from(word(&header, 8)), u64::from(word(&header, 12)));
    let table_size = count * SYMBOL_SIZE as u64;
    let table = read_range(source, size, start, table_size, "the symbol table")?;
    let strings = read_range(source, size, start + table_size, 4, "the string table")?;
    let strings_size = u64::from(word(&strings, 0));
    let strings = read_range(source, size, start + table_size, strings_size, "the string table")?;
    let mut names = Vec::new();
    let mut symbols = table.chunks_exact(SYMBOL_SIZE);
    while let Some(symbol) = symbols.next() {
        let (value, section) = (word(symbol, 8), i16::from_le_bytes([symbol[12], symbol[13]]));
        let (class, further) = (symbol[16], symbol[17]);
        // A symbol of no section with a value is a common one.
        if class == EXTERNAL && (section != 0 || value != 0) {
            names.push(match &symbol[..4] {
                [0, 0, 0, 0] => text_at(&strings, word(symbol, 4)).to_vec(),
                _ => text_at(&symbol[..8], 0).to_vec(),
            });
        }
        if further > 0 && symbols.nth(usize::from(further) - 1).is_none() {
            refuse!("the symbol table ends within a symbol");
        }
    }
    if names.iter().any(Vec::is_empty) {
        unsupported!("a symbol without a name");
    }
    Ok(names)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    u32::from_le_bytes(word.unwrap_or_default())
}
