//! The code objects of a bundle, one after another.

use std::io::{Read, Seek, SeekFrom};

use super::bundle::{Bundle, Entry, Format};
use super::compressed;
use super::entry_id::EntryId;
use super::error::{BundleError, failed, malformed};
use super::source::append_up_to;
use crate::TargetId;

impl Bundle {
    /// Reads the device code of this bundle, entry by entry, in order of offset. `source` must be
    /// at the start of the bundle, as for [`Bundle::read`]. Holds one code object at a time (or
    /// part of one, with [`CodeObjects::next_entry`]) and a decompression window. `wanted` selects
    /// the entries to return.
    ///
    /// After the last entry, the rest of a compressed bundle is decompressed too, and the hash in its
    /// header is compared with that of its content, so that damage anywhere in it is found. Until
    /// then, its code objects may be damaged.
    ///
    /// # Errors
    /// [`BundleError::Io`] if the source cannot be read. The iterator returns any other error, and
    /// ends after it.
    pub fn code_objects<R: Read + Seek>(
        &self,
        mut source: R,
        wanted: impl Fn(&TargetId) -> bool,
    ) -> Result<CodeObjects<R>, BundleError> {
        let start = source.stream_position()?;
        let mut used: Vec<&Entry> = self
            .entries
            .iter()
            .filter(|entry| entry.size > 0)
            .filter(|entry| entry.id.target().is_some_and(&wanted))
            .collect();
        used.sort_by_key(|entry| (entry.offset, entry.size));
        let mut entries: Vec<Range> = Vec::new();
        for Entry { id, offset, size } in used {
            let (offset, size) = (*offset, *size);
            match entries.last_mut() {
                Some(last) if (last.offset, last.size) == (offset, size) => {
                    last.ids.push(id.clone());
                }
                _ => entries.push(Range { ids: vec![id.clone()], offset, size }),
            }
        }
        let content = match self.format {
            Format::Plain | Format::CodeObject => Content::Plain { source, start },
            Format::Compressed { .. } => {
                Content::Compressed(Box::new(compressed::Stream::open(source, self)?))
            }
        };
        Ok(CodeObjects { entries: entries.into_iter(), content: Some(content), shared: None })
    }

    /// Compares the hash in the header of a compressed bundle with that of its content. Other bundles have none.
    ///
    /// # Errors
    /// As [`code_objects`](Self::code_objects); they differ.
    pub fn check_hash<R: Read + Seek>(&self, source: R) -> Result<(), BundleError> {
        if let Format::Compressed { .. } = self.format {
            self.code_objects(source, |_| false)?.next_entry()?;
        }
        Ok(())
    }
}

/// A code object from a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundledCode {
    /// What it was compiled for, from the entry's ID (or, of a bare code object, its own header).
    pub target: TargetId,
    /// The entry's ID.
    pub id: EntryId,
    /// The code object.
    pub bytes: Vec<u8>,
}

/// Where a code object is, and the IDs of the entries that say so.
#[derive(Debug)]
struct Range {
    ids: Vec<EntryId>,
    offset: u64,
    size: u64,
}

/// Where code objects are read from.
#[derive(Debug)]
enum Content<R: Read> {
    Plain { source: R, start: u64 },
    Compressed(Box<compressed::Stream<R>>),
}

/// The code objects of a bundle.
#[derive(Debug)]
pub struct CodeObjects<R: Read> {
    entries: std::vec::IntoIter<Range>,
    /// `None` after the end or an error.
    content: Option<Content<R>>,
    /// A code object just read, and the further entries that it has.
    shared: Option<(std::vec::IntoIter<EntryId>, Vec<u8>)>,
}

impl<R: Read + Seek> CodeObjects<R> {
    /// The memory that decompressing takes, in bytes.
    pub fn window(&self) -> u64 {
        match &self.content {
            Some(Content::Compressed(stream)) => stream.window,
            _ => 0,
        }
    }

