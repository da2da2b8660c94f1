//! Reads a marker from the memory of a loaded binary.

use kpack_format::marker::{MAX_SIZE, Marker};

use crate::error::Error;
use crate::platform::read_memory;

/// The marker at `address` of this process, to which a split wrapper points.
///
/// Its length is not known beforehand, and the page after it may not be mapped. So the system copies
/// what can be read there: a bad address gives an error, never a crash.
///
/// # Errors
/// [`Error::NotReadable`], [`Error::Marker`].
pub fn marker_at(address: usize) -> Result<Marker, Error> {
    // Nearly all markers fit into the first piece; only longer ones need the rest.
    let mut bytes = vec![0; FIRST_PIECE];
    let mut read = read_memory(address, &mut bytes);
    match Marker::read(&bytes[..read]) {
        Ok((marker, size)) if size < read || marker.kernel_name.is_some() => return Ok(marker),
        _ => {}
    }
    if read == FIRST_PIECE {
        bytes.resize(MAX_SIZE, 0);
        read = read_memory(address, &mut bytes);
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
