//! `METADATA` and `WHEEL`: fields, each on its own line, and in METADATA a description. They are
//! edited as bytes, so that all that does not change stays as it is.

use std::borrow::Cow;

/// Fields and description.
#[derive(Debug, Clone, Default)]
pub(super) struct Fields {
    bytes: Vec<u8>,
    /// Where the fields end: at an empty line, or at the end.
    end: usize,
    fields: Vec<Field>,
}

/// A field; its value may go on over several lines.
#[derive(Debug, Clone)]
struct Field {
    name: String,
    value: String,
    start: usize,
    end: usize,
}

/// The fields that a device wheel has in common with its host, by their beginnings.
const COMMON: &[&str] = &[
    "Author",
    "Classifier",
    "Description-Content-Type",
    "Home-page",
    "License",
    "Maintainer",
    "Metadata-Version",
    "Project-URL",
    "Requires-Python",
];

/// The longest description, in bytes, that device wheels repeat: it is in each of dozens.
const LONG_DESCRIPTION: usize = 1000;

/// The first version of metadata with extras.
const WITH_EXTRAS: &str = "2.1";

/// A text for a message, up to where a URL with a password may be in it, as in `NAME @ https://USER:PASSWORD@HOST`.
pub(super) fn without_url(text: &str) -> Cow<'_, str> {
    match text.find('@').into_iter().chain(text.find("//")).min() {
        Some(at) => format!("{}…", &text[..at]).into(),
        None => text.into(),
    }
}

