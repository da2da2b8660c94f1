//! The one rule for outputs: a file replaces a regular file, and a directory a directory. Nothing replaces a
//! device, FIFO, link or socket, or is written into one.

use std::io::{Error as IoError, ErrorKind};
use std::path::{Component, Path, PathBuf};

use kpack_format::names::{is_archive, is_manifest};

use super::directory::Directory;
use super::staged_file::StagedFile;
use crate::error::shown;
use crate::files::{self, FileKind};
use crate::platform::{Kind, free_space};
use crate::{Error, ids};

/// Refuses a file to write to `path` if something exists there that is no regular file. A rename would replace
/// a device such as `/dev/null` for the whole system, and a link may have been put there by somebody else.
///
/// # Errors
/// [`Error::Refused`]; [`Error::Io`].
pub fn check_output(path: &Path) -> Result<(), Error> {
    let name = path.file_name().unwrap_or_default();
    Directory::of(path)?.check_output(name, Kind::File)
}

/// Another program has put something in the place of the output `path` since this run looked.
pub(super) fn appeared(path: &Path) -> Error {
    let text = "it appeared while kpack ran; run the command again, or choose another output";
    Error::rejected(ids::OUTPUT_IN_THE_WAY, path, text)
}

/// The path without symbolic links of a directory that need not be there.
///
/// # Errors
/// [`Error::Usage`] for a dangling link, and for `..` after what does not exist; [`Error::Io`].
pub fn resolve(path: &Path) -> Result<PathBuf, Error> {
    let mut there = Path::new(".");
    for above in path.ancestors() {
        if files::is_there(above)? {
            there = above;
            break;
        }
    }
    let refuse = |reason: String| {
        let path = path.display();
        Err(Error::usage(format!("output directory {path}: {reason}")))
    };
    let mut real = match there.canonicalize() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return refuse(format!("{} is a dangling symbolic link", there.display()));
        }
        real => real.map_err(|e| Error::io(there, "find", e))?,
    };
    for part in path.strip_prefix(there).unwrap_or(path).components() {
        match part {
            // It would be created as a parent of another directory.
            Component::ParentDir => {
                let real = real.display();
                return refuse(format!("`..` follows {real}, which does not exist"));
            }
            Component::CurDir => {}
            part => real.push(part),
        }
    }
    Ok(real)
}

/// As [`check_output`], for a directory, which replaces nothing but a directory.
///
/// # Errors
/// As [`check_output`].
pub fn check_output_directory(path: &Path) -> Result<(), Error> {
    let name = path.file_name().unwrap_or_default();
    Directory::of(path)?.check_output(name, Kind::Directory)
}

/// As [`check_output`], for a regular file that the user named. It may not replace an archive or manifest either:
/// binaries may need those.
///
/// # Errors
/// [`Error::Refused`]; [`Error::Io`].
pub fn check_named_output(path: &Path) -> Result<(), Error> {
    check_output(path)?;
    if !files::is_there(path)? {
        return Ok(());
    }
    let kind = match files::open(path) {
        // Whoever owns its directory may replace it. Its name has to tell.
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
            is_archive(path)
                .then_some(FileKind::Archive)
                .or(is_manifest(path).then_some(FileKind::Manifest))
        }
        opened => files::identify(path, &opened?)?,
    };
    match kind {
        Some(FileKind::Archive | FileKind::Manifest) => {
            let reason =
                "an archive or manifest of kpack, which binaries may need; choose another name";
            Err(Error::rejected(ids::OUTPUT_IN_THE_WAY, path, reason))
        }
        _ => Ok(()),
    }
}

/// Writes a file that the user named, under a hidden name first.
///
/// # Errors
/// Those of [`check_named_output`], before `write` is called; those of `write`; [`Error::Io`].
pub fn write_output(
    path: &Path,
    write: impl FnOnce(&mut StagedFile) -> Result<(), Error>,
) -> Result<(), Error> {
    check_named_output(path)?;
    let (staged, ()) = StagedFile::write(path, write)?;
    staged.commit().map(drop)
}

