//! `RECORD`: the members of a wheel with their digests and sizes, as CSV.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256, Sha384, Sha512};

use kpack_core::interrupt::Watched;
use kpack_core::{Error, Reason, files};

/// The digest and size of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest {
    /// The SHA-256.
    pub sha256: [u8; 32],
    /// The size in bytes.
    pub size: u64,
}

impl Digest {
    /// The digest as RECORD has it.
    pub(super) fn hash(&self) -> String {
        format!("sha256={}", URL_SAFE_NO_PAD.encode(self.sha256))
    }
}

/// What becomes of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Nothing,
    /// The file is no longer there.
    Gone,
    /// The file has another digest.
    To(Digest),
}

/// Computes a longer digest than SHA-256 of what is written.
pub(super) enum LongHasher {
    Sha384(Sha384),
    Sha512(Sha512),
}

impl LongHasher {
    /// The digest as RECORD has it.
    pub(super) fn finish(self) -> String {
        match self {
            Self::Sha384(hasher) => format!("sha384={}", URL_SAFE_NO_PAD.encode(hasher.finalize())),
            Self::Sha512(hasher) => format!("sha512={}", URL_SAFE_NO_PAD.encode(hasher.finalize())),
        }
    }
}

impl Write for LongHasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Sha384(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Copies bytes, and computes their digest.
pub(super) fn copy(
    mut from: impl Read,
    to: &mut dyn Write,
    cannot_read: &dyn Fn(io::Error) -> Error,
    cannot_write: &dyn Fn(io::Error) -> Error,
) -> Result<Digest, Error> {
    let (mut hasher, mut size) = (Sha256::new(), 0);
    let mut buffer = vec![0; 128 << 10];
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => &buffer[..read],
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(cannot_read(error)),
        };
        hasher.update(read);
        to.write_all(read).map_err(cannot_write)?;
        size += read.len() as u64;
    }
    let sha256 = hasher.finalize().into();
    Ok(Digest { sha256, size })
}

/// The SHA-256 of a file.
pub(super) fn sha256(path: &Path) -> Result<[u8; 32], Error> {
    Ok(digest_of(path, &files::open(path)?)?.sha256)
}

/// The digest and size of an open file, from where it stands.
///
/// # Errors
/// [`Error::Io`].
pub fn digest_of(path: &Path, file: &File) -> Result<Digest, Error> {
    let failed = |error| Error::io(path, "read", error);
    copy(file, &mut Watched(io::sink()), &failed, &failed)
}

/// A row of RECORD, whose fields may be empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Row {
    hash: String,
    size: String,
}

impl Row {
    /// Whether it has a digest.
    pub(super) fn has_hash(&self) -> bool {
        !self.hash.is_empty()
    }

    /// The size, if it has one.
    pub(super) fn size(&self) -> Option<u64> {
        self.size.parse().ok()
    }

    /// A hasher for the algorithm of its hash, unless that is SHA-256.
    ///
    /// # Errors
    /// What is wrong with it: the format knows no weaker ones.
    pub(super) fn longer_hash(&self) -> Result<Option<LongHasher>, Reason> {
        match self.hash.split('=').next() {
            Some("" | "sha256") | None => Ok(None),
            Some("sha384") => Ok(Some(LongHasher::Sha384(Sha384::default()))),
            Some("sha512") => Ok(Some(LongHasher::Sha512(Sha512::default()))),
            Some(other) => Err(Reason::mismatch(
                "RECORD has a hash that kpack cannot check",
                "sha256, sha384 or sha512",
                other,
            )
            .then("; build the wheel again")),
        }
    }

    /// How the member's hash and size contradict it, if they do.
    pub(super) fn contradiction(&self, found: &str, size: u64) -> Option<Reason> {
        if self.has_hash() && self.hash.trim_end_matches('=') != found {
            return Some(Reason::mismatch("hash", &self.hash, found));
        }
        let size = size.to_string();
        (!self.size.is_empty() && self.size != size)
            .then(|| Reason::mismatch("size", &self.size, size))
    }
}

/// Reads the rows of a RECORD, by path.
///
/// # Errors
/// What is wrong with it.
pub(super) fn parse(bytes: &[u8]) -> Result<BTreeMap<String, Row>, String> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(bytes);
    let mut rows = BTreeMap::new();
    for record in reader.records() {
        let record = record.map_err(|error| error.to_string())?;
        let field = |index| record.get(index).unwrap_or_default().to_owned();
        let row = Row { hash: field(1), size: field(2) };
        if rows.insert(field(0), row).is_some() {
            return Err(format!("lists `{}` twice", field(0)));
        }
    }
    Ok(rows)
}

