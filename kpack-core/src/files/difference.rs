//! Compares what two files have, a piece at a time.

use std::fs::File;
use std::io;

use crate::platform::FileExt;

/// Bytes compared at a time: few enough to stay in the processor's cache.
const PIECE: u64 = 64 << 10;

/// Offset of the first byte that differs among the first `size` bytes of two sources. Each fills a buffer with its bytes
/// from an offset.
///
/// # Errors
/// Those of the sources.
pub fn first_difference<E>(
    size: u64,
    one: impl Fn(u64, &mut [u8]) -> Result<(), E>,
    other: impl Fn(u64, &mut [u8]) -> Result<(), E>,
) -> Result<Option<u64>, E> {
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for start in (0..size).step_by(PIECE as usize) {
        let length = PIECE.min(size - start) as usize;
        a.resize(length, 0);
        b.resize(length, 0);
        one(start, &mut a)?;
        other(start, &mut b)?;
        if a != b {
            let same = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
            return Ok(Some(start + same as u64));
        }
    }
    Ok(None)
}

/// Whether two files have the same bytes.
///
/// # Errors
/// Those of the system.
pub fn same_bytes(one: &File, other: &File) -> io::Result<bool> {
    let size = one.metadata()?.len();
    let differs = || first_difference(size, fills(one), fills(other));
    Ok(size == other.metadata()?.len() && differs()?.is_none())
}

fn fills(file: &File) -> impl Fn(u64, &mut [u8]) -> io::Result<()> {
    |at, out| file.read_exact_at(out, at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::ReadAt;

    #[test]
    fn pieces_are_compared_up_to_the_first_difference() {
        let size = 2 * PIECE + 7;
        let one = vec![1; size as usize];
        let found = |other: &[u8]| -> io::Result<Option<u64>> {
            let read = |bytes: &[u8], at, out: &mut [u8]| bytes.read_exact_at(at, out);
            first_difference(size, |at, out| read(&one, at, out), |at, out| read(other, at, out))
        };
        assert_eq!(found(&one).unwrap(), None);
        for at in [0, PIECE - 1, PIECE, size - 1] {
            let mut other = one.clone();
            other[at as usize] = 2;
            assert_eq!(found(&other).unwrap(), Some(at));
        }
        assert!(found(&one[1..]).is_err());
    }
}
