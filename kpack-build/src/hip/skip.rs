//! When a build script compiles nothing.

use super::environment::{DOCS_RS, Environment};
use super::options::Hip;

/// Why nothing is compiled; `None` if it is.
pub(super) fn reason(hip: &Hip, environment: &Environment) -> Option<String> {
    if hip.skip {
        return Some("the build script says `skip(true)`".to_owned());
    }
    environment.get(DOCS_RS).map(|_| format!("{DOCS_RS} is set"))
}
