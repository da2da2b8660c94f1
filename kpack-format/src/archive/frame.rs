//! Reads the size of a Zstandard frame's content before anything is allocated for it (RFC 8878).

use crate::little_endian;

/// First bytes of a frame (RFC 8878, 3.1.1).
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Maximum content of one block, in bytes (RFC 8878, 3.1.1.2.4).
const MAX_BLOCK: u32 = 128 << 10;

/// Maximum size of a frame's header, in bytes (RFC 8878, 3.1.1.1).
pub(super) const MAX_FRAME_HEADER: u64 = 18;

/// The content size in the header of a frame that starts with `start`.
///
/// # Errors
/// What is wrong, as a text.
pub(super) fn content_size(start: &[u8]) -> Result<u64, String> {
    let size = Header::read(start)?.content_size;
    size.ok_or_else(|| "neither its frame nor the TOC has the size of a code object".to_owned())
}

/// The memory that decompressing the frame that starts with `start` in parts takes: its window, if it has
/// more than `size` bytes of content.
pub(crate) fn window(start: &[u8], size: u64) -> u64 {
    let header = Header::read(start);
    let window = header.ok().and_then(|header| header.window);
    window.map_or(size, |window| window.min(size))
}

/// Checks, without decompressing, that one frame fills `frame` and can hold `original_size` bytes:
/// by the size in its header, and by its blocks. zstd's own function trusts the header.
///
/// # Errors
/// What is wrong, as a text.
pub fn check_frame(frame: &[u8], original_size: u64) -> Result<(), String> {
    let cut_off = || "the frame is truncated".to_owned();
    let header = Header::read(frame)?;
    if let Some(size) = header.content_size.filter(|size| *size != original_size) {
        return Err(format!("the frame holds {size} bytes; the TOC says {original_size}"));
    }
    let mut at = header.size;
    let mut most = 0_u64;
    loop {
        // Block header: last block, type, size (RFC 8878, 3.1.1.2).
        let block = frame.get(at..at + 3).ok_or_else(cut_off)?;
        let word = u32::from_le_bytes([block[0], block[1], block[2], 0]);
        let size = word >> 3;
        let stored = match word >> 1 & 3 {
            0 | 1 if size > MAX_BLOCK => {
                return Err(format!(
                    "the frame has a block of {size} bytes; at most {MAX_BLOCK} are allowed"
                ));
            }
            0 => {
                most += u64::from(size);
                size
            }
            1 => {
                most += u64::from(size);
                1
            }
            2 => {
                most += u64::from(MAX_BLOCK);
                size
            }
            _ => return Err("the frame has a block of the reserved type".to_owned()),
        };
        at += 3 + stored as usize;
        if word & 1 == 1 {
            break;
        }
    }
    if original_size > most {
        return Err(format!("the frame holds at most {most} bytes; the TOC says {original_size}"));
    }
    let end = at + header.checksum_size;
    match frame.len().checked_sub(end) {
        Some(0) => Ok(()),
        Some(rest) => Err(format!("{rest} bytes follow its frame")),
        None => Err(cut_off()),
    }
}

/// A frame's header (RFC 8878, 3.1.1.1).
struct Header {
    /// Size of the header in bytes, magic included.
    size: usize,
    /// Size of the content in bytes, if stored.
    content_size: Option<u64>,
    /// Size of the checksum after the last block, in bytes.
    checksum_size: usize,
    /// Size of the window, in bytes; `None` if all of the content is.
    window: Option<u64>,
}

impl Header {
    fn read(frame: &[u8]) -> Result<Self, String> {
        let (Some(magic), Some(&descriptor)) = (frame.get(..4), frame.get(4)) else {
            return Err(format!(
                "the frame has {} bytes; a zstd frame's header has more",
                frame.len()
            ));
        };
        if magic != MAGIC {
            return Err(format!("the frame begins with {magic:02x?}; expected {MAGIC:02x?}"));
        }
        let single_segment = descriptor >> 5 & 1 == 1;
        let window = usize::from(!single_segment);
        let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
        let content = match descriptor >> 6 {
            0 => usize::from(single_segment),
            flag => 1 << flag,
        };
        let at = 5 + window + dictionary;
        let size = at + content;
        let field =
            frame.get(at..size).ok_or_else(|| "the frame is truncated in the header".to_owned())?;
        let value = little_endian(field);
        let content_size = match content {
            0 => None,
            2 => Some(value + 256),
            _ => Some(value),
        };
        Ok(Self {
            size,
            content_size,
            checksum_size: if descriptor >> 2 & 1 == 1 { 4 } else { 0 },
            window: frame.get(5).filter(|_| !single_segment).map(|window| {
                let base = 1_u64 << (10 + (window >> 3));
                base + base / 8 * u64::from(window & 7)
            }),
        })
    }
}
