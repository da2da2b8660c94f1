//! What runs find out about their inputs, each with a stable ID that `kpack explain` explains.

pub mod ids;

use std::path::{Path, PathBuf};

use kpack_format::{Details, Reason};

use crate::words::one_line;

pub use kpack_format::finding::Id;

/// Something that a run found out.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Finding {
    /// What kind of finding it is.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::lossy::id"))]
    pub id: Id,
    /// How bad it is.
    pub severity: Severity,
    /// The file, if it is about one.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::lossy::optional_path"))]
    pub path: Option<PathBuf>,
    /// What was found, and what was expected.
    pub text: String,
    /// What to do about it in this case.
    pub help: Option<String>,
    /// What the text says, as data.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Details::is_empty"))]
    pub details: Box<Details>,
}

impl Finding {
    /// A finding about the file at `path`.
    pub fn new(
        severity: Severity,
        id: Id,
        path: impl Into<PathBuf>,
        text: impl Into<Reason>,
    ) -> Self {
        Self { path: Some(path.into()), ..Self::general(severity, id, text) }
    }

    /// A finding that is not about one file. Line breaks in the text come from names, and are escaped.
    pub fn general(severity: Severity, id: Id, text: impl Into<Reason>) -> Self {
        let Reason { text, details, .. } = text.into();
        Self { id, severity, path: None, text: one_line(text), help: None, details }
    }

    /// The same, with what to do.
    pub fn with_help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }

    /// Its text and details.
    pub fn reason(self) -> Reason {
        Reason::new(self.text, self.details)
    }

    /// The file that it is about; an empty path if it is about none.
    pub fn file(&self) -> &Path {
        self.path.as_deref().unwrap_or(Path::new(""))
    }
}

/// A message and its ID, which ends the first line.
pub fn with_id(text: &str, id: Id) -> String {
    match text.split_once('\n') {
        Some((first, rest)) => format!("{first} [{id}]\n{rest}"),
        None => format!("{text} [{id}]"),
    }
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Severity {
    /// As it must be.
    Ok,
    /// For information.
    Note,
    /// Probably not intended.
    Warning,
    /// Wrong. What it is about does not work, or was not written.
    Fault,
}
