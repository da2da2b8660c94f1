//! Adds the archives of libraries that another tool split. Tools that copy a library of ROCm into a wheel, as
//! auditwheel does, leave its archives in ROCm's prefix.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use kpack_core::platform::FileExt;
use kpack_format::TargetId;
use kpack_format::marker::Marker;
use kpack_format::names::{Group, KernelName, Pattern, SearchPath, is_archive};

use kpack_core::parallel::lock;
use kpack_core::publish::{Directory, StagedFile};
use kpack_core::words::list;
use kpack_core::{Error, ids, shown};
use kpack_split::input::{self, Archives, LinkedBinary, MarkerGroup};

/// Sections that are the same in all copies of one build.
const OF_BUILD: [&str; 2] = [".note.gnu.build-id", ".text"];

/// The archives below the directories that `--archives` names.
pub(super) struct ArchiveSources {
    directories: Vec<PathBuf>,
    /// With the directory that each is below.
    files: Vec<(PathBuf, PathBuf)>,
    archives: Archives,
}

/// What a library gets.
pub(super) struct Vendored {
    /// By the name of the file that its marker leads to.
    pub(super) archives: BTreeMap<String, VendoredArchive>,
    /// The archives that may be of another build.
    pub(super) unchecked: BTreeSet<PathBuf>,
    /// What changes in the library, by offset.
    edits: Vec<(u64, Vec<u8>)>,
}

/// An archive that is copied into a wheel.
pub(super) struct VendoredArchive {
    pub(super) from: PathBuf,
    pub(super) group: Group,
    pub(super) target: TargetId,
}

impl ArchiveSources {
    /// Lists the archives.
    ///
    /// # Errors
    /// [`Error::Usage`] if a directory has none; [`Error::Io`].
    pub(super) fn list(directories: &[PathBuf]) -> Result<Self, Error> {
        let mut files = Vec::new();
        for directory in directories {
            let before = files.len();
            for entry in input::walk(directory) {
                let entry = entry.map_err(|error| input::walk_error(directory, error))?;
                if is_archive(entry.path()) && entry.path().is_file() {
                    files.push((directory.clone(), entry.into_path()));
                }
            }
            if files.len() == before {
                return Err(Error::usage(format!(
                    "--archives {}: there is no archive (.kpack) below it; pass the prefix of a split ROCm",
                    shown(directory)
                )));
            }
        }
        Ok(Self { directories: directories.to_vec(), files, archives: Archives::default() })
    }

    /// The archives of a library, which are to be in the directory `.kpack` beside it, and what changes in its
    /// markers so that they lead there.
    ///
    /// # Errors
    /// [`Error::Refused`] if there are none, or those of another build; [`Error::Io`].
    pub(super) fn vendor(&self, linked: &LinkedBinary) -> Result<Vendored, Error> {
        let mut vendored =
            Vendored { archives: BTreeMap::new(), unchecked: BTreeSet::new(), edits: Vec::new() };
        for group in linked.markers()? {
            let mut marker = group.marker.clone();
            marker.kpack_search_paths.clear();
            for path in &group.marker.kpack_search_paths {
                let Some(pattern) = SearchPath::new(path).split().filter(Pattern::is_file) else {
                    continue;
                };
                if self.add(linked, &group, pattern, &mut vendored)? {
                    let file = Path::new(path).file_name().unwrap_or_default();
                    let path = format!(".kpack/{}", file.to_string_lossy());
                    if !marker.kpack_search_paths.contains(&path) {
                        marker.kpack_search_paths.push(path);
                    }
                }
            }
            if marker.kpack_search_paths.is_empty() {
                return Err(self.none(linked, &group.marker));
            }
            if marker != group.marker {
                edit(linked, &group, &marker, &mut vendored.edits)?;
            }
        }
        Ok(vendored)
    }

    /// Adds the archives that one search path leads to. Returns whether there are some.
    fn add(
        &self,
        linked: &LinkedBinary,
        group: &MarkerGroup,
        pattern: Pattern<'_>,
        vendored: &mut Vendored,
    ) -> Result<bool, Error> {
        let binary = group.marker.kernel_name.as_deref().unwrap_or_default();
        let mut found = false;
        for (root, file) in &self.files {
            let name = file.file_name().unwrap_or_default();
            let Some(target) = pattern.target_of(name) else {
                continue;
            };
            let opened = self.archives.open(file)?;
            let archive = lock(&opened);
            let (toc, id) = (archive.toc(), target.to_string());
            let mut wrappers = group.wrappers.iter();
            let has_code = wrappers.any(|wrapper| {
                let kernel = KernelName::new(binary, wrapper.co_index).to_string();
                toc.entry(&kernel, &id).is_ok()
            });
            if !has_code {
                continue;
            }
            let is_same = match (group.marker.code_ids.get(&id), toc.code_id(binary, &id)) {
                (Some(expected), Some(found)) => Some(*expected == found),
                _ => is_of_same_build(linked, root, file, binary)?,
            };
            match is_same {
                Some(true) => {}
                Some(false) => return Err(of_another_build(linked, file)),
                None => drop(vendored.unchecked.insert(file.clone())),
            }
            let of_group = pattern
                .group()
                .map(|group| group.to_string())
                .unwrap_or_else(|| toc.group_name.clone());
            let archive =
                VendoredArchive { from: file.clone(), group: Group::from(of_group), target };
            found = true;
            let key = name.to_string_lossy().into_owned();
            if let Some(known) = vendored.archives.get(&key) {
                if input::digest(&known.from)? != input::digest(file)? {
                    let text = format!(
                        "{} and {} both have the device code of the library, and differ; pass one of their directories",
                        shown(&known.from),
                        shown(file)
                    );
                    return Err(Error::rejected(ids::NAME_CLASH, &linked.path, text));
                }
                continue;
            }
            vendored.archives.insert(key, archive);
        }
        Ok(found)
    }

