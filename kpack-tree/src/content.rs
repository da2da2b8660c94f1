//! Reads which targets a file's content names: a code object, bundle, archive or library file.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use kpack_format::TargetId;
use kpack_format::code_object::CodeObject;
use kpack_format::offload_bundle::Bundle;
use kpack_format::unstable::tensile::Library;

use crate::kernel_cache::Unreadable;
use kpack_core::files::{SharedFile, bundle_error, failed_code_object};
use kpack_core::words::list;
use kpack_core::{Error, ids};
use kpack_split::input::{self, FileKind, LinkedBinary, ParsedArchives};
use kpack_split::split;

/// The targets that a file's content names.
pub(super) enum FileContent {
    /// It names none.
    Silent,
    /// An AMDGPU code object; the target is `None` if its processor is unknown.
    CodeObject(Option<TargetId>),
    /// An offload bundle or fat binary with device code for these targets.
    Bundle(BTreeSet<TargetId>),
    /// A kpack archive for these targets.
    Archive(BTreeSet<TargetId>),
    /// A library file of Tensile.
    Library(Library),
    /// No library file of Tensile, in its place. It is damaged if its first bytes fit no other format.
    NoLibrary(Unreadable),
}

/// What `.dat` files are in, where they are not in MessagePack: compressed, or YAML and JSON.
fn is_of_another_format(bytes: &[u8]) -> bool {
    const GZIP: &[u8] = &[0x1f, 0x8b];
    const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
    const ZLIB: u8 = 0x78;
    let is_text = |first: &u8| first.is_ascii_graphic() || first.is_ascii_whitespace();
    let is_other = |first: &u8| *first == ZLIB || is_text(first);
    bytes.first().is_some_and(is_other) || bytes.starts_with(GZIP) || bytes.starts_with(ZSTD)
}

impl FileContent {
    pub(super) fn read(
        path: &Path,
        file: &File,
        size: u64,
        kind: Option<FileKind>,
        library: bool,
        archives: Option<&ParsedArchives>,
    ) -> Result<Self, Error> {
        let refused = |id, error: &dyn Display| Error::rejected(id, path, error.to_string());
        let clone = || {
            let clone = file.try_clone();
            clone.map_err(|error| Error::io(path, "read", error))
        };
        let reader = || BufReader::new(SharedFile::of(file));
        Ok(match kind {
            Some(FileKind::CodeObject) => {
                let read = CodeObject::read(&mut reader(), size);
                Self::CodeObject(read.map_err(|error| failed_code_object(path, error))?.target)
            }
            Some(FileKind::Bundle) => {
                let read = Bundle::read(&mut reader(), size);
                let bundle = read
                    .and_then(|bundle| {
                        bundle.check_hash(reader())?;
                        Ok(bundle)
                    })
                    .map_err(|error| bundle_error(path, "", error))?;
                let used = bundle.entries.iter().filter(|entry| entry.size > 0);
                Self::Bundle(used.filter_map(|entry| entry.id.target().cloned()).collect())
            }
            Some(FileKind::Linked) => match split::of(LinkedBinary::read(path, clone()?)?, None)? {
                split::BinaryKind::Fat(fat, _) => Self::Bundle(fat.code.targets()),
                _ => Self::Silent,
            },
            Some(FileKind::Archive) => {
                let archive = match archives {
                    Some(archives) => archives.read(path, clone()?)?,
                    None => input::read_archive(path, clone()?)?,
                };
                let targets = archive.toc().gfx_arches.iter().map(|target| target.parse());
                Self::Archive(
                    targets
                        .collect::<Result<_, _>>()
                        .map_err(|e| refused(ids::DAMAGED_ARCHIVE, &e))?,
                )
            }
            None if library => {
                let mut bytes = Vec::with_capacity(size.min(1 << 20) as usize);
                let read = SharedFile::of(file).read_to_end(&mut bytes);
                read.map_err(|e| Error::io(path, "read", e))?;
                match Library::read(&bytes) {
                    Ok(library) => Self::Library(library),
                    Err(error) => Self::NoLibrary(Unreadable {
                        reason: error.to_string(),
                        damaged: !is_of_another_format(&bytes),
                    }),
                }
            }
            _ => Self::Silent,
        })
    }

    /// The targets that a code object or a bundle is for.
    pub(super) fn targets(&self) -> BTreeSet<TargetId> {
        match self {
            Self::CodeObject(target) => target.iter().cloned().collect(),
            Self::Bundle(targets) => targets.clone(),
            _ => BTreeSet::new(),
        }
    }

    /// The file's target, if it has only one.
    pub(super) fn only_target(&self) -> Option<&TargetId> {
        let targets = match self {
            Self::CodeObject(target) => return target.as_ref(),
            Self::Bundle(targets) | Self::Archive(targets) => targets,
            Self::Library(library) => &library.targets,
            Self::Silent | Self::NoLibrary(_) => return None,
        };
        let mut targets = targets.iter();
        targets.next().filter(|_| targets.next().is_none())
    }

    /// How the content contradicts `said`, if it does.
    pub(super) fn contradiction(&self, said: &TargetId) -> Option<String> {
        let agrees = |own: &TargetId| said.may_run_on(own);
        match self {
            Self::CodeObject(Some(own)) if !agrees(own) => {
                Some(format!("the ELF header of the code object says {own}"))
            }
            Self::Bundle(targets) if !targets.iter().all(agrees) => {
                Some(format!("it has code for {}", list(targets)))
            }
            // Archives are found by their exact target.
            Self::Archive(targets) if !targets.iter().eq([said]) => {
                Some(format!("the archive says {}", list(targets)))
            }
            // One that names other targets too, such as where to fall back to, is no contradiction.
            Self::Library(library)
                if !library.targets.is_empty() && !library.targets.iter().any(agrees) =>
            {
                Some(format!("the library file names {}", list(&library.targets)))
            }
            _ => None,
        }
    }
}
