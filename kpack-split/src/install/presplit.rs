//! Installs binaries linked from objects that were split before the link. Their markers still refer
//! to archives in the build tree by absolute paths. Installing copies the code objects from there
//! into the archives of the prefix and changes the markers in place, as if the linked binary had
//! been split. Nothing else in the file changes.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufReader;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::archive::{Archive, ArchiveWriter};
use kpack_format::marker::{Marker, SECTION_NAME};
use kpack_format::names::{Group, KernelName};

use crate::Error;
use crate::elf::{DeviceCode, Image, SplitBinary};
use crate::inspect::{self, elf_error, find_kpacks, read_markers};

/// Advice for an archive that changed since the object was compiled.
const COMPILE_AGAIN: &str = "Compile that object again (if the build system considers it up to date, remove it first, or build with --clean-first)";
/// Offset of the code object index in a wrapper, in bytes.
const CO_INDEX: u64 = 16;

/// A binary split before the link, with the archives that its markers refer to.
pub(crate) struct Presplit {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    wrappers: Vec<Wrapper>,
    archives: Vec<Source>,
}

/// A wrapper.
struct Wrapper {
    /// Its position in the binary, which becomes its code object index.
    position: u32,
    /// File offset of the wrapper.
    offset: u64,
    /// File offset of its marker, and the room for a new one, in bytes.
    marker: (u64, usize),
    /// Its kernel name in the build tree.
    kernel: String,
    /// Module and component of its archives.
    group: Group,
}

/// An archive in the build tree.
struct Source {
    path: PathBuf,
    group: Group,
    target: TargetId,
    archive: Archive<BufReader<File>>,
}

/// Fills an archive.
pub(crate) type Fill<'a> = dyn FnOnce(&mut ArchiveWriter<File>) -> Result<(), Error> + 'a;

