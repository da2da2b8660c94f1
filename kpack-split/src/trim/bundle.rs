//! One bundle, with the code for chosen GPUs only.

use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use kpack_format::TargetId;
use kpack_format::digest::{Blake3, Hasher};
use kpack_format::offload_bundle::{
    Bundle, BundleError, Compressed, Entry, Format, HOST_ENTRY, Layout, PLAIN_MAGIC,
};

use super::{Keep, Scratch};
use crate::Error;
use crate::input::{RangeReader, SharedFile};
use crate::publish::copy_range;
use kpack_core::files::first_difference;
use kpack_core::ids;
use kpack_core::platform::FileExt;

/// Bytes of a code object that are read at a time.
const PIECE: u64 = 1 << 20;

/// A larger plain bundle is first decompressed into a file if long matches are looked for when it is compressed: both at once
/// would hold the windows of both in memory.
const MOST_AT_ONCE: u64 = 32 << 20;

/// Code by target, in bytes.
pub(super) type SizeByTarget = BTreeMap<TargetId, u64>;

/// A bundle as it will be.
pub(super) struct TrimmedBundle {
    /// Size in bytes.
    pub(super) size: u64,
    /// The code that stays, and the code that goes.
    pub(super) stays: SizeByTarget,
    pub(super) goes: SizeByTarget,
    content: BundleBytes,
}

/// Where a new bundle's bytes come from.
enum BundleBytes {
    /// The bundle as it is, in the input.
    Same(Range<u64>),
    /// A plain bundle: its table, and where code objects are in the input and come to be in the bundle.
    Plain { table: Vec<u8>, code: Vec<(Range<u64>, u64)> },
    /// A compressed bundle, in the scratch file, unless it was only measured; with the IDs, sizes and digests of its code objects.
    Compressed { scratch: Range<u64>, code: Vec<(String, u64, Blake3)> },
}

/// What a bundle is read from, and compressed into.
pub(super) struct BundleSource<'a> {
    pub(super) input: &'a File,
    /// A scratch file, made when it is needed.
    pub(super) file: OnceCell<File>,
    pub(super) scratch: Scratch<'a>,
    /// Whether what stays of a plain bundle keeps its place in it, because nobody knows what points there.
    pub(super) in_place: bool,
}

/// Why a bundle cannot be planned.
#[derive(Debug)]
pub(super) enum BundleFailure {
    /// It is damaged, or cannot be read.
    Bundle(BundleError),
    /// The scratch file cannot be written, which says nothing about the bundle.
    Scratch(Error),
    /// It is sound, but kpack does not write bundles of this format.
    Unsupported(Format),
}

impl From<BundleError> for BundleFailure {
    fn from(error: BundleError) -> Self {
        Self::Bundle(error)
    }
}

impl From<Error> for BundleFailure {
    fn from(error: Error) -> Self {
        Self::Scratch(error)
    }
}

impl BundleFailure {
    /// The error of the file at `path`, with what `of_bundle` makes of that of a bundle.
    pub(super) fn error(self, path: &Path, of_bundle: impl FnOnce(BundleError) -> Error) -> Error {
        match self {
            Self::Bundle(error) => of_bundle(error),
            Self::Scratch(error) => error,
            Self::Unsupported(format) => {
                let text = format!(
                    "kpack does not write bundles of its format, {format}; trim it with a newer version of kpack"
                );
                Error::rejected(ids::UNSUPPORTED_BINARY, path, text)
            }
        }
    }
}

impl<'a> BundleSource<'a> {
    pub(super) fn new(input: &'a File, scratch: Scratch<'a>) -> Self {
        Self { input, file: OnceCell::new(), scratch, in_place: false }
    }

    fn file(&self) -> Result<&File, Error> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let new = self.scratch.file()?;
        Ok(self.file.get_or_init(|| new))
    }

    /// Compresses a bundle with `write` to the end of the scratch file, or only counts its bytes.
    fn compress<T>(
        &self,
        start: u64,
        write: impl FnOnce(&mut dyn WriteSeek) -> Result<T, BundleError>,
    ) -> Result<T, BundleFailure> {
        let out: Box<dyn WriteSeek> = match self.scratch.only_measured {
            true => Box::new(Counter::default()),
            false => Box::new(self.file()?),
        };
        self.write_scratch(start, out, write)
    }

    /// Writes with `write` into a scratch file. An error of the file is not one of what is read meanwhile.
    fn write_scratch<T>(
        &self,
        start: u64,
        file: Box<dyn WriteSeek + '_>,
        write: impl FnOnce(&mut dyn WriteSeek) -> Result<T, BundleError>,
    ) -> Result<T, BundleFailure> {
        let failed = Rc::default();
        let mut out = BufWriter::new(Noticing { file, failed: Rc::clone(&failed) });
        let done = out
            .seek(SeekFrom::Start(start))
            .map_err(BundleError::from)
            .and_then(|_| write(&mut out))
            .and_then(|value| Ok(out.flush().map(|()| value)?));
        match failed.take() {
            Some(error) => Err(self.scratch.failed(error).into()),
            None => Ok(done?),
        }
    }
}

