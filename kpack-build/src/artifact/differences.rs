//! In what two files differ that should be the same: build IDs, sections, paths, timestamps.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use kpack_format::marker;
use object::elf;

use crate::Error;
use crate::elf::{DeviceCode, FAT_SECTION, Image};
use crate::inspect;

/// How many sections are named.
const MOST_SECTIONS: usize = 6;
/// How much text around the first difference is shown, in bytes.
const CONTEXT: usize = 60;
/// The least printable bytes around a difference that are called text.
const LEAST_TEXT: usize = 6;

/// In what two files differ.
pub(crate) struct Difference {
    /// What to say.
    pub(crate) text: String,
    /// Whether it can be no more than the layout: both are split binaries, by the same compiler, with
    /// the same sections, symbols and texts of the same sizes at other addresses, as linkers give them
    /// where device code has another size. Addresses are in code and data, too, so these cannot be
    /// compared: a change that leaves every function and every section as long as it was is not found.
    pub(crate) layout_only: bool,
}

/// Says in what two regular files differ; `None` where they have the same bytes.
pub(crate) fn explain(one: &Path, other: &Path) -> Result<Option<Difference>, Error> {
    let Some(at) = first_difference(one, other)? else {
        return Ok(None);
    };
    let mut parts = Vec::new();
    let (a, b) = (size(one)?, size(other)?);
    if a != b {
        parts.push(format!("{a} bytes against {b}"));
    }
    let images = (
        Image::read(inspect::open(one)?),
        Image::read(inspect::open(other)?),
    );
    let mut shown = at;
    if let (Ok(a), Ok(b)) = images {
        if layout_only(&a, &b) {
            let text = "differs in its layout: its sections have the same sizes and other \
                        addresses, as where device code had another size; the instructions \
                        themselves cannot be compared then";
            return Ok(Some(Difference {
                text: text.to_owned(),
                layout_only: true,
            }));
        }
        shown = sections(&a, &b, &mut parts).unwrap_or(at);
        let (ours, theirs) = (texts(&a), texts(&b));
        let mut pairs = ours.iter().zip(&theirs);
        if let Some((a, b)) = pairs.find(|(a, b)| a != b) {
            let what = kind_of_text(a, b);
            parts.push(format!("{what} `{}` against `{}`", cut(a), cut(b)));
            return Ok(Some(Difference {
                text: format!("differs: {}", parts.join("; ")),
                layout_only: false,
            }));
        }
    }
    let (a, b) = (around(one, shown)?, around(other, shown)?);
    match (text_at(&a, shown), text_at(&b, shown)) {
        (Some(a), Some(b)) if a != b => {
            let what = kind_of_text(&a, &b);
            parts.push(format!("{what} `{a}` against `{b}`"));
        }
        _ => parts.push(format!("first difference at byte {at:#x}")),
    }
    Ok(Some(Difference {
        text: format!("differs: {}", parts.join("; ")),
        layout_only: false,
    }))
}

/// Whether both are split binaries whose loaded sections have the same names, kinds and sizes, the
/// same texts and the same symbols in them, and some of which are at other addresses.
fn layout_only(one: &Image<File>, other: &Image<File>) -> bool {
    let is_split = |image: &Image<File>| matches!(image.device_code(), Ok(DeviceCode::Split(_)));
    if !is_split(one) || !is_split(other) {
        return false;
    }
    let shape = |image: &Image<File>| -> Vec<(String, u32, u64)> {
        let loaded = image
            .sections
            .iter()
            .filter(|s| s.is_alloc() && !is_device(&s.name));
        loaded.map(|s| (s.name.clone(), s.kind.0, s.size)).collect()
    };
    let addresses = |image: &Image<File>| -> Vec<u64> {
        let loaded = image
            .sections
            .iter()
            .filter(|s| s.is_alloc() && !is_device(&s.name));
        loaded.map(|s| s.addr).collect()
    };
    shape(one) == shape(other)
        && addresses(one) != addresses(other)
        && texts(one) == texts(other)
        && symbols(one) == symbols(other)
        && compilers(one) == compilers(other)
}

/// Names, kinds and sizes of the symbols that are not in device code, whose size is what differs.
fn symbols(image: &Image<File>) -> Vec<(u32, u8, u64)> {
    use object::LittleEndian as LE;
    let is_table = |kind| matches!(kind, elf::SHT_DYNSYM | elf::SHT_SYMTAB);
    let mut found = Vec::new();
    for table in image
        .sections
        .iter()
        .filter(|section| is_table(section.kind))
    {
        let bytes = image.section_bytes(table).unwrap_or_default();
        for entry in bytes.chunks_exact(size_of::<elf::Sym64<LE>>()) {
            let Ok((symbol, _)) = object::pod::from_bytes::<elf::Sym64<LE>>(entry) else {
                continue;
            };
            let within = image.sections.get(usize::from(symbol.st_shndx.get(LE).0));
            if !within.is_some_and(|section| is_device(&section.name)) {
                let (name, size) = (symbol.st_name.get(LE), symbol.st_size.get(LE));
                found.push((name, symbol.st_info.0, size));
            }
        }
    }
    found
}

/// What the compilers say of themselves.
fn compilers(image: &Image<File>) -> Vec<u8> {
    let comment = image
        .sections
        .iter()
        .find(|s| s.name == ".comment" && s.has_bytes());
    let bytes = comment.and_then(|section| image.section_bytes(section).ok());
    bytes.unwrap_or_default()
}

