//! Writes the application into the hidden directory.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
use std::io::{self, Write};
use std::iter;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kpack_artifact::removal;
use kpack_core::files::open;
use kpack_core::finding::Finding;
use kpack_core::platform::{MetadataExt, set_mode};
use kpack_core::publish::{Directory, copy_to_disk};
use kpack_core::{Error, interrupt};
use kpack_split::input::{ClosedBinary, LinkedBinary, until_unchanged};
use kpack_split::split::{self, BinaryKind, Spirv};
use kpack_split::trim::{self, Keep, Scratch, Trim};

use super::plan::{Entry, Plan};
use crate::stage::output_dir::Prefix;

/// What was written.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// The paths of programs and libraries in the output.
    pub(super) binaries: BTreeSet<PathBuf>,
    /// By path in the output, the originals of copies without device code.
    pub(super) originals: BTreeMap<PathBuf, Original>,
    /// What to say of files that keep their code.
    pub(super) findings: Vec<Finding>,
}

/// A file that was copied without its device code, which is yet to be split.
#[derive(Debug)]
pub(super) struct Original {
    pub(super) binary: Arc<ClosedBinary>,
    /// The code that the copy lacks.
    pub(super) code: Vec<Range<u64>>,
}

impl Original {
    /// What the copy has of a file of this size.
    pub(super) fn copied(&self, size: u64) -> Vec<Range<u64>> {
        let ends = self.code.iter().map(|code| code.start).chain([size]);
        let starts = [0].into_iter().chain(self.code.iter().map(|code| code.end));
        starts.zip(ends).map(|(start, end)| start..end).filter(|part| !part.is_empty()).collect()
    }
}

/// How much of each bundle is copied all the same, so that a file without device code has bundles where it had them.
const BUNDLE_HEAD: u64 = 4096;

struct Writer<'a> {
    plan: &'a Plan,
    output: &'a Prefix,
    keep: Option<&'a Keep>,
    /// The files that are copied without device code.
    hollow: BTreeSet<&'a Path>,
    /// The directory of the last entry: they come in the order of their paths.
    last: Option<(PathBuf, Directory)>,
    written: Written,
}

/// Writes all of `plan`. With `keep`, the code for other GPUs goes. If the application `is_split`, files get holes for code that
/// the split reads from the originals, so that nothing copies it.
///
/// # Errors
/// [`Error::Io`]; [`Error::Refused`] for damaged files.
pub(super) fn apply(
    plan: &Plan,
    output: &Prefix,
    keep: Option<&Keep>,
    is_split: bool,
) -> Result<Written, Error> {
    let written = Written::default();
    // What a trim leaves is not in the original.
    let hollow = plan.fat.values().flatten().filter(|_| is_split && keep.is_none());
    let hollow = hollow.map(PathBuf::as_path).collect();
    let mut writer = Writer { plan, output, keep, hollow, last: None, written };
    for (path, entry) in &plan.entries {
        writer.entry(path, entry)?;
    }
    Ok(writer.written)
}

