//! A source distribution, as far as its metadata is that of a set of wheels: TheRock's project `rocm` is one, whose extras ask
//! for the wheels of others.

use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use tar::Archive;

use super::metadata::Fields;
use super::set::{Pins, pins};
use kpack_core::{Error, ids};
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
/// [`Error::Refused`] for one that is damaged or has no `PKG-INFO`; [`Error::Io`].
pub(super) fn requirements(path: &Path) -> Result<Pins, Error> {
    let refused = |text: String| Error::rejected(ids::DAMAGED_WHEEL, path, text);
    let bytes = metadata(path)?.ok_or_else(|| refused("it has no NAME-VERSION/PKG-INFO".into()))?;
    let fields = Fields::parse(bytes).and_then(|fields| pins(&fields, &|_| true));
    fields.map_err(|text| refused(format!("PKG-INFO: {text}")))
}

fn metadata(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    let refused = |error: std::io::Error| {
        let text = format!("not a source distribution: {error}");
        Error::rejected(ids::DAMAGED_WHEEL, path, text)
    };
    let mut archive = Archive::new(GzDecoder::new(input::open(path)?).take(MAX_SIZE));
    for entry in archive.entries().map_err(refused)? {
        let entry = entry.map_err(refused)?;
        let name = entry.path_bytes();
        let name = name.strip_prefix(b"./").unwrap_or(&name);
        let mut parts = name.split(|byte| *byte == b'/').skip(1);
        if parts.next() == Some(b"PKG-INFO") && parts.next().is_none() {
            let mut bytes = Vec::new();
            let mut entry = entry.take(MAX_METADATA);
            entry.read_to_end(&mut bytes).map_err(refused)?;
            return Ok(Some(bytes));
        }
    }
    Ok(None)
}
