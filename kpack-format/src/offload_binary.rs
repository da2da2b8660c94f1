//! LLVM's format for images of any offloading runtime, such as OpenMP's: `OffloadBinary`, in files of its own and in
//! section `.llvm.offloading` (llvm/Object/OffloadBinary.h).

use std::fmt;
use std::io;

use crate::little_endian;

/// What such a binary begins with.
pub const MAGIC: &[u8; 4] = &[0x10, 0xff, 0x10, 0xad];

/// The section of host files that such binaries are in, one after the other.
pub const SECTION: &str = ".llvm.offloading";

/// The most images that are read of a file or section.
const MAX_IMAGES: usize = 4096;

/// The most strings of an image, and the most bytes of one.
const MAX_STRINGS: u64 = 64;
const MAX_STRING: u64 = 256;

const HEADER: u64 = 32;
const ENTRY: u64 = 40;

/// An image.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct OffloadImage {
    /// The runtime that it is for, such as `openmp`.
    pub producer: String,
    /// What it is, such as `object` or `bitcode`.
    pub kind: String,
    /// The target triple; empty if none is named.
    pub triple: String,
    /// The processor, such as `gfx1100`; empty if none is named.
    pub arch: String,
    /// Its size in bytes.
    pub size: u64,
}

impl fmt::Display for OffloadImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = if self.arch.is_empty() { &self.triple } else { &self.arch };
        write!(f, "{} {} for {target} ({} bytes)", self.producer, self.kind, self.size)
    }
}

/// Whether a section with these images may contain code for HIP: it does not if all of them are for other runtimes.
pub fn may_be_hip(images: &[OffloadImage]) -> bool {
    images.is_empty() || images.iter().any(|image| image.producer == "hip")
}

/// Reads the headers of all images in `size` bytes, of which `read` reads those at an offset.
///
/// # Errors
/// Those of `read`; [`io::ErrorKind::InvalidData`] for damaged binaries and unsupported versions.
pub fn read(
    size: u64,
    read: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>,
) -> io::Result<Vec<OffloadImage>> {
    let mut images = Vec::new();
    let mut start = 0;
    // Linkers align the binaries of several objects to 8 bytes.
    while start + HEADER <= size {
        let mut header = [0; HEADER as usize];
        read(start, &mut header)?;
        if &header[..4] != MAGIC {
            let found = &header[..4];
            return Err(malformed(
                start,
                format!("expected the magic 10 ff 10 ad, found {found:02x?}"),
            ));
        }
        let word = |at: usize| little_endian(&header[at..at + 8]);
        let version = little_endian(&header[4..8]);
        let (length, entries, last) = (word(8), word(16), word(24));
        let count = match version {
            // The last word is the size of the only entry.
            1 => 1,
            2 => last,
            _ => {
                let text = format!("unsupported version {version} (expected 1 or 2)");
                return Err(malformed(start + 4, text));
            }
        };
        if length < HEADER || length > size - start {
            let text =
                format!("a length of {length} bytes (expected {HEADER} to {})", size - start);
            return Err(malformed(start + 8, text));
        }
        if count > (MAX_IMAGES - images.len()) as u64 {
            return Err(malformed(start + 24, format!("more than {MAX_IMAGES} images")));
        }
        let mut binary = Binary { start, length, version, read };
        for index in 0..count {
            images.push(binary.image(entries.saturating_add(index * ENTRY))?);
        }
        start += length.next_multiple_of(8);
    }
    Ok(images)
}

struct Binary<'a> {
    start: u64,
    length: u64,
    version: u64,
    read: &'a mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>,
}

