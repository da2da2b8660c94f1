//! Copies a file while it is checked.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use kpack_format::Sha256;
use kpack_format::digest::Hasher;

use super::directory::Directory;
use super::identity::Identity;
use super::sparse::write_at;
use crate::{Error, files, interrupt, platform};

/// Bytes read at a time.
const PIECE: usize = 1 << 20;

/// Reads the file at `path` once: for its SHA-256, and for a copy in `directory` that has no name yet, with
/// the identity of what was copied. There is no
/// copy where the file system has no nameless files, or no room: whoever wants one has to read the file again.
///
/// # Errors
/// [`Error::Io`] if the file cannot be read.
pub fn copy_checked(
    path: &Path,
    directory: &Directory,
) -> Result<(Sha256, Option<(Identity, File)>), Error> {
    let failed = |error| Error::io(path, "read", error);
    let input = files::open(path)?;
    // Of before: if it changes meanwhile, it is another one.
    let identity = Identity::of(path, &input)?;
    let mut copy = directory.create_nameless().ok();
    // Shares the blocks of the input. What is read then is what gets a name.
    let cloned = copy
        .take_if(|copy| platform::clone_content(&input, copy).is_ok())
        .map(|copy| (copy.try_clone(), copy));
    if let Some((reader, copy)) = cloned {
        let sum = read(path, &reader.map_err(failed)?, |_, _| {})?;
        return Ok((sum, Some((identity, copy))));
    }
    let mut size = 0;
    let sum = read(path, &input, |piece, at| {
        size = at + piece.len() as u64;
        // Zeros stay a hole.
        let is_zero = piece.iter().all(|byte| *byte == 0);
        copy.take_if(|copy| !is_zero && write_at(copy, piece, at).is_err());
    })?;
    copy.take_if(|copy| copy.set_len(size).is_err());
    Ok((sum, copy.map(|copy| (identity, copy))))
}

/// The SHA-256 of `file`, whose pieces `each` gets with their offsets.
fn read(path: &Path, mut file: &File, mut each: impl FnMut(&[u8], u64)) -> Result<Sha256, Error> {
    let mut hasher = Hasher::default();
    let mut buffer = vec![0; PIECE];
    let mut at = 0;
    loop {
        interrupt::check(path, "read")?;
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hasher.finish()),
            Ok(size) => {
                hasher.update(&buffer[..size]);
                each(&buffer[..size], at);
                at += size as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io(path, "read", error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    #[test]
    fn a_copy_has_the_bytes_that_were_checked_and_keeps_holes() {
        let tree = tempfile::tempdir().unwrap();
        let directory = Directory::open(tree.path()).unwrap();
        let path = tree.path().join("input");
        let input = File::create(&path).unwrap();
        input.write_all_at(b"begin", 0).unwrap();
        input.write_all_at(b"middle", 3 << 20).unwrap();
        input.set_len((8 << 20) + 1).unwrap();
        let (sum, copy) = copy_checked(&path, &directory).unwrap();
        assert_eq!(sum, files::digest(&path).unwrap());
        let Some((_, copy)) = copy else {
            eprintln!("skipped: this file system has no nameless files");
            return;
        };
        directory.link(&copy, "copy".as_ref()).unwrap();
        let named = tree.path().join("copy");
        assert!(fs::read(&named).unwrap() == fs::read(&path).unwrap());
        assert!(named.metadata().unwrap().blocks() * 512 <= 2 * PIECE as u64);
    }
}
