//! The wrapper of a module, and its bundle, as compilers make them for C++.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::panic::RefUnwindSafe;
use std::ptr;

use kpack_format::marker::{MAGIC_FAT, MAGIC_SPLIT, WRAPPER_VERSION};

/// The bundle of a module, in a section of its own and at the start of a page, where kpack expects one.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct Bundle<const SIZE: usize>([u8; SIZE]);

impl<const SIZE: usize> Bundle<SIZE> {
    /// With these bytes.
    pub const fn new(bytes: &[u8; SIZE]) -> Self {
        Self(*bytes)
    }
}

/// The wrapper of a module. In the file of the program, `kpack split` turns it into one that leads to a marker.
#[derive(Debug)]
#[repr(transparent)]
pub struct Wrapper(UnsafeCell<Record>);

/// `__CudaFatBinaryWrapper`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Record {
    magic: u32,
    version: u32,
    /// Leads to the bundle, or to the marker.
    pointer: *const u8,
    /// In its lower half, the index of the code object if the program was split.
    last: u64,
}

/// An ELF note that tells `kpack doctor` that the binary loads its modules itself. Linkers and `strip` keep it.
#[derive(Debug)]
#[repr(C, align(4))]
pub struct Note([u32; 3], [u8; 8]);

impl Note {
    /// The only one.
    pub const MODULES: Self = Self([6, 0, 3], *b"kpack\0\0\0");
}

// SAFETY: nobody writes it while the program runs.
unsafe impl Sync for Wrapper {}

// For the same reason, a panic leaves no half-written one.
impl RefUnwindSafe for Wrapper {}

/// What a wrapper says.
pub(super) struct Found {
    pub(super) content: Content,
    /// Where it leads.
    pub(super) address: usize,
    pub(super) co_index: u32,
}

/// What a wrapper leads to.
pub(super) enum Content {
    Bundle,
    Marker,
    /// Something with this magic.
    Unknown(u32),
}

impl Wrapper {
    /// Over this bundle.
    pub const fn new<const SIZE: usize>(bundle: &'static Bundle<SIZE>) -> Self {
        let pointer = bundle.0.as_ptr();
        Self(UnsafeCell::new(Record {
            magic: MAGIC_FAT,
            version: WRAPPER_VERSION,
            pointer,
            last: 0,
        }))
    }

    pub(super) fn read(&self) -> Found {
        // SAFETY: it is valid, and no code writes it. `kpack split` changes it in the file, so the compiler must not
        // assume the content that it compiled.
        let record = unsafe { ptr::read_volatile(self.0.get()) };
        let content = match record.magic {
            MAGIC_FAT => Content::Bundle,
            MAGIC_SPLIT => Content::Marker,
            magic => Content::Unknown(magic),
        };
        Found { content, address: record.pointer.addr(), co_index: record.last as u32 }
    }
}
