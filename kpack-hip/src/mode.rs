//! `KPACK_HIP`: when the shim replaces wrappers.

use std::ffi::OsStr;

/// When the shim replaces split wrappers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// If the runtime does not read markers.
    Auto,
    /// Never.
    Off,
    /// Always.
    Force,
}

impl Mode {
    /// Reads the variable's value; `None` if it has no such value.
    pub(crate) fn read(value: &OsStr) -> Option<Self> {
        match value.to_str()? {
            "" | "auto" => Some(Self::Auto),
            "off" => Some(Self::Off),
            "force" => Some(Self::Force),
            _ => None,
        }
    }
}
