//! Windows.

use std::ffi::{OsString, c_void};
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::windows::ffi::{OsStrExt, OsStringExt};
use std::os::windows::fs::{FileExt, OpenOptionsExt};
use std::os::windows::io::AsRawHandle;
use std::path::{Path, PathBuf};
use std::ptr;

use windows_sys::Win32::Foundation::{HMODULE, MAX_PATH};
use windows_sys::Win32::Globalization::{
    CP_ACP, MultiByteToWideChar, WC_NO_BEST_FIT_CHARS, WideCharToMultiByte,
};
use windows_sys::Win32::Storage::FileSystem::{
    BY_HANDLE_FILE_INFORMATION, FILE_FLAG_BACKUP_SEMANTICS, FILE_SHARE_DELETE, FILE_SHARE_READ,
    FILE_SHARE_WRITE, GetFileInformationByHandle,
};
use windows_sys::Win32::System::Diagnostics::Debug::ReadProcessMemory;
use windows_sys::Win32::System::LibraryLoader::{
    GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS, GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT,
    GetModuleFileNameW, GetModuleHandleExW,
};
use windows_sys::Win32::System::Memory::{
    MEM_COMMIT, MEMORY_BASIC_INFORMATION, PAGE_GUARD, PAGE_NOACCESS, VirtualQuery,
};
use windows_sys::Win32::System::Threading::GetCurrentProcess;

use crate::error::Error;

/// Others may read, replace and remove what this process has open.
const SHARED: u32 = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
/// The most characters in a path.
const MAX_LONG_PATH: usize = 32768;

/// The identity of a file: different after the file was replaced or written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FileId {
    volume: u32,
    index: (u32, u32),
    size: (u32, u32),
    modified: (u32, u32),
}

impl FileId {
    /// The identity of the file that `path` leads to.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        // No access, so that nobody's sharing mode matters. The flag permits directories.
        options.access_mode(0).share_mode(SHARED);
        options.custom_flags(FILE_FLAG_BACKUP_SEMANTICS);
        Self::of_open(&options.open(path)?)
    }

    /// The identity of an open file.
    pub(crate) fn of(file: &File, _metadata: &Metadata) -> io::Result<Self> {
        Self::of_open(file)
    }

    fn of_open(file: &File) -> io::Result<Self> {
        let mut found = BY_HANDLE_FILE_INFORMATION::default();
        // SAFETY: the file is open, and `found` may be written.
        let success = unsafe { GetFileInformationByHandle(file.as_raw_handle(), &raw mut found) };
        if success == 0 {
            return Err(io::Error::last_os_error());
        }
        let modified = found.ftLastWriteTime;
        Ok(Self {
            volume: found.dwVolumeSerialNumber,
            index: (found.nFileIndexHigh, found.nFileIndexLow),
            size: (found.nFileSizeHigh, found.nFileSizeLow),
            modified: (modified.dwHighDateTime, modified.dwLowDateTime),
        })
    }
}

/// The path in a C string: UTF-8, or else in the process's ANSI code page. Where it can be either, it is the one
/// that leads to a file; some words of Chinese in code page 936 are valid UTF-8.
pub fn path_of(text: &[u8]) -> PathBuf {
    let utf_8 = std::str::from_utf8(text).ok().map(PathBuf::from);
    if text.is_ascii() || utf_8.as_ref().is_some_and(|path| path.exists()) {
        return utf_8.unwrap_or_default();
    }
    let ansi = from_ansi(text).map(PathBuf::from);
    match (utf_8, ansi) {
        (Some(_), Some(ansi)) if ansi.exists() => ansi,
        (Some(utf_8), _) => utf_8,
        (None, Some(ansi)) => ansi,
        (None, None) => PathBuf::from(String::from_utf8_lossy(text).into_owned()),
    }
}

/// A path as C strings have it: in the process's ANSI code page, as the functions of C and of Windows read it. A path
/// that the code page does not have is in UTF-8.
pub fn text_of(path: &Path) -> Vec<u8> {
    let wide = Vec::from_iter(path.as_os_str().encode_wide());
    to_ansi(&wide).unwrap_or_else(|| path.to_string_lossy().into_owned().into_bytes())
}

/// Opens a file for reading.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).share_mode(SHARED).open(path)
}

/// Reads at a position, for any number of threads; returns the number of bytes.
pub(crate) fn read_at(file: &File, bytes: &mut [u8], position: u64) -> io::Result<usize> {
    file.seek_read(bytes, position)
}

/// Whether the process has more rights than whoever started it. Windows has no such programs: who starts one with
/// more rights was asked for them.
pub(crate) fn is_secure() -> bool {
    false
}

/// Other paths by which the libraries of this process were loaded. There are none: Windows knows a library by the
/// path by which it was loaded.
pub(crate) fn loaded_objects() -> Vec<PathBuf> {
    Vec::new()
}

/// Copies the memory at `address` of this process into `bytes`, up to the first unreadable page; returns the
/// number of bytes.
pub(crate) fn read_memory(address: usize, bytes: &mut [u8]) -> usize {
    let mut done = 0;
    while done < bytes.len() {
        let Some(at) = address.checked_add(done) else {
            break;
        };
        // Windows refuses a piece that it cannot read as a whole.
        let piece = readable(at).min(bytes.len() - done);
        let into = bytes[done..done + piece].as_mut_ptr().cast::<c_void>();
        let mut read = 0;
        // SAFETY: `into` has room for the piece, and Windows reads only what is there.
        let success = unsafe {
            let process = GetCurrentProcess();
            ReadProcessMemory(process, at as *const c_void, into, piece, &raw mut read)
        };
        if success == 0 || read == 0 {
            break;
        }
        done += read;
    }
    done
}

