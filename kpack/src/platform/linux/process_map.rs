//! The files that are mapped in this process (`/proc/self/maps`, see proc_pid_maps(5)).

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::error::Error;

const MAPS: &str = "/proc/self/maps";
/// The kernel adds this to the path of a file that was removed.
const DELETED: &[u8] = b" (deleted)";

/// One line.
#[derive(Debug, PartialEq, Eq)]
struct Line<'a> {
    range: Range<usize>,
    /// Offset in the file, in bytes.
    offset: usize,
    inode: &'a [u8],
    /// As the kernel writes it.
    path: &'a [u8],
}

/// The file that is mapped at `address` of this process, and the offset of that address in it.
///
/// # Errors
/// [`Error::NotMapped`] if no file is mapped there, [`Error::Io`] if the maps cannot be read.
pub fn discover_binary_path(address: usize) -> Result<(PathBuf, usize), Error> {
    let maps = fs::read(MAPS).map_err(|error| {
        let source = match error.kind() {
            io::ErrorKind::NotFound => io::Error::other("/proc is not mounted; mount it"),
            _ => error,
        };
        Error::Io { path: MAPS.into(), source }
    })?;
    find(&maps, address).ok_or(Error::NotMapped { address })
}

fn find(maps: &[u8], address: usize) -> Option<(PathBuf, usize)> {
    let line = lines(maps).find(|line| line.range.contains(&address))?;
    if line.inode == b"0" || !line.path.starts_with(b"/") {
        return None;
    }
    let path = unescape(line.path);
    let exists = |path: &[u8]| PathBuf::from(OsStr::from_bytes(path)).exists();
    let path = match path.strip_suffix(DELETED) {
        // The file was replaced; its directory is still the right one.
        Some(former) if !exists(&path) => former.to_vec(),
        _ => path,
    };
    // Memory with a name, but without a file.
    if path.starts_with(b"/memfd:") && !exists(&path) {
        return None;
    }
    let offset = line.offset.checked_add(address - line.range.start)?;
    Some((PathBuf::from(OsStr::from_bytes(&path)), offset))
}

/// The lines in order of address, without those that cannot be parsed.
fn lines(maps: &[u8]) -> impl Iterator<Item = Line<'_>> {
    maps.split(|byte| *byte == b'\n').filter_map(line)
}

fn line(text: &[u8]) -> Option<Line<'_>> {
    let mut rest = text;
    let mut field = || {
        let start = rest.iter().position(|byte| *byte != b' ')?;
        let end = rest[start..].iter().position(|byte| *byte == b' ');
        let end = end.map_or(rest.len(), |end| start + end);
        let field = &rest[start..end];
        rest = &rest[end..];
        Some(field)
    };
    let (range, _permissions, offset) = (field()?, field()?, field()?);
    let (_device, inode) = (field()?, field()?);
    let range = std::str::from_utf8(range).ok()?;
    let (start, end) = range.split_once('-')?;
    let number = |text: &str| usize::from_str_radix(text, 16).ok();
    Some(Line {
        range: number(start)?..number(end)?,
        offset: number(std::str::from_utf8(offset).ok()?)?,
        inode,
        path: rest.trim_ascii_start(),
    })
}

/// A newline in a path is written as `\012`.
fn unescape(path: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&first, others)) = rest.split_first() {
        match rest.strip_prefix(b"\\012") {
            Some(behind) => {
                bytes.push(b'\n');
                rest = behind;
            }
            None => {
                bytes.push(first);
                rest = others;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &[u8] = b"\
00400000-00401000 r--p 00000000 08:01 1234 /opt/my app/bin\\012/tool
00401000-00402000 r-xp 00001000 08:01 1234 /opt/my app/bin\\012/tool
00402000-00403000 ---p 00002000 08:01 1234 /opt/my app/bin\\012/tool
7f0000000000-7f0000001000 rw-p 00000000 00:00 0 [heap]
7f0000001000-7f0000002000 rw-p 00003000 08:01 99 /no/such/libvec.so (deleted)
7f0000002000-7f0000003000 rw-s 00000000 00:01 77 /memfd:code (deleted)
";

    #[test]
    fn a_file_and_the_offset_in_it() {
        let path = PathBuf::from("/opt/my app/bin\n/tool");
        assert_eq!(find(MAPS, 0x400010), Some((path.clone(), 0x10)));
        assert_eq!(find(MAPS, 0x401010), Some((path, 0x1010)));
        let replaced = PathBuf::from("/no/such/libvec.so");
        assert_eq!(find(MAPS, 0x7f00_0000_1004), Some((replaced, 0x3004)));
    }

    #[test]
    fn what_is_no_file() {
        for address in [0, 0x403000, 0x7f00_0000_0000, 0x7f00_0000_2000] {
            assert_eq!(find(MAPS, address), None, "{address:#x}");
        }
    }
}
