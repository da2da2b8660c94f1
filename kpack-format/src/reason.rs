//! Why something is refused: the text, and the facts in it as data.

use std::fmt::{self, Display};

/// What a text is about and says, as data.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Details {
    /// The kernel's name.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub kernel: Option<String>,
    /// The target ID.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub target: Option<String>,
    /// The member of an archive, wheel or static library.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub member: Option<String>,
    /// The offset in the file, in bytes.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub offset: Option<u64>,
    /// What was expected.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub expected: Option<String>,
    /// What was found instead.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub found: Option<String>,
}

/// Why something is refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reason {
    /// For people.
    pub text: String,
    /// What the text says, as data.
    pub details: Box<Details>,
}

impl Details {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Reason {
    /// A text, and what it says.
    pub fn new(text: String, details: Box<Details>) -> Self {
        Self { text, details }
    }

    /// "WHAT (expected E, found F)"; without `what` "expected E, found F".
    pub fn mismatch(what: &str, expected: impl Display, found: impl Display) -> Self {
        let text = format!("expected {expected}, found {found}");
        let text = if what.is_empty() { text } else { format!("{what} ({text})") };
        Self::from(text).differs(expected, found)
    }

    /// The same, with what was expected and found, which its text has in other words.
    pub fn differs(mut self, expected: impl Display, found: impl Display) -> Self {
        self.details.expected = Some(expected.to_string());
        self.details.found = Some(found.to_string());
        self
    }

    /// The same about `member`, with which the text begins.
    pub fn in_member(mut self, member: impl Display) -> Self {
        self.details.member = Some(member.to_string());
        self.after(format_args!("member `{member}`: "))
    }

    /// The same, with more text before it.
    pub fn after(mut self, text: impl Display) -> Self {
        self.text.insert_str(0, &text.to_string());
        self
    }

    /// The same, with more text.
    pub fn then(mut self, more: impl AsRef<str>) -> Self {
        self.text += more.as_ref();
        self
    }

    /// The same, about a place in the file.
    pub fn at(mut self, offset: u64) -> Self {
        self.details.offset = Some(offset);
        self
    }

    /// The same, about a kernel.
    pub fn kernel(mut self, name: impl Display) -> Self {
        self.details.kernel = Some(name.to_string());
        self
    }

    /// The same, about a target.
    pub fn target(mut self, target: impl Display) -> Self {
        self.details.target = Some(target.to_string());
        self
    }
}

impl Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<String> for Reason {
    fn from(text: String) -> Self {
        Self { text, ..Self::default() }
    }
}

impl From<&str> for Reason {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<&String> for Reason {
    fn from(text: &String) -> Self {
        text.clone().into()
    }
}
