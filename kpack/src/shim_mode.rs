//! `KPACK_HIP`: when the shim replaces wrappers. The shim and `kpack doctor` read it.

use std::ffi::OsStr;

/// When the shim replaces split wrappers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShimMode {
    /// If the runtime does not read markers.
    Auto,
    /// Never.
    Off,
    /// Always.
    Force,
}

impl ShimMode {
    /// Reads the variable's value; `None` if it has no such value.
    pub fn read(value: &OsStr) -> Option<Self> {
        match value.to_str()? {
            "" | "auto" => Some(Self::Auto),
            "off" => Some(Self::Off),
            "force" => Some(Self::Force),
            _ => None,
        }
    }
}
