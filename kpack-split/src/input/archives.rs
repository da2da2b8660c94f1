//! Opens archives, and keeps some of them open for the next check or binary.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use kpack_format::archive::{Archive, Toc};
use kpack_format::names::KernelName;
use kpack_format::{Blake3, TargetId};

use super::kernel_names::{Head, KernelNames};
use super::{
    ArchiveFile, archive_reader, check_code_object, check_code_object_head, digest, open,
    or_refused, read_archive,
};
use crate::Error;
use crate::parallel::lock;
use crate::publish::Identity;
use kpack_core::Reason;
use kpack_core::files::{FileKind, kind_of};

/// An open archive, which several binaries may share.
pub type OpenArchive = Arc<Mutex<ArchiveFile>>;

/// Larger code objects are not held in memory to check them.
const LARGE: u64 = 8 << 20;

/// Maximum number of unused archives that stay open: the system limits open files, and trees have
/// thousands of archives.
const MOST_UNUSED: usize = 40;

/// The most entries in tables that are kept: some 30 MB.
const MOST_ENTRIES: u64 = 100_000;

/// The tables of archives that a run parsed, so that it parses none twice. Their files are closed.
#[derive(Debug, Default)]
pub struct ParsedArchives(Mutex<Tables>);

#[derive(Debug, Default)]
struct Tables {
    of: BTreeMap<Identity, Archive<()>>,
    /// The entries of all.
    entries: u64,
}

impl ParsedArchives {
    /// Opens the archive at `path`. Damage is [`Error::Refused`].
    pub fn open(&self, path: &Path) -> Result<ArchiveFile, Error> {
        self.read(path, open(path)?)
    }

    /// Reads the archive `file`, which is at `path`. Damage is [`Error::Refused`].
    pub fn read(&self, path: &Path, file: File) -> Result<ArchiveFile, Error> {
        let identity = Identity::of(path, &file)?;
        if let Some(known) = lock(&self.0).of.get(&identity) {
            return Ok(known.share(archive_reader(file)));
        }
        let archive = read_archive(path, file)?;
        let entries = archive.kernel_count();
        let mut tables = lock(&self.0);
        if tables.entries.saturating_add(entries) <= MOST_ENTRIES {
            tables.entries += entries;
            tables.of.insert(identity, archive.share(()));
        }
        Ok(archive)
    }
}

/// The archives opened last, and the digests of files.
#[derive(Default)]
pub struct Archives {
    /// Those that were opened before.
    pub parsed: ParsedArchives,
    open: Mutex<BTreeMap<PathBuf, OpenArchive>>,
    digests: Mutex<BTreeMap<PathBuf, Blake3>>,
    /// Those of the code objects that were read, by the real paths of their archives and their ordinals.
    kernels: Mutex<BTreeMap<PathBuf, BTreeMap<u32, Option<KernelNames>>>>,
}

impl Archives {
    /// The archive at `path`.
    pub fn open(&self, path: &Path) -> Result<OpenArchive, Error> {
        let real = real(path);
        if let Some(known) = lock(&self.open).get(&real) {
            return Ok(Arc::clone(known));
        }
        let opened = Arc::new(Mutex::new(self.parsed.open(path)?));
        let mut known = lock(&self.open);
        if known.len() >= MOST_UNUSED {
            known.retain(|_, archive| Arc::strong_count(archive) > 1);
        }
        Ok(Arc::clone(known.entry(real).or_insert(opened)))
    }

    /// The table of the archive at `path`.
    pub fn toc(&self, path: &Path) -> Result<Toc, Error> {
        Ok(lock(&*self.open(path)?).toc().clone())
    }

    /// Whether an archive named like one for `target` is one. If a module's name is a prefix of
    /// another's, the other's archives look like archives for odd targets. An unreadable archive
    /// counts.
    pub fn is_for(&self, path: &Path, target: &TargetId) -> Result<bool, Error> {
        let toc = or_refused(self.toc(path))?;
        Ok(toc.map_or(true, |toc| toc.gfx_arch_family == target.to_string()))
    }

    /// The targets that a lookup gets code for in the archive at `path`. It tries one with a target in its name
    /// for GPUs that run code for that target. An unreadable archive counts as `named`.
    pub fn targets(
        &self,
        path: &Path,
        named: Option<&TargetId>,
    ) -> Result<BTreeSet<TargetId>, Error> {
        let Ok(archive) = or_refused(self.open(path))? else {
            return Ok(named.cloned().into_iter().collect());
        };
        let archive = lock(&archive);
        let toc = archive.toc();
        let mut names = BTreeSet::from([&toc.gfx_arch_family]);
        names.extend(&toc.gfx_arches);
        toc.kernels.values().for_each(|of| names.extend(of.keys()));
        let targets = names.into_iter().filter_map(|target| target.parse().ok());
        let is_tried =
            |target: &TargetId| named.is_none_or(|named| target.compatible().contains(named));
        Ok(targets.filter(is_tried).collect())
    }

