//! Facts about this process, as the system knows them.

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Memory is read in pieces of this size: every page size is a multiple of it.
const PIECE: usize = 4096;

/// Whether the process has more rights than whoever started it (AT_SECURE, see getauxval(3)).
pub(crate) fn is_secure() -> bool {
    // SAFETY: getauxval has no precondition.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Copies the memory at `address` of this process into `bytes`, up to the first unreadable page; returns the
/// number of bytes.
///
/// # Errors
/// process_vm_readv(2) is forbidden.
pub(crate) fn read_memory(address: usize, bytes: &mut [u8]) -> io::Result<usize> {
    // The kernel may refuse a piece that it cannot read as a whole, so none crosses the end of a page.
    let mut pieces = Vec::new();
    let mut at = address;
    let end = address.saturating_add(bytes.len());
    while at < end {
        let next = (at / PIECE + 1).saturating_mul(PIECE).min(end);
        pieces.push(libc::iovec {
            iov_base: at as *mut c_void,
            iov_len: next - at,
        });
        at = next;
    }
    let local = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: `local` is `bytes`, which may be written; the kernel reads only what is mapped of `pieces`.
    let read = unsafe {
        libc::process_vm_readv(
            libc::getpid(),
            &raw const local,
            1,
            pieces.as_ptr(),
            pieces.len() as libc::c_ulong,
            0,
        )
    };
    match usize::try_from(read) {
        Ok(read) => Ok(read),
        Err(_) => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::EFAULT) => Ok(0),
            error => Err(error),
        },
    }
}

/// The paths by which the dynamic linker loaded the libraries of this process. It has none for the program
/// itself.
pub(crate) fn loaded_objects() -> Vec<PathBuf> {
    unsafe extern "C" fn add(
        object: *mut libc::dl_phdr_info,
        _size: libc::size_t,
        paths: *mut c_void,
    ) -> c_int {
        // SAFETY: both pointers are valid during the call, and nobody else has the list.
        let (name, paths) = unsafe { ((*object).dlpi_name, &mut *paths.cast::<Vec<PathBuf>>()) };
        if !name.is_null() {
            // SAFETY: it ends with NUL.
            let name = unsafe { CStr::from_ptr(name) };
            paths.push(PathBuf::from(OsStr::from_bytes(name.to_bytes())));
        }
        0
    }
    let mut paths: Vec<PathBuf> = Vec::new();
    // SAFETY: `add` gets the list, which lives as long as the call.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut paths).cast()) };
    paths
}

/// Maps `file`, and memory past its end.
#[cfg(test)]
pub(crate) fn map_for_test(file: &std::fs::File, size: usize) -> memmap2::Mmap {
    // SAFETY: nobody else has the file, and only the kernel reads past its end.
    unsafe { memmap2::MmapOptions::new().len(size).map(file) }.expect("a mapping")
}
