//! The metadata of a source distribution, whose extras may ask for wheels: those of TheRock's project `rocm` do.

use std::io::{ErrorKind, Read};
use std::path::Path;

use flate2::read::GzDecoder;
use tar::Archive;

use super::members::{damaged, member_error, read_error};
use super::metadata::Fields;
use super::set::{Pins, pins};
use kpack_core::Error;
use kpack_split::input;

/// What file names of source distributions end with.
const ENDING: &str = ".tar.gz";

/// The metadata that must fit into memory.
const MAX_METADATA: u64 = 16 << 20;

/// The most bytes in which the metadata is looked for: one that needs more has device code in it, or is a bomb.
const MAX_SIZE: u64 = 1 << 30;

/// Whether a file is called like a source distribution.
pub(super) fn is_sdist(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    name.as_encoded_bytes().ends_with(ENDING.as_bytes())
}

/// What it requires, always and with each of its extras.
///
/// # Errors
/// [`Error::Refused`] for one that is damaged or has no `NAME-VERSION/PKG-INFO`; [`Error::Io`].
pub(super) fn requirements(path: &Path) -> Result<Pins, Error> {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let member = [name.strip_suffix(ENDING.as_bytes()).unwrap_or(name), b"/PKG-INFO"].concat();
    let shown = String::from_utf8_lossy(&member);
    let bytes = metadata(path, &member)?
        .ok_or_else(|| damaged(path, format!("it has no file `{shown}`")))?;
    let fields = Fields::parse(bytes).and_then(|fields| {
        for field in ["Name", "Version"] {
            if fields.get(field).is_none_or(str::is_empty) {
                return Err(format!("it has no {field}"));
            }
        }
        pins(&fields, &|_| true, None)
    });
    fields.map_err(|text| member_error(path, &shown, &text))
}

/// The content of the file `member`.
fn metadata(path: &Path, member: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    let failed = |error| {
        read_error(path, error, |error| {
            damaged(path, format!("not a source distribution: {error}"))
        })
    };
    let mut archive = Archive::new(GzDecoder::new(input::open(path)?).take(MAX_SIZE));
    // The library would read long names of any size into memory. The file that counts has a short one.
    for entry in archive.entries().map_err(failed)?.raw(true) {
        let mut entry = entry.map_err(failed)?;
        let name = entry.path_bytes();
        let is_it = name.strip_prefix(b"./").unwrap_or(&name) == member;
        if !is_it || !entry.header().entry_type().is_file() {
            continue;
        }
        let size = entry.size();
        if size > MAX_METADATA {
            let text = format!("it has {size} bytes (expected at most {MAX_METADATA})");
            return Err(member_error(path, &String::from_utf8_lossy(member), &text));
        }
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 != size {
            return Err(failed(ErrorKind::UnexpectedEof.into()));
        }
        return Ok(Some(bytes));
    }
    Ok(None)
}
