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
        let head = start(archive, kernel, target, HEAD)?;
        match code_object::metadata_end(&head) {
            Some(end) if end <= head.len() as u64 => Ok(Self::of(&head)),
            Some(end) if end <= MOST => {
                Ok(Self::of(&start(archive, kernel, target, end as usize)?))
            }
            _ => Ok(None),
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

/// The first `size` bytes of a code object.
fn start<R: Read + Seek>(
    archive: &mut Archive<R>,
    kernel: &str,
    target: &str,
    size: usize,
) -> Result<Vec<u8>, ArchiveError> {
    let mut head = Vec::new();
    let read = archive.read_parts(kernel, target, &mut |part| {
        head.extend_from_slice(&part[..part.len().min(size - head.len())]);
        // Nothing else is to be decompressed.
        if head.len() == size { Err(io::Error::other("enough")) } else { Ok(()) }
    });
    match read {
        Err(error) if head.len() < size => Err(error),
        _ => Ok(head),
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
