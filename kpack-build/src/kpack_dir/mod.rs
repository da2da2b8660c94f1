//! A module's kpack directory: lock, merge, manifest, durable replacement.

mod names;
mod replace;
mod scratch;
mod update;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::archive::{Archive, ArchiveWriter, Written};
use kpack_format::manifest::{KpackFile, Manifest};

use crate::Error;
use crate::input;
use crate::split::archive_error;

pub use names::check_names;
pub use names::is_name_part;
pub use replace::{recover_directory, remove_directory, replace_directory};
pub use scratch::scratch_file;
pub use update::{Update, Updated};

/// The name of what an install of `module` and `component` writes: in front of archives' targets,
/// and of the manifest's extension.
pub fn group_name(module: &str, component: &str) -> String {
    format!("{module}_{component}")
}

/// What the archive of a group for a target is called.
pub fn archive_name(group: &str, target: &TargetId) -> String {
    format!("{group}_{target}.kpack")
}

/// What the manifest of a group is called.
pub fn manifest_name(group: &str) -> String {
    format!("{group}.kpm")
}

/// Whether a file is a manifest, whole or a part, by its name.
pub fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "kpm")
}

/// A module's kpacks in a directory that is locked as long as this lives. The lock is on the
/// directory itself (`flock`), so nothing is left behind.
pub struct KpackDir {
    path: PathBuf,
    group: String,
    _lock: File,
}

/// An archive of the module that is there.
pub struct Present {
    /// The file.
    pub path: PathBuf,
    /// Its contents.
    pub archive: Archive<BufReader<File>>,
}

