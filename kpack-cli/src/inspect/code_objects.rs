//! Finds the code objects of one file: a linked binary, an object, a static library, an archive or
//! an offload bundle.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use kpack_build::internal::device_code;
use kpack_core::archives::{Budget, PackedCode, UncompressedCode};
use kpack_core::elf::Wrapper;
use kpack_format::names::KernelName;
use kpack_format::{Delivery, TargetId};

use kpack_core::words::{list, list_some};
use kpack_core::{Error, ids};
use kpack_split::input::{ArchiveFile, FileKind, identify, open, open_archive};
use kpack_split::split;

/// The selected code objects of a file.
pub struct SelectedCodeObjects {
    path: PathBuf,
    contents: OpenedCode,
    /// Kernels and targets, in order.
    selected: Vec<(String, TargetId)>,
}

enum OpenedCode {
    Archive(Box<ArchiveFile>),
    /// One for each object. Wrappers are counted through all of them.
    Bundles(Vec<PackedCode>),
}

/// Maximum number of names in an error.
const MOST_NAMES: usize = 5;

impl SelectedCodeObjects {
    /// Finds the code objects in `path` for `kernel`, and those that `target` [needs](TargetId::needs), if
    /// given. Outside of archives, a kernel is named
    /// after the file and the wrapper's index: `libvec.so#0`.
    ///
    /// # Errors
    /// [`Error::Refused`] if there is none, or the file is damaged; [`Error::Io`].
    pub fn find(
        path: &Path,
        kernel: Option<&str>,
        target: Option<&TargetId>,
    ) -> Result<Self, Error> {
        let contents = OpenedCode::read(path)?;
        let there = contents.names(path)?;
        let is_kernel = |name: &str| kernel.is_none_or(|kernel| kernel == name);
        let is_target =
            |own: &TargetId| target.is_none_or(|target| target.needs(own, Delivery::Archive));
        let selected: Vec<_> =
            there.iter().filter(|(name, own)| is_kernel(name) && is_target(own)).cloned().collect();
        if selected.is_empty() {
            let what = kernel
                .map_or_else(|| "code object".to_owned(), |kernel| format!("kernel `{kernel}`"));
            let target = target.map(|target| format!(" for {target}"));
            let (target, there) = (target.unwrap_or_default(), what_there_is(&there));
            return Err(Error::rejected(
                ids::NO_SUCH_CODE,
                path,
                format!("no {what}{target}{there}"),
            ));
        }
        Ok(Self { path: path.to_owned(), contents, selected })
    }

    /// The kernels and targets that were selected.
    pub fn selected(&self) -> &[(String, TargetId)] {
        &self.selected
    }

    /// If some are for exactly this target, keeps only those.
    pub fn prefer(&mut self, target: &TargetId) {
        if self.selected.iter().any(|(_, own)| own == target) {
            self.selected.retain(|(_, own)| own == target);
        }
    }

    /// Their size in bytes. One that several kernels share counts once.
    pub fn size(&self) -> u64 {
        let mut sizes = BTreeMap::new();
        match &self.contents {
            OpenedCode::Archive(archive) => {
                for (kernel, target) in &self.selected {
                    if let Ok(entry) = archive.toc().entry(kernel, &target.to_string()) {
                        sizes.insert((0, entry.ordinal), entry.original_size);
                    }
                }
            }
            OpenedCode::Bundles(files) => {
                let selected = BTreeSet::from_iter(&self.selected);
                for (first, code) in numbered(files) {
                    for (index, target, size) in code.entries() {
                        let name = (name_in(&self.path, first + index), target.clone());
                        if selected.contains(&name) {
                            sizes.insert((sizes.len(), 0), size);
                        }
                    }
                }
            }
        }
        sizes.into_values().fold(0, u64::saturating_add)
    }

    /// The most bytes of scratch files that [`read`](Self::read) needs at a time.
    pub fn scratch_size(&self) -> u64 {
        let OpenedCode::Bundles(files) = &self.contents else {
            return 0;
        };
        let sizes = files.iter().map(PackedCode::scratch_size);
        sizes.max().unwrap_or(0)
    }

