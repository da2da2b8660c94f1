//! The environment of a build script. It records the variables read, so that Cargo can watch them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use kpack_core::Error;
use kpack_core::platform::{OsStrExt, OsStringExt};

/// Environment variables, and the names of those read.
#[derive(Debug)]
pub(crate) struct Environment {
    /// `None` for the process's own environment.
    variables: Option<BTreeMap<String, OsString>>,
    asked: RefCell<BTreeSet<String>>,
}

impl Environment {
    /// The environment of this process.
    pub(crate) fn of_process() -> Self {
        Self { variables: None, asked: RefCell::default() }
    }

    /// An environment of only these variables.
    pub(crate) fn of(variables: BTreeMap<String, OsString>) -> Self {
        Self { variables: Some(variables), asked: RefCell::default() }
    }

    /// A variable whose change requires a rebuild; `None` if empty.
    pub(crate) fn get(&self, name: &str) -> Option<OsString> {
        self.asked.borrow_mut().insert(name.to_owned());
        self.untracked(name)
    }

    /// A variable that Cargo sets, or whose changes need not be watched.
    pub(crate) fn untracked(&self, name: &str) -> Option<OsString> {
        let value = match &self.variables {
            Some(variables) => variables.get(name).cloned(),
            None => std::env::var_os(name),
        };
        value.filter(|value| !value.is_empty())
    }

    /// Like `get`, as text.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.untracked(name)?.into_string().ok()
    }

    /// A directory that Cargo passes to build scripts.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf, Error> {
        self.untracked(name).map(PathBuf::from).ok_or_else(|| {
            Error::usage(format!(
                "{name} is not set; call this from a build script (build.rs), where Cargo \
                 sets it"
            ))
        })
    }

    /// The names of the variables read.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.borrow().iter().cloned().collect()
    }
}

/// Splits the value of a variable into words. Quotes and `\` work as in a shell; `#` starts no comment.
pub(crate) fn words(name: &str, value: &OsStr) -> Result<Vec<OsString>, Error> {
    // `shlex` would read `#` as the start of a comment. NUL replaces it meanwhile: no variable has one.
    let replaced = |bytes: &[u8], from: u8, to: u8| -> Vec<u8> {
        let bytes = bytes.iter();
        bytes.map(|byte| if *byte == from { to } else { *byte }).collect()
    };
    let Some(words) = shlex::bytes::split(&replaced(value.as_bytes(), b'#', 0)) else {
        let value = Path::new(value).display();
        return Err(Error::usage(format!("{name} is `{value}`: a quote is not closed; close it")));
    };
    let words = words.iter().map(|word| replaced(word, 0, b'#'));
    Ok(words.map(OsString::from_vec).collect())
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn words_as_in_a_shell_without_comments() {
        let words = words("HIPFLAGS", "-O2 #x '-DY=a #b' \\#z c#".as_ref()).unwrap();
        assert_eq!(words, ["-O2", "#x", "-DY=a #b", "#z", "c#"]);
    }
}
