//! Which environment is active.

use std::path::{Path, PathBuf};

use crate::image;

/// The environment that is active.
pub(crate) fn active() -> Option<PathBuf> {
    let mut variables = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(image::variable);
    variables.find(|active| !active.is_empty()).map(PathBuf::from)
}

/// Whether two paths lead to one directory.
pub(super) fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    real(one) == real(other)
}