impl KpackDir {
    /// Waits for the lock on `path`, which is made where it is missing.
    pub fn lock(path: &Path, group: String) -> Result<Self, Error> {
        loop {
            fs::create_dir_all(path).map_err(|e| Error::io(path, "create directory", e))?;
            let lock = File::open(path).map_err(|e| Error::io(path, "open", e))?;
            lock.lock().map_err(|e| Error::io(path, "lock", e))?;
            // Another run may have removed it, empty, while this one waited.
            let own = lock.metadata().map_err(|e| Error::io(path, "read", e))?;
            let still_there = path
                .metadata()
                .is_ok_and(|there| (there.dev(), there.ino()) == (own.dev(), own.ino()));
            if still_there {
                return Ok(Self {
                    path: path.to_owned(),
                    group,
                    _lock: lock,
                });
            }
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the module's archive for a target is called.
    pub fn archive_name(&self, target: &TargetId) -> String {
        archive_name(&self.group, target)
    }

    fn manifest_path(&self) -> PathBuf {
        self.path.join(manifest_name(&self.group))
    }

    /// The module's archives, by target.
    pub fn archives(&self) -> Result<BTreeMap<TargetId, Present>, Error> {
        let mut found = BTreeMap::new();
        let entries = fs::read_dir(&self.path).map_err(|e| Error::io(&self.path, "list", e))?;
        for entry in entries {
            let entry = entry.map_err(|e| Error::io(&self.path, "list", e))?;
            let name = entry.file_name();
            let Some(target) = self.target_of(&name) else {
                continue;
            };
            let path = self.path.join(name);
            let archive = input::open_archive(&path)?;
            // `a_b` may be module `a` with component `b…`; the archive knows.
            if archive.toc().group_name == self.group {
                found.insert(target, Present { path, archive });
            }
        }
        Ok(found)
    }

    fn target_of(&self, name: &OsStr) -> Option<TargetId> {
        let name = name.to_str()?.strip_suffix(".kpack")?;
        name.strip_prefix(&self.group)?
            .strip_prefix('_')?
            .parse()
            .ok()
    }

    /// The manifest; `None` where there is none.
    pub fn manifest(&self) -> Result<Option<Manifest>, Error> {
        let path = self.manifest_path();
        match input::read_manifest(&path) {
            Ok(manifest) => Ok(Some(manifest)),
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes an archive beside the one that it may replace.
    pub fn stage_archive(
        &self,
        target: &TargetId,
        archive: ArchiveWriter<File>,
    ) -> Result<(Staged, Written), Error> {
        let path = self.path.join(self.archive_name(target));
        Staged::write(&path, |file| {
            let mut out = BufWriter::with_capacity(1 << 20, file);
            let written = archive
                .finish(&mut out)
                .map_err(|e| archive_error(&path, e))?;
            out.flush().map_err(|e| Error::io(&path, "write", e))?;
            Ok(written)
        })
    }

    /// Writes a manifest beside the one that it may replace.
    pub fn stage_manifest(&self, manifest: &Manifest) -> Result<Staged, Error> {
        stage_bytes(&self.manifest_path(), &manifest.to_bytes())
    }

    /// Writes the parts of the manifest anew, with what `manifest` says of their archives, each beside
    /// the one that it may replace.
    pub fn stage_parts(&self, manifest: &Manifest) -> Result<Vec<Staged>, Error> {
        let mut staged = Vec::new();
        for (path, mut part) in input::manifest_parts(&self.path, &self.group)? {
            part.kpack_files
                .retain(|target, _| manifest.kpack_files.contains_key(target));
            for (target, file) in &mut part.kpack_files {
                if let Some(now) = manifest.kpack_files.get(target) {
                    file.clone_from(now);
                }
            }
            staged.push(stage_bytes(&path, &part.to_bytes())?);
        }
        Ok(staged)
    }

    /// Removes the manifest of a module that has no archive any more.
    pub fn remove_manifest(&self) -> Result<(), Error> {
        remove(&self.manifest_path())
    }

    /// Makes what was renamed and removed in the directory durable.
    pub fn sync(&self) -> Result<(), Error> {
        sync_directory(&self.path)
    }
}

/// The manifest's entry for an archive.
pub fn entry(target: &TargetId, filename: String, written: &Written) -> KpackFile {
    KpackFile {
        architecture: target.to_string(),
        filename,
        size: written.size,
        kernel_count: written.kernel_count,
        checksum: Some(written.checksum),
    }
}

/// The manifest's entry for an archive that is there and stays as it is; `known` is the entry that
/// the manifest has, which holds as long as the size does.
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
    let kernels = present.archive.toc().kernels.values();
    let written = Written {
        size,
        kernel_count: kernels.map(|targets| targets.len() as u64).sum(),
        checksum: input::digest(path)?,
    };
    Ok(entry(target, filename, &written))
}

fn stage_bytes(path: &Path, bytes: &[u8]) -> Result<Staged, Error> {
    let (staged, ()) = Staged::write(path, |mut file| {
        file.write_all(bytes)
            .map_err(|e| Error::io(path, "write", e))
    })?;
    Ok(staged)
}

/// A file that is complete and durable under a hidden name, and waits to be renamed. Dropped before
/// that, it is removed.
pub struct Staged {
    hidden: PathBuf,
    path: PathBuf,
    done: bool,
}

impl Staged {
    /// Lets `write` fill a new file, which is to become `path`.
    pub fn write<T>(
        path: &Path,
        write: impl FnOnce(&File) -> Result<T, Error>,
    ) -> Result<(Self, T), Error> {
        let name = path.file_name().unwrap_or_default();
        let mut hidden_name = OsStr::new(".").to_owned();
        hidden_name.push(name);
        hidden_name.push(".tmp");
        let hidden = path.with_file_name(hidden_name);
        // What a run that was killed left behind.
        remove(&hidden)?;
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&hidden)
            .map_err(|e| Error::io(&hidden, "create", e))?;
        let staged = Self {
            hidden,
            path: path.to_owned(),
            done: false,
        };
        let value = write(&file)?;
        file.sync_all()
            .map_err(|e| Error::io(&staged.path, "write", e))?;
        Ok((staged, value))
    }

    /// The file that it is to become.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether what is there already has the same bytes.
    pub fn is_unchanged(&self) -> Result<bool, Error> {
        let (Ok(there), Ok(new)) = (self.path.metadata(), self.hidden.metadata()) else {
            return Ok(false);
        };
        if there.len() != new.len() || !there.is_file() {
            return Ok(false);
        }
        let open = |path: &Path| {
            let file = File::open(path).map_err(|e| Error::io(path, "open", e))?;
            Ok::<_, Error>(BufReader::with_capacity(1 << 20, file))
        };
        let same = same_bytes(open(&self.path)?, open(&self.hidden)?);
        same.map_err(|e| Error::io(&self.path, "read", e))
    }

    /// Renames it, unless what is there has the same bytes. Tells whether it did.
    pub fn commit(mut self) -> Result<bool, Error> {
        if self.is_unchanged()? {
            return Ok(false);
        }
        fs::rename(&self.hidden, &self.path).map_err(|e| Error::io(&self.path, "replace", e))?;
        self.done = true;
        Ok(true)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.done {
            let _ = fs::remove_file(&self.hidden);
        }
    }
}

/// Whether both give the same bytes.
pub fn same_bytes(mut a: impl io::BufRead, mut b: impl io::BufRead) -> io::Result<bool> {
    loop {
        let (x, y) = (a.fill_buf()?, b.fill_buf()?);
        let length = x.len().min(y.len());
        if length == 0 {
            return Ok(x.is_empty() && y.is_empty());
        }
        if x[..length] != y[..length] {
            return Ok(false);
        }
        a.consume(length);
        b.consume(length);
    }
}

/// Removes a file that may be missing.
pub fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(path, "remove", error))
        }
        _ => Ok(()),
    }
}

/// Makes what was renamed in a directory durable. Not every file system can.
pub fn sync_directory(path: &Path) -> Result<(), Error> {
    let synced = File::open(path).and_then(|directory| directory.sync_all());
    match synced {
        Err(error) if error.kind() != io::ErrorKind::InvalidInput => {
            Err(Error::io(path, "write", error))
        }
        _ => Ok(()),
    }
}
