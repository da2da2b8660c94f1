//! The environment variables of the loader.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

/// The settings in the environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Environment {
    /// `ROCM_KPACK_DISABLE`, neither empty nor `0`: nothing is loaded.
    pub disable: bool,
    /// `ROCM_KPACK_DEBUG`, neither empty nor `0`: print what was tried on standard error.
    pub debug: bool,
    /// `ROCM_KPACK_PATH`: archives in place of those that markers name; empty if unset.
    pub path: Vec<PathBuf>,
    /// `ROCM_KPACK_PATH_PREFIX`: archives before those that markers name.
    pub path_prefix: Vec<PathBuf>,
}

impl Environment {
    pub(super) const PATH: &str = "ROCM_KPACK_PATH";
    pub(super) const PATH_PREFIX: &str = "ROCM_KPACK_PATH_PREFIX";
    const DISABLE: &str = "ROCM_KPACK_DISABLE";
    /// The variables that decide what the loader finds.
    pub const VARIABLES: [&str; 3] = [Self::PATH, Self::PATH_PREFIX, Self::DISABLE];

    /// The variables that `get` returns.
    pub fn read(get: impl Fn(&str) -> Option<OsString>) -> Self {
        let is_on = |name| get(name).is_some_and(|value| !value.is_empty() && value != "0");
        let files = |name| {
            let value = get(name).unwrap_or_default();
            let files = env::split_paths(&value);
            files.filter(|file| !file.as_os_str().is_empty()).collect()
        };
        Self {
            disable: is_on(Self::DISABLE),
            debug: is_on("ROCM_KPACK_DEBUG"),
            path: files(Self::PATH),
            path_prefix: files(Self::PATH_PREFIX),
        }
    }
}