/// Passes the archive of a group and target to a function that fills it.
pub(crate) type Destination<'a> =
    dyn FnMut(&Group, &TargetId, Box<Fill<'_>>) -> Result<(), Error> + 'a;

impl Presplit {
    /// Reads the binary at `path`; `None` if all its markers are relative, or none of its objects
    /// was split before the link. If only some were, all its code objects must be collected.
    ///
    /// # Errors
    /// [`Error::Refused`] if an archive that a marker refers to is missing or lacks a code object
    /// for a target.
    pub(crate) fn read(path: &Path) -> Result<Option<Self>, Error> {
        Self::read_markers(path, false)
    }

    /// Like [`read`](Self::read), for a binary in its build tree, where relative markers refer to
    /// archives too.
    pub(crate) fn read_linked(path: &Path) -> Result<Option<Self>, Error> {
        Self::read_markers(path, true)
    }

    fn read_markers(path: &Path, relative: bool) -> Result<Option<Self>, Error> {
        let image = Image::read(inspect::open(path)?).map_err(|e| elf_error(path, e))?;
        let (split, mixed) = match image.device_code().map_err(|e| elf_error(path, e))? {
            DeviceCode::Split(split) => (split, false),
            DeviceCode::Fat(fat) if !fat.split_before.is_empty() => {
                let wrappers = fat.split_before;
                (SplitBinary { wrappers }, true)
            }
            _ => return Ok(None),
        };
        let groups = read_markers(path, &image, &split)?;
        let is_absolute = |marker: &Marker| {
            let mut paths = marker.kpack_search_paths.iter();
            marker.kernel_name.is_some() && paths.any(|path| path.starts_with('/'))
        };
        if !relative && !mixed && !groups.iter().any(|group| is_absolute(&group.marker)) {
            return Ok(None);
        }
        let mut presplit = Self {
            path: path.to_owned(),
            // Keep the file that was read, even if another one replaced it: the changes are for
            // this one.
            file: image
                .source()
                .try_clone()
                .map_err(|e| Error::io(path, "open", e))?,
            wrappers: Vec::new(),
            archives: Vec::new(),
        };
        for group in &groups {
            let module = presplit.open_archives(&group.marker)?;
            let name = group.marker.kernel_name.clone().unwrap_or_default();
            for (position, index) in group.wrappers.iter().zip(group.indices(&split)) {
                let Some(wrapper) = split.wrappers.get(*position) else {
                    continue;
                };
                let range = wrapper.address..wrapper.address + 24;
                let Some(offset) = image.offset_of(&range) else {
                    return Err(Error::refused(
                        path,
                        format!(
                            "the wrapper at address {:#x} is not in the file",
                            range.start
                        ),
                    ));
                };
                let room = room(path, &image, &split, wrapper.marker_offset)?;
                let position = wrapper.position;
                let wrapper = Wrapper {
                    position,
                    offset,
                    marker: (wrapper.marker_offset, room),
                    kernel: KernelName::new(&name, index).to_string(),
                    group: module.clone(),
                };
                presplit.is_there(&wrapper, &group.marker)?;
                presplit.wrappers.push(wrapper);
            }
        }
        presplit.wrappers.sort_by_key(|wrapper| wrapper.position);
        Ok(Some(presplit))
    }

    /// Opens the archives that a marker refers to and returns their module and component.
    fn open_archives(&mut self, marker: &Marker) -> Result<Group, Error> {
        let missing = |reason: String| {
            let paths = marker.kpack_search_paths.join("`, `");
            Error::refused(
                &self.path,
                format!(
                    "its device code was split before the link, and {reason}; its marker refers to `{paths}`. {COMPILE_AGAIN}"
                ),
            )
        };
        // If there are absolute paths, the relative ones are for the install location, which may
        // hold older archives.
        let mut places = marker.clone();
        let is_absolute = |path: &String| path.starts_with('/');
        if places.kpack_search_paths.iter().any(is_absolute) {
            places.kpack_search_paths.retain(is_absolute);
        }
        let kpacks = find_kpacks(&self.path, &places)?;
        let mut group = None;
        for kpack in &kpacks.files {
            if kpack.size.is_none() {
                return Err(missing(format!("{} is missing", kpack.path.display())));
            }
            if let Some(known) = self.archives.iter().find(|known| known.path == kpack.path) {
                group = group.or_else(|| Some(known.group.clone()));
                continue;
            }
            let archive = inspect::open_archive(&kpack.path)?;
            let name = Group::from(archive.toc().group_name.as_str());
            group = group.or_else(|| Some(name.clone()));
            let target = kpack.target.parse();
            self.archives.push(Source {
                path: kpack.path.clone(),
                group: name,
                target: target.map_err(|e| Error::refused(&kpack.path, format!("{e}")))?,
                archive,
            });
        }
        group.ok_or_else(|| missing("its archives are missing".to_owned()))
    }

    /// Refuses a wrapper whose code object is in no archive.
    fn is_there(&self, wrapper: &Wrapper, marker: &Marker) -> Result<(), Error> {
        let has = |source: &Source| source.archive.toc().kernels.contains_key(&wrapper.kernel);
        if self.archives.iter().any(has) {
            return Ok(());
        }
        Err(Error::refused(
            &self.path,
            format!(
                "no archive has kernel `{}`; its marker refers to `{}`. The object was recompiled after the link, or never: link again. {COMPILE_AGAIN}",
                wrapper.kernel,
                marker.kpack_search_paths.join("`, `")
            ),
        ))
    }

    /// Number of wrappers.
    pub(crate) fn wrapper_count(&self) -> usize {
        self.wrappers.len()
    }

    /// The targets that it has device code for.
    pub(crate) fn targets(&self) -> BTreeSet<TargetId> {
        let archives = self.archives.iter();
        let used = archives.filter(|source| {
            let kernels = &source.archive.toc().kernels;
            let mut wrappers = self.wrappers.iter();
            wrappers.any(|wrapper| kernels.contains_key(&wrapper.kernel))
        });
        used.map(|source| source.target.clone()).collect()
    }

    /// Reads its code objects in an archive: damaged ones must not be installed.
    fn check_code_objects(
        &self,
        source: &Source,
        archive: &mut Archive<BufReader<File>>,
    ) -> Result<(), Error> {
        let mut checked = BTreeSet::new();
        for wrapper in &self.wrappers {
            let targets = source.archive.toc().kernels.get(&wrapper.kernel);
            for (target, entry) in targets.into_iter().flatten() {
                if !checked.insert(entry.ordinal) {
                    continue;
                }
                let read = archive.read(&wrapper.kernel, target);
                read.map_err(|error| match Error::archive(&source.path, "read", error) {
                    Error::Refused { path, reason } => {
                        Error::refused(&path, format!("{reason}. {COMPILE_AGAIN}"))
                    }
                    error => error,
                })?;
            }
        }
        Ok(())
    }

    /// Copies its code objects for the wanted targets, named `name#<position>`.
    pub(crate) fn collect(
        &self,
        name: &str,
        wanted: &dyn Fn(&TargetId) -> bool,
        destination: &mut Destination<'_>,
    ) -> Result<(), Error> {
        let wrappers = &self.wrappers;
        for source in self.archives.iter().filter(|source| wanted(&source.target)) {
            let names = |kernel: &str| {
                let own = wrappers.iter().filter(|wrapper| wrapper.kernel == kernel);
                own.map(|wrapper| KernelName::new(name, wrapper.position).to_string())
                    .collect()
            };
            let mut archive = inspect::open_archive(&source.path)?;
            self.check_code_objects(source, &mut archive)?;
            let fill = |destination: &mut ArchiveWriter<File>| {
                let merged = destination.merge_as(&mut archive, names);
                merged.map_err(|error| Error::archive(&source.path, "merge", error))
            };
            destination(&source.group, &source.target, Box::new(fill))?;
        }
        Ok(())
    }

    /// The changes to the file: each marker becomes its group's, each index the wrapper's position.
    ///
    /// # Errors
    /// [`Error::Refused`] if a new marker does not fit.
    pub(crate) fn edits(
        &self,
        marker_of: &dyn Fn(&Group) -> Marker,
    ) -> Result<Vec<(u64, Vec<u8>)>, Error> {
        let mut edits = Vec::new();
        for wrapper in &self.wrappers {
            let (offset, room) = wrapper.marker;
            let marker = marker_of(&wrapper.group);
            let Some(bytes) = marker.to_bytes_within(room) else {
                return Err(Error::refused(
                    &self.path,
                    format!(
                        "the marker at file offset {offset:#x} has room for {room} bytes, but the new one needs {}: install to a shorter path in the prefix, or split the linked binary instead of its objects",
                        marker.without_code_ids().to_bytes().len()
                    ),
                ));
            };
            edits.push((offset, bytes));
            let index = u64::from(wrapper.position);
            edits.push((wrapper.offset + CO_INDEX, index.to_le_bytes().to_vec()));
        }
        Ok(edits)
    }
}

/// Room for a marker at a file offset, in bytes: up to the next marker or the end of the section.
pub(crate) fn room(
    path: &Path,
    image: &Image<File>,
    split: &SplitBinary,
    marker: u64,
) -> Result<usize, Error> {
    // There may be a second section of markers, from splitting the rest of the binary.
    let section = image.sections.iter().find(|section| {
        section.name == SECTION_NAME
            && (section.offset..section.offset + section.size).contains(&marker)
    });
    let section_end = section.map(|section| section.offset + section.size);
    let mut end = section_end.unwrap_or(marker);
    for other in &split.wrappers {
        if other.marker_offset > marker {
            end = end.min(other.marker_offset);
        }
    }
    let mut bytes = vec![0; (end - marker).min(64 << 10) as usize];
    image
        .source()
        .read_exact_at(&mut bytes, marker)
        .map_err(|e| Error::io(path, "read", e))?;
    let Ok((_, size)) = Marker::read(&bytes) else {
        return Ok(0);
    };
    let zeroes = bytes[size..].iter().take_while(|byte| **byte == 0).count();
    Ok(size + zeroes)
}
