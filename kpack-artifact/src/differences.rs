//! Explains how two files differ that should be the same: build IDs, sections, paths, timestamps.

use std::fs::File;
use std::path::Path;

use kpack_format::marker::SECTION_NAME;
use object::elf;

use super::layout::elf::{text_in, texts, unit_ids};
use super::layout::{self, LEAST_TEXT, Same, UNIT_IDS, pe};
use kpack_core::Error;
use kpack_core::files;
use kpack_core::platform::FileExt;
use kpack_core::words::list_some;
use kpack_split::elf::{Dynamic, Image};
use kpack_split::host;
use kpack_split::input::{self, LinkedBinary};

/// Maximum number of sections to name.
const MOST_SECTIONS: usize = 6;
/// How much text around the first difference is shown, in bytes.
const CONTEXT: usize = 60;

pub(crate) struct Difference {
    pub(crate) text: String,
    /// Whether only things differ that a build for other targets changes: the build ID, addresses,
    /// and IDs of compilation units.
    pub(crate) layout_only: bool,
}

/// Explains how two regular files differ; `None` if they have the same bytes, or are host files whose
/// markers differ only in the IDs of device code.
pub(crate) fn explain(one: &Path, other: &Path) -> Result<Option<Difference>, Error> {
    let ((a, b), Some(at)) = first_difference(one, other)? else {
        return Ok(None);
    };
    let mut parts = Vec::new();
    if a != b {
        parts.push(format!("{a} bytes against {b}"));
    }
    let linked = |path| Ok::<_, Error>(LinkedBinary::read(path, input::open(path)?).ok());
    let (mut shown, mut known) = (at, None);
    if let (Some(a), Some(b)) = (linked(one)?, linked(other)?) {
        match layout::compare(&a, &b)? {
            Same::Yes => return Ok(None),
            Same::But(text) => {
                return Ok(Some(Difference { text, layout_only: true }));
            }
            Same::No => {}
        }
        if !layout::has_same_spirv(&a, &b)? {
            parts.push("in the bundles with SPIR-V, which `kpack split` keeps".to_owned());
        }
        match (&a.image, &b.image) {
            (host::Image::Elf(a), host::Image::Elf(b)) => {
                shown = sections(a, b, &mut parts).unwrap_or(at);
                if unit_ids(a) != unit_ids(b) {
                    parts.push(UNIT_IDS.to_owned());
                }
                known = rpaths(a, b).or_else(|| first_text(texts(a), texts(b)));
            }
            (host::Image::Pe(a), host::Image::Pe(b)) => {
                let names = pe::differences(a, b).unwrap_or_default();
                if !names.is_empty() {
                    parts.push(format!("in {}", list_some(names, MOST_SECTIONS)));
                }
                known = first_text(pe::texts(a), pe::texts(b));
            }
            _ => {}
        }
    }
    let (a, b) = (around(one, shown)?, around(other, shown)?);
    let first = match (known, text_at(&a, shown), text_at(&b, shown)) {
        (Some(known), ..) => known,
        (_, Some(a), Some(b)) if a != b => two_texts(&a, &b),
        _ => format!("first difference at byte {at:#x}"),
    };
    parts.push(first);
    Ok(Some(Difference { text: format!("differs: {}", parts.join("; ")), layout_only: false }))
}

/// Build IDs, and the sections that differ. Gives the place of the first that is in neither a build
/// ID nor the headers, in both files, where there is one.
fn sections(one: &Image<File>, other: &Image<File>, parts: &mut Vec<String>) -> Option<u64> {
    let mut names = Vec::new();
    let mut markers = None;
    let mut place = None;
    for section in one.sections.iter().filter(|s| s.has_bytes()) {
        let theirs = other.sections.iter().find(|s| s.name == section.name)?;
        let bytes = (one.section_bytes(section), other.section_bytes(theirs));
        let (Ok(a), Ok(b)) = bytes else { return place };
        if a == b {
            continue;
        }
        if section.name == ".note.gnu.build-id" {
            parts.push(format!("build ID {} against {}", build_id(&a), build_id(&b)));
            continue;
        }
        // Shards' markers differ in code IDs anyway, so what else differs goes first.
        match section.name == SECTION_NAME {
            true => markers = Some(section.name.clone()),
            false => names.push(section.name.clone()),
        }
        let at = a.iter().zip(&b).position(|(x, y)| x != y);
        if let Some(at) = at.filter(|_| place.is_none() && section.offset == theirs.offset) {
            place = Some(section.offset + at as u64);
        }
    }
    names.extend(markers);
    if !names.is_empty() {
        parts.push(format!("in sections {}", list_some(names, MOST_SECTIONS)));
    }
    place
}

/// What differs in the RPATHs, or in the room for them. CMake links with the path of the build directory,
/// and overwrites it on installation: then only as many bytes as it had are left of it.
fn rpaths(one: &Image<File>, other: &Image<File>) -> Option<String> {
    let (a, b) = (Rpath::read(one)?, Rpath::read(other)?);
    if a.paths != b.paths {
        let shown = |rpath: &Rpath| match rpath.paths.is_empty() {
            true => "none".to_owned(),
            false => format!("`{}`", rpath.paths.join(", ")),
        };
        return Some(format!("RPATH {} against {}", shown(&a), shown(&b)));
    }
    let than = match b.room > a.room {
        true => "shorter",
        false => "longer",
    };
    (a.room != b.room).then(|| {
        format!(
            "was linked with an RPATH {} bytes {than}, which left unused bytes when it was installed, \
             as CMake's RPATH of the build directory does; set CMAKE_BUILD_WITH_INSTALL_RPATH or \
             CMAKE_SKIP_BUILD_RPATH, or build in directories with names of the same length",
            a.room.abs_diff(b.room)
        )
    })
}