    /// The next code object, to be read in parts or as a whole; unread bytes are skipped.
    ///
    /// # Errors
    /// [`BundleError`], also for damage after the last one.
    pub fn next_entry(&mut self) -> Result<Option<CodeObjectReader<'_, R>>, BundleError> {
        let Some(range) = self.entries.next() else {
            return match self.content.take() {
                Some(Content::Compressed(stream)) => stream.finish().map(|_| None),
                _ => Ok(None),
            };
        };
        match &mut self.content {
            None => return Ok(None),
            Some(Content::Plain { source, start }) => {
                source.seek(SeekFrom::Start(*start + range.offset))?;
            }
            Some(Content::Compressed(stream)) => stream.skip_to(range.offset)?,
        }
        Ok(self.content.as_mut().map(|content| CodeObjectReader { range, left: None, content }))
    }

    fn read(&mut self) -> Result<Option<BundledCode>, BundleError> {
        let code = |id: EntryId, bytes| {
            let target = id.target()?.clone();
            Some(BundledCode { target, id, bytes })
        };
        if let Some((ids, bytes)) = &mut self.shared {
            if let Some(id) = ids.next() {
                return Ok(code(id, bytes.clone()));
            }
        }
        self.shared = None;
        let Some(entry) = self.next_entry()? else {
            return Ok(None);
        };
        let mut ids = entry.ids().to_vec().into_iter();
        let bytes = entry.read()?;
        let Some(id) = ids.next() else {
            return Ok(None);
        };
        if ids.len() > 0 {
            self.shared = Some((ids, bytes.clone()));
        }
        Ok(code(id, bytes))
    }
}

impl<R: Read + Seek> Iterator for CodeObjects<R> {
    type Item = Result<BundledCode, BundleError>;

    fn next(&mut self) -> Option<Self::Item> {
        let result = self.read();
        if result.is_err() {
            self.content = None;
            self.entries = Vec::new().into_iter();
        }
        result.transpose()
    }
}

/// One code object of a bundle.
#[derive(Debug)]
pub struct CodeObjectReader<'a, R: Read> {
    range: Range,
    /// Number of unread bytes; `None` before the first read.
    left: Option<u64>,
    content: &'a mut Content<R>,
}

impl<R: Read> CodeObjectReader<'_, R> {
    /// The IDs of its entries; several if several entries refer to the same bytes.
    pub fn ids(&self) -> &[EntryId] {
        &self.range.ids
    }

    /// Its targets, from the entries' IDs.
    pub fn targets(&self) -> impl Iterator<Item = &TargetId> {
        self.range.ids.iter().filter_map(EntryId::target)
    }

    /// Its offset from the start of the (uncompressed) bundle, in bytes.
    pub fn offset(&self) -> u64 {
        self.range.offset
    }

    /// Its size in bytes, as the entry declares it.
    pub fn size(&self) -> u64 {
        self.range.size
    }

    /// Appends up to `most` bytes and returns their number; 0 at the end.
    ///
    /// # Errors
    /// [`BundleError`], also if the bundle ends before the code object.
    pub fn append(&mut self, out: &mut Vec<u8>, most: u64) -> Result<u64, BundleError> {
        let (offset, size) = (self.range.offset, self.range.size);
        let left = self.left.get_or_insert(size);
        let wanted = most.min(*left);
        let read = match &mut *self.content {
            Content::Plain { source, .. } => append_up_to(source, wanted, out)?,
            Content::Compressed(stream) => {
                append_up_to(stream.as_mut(), wanted, out).or_else(failed(offset))?
            }
        };
        *left -= read;
        if read < wanted {
            let after = size - *left;
            return malformed!(offset, "an entry of {size} bytes ends after {after}");
        }
        Ok(wanted)
    }

    /// Reads all of it.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub fn read(mut self) -> Result<Vec<u8>, BundleError> {
        let mut bytes = Vec::new();
        self.append(&mut bytes, u64::MAX)?;
        Ok(bytes)
    }
}
