//! What `Hip` of `kpack-build` leaves for `kpack stage`.

use std::path::{Path, PathBuf};

/// File in a library's directory that lists the header directories outside of the package and the
/// system. Staging looks for their paths in a release. No other directory that a program is linked
/// with has such a file.
pub const INCLUDE_DIRECTORIES: &str = "include-directories.txt";

/// File beside it that lists the GPU targets of the library, one per line, if they are those of the machine that built
/// it because nobody named any.
pub const NATIVE_TARGETS: &str = "native-targets.txt";

/// The possible workspaces of a package: every directory above it with a `Cargo.lock`, and the
/// package's own.
pub fn workspaces(package: &Path) -> impl Iterator<Item = PathBuf> {
    package
        .ancestors()
        .filter(|directory| directory.parent().is_some() && directory.join("Cargo.lock").is_file())
        .map(Path::to_owned)
}