struct Rpath {
    paths: Vec<String>,
    /// Maximum number of bytes without a name in the table of names.
    room: usize,
}

impl Rpath {
    fn read(image: &Image<File>) -> Option<Self> {
        let (_, strings) = image.section(".dynstr").ok()??;
        let strings = image.section_bytes(strings).ok()?;
        let dynamic = Dynamic::read(image).ok()?;
        let tags = [elf::DT_RPATH, elf::DT_RUNPATH].into_iter();
        let paths = tags.filter_map(|tag| dynamic.get(tag));
        let zeros = strings.split(|byte| *byte != 0).map(<[u8]>::len);
        Some(Self {
            paths: paths
                .map(|at| String::from_utf8_lossy(text_in(&strings, at)).into_owned())
                .collect(),
            room: zeros.max().unwrap_or_default(),
        })
    }
}

/// The descriptor of a note (gABI, "Note Section"): after twelve bytes of header and the name
/// `GNU` with its NUL.
fn build_id(note: &[u8]) -> String {
    match note.get(16..) {
        Some(id) if !id.is_empty() => id.iter().map(|byte| format!("{byte:02x}")).collect(),
        _ => "none".to_owned(),
    }
}

/// The first texts that differ.
fn first_text(ours: Vec<String>, theirs: Vec<String>) -> Option<String> {
    let mut pairs = ours.iter().zip(&theirs);
    pairs.find(|(a, b)| a != b).map(|(a, b)| two_texts(a, b))
}

fn two_texts(a: &str, b: &str) -> String {
    let cut = |text: &str| text.get(..2 * CONTEXT).unwrap_or(text).to_owned();
    format!("{} `{}` against `{}`", kind_of_text(a, b), cut(a), cut(b))
}

fn kind_of_text(a: &str, b: &str) -> &'static str {
    // A hash or an identifier with many digits is not a time, but 20261121T074512Z is.
    let is_name = |word: &str| {
        let is = |what: fn(&char) -> bool| word.chars().any(|c| what(&c));
        is(char::is_ascii_digit) && is(|c| c.is_ascii_alphabetic() && !matches!(c, 'T' | 'Z'))
    };
    let is_time = |text: &str| {
        let digits = text.chars().filter(char::is_ascii_digit).count();
        if text.split(|c: char| !c.is_ascii_alphanumeric()).any(is_name) {
            return false;
        }
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

pub(crate) fn same_bytes(one: &Path, other: &Path) -> Result<bool, Error> {
    let ((a, ours), (b, theirs)) = (open(one)?, open(other)?);
    let differs = || files::first_difference(ours, fills(one, &a), fills(other, &b));
    Ok(ours == theirs && differs()?.is_none())
}

/// The sizes of two files, and the offset of the first byte that differs, or where the shorter one ends.
fn first_difference(one: &Path, other: &Path) -> Result<((u64, u64), Option<u64>), Error> {
    let ((a, ours), (b, theirs)) = (open(one)?, open(other)?);
    let least = ours.min(theirs);
    let found = files::first_difference(least, fills(one, &a), fills(other, &b))?;
    let end = (ours != theirs).then_some(least);
    Ok(((ours, theirs), found.or(end)))
}

fn fills(path: &Path, file: &File) -> impl Fn(u64, &mut [u8]) -> Result<(), Error> {
    |at, out| {
        let read = file.read_exact_at(out, at);
        read.map_err(|e| Error::io(path, "read", e))
    }
}

/// An open file, and its size.
fn open(path: &Path) -> Result<(File, u64), Error> {
    let file = input::open(path)?;
    let metadata = file.metadata().map_err(|e| Error::io(path, "read", e))?;
    Ok((file, metadata.len()))
}

/// Bytes on both sides of `at`.
fn around(path: &Path, at: u64) -> Result<Vec<u8>, Error> {
    let start = at.saturating_sub(CONTEXT as u64);
    let mut bytes = vec![0; 2 * CONTEXT];
    let file = input::open(path)?;
    let read = file.read_at(&mut bytes, start).map_err(|e| Error::io(path, "read", e))?;
    bytes.truncate(read);
    Ok(bytes)
}

/// The printable text that byte `at` is in, of what [`around`] gave.
fn text_at(bytes: &[u8], at: u64) -> Option<String> {
    let middle = usize::try_from(at).ok()?.min(CONTEXT);
    let printable = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
    let before = bytes.get(..middle)?.iter().rev().take_while(|b| printable(b));
    let start = middle - before.count();
    let length = bytes[start..].iter().take_while(|b| printable(b)).count();
    let text = bytes.get(start..start + length)?;
    (length >= LEAST_TEXT).then(|| String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::kind_of_text;

    #[test]
    fn an_identifier_tells_no_time() {
        for (a, b, kind) in [
            ("built 2026-11-21 07:45:12", "built 2026-11-21 08:01:59", "timestamp"),
            ("20261121T074512Z", "20261121T080159Z", "timestamp"),
            ("/home/a/build", "/home/b/build", "path"),
            ("__hip_cuid_10b4a61ceb86933a", "__hip_cuid_967d4902c55e0a7a", "text"),
            ("754354c08156697c", "274dcab0d7db0ad2", "text"),
        ] {
            assert_eq!(kind_of_text(a, b), kind, "{a}");
        }
    }
}
