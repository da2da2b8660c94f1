//! Identifies a file's kind from its first bytes.

use std::fs::File;
use std::io;
use std::path::Path;

use kpack_format::names;
use kpack_format::offload_binary;
use kpack_format::offload_bundle::{COMPRESSED_MAGIC, PLAIN_MAGIC};
use object::elf;

use crate::Error;
use crate::platform::FileExt;

/// Kinds of files related to device code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// An ELF file for a host that is not a relocatable object, or a PE file.
    Linked,
    /// A relocatable object for a host.
    Object,
    /// A static library.
    StaticLibrary,
    /// A `.kpack` archive.
    Archive,
    /// A `.kpm` manifest.
    Manifest,
    /// An offload bundle, plain or compressed.
    Bundle,
    /// An AMDGPU ELF file.
    CodeObject,
    /// Images for other offloading runtimes, such as OpenMP's, in LLVM's format.
    OffloadBinary,
}

/// The formats of binaries for hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostFormat {
    /// Linux.
    Elf,
    /// Windows: DLLs and programs.
    Pe,
}

impl HostFormat {
    /// By the first bytes of a file; what begins like a PE file may be a program for DOS.
    pub fn of(start: &[u8]) -> Option<Self> {
        if start.starts_with(&elf::ELFMAG) {
            Some(Self::Elf)
        } else if start.starts_with(b"MZ") {
            Some(Self::Pe)
        } else {
            None
        }
    }
}

/// Identifies `file`, found at `path`; `None` if it is of another kind. Reads only its first bytes.
/// A manifest has no magic, so its name counts too.
///
/// # Errors
/// [`Error::Io`] if it cannot be read.
pub fn identify(path: &Path, file: &File) -> Result<Option<FileKind>, Error> {
    let mut buffer = [0u8; START];
    let failed = |e| Error::io(path, "read", e);
    let start = first_bytes(file, &mut buffer, 0).map_err(failed)?;
    if HostFormat::of(start) == Some(HostFormat::Pe) && is_pe(file, start).map_err(failed)? {
        return Ok(Some(FileKind::Linked));
    }
    Ok(kind_of(start).or_else(|| names::is_manifest(path).then_some(FileKind::Manifest)))
}

/// A Debian package is an `ar` archive with this member first (deb(5)).
const DEBIAN_PACKAGE: &[u8] = b"!<arch>\ndebian-binary";

/// What a file is that contains other files, such as a Debian package, and what to do; `None` for other files. People download
/// libraries in these.
///
/// # Errors
/// [`Error::Io`] if it cannot be read.
pub fn describe_package(path: &Path, file: &File) -> Result<Option<String>, Error> {
    let mut buffer = [0u8; START];
    let start = first_bytes(file, &mut buffer, 0).map_err(|e| Error::io(path, "read", e))?;
    let is_wheel = path.extension().is_some_and(|end| end == "whl");
    let text = if start.starts_with(DEBIAN_PACKAGE) {
        "a Debian package; unpack it first"
    } else if start.starts_with(&[0xed, 0xab, 0xee, 0xdb]) {
        "an RPM package; unpack it first"
    } else if is_wheel {
        "a Python wheel; `kpack wheel` reads wheels"
    } else if start.starts_with(b"PK\x03\x04") {
        "a ZIP file; unpack it first"
    } else {
        return Ok(None);
    };
    Ok(Some(text.to_owned()))
}

/// Bytes that [`kind_of`] needs.
pub const START: usize = 64;

/// Identifies a file by its first bytes. Those of a PE file do not tell it from a program for DOS.
pub fn kind_of(start: &[u8]) -> Option<FileKind> {
    if start.starts_with(&elf::ELFMAG) {
        Some(elf_kind(start))
    } else if start.starts_with(b"KPAK") {
        Some(FileKind::Archive)
    } else if start.starts_with(PLAIN_MAGIC) || start.starts_with(COMPRESSED_MAGIC) {
        Some(FileKind::Bundle)
    } else if start.starts_with(DEBIAN_PACKAGE) {
        None
    } else if start.starts_with(b"!<arch>\n") || start.starts_with(b"!<thin>\n") {
        Some(FileKind::StaticLibrary)
    } else if start.starts_with(offload_binary::MAGIC) {
        Some(FileKind::OffloadBinary)
    } else {
        None
    }
}

/// `e_type` and `e_machine` are at the same place in every ELF class (gABI, "ELF Header").
fn elf_kind(start: &[u8]) -> FileKind {
    let big_endian = start.get(5) == Some(&elf::ELFDATA2MSB.0);
    let half = |at: usize| {
        let bytes = start.get(at..at + 2).and_then(|b| b.try_into().ok()).unwrap_or_default();
        if big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) }
    };
    if half(18) == elf::EM_AMDGPU.0 {
        FileKind::CodeObject
    } else if half(16) == elf::ET_REL.0 {
        FileKind::Object
    } else {
        FileKind::Linked
    }
}

/// Whether a file that begins like a program for DOS is a PE file: its DOS header leads to a signature.
fn is_pe(file: &File, start: &[u8]) -> io::Result<bool> {
    const SIGNATURE: &[u8] = b"PE\0\0";
    let at = start.get(60..64).and_then(|b| b.try_into().ok());
    let Some(at) = at.map(u32::from_le_bytes) else {
        return Ok(false);
    };
    Ok(first_bytes(file, &mut [0; 4], at.into())? == SIGNATURE)
}

/// The bytes from an offset on, fewer at the end of the file.
///
/// # Errors
/// Those of the system.
pub fn first_bytes<'a>(file: &File, buffer: &'a mut [u8], offset: u64) -> io::Result<&'a [u8]> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(&buffer[..filled])
}