/// Checks that `bytes` more fit on the file system of `directory`. They come from `path`; `action` is a verb.
///
/// # Errors
/// [`Error::Io`].
pub fn check_room(
    path: &Path,
    action: &'static str,
    directory: &Path,
    bytes: u64,
) -> Result<(), Error> {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let free = free_space(directory).map_err(|e| Error::io(directory, "examine", e))?;
    // Some file systems do not say how large they are.
    let Some(free) = free.filter(|free| bytes > *free) else {
        return Ok(());
    };
    let text = format!(
        "it needs {bytes} bytes in {}, and {free} are free; free some space",
        shown(directory)
    );
    let full = IoError::new(ErrorKind::StorageFull, text);
    Err(Error::io(path, action, full))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    fn new(staged: &mut StagedFile) -> Result<(), Error> {
        let path = staged.path().to_owned();
        staged.file().write_all(b"new").map_err(|e| Error::io(&path, "write", e))
    }

    /// What may be in the place of an output, and whether a file and whether a directory replaces it.
    #[cfg(unix)]
    #[test]
    fn a_file_replaces_a_file_a_directory_a_directory_and_nothing_anything_else() {
        use std::os::unix::fs::{MetadataExt, symlink};
        use std::os::unix::net::UnixListener;
        use std::process::{Command, Stdio};

        let mknod = |path: &Path, kind: &[&str]| {
            let made = Command::new("mknod").arg(path).args(kind).stderr(Stdio::null()).status();
            made.unwrap().success()
        };
        let socket = |path: &Path| drop(UnixListener::bind(path).unwrap());
        // Only root may make one.
        let device = |path: &Path| assert!(mknod(path, &["c", "1", "3"]) || mknod(path, &["p"]));
        type Make<'a> = &'a dyn Fn(&Path);
        let rows: &[(&str, Make<'_>, bool, bool)] = &[
            ("nothing", &|_| {}, true, true),
            ("a regular file", &|path| fs::write(path, "old").unwrap(), true, false),
            ("a directory", &|path| fs::create_dir(path).unwrap(), false, true),
            ("a link to a file", &|path| symlink("linked", path).unwrap(), false, false),
            ("a link to a directory", &|path| symlink(".", path).unwrap(), false, false),
            ("a dangling link", &|path| symlink("nowhere", path).unwrap(), false, false),
            ("a socket", &socket, false, false),
            ("a FIFO", &|path| assert!(mknod(path, &["p"])), false, false),
            ("a device", &device, false, false),
        ];
        for (name, make, file_replaces, directory_replaces) in rows {
            let directory = tempfile::tempdir().unwrap();
            fs::write(directory.path().join("linked"), "linked").unwrap();
            let path = &directory.path().join("output");
            make(path);
            let state = || path.symlink_metadata().ok().map(|found| (found.ino(), found.mode()));
            let before = state();
            assert_eq!(check_output_directory(path).is_ok(), *directory_replaces, "{name}");
            assert_eq!(check_output(path).is_ok(), *file_replaces, "{name}");
            let written = write_output(path, new);
            assert_eq!(written.is_ok(), *file_replaces, "{name}");
            if *file_replaces {
                assert_eq!(fs::read(path).unwrap(), b"new", "{name}");
            } else {
                assert_eq!(written.unwrap_err().id(), ids::OUTPUT_IN_THE_WAY, "{name}");
                assert_eq!(state(), before, "{name}");
            }
            assert_eq!(fs::read(directory.path().join("linked")).unwrap(), b"linked", "{name}");
            assert!(!directory.path().join("nowhere").exists(), "{name}");
            let left = fs::read_dir(directory.path()).unwrap().count();
            assert_eq!(left, 1 + usize::from(path.symlink_metadata().is_ok()), "{name}");
        }
    }

    /// What a file that the user names replaces. An archive is one by its contents, a manifest by its name.
    #[test]
    fn no_named_file_replaces_an_archive_or_a_manifest() {
        let manifest = kpack_format::manifest::Manifest::new("vec_lib", "lib").to_bytes();
        for (name, content, is_replaced) in [
            ("archive", &b"KPAK\x01\0\0\0"[..], false),
            ("vec_lib.kpm", &manifest, false),
            ("damaged.kpm", b"text", false),
            ("no_archive.kpack", b"text", true),
            ("text", b"text", true),
            ("empty", b"", true),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let path = &directory.path().join(name);
            fs::write(path, content).unwrap();
            let written = write_output(path, new);
            assert_eq!(written.is_ok(), is_replaced, "{name}");
            let expected = if is_replaced { b"new" } else { content };
            assert_eq!(fs::read(path).unwrap(), expected, "{name}");
        }
    }

    #[test]
    fn what_does_not_fit_is_not_written() {
        let (wheel, directory) = (Path::new("vec.whl"), std::env::temp_dir());
        check_room(wheel, "unpack", &directory, 1).unwrap();
        let error = check_room(wheel, "unpack", &directory, u64::MAX).unwrap_err();
        let text = error.in_one_line();
        assert!(text.starts_with("cannot unpack vec.whl: it needs"), "{text}");
    }
}
