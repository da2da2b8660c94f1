//! The environment of a build script. It records the variables read, so that Cargo can watch them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::env::consts::ARCH;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use kpack_core::Error;
use kpack_core::platform::{OsStrExt, OsStringExt};

/// What docs.rs sets. It has neither a compiler for HIP nor ROCm.
pub(crate) const DOCS_RS: &str = "DOCS_RS";

/// Environment variables, and the names of those read.
#[derive(Debug)]
pub(crate) struct Environment {
    variables: BTreeMap<OsString, OsString>,
    asked: RefCell<BTreeSet<String>>,
}

impl Environment {
    /// The environment of this process.
    pub(crate) fn of_process() -> Self {
        Self::of(std::env::vars_os().collect())
    }

    /// An environment of only these variables.
    pub(crate) fn of(variables: BTreeMap<OsString, OsString>) -> Self {
        Self { variables, asked: RefCell::default() }
    }

    /// All variables.
    pub(crate) fn all(&self) -> &BTreeMap<OsString, OsString> {
        &self.variables
    }

    /// A variable whose change requires a rebuild; `None` if empty.
    pub(crate) fn get(&self, name: &str) -> Option<OsString> {
        self.asked.borrow_mut().insert(name.to_owned());
        self.untracked(name)
    }

    /// Variables that a program reads, whose change requires a rebuild.
    pub(crate) fn watch(&self, names: &[&str]) {
        self.asked.borrow_mut().extend(names.iter().map(|name| (*name).to_owned()));
    }

    /// A variable for the target of the build, by the names that the crate `cc` tries. It may be empty.
    pub(crate) fn for_target(&self, name: &str) -> Option<OsString> {
        let target = self.target();
        let side = if target == self.host() { "HOST" } else { "TARGET" };
        let names = [
            format!("{name}_{target}"),
            format!("{name}_{}", target.replace(['-', '.'], "_")),
            format!("{side}_{name}"),
            name.to_owned(),
        ];
        self.asked.borrow_mut().extend(names.iter().cloned());
        names.iter().find_map(|name| self.variables.get(OsStr::new(name))).cloned()
    }

    /// A variable that Cargo sets, or whose changes need not be watched.
    pub(crate) fn untracked(&self, name: &str) -> Option<OsString> {
        self.variables.get(OsStr::new(name)).filter(|value| !value.is_empty()).cloned()
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

    /// The machine that builds. Outside of a build script, it is this one.
    pub(crate) fn host(&self) -> String {
        self.text("HOST").unwrap_or_else(|| format!("{ARCH}-unknown-linux-gnu"))
    }

    /// The machine to build for.
    pub(crate) fn target(&self) -> String {
        self.text("TARGET").unwrap_or_else(|| self.host())
    }

    /// Whether the build is for Windows, with mingw-w64.
    pub(crate) fn is_for_windows(&self) -> bool {
        self.target().contains("-windows-gnu")
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
