//! `RECORD`: the members of a wheel with their digests and sizes, as CSV.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256, Sha384, Sha512};

use kpack_core::{Error, Reason};
use kpack_split::input;

/// The digest and size of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Digest {
    pub(super) sha256: [u8; 32],
    pub(super) size: u64,
}

impl Digest {
    /// The digest as RECORD has it.
    pub(super) fn hash(&self) -> String {
        format!("sha256={}", URL_SAFE_NO_PAD.encode(self.sha256))
    }
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
pub fn sha256(path: &Path) -> Result<[u8; 32], Error> {
    let mut hasher = Sha256::new();
    input::read_parts(path, &mut |part| hasher.update(part))?;
    Ok(hasher.finalize().into())
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
    let mut reader = csv::ReaderBuilder::new();
    let mut reader = reader.has_headers(false).flexible(true).from_reader(bytes);
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

/// A RECORD with new digests of the files in `changed`, and without those that have none. Other rows keep their bytes.
pub(super) fn with_changes(bytes: &[u8], changed: &BTreeMap<&str, Option<Digest>>) -> Vec<u8> {
    let mut reader = csv::ReaderBuilder::new();
    let mut reader = reader.has_headers(false).flexible(true).from_reader(bytes);
    let (mut record, mut start) = (csv::StringRecord::new(), 0);
    let mut new = Vec::with_capacity(bytes.len());
    // What is no record was refused when it was parsed.
    while reader.read_record(&mut record).unwrap_or(false) {
        let mut end = reader.position().byte() as usize;
        // The reader stops within CRLF, and skips the rest with the next record.
        if bytes[..end].ends_with(b"\r") && bytes.get(end) == Some(&b'\n') {
            end += 1;
        }
        let row = &bytes[start..end];
        start = end;
        let Some(change) = record.get(0).and_then(|name| changed.get(name)) else {
            new.extend_from_slice(row);
            continue;
        };
        let Some(digest) = change else {
            continue;
        };
        let mut builder = csv::WriterBuilder::new();
        if row.ends_with(b"\r\n") {
            builder.terminator(csv::Terminator::CRLF);
        }
        let mut writer = builder.from_writer(Vec::new());
        let name = record.get(0).unwrap_or_default();
        // Writing to memory does not fail.
        let _ = writer.write_record([name, &digest.hash(), &digest.size.to_string()]);
        new.extend(writer.into_inner().unwrap_or_default());
    }
    new
}

/// The RECORD of these members; `own` is its own path.
pub(super) fn to_bytes(members: &[(String, Digest)], own: &str) -> Vec<u8> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let rows = members.iter();
    let rows = rows.map(|(path, digest)| [path.clone(), digest.hash(), digest.size.to_string()]);
    for row in rows.chain([[own.to_owned(), String::new(), String::new()]]) {
        // Writing to memory does not fail, and all rows have three fields.
        let _ = writer.write_record(row);
    }
    writer.into_inner().unwrap_or_default()
}

#[cfg(test)]
mod tests {
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
        let changed = BTreeMap::from([("b, c.so", Some(digest)), ("gone.co", None)]);
        for end in ["\n", "\r\n"] {
            let old = format!("\"a\",sha256=x,1{end}\"b, c.so\",sha256=y,9{end}gone.co,,{end}R,,");
            let new = String::from_utf8(with_changes(old.as_bytes(), &changed)).unwrap();
            let hash = digest.hash();
            assert_eq!(new, format!("\"a\",sha256=x,1{end}\"b, c.so\",{hash},4{end}R,,"));
        }
    }
}
