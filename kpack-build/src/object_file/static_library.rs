//! Static libraries (`ar` archives in the GNU format): reading members, and rewriting with resized
//! members.
//!
//! `object` reads them and cannot write any. `ar_archive_writer` holds all members in memory, and build
//! scripts would compile a second version of `object` for it; so the table of offsets is written here.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;

use object::archive::{Header, MAGIC};
use object::pod::bytes_of;
use object::read::archive::{ArchiveFile, ArchiveKind};
use object::read::{ReadCache, ReadRef};

use super::plan::ObjectPlan;
use super::window::Window;
use kpack_core::elf::{BinaryError, ReadAt, refuse, unsupported};
use kpack_core::platform::FileExt;

const HEADER_SIZE: u64 = size_of::<Header>() as u64;
/// Where the symbol table starts, if there is one: it is the first member.
const SYMBOL_TABLE: usize = MAGIC.len() + size_of::<Header>();

/// A static library: its members, and the tables before them.
pub(super) struct StaticLibrary {
    pub(super) members: Vec<Member>,
    tables: Tables,
}

/// The start of a static library: magic, symbol table, table of long names.
struct Tables {
    bytes: Vec<u8>,
    /// Size of an offset in the symbol table, in bytes.
    word: usize,
    /// The member that defines each symbol, by index.
    symbols: Vec<usize>,
}

/// A member of a static library.
pub(super) struct Member {
    header: Header,
    /// File range of its bytes.
    pub(super) range: Range<u64>,
    pub(super) name: String,
}

impl Member {
    pub(super) fn size(&self) -> u64 {
        self.range.end - self.range.start
    }
}

impl StaticLibrary {
    /// Reads members and tables.
    ///
    /// # Errors
    /// Refuses thin archives, archives in other formats, and damaged ones.
    pub(super) fn read(file: &File) -> Result<Self, BinaryError> {
        parse(file, |archive| Self::of(archive, file))
    }

    fn of<'a>(
        archive: &ArchiveFile<'a, impl ReadRef<'a>>,
        file: &File,
    ) -> Result<Self, BinaryError> {
        let size = file.size()?;
        if archive.is_thin() {
            unsupported!(
                "a thin archive, which only names its objects; split these and make an \
                 archive of the host-only objects"
            );
        }
        let word = match archive.kind() {
            ArchiveKind::Gnu | ArchiveKind::Unknown => 4,
            ArchiveKind::Gnu64 => 8,
            ArchiveKind::Coff => unsupported!(
                "has two symbol tables, as static libraries and import libraries of Windows (COFF) have; expected objects for Linux (ELF)"
            ),
            other => {
                unsupported!("a static library in the {other:?} format; expected the GNU format")
            }
        };
        let mut members: Vec<Member> = Vec::new();
        for member in archive.members() {
            let member = member.map_err(damaged)?;
            let name = String::from_utf8_lossy(member.name()).into_owned();
            let (start, length) = member.file_range();
            let range = start..start.saturating_add(length);
            let Some(header) = member.header().filter(|_| range.end <= size) else {
                refuse!(
                    "the member `{name}` ({length} bytes at offset {start:#x}) ends past the end of the \
                     file ({size} bytes)"
                );
            };
            if header.name.starts_with(b"#1/") {
                unsupported!("a static library in the BSD format; expected the GNU format");
            }
            if matches!(header.name.trim_ascii_end(), b"/" | b"//" | b"/SYM64/") {
                refuse!("the table `{name}` at offset {start:#x} is not at the start");
            }
            members.push(Member { header: *header, range, name });
        }
        let symbols = symbols(archive, &members)?;
        let end = members.first().map_or(size, |first| first.range.start - HEADER_SIZE);
        let mut bytes = vec![0; end as usize];
        ReadAt::read_exact_at(file, 0, &mut bytes)?;
        Ok(Self { members, tables: Tables { bytes, word, symbols } })
    }

    /// Writes the static library in `file` to the empty file `output`: members with a plan split, all
    /// others unchanged. `plans` has one entry for each of the members.
    pub(super) fn rewrite(
        &self,
        file: &File,
        plans: &[Option<&ObjectPlan>],
        output: &File,
    ) -> Result<(), BinaryError> {
        self.tables.write(&self.resized(plans), output, |index, to| {
            let member = &self.members[index];
            let window = Window::new(file, member.range.start, member.size());
            match plans[index] {
                Some(plan) => plan.apply(&window, output, to),
                None => Ok(window.copy(&(0..member.size()), output, to)?),
            }
        })
    }
}