impl Fields {
    /// Reads them.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(super) fn parse(bytes: Vec<u8>) -> Result<Self, String> {
        let mut fields: Vec<Field> = Vec::new();
        let mut start = 0;
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let end = start + line.len();
            let shown = || without_url(String::from_utf8_lossy(line).trim_end()).into_owned();
            let text = std::str::from_utf8(line)
                .map_err(|_| format!("`{}` is not UTF-8", shown()))?
                .trim_end_matches(['\r', '\n']);
            if text.is_empty() {
                break;
            }
            match (fields.last_mut(), text.split_once(':')) {
                (Some(field), _) if text.starts_with([' ', '\t']) => {
                    field.value.push('\n');
                    field.value.push_str(text);
                    field.end = end;
                }
                (_, Some((name, value))) if !name.is_empty() && !name.contains([' ', '\t']) => {
                    fields.push(Field {
                        name: name.to_owned(),
                        value: value.trim().to_owned(),
                        start,
                        end,
                    });
                }
                _ => {
                    let text = without_url(text);
                    return Err(format!(
                        "`{text}` is not a valid header field (expected NAME: VALUE)"
                    ));
                }
            }
            start = end;
        }
        Ok(Self { bytes, end: start, fields })
    }

    /// The bytes that it was read from.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The values of a field.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let fields = self.fields.iter();
        let own = fields.filter(move |field| field.name.eq_ignore_ascii_case(name));
        own.map(|field| field.value.as_str())
    }

    /// The value of a field.
    pub(super) fn get<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.all(name).next()
    }

    /// With more fields, after the others.
    ///
    /// # Errors
    /// What is wrong with the result.
    pub(super) fn with(&self, more: &[(&str, String)]) -> Result<Self, String> {
        self.edited(&|_| true, more, &self.bytes[self.end..])
    }

    /// The metadata of another project: what it has in common with this one, `own` fields, and
    /// `description` if this one's is long.
    ///
    /// # Errors
    /// What is wrong with the result.
    pub(super) fn of_device(
        &self,
        own: &[(&str, String)],
        description: &str,
    ) -> Result<Self, String> {
        let is_common = |field: &Field| {
            let is_first = |common: &&str| {
                let name = field.name.get(..common.len());
                name.is_some_and(|name| name.eq_ignore_ascii_case(common))
            };
            COMMON.iter().any(is_first)
        };
        let own_body = &self.bytes[self.end..];
        let short = format!("\n{description}\n");
        // Without it, package indexes take the text for reStructuredText, and `twine check --strict` objects.
        const TYPE: &str = "Description-Content-Type";
        let mut own = own.to_vec();
        if self.get(TYPE).is_none() {
            own.push((TYPE, "text/plain".to_owned()));
        }
        let is_long = own_body.trim_ascii().is_empty() || own_body.len() > LONG_DESCRIPTION;
        let body = if is_long { short.as_bytes() } else { own_body };
        self.edited(&is_common, &own, body)
    }

    /// With the fields that `keeps` accepts, `more` after them, and the description `body`.
    fn edited(
        &self,
        keeps: &dyn Fn(&Field) -> bool,
        more: &[(&str, String)],
        body: &[u8],
    ) -> Result<Self, String> {
        let newline = self.newline();
        let mut bytes = Vec::new();
        for field in self.fields.iter().filter(|field| keeps(field)) {
            let is_older = ["1.", "2.0"].iter().any(|old| field.value.starts_with(old));
            if field.name.eq_ignore_ascii_case("Metadata-Version") && is_older {
                bytes.extend(format!("{}: {WITH_EXTRAS}", field.name).as_bytes());
            } else {
                bytes.extend(self.bytes[field.start..field.end].trim_ascii_end());
            }
            bytes.extend(newline.as_bytes());
        }
        for (name, value) in more {
            bytes.extend(format!("{name}: {value}{newline}").as_bytes());
        }
        bytes.extend(body);
        let edited = Self::parse(bytes)?;
        let has = |(name, value): &&(&str, String)| edited.all(name).any(|found| found == value);
        match more.iter().find(|field| !has(field)) {
            Some((name, value)) => Err(format!("`{name}: {value}` cannot be added to it")),
            None => Ok(edited),
        }
    }

    fn newline(&self) -> &'static str {
        let first = self.bytes.split_inclusive(|byte| *byte == b'\n').next();
        if first.is_some_and(|line| line.ends_with(b"\r\n")) { "\r\n" } else { "\n" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(bytes: &str, more: &[(&str, &str)]) -> String {
        let fields = Fields::parse(bytes.into()).unwrap();
        let more: Vec<(&str, String)> = more.iter().map(|(n, v)| (*n, (*v).to_owned())).collect();
        String::from_utf8(fields.with(&more).unwrap().bytes).unwrap()
    }

    #[test]
    fn fields_are_added_before_the_description() {
        let more = [("Provides-Extra", "x")];
        for (before, after) in [
            ("Name: a\n\nbody: b\n", "Name: a\nProvides-Extra: x\n\nbody: b\n"),
            ("Name: a\n", "Name: a\nProvides-Extra: x\n"),
            ("Name: a", "Name: a\nProvides-Extra: x\n"),
            (
                "Name: a\r\nSummary: b\r\n  c\r\n\r\nd",
                "Name: a\r\nSummary: b\r\n  c\r\nProvides-Extra: x\r\n\r\nd",
            ),
            (
                "Metadata-Version: 1.2\nName: a\n",
                "Metadata-Version: 2.1\nName: a\nProvides-Extra: x\n",
            ),
        ] {
            assert_eq!(with(before, &more), after);
        }
    }

    #[test]
    fn messages_have_no_urls() {
        for (line, shown) in [
            ("a @ https://user:secret@host/b", "`a …` is not"),
            ("a https://user:secret@host/b", "`a https:…` is not"),
            ("a b", "`a b` is not"),
        ] {
            let error = Fields::parse(format!("{line}\n").replace(':', "").into()).unwrap_err();
            assert!(error.starts_with(&shown.replace(':', "")), "{line}: {error}");
        }
    }

    #[test]
    fn device_wheels_keep_licences_and_a_short_description() {
        let host = "Metadata-Version: 2.4\nName: a\nVersion: 1\nRequires-Dist: b\nLicense-File: L\n\nText\n";
        let device = |host: &str| {
            let host = Fields::parse(host.into()).unwrap();
            let device = host.of_device(&[("Name", "a-device".to_owned())], "See a.");
            String::from_utf8(device.unwrap().bytes).unwrap()
        };
        let fields = "Metadata-Version: 2.4\nLicense-File: L\nName: a-device\n";
        let kind = "Description-Content-Type: text/plain\n";
        assert_eq!(device(host), format!("{fields}{kind}\nText\n"));
        let long = format!("{host}{}", "more\n".repeat(1000));
        assert_eq!(device(&long), format!("{fields}{kind}\nSee a.\n"));
        let markdown = "Description-Content-Type: text/markdown\n";
        let typed = long.replacen("\n\n", &format!("\n{markdown}\n"), 1);
        assert_eq!(device(&typed).matches("Description-Content-Type").count(), 1);
    }
}
