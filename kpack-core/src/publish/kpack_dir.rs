//! A module's kpacks in a directory: archives by target, and their manifest.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kpack_format::TargetId;
use kpack_format::archive::{Archive, ArchiveError, ArchiveWriter, Written};
use kpack_format::manifest::{KpackFile, Manifest};
use kpack_format::names::{self, FileNames, Group};

use super::directory::{CreatedDirectories, Directory};
use super::staged_file::StagedFile;
use crate::files;
use crate::interrupt::Watched;
use crate::platform::{Kind, name_key};
use crate::{Error, ids};

/// Small writes to archives are collected up to this size, in bytes.
const BUFFER: usize = 64 << 10;

/// Why two archives for a target are rejected.
const TWO_NAMES: &str = "another archive is for the same target, with `:` or `-` before a feature in its name; remove \
                         the one that the manifest does not list";

/// A module's kpacks in a directory, which stays locked until this is dropped.
#[derive(Debug)]
pub struct KpackDir {
    directory: Arc<Directory>,
    group: Group,
}

/// An existing archive of the module.
pub struct Present {
    /// The file.
    pub path: PathBuf,
    /// Its contents.
    pub archive: files::ArchiveFile,
}

impl KpackDir {
    /// Locks the directory `relative` in `root`, creating it if missing, and removes leftovers of
    /// interrupted runs.
    pub fn lock(
        root: &Directory,
        relative: &Path,
        group: Group,
        made: &mut CreatedDirectories,
    ) -> Result<Self, Error> {
        loop {
            let directory = root.make_below(relative, made)?;
            directory.lock()?;
            // Another run may have removed the empty directory meanwhile.
            if directory.is_still(root.below(relative))? {
                directory.remove_leftovers(&|stem| {
                    names::is_archive(stem.as_ref()) || names::is_manifest(stem.as_ref())
                })?;
                return Ok(Self { directory: Arc::new(directory), group });
            }
        }
    }

    /// The directory.
    pub fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The module and component.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// The name of the archive for a target. One that was made for another system keeps its name.
    pub fn archive_name(&self, target: &TargetId) -> String {
        let forms = [FileNames::Linux, FileNames::Windows];
        let mut names = forms.map(|form| self.group.clone().with_names_of(form).archive(target));
        let usual = self.group.archive(target);
        names.sort_by_key(|name| *name != usual);
        let is_there = |name: &&String| self.path().join(name).exists();
        names.iter().find(is_there).cloned().unwrap_or(usual)
    }

    /// Whether a file of another module has a name that a file of this one may have where case does not matter.
    fn is_taken_by(&self, name: &str) -> bool {
        let group: &str = &self.group;
        let Some((start, rest)) = name.split_at_checked(group.len()) else {
            return false;
        };
        let own = format!("{group}{rest}");
        let is_own = self.group.target_of(&own).is_some() || own == self.group.manifest();
        is_own && start != group && name_key(start) == name_key(group)
    }

    /// The module's archives, by target.
    ///
    /// # Errors
    /// [`Error::Refused`] for a damaged one, and where a target has two: readers would take either.
    pub fn archives(&self) -> Result<BTreeMap<TargetId, Present>, Error> {
        let mut found = BTreeMap::new();
        for name in self.directory.names()? {
            if name.to_str().is_some_and(|name| self.is_taken_by(name)) {
                let text = format!(
                    "a file of `{}` would overwrite this one, because Windows ignores case; spell module and component as in \
                     this name",
                    self.group
                );
                let path = self.path().join(name);
                return Err(Error::rejected(ids::NAMES_DIFFER_BY_CASE, &path, text));
            }
            let target = name.to_str().and_then(|name| self.group.target_of(name));
            let Some(target) = target else {
                continue;
            };
            self.directory.check_output(&name, Kind::File)?;
            let path = self.path().join(name);
            let archive = files::open_archive(&path).map_err(|error| {
                let more = ". Restore it, or remove it and split all binaries of the module again";
                error.about(|reason| reason.then(more))
            })?;
            // `a_b` may also be module `a` with component `b…`; only the archive tells.
            if archive.toc().group_name == *self.group {
                let twin = found.insert(target, Present { path, archive });
                if let Some(Present { path, .. }) = twin {
                    return Err(Error::rejected(ids::MISNAMED_ARCHIVE, &path, TWO_NAMES));
                }
            }
        }
        Ok(found)
    }

