//! `RECORD`: the members of a wheel with their digests and sizes, as CSV.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kpack_format::Sha256;
use kpack_format::digest::Hasher;
use sha2::{Digest as _, Sha384, Sha512};

use kpack_core::Error;

/// The digest and size of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Digest {
    pub(super) sha256: Sha256,
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
    let (mut hasher, mut size) = (Hasher::default(), 0);
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
    let sha256 = hasher.finish();
    Ok(Digest { sha256, size })
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

    /// A hasher for the algorithm of its hash, unless that is SHA-256.
    ///
    /// # Errors
    /// What is wrong with it: the format knows no weaker ones.
    pub(super) fn longer_hash(&self) -> Result<Option<LongHasher>, String> {
        match self.hash.split('=').next() {
            Some("" | "sha256") | None => Ok(None),
            Some("sha384") => Ok(Some(LongHasher::Sha384(Sha384::default()))),
            Some("sha512") => Ok(Some(LongHasher::Sha512(Sha512::default()))),
            Some(other) => Err(format!(
                "RECORD has a hash that kpack cannot check (expected sha256, sha384 or sha512, found {other}); build the wheel again"
            )),
        }
    }

    /// How the member's hash and size contradict it, if they do.
    pub(super) fn contradiction(&self, found: &str, size: u64) -> Option<String> {
        if self.has_hash() && self.hash.trim_end_matches('=') != found {
            return Some(format!("hash (expected {}, found {found})", self.hash));
        }
        let size = size.to_string();
        (!self.size.is_empty() && self.size != size)
            .then(|| format!("size (expected {}, found {size})", self.size))
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
    use kpack_format::digest::sha256;

    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let digest = Digest { sha256: sha256(b"text"), size: 4 };
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
        assert!(contradiction(5).unwrap().contains("size"));
        assert!(parse(b"a,,\na,,\n").is_err());
    }
}
