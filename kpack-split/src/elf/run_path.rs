//! Sets the run path of a linked file in place, if its dynamic section and string table have room. Nothing moves.

use std::ops::Range;

use object::LittleEndian as LE;
use object::elf;

use super::dynamic::{DYNAMIC_ENTRY, Dynamic, dynamic_symbols};
use super::image::Image;
use super::records::pods;
use super::{BinaryError, ReadAt};

/// Bytes to write, each with its offset in the file.
pub type Edits = Vec<(u64, Vec<u8>)>;

/// Entries whose values are strings in the dynamic string table, apart from run paths.
const STRINGS: [elf::DynamicTag; 7] = [
    elf::DT_NEEDED,
    elf::DT_SONAME,
    elf::DT_AUXILIARY,
    elf::DT_FILTER,
    elf::DT_CONFIG,
    elf::DT_DEPAUDIT,
    elf::DT_AUDIT,
];

/// A file with more records of versions than this has none that kpack can count on.
const MAX_RECORDS: usize = 1 << 16;

/// What makes `path` the file's DT_RPATH, which libraries without a run path of their own inherit, instead of the run paths that
/// it has; `None` if there is no room for it. The bytes for it are those of the old run path, and zeros that nothing
/// refers to. The entry is that of the old run path, or a spare one.
pub fn edits<S: ReadAt>(image: &Image<S>, path: &[u8]) -> Result<Option<Edits>, BinaryError> {
    let dynamic = Dynamic::read(image)?;
    let Some(table) = dynamic.table(elf::DT_STRTAB, elf::DT_STRSZ)? else {
        return Ok(None);
    };
    let Some(offset) = image.offset_of(&table) else {
        return Ok(None);
    };
    let text = image.memory(table, "the dynamic string table")?;
    let Some(used) = used(image, &dynamic, &text)? else {
        return Ok(None);
    };
    let is_run_path = |tag: elf::DynamicTag| [elf::DT_RPATH, elf::DT_RUNPATH].contains(&tag);
    let old = dynamic.entries.iter().enumerate().filter(|(_, (tag, _))| is_run_path(*tag));
    let mut free: Vec<bool> =
        text.iter().zip(&used).map(|(byte, used)| *byte == 0 && !used).collect();
    let mut entries = Vec::new();
    for (index, (_, at)) in old {
        entries.push(index as u64);
        for at in string_at(&text, *at).unwrap_or_default() {
            free[at] = !used[at];
        }
    }
    if entries.is_empty() {
        match spare_entry(image, &dynamic)? {
            Some(index) => entries.push(index),
            None => return Ok(None),
        }
    }
    let size = path.len() + 1;
    let at = match path {
        // The first string of each table is empty.
        [] if text.first() == Some(&0) => Some(0),
        _ => free.windows(size).position(|room| room.iter().all(|free| *free)),
    };
    let Some(at) = at else {
        return Ok(None);
    };
    // Nothing of the old run path stays, since it may be a path of the machine that built the file.
    let mut edits: Edits = free_runs(&free)
        .into_iter()
        .filter(|run| text[run.clone()].iter().any(|byte| *byte != 0))
        .map(|run| (offset + run.start as u64, vec![0; run.len()]))
        .collect();
    edits.push((offset + at as u64, [path, b"\0"].concat()));
    for index in entries {
        let tag = u64::from(elf::DT_RPATH.0 as u32);
        let entry = [tag.to_le_bytes(), (at as u64).to_le_bytes()].concat();
        edits.push((dynamic.offset + index * DYNAMIC_ENTRY, entry));
    }
    Ok(Some(edits))
}

/// The range of a string with its final zero; `None` if it is not in the table.
fn string_at(table: &[u8], at: u64) -> Option<Range<usize>> {
    let at = usize::try_from(at).ok().filter(|at| *at < table.len())?;
    let size = table[at..].iter().position(|byte| *byte == 0)?;
    Some(at..at + size + 1)
}

fn free_runs(free: &[bool]) -> Vec<Range<usize>> {
    let mut runs = Vec::new();
    let mut start = None;
    for (at, free) in free.iter().chain([&false]).enumerate() {
        match (free, start) {
            (true, None) => start = Some(at),
            (false, Some(from)) => {
                runs.push(from..at);
                start = None;
            }
            _ => {}
        }
    }
    runs
}

