//! Installs binaries linked from objects that were split before the link. Their markers still refer
//! to archives in the build tree by absolute paths. Installing copies the code objects from there
//! into the archives of the prefix and changes the markers in place, as if the linked binary had
//! been split. Nothing else in the file changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::PathBuf;

use kpack_format::TargetId;
use kpack_format::archive::ArchiveWriter;
use kpack_format::marker::Marker;
use kpack_format::names::{Group, KernelName};

use crate::elf::{DeviceCode, SplitWrapper};
use crate::input::{ArchiveFile, LinkedBinary, Lookup, OpenArchive};
use crate::parallel::lock;
use crate::split::{DebugInfo, Treatment};
use crate::{Error, ids};

/// Advice for an archive that changed since the object was compiled.
const COMPILE_AGAIN: &str = "compile the binary's objects again (if the build system considers them up to date, remove them first, or build with --clean-first)";
/// Offset of the code object index in a wrapper, in bytes.
const CO_INDEX: u64 = 16;

/// A binary split before the link, with the archives that its markers refer to.
pub struct Presplit {
    linked: LinkedBinary,
    wrappers: Vec<PresplitWrapper>,
    archives: Vec<BuiltArchive>,
}

/// A wrapper.
struct PresplitWrapper {
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
struct BuiltArchive {
    path: PathBuf,
    group: Group,
    target: TargetId,
    archive: OpenArchive,
}

impl BuiltArchive {
    fn has(&self, kernel: &str) -> bool {
        lock(&self.archive).toc().kernels.contains_key(kernel)
    }
}

/// Adds the code objects of an archive to another as `names` says, without their debug sections.
fn add_treated(
    source: &BuiltArchive,
    archive: &mut ArchiveFile,
    names: impl Fn(&str) -> Vec<String>,
    treatment: &Treatment<'_>,
    destination: &mut ArchiveWriter<File>,
) -> Result<(), Error> {
    let target = source.target.to_string();
    // The kernels that share a code object.
    let mut shared: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for (kernel, targets) in &archive.toc().kernels {
        if let Some(entry) = targets.get(&target) {
            let key = (entry.ordinal, entry.entry_id.clone());
            shared.entry(key).or_default().push(kernel.clone());
        }
    }
    for ((_, entry_id), kernels) in shared {
        let new: Vec<String> = kernels.iter().flat_map(|kernel| names(kernel)).collect();
        if new.is_empty() {
            continue;
        }
        let code = archive
            .read(&kernels[0], &target)
            .map_err(|error| Error::archive(&source.path, "read", error))?;
        treatment.add(destination, &new, entry_id.as_deref(), code, &source.path)?;
    }
    Ok(())
}

/// Fills an archive.
pub(crate) type Fill<'a> = dyn FnOnce(&mut ArchiveWriter<File>) -> Result<(), Error> + 'a;

/// Passes the archive of a group and target to a function that fills it.
pub(crate) type ArchiveFiller<'a> =
    dyn FnMut(&Group, &TargetId, Box<Fill<'_>>) -> Result<(), Error> + 'a;

impl Presplit {
    /// Reads a binary. `None` if none of its objects was split before the link, or if all markers are
    /// relative and it is not `in_build_tree` (there, relative markers refer to archives too). If only
    /// some objects were split, all its code objects must be collected.
    ///
    /// # Errors
    /// [`Error::Refused`] if an archive that a marker refers to is missing or lacks a code object
    /// for a target.
    pub fn read(
        linked: LinkedBinary,
        in_build_tree: bool,
        lookup: &Lookup,
    ) -> Result<Option<Self>, Error> {
        let markers = linked.markers()?;
        let is_absolute = |marker: &Marker| {
            let mut paths = marker.kpack_search_paths.iter();
            marker.kernel_name.is_some() && paths.any(|path| path.starts_with('/'))
        };
        let is_mixed = matches!(linked.code, DeviceCode::Fat(_));
        let is_one = in_build_tree || is_mixed || markers.iter().any(|m| is_absolute(&m.marker));
        if markers.is_empty() || !is_one {
            return Ok(None);
        }
        let mut presplit = Self { linked, wrappers: Vec::new(), archives: Vec::new() };
        for group in &markers {
            let module = presplit.open_archives(&group.marker, lookup)?;
            for wrapper in &group.wrappers {
                let wrapper = presplit.wrapper(wrapper, &group.marker, &module)?;
                presplit.wrappers.push(wrapper);
            }
        }
        presplit.wrappers.sort_by_key(|wrapper| wrapper.position);
        Ok(Some(presplit))
    }

    /// Locates a wrapper, its marker and its code object.
    fn wrapper(
        &self,
        found: &SplitWrapper,
        marker: &Marker,
        group: &Group,
    ) -> Result<PresplitWrapper, Error> {
        let LinkedBinary { path, image, .. } = &self.linked;
        let range = found.address..found.address + 24;
        let Some(offset) = image.offset_of(&range) else {
            let start = range.start;
            let text = format!("the wrapper at address {start:#x} is not in the file");
            return Err(Error::rejected(ids::DAMAGED_BINARY, path, text));
        };
        let name = marker.kernel_name.as_deref().unwrap_or_default();
        let kernel = KernelName::new(name, found.co_index).to_string();
        if !self.archives.iter().any(|source| source.has(&kernel)) {
            return Err(Error::rejected(
                ids::RECOMPILED_AFTER_LINK,
                path,
                format!(
                    "no archive has kernel `{kernel}`, because its object was recompiled after the link; link again. (Its marker refers to `{}`.) If that does not help: {COMPILE_AGAIN}",
                    marker.kpack_search_paths.join("`, `")
                ),
            ));
        }
        Ok(PresplitWrapper {
            position: found.position,
            offset,
            marker: (found.marker_offset, self.linked.marker_room(found.marker_offset)?),
            kernel,
            group: group.clone(),
        })
    }

    /// The opened binary: the one that was read, even if another file has replaced it.
    pub fn file(&self) -> &File {
        self.linked.image.source()
    }

    /// Opens the archives that a marker refers to and returns their module and component.
    fn open_archives(&mut self, marker: &Marker, lookup: &Lookup) -> Result<Group, Error> {
        let missing = |reason: String| {
            let paths = marker.kpack_search_paths.join("`, `");
            Error::rejected(
                ids::MISSING_ARCHIVE,
                &self.linked.path,
                format!(
                    "the device code was split before the link, and {reason}; its marker refers to `{paths}`; {COMPILE_AGAIN}"
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
        let kpacks = lookup.find(&self.linked.loaded_as(), &places)?;
        let mut group = None;
        for kpack in &kpacks.files {
            if kpack.size.is_none() {
                return Err(missing(format!("{} is missing", kpack.path.display())));
            }
            if let Some(known) = self.archives.iter().find(|known| known.path == kpack.path) {
                group = group.or_else(|| Some(known.group.clone()));
                continue;
            }
            let archive = lookup.archives.open(&kpack.path)?;
            let name = Group::from(lock(&archive).toc().group_name.as_str());
            group = group.or_else(|| Some(name.clone()));
            let target = kpack.target.parse();
            self.archives.push(BuiltArchive {
                path: kpack.path.clone(),
                group: name,
                target: target.map_err(|e| {
                    Error::rejected(ids::DAMAGED_ARCHIVE, &kpack.path, format!("{e}"))
                })?,
                archive,
            });
        }
        group.ok_or_else(|| missing("the archives are missing".to_owned()))
    }

    /// Number of wrappers.
    pub fn wrapper_count(&self) -> usize {
        self.wrappers.len()
    }

    /// The targets that it has device code for.
    pub fn targets(&self) -> BTreeSet<TargetId> {
        let archives = self.archives.iter();
        let used = archives.filter(|source| {
            let mut wrappers = self.wrappers.iter();
            wrappers.any(|wrapper| source.has(&wrapper.kernel))
        });
        used.map(|source| source.target.clone()).collect()
    }

    /// Checks its code objects in an archive, so that no damaged one is installed.
    fn check_code_objects(
        &self,
        source: &BuiltArchive,
        archive: &mut ArchiveFile,
    ) -> Result<(), Error> {
        let mut checked = BTreeSet::new();
        for wrapper in &self.wrappers {
            let targets = archive.toc().kernels.get(&wrapper.kernel).cloned();
            for (target, entry) in targets.iter().flatten() {
                if !checked.insert(entry.ordinal) {
                    continue;
                }
                let read = archive.read(&wrapper.kernel, target);
                read.map_err(|error| {
                    let error = Error::archive(&source.path, "read", error);
                    error.about(|reason| reason.then(format!(". {COMPILE_AGAIN}")))
                })?;
            }
        }
        Ok(())
    }

    /// Copies its code objects for the wanted targets, named `name#<position>`. `treatment` says what becomes of
    /// their debug sections.
    pub fn collect(
        &self,
        name: &str,
        wanted: &dyn Fn(&TargetId) -> bool,
        treatment: &Treatment<'_>,
        destination: &mut ArchiveFiller<'_>,
    ) -> Result<(), Error> {
        let wrappers = &self.wrappers;
        for source in self.archives.iter().filter(|source| wanted(&source.target)) {
            let names = |kernel: &str| {
                let own = wrappers.iter().filter(|wrapper| wrapper.kernel == kernel);
                own.map(|wrapper| KernelName::new(name, wrapper.position).to_string()).collect()
            };
            let mut archive = lock(&source.archive);
            self.check_code_objects(source, &mut archive)?;
            let strips = treatment.storage.debug != DebugInfo::Keep && !source.target.is_spirv();
            let fill = |destination: &mut ArchiveWriter<File>| {
                if strips {
                    return add_treated(source, &mut archive, names, treatment, destination);
                }
                let merged = destination.merge_as(&mut *archive, names);
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
    pub fn edits(
        &self,
        marker_of: &dyn Fn(&Group) -> Marker,
    ) -> Result<Vec<(u64, Vec<u8>)>, Error> {
        let mut edits = Vec::new();
        for wrapper in &self.wrappers {
            let (offset, room) = wrapper.marker;
            let marker = marker_of(&wrapper.group);
            let Some(bytes) = marker.to_bytes_within(room) else {
                return Err(Error::rejected(
                    ids::NO_ROOM,
                    &self.linked.path,
                    format!(
                        "the marker at file offset {offset:#x} has room for {room} bytes, but the new one needs {}; put the file at a shorter path in the prefix, or split the linked binary instead of its objects",
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
