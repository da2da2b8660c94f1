//! Reads the memory of this process where a bad address may be.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Memory is read in pieces of this size: every page size is a multiple of it.
const PIECE: usize = 4096;

/// Copies the memory at `address` of this process into `bytes`, up to the first unreadable page; returns the
/// number of bytes.
pub(crate) fn read_memory(address: usize, bytes: &mut [u8]) -> usize {
    let read = read_by_call(address, bytes);
    // Some sandboxes forbid it.
    read.unwrap_or_else(|_| read_through_file(address, bytes))
}

/// As [`read_memory`], with process_vm_readv(2).
///
/// # Errors
/// It is forbidden.
fn read_by_call(address: usize, bytes: &mut [u8]) -> io::Result<usize> {
    // The kernel may refuse a piece that it cannot read as a whole, so none crosses the end of a page.
    let mut pieces = Vec::new();
    let mut at = address;
    let end = address.saturating_add(bytes.len());
    while at < end {
        let next = (at / PIECE + 1).saturating_mul(PIECE).min(end);
        pieces.push(libc::iovec { iov_base: at as *mut c_void, iov_len: next - at });
        at = next;
    }
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
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

/// As [`read_memory`], through the kernel's file of this memory (proc_pid_mem(5)).
fn read_through_file(address: usize, bytes: &mut [u8]) -> usize {
    let Ok(memory) = File::open("/proc/self/mem") else {
        return 0;
    };
    let mut done = 0;
    while done < bytes.len() {
        let Some(at) = (address as u64).checked_add(done as u64) else {
            break;
        };
        match memory.read_at(&mut bytes[done..], at) {
            Ok(0) | Err(_) => break,
            Ok(read) => done += read,
        }
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ways, on a readable page and an unreadable one after it: that is mapped, but past the end
    /// of the file.
    #[test]
    fn reading_ends_where_the_file_does() {
        const PAGE: usize = 4096;
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(PAGE as u64).expect("a temporary file");
        file.write_all_at(&[7; 16], PAGE as u64 - 16).expect("a temporary file");
        // SAFETY: nobody else has the file, and only the kernel reads past its end.
        let mapping = unsafe { memmap2::MmapOptions::new().len(2 * PAGE).map(&file) };
        let mapping = mapping.expect("a mapping");
        let address = mapping.as_ptr() as usize + PAGE - 16;
        for way in [read_memory, read_through_file] {
            let mut bytes = [0; 100];
            assert_eq!(way(address, &mut bytes), 16);
            assert_eq!(bytes[..16], [7; 16]);
            assert_eq!(way(8, &mut bytes), 0);
            assert_eq!(way(usize::MAX - 3, &mut bytes), 0);
        }
    }
}