/// What can be written at any position.
trait WriteSeek: Write + Seek {}

impl<T: Write + Seek + ?Sized> WriteSeek for T {}

/// Notices why a file could not be read or written.
struct Noticing<F> {
    file: F,
    failed: Rc<Cell<Option<io::Error>>>,
}

impl<F> Noticing<F> {
    fn noticed<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.map_err(|error| {
            let same = match error.raw_os_error() {
                Some(code) => io::Error::from_raw_os_error(code),
                None => error.kind().into(),
            };
            if error.kind() != io::ErrorKind::Interrupted {
                self.failed.set(Some(error));
            }
            same
        })
    }
}

impl<F: Read> Read for Noticing<F> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(bytes);
        self.noticed(read)
    }
}

impl<F: Write> Write for Noticing<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes);
        self.noticed(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.file.flush();
        self.noticed(flushed)
    }
}

impl<F: Seek> Seek for Noticing<F> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = self.file.seek(to);
        self.noticed(at)
    }
}

/// Takes the place of a file whose content nobody needs.
#[derive(Default)]
struct Counter {
    position: u64,
    size: u64,
}

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.position += bytes.len() as u64;
        self.size = self.size.max(self.position);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Counter {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.size.checked_add_signed(by),
        };
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}

impl TrimmedBundle {
    /// Plans what becomes of `bundle`, at an offset of the input. A compressed one is compressed again, into the
    /// scratch file, since only then its size is known.
    pub(super) fn plan(
        bundle: &Bundle,
        at: u64,
        keep: &Keep,
        source: &BundleSource<'_>,
    ) -> Result<Self, BundleFailure> {
        let stay = keep.entries(bundle);
        let mut new = Self {
            size: bundle.size,
            stays: SizeByTarget::new(),
            goes: SizeByTarget::new(),
            content: BundleBytes::Same(at..at.saturating_add(bundle.size)),
        };
        for (entry, stays) in bundle.entries.iter().zip(&stay) {
            if let Some(target) = entry.id.target().filter(|_| entry.size > 0) {
                let sizes = if *stays { &mut new.stays } else { &mut new.goes };
                *sizes.entry(target.clone()).or_default() += entry.size;
            }
        }
        if stay.iter().all(|stays| *stays) {
            if keep.check {
                bundle.check_hash(RangeReader::new(source.input, at..at + bundle.size))?;
            }
            return Ok(new);
        }
        if source.in_place && bundle.format == Format::Plain {
            let code = bundle
                .entries
                .iter()
                .zip(&stay)
                .filter(|(entry, stays)| **stays && entry.size > 0)
                .map(|(entry, _)| {
                    let from = at + entry.offset;
                    (from..from + entry.size, entry.offset)
                });
            let table = part_of_table(source.input, at, &stay).map_err(BundleError::from)?;
            new.content = BundleBytes::Plain { code: code.collect(), table };
            return Ok(new);
        }
        let mut entries = Vec::from_iter(
            bundle.entries.iter().zip(stay).filter(|(_, stays)| *stays).map(|(entry, _)| entry),
        );
        // As compilers write them, and as they are decompressed.
        entries.sort_by_key(|entry| entry.offset);
        let id_and_size = |entry: &&Entry| (entry.id.to_string(), entry.size);
        let mut ids = Vec::from_iter(entries.iter().map(id_and_size));
        if let Format::CodeObject = bundle.format {
            ids.push((HOST_ENTRY.to_owned(), 0));
        }
        let layout = Layout::new(&ids);
        (new.size, new.content) = match bundle.format {
            Format::Compressed { version, method, .. } => {
                let failed = |error| source.scratch.failed(error);
                let start = match source.scratch.only_measured {
                    true => 0,
                    false => source.file()?.metadata().map_err(failed)?.len(),
                };
                let compress = |long_matches: bool| -> Result<_, BundleFailure> {
                    let size = layout.size;
                    let extract = |out: &mut dyn Write| {
                        extract((bundle, at), &entries, &layout, source.input, out)
                    };
                    if !long_matches || size <= MOST_AT_ONCE {
                        return source.compress(start, |out| {
                            let mut out =
                                Compressed::new(out, version, method, size, long_matches)?;
                            Ok((extract(&mut out)?, out.finish()?))
                        });
                    }
                    let plain = source.scratch.file()?;
                    let code =
                        source.write_scratch(0, Box::new(&plain), |mut out| extract(&mut out))?;
                    (&plain).rewind().map_err(failed)?;
                    let unread = Rc::default();
                    let plain = Noticing { file: plain, failed: Rc::clone(&unread) };
                    let done = source.compress(start, |out| {
                        let mut out = Compressed::new(out, version, method, size, long_matches)?;
                        let mut plain = BufReader::with_capacity(PIECE as usize, plain);
                        io::copy(&mut plain, &mut out)?;
                        Ok((code, out.finish()?))
                    });
                    // It is not the bundle that could not be read.
                    unread.take().map_or(done, |error| Err(failed(error).into()))
                };
                let several = entries.iter().filter(|entry| entry.size > 0).count() > 1;
                let (mut code, mut size) = compress(several)?;
                // Hardly anything may go from a bundle that was compressed with long matches.
                if size > bundle.size && !several {
                    if let Some(file) = source.file.get() {
                        file.set_len(start).map_err(failed)?;
                    }
                    (code, size) = compress(true)?;
                }
                (size, BundleBytes::Compressed { scratch: start..start + size, code })
            }
            format if !format.is_in_place() => {
                return Err(BundleFailure::Unsupported(format));
            }
            _ => {
                let code =
                    entries.iter().zip(layout.offsets).filter(|(entry, _)| entry.size > 0).map(
                        |(entry, to)| {
                            let from = at + entry.offset;
                            (from..from + entry.size, to)
                        },
                    );
                (layout.size, BundleBytes::Plain { code: code.collect(), table: layout.table })
            }
        };
        Ok(new)
    }

