//! The members of a ZIP archive, whose names and kinds are checked before anything is made of them.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use kpack_core::shown;
use rustix::fs::statvfs;
use zip::ZipArchive;
use zip::result::ZipError;
use zip::unstable::read::ZipIterable;

use kpack_core::Error;

/// A file in a wheel.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) name: String,
    /// The permission bits.
    pub(super) mode: u32,
    /// Its place in the ZIP directory.
    pub(super) index: usize,
    /// Its size in bytes, unpacked.
    pub(super) size: u64,
}

/// The most bytes that DEFLATE makes of one.
const MAX_RATIO: u64 = 1032;

/// The size in bytes of all members, unpacked.
pub(super) fn unpacked(members: &[Member]) -> u64 {
    let sizes = members.iter().map(|member| member.size);
    sizes.fold(0, u64::saturating_add)
}

/// Refuses an archive of `size` bytes whose members share their compressed bytes: however small it is, it
/// could fill any disk.
pub(super) fn check_size(path: &Path, members: &[Member], size: u64) -> Result<(), Error> {
    let unpacked = unpacked(members);
    if unpacked <= size.saturating_mul(MAX_RATIO) {
        return Ok(());
    }
    let text = format!(
        "its members are {unpacked} bytes, unpacked (expected at most {MAX_RATIO} times the {size} bytes of the file, as ZIP compresses); do not unpack it"
    );
    Err(Error::refused(path, text))
}

/// Checks that `bytes` more fit on the file system of `directory`.
pub(super) fn check_room(path: &Path, directory: &Path, bytes: u64) -> Result<(), Error> {
    let system = statvfs(directory).map_err(|e| Error::io(directory, "examine", e.into()))?;
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    // Some file systems do not say how large they are.
    if system.f_blocks == 0 || bytes <= free {
        return Ok(());
    }
    let text = format!(
        "it needs {bytes} bytes in {}, and {free} are free; free some space",
        shown(directory)
    );
    Err(Error::io(
        path,
        "unpack",
        io::Error::new(ErrorKind::StorageFull, text),
    ))
}

/// An error in a member.
pub(super) fn member_error(wheel: &Path, member: &str, text: &str) -> Error {
    Error::refused(wheel, format!("member `{member}`: {text}"))
}

/// An error of the library: damage, unless a system call failed.
pub(super) fn zip_error(path: &Path, member: Option<&str>, error: ZipError) -> Error {
    let damaged = |text: String| match member {
        Some(member) => member_error(path, member, &text),
        None => Error::refused(
            path,
            format!("not a ZIP archive that kpack can read: {text}"),
        ),
    };
    match error {
        ZipError::Io(error) if error.raw_os_error().is_some() => Error::io(path, "read", error),
        error => damaged(error.to_string()),
    }
}

/// The error for an archive with two members of one name.
pub(super) fn duplicate(path: &Path, window: SharedFile) -> Result<Error, Error> {
    let failed = |error| zip_error(path, None, error);
    let mut zip = ZipIterable::try_new(window, Default::default()).map_err(failed)?;
    let files = zip.files().map_err(failed)?;
    let mut known = HashSet::new();
    for file in files.by_ref() {
        let name = file.map_err(failed)?.name_raw().to_owned();
        if let Some(name) = known.replace(name) {
            let text = "two members have this name; build the wheel again";
            return Ok(member_error(path, &String::from_utf8_lossy(&name), text));
        }
    }
    Ok(Error::refused(path, "two members have one name"))
}

/// The flag of members whose names are UTF-8. Those of others are of code page 437.
const UTF_8: u16 = 1 << 11;

/// The files in a wheel. Installers disagree about anything else.
pub(super) fn members(path: &Path, zip: &ZipArchive<SharedFile>) -> Result<Vec<Member>, Error> {
    let mut members = Vec::new();
    for index in 0..zip.len() {
        let entry = zip
            .by_index_data(index)
            .map_err(|e| zip_error(path, None, e))?;
        let raw = String::from_utf8_lossy(entry.name_raw());
        let refused = |text: &str| member_error(path, &raw, text);
        let Ok(name) = std::str::from_utf8(entry.name_raw()) else {
            return Err(refused("its name is not UTF-8; build the wheel again"));
        };
        if !name.is_ascii() && entry.flags().as_u16() & UTF_8 == 0 {
            return Err(refused(
                "its name is not marked as UTF-8, so installers would use another name; build the wheel again",
            ));
        }
        if entry.is_symlink() {
            return Err(refused(
                "it is a symbolic link, which installers do not unpack",
            ));
        }
        if entry.encrypted() {
            return Err(refused("it is encrypted"));
        }
        let plain = name.strip_suffix('/').unwrap_or(name);
        let is_part = |part: &str| !matches!(part, "" | "." | "..");
        if !plain.split('/').all(is_part) || plain.contains(['\\', '\0']) {
            return Err(refused(
                "its name is no path in the wheel (expected names with `/` between them, without `..`)",
            ));
        }
        if entry.is_dir() {
            continue;
        }
        let mode = entry.unix_mode().map(|mode| mode & 0o777);
        members.push(Member {
            name: name.to_owned(),
            mode: mode.filter(|mode| *mode != 0).unwrap_or(0o644),
            index,
            size: entry.size(),
        });
    }
    Ok(members)
}

/// A file that several threads read at once.
#[derive(Debug, Clone)]
pub(super) struct SharedFile {
    file: Arc<File>,
    at: u64,
    size: u64,
}

impl SharedFile {
    /// All of a file, from its beginning.
    pub(super) fn new(file: File, size: u64) -> Self {
        Self {
            file: Arc::new(file),
            at: 0,
            size,
        }
    }
}

impl Read for SharedFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // The system refuses offsets that do not fit into 63 bits, as if reading had failed.
        let read = match self.at < self.size {
            true => self.file.read_at(buffer, self.at)?,
            false => 0,
        };
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for SharedFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.size.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_not_unpacked() {
        let (wheel, directory) = (Path::new("vec.whl"), std::env::temp_dir());
        check_room(wheel, &directory, 1).unwrap();
        let error = check_room(wheel, &directory, u64::MAX).unwrap_err();
        let text = error.in_one_line();
        assert!(
            text.starts_with("cannot unpack vec.whl: it needs"),
            "{text}"
        );
    }
}
