//! Names of modules and components.

use crate::Error;

/// Whether this is a valid name of a module or component, which becomes part of file names.
pub fn is_name_part(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
    !name.is_empty() && !name.starts_with('.') && name.chars().all(plain)
}

/// The name of a module that is closest to `text`: what file names cannot have becomes `_`.
pub fn name_part(text: &str) -> String {
    let mut name = String::new();
    for c in text.chars() {
        name.push(c);
        if !is_name_part(&name) {
            name.pop();
            name.push('_');
        }
    }
    name
}

/// Refuses a module or component name that cannot be part of a file name.
pub fn check_names(module: &str, component: &str) -> Result<(), Error> {
    for (what, name) in [("module", module), ("component", component)] {
        if !is_name_part(name) {
            return Err(Error::usage(format!(
                "{what} `{name}`: expected part of a file name: letters, digits, `.`, `_`, `+` and `-`"
            )));
        }
    }
    Ok(())
}