    /// Reads each code object once, and passes it to `each` with the kernels and targets that share it. Large
    /// ones of bundles are kept in files in the directory `scratch`.
    ///
    /// # Errors
    /// Those of `each`; [`Error::Refused`] for damage, [`Error::Io`].
    pub fn read(mut self, scratch: &Path, each: &mut TakeCode<'_>) -> Result<(), Error> {
        match &mut self.contents {
            OpenedCode::Archive(archive) => {
                let mut shared: BTreeMap<u32, Vec<(String, TargetId)>> = BTreeMap::new();
                for (kernel, target) in self.selected {
                    let entry = archive
                        .toc()
                        .entry(&kernel, &target.to_string())
                        .map_err(|e| Error::archive(&self.path, "read", e))?;
                    let names = shared.entry(entry.ordinal).or_default();
                    names.push((kernel, target));
                }
                for names in shared.values() {
                    let (kernel, target) = &names[0];
                    let stored = CodeSource::Stored {
                        path: &self.path,
                        archive,
                        kernel,
                        target: target.to_string(),
                    };
                    each(names, SelectedCode(stored))?;
                }
            }
            OpenedCode::Bundles(files) => {
                let selected = BTreeSet::from_iter(&self.selected);
                let targets: BTreeSet<&TargetId> = selected.iter().map(|(_, own)| own).collect();
                let wanted = |own: &TargetId| targets.contains(own);
                let budget = Budget::default();
                let firsts: Vec<u32> = numbered(files).map(|(first, _)| first).collect();
                for (first, code) in firsts.into_iter().zip(files) {
                    code.keep_wrappers(&|index| {
                        let name = name_in(&self.path, first + index);
                        selected.iter().any(|(kernel, _)| *kernel == name)
                    });
                    for code_object in code.code_objects(&wanted, scratch, &budget) {
                        let (wrappers, id, content) = code_object?;
                        let Some(target) = id.target().cloned() else {
                            continue;
                        };
                        let index = first + wrappers.first().copied().unwrap_or_default();
                        let found = (name_in(&self.path, index), target);
                        if selected.contains(&found) {
                            each(&[found], SelectedCode(CodeSource::Code(&content)))?;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// Takes a code object, with the kernels and targets that share it.
pub type TakeCode<'a> =
    dyn FnMut(&[(String, TargetId)], SelectedCode<'_>) -> Result<(), Error> + 'a;

/// A code object that is being read.
pub struct SelectedCode<'a>(CodeSource<'a>);

enum CodeSource<'a> {
    /// In an archive, from which it is read in parts.
    Stored {
        path: &'a Path,
        archive: &'a mut ArchiveFile,
        kernel: &'a str,
        target: String,
    },
    Code(&'a UncompressedCode),
}

impl SelectedCode<'_> {
    /// Writes all of it to `out`. Damage may be found last: until this returns, nothing is verified. `failed`
    /// adds the path to an error of `out`.
    ///
    /// # Errors
    /// [`Error::Refused`] for damage; [`Error::Io`].
    pub fn write_to(
        self,
        out: &mut dyn Write,
        failed: &dyn Fn(io::Error) -> Error,
    ) -> Result<(), Error> {
        match self.0 {
            CodeSource::Code(content) => content.write_to(out).map_err(failed),
            CodeSource::Stored { path, archive, kernel, target } => {
                let mut unwritten = None;
                let read = archive.read_parts(kernel, &target, &mut |part| {
                    out.write_all(part).map_err(|error| {
                        let kind = error.kind();
                        unwritten = Some(error);
                        kind.into()
                    })
                });
                match unwritten {
                    Some(error) => Err(failed(error)),
                    None => read.map(drop).map_err(|error| Error::archive(path, "read", error)),
                }
            }
        }
    }
}

impl OpenedCode {
    fn read(path: &Path) -> Result<Self, Error> {
        let file = open(path)?;
        let bundles = match identify(path, &file)? {
            Some(FileKind::Archive) => {
                return Ok(Self::Archive(Box::new(open_archive(path)?)));
            }
            Some(FileKind::Object | FileKind::StaticLibrary) => device_code(path)?,
            Some(FileKind::Bundle | FileKind::CodeObject) => {
                let size = file.metadata().map_err(|e| Error::io(path, "read", e))?;
                let whole = Wrapper {
                    co_index: 0,
                    address: 0,
                    bundle_address: 0,
                    bundle_offset: 0,
                    bundle_available: size.len(),
                };
                vec![PackedCode::read(path, &file, &[whole], split::Spirv::Archive)?]
            }
            _ => match split::read(path, None)? {
                split::BinaryKind::Fat(fat, _) | split::BinaryKind::Kept(fat) => vec![fat.code],
                split::BinaryKind::Split(_) => {
                    let reason = "already split, so its device code is in archives; `kpack show FILE` lists them; pass one of them instead";
                    return Err(Error::rejected(ids::CODE_IN_ARCHIVES, path, reason));
                }
                split::BinaryKind::LeftAlone(_, reason) => {
                    return Err(Error::rejected(ids::NO_DEVICE_CODE, path, reason));
                }
            },
        };
        Ok(Self::Bundles(bundles))
    }

    /// The kernels and targets of all code objects, in order.
    fn names(&self, path: &Path) -> Result<Vec<(String, TargetId)>, Error> {
        let mut names = Vec::new();
        match self {
            Self::Archive(archive) => {
                for (kernel, targets) in &archive.toc().kernels {
                    for target in targets.keys() {
                        let target = target.parse::<TargetId>().map_err(|e| {
                            Error::rejected(ids::DAMAGED_ARCHIVE, path, e.to_string())
                        })?;
                        names.push((kernel.clone(), target));
                    }
                }
            }
            Self::Bundles(files) => {
                for (first, code) in numbered(files) {
                    let entries = code.entries();
                    names.extend(
                        entries.map(|(index, target, _)| {
                            (name_in(path, first + index), target.clone())
                        }),
                    );
                }
            }
        }
        names.sort_by(|(a, own), (b, other)| {
            (KernelName::parse(a), own).cmp(&(KernelName::parse(b), other))
        });
        Ok(names)
    }
}

/// The device code of each object, and the index of its first wrapper in the file.
fn numbered(files: &[PackedCode]) -> impl Iterator<Item = (u32, &PackedCode)> {
    let mut next = 0;
    files.iter().map(move |code| {
        let first = next;
        next += code.wrapper_count() as u32;
        (first, code)
    })
}

/// The kernel of the wrapper with this index in a file.
fn name_in(path: &Path, index: u32) -> String {
    let name = path.file_name().unwrap_or_default();
    KernelName::new(&name.to_string_lossy(), index).to_string()
}

/// What an error says about the code objects of a file.
fn what_there_is(names: &[(String, TargetId)]) -> String {
    if names.is_empty() {
        return String::new();
    }
    let targets: BTreeSet<String> = names.iter().map(|(_, own)| own.to_string()).collect();
    let mut kernels: Vec<&str> = names.iter().map(|(name, _)| name.as_str()).collect();
    kernels.dedup();
    let (targets, kernels) = (list(targets), list_some(kernels, MOST_NAMES));
    format!("; the file has code for {targets}, and the kernels {kernels}")
}