/// The number of bytes from `address` on that can be read, as far as they have the same protection.
fn readable(address: usize) -> usize {
    let mut region = MEMORY_BASIC_INFORMATION::default();
    let size = size_of_val(&region);
    // SAFETY: `region` may be written, and the address need not be valid.
    let found = unsafe { VirtualQuery(address as *const c_void, &raw mut region, size) };
    let closed = region.Protect & (PAGE_NOACCESS | PAGE_GUARD) != 0;
    if found == 0 || region.State != MEM_COMMIT || closed {
        return 0;
    }
    let end = (region.BaseAddress as usize).saturating_add(region.RegionSize);
    end.saturating_sub(address)
}

/// The file that is mapped at `address` of this process, and the offset of that address in it.
///
/// # Errors
/// [`Error::NotMapped`] if no program or library is loaded there, or the address is in none of the bytes of its
/// file.
pub fn discover_binary_path(address: usize) -> Result<(PathBuf, usize), Error> {
    let not_mapped = Error::NotMapped { address };
    let Some(module) = module_at(address) else {
        return Err(not_mapped);
    };
    match (file_name(module), file_offset(module as usize, address)) {
        (Some(path), Some(offset)) => Ok((path, offset)),
        _ => Err(not_mapped),
    }
}

fn module_at(address: usize) -> Option<HMODULE> {
    let flags =
        GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
    let mut module: HMODULE = ptr::null_mut();
    // SAFETY: with this flag the name is an address, which need not be valid; `module` may be written.
    let success = unsafe { GetModuleHandleExW(flags, address as *const u16, &raw mut module) };
    (success != 0 && !module.is_null()).then_some(module)
}

fn file_name(module: HMODULE) -> Option<PathBuf> {
    let mut size = MAX_PATH as usize;
    loop {
        let mut wide = vec![0u16; size];
        // SAFETY: `wide` has room for that many characters. A module that was unloaded gives an error.
        let length = unsafe { GetModuleFileNameW(module, wide.as_mut_ptr(), size as u32) };
        let length = length as usize;
        if length == 0 {
            return None;
        }
        // A name that is cut off fills the room.
        if length < size {
            return Some(OsString::from_wide(&wide[..length]).into());
        }
        if size >= MAX_LONG_PATH {
            return None;
        }
        size *= 2;
    }
}

/// The offset of `address` in the file that is loaded at `image`, by its table of sections.
fn file_offset(image: usize, address: usize) -> Option<usize> {
    let number = |at: usize, size: usize| {
        let mut bytes = [0; 8];
        let read = read_memory(image.checked_add(at)?, &mut bytes[..size]);
        (read == size).then(|| usize::try_from(u64::from_le_bytes(bytes)).ok())?
    };
    let header = number(0x3c, 4)?;
    let count = number(header + 6, 2)?;
    let optional = number(header + 20, 2)?;
    let relative = address.checked_sub(image)?;
    if relative < number(header + 24 + 60, 4)? {
        return Some(relative);
    }
    let sections = header + 24 + optional;
    let offsets = (0..count).filter_map(|index| {
        let section = sections + 40 * index;
        let inside = relative.checked_sub(number(section + 12, 4)?)?;
        let mapped = number(section + 8, 4)?.min(number(section + 16, 4)?);
        let start = number(section + 20, 4)?;
        (inside < mapped).then_some(start + inside)
    });
    offsets.into_iter().next()
}

fn from_ansi(text: &[u8]) -> Option<OsString> {
    let size = i32::try_from(text.len()).ok()?;
    let mut wide = vec![0u16; text.len()];
    // SAFETY: both have the sizes that are given; no code page needs more characters than bytes.
    let length = unsafe {
        let (from, into) = (text.as_ptr(), wide.as_mut_ptr());
        MultiByteToWideChar(CP_ACP, 0, from, size, into, size)
    };
    let length = usize::try_from(length).ok().filter(|length| *length > 0)?;
    Some(OsString::from_wide(&wide[..length]))
}

/// `None` if the code page lacks a character.
fn to_ansi(wide: &[u16]) -> Option<Vec<u8>> {
    let size = i32::try_from(wide.len()).ok()?;
    // A code page needs at most two bytes for a character, UTF-8 three.
    let room = size.checked_mul(3)?;
    let mut text = vec![0u8; 3 * wide.len()];
    let flags = WC_NO_BEST_FIT_CHARS;
    let convert = |flags, lacks: *mut i32, text: &mut [u8]| {
        let (from, into) = (wide.as_ptr(), text.as_mut_ptr());
        // SAFETY: both have the sizes that are given, and `lacks` is null or may be written.
        unsafe { WideCharToMultiByte(CP_ACP, flags, from, size, into, room, ptr::null(), lacks) }
    };
    let mut lacks = 0;
    let mut length = convert(flags, &raw mut lacks, &mut text);
    if length <= 0 {
        // Where the code page is UTF-8, it takes neither.
        length = convert(0, ptr::null_mut(), &mut text);
    }
    text.truncate(usize::try_from(length).ok().filter(|length| *length > 0)?);
    (lacks == 0).then_some(text)
}
