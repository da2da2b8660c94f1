//! Commands that mend what the doctor found, as data. They are quoted for a shell in one place, here.

use std::path::Path;

use serde::Serialize;
use url::Url;

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
    pub(crate) fn new(
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
    pub(crate) fn with_caution(self, caution: Option<String>) -> Self {
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
    /// Whether it keeps kpack from telling whether code loads.
    #[serde(skip)]
    pub leaves_open: bool,
}

impl From<Finding> for Diagnosis {
    fn from(finding: Finding) -> Self {
        Self { finding, remedy: None, gpus: Vec::new(), leaves_open: false }
    }
}

impl Diagnosis {
    /// The same, with a command.
    pub(crate) fn mended_by(self, remedy: Option<Remedy>) -> Self {
        Self { remedy, ..self }
    }

    /// The same, about these GPUs.
    pub(crate) fn about(self, gpus: impl IntoIterator<Item = TargetId>) -> Self {
        Self { gpus: gpus.into_iter().collect(), ..self }
    }

    /// The same, which keeps kpack from telling whether code loads.
    pub(crate) fn leaving_open(self) -> Self {
        Self { leaves_open: true, ..self }
    }

    /// Whether something is wrong, if only for some GPUs.
    pub(crate) fn is_wrong(&self) -> bool {
        self.finding.severity >= Severity::Warning
    }
}

/// A path as a word of a command.
pub(crate) fn word(path: &Path) -> Option<String> {
    path.to_str().map(str::to_owned)
}

/// What stands for something that is not printed.
const MASK: &str = "****";

/// A URL or path without what can be a secret: the user and password of a URL, and what comes after its path. Of what may be
/// a URL that others read differently, nothing is printed: a browser, pip and uv disagree about where its password is.
pub(crate) fn masked(text: &str) -> String {
    if is_path(text) {
        return text.to_owned();
    }
    let Some(mut url) = parsed(text) else {
        return format!("{MASK} (kpack cannot read this URL, so it does not print it)");
    };
    let is_set = |part: Option<&str>| part.is_some_and(|part| !part.is_empty());
    let has_user = !url.username().is_empty() || url.password().is_some();
    // What looks like another URL, or like parameters, in the path.
    let path = url.path().to_ascii_lowercase();
    let hidden_at = ["//", ";", "%3f"].iter().filter_map(|start| path.find(start)).min();
    if !has_user && hidden_at.is_none() && !is_set(url.query()) && !is_set(url.fragment()) {
        return text.to_owned();
    }
    if has_user && (url.set_username(MASK).is_err() || url.set_password(None).is_err()) {
        return MASK.to_owned();
    }
    if let Some(at) = hidden_at {
        let shown = format!("{}/{MASK}", url.path()[..at].trim_end_matches('/'));
        url.set_path(&shown);
    }
    if is_set(url.query()) {
        url.set_query(Some(MASK));
    }
    if is_set(url.fragment()) {
        url.set_fragment(Some(MASK));
    }
    url.into()
}

/// Whether a URL or path has nothing to mask.
pub(crate) fn is_shown(text: &str) -> bool {
    masked(text) == text
}

/// Whether a text is a path, and no URL that lacks its scheme.
fn is_path(text: &str) -> bool {
    let is_rooted = ["/", "./", "../"].iter().any(|start| text.starts_with(start));
    // On Windows, a path has a drive, or a server and a share.
    let rest = match text.as_bytes() {
        [drive, b':', ..] if drive.is_ascii_alphabetic() => &text[2..],
        _ => text,
    };
    if rest.len() < text.len() && rest.starts_with(['\\', '/']) || text.starts_with(r"\\") {
        return !rest.contains([':', '@', '?', '#']) && !rest.starts_with("//");
    }
    let is_local = is_rooted || !text.is_empty() && !text.contains([':', '@']);
    is_local && !text.starts_with("//") && !text.contains(['\\', '?', '#'])
}

/// A URL, if every program finds the same parts in it.
fn parsed(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    let (scheme, rest) = text.split_once("://")?;
    if !scheme.eq_ignore_ascii_case(url.scheme()) {
        return None;
    }
    let is_file = url.scheme() == "file" && rest.starts_with('/') && !rest.starts_with("//");
    let has_host = url.has_host() && !rest.starts_with('/');
    // The URL standard ignores or replaces these, others keep them.
    let is_plain = !text.contains(|c: char| c.is_whitespace() || c.is_control() || c == '\\');
    (is_plain && (is_file || has_host)).then_some(url)
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
            ("https://a@b:secret@index.example", "https://****@index.example/"),
            ("https://user:secret@bücher.example/a", "https://****@xn--bcher-kva.example/a"),
            ("https://:secret@index.example/a", "https://****@index.example/a"),
            ("https://token@index.example?x", "https://****@index.example/?****"),
            ("git+ssh://git:secret@index.example/a@v1", "git+ssh://****@index.example/a@v1"),
            ("HTTPS://Index.example/a", "HTTPS://Index.example/a"),
            ("file:///a/b@c", "file:///a/b@c"),
            ("../wheels", "../wheels"),
            ("wheels", "wheels"),
            ("https://index.example/a?token=s@c", "https://index.example/a?****"),
            ("https://index.example/a#s", "https://index.example/a#****"),
            ("https://index.example/a?", "https://index.example/a?"),
            ("/directory/of@wheels", "/directory/of@wheels"),
            (r"C:\wheels", r"C:\wheels"),
            ("C:/wheels", "C:/wheels"),
            (r"\\server\share", r"\\server\share"),
            ("https://h/simple/https://u:s3cr3t@h2/", "https://h/simple/https:/****"),
            ("https://h/a//u:s3cr3t@h/", "https://h/a/****"),
            ("https://h//u:s3cr3t@h/", "https://h/****"),
            ("https://h/s;token=x", "https://h/s/****"),
            ("https://h/%3Ftoken=x", "https://h/****"),
            ("https://h/a%3ftoken=x?b", "https://h/a/****?****"),
        ] {
            assert_eq!(masked(url), expected);
        }
        // Programs read these in different ways, or nobody can read them.
        for url in [
            "C://u:s3cr3t@h/",
            r"C:\\u:s3cr3t@h",
            r"\\u:s3cr3t@h\a",
            "ab:/u@h",
            "//user:s3cr3t@host.invalid/simple",
            "https:\\\\user:s3cr3t@host.invalid/simple",
            "https:/\\user:s3cr3t@host.invalid/simple",
            "https:user:s3cr3t@host.invalid/simple",
            "https:///user:s3cr3t@host.invalid/simple",
            "user:s3cr3t@host.invalid/simple",
            "host.invalid/simple?token=s3cr3t",
            "https//user:s3cr3t@host.invalid/simple",
            "https://host.invalid\\@user:s3cr3t@host.invalid/simple",
            "https://user:s3cr3t@host.invalid:port/simple",
            "https://user:s3cr3t%40host.invalid/simple",
            "https://user:s3cr3t\u{ff20}host.invalid/simple",
            "git+https://user:s3cr3t@host.invalid/simple",
            "file://user:s3cr3t@host.invalid/a/x.whl",
            "file:////user:s3cr3t@host.invalid/a/x.whl",
            " https://user:s3cr3t@host.invalid/simple",
            "https://host.invalid/simple https://user:s3cr3t@host.invalid/simple",
        ] {
            let shown = masked(url);
            assert!(shown.contains(MASK) && !shown.contains("s3cr3t"), "{url:?}: {shown}");
        }
    }
}
