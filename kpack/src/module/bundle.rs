//! Reads a bundle in the memory of this process.

use std::io::{self, Cursor, Read, Seek, SeekFrom};

use kpack_format::code_object::CodeObject;
use kpack_format::offload_bundle::Bundle;
use kpack_format::{Delivery, TargetId};

use super::{Code, Error, isas};
use crate::lookup;
use crate::platform::read_memory;

/// The most that is read at once, in bytes: the system takes no more pages.
const PIECE: usize = 1 << 20;
/// More than a bundle may have, in bytes. Its size is only in its table, because `kpack trim` and `kpack join` change it.
const AVAILABLE: u64 = 1 << 36;

/// Memory of this process, from `start` on. A page that nobody may read ends it.
#[derive(Debug)]
struct Memory {
    start: usize,
    position: u64,
}

impl Read for Memory {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let address = usize::try_from(self.position).ok();
        let Some(address) = address.and_then(|position| self.start.checked_add(position)) else {
            return Ok(0);
        };
        let most = bytes.len().min(PIECE);
        let read = read_memory(address, &mut bytes[..most]);
        self.position += read as u64;
        Ok(read)
    }
}

impl Seek for Memory {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            // Nobody knows where it ends.
            SeekFrom::End(_) => None,
        };
        self.position = position.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.position)
    }
}

/// The best code object for `gpu` in the bundle at `address`.
pub(super) fn load(module: &'static str, address: usize, gpu: TargetId) -> Result<Code, Error> {
    let memory = || Memory { start: address, position: 0 };
    let damaged = |source| Error::Bundle { module, source };
    let bundle = Bundle::read(&mut memory(), AVAILABLE).map_err(damaged)?;
    let Some((target, size)) = best(&bundle, gpu.clone()) else {
        return Err(no_code(module, &bundle, gpu));
    };
    let mut code_objects =
        bundle.code_objects(memory(), |other| *other == target).map_err(damaged)?;
    let mut bytes = Vec::new();
    let room = usize::try_from(size).ok().and_then(|size| bytes.try_reserve_exact(size).ok());
    room.ok_or(Error::OutOfMemory { module, size })?;
    // The second step compares the hash in the header of a compressed bundle.
    while let Some(mut code_object) = code_objects.next_entry().map_err(damaged)? {
        // Of several entries for the target, `best` has taken the first.
        if bytes.is_empty() {
            code_object.append(&mut bytes, u64::MAX).map_err(damaged)?;
        }
    }
    // Of a plain bundle, nothing has been checked yet but the table.
    let header = CodeObject::read(&mut Cursor::new(&bytes), size);
    if let Err(source) = header.and_then(|header| header.check_target(&target)) {
        return Err(Error::CodeObject { module, target, source });
    }
    Ok(Code { bytes, target })
}

/// The first target that the bundle has code for, of those that a HIP runtime would take, and the size of its code.
fn best(bundle: &Bundle, gpu: TargetId) -> Option<(TargetId, u64)> {
    let wanted = lookup::targets(&isas(gpu, Delivery::Bundle));
    wanted.iter().find_map(|wanted| {
        let wanted: TargetId = wanted.parse().ok()?;
        let mut there = bundle.entries.iter().filter(|entry| entry.size > 0);
        let entry = there.find(|entry| entry.id.target() == Some(&wanted))?;
        Some((wanted, entry.size))
    })
}

/// What the bundle has instead of code for `gpu`.
fn no_code(module: &'static str, bundle: &Bundle, gpu: TargetId) -> Error {
    let there = bundle.entries.iter().filter(|entry| entry.size > 0);
    let there: Vec<TargetId> = there.filter_map(|entry| entry.id.target().cloned()).collect();
    Error::NoCode { module, gpu, there }
}
