//! Detects device code in PE/COFF files, so that kpack can report that it does not split them.

use std::fs::File;
use std::io;

use object::read::{File as Object, FileKind, ReadCache};
use object::{Object as _, ObjectSection as _};

/// Names of sections with device code: `.hip_fatbin` in objects and where the linker keeps long
/// names, `.hip_fat` where it cuts them to eight bytes.
const SECTION: &str = ".hip_fat";

/// The section of a PE/COFF image or object that holds device code, if any; `None` for other files.
pub(super) fn device_section(file: &File) -> io::Result<Option<String>> {
    // The cache treats any failed read as the end of the file.
    let size = file.metadata()?.len();
    let cache = ReadCache::new(file);
    let kind = FileKind::parse(&cache);
    let is_pe = matches!(
        kind,
        Ok(FileKind::Pe32 | FileKind::Pe64 | FileKind::Coff | FileKind::CoffBig)
    );
    if size == 0 || !is_pe {
        return Ok(None);
    }
    let Ok(object) = Object::parse(&cache) else {
        return Ok(None);
    };
    let names = object.sections().filter_map(|section| {
        let name = section.name().ok()?;
        name.starts_with(SECTION).then(|| name.to_owned())
    });
    Ok(names.into_iter().next())
}
