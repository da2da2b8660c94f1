//! Commands that mend what the doctor found, as data. They are quoted for a shell in one place, here.

use std::path::Path;

use serde::Serialize;

use kpack_core::{Finding, Severity};
use kpack_format::TargetId;

/// A command for the user to run. The doctor runs nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Remedy {
    /// The program.
    pub program: String,
    /// Its arguments, unquoted.
    pub arguments: Vec<String>,
    /// The same as a line for a shell.
    pub command: String,
    /// What to know before running it, such as that only the examined tree names the index. A command with a
    /// caution is not printed by `--fix`.
    pub caution: Option<String>,
}

impl Remedy {
    /// The command, unless a word of it cannot be in one line.
    pub(super) fn new(
        program: &str,
        arguments: impl IntoIterator<Item = impl Into<String>>,
    ) -> Option<Self> {
        let arguments = Vec::from_iter(arguments.into_iter().map(Into::into));
        let words = || std::iter::once(program).chain(arguments.iter().map(String::as_str));
        // What is shown must be what is run, so nothing that a terminal would hide may be in it.
        if words().any(|word| kpack_core::escaped(word).to_string() != word) {
            return None;
        }
        let command = shlex::try_join(words()).ok()?;
        Some(Self { program: program.to_owned(), arguments, command, caution: None })
    }

    /// The same, with something to know first.
    pub(super) fn with_caution(self, caution: Option<String>) -> Self {
        Self { caution, ..self }
    }
}

/// A finding, and what mends it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Diagnosis {
    /// What is wrong.
    #[serde(flatten)]
    pub finding: Finding,
    /// The command that mends it, if there is one.
    pub remedy: Option<Remedy>,
    /// The GPUs that get no code because of it; if empty, it is not about some of them.
    #[serde(skip)]
    pub gpus: Vec<TargetId>,
}

impl From<Finding> for Diagnosis {
    fn from(finding: Finding) -> Self {
        Self { finding, remedy: None, gpus: Vec::new() }
    }
}

impl Diagnosis {
    /// The same, with a command.
    pub(super) fn mended_by(self, remedy: Option<Remedy>) -> Self {
        Self { remedy, ..self }
    }

    /// The same, about these GPUs.
    pub(super) fn about(self, gpus: impl IntoIterator<Item = TargetId>) -> Self {
        Self { gpus: gpus.into_iter().collect(), ..self }
    }

    /// Whether something is wrong, if only for some GPUs.
    pub(super) fn is_wrong(&self) -> bool {
        self.finding.severity >= Severity::Warning
    }
}

/// A path as a word of a command.
pub(super) fn word(path: &Path) -> Option<String> {
    path.to_str().map(str::to_owned)
}

/// A URL without what can be a secret: its user and password, and what comes after its path.
pub(super) fn masked(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = match authority.rfind('@') {
        Some(at) => format!("****{}", &authority[at..]),
        None => authority.to_owned(),
    };
    let path = match path.find(['?', '#']) {
        Some(at) if at + 1 < path.len() => format!("{}****", &path[..=at]),
        _ => path.to_owned(),
    };
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_and_those_that_a_terminal_hides_are_refused() {
        let command = |word: &str| Remedy::new("pip", ["install", word]).map(|found| found.command);
        assert_eq!(command("torch").as_deref(), Some("pip install torch"));
        assert_eq!(command("a b;c").as_deref(), Some("pip install 'a b;c'"));
        assert_eq!(command("$(x)").as_deref(), Some("pip install '$(x)'"));
        for word in ["a\nb", "a\u{202e}b", "a\u{1b}[0m", "a\0b"] {
            assert_eq!(command(word), None, "{word:?}");
        }
    }

    #[test]
    fn passwords_are_masked() {
        for (url, expected) in [
            ("https://index.example/simple", "https://index.example/simple"),
            ("https://user:secret@index.example/a@b", "https://****@index.example/a@b"),
            ("https://a@b:secret@index.example", "https://****@index.example"),
            ("https://token@index.example?x", "https://****@index.example?****"),
            ("https://index.example/a?token=s@c", "https://index.example/a?****"),
            ("https://index.example/a#s", "https://index.example/a#****"),
            ("https://index.example/a?", "https://index.example/a?"),
            ("/directory/of@wheels", "/directory/of@wheels"),
        ] {
            assert_eq!(masked(url), expected);
        }
    }
}