    /// Whether any of its code goes.
    pub(super) fn changes(&self) -> bool {
        !matches!(self.content, BundleBytes::Same(_))
    }

    /// Its size in the scratch file, in bytes.
    pub(super) fn scratch_size(&self) -> u64 {
        if matches!(self.content, BundleBytes::Compressed { .. }) { self.size } else { 0 }
    }

    /// Writes it to an offset of `output`.
    pub(super) fn write(
        &self,
        input: &File,
        scratch: Option<&File>,
        output: &File,
        at: u64,
    ) -> io::Result<()> {
        match &self.content {
            BundleBytes::Same(range) => copy_range(input, output, range.clone(), at),
            BundleBytes::Plain { table, code } => {
                output.write_all_at(table, at)?;
                let mut code = code.iter();
                code.try_for_each(|(range, to)| copy_range(input, output, range.clone(), at + to))
            }
            BundleBytes::Compressed { scratch: range, .. } => match scratch {
                Some(scratch) => copy_range(scratch, output, range.clone(), at),
                None => Err(io::Error::other("the scratch file is missing")),
            },
        }
    }

    /// Says what is wrong with it, as it was written to an offset of `output`: each code object must be that of the
    /// input.
    pub(super) fn check(
        &self,
        input: &File,
        output: &File,
        at: u64,
    ) -> Result<Option<String>, BundleError> {
        let same = |range: &Range<u64>, to: u64| {
            let read = |file: &File, start: u64, from: u64, out: &mut [u8]| {
                file.read_exact_at(out, start + from)
            };
            first_difference(
                range.end - range.start,
                |from, out| read(input, range.start, from, out),
                |from, out| read(output, to, from, out),
            )
        };
        let ranges = match &self.content {
            BundleBytes::Same(range) => vec![(range.clone(), 0)],
            BundleBytes::Plain { code, .. } => code.clone(),
            BundleBytes::Compressed { code, .. } => return self.check_compressed(code, output, at),
        };
        for (range, to) in ranges {
            if let Some(offset) = same(&range, at + to)? {
                let offset = at + to + offset;
                return Ok(Some(format!("the code at file offset {offset:#x} is not the input's")));
            }
        }
        if let BundleBytes::Plain { table, .. } = &self.content {
            let mut written = vec![0; table.len()];
            output.read_exact_at(&mut written, at)?;
            if written != *table {
                return Ok(Some(format!("the bundle at file offset {at:#x} has another table")));
            }
        }
        Ok(None)
    }