impl Binary<'_> {
    fn bytes(&mut self, at: u64, count: u64) -> io::Result<Vec<u8>> {
        self.check(at, count)?;
        let mut bytes = vec![0; count as usize];
        (self.read)(self.start + at, &mut bytes)?;
        Ok(bytes)
    }

    fn check(&self, at: u64, count: u64) -> io::Result<()> {
        if at.checked_add(count).is_none_or(|end| end > self.length) {
            let text =
                format!("{count} bytes at {at} are past the end of the binary ({})", self.length);
            return Err(malformed(self.start, text));
        }
        Ok(())
    }

    fn image(&mut self, entry: u64) -> io::Result<OffloadImage> {
        let entry = self.bytes(entry, ENTRY)?;
        let word = |at: usize| little_endian(&entry[at..at + 8]);
        let (strings, count, image, size) = (word(8), word(16), word(24), word(32));
        self.check(image, size)?;
        if count > MAX_STRINGS {
            let text = format!("an image with {count} strings (expected at most {MAX_STRINGS})");
            return Err(malformed(self.start, text));
        }
        let (mut triple, mut arch) = (String::new(), String::new());
        let row = if self.version == 1 { 16 } else { 24 };
        for index in 0..count {
            let row = self.bytes(strings.saturating_add(index * row), row)?;
            let word = |at: usize| row.get(at..at + 8).map(little_endian);
            let (key, value, size) = (word(0), word(8), word(16));
            let key = self.string(key.unwrap_or_default(), None)?;
            let value = self.string(value.unwrap_or_default(), size)?;
            match &*key {
                "triple" => triple = value,
                "arch" => arch = value,
                _ => {}
            }
        }
        let producer = match little_endian(&entry[2..4]) {
            0 => "unknown".to_owned(),
            1 => "openmp".to_owned(),
            2 => "cuda".to_owned(),
            // LLVM made flags of the numbers later.
            3 | 4 => "hip".to_owned(),
            8 => "sycl".to_owned(),
            other => format!("producer {other}"),
        };
        let kind = match little_endian(&entry[..2]) {
            1 => "object".to_owned(),
            2 => "bitcode".to_owned(),
            3 => "cubin".to_owned(),
            4 => "fatbinary".to_owned(),
            5 => "ptx".to_owned(),
            6 => "spirv".to_owned(),
            other => format!("kind {other}"),
        };
        Ok(OffloadImage { producer, kind, triple, arch, size })
    }

    /// A string that ends at a zero byte, or one of `size` bytes.
    fn string(&mut self, at: u64, size: Option<u64>) -> io::Result<String> {
        let rest = self.length.saturating_sub(at);
        let bytes = self.bytes(at, size.unwrap_or(rest).min(MAX_STRING))?;
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(text).into_owned())
    }
}

fn malformed(offset: u64, text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("offload binary at offset {offset}: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A binary of version 1 or 2 with these images: producer, kind, processor, size.
    fn binary(version: u32, images: &[(u16, u16, &str, usize)]) -> Vec<u8> {
        let mut tail = Vec::new();
        let mut entries = Vec::new();
        let base = (HEADER + ENTRY * images.len() as u64) as usize;
        for (producer, kind, arch, size) in images {
            let at = |tail: &Vec<u8>| (base + tail.len()) as u64;
            let mut rows = Vec::new();
            for (key, value) in [("arch", *arch), ("triple", "amdgcn-amd-amdhsa")] {
                rows.extend(at(&tail).to_le_bytes());
                tail.extend([key.as_bytes(), b"\0"].concat());
                rows.extend(at(&tail).to_le_bytes());
                tail.extend([value.as_bytes(), b"\0"].concat());
                if version == 2 {
                    rows.extend((value.len() as u64).to_le_bytes());
                }
            }
            let strings = at(&tail);
            tail.extend(rows);
            let image = at(&tail);
            tail.extend(vec![7; *size]);
            entries.extend([kind.to_le_bytes(), producer.to_le_bytes()].concat());
            entries.extend([0; 4]);
            for word in [strings, 2, image, *size as u64] {
                entries.extend(word.to_le_bytes());
            }
        }
        let last = if version == 1 { ENTRY } else { images.len() as u64 };
        let length = (base + tail.len()) as u64;
        let mut bytes = [&MAGIC[..], &version.to_le_bytes()].concat();
        for word in [length, HEADER, last] {
            bytes.extend(word.to_le_bytes());
        }
        [bytes, entries, tail].concat()
    }

    fn read_all(bytes: &[u8]) -> Result<Vec<String>, String> {
        let images = read(bytes.len() as u64, &mut |at, buffer| {
            let at = at as usize;
            let found = bytes.get(at..at + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            buffer.copy_from_slice(found);
            Ok(())
        });
        let shown = |images: Vec<OffloadImage>| images.iter().map(ToString::to_string).collect();
        images.map(shown).map_err(|error| error.to_string())
    }

    #[test]
    fn both_versions_one_after_the_other() {
        let mut bytes = binary(1, &[(1, 1, "gfx1100", 9)]);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes.extend(binary(2, &[(4, 2, "gfx942", 5), (8, 6, "", 3)]));
        let expected = [
            "openmp object for gfx1100 (9 bytes)",
            "hip bitcode for gfx942 (5 bytes)",
            "sycl spirv for amdgcn-amd-amdhsa (3 bytes)",
        ];
        assert_eq!(read_all(&bytes).unwrap(), expected);
    }

    #[test]
    fn damaged_binaries() {
        let good = binary(2, &[(1, 1, "gfx1100", 9)]);
        let changed = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            read_all(&bytes).unwrap_err()
        };
        assert!(changed(0, 0).contains("expected the magic"));
        assert!(changed(4, 3).contains("unsupported version 3"));
        assert!(changed(9, 9).contains("a length of"));
        assert!(changed(25, 0xff).contains("more than 4096 images"));
        assert!(changed(17, 0xff).contains("past the end"));
        for end in 33..good.len() {
            assert!(read_all(&good[..end]).is_err(), "{end}");
        }
        for at in 32..good.len() {
            let mut bytes = good.clone();
            bytes[at] = 0xff;
            let _ = read_all(&bytes);
        }
    }
}