    /// The error for a library without archives.
    fn none(&self, linked: &LinkedBinary, marker: &Marker) -> Error {
        let directories = list(self.directories.iter().map(|path| shown(path).to_string()));
        let text = format!(
            "split by another tool, and no archive below {directories} has its device code (`{}` in `{}`); pass the ROCm that the wheel was built with",
            marker.kernel_name.as_deref().unwrap_or_default(),
            marker.kpack_search_paths.join("`, `")
        );
        Error::rejected(ids::MISSING_ARCHIVE, &linked.path, text)
    }
}

impl Vendored {
    /// Changes the library `name` in `directory`, which was read at `path`. Returns whether anything changed.
    pub(super) fn apply(
        &self,
        path: &Path,
        directory: Directory,
        name: &OsStr,
    ) -> Result<bool, Error> {
        if self.edits.is_empty() {
            return Ok(false);
        }
        let library = directory.open_file(name)?.ok_or_else(|| Error::changed(path))?;
        let staged = StagedFile::copy_in(directory, name, (path, &library), |file| {
            let mut edits = self.edits.iter();
            let written = edits.try_for_each(|(offset, bytes)| file.write_all_at(bytes, *offset));
            written.map_err(|error| Error::io(path, "write", error))
        })?;
        staged.commit().map(|_| true)
    }
}

/// The error for a library whose archive is of another build.
fn of_another_build(linked: &LinkedBinary, archive: &Path) -> Error {
    let text = format!(
        "{} has the device code of another build of the library; pass the ROCm that the wheel was built with",
        shown(archive)
    );
    Error::rejected(ids::STALE_ARCHIVE, &linked.path, text)
}

/// Replaces the markers of a group.
fn edit(
    linked: &LinkedBinary,
    group: &MarkerGroup,
    marker: &Marker,
    edits: &mut Vec<(u64, Vec<u8>)>,
) -> Result<(), Error> {
    for wrapper in &group.wrappers {
        let offset = wrapper.marker_offset;
        if edits.iter().any(|(known, _)| *known == offset) {
            continue;
        }
        let room = linked.marker_room(offset)?;
        let Some(bytes) = marker.to_bytes_within(room) else {
            let text = format!(
                "the marker of the library has room for {room} bytes, too few for the path `{}`; build the wheel without that split",
                marker.kpack_search_paths.join("`, `")
            );
            return Err(Error::rejected(ids::NO_ROOM, &linked.path, text));
        };
        edits.push((offset, bytes));
    }
    Ok(())
}

/// Whether the library is a copy of the binary that is installed in the prefix of `archive`, below `root`; `None` if
/// there is none to compare. Archives of other tools do not say which build they are for, and copies of a binary have
/// other names and search paths, but the same code.
fn is_of_same_build(
    linked: &LinkedBinary,
    root: &Path,
    archive: &Path,
    binary: &str,
) -> Result<Option<bool>, Error> {
    // Some tools name binaries by their paths in the build tree, which ends with that in the prefix.
    let ends = std::iter::successors(Some(Path::new(binary)), |name| {
        let first = name.components().next()?;
        name.strip_prefix(first).ok()
    });
    let names = Vec::from_iter(ends.filter(|name| name.components().count() > 1));
    let prefixes = archive.ancestors().skip(1).take_while(|prefix| prefix.starts_with(root));
    let places = prefixes.flat_map(|prefix| names.iter().map(|name| prefix.join(name)));
    for place in places.filter(|path| path.is_file()) {
        // It may be a linker script.
        let Ok(installed) = input::or_refused(LinkedBinary::open(&place))? else {
            continue;
        };
        let bytes = |linked: &LinkedBinary, name| linked.image.bytes_of(name);
        let mut both = OF_BUILD
            .map(|name| bytes(linked, name).zip(bytes(&installed, name)))
            .into_iter()
            .flatten()
            .peekable();
        if both.peek().is_some() {
            return Ok(Some(both.all(|(own, other)| own == other)));
        }
    }
    Ok(None)
}
