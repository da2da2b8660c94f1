//! The functions that a linked ELF file imports and exports, as the dynamic linker sees them: by address, in
//! a file or in memory.

use object::elf;

/// The function that a loader exports, and that a HIP runtime imports if it reads markers. Their names do
/// not tell: tools that vendor libraries rename them.
pub const LOADER_FUNCTION: &str = "kpack_load_code_object";

/// What a file does with a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linkage {
    /// It expects the function from another file.
    Imported,
    /// It offers the function to others.
    Exported,
}

/// How many symbols with one hash value are followed at most. Real tables have a few.
const MAX_CHAIN: u64 = 1 << 16;

/// Size of a symbol in bytes.
const SYMBOL: u64 = 24;

/// What the 64-bit little-endian ELF file with these entries of its dynamic section (tags and values) does
/// with the function `name`; `None` if nothing, or if its tables are damaged.
///
/// `read` returns so many bytes at an address. Dynamic linkers turn some values into addresses when they load
/// a file, so smaller values than `base`, the address where the file is loaded, are offsets from there.
pub fn linkage(
    dynamic: &[(u64, u64)],
    base: u64,
    name: &str,
    read: impl Fn(u64, u64) -> Option<Vec<u8>>,
) -> Option<Linkage> {
    let value = |tag: elf::DynamicTag| {
        let mut entries = dynamic.iter();
        entries.find(|(of, _)| *of == tag.0 as u64).map(|(_, value)| *value)
    };
    let address = |tag| {
        let value = value(tag)?;
        if value < base { base.checked_add(value) } else { Some(value) }
    };
    let number = |address: u64| Some(u64::from(u32_at(&read(address, 4)?, 0)?));
    let count = match address(elf::DT_GNU_HASH) {
        Some(table) => {
            let [buckets, first, filter] = [0, 4, 8].map(|at| number(table.checked_add(at)?));
            let (buckets, first) = (buckets?, first?);
            // After four numbers and the words of the filter.
            let start = table.checked_add(16 + 8 * filter?)?;
            let last = read(start, 4 * buckets)?;
            let last = (0..).step_by(4).map_while(|at| u32_at(&last, at)).max();
            let mut last = u64::from(last.unwrap_or(0));
            if last < first {
                first
            } else {
                // The last chain ends with an odd number.
                let chains = start.checked_add(4 * buckets)?;
                let end = last + MAX_CHAIN;
                while last < end && number(chains.checked_add(4 * (last - first))?)? & 1 == 0 {
                    last += 1;
                }
                last + 1
            }
        }
        None => number(address(elf::DT_HASH)?.checked_add(4)?)?,
    };
    let strings = read(address(elf::DT_STRTAB)?, value(elf::DT_STRSZ)?)?;
    let symbols = read(address(elf::DT_SYMTAB)?, SYMBOL * count)?;
    let mut symbols = symbols.chunks_exact(SYMBOL as usize);
    let symbol = symbols.find(|symbol| {
        let at = u32_at(symbol, 0).and_then(|at| strings.get(at as usize..));
        let rest = at.and_then(|found| found.strip_prefix(name.as_bytes()));
        rest.is_some_and(|rest| rest.starts_with(&[0]))
    })?;
    let section = u16::from_le_bytes([symbol[6], symbol[7]]);
    Some(if section == elf::SHN_UNDEF.0 { Linkage::Imported } else { Linkage::Exported })
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with three symbols: an import, and two exports that are hashed.
    fn linkages(base: u64, table: elf::DynamicTag) -> [Option<Linkage>; 4] {
        let mut bytes = b"\0import\0one\0two\0".to_vec();
        bytes.resize(16, 0);
        for (name, section) in [(0_u32, 0_u16), (1, 0), (8, 1), (12, 1)] {
            bytes.extend(name.to_le_bytes());
            bytes.extend([0x12, 0]);
            bytes.extend(section.to_le_bytes());
            bytes.extend([0; 16]);
        }
        let gnu = bytes.len() as u64;
        for number in [1, 2, 1, 0, 0, 0, 2, 8, 9_u32] {
            bytes.extend(number.to_le_bytes());
        }
        let hash = bytes.len() as u64;
        for number in [1, 4_u32] {
            bytes.extend(number.to_le_bytes());
        }
        let hash = match table {
            elf::DT_GNU_HASH => gnu,
            _ => hash,
        };
        let dynamic = [
            (elf::DT_STRTAB, base),
            (elf::DT_STRSZ, 16),
            // As it is in the file.
            (elf::DT_SYMTAB, 16),
            (table, base + hash),
        ];
        let dynamic = dynamic.map(|(tag, value)| (tag.0 as u64, value));
        let read = |address: u64, size: u64| {
            let start = usize::try_from(address.checked_sub(base)?).ok()?;
            let bytes = bytes.get(start..start.checked_add(usize::try_from(size).ok()?)?);
            bytes.map(<[u8]>::to_vec)
        };
        ["import", "one", "two", "wo"].map(|name| linkage(&dynamic, base, name, read))
    }

    #[test]
    fn imports_and_exports_by_either_hash_table() {
        let found =
            [Some(Linkage::Imported), Some(Linkage::Exported), Some(Linkage::Exported), None];
        for base in [0, 0x7f00_0000_0000] {
            for table in [elf::DT_GNU_HASH, elf::DT_HASH] {
                assert_eq!(linkages(base, table), found);
            }
        }
    }

    #[test]
    fn a_chain_without_an_end_is_not_followed_forever() {
        let reads = std::cell::Cell::new(0_u64);
        let tags = [elf::DT_GNU_HASH, elf::DT_STRTAB, elf::DT_SYMTAB];
        let dynamic = tags.map(|tag| (tag.0 as u64, 0));
        // As in a large file with holes, after a table with one bucket.
        let read = |address: u64, size: u64| {
            reads.set(reads.get() + 1);
            let mut bytes = vec![0; size as usize];
            if address == 0 || address == 16 {
                bytes[0] = 1;
            }
            (reads.get() < 1 << 20).then_some(bytes)
        };
        assert_eq!(linkage(&dynamic, 0, "one", read), None);
        assert!(reads.get() < 1 << 17, "{}", reads.get());
    }

    #[test]
    fn damaged_tables() {
        assert_eq!(linkage(&[], 0, "one", |_, _| None), None);
        let tags = [elf::DT_GNU_HASH, elf::DT_STRTAB, elf::DT_SYMTAB, elf::DT_STRSZ];
        for value in [0, 1, u64::MAX] {
            let dynamic = tags.map(|tag| (tag.0 as u64, value));
            let read = |_, size: u64| (size < 1000).then(|| vec![0xff; size as usize]);
            assert_eq!(linkage(&dynamic, 0, "one", read), None);
        }
    }
}
