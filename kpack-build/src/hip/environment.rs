//! The environment of a build script. It records the variables read, so that Cargo can watch them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;

use crate::Error;

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
        Self {
            variables: None,
            asked: RefCell::default(),
        }
    }

    /// An environment of only these variables.
    pub(crate) fn of(variables: BTreeMap<String, OsString>) -> Self {
        Self {
            variables: Some(variables),
            asked: RefCell::default(),
        }
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
