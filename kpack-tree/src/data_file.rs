//! Recognises data files. Only these can belong to one GPU target by name alone: a library, header
//! or script for all targets may have a target's name too.

use std::fs::File;
use std::io;
use std::path::Path;

use kpack_core::Error;
use kpack_core::platform::FileExt;
use kpack_split::input::FileKind;

/// Extensions of data files: code objects, databases and tables.
const EXTENSIONS: &[&str] = &[
    "aks2", "bin", "co", "csv", "dat", "db", "db.txt", "fdb", "fdb.txt", "hsaco", "json", "kdb",
    "model", "msgpack", "tsv", "ufdb", "ufdb.txt", "yaml", "yml",
];

/// Extensions of compressed files.
const COMPRESSED: &[&str] = &["bz2", "gz", "xz", "zlib", "zst"];

/// The name of a file without the suffix of its compression: `x.dat` for `x.dat.zlib`.
pub(super) fn uncompressed(name: &str) -> &str {
    let mut stems = COMPRESSED.iter().filter_map(|end| stem(name, end));
    stems.next().unwrap_or(name)
}

/// What is before the extension, which may have dots in it; `None` for another, or nothing.
fn stem<'a>(name: &'a str, extension: &str) -> Option<&'a str> {
    let stem = name.strip_suffix(extension)?.strip_suffix('.')?;
    (!stem.is_empty()).then_some(stem)
}

/// What a file is, where it is no data file: one by its name that is no binary for a host and no
/// script by its content. `kind` is what it was identified as.
pub(super) fn not_data(
    path: &Path,
    file: &File,
    kind: Option<FileKind>,
) -> Result<Option<&'static str>, Error> {
    Ok(match kind {
        Some(FileKind::Linked | FileKind::Object) => Some("an ELF file for the host"),
        Some(FileKind::StaticLibrary) => Some("a static library"),
        _ if !ends_in(path, EXTENSIONS) => Some("not named like a data file"),
        _ if is_script(file).map_err(|e| Error::io(path, "read", e))? => Some("a script"),
        _ => None,
    })
}

/// Extensions of packages that contain files.
const PACKAGES: &[&str] = &["7z", "deb", "egg", "jar", "rpm", "tar", "tgz", "whl", "zip"];

/// Whether a file is named like a package, compressed or not.
pub(super) fn is_package(path: &Path) -> bool {
    ends_in(path, PACKAGES)
}

fn ends_in(path: &Path, extensions: &[&str]) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    extensions.iter().any(|end| stem(uncompressed(&name), end).is_some())
}

fn is_script(file: &File) -> io::Result<bool> {
    let mut start = [0; 2];
    match file.read_exact_at(&mut start, 0) {
        Ok(()) => Ok(&start == b"#!"),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_data() {
        for name in [
            "tuning_gfx1100.csv",
            "gfx942.DAT",
            "gfx90a.db.txt",
            "kernels-gfx942.bin.zst",
            "kernels-gfx942.dat.zlib",
            "gfx1100/Contraction.yaml",
        ] {
            assert!(ends_in(Path::new(name), EXTENSIONS), "{name}");
        }
        for name in [
            "gfx9.h",
            "libck_gfx1100.so.1",
            "gfx942.py",
            "targets-gfx942.cmake",
            "README_gfx942.txt",
            "gfx1100",
            ".bin",
            "gfx942.tar.gz",
            "kernels_gfx942.whl",
        ] {
            assert!(!ends_in(Path::new(name), EXTENSIONS), "{name}");
        }
    }

    #[test]
    fn names_of_packages() {
        for name in ["kernels-1.0-py3-none-any.whl", "db.tar.gz", "x.tar", "a.ZIP"] {
            assert!(is_package(Path::new(name)), "{name}");
        }
        for name in ["target", "table.gz", ".zip"] {
            assert!(!is_package(Path::new(name)), "{name}");
        }
    }

    #[test]
    fn data_is_no_script() {
        let mut file = tempfile::tempfile().unwrap();
        let path = Path::new("gfx942.bin");
        assert_eq!(not_data(path, &file, None).unwrap(), None);
        io::Write::write_all(&mut file, b"#!/bin/sh\n").unwrap();
        assert_eq!(not_data(path, &file, None).unwrap(), Some("a script"));
        let elf = not_data(path, &file, Some(FileKind::Linked)).unwrap();
        assert_eq!(elf, Some("an ELF file for the host"));
    }
}
