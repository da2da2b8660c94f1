//! The CMake package under test: in the source tree, or installed.

use std::path::{Path, PathBuf};

use kpack_tests::process;

pub(crate) use kpack_tests::page::repository as root;

/// A Kpack package and the helper that belongs to it.
pub(crate) struct Package {
    /// The value of `Kpack_DIR`.
    pub(crate) directory: PathBuf,
    /// The helper, for checking its results.
    pub(crate) helper: PathBuf,
    /// Whether projects must set `Kpack_EXECUTABLE`.
    pub(crate) names_helper: bool,
}

impl Package {
    /// `cmake/` of the repository, with the installed helper.
    pub(crate) fn source_tree() -> Self {
        Self {
            directory: root().join("cmake"),
            helper: dist_prefix().join("bin/kpack"),
            // The package could find an older build, in the other profile or another target directory.
            names_helper: true,
        }
    }

    /// A copy that `cargo xtask dist` installed, made once for all tests.
    pub(crate) fn installed() -> Self {
        let prefix = dist_prefix();
        Self {
            directory: prefix.join("lib/cmake/Kpack"),
            helper: prefix.join("bin/kpack"),
            names_helper: false,
        }
    }
}

/// The prefix of the installed package.
pub(crate) fn dist_prefix() -> &'static Path {
    process::installed_kpack(&scratch().join("kpack-dist"))
}

/// A directory that the tests share.
pub(crate) fn scratch() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}