/// Whether a section has device code, or what stands in its place.
fn is_device(name: &str) -> bool {
    name == FAT_SECTION || name == marker::SECTION_NAME
}

/// The texts in what is loaded and no code. They stay what they are wherever they are.
fn texts(image: &Image<File>) -> Vec<String> {
    let mut texts = Vec::new();
    for name in [".interp", ".dynstr", ".rodata", ".data"] {
        let section = image
            .sections
            .iter()
            .find(|s| s.name == name && s.has_bytes());
        let bytes = section.and_then(|section| image.section_bytes(section).ok());
        let printable = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
        let bytes = bytes.unwrap_or_default();
        let runs = bytes.split(|byte| !printable(byte));
        let long = runs.filter(|run| run.len() >= LEAST_TEXT);
        texts.extend(long.map(|run| String::from_utf8_lossy(run).into_owned()));
    }
    texts
}

/// Build IDs, and the sections that differ. Gives the place of the first that is in neither a build
/// ID nor the headers, in both files, where there is one.
fn sections(one: &Image<File>, other: &Image<File>, parts: &mut Vec<String>) -> Option<u64> {
    let mut names = Vec::new();
    let mut place = None;
    for section in one.sections.iter().filter(|s| s.has_bytes()) {
        let theirs = other.sections.iter().find(|s| s.name == section.name)?;
        let bytes = (one.section_bytes(section), other.section_bytes(theirs));
        let (Ok(a), Ok(b)) = bytes else { return place };
        if a == b {
            continue;
        }
        if section.name == ".note.gnu.build-id" {
            parts.push(format!(
                "build ID {} against {}",
                build_id(&a),
                build_id(&b)
            ));
            continue;
        }
        names.push(section.name.clone());
        let at = a.iter().zip(&b).position(|(x, y)| x != y);
        if let Some(at) = at.filter(|_| place.is_none() && section.offset == theirs.offset) {
            place = Some(section.offset + at as u64);
        }
    }
    if !names.is_empty() {
        let more = match names.len().saturating_sub(MOST_SECTIONS) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        names.truncate(MOST_SECTIONS);
        parts.push(format!("in sections {}{more}", names.join(", ")));
    }
    place
}

/// The descriptor of a note (gABI, "Note Section"): behind twelve bytes of header and the name
/// `GNU` with its NUL.
fn build_id(note: &[u8]) -> String {
    match note.get(16..) {
        Some(id) if !id.is_empty() => id.iter().map(|byte| format!("{byte:02x}")).collect(),
        _ => "none".to_owned(),
    }
}

/// Not more of a text than is shown.
fn cut(text: &str) -> &str {
    text.get(..2 * CONTEXT).unwrap_or(text)
}

fn kind_of_text(a: &str, b: &str) -> &'static str {
    let is_time = |text: &str| {
        let digits = text.chars().filter(char::is_ascii_digit).count();
        digits >= 6 && digits * 3 >= text.len() && !text.contains('/')
            || text.matches(':').count() >= 2 && digits >= 4
    };
    if is_time(a) && is_time(b) {
        "timestamp"
    } else if a.contains('/') && b.contains('/') {
        "path"
    } else {
        "text"
    }
}

/// Offset of the first byte that differs, or where the shorter one ends.
fn first_difference(one: &Path, other: &Path) -> Result<Option<u64>, Error> {
    let open = |path: &Path| Ok::<_, Error>(BufReader::new(inspect::open(path)?));
    let (mut a, mut b) = (open(one)?, open(other)?);
    let (mut x, mut y) = (vec![0; 1 << 18], vec![0; 1 << 18]);
    let mut offset = 0;
    loop {
        let read = fill(&mut a, &mut x).map_err(|e| Error::io(one, "read", e))?;
        let other_read = fill(&mut b, &mut y).map_err(|e| Error::io(other, "read", e))?;
        let common = read.min(other_read);
        if x[..common] != y[..common] || read != other_read {
            let same = x[..common].iter().zip(&y[..common]);
            let same = same.take_while(|(x, y)| x == y).count();
            return Ok(Some(offset + same as u64));
        }
        if read == 0 {
            return Ok(None);
        }
        offset += read as u64;
    }
}

fn fill(from: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match from.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn size(path: &Path) -> Result<u64, Error> {
    let metadata = path.metadata().map_err(|e| Error::io(path, "read", e))?;
    Ok(metadata.len())
}

/// Bytes on both sides of `at`.
fn around(path: &Path, at: u64) -> Result<Vec<u8>, Error> {
    use std::os::unix::fs::FileExt;
    let start = at.saturating_sub(CONTEXT as u64);
    let mut bytes = vec![0; 2 * CONTEXT];
    let file = inspect::open(path)?;
    let read = file
        .read_at(&mut bytes, start)
        .map_err(|e| Error::io(path, "read", e))?;
    bytes.truncate(read);
    Ok(bytes)
}

/// The printable text that byte `at` is in, of what [`around`] gave.
fn text_at(bytes: &[u8], at: u64) -> Option<String> {
    let middle = usize::try_from(at).ok()?.min(CONTEXT);
    let printable = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
    let before = bytes
        .get(..middle)?
        .iter()
        .rev()
        .take_while(|b| printable(b));
    let start = middle - before.count();
    let length = bytes[start..].iter().take_while(|b| printable(b)).count();
    let text = bytes.get(start..start + length)?;
    (length >= LEAST_TEXT).then(|| String::from_utf8_lossy(text).into_owned())
}
