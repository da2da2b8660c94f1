//! Reading a marker where the loaded binary has it.

use kpack_format::marker::{MAX_SIZE, Marker};

use crate::ffi::process;
use crate::{Error, process_map};

/// The marker at `address` of this process, which is where a split wrapper points to.
///
/// Its length is not known before it is read, and the page behind it may not be mapped. So the
/// kernel copies what can be read there, which no address makes fail worse than with an error.
///
/// # Errors
/// [`Error::NotReadable`], [`Error::Marker`].
pub fn marker_at(address: usize) -> Result<Marker, Error> {
    let mut bytes = vec![0; MAX_SIZE];
    let read = match process::read_memory(address, &mut bytes) {
        Ok(read) => read,
        // Forbidden here, as some sandboxes do.
        Err(_) => process_map::read_memory(address, &mut bytes),
    };
    if read == 0 {
        return Err(Error::NotReadable { address });
    }
    match Marker::read(&bytes[..read]) {
        Ok((marker, _)) => Ok(marker),
        Err(source) => Err(Error::Marker { address, source }),
    }
}