/// Which bytes of the string table something refers to; `None` if that is not known.
fn used<S: ReadAt>(
    image: &Image<S>,
    dynamic: &Dynamic,
    table: &[u8],
) -> Result<Option<Vec<bool>>, BinaryError> {
    // Without its section, nobody knows how many symbols there are.
    if dynamic.get(elf::DT_SYMTAB).is_some() && dynamic.symbol_section(image).is_none() {
        return Ok(None);
    }
    let mut names: Vec<u64> = vec![0];
    let entries = dynamic.entries.iter().filter(|(tag, _)| STRINGS.contains(tag));
    names.extend(entries.map(|(_, at)| *at));
    let symbols = dynamic_symbols(image, dynamic)?;
    names.extend(pods::<elf::Sym64<LE>>(&symbols).iter().map(|s| u64::from(s.st_name.get(LE))));
    for (first, records) in [(elf::DT_VERNEED, Records::NEEDED), (elf::DT_VERDEF, Records::DEFINED)]
    {
        if let Some(address) = dynamic.get(first) {
            match records.names(image, address)? {
                Some(found) => names.extend(found),
                None => return Ok(None),
            }
        }
    }
    let mut used = vec![false; table.len()];
    for at in names {
        match string_at(table, at) {
            Some(range) => used[range].fill(true),
            None => return Ok(None),
        }
    }
    Ok(Some(used))
}

/// Records of versions, which are a list of lists.
#[derive(Clone, Copy)]
struct Records {
    size: u64,
    /// Where in a record the offset of its list is, that of the next record, and a name if it has one.
    list: usize,
    next: usize,
    name: Option<usize>,
    /// The same, of what is in the list.
    inner_size: u64,
    inner_next: usize,
    inner_name: usize,
}

impl Records {
    /// `Elf64_Verneed` and `Elf64_Vernaux`.
    const NEEDED: Self = Self {
        size: 16,
        list: 8,
        next: 12,
        name: Some(4),
        inner_size: 16,
        inner_next: 12,
        inner_name: 8,
    };
    /// `Elf64_Verdef` and `Elf64_Verdaux`.
    const DEFINED: Self = Self {
        size: 20,
        list: 12,
        next: 16,
        name: None,
        inner_size: 8,
        inner_next: 4,
        inner_name: 0,
    };

    /// The names in all records, as offsets in the string table; `None` if they do not end.
    fn names<S: ReadAt>(
        self,
        image: &Image<S>,
        first: u64,
    ) -> Result<Option<Vec<u64>>, BinaryError> {
        let word = |bytes: &[u8], at: usize| {
            let bytes: [u8; 4] = bytes[at..at + 4].try_into().unwrap_or_default();
            u64::from(u32::from_le_bytes(bytes))
        };
        let read = |at: u64, size: u64| {
            image.memory(at..at.saturating_add(size), "a record of symbol versions")
        };
        let (mut names, mut left) = (Vec::new(), MAX_RECORDS);
        let mut at = first;
        loop {
            let record = read(at, self.size)?;
            names.extend(self.name.map(|name| word(&record, name)));
            let mut inner = at.saturating_add(word(&record, self.list));
            loop {
                left -= 1;
                if left == 0 {
                    return Ok(None);
                }
                let entry = read(inner, self.inner_size)?;
                names.push(word(&entry, self.inner_name));
                match word(&entry, self.inner_next) {
                    0 => break,
                    next => inner = inner.saturating_add(next),
                }
            }
            match word(&record, self.next) {
                0 => return Ok(Some(names)),
                next => at = at.saturating_add(next),
            }
        }
    }
}

/// The index of the entry that ends the dynamic section, if another one that ends it follows.
fn spare_entry<S: ReadAt>(image: &Image<S>, dynamic: &Dynamic) -> Result<Option<u64>, BinaryError> {
    let index = dynamic.entries.len() as u64;
    let segment = image.segments.iter().find(|segment| segment.kind == elf::PT_DYNAMIC);
    let end = (index + 2) * DYNAMIC_ENTRY;
    if segment.is_none_or(|segment| segment.filesz < end) {
        return Ok(None);
    }
    let at = dynamic.offset + index * DYNAMIC_ENTRY;
    let two = image.bytes(at, 2 * DYNAMIC_ENTRY, "the dynamic section")?;
    Ok(two.iter().all(|byte| *byte == 0).then_some(index))
}
