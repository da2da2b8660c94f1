//! Verifies device code that is in no archive: bundles in binaries, and files of code objects or bundles.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use kpack_core::archives::debug_sections::check_structure;
use kpack_core::files::{check_bundle, failed_code_object};
use kpack_core::{Error, ids};
use kpack_format::offload_bundle::{Bundle, Format};

use super::report::VerifyReport;
use crate::elf::Wrapper;
use crate::input::{
    self, FileKind, LinkedBinary, RangeReader, bundle_error, by_bundle, open_bundle, wrapper_error,
};

/// Verifies the bundles of unsplit `wrappers`.
pub(super) fn bundles(
    binary: &LinkedBinary,
    wrappers: &[Wrapper],
    report: &mut VerifyReport,
) -> Result<(), Error> {
    let (path, file) = (&binary.path, binary.image.source());
    for sharing in by_bundle(wrappers.iter()) {
        let (first, at) = (sharing[0], sharing[0].bundle_offset);
        let mut reader = BufReader::new(input::SharedFile::of(file));
        let checked = open_bundle(&mut reader, first)
            .and_then(|bundle| check_bundle(file, at..at + bundle.size, &bundle))
            .map_err(|error| wrapper_error(path, first.co_index, at, error));
        report.accepted(path, checked)?;
    }
    Ok(())
}

/// Verifies the bundles in the data of a binary. What only begins like a bundle is none.
pub(super) fn in_data(binary: &LinkedBinary, report: &mut VerifyReport) -> Result<(), Error> {
    let (path, file) = (&binary.path, binary.image.source());
    let sections = binary.image.bundles_in_data().map_err(|error| binary.error(error));
    for section in report.accepted(path, sections)?.unwrap_or_default() {
        for start in section.starts {
            let range = start..section.end;
            let read = Bundle::read(
                &mut BufReader::new(RangeReader::new(file, range)),
                section.end - start,
            );
            let place = format!("bundle at file offset {start:#x}: ");
            let failed = |error| bundle_error(path, &place, error);
            let Ok(bundle) = input::or_refused(read.map_err(failed))? else {
                continue;
            };
            let checked = check_bundle(file, start..start + bundle.size, &bundle);
            report.accepted(path, checked.map_err(failed))?;
        }
    }
    Ok(())
}

/// Verifies a file that is a code object or a bundle.
///
/// # Errors
/// [`Error::Refused`] if it is damaged; [`Error::Io`].
pub(super) fn file(path: &Path, file: &File, kind: FileKind) -> Result<(), Error> {
    let size = file.metadata().map_err(|error| Error::io(path, "read", error))?.len();
    let mut reader = BufReader::new(RangeReader::new(file, 0..size));
    if kind == FileKind::CodeObject {
        let checked = check_structure(&mut reader, size);
        return checked.map_err(|error| failed_code_object(path, error));
    }
    let bundle = Bundle::read(&mut reader, size)
        .and_then(|bundle| check_bundle(file, 0..bundle.size, &bundle).map(|()| bundle))
        .map_err(|error| bundle_error(path, "", error))?;
    if bundle.format != Format::Plain {
        return Ok(());
    }
    for entry in bundle.entries.iter().filter(|entry| entry.size > 0) {
        if let Some(target) = entry.id.target().filter(|target| !target.is_spirv()) {
            let code = RangeReader::new(file, entry.offset..entry.offset + entry.size);
            check_structure(&mut BufReader::new(code), entry.size).map_err(|error| {
                let place = format!("the code object for {target}: ");
                failed_code_object(path, error).about(|reason| reason.after(place).target(target))
            })?;
        }
    }
    Ok(())
}

/// Whether a file with this name is there to be loaded as device code. Others may be the data of a test, and damaged on
/// purpose.
pub(super) fn is_named_like_it(path: &Path) -> bool {
    let extension = path.extension().unwrap_or_default();
    ["co", "hsaco", "hipfb"].iter().any(|known| extension == *known)
}

/// The check that a file of device code passed.
pub(super) fn sound(path: &Path, kind: FileKind, report: &mut VerifyReport) {
    let what = if kind == FileKind::CodeObject { "code object" } else { "bundle" };
    report.ok(ids::DEVICE_CODE_SOUND, path, format!("an undamaged {what}"));
}
