//! The environment of this process.

use std::ffi::OsString;

use crate::lookup::Environment;
use crate::platform;

impl Environment {
    /// The variables of this process. A process with raised privileges (AT_SECURE) ignores them, since
    /// it cannot trust whoever started it.
    pub fn of_process() -> Self {
        Self::read(Self::variable)
    }

    /// A variable of this process; `None` with raised privileges.
    pub fn variable(name: &str) -> Option<OsString> {
        if platform::is_secure() { None } else { std::env::var_os(name) }
    }
}