impl StaticLibrary {
    /// The new header of each member, and the size of its bytes.
    fn resized(&self, plans: &[Option<&ObjectPlan>]) -> Vec<(Header, u64)> {
        let resized = self.members.iter().zip(plans).map(|(member, plan)| {
            let mut header = member.header;
            let size = plan.map_or(member.size(), ObjectPlan::size);
            if size != member.size() {
                header.size = field(size);
            }
            (header, size)
        });
        resized.collect()
    }

    /// The file offset of each member's bytes once it is rewritten, and the size of the file.
    pub(super) fn places(&self, plans: &[Option<&ObjectPlan>]) -> (Vec<u64>, u64) {
        let (starts, end) = self.tables.starts(&self.resized(plans));
        (starts.iter().map(|start| start + HEADER_SIZE).collect(), end)
    }
}

/// The member that defines each symbol of the symbol table, by index.
fn symbols<'a>(
    archive: &ArchiveFile<'a, impl ReadRef<'a>>,
    members: &[Member],
) -> Result<Vec<usize>, BinaryError> {
    let mut symbols = Vec::new();
    for symbol in archive.symbols().map_err(damaged)?.into_iter().flatten() {
        let offset = symbol.map_err(damaged)?.offset().0;
        let start = offset.saturating_add(HEADER_SIZE);
        match members.binary_search_by_key(&start, |member| member.range.start) {
            Ok(member) => symbols.push(member),
            Err(_) => refuse!(
                "the symbol table refers to a member at offset {offset:#x}, which does not exist"
            ),
        }
    }
    Ok(symbols)
}

/// Gives an archive in any format to `read`.
pub(super) fn parse<T>(
    file: &File,
    read: impl for<'a> FnOnce(
        &ArchiveFile<'a, &'a ReadCache<ErrorKeeper<'_>>>,
    ) -> Result<T, BinaryError>,
) -> Result<T, BinaryError> {
    let cache = ReadCache::new(ErrorKeeper { reader: BufReader::new(file), failed: None });
    let result = ArchiveFile::parse(&cache).map_err(damaged).and_then(|archive| read(&archive));
    match cache.into_inner().failed {
        Some(error) => Err(error.into()),
        None => result,
    }
}

/// A reader that keeps its first error, because the parser drops the details.
pub(super) struct ErrorKeeper<'a> {
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

pub(super) fn damaged(error: object::Error) -> BinaryError {
    BinaryError::Refused(format!("the static library is damaged ({error}); build it again").into())
}

impl Tables {
    /// Where members of these sizes begin, and where the last one ends.
    fn starts(&self, members: &[(Header, u64)]) -> (Vec<u64>, u64) {
        let mut starts = Vec::new();
        let mut at = self.bytes.len() as u64;
        for (_, size) in members {
            starts.push(at);
            at = (at + HEADER_SIZE + size).next_multiple_of(2);
        }
        (starts, at)
    }

    /// Writes the tables, and members with these headers and sizes. `content` writes a member's bytes,
    /// given its index and where they belong.
    fn write(
        &self,
        members: &[(Header, u64)],
        output: &File,
        content: impl Fn(usize, u64) -> Result<(), BinaryError>,
    ) -> Result<(), BinaryError> {
        let (starts, _) = self.starts(members);
        let mut bytes = self.bytes.clone();
        let table = bytes.get_mut(SYMBOL_TABLE + self.word..);
        let offsets = table.unwrap_or_default().chunks_exact_mut(self.word);
        for (member, offset) in self.symbols.iter().zip(offsets) {
            let start = starts[*member].to_be_bytes();
            let (high, low) = start.split_at(8 - self.word);
            if high.iter().any(|byte| *byte != 0) {
                refuse!("the symbol table cannot hold the offset of a member after 4 GiB");
            }
            offset.copy_from_slice(low);
        }
        output.write_all_at(&bytes, 0)?;
        for (index, ((header, size), start)) in members.iter().zip(starts).enumerate() {
            output.write_all_at(bytes_of(header), start)?;
            let at = start + HEADER_SIZE;
            content(index, at)?;
            if size % 2 == 1 {
                output.write_all_at(b"\n", at + size)?;
            }
        }
        Ok(())
    }
}

/// A field of a header: text, padded with spaces.
fn field<const SIZE: usize>(value: impl ToString) -> [u8; SIZE] {
    let mut field = [b' '; SIZE];
    for (place, byte) in field.iter_mut().zip(value.to_string().bytes()) {
        *place = byte;
    }
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file opened only for writing: reading it always fails.
    #[test]
    fn what_cannot_be_read_is_no_damage() {
        let directory = tempfile::tempdir().unwrap();
        let file = File::create(directory.path().join("lib.a")).unwrap();
        file.set_len(4096).unwrap();
        let result = StaticLibrary::read(&file);
        assert!(matches!(result, Err(BinaryError::Io(_))), "{:?}", result.err());
    }
}