/// A RECORD in which some rows have changed; `None` if none has. `change` gets each name and row. Other rows keep their
/// bytes.
///
/// Installers accept rows that the format forbids, such as a second one for a file, or a name that is not UTF-8. The
/// other rows are as good as ever, so kpack corrects these nevertheless.
pub(super) fn with_changes<E>(
    bytes: &[u8],
    change: &mut dyn FnMut(&str, &Row) -> Result<Change, E>,
) -> Result<Option<Vec<u8>>, E> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(bytes);
    let (mut record, mut start) = (csv::ByteRecord::new(), 0);
    let mut new = Vec::with_capacity(bytes.len());
    let mut is_changed = false;
    // Reading from memory does not fail.
    while reader.read_byte_record(&mut record).unwrap_or(false) {
        let mut end = reader.position().byte() as usize;
        // The reader stops within CRLF, and skips the rest with the next record.
        if bytes[..end].ends_with(b"\r") && bytes.get(end) == Some(&b'\n') {
            end += 1;
        }
        let text = &bytes[start..end];
        start = end;
        let field = |index| str::from_utf8(record.get(index).unwrap_or_default());
        let change = match (field(0), field(1), field(2)) {
            (Ok(name), Ok(hash), Ok(size)) => {
                change(name, &Row { hash: hash.to_owned(), size: size.to_owned() })?
            }
            _ => Change::Nothing,
        };
        match change {
            Change::Nothing => {
                new.extend_from_slice(text);
                continue;
            }
            Change::Gone => {}
            Change::To(digest) => {
                let end = if text.ends_with(b"\r\n") {
                    csv::Terminator::CRLF
                } else {
                    csv::Terminator::Any(b'\n')
                };
                let mut writer = csv::WriterBuilder::new().terminator(end).from_writer(Vec::new());
                let (hash, size) = (digest.hash(), digest.size.to_string());
                let name = record.get(0).unwrap_or_default();
                // Writing to memory does not fail.
                let _ = writer.write_record([name, hash.as_bytes(), size.as_bytes()]);
                new.extend(writer.into_inner().unwrap_or_default());
            }
        }
        is_changed = true;
    }
    new.extend_from_slice(&bytes[start..]);
    Ok(is_changed.then_some(new))
}

/// The RECORD of these members; `own` is its own path.
pub(super) fn to_bytes(members: &[(String, Digest)], own: &str) -> Vec<u8> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let rows =
        members.iter().map(|(path, digest)| [path.clone(), digest.hash(), digest.size.to_string()]);
    for row in rows.chain([[own.to_owned(), String::new(), String::new()]]) {
        // Writing to memory does not fail, and all rows have three fields.
        let _ = writer.write_record(row);
    }
    writer.into_inner().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use sha2::{Digest as _, Sha256};

    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let digest = Digest { sha256: Sha256::digest(b"text").into(), size: 4 };
        let members = [("a, \"b\".py".to_owned(), digest), ("c".to_owned(), digest)];
        let bytes = to_bytes(&members, "x.dist-info/RECORD");
        let text = String::from_utf8(bytes.clone()).unwrap();
        let first = "\"a, \"\"b\"\".py\",sha256=mC2ePrmW9VnmM_TRlN7zdh2Qn1o7ZH0ahR_q1nwyydE,4\n";
        assert!(text.starts_with(first), "{text}");
        assert!(text.ends_with("x.dist-info/RECORD,,\n"), "{text}");
        let rows = parse(&bytes).unwrap();
        assert_eq!(rows.len(), 3);
        let contradiction = |size| rows["c"].contradiction(&digest.hash(), size);
        assert_eq!(contradiction(4), None);
        assert!(contradiction(5).unwrap().text.contains("size"));
        assert!(parse(b"a,,\na,,\n").is_err());
    }

    #[test]
    fn rows_that_do_not_change_keep_their_bytes() {
        let digest = Digest { sha256: Sha256::digest(b"text").into(), size: 4 };
        let hash = digest.hash();
        let mut change = |name: &str, _: &Row| {
            Ok::<_, Infallible>(match name {
                "b, c.so" | "two\nlines.so" => Change::To(digest),
                "gone.co" => Change::Gone,
                _ => Change::Nothing,
            })
        };
        for end in ["\n", "\r\n"] {
            let old = [
                format!("\"a\",sha256=x,1{end}\"b, c.so\",sha256=y,9{end}gone.co,,{end}")
                    .as_bytes(),
                b"\xff.so,sha256=x,1",
                format!("{end}\"two\nlines.so\",,,more{end}\"b, c.so\",sha256=z,8{end}R,,")
                    .as_bytes(),
            ]
            .concat();
            let expected = [
                format!("\"a\",sha256=x,1{end}\"b, c.so\",{hash},4{end}").as_bytes(),
                b"\xff.so,sha256=x,1",
                format!("{end}\"two\nlines.so\",{hash},4{end}\"b, c.so\",{hash},4{end}R,,")
                    .as_bytes(),
            ]
            .concat();
            let Ok(new) = with_changes(&old, &mut change);
            assert_eq!(new.unwrap(), expected, "{}", String::from_utf8_lossy(&expected));
        }
        let Ok(none) = with_changes(b"a,sha256=x,1\n", &mut change);
        assert_eq!(none, None);
    }
}
