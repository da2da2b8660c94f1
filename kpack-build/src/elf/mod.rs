//! One linked ELF file: read, find its device code, plan the host binary, apply the plan.
//!
//! `image` (headers) → `wrappers` (device code) → `layout` (the plan, pure data) → `rewrite`
//! (applied) → `check`.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;

/// Bytes that are read by position: a file, or memory.
pub trait ReadAt {
    /// Size in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Fills `buf` from `offset`; an error of kind `UnexpectedEof` where there is less.
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
}

/// Why a binary was refused. The caller knows the path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ElfError {
    /// Reading failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is damaged, or of a kind that cannot be rewritten; the text names the offending
    /// thing, what was expected and what was found.
    #[error("{0}")]
    Refused(String),
}

/// A linked ELF file, of which the headers are held and the rest is read on demand.
#[derive(Debug)]
pub struct Image<S> {
    source: S,
}

/// The device code of a linked ELF file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceCode {
    /// There is none; says why a file that looks as if it had some has none.
    None(NoDeviceCode),
    /// A fat binary.
    Fat(FatBinary),
    /// Split already.
    Split(SplitBinary),
}

/// Why a file has no device code that could be split off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoDeviceCode {
    /// Nothing of the kind in it.
    Absent,
    /// A separated debug file: the sections are there by name only (NOBITS).
    DebugFile,
    /// `.hip_fatbin` without a wrapper: the program loads its device code by other means.
    NoWrappers,
}

/// Where the device code of a fat binary is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FatBinary {
    /// Addresses of `.hip_fatbin`.
    pub addresses: Range<u64>,
    /// File offset of `.hip_fatbin`.
    pub offset: u64,
    /// Its wrappers, in order of address. The position is the `co_index`.
    pub wrappers: Vec<Wrapper>,
}

/// A wrapper with magic HIPF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrapper {
    /// Address of the wrapper.
    pub address: u64,
    /// Address of its bundle.
    pub bundle_address: u64,
    /// File offset of its bundle.
    pub bundle_offset: u64,
    /// How many bytes the bundle may occupy: up to the next bundle that another wrapper points to,
    /// or the end of the section.
    pub bundle_available: u64,
}

/// The wrappers of a split binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitBinary {
    /// In order of address.
    pub wrappers: Vec<SplitWrapper>,
}

/// A wrapper with magic HIPK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitWrapper {
    /// Address of the wrapper.
    pub address: u64,
    /// Code object index: the number behind `#` in the kernel name.
    pub co_index: u32,
    /// Address of its marker.
    pub marker_address: u64,
    /// File offset of its marker.
    pub marker_offset: u64,
    /// How many bytes the marker may occupy: up to the end of the segment's bytes in the file.
    pub marker_available: u64,
}

/// How a host binary is made of a fat one. A value: it can be printed, checked and refused before
/// a byte changes.
#[derive(Debug, Clone)]
pub struct Plan {}

impl<S: ReadAt> Image<S> {
    /// Reads the headers. Refuses what is not a 64-bit little-endian ELF file for x86-64 or
    /// AArch64, a relocatable object, and a file without section headers.
    pub fn read(source: S) -> Result<Self, ElfError> {
        let _ = &source;
        todo!()
    }

    /// What the headers were read from.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Finds the wrappers, and follows each to its bundle or marker.
    pub fn device_code(&self) -> Result<DeviceCode, ElfError> {
        todo!()
    }
}

impl Plan {
    /// Plans the host binary of `image`, whose device code is `fat`, with `marker` (at most
    /// 64 KiB) in its place.
    pub fn new<S: ReadAt>(
        image: &Image<S>,
        fat: &FatBinary,
        marker: &[u8],
    ) -> Result<Self, ElfError> {
        let _ = (image, fat, marker);
        todo!()
    }

    /// Size of the host binary in bytes.
    pub fn output_size(&self) -> u64 {
        todo!()
    }

    /// Writes the host binary into the empty file `output`, then reads it back and checks it.
    pub fn apply(&self, input: &File, output: &File) -> Result<(), ElfError> {
        let _ = (input, output);
        todo!()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let _ = f;
        todo!()
    }
}

/// What differs between the host code of a fat binary and the binary split from it, beyond what
/// splitting changes. Empty where they agree. Only what is loaded is compared, so both may have
/// been stripped.
pub fn compare<A: ReadAt, B: ReadAt>(
    original: &Image<A>,
    split: &Image<B>,
) -> Result<Vec<String>, ElfError> {
    let _ = (original, split);
    todo!()
}
