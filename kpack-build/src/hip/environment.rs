//! What a build script reads from its environment, remembered so that Cargo can be told.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;

use crate::Error;

/// Variables of the environment, and which of them were asked for.
#[derive(Debug)]
pub(crate) struct Environment {
    /// The process's own where this is `None`.
    variables: Option<BTreeMap<String, OsString>>,
    asked: RefCell<BTreeSet<String>>,
}

impl Environment {
    /// That of this process.
    pub(crate) fn of_process() -> Self {
        Self {
            variables: None,
            asked: RefCell::default(),
        }
    }

    /// One that has these variables only.
    pub(crate) fn of(variables: BTreeMap<String, OsString>) -> Self {
        Self {
            variables: Some(variables),
            asked: RefCell::default(),
        }
    }

    /// A variable whose change makes another build necessary; `None` where it is empty.
    pub(crate) fn get(&self, name: &str) -> Option<OsString> {
        self.asked.borrow_mut().insert(name.to_owned());
        self.untracked(name)
    }

    /// A variable that Cargo sets, or whose change it notices by itself.
    pub(crate) fn untracked(&self, name: &str) -> Option<OsString> {
        let value = match &self.variables {
            Some(variables) => variables.get(name).cloned(),
            None => std::env::var_os(name),
        };
        value.filter(|value| !value.is_empty())
    }

    /// The same as text.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.untracked(name)?.into_string().ok()
    }

    /// A directory that Cargo names to build scripts.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf, Error> {
        self.untracked(name).map(PathBuf::from).ok_or_else(|| {
            Error::usage(format!(
                "{name} is not set; call this from a build script (build.rs), for which Cargo \
                 sets it"
            ))
        })
    }

    /// The variables that were asked for.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.borrow().iter().cloned().collect()
    }
}
