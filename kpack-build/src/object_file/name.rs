//! How an object's kernels are named.
//!
//! A linked binary's kernels are named after its path in the install prefix, which is unique.
//! Objects have no such path, and objects of many directories or builds meet in one module. So an
//! object's name is `<file name>@<digest>`, with a digest of its bundles. Two objects of the same
//! name then have the same device code, and objects of different builds can share an archive.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use kpack_format::digest::Hasher;
use kpack_format::names::KernelName;

use crate::Error;
use crate::input::hex;

/// Bytes of the digest in a name. With 64 bits, the probability of a collision among 10⁹ different
/// objects of one file name is 3 %.
const DIGEST: usize = 8;
const CHUNK: u64 = 1 << 20;

/// The kernel name of an object, without the index: `label`, and the digest of its bundles.
pub(super) fn kernel_name(
    path: &Path,
    label: &str,
    file: &File,
    bundles: impl Iterator<Item = Range<u64>>,
) -> Result<String, Error> {
    let mut hasher = Hasher::default();
    let mut buffer = vec![0; CHUNK as usize];
    for bundle in bundles {
        hasher.update(&(bundle.end - bundle.start).to_le_bytes());
        let mut at = bundle.start;
        while at < bundle.end {
            let some = &mut buffer[..(bundle.end - at).min(CHUNK) as usize];
            file.read_exact_at(some, at)
                .map_err(|e| Error::io(path, "read", e))?;
            hasher.update(some);
            at += some.len() as u64;
        }
    }
    Ok(format!("{label}@{}", hex(&hasher.finish()[..DIGEST])))
}

/// Whether `kernel_name` is the name of an object, not the path of a binary.
pub fn is_object(kernel_name: &str) -> bool {
    kernel_name.rsplit_once('@').is_some_and(|(label, digest)| {
        !label.is_empty()
            && digest.len() == 2 * DIGEST
            && digest
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// The file name in the kernel name of an object or a static library member.
pub(super) fn file_of(kernel: &str) -> Option<&str> {
    let name = KernelName::parse(kernel).binary;
    let (label, _) = name.rsplit_once('@').filter(|_| is_object(name))?;
    Some(label.split('/').next().unwrap_or(label))
}
