//! Directories of a build, whose paths must not appear in programs that others get.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};

use kpack_core::platform::OsStringExt;
use kpack_core::{Error, files};

use super::collect::Facts;
use crate::stage::places::TARGET_DIRECTORY;

/// The file in which CMake keeps its variables.
const CACHE: &str = "CMakeCache.txt";

/// Files that build systems make in the top directory of a build.
const MARKS: [&str; 4] = [CACHE, TARGET_DIRECTORY, "build.ninja", "meson-info"];

/// Where CMake's cache names the directory of the sources.
const SOURCES: &[u8] = b"CMAKE_HOME_DIRECTORY:INTERNAL=";

/// Limit for CMake's cache, in bytes.
const MAX_CACHE: u64 = 64 << 20;

/// The builds that made some of these files: their directories, and those of their sources.
///
/// # Errors
/// [`Error::Io`] if a mark of a build system cannot be read.
pub(super) fn directories(facts: &Facts) -> Result<Vec<PathBuf>, Error> {
    let mut found = BTreeSet::new();
    let directories = BTreeSet::from_iter(facts.binaries.keys().filter_map(|path| path.parent()));
    for directory in directories {
        // The outermost: builds contain those of other projects.
        let mut top = None;
        for above in directory.ancestors() {
            for mark in MARKS {
                if files::is_there(&above.join(mark))? {
                    top = Some(above);
                }
            }
        }
        if let Some(top) = top {
            found.insert(top.to_owned());
            found.extend(sources_of(&top.join(CACHE))?);
        }
    }
    found.retain(|directory| directory.is_absolute() && directory.parent().is_some());
    Ok(found.into_iter().collect())
}

/// The directory of the sources in a cache of CMake, if the build has one.
fn sources_of(cache: &Path) -> Result<Option<PathBuf>, Error> {
    // Anybody may put something else there.
    if !files::metadata_of(cache)?.is_some_and(|metadata| metadata.is_file()) {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    let read = files::open(cache)?.take(MAX_CACHE).read_to_end(&mut bytes);
    read.map_err(|error| Error::io(cache, "read", error))?;
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let sources = lines.find_map(|line| line.strip_prefix(SOURCES));
    Ok(sources.map(|path| OsString::from_vec(path.to_vec()).into()))
}