    /// The BLAKE3 digest of the file at `path`, archive or not, which is read once.
    pub fn digest(&self, path: &Path) -> Result<Blake3, Error> {
        if let Some(known) = lock(&self.digests).get(path) {
            return Ok(*known);
        }
        let read = digest(path)?;
        lock(&self.digests).insert(path.to_owned(), read);
        Ok(read)
    }

    /// Remembers the kernels of code objects of the archive at `path`, by ordinal.
    pub fn remember_kernels(
        &self,
        path: &Path,
        kernels: impl IntoIterator<Item = (u32, Option<KernelNames>)>,
    ) {
        lock(&self.kernels).entry(real(path)).or_default().extend(kernels);
    }

    /// The kernels of the code object of `kernel` for `target` in the archive at `path`, of which only the start is read,
    /// unless it was read before. `None` if it does not tell, or cannot be read, which is reported elsewhere.
    pub fn kernels(
        &self,
        path: &Path,
        kernel: &str,
        target: &str,
    ) -> Result<Option<KernelNames>, Error> {
        let Some(archive) = or_refused(self.open(path))?.ok() else {
            return Ok(None);
        };
        let mut archive = lock(&archive);
        let Ok(ordinal) = archive.toc().entry(kernel, target).map(|entry| entry.ordinal) else {
            return Ok(None);
        };
        let known = lock(&self.kernels);
        if let Some(known) = known.get(&real(path)).and_then(|known| known.get(&ordinal)) {
            return Ok(known.clone());
        }
        drop(known);
        let read = KernelNames::read(&mut archive, kernel, target)
            .map_err(|e| Error::archive(path, "read", e));
        let names = or_refused(read)?.ok().flatten();
        self.remember_kernels(path, [(ordinal, names.clone())]);
        Ok(names)
    }
}

fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// What was found in a code object that was read.
pub struct Checked<'a> {
    /// The entries that are wrong, as kernel and target, and why.
    pub wrong: Vec<(&'a str, &'a str, Reason)>,
    /// Its kernels; `None` if it does not tell.
    pub kernels: Option<KernelNames>,
}

/// Reads the code object of the archive at `path` that all of `entries` share, pairs of kernel and
/// target, once. Entries are wrong if it cannot be decompressed, has another checksum, or its own header does not name the
/// target.
///
/// # Errors
/// [`Error::Io`] if reading fails.
pub fn check<'a, R: Read + Seek>(
    path: &Path,
    archive: &mut Archive<R>,
    entries: &[(&'a str, &'a str)],
) -> Result<Checked<'a>, Error> {
    let Some(&(kernel, target)) = entries.first() else {
        return Ok(Checked { wrong: Vec::new(), kernels: None });
    };
    let entry = archive.toc().entry(kernel, target);
    let size = entry.map(|entry| entry.original_size);
    let read = size.and_then(|size| {
        if size <= LARGE {
            Ok((archive.read(kernel, target)?, size))
        } else {
            let mut head = Head::default();
            archive.read_parts(kernel, target, &mut |part| {
                head.add(part);
                Ok(())
            })?;
            Ok((head.bytes, size))
        }
    });
    let (bytes, size) = match or_refused(read.map_err(|e| Error::archive(path, "read", e)))? {
        Ok(read) => read,
        Err(found) => {
            return Ok(Checked { wrong: vec![(kernel, target, found.reason())], kernels: None });
        }
    };
    let is_right = |kernel: &str, target: &str| {
        let entry = archive.toc().entry(kernel, target).ok();
        let id = match entry.and_then(|entry| entry.less_specific(target)) {
            Some(id) => id,
            None => target.parse().map_err(|error| format!("{error}"))?,
        };
        if size <= LARGE {
            check_code_object(&bytes, &id)
        } else {
            check_code_object_head(&bytes, size, &id)
        }
    };
    let wrong = entries.iter().filter_map(|(kernel, target)| {
        // Files that were stored by their names may be anything.
        let is_of_binary = KernelName::binary_of(kernel).is_some();
        if !is_of_binary && kind_of(&bytes) != Some(FileKind::CodeObject) {
            return None;
        }
        let reason = is_right(kernel, target).err()?;
        Some((*kernel, *target, reason.into()))
    });
    Ok(Checked { wrong: wrong.collect(), kernels: KernelNames::of(&bytes) })
}
