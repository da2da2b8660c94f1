//! Compares two entries that should be the same. What differs is data, because each caller judges it by rules of its own:
//! shards, a tree and its original, files that would be installed at one path. [`explain`] says why the bytes of two files
//! differ: facts about host binaries, paths, timestamps.

use std::fs::{self, File, Metadata};
use std::iter::once;
use std::ops::Range;
use std::path::{Path, PathBuf};

use kpack_core::files;
use kpack_core::platform::{FileExt, MetadataExt};
use kpack_core::words::list_some;
use kpack_core::{Error, Reason};
use kpack_split::host::FactDifference;
use kpack_split::input::{self, LinkedBinary, or_refused};

/// Maximum number of facts to name.
const MOST_FACTS: usize = 3;
/// How much text around the first difference is shown, in bytes.
const CONTEXT: usize = 60;
/// The fewest consecutive printable bytes that count as text.
const LEAST_TEXT: usize = 6;

/// What is said of host binaries that are not the same, whose facts are.
const SAME_FACTS: &str = "has other bytes, but the same names, symbols and sizes of sections: device code of \
                          another size changes the layout";

/// What is said of binaries without device code that are the same but for that.
const OTHER_BUILD: &str =
    "has another build ID or link to its debug information, and the same code and data otherwise";

/// A difference between two entries.
pub(crate) enum Difference {
    /// What they are, for people.
    Kind([&'static str; 2]),
    /// Where symbolic links lead.
    Link([PathBuf; 2]),
    /// The modes of files.
    Mode([u32; 2]),
    /// How many names files have.
    Names([u64; 2]),
    /// The bytes of files.
    Bytes,
}

/// What differs between the entries at two paths. If both are files, `same_bytes` compares their content, last, and only
/// if the caller asks for the last difference, because that reads both files.
pub(crate) fn entry_differences(
    one: &Path,
    other: &Path,
    same_bytes: impl FnOnce() -> Result<bool, Error>,
) -> Result<impl Iterator<Item = Result<Difference, Error>>, Error> {
    let metadata = |path: &Path| path.symlink_metadata().map_err(|e| Error::io(path, "read", e));
    let both = [metadata(one)?, metadata(other)?];
    let kinds = both.each_ref().map(kind);
    let mut found = Vec::new();
    let mut are_files = false;
    if kinds[0] != kinds[1] {
        found.push(Difference::Kind(kinds));
    } else if both[0].is_symlink() {
        let link = |path: &Path| fs::read_link(path).map_err(|e| Error::io(path, "read", e));
        let links = [link(one)?, link(other)?];
        found.extend((links[0] != links[1]).then_some(Difference::Link(links)));
    } else if !both[0].is_dir() {
        let modes = both.each_ref().map(|metadata| metadata.mode() & 0o7777);
        found.extend((modes[0] != modes[1]).then_some(Difference::Mode(modes)));
        let names = both.each_ref().map(MetadataExt::nlink);
        found.extend((names[0] != names[1]).then_some(Difference::Names(names)));
        are_files = true;
    }
    let bytes = are_files.then_some(same_bytes).into_iter().filter_map(|same| match same() {
        Ok(same) => (!same).then_some(Ok(Difference::Bytes)),
        Err(error) => Some(Err(error)),
    });
    Ok(found.into_iter().map(Ok).chain(bytes))
}

fn kind(metadata: &Metadata) -> &'static str {
    if metadata.is_dir() {
        "a directory"
    } else if metadata.is_symlink() {
        "a symbolic link"
    } else if metadata.is_file() {
        "a file"
    } else {
        "a special file"
    }
}

/// Why the bytes of two files differ.
pub(crate) struct Explanation {
    pub(crate) text: Reason,
    /// Whether one of the two can stand for both: host binaries with the same facts, or builds of the same code.
    pub(crate) is_same_code: bool,
}

/// Explains how two regular files differ; `None` if they have the same bytes, or are host binaries that
/// differ in what their markers say of device code only.
pub(crate) fn explain(one: &Path, other: &Path) -> Result<Option<Explanation>, Error> {
    let ((a, b), Some(mut at)) = first_difference(one, other)? else {
        return Ok(None);
    };
    let linked = |path| {
        let read = LinkedBinary::read(path, input::open(path)?);
        Ok::<_, Error>(or_refused(read)?.ok())
    };
    if let (Some(a), Some(b)) = (linked(one)?, linked(other)?) {
        if a.code.is_moved() && b.code.is_moved() {
            return of_binaries(&a, &b);
        }
        // Nothing but other code or data gives these another layout.
        at = match differ_in_code(&a, &b)? {
            Outside::Same => {
                return Ok(Some(Explanation { text: OTHER_BUILD.into(), is_same_code: true }));
            }
            Outside::At(at) => at,
            Outside::Laid => at,
        };
        if let Ok(differ) = fact_differences(&a, &b)?
            && !differ.is_empty()
        {
            return Ok(Some(Explanation { text: named(&differ), is_same_code: false }));
        }
    }
    let mut parts = Vec::new();
    if a != b {
        parts.push(format!("{a} bytes against {b}"));
    }
    let (a, b) = (around(one, at)?, around(other, at)?);
    parts.push(match (text_at(&a, at), text_at(&b, at)) {
        (Some(a), Some(b)) if a != b => two_texts(&a, &b),
        _ => format!("first difference at byte {at:#x}"),
    });
    let text = format!("differs: {}", parts.join("; "));
    Ok(Some(Explanation { text: text.into(), is_same_code: false }))
}

/// Compares the facts of two binaries that have not the same bytes.
fn of_binaries(one: &LinkedBinary, other: &LinkedBinary) -> Result<Option<Explanation>, Error> {
    let differ = match fact_differences(one, other)? {
        Ok(differ) => differ,
        Err(text) => return Ok(Some(Explanation { text, is_same_code: false })),
    };
    if !differ.is_empty() {
        return Ok(Some(Explanation { text: named(&differ), is_same_code: false }));
    }
    let markers = |linked: &LinkedBinary| {
        let mut sections = linked.image.marker_sections();
        sections.sort_by_key(|section| section.start);
        sections
    };
    let is_marker_only = differ_outside((one, other), [markers(one), markers(other)])?;
    let text = SAME_FACTS.into();
    Ok((is_marker_only != Outside::Same).then_some(Explanation { text, is_same_code: true }))
}

/// The facts that differ, or why those of one cannot be read.
fn fact_differences(
    one: &LinkedBinary,
    other: &LinkedBinary,
) -> Result<Result<Vec<FactDifference>, Reason>, Error> {
    let mut facts = Vec::new();
    for linked in [one, other] {
        match or_refused(linked.facts())? {
            Ok(own) => facts.push(own),
            Err(found) => {
                let path = linked.path.display();
                let text = format_args!("differs, and {path} cannot be read: ");
                return Ok(Err(found.reason().after(text)));
            }
        }
    }
    Ok(Ok(facts[0].differences(&facts[1])))
}

fn named(differ: &[FactDifference]) -> Reason {
    let texts = differ.iter().map(FactDifference::to_string);
    let text = Reason::from(format!("differs in {}", list_some(texts, MOST_FACTS)));
    match differ {
        [FactDifference { expected, found, .. }] => {
            text.differs(expected.join(", "), found.join(", "))
        }
        _ => text,
    }
}

/// Where two files differ outside of some ranges.
#[derive(PartialEq)]
enum Outside {
    /// Nowhere.
    Same,
    /// At this offset.
    At(u64),
    /// They have not the same size, or the ranges are not the same.
    Laid,
}

/// Where two binaries differ, apart from what tells builds of the same code apart.
fn differ_in_code(one: &LinkedBinary, other: &LinkedBinary) -> Result<Outside, Error> {
    let marks = |linked: &LinkedBinary| or_refused(linked.build_marks());
    match (marks(one)?, marks(other)?) {
        (Ok(ours), Ok(theirs)) => differ_outside((one, other), [ours, theirs]),
        _ => Ok(Outside::Laid),
    }
}

/// Where two binaries differ outside of ranges, which each has for itself, in order.
fn differ_outside(
    (one, other): (&LinkedBinary, &LinkedBinary),
    [ranges, others]: [Vec<Range<u64>>; 2],
) -> Result<Outside, Error> {
    let ((a, ours), (b, theirs)) = (open(&one.path)?, open(&other.path)?);
    if ours != theirs || ranges != others {
        return Ok(Outside::Laid);
    }
    let mut start = 0;
    for Range { start: end, end: next } in ranges.into_iter().chain(once(ours..ours)) {
        let found = files::first_difference(
            end.min(ours).saturating_sub(start),
            |at, out| fills(&one.path, &a)(start + at, out),
            |at, out| fills(&other.path, &b)(start + at, out),
        );
        if let Some(at) = found? {
            return Ok(Outside::At(start + at));
        }
        start = next.max(start);
    }
    Ok(Outside::Same)
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
