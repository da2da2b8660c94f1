//! Names of modules and components.

use crate::Error;

/// Whether a module or component can be named so: it becomes a part of file names.
pub fn is_name_part(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
    !name.is_empty() && !name.starts_with('.') && name.chars().all(plain)
}

/// Refuses names of a module and component that can be no part of file names.
pub fn check_names(module: &str, component: &str) -> Result<(), Error> {
    for (what, name) in [("module", module), ("component", component)] {
        if !is_name_part(name) {
            return Err(Error::usage(format!(
                "{what} `{name}`: expected a part of a file name, of letters, digits, `.`, `_`, `+` and `-`"
            )));
        }
    }
    Ok(())
}