impl Writer<'_> {
    fn entry(&mut self, path: &Path, entry: &Entry) -> Result<(), Error> {
        match entry {
            Entry::Binary(from) => {
                self.copy(path, from)?;
                self.written.binaries.insert(path.to_owned());
            }
            Entry::Copy(from) => self.copy(path, from)?,
            Entry::Manifest(from) => self.manifest(path, from)?,
            Entry::Link(target) => {
                let shown = self.output.path.join(path);
                let (directory, name) = self.place(path)?;
                let linked = directory.symlink(name, target);
                linked.map_err(|error| Error::io(&shown, "link", error))?;
            }
        }
        Ok(())
    }

    /// The directory for an entry, and its name.
    fn place<'p>(&mut self, path: &'p Path) -> Result<(&Directory, &'p OsStr), Error> {
        let parent = path.parent().unwrap_or(Path::new(""));
        let name = path.file_name().unwrap_or_default();
        if self.last.as_ref().is_none_or(|(last, _)| last != parent) {
            self.last = Some((parent.to_owned(), self.output.tree.provide_below(parent)?));
        }
        match &self.last {
            Some((_, directory)) => Ok((directory, name)),
            None => Err(Error::changed(path)),
        }
    }

    /// Copies a file, without code for other GPUs. The copy can be run if the file can.
    fn copy(&mut self, path: &Path, from: &Path) -> Result<(), Error> {
        let shown = self.output.path.join(path);
        interrupt::check(&shown, "write")?;
        until_unchanged(|| {
            let input = open(from)?;
            let trimmed = self.trimmed(from, &input)?;
            let original = self.original(path, from, &input)?;
            let (directory, name) = self.place(path)?;
            // Another attempt may have begun it.
            directory.remove_tree(name)?;
            let failed = |error| Error::io(&shown, "write", error);
            // Copying reads and writes, and the system does not say which of both failed.
            let not_copied = |error: io::Error| match error.kind() {
                FileTooLarge | QuotaExceeded | StorageFull => failed(error),
                _ => Error::io(from, "copy", error),
            };
            let output = directory.create(name).map_err(failed)?;
            match trimmed {
                Some(plan) => {
                    plan.write_to(from, &input, &output).map_err(|error| match error {
                        Error::Io { source, .. } => not_copied(source),
                        error => error,
                    })?;
                }
                None => {
                    let size = input.metadata().map_err(not_copied)?.len();
                    let parts = match &original {
                        Some(original) => original.copied(size),
                        None => iter::once(0..size).collect(),
                    };
                    for part in parts {
                        let to = part.start;
                        copy_to_disk(&input, &output, part, to).map_err(not_copied)?;
                    }
                    output.set_len(size).map_err(failed)?;
                }
            }
            let mode = input.metadata().map_err(failed)?.mode();
            let mode = if mode & 0o111 == 0 { 0o644 } else { 0o755 };
            set_mode(&output, mode).map_err(failed)?;
            self.written.originals.extend(original.map(|original| (path.to_owned(), original)));
            Ok(())
        })
    }

    /// How a file becomes smaller, if it does.
    fn trimmed(&mut self, from: &Path, input: &File) -> Result<Option<Box<trim::TrimPlan>>, Error> {
        let Some(keep) = self.keep else {
            return Ok(None);
        };
        let file = input.try_clone().map_err(|error| Error::io(from, "read", error))?;
        let scratch = Scratch { directory: &self.output.hidden, only_measured: false };
        Ok(match trim::plan(from, file, keep, scratch)? {
            Trim::Planned(plan) => Some(plan),
            Trim::LeftAlone(finding) => {
                self.written.findings.push(finding);
                None
            }
            Trim::Nothing(_) | Trim::Done => None,
        })
    }

    /// What a copy lacks, if all of the file's code is moved.
    fn original(&self, path: &Path, from: &Path, input: &File) -> Result<Option<Original>, Error> {
        if !self.hollow.contains(path) {
            return Ok(None);
        }
        let file = input.try_clone().map_err(|error| Error::io(from, "read", error))?;
        let linked = LinkedBinary::read(from, file)?;
        let binary = Arc::new(linked.close()?);
        let BinaryKind::Fat(fat, _) = split::of(linked, Some(Spirv::default()))? else {
            return Ok(None);
        };
        let code = fat.code.ranges().map(|bundle| bundle.start + BUNDLE_HEAD..bundle.end);
        let code = code.filter(|code| !code.is_empty()).collect();
        Ok(fat.code.kept().is_empty().then_some(Original { binary, code }))
    }

    /// Writes a manifest without archives that are not staged.
    fn manifest(&mut self, path: &Path, from: &Path) -> Result<(), Error> {
        let parent = path.parent().unwrap_or(Path::new(""));
        let is_gone = |name: &str| !self.plan.entries.contains_key(&parent.join(name));
        match removal::without(from, open(from)?, &is_gone)? {
            None => self.copy(path, from)?,
            Some(bytes) => {
                let shown = self.output.path.join(path);
                let (directory, name) = self.place(path)?;
                let written = directory.create(name).and_then(|mut file| {
                    file.write_all(&bytes)?;
                    set_mode(&file, 0o644)
                });
                written.map_err(|error| Error::io(&shown, "write", error))?;
            }
        }
        Ok(())
    }
}