    /// The manifest, if there is one.
    pub fn manifest(&self) -> Result<Option<Manifest>, Error> {
        let path = self.path().join(self.group.manifest());
        match files::read_manifest(&path) {
            Ok(manifest) => Ok(Some(manifest)),
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Rewrites the manifest's fragments with the entries that `manifest` has for their archives,
    /// each next to the fragment that it may replace.
    pub(super) fn stage_parts(&self, manifest: &Manifest) -> Result<Vec<StagedFile>, Error> {
        let mut staged = Vec::new();
        for (path, mut part) in files::manifest_parts(self.path(), &self.group)? {
            part.kpack_files.retain(|target, _| manifest.kpack_files.contains_key(target));
            for (target, file) in &mut part.kpack_files {
                if let Some(now) = manifest.kpack_files.get(target) {
                    file.clone_from(now);
                }
            }
            let name = path.file_name().unwrap_or_default();
            staged.push(stage_manifest(&self.directory, name, &part)?);
        }
        Ok(staged)
    }
}

/// Writes the future archive `name` in `directory` and reads it back: an unreadable archive must
/// not replace device code. It is not flushed. Its code objects are written again only if they came in another order, or
/// if their scratch file cannot get a name.
pub fn stage_archive(
    directory: &Arc<Directory>,
    name: &OsStr,
    archive: ArchiveWriter<File>,
) -> Result<(StagedFile, Written), Error> {
    let adopted = match archive.is_in_order() {
        true => StagedFile::adopt(directory, name, archive.spool())?,
        false => None,
    };
    match adopted {
        Some(staged) => stage(staged, |_| archive.finish_in_place()),
        None => stage(StagedFile::create(Arc::clone(directory), name)?, |file| {
            let mut out = BufWriter::with_capacity(BUFFER, Watched(file));
            let written = archive.finish(&mut out)?;
            out.flush()?;
            Ok(written)
        }),
    }
}

fn stage(
    mut staged: StagedFile,
    write: impl FnOnce(&File) -> Result<Written, ArchiveError>,
) -> Result<(StagedFile, Written), Error> {
    let path = staged.path();
    let written = write(staged.file()).map_err(|e| Error::archive(path, "write", e))?;
    let written_back = Archive::open(BufReader::new(staged.file()));
    let kernels = written_back
        .map_err(|error| unreadable(path, &Error::archive(path, "read", error)))?
        .kernel_count();
    if kernels != written.kernel_count {
        let reason = format!("has {kernels} kernels (expected {})", written.kernel_count);
        return Err(unreadable(path, &Error::rejected(ids::UNSOUND_OUTPUT, path, reason)));
    }
    staged.complete()?;
    Ok((staged, written))
}

/// Writes the future manifest `name` in `directory` and reads it back. It is not flushed.
pub fn stage_manifest(
    directory: &Arc<Directory>,
    name: &OsStr,
    manifest: &Manifest,
) -> Result<StagedFile, Error> {
    let mut staged = StagedFile::create(Arc::clone(directory), name)?;
    write_manifest(staged.path(), staged.file(), &manifest.to_bytes())?;
    staged.complete()?;
    Ok(staged)
}

/// Writes a manifest to an empty file that will become `path`, and reads it back: an unreadable
/// manifest must not be published.
pub fn write_manifest(path: &Path, mut file: &File, bytes: &[u8]) -> Result<(), Error> {
    file.write_all(bytes).and_then(|()| file.rewind()).map_err(|e| Error::io(path, "write", e))?;
    let read = files::parse_manifest(path, file);
    read.map(drop).map_err(|error| unreadable(path, &error))
}

/// The written file cannot be read back.
fn unreadable(path: &Path, error: &Error) -> Error {
    let reason = match error {
        Error::Refused { reason, .. } => reason.clone(),
        error => error.without_id(),
    };
    Error::rejected(
        ids::UNSOUND_OUTPUT,
        path,
        format!("the written file cannot be read back: {reason}; nothing was replaced"),
    )
}

/// The manifest's entry for an archive.
pub fn entry(target: &TargetId, filename: String, written: &Written) -> KpackFile {
    let Written { size, kernel_count, checksum, .. } = *written;
    KpackFile::new(target.to_string(), filename, size, kernel_count, Some(checksum))
}

/// The manifest's entry for an existing archive that stays unchanged. `known` is the current entry,
/// which is valid while the size matches.
pub fn entry_of(
    target: &TargetId,
    filename: String,
    present: &Present,
    known: Option<&KpackFile>,
) -> Result<KpackFile, Error> {
    let path = &present.path;
    let metadata = path.metadata().map_err(|e| Error::io(path, "read", e))?;
    let size = metadata.len();
    if let Some(known) = known.filter(|known| known.size == size && known.checksum.is_some()) {
        return Ok(known.clone());
    }
    let kernel_count = present.archive.kernel_count();
    let checksum = files::digest(path)?;
    Ok(KpackFile::new(target.to_string(), filename, size, kernel_count, Some(checksum)))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::io::Cursor;
    use std::os::unix::fs::MetadataExt;

    use kpack_format::archive::Scheme;
    use kpack_format::digest::blake3;

    use super::*;
    use crate::publish::scratch_file;

    #[test]
    fn what_is_no_archive_does_not_get_the_name_of_one() {
        let directory = tempfile::tempdir().unwrap();
        let opened = Arc::new(Directory::open(directory.path()).unwrap());
        let name = "vec_lib_gfx1100.kpack".as_ref();
        let staged = StagedFile::create(Arc::clone(&opened), name).unwrap();
        let target = "gfx1100".parse().unwrap();
        let archive = ArchiveWriter::new(Cursor::new(Vec::new()), "vec_lib", &target, Scheme::None);
        let staged = stage(staged, |mut file| {
            file.write_all(&[0; 100])?;
            archive.finish(std::io::sink())
        });
        let error = staged.map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("the written file cannot be read back"), "{error}");
        assert_eq!(opened.names().unwrap(), Vec::<OsString>::new());
    }

    #[test]
    fn code_objects_in_order_are_not_written_again() {
        let directory = tempfile::tempdir().unwrap();
        let opened = Arc::new(Directory::open(directory.path()).unwrap());
        let target = "gfx1100".parse().unwrap();
        let name: &OsStr = "vec_lib_gfx1100.kpack".as_ref();
        let mut archives = Vec::new();
        for (order, is_in_place) in [([0, 1], true), ([1, 0], false)] {
            let spool = scratch_file(directory.path()).unwrap();
            let own = spool.metadata().unwrap().ino();
            let mut archive = ArchiveWriter::new(spool, "vec_lib", &target, Scheme::None);
            for index in order {
                let (kernel, code) = (format!("lib/libvec.so#{index}"), [index; 4]);
                let added = archive.add_from(&kernel, &mut &code[..], 4, 4, blake3(&code));
                added.unwrap();
            }
            let (staged, _) = stage_archive(&opened, name, archive).unwrap();
            // Not every file system has nameless files.
            let is_in_place = is_in_place && opened.create_nameless().is_ok();
            assert_eq!(staged.file().metadata().unwrap().ino() == own, is_in_place);
            staged.commit().unwrap();
            archives.push(std::fs::read(directory.path().join(name)).unwrap());
        }
        assert_eq!(archives[0], archives[1]);
        assert_eq!(opened.names().unwrap(), [name]);
    }
}
