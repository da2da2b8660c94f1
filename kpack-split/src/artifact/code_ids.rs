//! The IDs of device code in the markers of host files: each shard's name the targets that it built.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use kpack_format::marker::{Marker, SECTION_NAME};

use crate::Error;
use crate::elf::{DeviceCode, Image, SplitBinary};
use crate::inspect::{elf_error, read_markers};

/// How many bytes are compared at a time.
const CHUNK: u64 = 1 << 20;

/// Whether two split binaries differ in nothing but the code IDs in their markers.
pub(super) fn differ_only(
    one: &Path,
    a: &Image<File>,
    other: &Path,
    b: &Image<File>,
) -> Result<bool, Error> {
    let size = |image: &Image<File>| image.source().metadata().map(|metadata| metadata.len());
    let (Ok(size_a), Ok(size_b)) = (size(a), size(b)) else {
        return Ok(false);
    };
    if size_a != size_b || a.sections != b.sections {
        return Ok(false);
    }
    let (Some(ours), Some(theirs)) = (split(one, a)?, split(other, b)?) else {
        return Ok(false);
    };
    let sections = a.sections.iter().filter(|s| s.name == SECTION_NAME);
    let mut markers: Vec<Range<u64>> = sections.map(|s| s.offset..s.file_end()).collect();
    markers.sort_by_key(|range| range.start);
    markers.push(size_a..size_a);
    let mut at = 0;
    for range in markers {
        let same = same_bytes(a.source(), b.source(), at..range.start);
        if !same.map_err(|e| Error::io(one, "read", e))? {
            return Ok(false);
        }
        at = at.max(range.end);
    }
    Ok(without_ids(one, a, &ours)? == without_ids(other, b, &theirs)?)
}

fn split(path: &Path, image: &Image<File>) -> Result<Option<SplitBinary>, Error> {
    match image.device_code().map_err(|e| elf_error(path, e))? {
        DeviceCode::Split(split) => Ok(Some(split)),
        _ => Ok(None),
    }
}

/// The markers, without code IDs, with the positions of their wrappers.
fn without_ids(
    path: &Path,
    image: &Image<File>,
    split: &SplitBinary,
) -> Result<Vec<(Marker, Vec<usize>)>, Error> {
    let groups = read_markers(path, image, split)?.into_iter();
    let plain = groups.map(|group| (group.marker.without_code_ids(), group.wrappers));
    Ok(plain.collect())
}

fn same_bytes(a: &File, b: &File, range: Range<u64>) -> io::Result<bool> {
    let mut at = range.start;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    while at < range.end {
        let size = CHUNK.min(range.end - at) as usize;
        ours.resize(size, 0);
        theirs.resize(size, 0);
        a.read_exact_at(&mut ours, at)?;
        b.read_exact_at(&mut theirs, at)?;
        if ours != theirs {
            return Ok(false);
        }
        at += size as u64;
    }
    Ok(true)
}
