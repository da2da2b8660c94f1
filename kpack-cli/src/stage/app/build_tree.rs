//! Directories of a build, whose paths must not appear in programs that others get.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::collect::Facts;

/// Files that build systems make in the top directory of a build.
const MARKS: [&str; 4] = ["CMakeCache.txt", "CACHEDIR.TAG", "build.ninja", "meson-info"];

/// Where CMake's cache names the directory of the sources.
const SOURCES: &str = "CMAKE_HOME_DIRECTORY:INTERNAL=";

/// The builds that made some of these files: their directories, and those of their sources.
pub(super) fn directories(facts: &Facts) -> Vec<PathBuf> {
    let mut found = BTreeSet::new();
    let directories = BTreeSet::from_iter(facts.binaries.keys().filter_map(|path| path.parent()));
    for directory in directories {
        // The outermost: builds contain those of other projects.
        let is_top = |above: &&Path| MARKS.iter().any(|mark| above.join(mark).exists());
        if let Some(top) = directory.ancestors().filter(is_top).last() {
            found.insert(top.to_owned());
            let cache = fs::read_to_string(top.join(MARKS[0])).unwrap_or_default();
            let sources = cache.lines().find_map(|line| line.strip_prefix(SOURCES));
            found.extend(sources.map(PathBuf::from));
        }
    }
    found.retain(|directory| directory.is_absolute() && directory.parent().is_some());
    found.into_iter().collect()
}