    fn check_compressed(
        &self,
        code: &[(String, u64, Blake3)],
        output: &File,
        at: u64,
    ) -> Result<Option<String>, BundleError> {
        let mut reader = BufReader::new(RangeReader::new(output, at..at + self.size));
        let bundle = Bundle::read(&mut reader, self.size)?;
        reader.seek(SeekFrom::Start(0))?;
        let mut found = Vec::new();
        let mut code_objects = bundle.code_objects(reader, |_| true)?;
        while let Some(mut code_object) = code_objects.next_entry()? {
            let ids = Vec::from_iter(code_object.ids().iter().map(ToString::to_string));
            let (size, mut hasher, mut part) = (code_object.size(), Hasher::default(), Vec::new());
            while code_object.append(&mut part, PIECE)? > 0 {
                hasher.update(&part);
                part.clear();
            }
            let digest = hasher.finish();
            found.extend(ids.into_iter().map(|id| (id, size, digest)));
        }
        let differs = || format!("the bundle at file offset {at:#x} has other code than planned");
        Ok((found != code).then(differs))
    }
}

/// The table of the plain bundle at an offset of `input` with the entries that stay, as they are.
fn part_of_table(input: &File, at: u64, stay: &[bool]) -> io::Result<Vec<u8>> {
    let count = stay.iter().filter(|stays| **stays).count() as u64;
    let mut table = [PLAIN_MAGIC, &count.to_le_bytes()[..]].concat();
    let mut from = at + table.len() as u64;
    for stays in stay {
        // Its offset, its size, and the length of the ID that follows.
        let mut length = [0; 8];
        input.read_exact_at(&mut length, from + 16)?;
        let mut entry = vec![0; 24 + u64::from_le_bytes(length) as usize];
        input.read_exact_at(&mut entry, from)?;
        from += entry.len() as u64;
        if *stays {
            table.extend(entry);
        }
    }
    Ok(table)
}

/// Writes the plain bundle of these entries, in order of offset, and gives their digests. Compares the hash in the header:
/// the new bundle's hash would hide damage from all later checks.
fn extract(
    (bundle, at): (&Bundle, u64),
    entries: &[&Entry],
    layout: &Layout,
    input: &File,
    out: &mut dyn Write,
) -> Result<Vec<(String, u64, Blake3)>, BundleError> {
    out.write_all(&layout.table)?;
    let mut position = layout.table.len() as u64;
    let mut reader = SharedFile::of(input);
    reader.seek(SeekFrom::Start(at))?;
    let wanted = |target: &TargetId| entries.iter().any(|entry| entry.id.target() == Some(target));
    let mut code_objects = bundle.code_objects(reader, wanted)?;
    let mut digests = Vec::new();
    let mut places = entries.iter().zip(&layout.offsets);
    while let Some(mut code_object) = code_objects.next_entry()? {
        let Some((entry, place)) = places.find(|(entry, _)| {
            let place = (code_object.offset(), code_object.size());
            (entry.offset, entry.size) == place
        }) else {
            let text = "its entries are not in the order of its code objects".into();
            return Err(BundleError::Malformed { offset: code_object.offset(), reason: text });
        };
        if code_object.ids().len() > 1 {
            let reason = "several entries share a code object, which is not supported".into();
            return Err(BundleError::Malformed { offset: entry.offset, reason });
        }
        out.write_all(&vec![0; (place - position) as usize])?;
        let (mut hasher, mut part) = (Hasher::default(), Vec::new());
        while code_object.append(&mut part, PIECE)? > 0 {
            hasher.update(&part);
            out.write_all(&part)?;
            part.clear();
        }
        position = place + entry.size;
        digests.push((entry.id.to_string(), entry.size, hasher.finish()));
    }
    // A bundle without code ends where its last entry would begin.
    out.write_all(&vec![0; (layout.size - position) as usize])?;
    let planned = entries.iter().filter(|entry| entry.size > 0).count();
    if digests.len() != planned {
        let reason = "an entry without a target has content, which is not supported".into();
        return Err(BundleError::Malformed { offset: 0, reason });
    }
    Ok(digests)
}
