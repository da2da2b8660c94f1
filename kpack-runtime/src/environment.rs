//! The environment of this process.

use std::ffi::OsString;

use crate::ffi::process;
use crate::lookup::Environment;

impl Environment {
    /// The variables of this process. A process with raised privileges (AT_SECURE) ignores them, since
    /// it cannot trust whoever started it.
    pub fn of_process() -> Self {
        Self::read(Self::variable)
    }

    /// A variable of this process; `None` with raised privileges.
    pub fn variable(name: &str) -> Option<OsString> {
        match process::is_secure() {
            true => None,
            false => std::env::var_os(name),
        }
    }
}
