//! What `Hip` of `kpack-build` leaves for `kpack stage`.

use std::path::{Path, PathBuf};

/// File in the directory of a library or of modules that lists the header directories outside of the package and the
/// system. Staging looks for their paths in a release. No other directory that a program is linked
/// with has such a file.
pub const INCLUDE_DIRECTORIES: &str = "include-directories.txt";

/// File beside it that lists the GPU targets of the library or modules, one per line, if they are those of the machine that built
/// it because nobody named any.
pub const NATIVE_TARGETS: &str = "native-targets.txt";

/// Start of the name of a variable that a build script sets for its package (`cargo::rustc-env`), to the directory of its
/// modules. Cargo's messages contain it. The name of the modules follows.
pub const MODULES_VARIABLE: &str = "KPACK_MODULES_";

/// The possible workspaces of a package: every directory above it with a `Cargo.lock`, and the
/// package's own.
pub fn workspaces(package: &Path) -> impl Iterator<Item = PathBuf> {
    package
        .ancestors()
        .filter(|directory| directory.parent().is_some() && directory.join("Cargo.lock").is_file())
        .map(Path::to_owned)
}
