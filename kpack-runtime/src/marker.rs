//! Reads a marker from the memory of a loaded binary.

use std::fs::File;
use std::os::unix::fs::FileExt;

use kpack_format::marker::{MAX_SIZE, Marker};

use crate::Error;
use crate::ffi::process;

/// The marker at `address` of this process, to which a split wrapper points.
///
/// Its length is not known beforehand, and the page after it may not be mapped. So the kernel copies
/// what can be read there: a bad address gives an error, never a crash.
///
/// # Errors
/// [`Error::NotReadable`], [`Error::Marker`].
pub fn marker_at(address: usize) -> Result<Marker, Error> {
    // Nearly all markers fit into the first piece; only longer ones need the rest.
    let mut bytes = vec![0; FIRST_PIECE];
    let mut read = read(address, &mut bytes);
    match Marker::read(&bytes[..read]) {
        Ok((marker, size)) if size < read || marker.kernel_name.is_some() => return Ok(marker),
        _ => {}
    }
    if read == FIRST_PIECE {
        bytes.resize(MAX_SIZE, 0);
        read = self::read(address, &mut bytes);
    }
    if read == 0 {
        return Err(Error::NotReadable { address });
    }
    match Marker::read(&bytes[..read]) {
        Ok((marker, _)) => Ok(marker),
        Err(source) => Err(Error::Marker { address, source }),
    }
}

/// In bytes.
const FIRST_PIECE: usize = 2048;

/// Copies what can be read at `address`; returns the number of bytes.
fn read(address: usize, bytes: &mut [u8]) -> usize {
    let read = process::read_memory(address, bytes);
    // Some sandboxes forbid it.
    read.unwrap_or_else(|_| read_through_file(address, bytes))
}

/// As [`process::read_memory`], through the kernel's file of this memory (proc_pid_mem(5)).
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
        file.write_all_at(&[7; 16], PAGE as u64 - 16)
            .expect("a temporary file");
        let mapping = process::map_for_test(&file, 2 * PAGE);
        let address = mapping.as_ptr() as usize + PAGE - 16;
        for way in [read, read_through_file] {
            let mut bytes = [0; 100];
            assert_eq!(way(address, &mut bytes), 16);
            assert_eq!(bytes[..16], [7; 16]);
            assert_eq!(way(8, &mut bytes), 0);
            assert_eq!(way(usize::MAX - 3, &mut bytes), 0);
        }
    }
}
