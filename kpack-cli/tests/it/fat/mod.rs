//! What is in fat and joined binaries.

use std::path::Path;

use kpack_cli::inspect::{Content, FatBinary, inspect};

/// What `kpack show` knows of a binary, which must be fat or joined.
pub(crate) fn fat(path: &Path) -> FatBinary {
    let Content::FatBinary(fat) = inspect(path).unwrap().content else {
        panic!("{} is not fat", path.display());
    };
    fat
}

/// Its targets.
pub(crate) fn targets_of(path: &Path) -> Vec<String> {
    fat(path).targets().into_keys().map(ToString::to_string).collect()
}

/// The offsets of its bundles, in order of its wrappers.
pub(crate) fn bundles(path: &Path) -> Vec<u64> {
    fat(path).wrappers.iter().map(|(wrapper, _)| wrapper.bundle_offset).collect()
}
