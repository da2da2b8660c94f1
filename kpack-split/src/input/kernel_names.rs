//! Which kernels code objects have, and host code registers.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Seek};
use std::sync::Arc;

use kpack_format::archive::{Archive, ArchiveError};
use kpack_format::code_object;

use super::LinkedBinary;
use crate::Error;
use crate::elf::ReadAt;

/// How many bytes of a code object are read first, and at most, to find its kernels.
const HEAD: usize = 64 << 10;
const MOST: u64 = 8 << 20;

/// How many bytes of a host binary are in memory.
const PIECE: u64 = 1 << 20;

/// Longer texts in a host binary are no names of kernels.
const LONGEST: usize = 64 << 10;

/// A hash of the name of a kernel. A library may have a hundred thousand kernels for each target, so their names are not
/// held in memory.
pub type NameHash = u64;

/// The hash of a name.
fn hash(name: &[u8]) -> NameHash {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

/// The kernels of a code object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelNames(Arc<[NameHash]>);

impl KernelNames {
    /// Those of the code object that `head` begins; `None` if it does not tell.
    pub(super) fn of(head: &[u8]) -> Option<Self> {
        let names = code_object::kernel_names(head)?;
        let mut hashes: Vec<NameHash> = names.iter().map(|name| hash(name.as_bytes())).collect();
        hashes.sort_unstable();
        Some(Self(hashes.into()))
    }

    /// Those of a code object in an archive, of which only the start is read.
    pub(super) fn read<R: Read + Seek>(
        archive: &mut Archive<R>,
        kernel: &str,
        target: &str,
    ) -> Result<Option<Self>, ArchiveError> {
        let mut head = Head::default();
        let mut is_enough = false;
        let read = archive.read_parts(kernel, target, &mut |part| {
            is_enough = !head.add(part);
            // Nothing else is to be decompressed.
            if is_enough { Err(io::Error::other("enough")) } else { Ok(()) }
        });
        match read {
            Err(error) if !is_enough => Err(error),
            _ => Ok(Self::of(&head.bytes)),
        }
    }

    /// Whether this has the kernel.
    pub fn has(&self, kernel: NameHash) -> bool {
        self.0.binary_search(&kernel).is_ok()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = NameHash> {
        self.0.iter().copied()
    }
}

/// The start of a code object: its headers, and its metadata unless that ends far after them.
#[derive(Debug, Default)]
pub(super) struct Head {
    pub(super) bytes: Vec<u8>,
    /// Where the metadata ends, once enough of the headers has been read.
    end: Option<usize>,
}

impl Head {
    /// Keeps what is needed of the next part. Returns whether more is.
    pub(super) fn add(&mut self, mut part: &[u8]) -> bool {
        loop {
            let end = self.end.unwrap_or(HEAD);
            let (needed, rest) = part.split_at(part.len().min(end - self.bytes.len()));
            self.bytes.extend_from_slice(needed);
            part = rest;
            if self.bytes.len() < end {
                return true;
            }
            if self.end.is_some() {
                return false;
            }
            let end = code_object::metadata_end(&self.bytes).filter(|end| *end <= MOST);
            let end = end.map_or(HEAD, |end| HEAD.max(end as usize));
            self.bytes.reserve_exact(end - self.bytes.len());
            self.end = Some(end);
        }
    }
}

impl LinkedBinary {
    /// The kernels that host code may register, of those that `is_one` accepts: start-up code passes their names to the HIP
    /// runtime, so each is a text in the data of the file.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn registered(
        &self,
        is_one: &dyn Fn(NameHash) -> bool,
    ) -> Result<BTreeMap<NameHash, String>, Error> {
        let mut found = BTreeMap::new();
        for range in self.image.data() {
            let mut text = Vec::new();
            let mut at = range.start;
            while at < range.end {
                let mut bytes = vec![0; (range.end - at).min(PIECE) as usize];
                let read = self.image.source().read_exact_at(at, &mut bytes);
                read.map_err(|e| Error::io(&self.path, "read", e))?;
                at += bytes.len() as u64;
                for part in bytes.split_inclusive(|byte| *byte == 0) {
                    let (is_end, own) = match part {
                        [own @ .., 0] => (true, own),
                        own => (false, own),
                    };
                    if text.len() <= LONGEST {
                        text.extend_from_slice(own);
                    }
                    if !is_end {
                        continue;
                    }
                    let name = hash(&text);
                    if is_one(name) {
                        let text = || String::from_utf8_lossy(&text).into_owned();
                        found.entry(name).or_insert_with(text);
                    }
                    text.clear();
                }
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file whose only program header is a note that ends at `end`.
    fn object(end: usize, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        bytes[32] = 64; // e_phoff
        bytes[52] = 64; // e_ehsize
        bytes[54] = 56; // e_phentsize
        bytes[56] = 1; // e_phnum
        bytes[64] = 4; // PT_NOTE
        bytes[72..80].copy_from_slice(&1000_u64.to_le_bytes());
        bytes[96..104].copy_from_slice(&(end as u64 - 1000).to_le_bytes());
        bytes
    }

    #[test]
    fn of_a_large_code_object_only_the_metadata_is_held() {
        let far = MOST as usize + 1;
        for (end, held) in [(2000, HEAD), (3 * HEAD + 1, 3 * HEAD + 1), (far, HEAD)] {
            let bytes = object(end, 10 << 20);
            assert_eq!(code_object::metadata_end(&bytes), Some(end as u64));
            for size in [1000, HEAD, 4 * HEAD, bytes.len()] {
                let mut head = Head::default();
                let needed = bytes.chunks(size).filter(|part| head.add(part)).count();
                assert!(head.bytes == bytes[..held], "{end}, parts of {size}");
                assert!(head.bytes.capacity() <= held + HEAD, "{end}, parts of {size}");
                assert_eq!(needed, (held - 1) / size, "{end}, parts of {size}");
            }
        }
        let mut short = Head::default();
        assert!(short.add(&object(2000, 3000)));
        assert_eq!(short.bytes.len(), 3000);
    }
}
