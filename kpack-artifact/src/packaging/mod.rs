//! The packaging configuration: which targets go into which packages. JSON, read strictly.

mod wire;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use kpack_format::names::fold_case;
use kpack_format::unstable::spelling;
use kpack_format::{Delivery, TargetId};
use serde::Deserialize;
use serde_ignored::Path as KeyPath;
use serde_json::value::RawValue;

use super::names;
use kpack_core::{Error, ids};
use kpack_split::input::read_text;
use wire::{Map, Wire, WireGroup, WireGroups};

/// A packaging configuration.
#[derive(Debug, Clone)]
pub struct Configuration {
    /// The shard that provides the host files.
    pub primary_shard: String,
    /// The shards that there must be; if empty, those that are there.
    pub shards: Vec<String>,
    /// The groups of every component that has no override.
    pub groups: Vec<TargetGroup>,
    /// The groups of single components.
    pub overrides: BTreeMap<String, Vec<TargetGroup>>,
    /// Findings that count as errors.
    pub validation: Validation,
    unknown: Vec<String>,
    path: PathBuf,
    text: String,
}

/// Targets that go into one package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetGroup {
    /// The name in the artifact's name: `gfx110X` in `blas_lib_gfx110X`.
    pub name: String,
    /// The name for people; `name` if the configuration has none.
    pub display_name: String,
    /// Its targets.
    pub architectures: Vec<TargetId>,
}

/// Findings that count as errors instead of warnings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Validation {
    /// Device code of one target that two shards have and that differs. Where this is off, what
    /// both have is taken from the primary shard, or else from the first by name, and what only one
    /// has from that one.
    pub error_on_duplicate_device_code: bool,
    /// Host files that are not the same in every shard, binaries by their facts. Where this is off, they are not
    /// compared; device code among them is an error all the same.
    pub verify_generic_artifacts_match: bool,
    /// A target of a group that no shard has.
    pub error_on_missing_architecture: bool,
    /// A target of a shard that no group lists. Where this is off, it is left out.
    pub error_on_unlisted_architecture: bool,
}

impl Default for Validation {
    fn default() -> Self {
        Self {
            error_on_duplicate_device_code: true,
            verify_generic_artifacts_match: true,
            error_on_missing_architecture: false,
            error_on_unlisted_architecture: false,
        }
    }
}

impl Configuration {
    /// Reads the configuration in the file `path`.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Refused`] with line and column for text that is no such JSON, a key
    /// that appears twice, and a value that cannot be.
    pub fn read(path: &Path) -> Result<Self, Error> {
        Self::parse(path, read_text(path)?)
    }

    fn parse(path: &Path, text: String) -> Result<Self, Error> {
        let mut misspelled = Vec::new();
        let mut json = serde_json::Deserializer::from_str(&text);
        let wire = serde_ignored::deserialize(&mut json, |key| misspelled.push(keys(&key)))
            .and_then(|wire: Wire| json.end().map(|()| wire));
        let unknown: Vec<String> = misspelled
            .into_iter()
            .map(|keys| {
                let at: Vec<&str> = keys.iter().map(String::as_str).collect();
                located(place(&text, &at), format_args!("unknown key `{}`", keys.join(".")))
            })
            .collect();
        // A key that is misspelled may be the one that is missing.
        if let (Err(error), Some(reason)) = (&wire, unknown.first()) {
            return Err(Error::rejected(
                ids::BAD_CONFIGURATION,
                path,
                format!("{reason}, and {error}"),
            ));
        }
        let wire = wire.map_err(|error| {
            let place = format!(" at line {} column {}", error.line(), error.column());
            let reason = error.to_string();
            let reason = reason.strip_suffix(&place).unwrap_or(&reason);
            let hint = if is_comment(&text, &error) { "; JSON has no comments" } else { "" };
            let place = (error.line(), error.column());
            Error::rejected(
                ids::BAD_CONFIGURATION,
                path,
                located(place, format_args!("{reason}{hint}")),
            )
        })?;
        let mut configuration = Self {
            primary_shard: wire.primary_shard,
            shards: wire.shards,
            groups: Vec::new(),
            overrides: BTreeMap::new(),
            validation: wire.validation,
            unknown,
            path: path.to_owned(),
            text,
        };
        configuration.check_shards()?;
        configuration.groups = configuration.checked(&[GROUPS], wire.architecture_groups)?;
        for (component, wire) in wire.component_overrides.0 {
            let at = [OVERRIDES, &component, GROUPS];
            let groups = match wire.architecture_groups {
                WireGroups::New(groups) => configuration.checked(&at, groups)?,
                WireGroups::Some(names) => configuration.chosen(&at, &names)?,
            };
            configuration.overrides.insert(component, groups);
        }
        Ok(configuration)
    }

    /// Checks the names of the primary shard and of the listed shards.
    fn check_shards(&self) -> Result<(), Error> {
        if !names::is_file_name(&self.primary_shard) {
            return Err(self.refuse(&["primary_shard"], "expected the name of a shard's directory"));
        }
        for (index, name) in self.shards.iter().enumerate() {
            let at = [SHARDS, &index.to_string()];
            if !names::is_file_name(name) {
                return Err(self.refuse(&at, "expected the name of a shard's directory"));
            }
            if self.shards[..index].contains(name) {
                return Err(self.refuse(&at, format_args!("shard `{name}` is listed twice")));
            }
        }
        if self.shards.is_empty() || self.shards.contains(&self.primary_shard) {
            return Ok(());
        }
        let text = format!("the primary shard `{}` is not listed", self.primary_shard);
        Err(self.refuse(&[SHARDS], text))
    }

    /// Errors about keys that are unknown. They may be for other programs, or misspelled.
    pub fn unknown_keys(&self) -> impl Iterator<Item = Error> {
        let unknown = self.unknown.iter();
        unknown.map(|reason| Error::rejected(ids::BAD_CONFIGURATION, &self.path, reason))
    }

    /// The groups of a component.
    pub fn groups_of(&self, component: &str) -> &[TargetGroup] {
        self.overrides.get(component).unwrap_or(&self.groups)
    }

    /// An error about the value at `keys`, with its line and column.
    pub(super) fn refuse(&self, keys: &[&str], reason: impl fmt::Display) -> Error {
        Error::rejected(
            ids::BAD_CONFIGURATION,
            &self.path,
            located(place(&self.text, keys), reason),
        )
    }

    fn checked(&self, at: &[&str], wire: Map<WireGroup>) -> Result<Vec<TargetGroup>, Error> {
        if wire.0.is_empty() {
            return Err(self.refuse(at, "expected at least one group"));
        }
        let mut groups: Vec<TargetGroup> = Vec::new();
        for (name, group) in wire.0 {
            let at = [at, &[&name]].concat();
            let generic = name.rsplit('_').next() == Some(names::GENERIC);
            if !names::is_file_name(&name) || generic {
                let expected = "letters, digits, `.`, `_`, `+`, `:` and `-`, and not `generic` at \
                                its end";
                let text = format!(
                    "the group's name `{name}` becomes a part of file names; expected {expected}"
                );
                return Err(self.refuse(&at, text));
            }
            let same = |group: &&TargetGroup| fold_case(&group.name) == fold_case(&name);
            if let Some(other) = groups.iter().find(same) {
                let text = format!(
                    "groups `{}` and `{name}` differ only by case, so their files have one name on Windows; rename one",
                    other.name
                );
                return Err(self.refuse(&at, text));
            }
            let at = [&at[..], &["architectures"]].concat();
            if group.architectures.is_empty() {
                return Err(self.refuse(&at, "expected at least one target"));
            }
            let mut architectures = Vec::new();
            for (index, text) in group.architectures.iter().enumerate() {
                let index = index.to_string();
                let at = [&at[..], &[&index]].concat();
                let target = TargetId::family(text)
                    .map_or_else(|| spelling::read_target(text), Ok)
                    .map_err(|error| self.refuse(&at, error))?;
                if architectures.contains(&target) {
                    let text = format!("{target} is in group `{name}` already");
                    return Err(self.refuse(&at, text));
                }
                architectures.push(target);
            }
            if let Some(named) = misnamed(&name, &architectures) {
                let text = format!(
                    "group `{name}` has the name of a target that it does not contain; add {named}, or rename the group"
                );
                return Err(self.refuse(&at, text));
            }
            groups.push(TargetGroup {
                display_name: group.display_name.unwrap_or_else(|| name.clone()),
                name,
                architectures,
            });
        }
        Ok(groups)
    }

    fn chosen(&self, at: &[&str], names: &[String]) -> Result<Vec<TargetGroup>, Error> {
        if names.is_empty() {
            return Err(self.refuse(at, "expected at least one group"));
        }
        let mut groups: Vec<TargetGroup> = Vec::new();
        for (index, name) in names.iter().enumerate() {
            let index = index.to_string();
            let at = [at, &[&index]].concat();
            let Some(group) = self.groups.iter().find(|group| group.name == *name) else {
                let known: Vec<&str> = self.groups.iter().map(|g| g.name.as_str()).collect();
                let text = format!("there is no group `{name}`, only {}", known.join(", "));
                return Err(self.refuse(&at, text));
            };
            if groups.contains(group) {
                return Err(self.refuse(&at, format!("group `{name}` is named twice")));
            }
            groups.push(group.clone());
        }
        Ok(groups)
    }
}

/// The target that a group of other targets is named after.
pub fn misnamed(name: &str, targets: &[TargetId]) -> Option<TargetId> {
    let named = TargetId::family(name).or_else(|| spelling::read_target(name).ok())?;
    let is_in = |target: &TargetId| named.needs(target, Delivery::Archive) || named.covers(target);
    (!targets.iter().any(is_in)).then_some(named)
}

/// The keys that lead to a value.
fn keys(path: &KeyPath<'_>) -> Vec<String> {
    let (parent, key) = match path {
        KeyPath::Root => return Vec::new(),
        KeyPath::Map { parent, key } => (parent, Some(key.clone())),
        KeyPath::Seq { parent, index } => (parent, Some(index.to_string())),
        KeyPath::Some { parent }
        | KeyPath::NewtypeStruct { parent }
        | KeyPath::NewtypeVariant { parent } => (parent, None),
    };
    let mut keys = keys(parent);
    keys.extend(key);
    keys
}

const SHARDS: &str = "shards";
const GROUPS: &str = "architecture_groups";
const OVERRIDES: &str = "component_overrides";

/// Whether what JSON does not expect begins a comment.
fn is_comment(text: &str, error: &serde_json::Error) -> bool {
    let line = text.lines().nth(error.line().saturating_sub(1));
    let from = line.and_then(|line| line.get(error.column().saturating_sub(1)..));
    error.is_syntax() && from.is_some_and(|from| from.starts_with(['/', '#']))
}

fn located((line, column): (usize, usize), reason: impl fmt::Display) -> String {
    format!("line {line}, column {column}: {reason}")
}

/// Line and column, from 1, of the value that `keys` (positions, in lists) lead to in JSON text.
fn place(text: &str, keys: &[&str]) -> (usize, usize) {
    let mut value = text;
    for key in keys {
        let within = if value.trim_start().starts_with('[') {
            serde_json::from_str::<Vec<&RawValue>>(value)
                .ok()
                .zip(key.parse::<usize>().ok())
                .and_then(|(items, index)| items.get(index).copied())
        } else {
            serde_json::from_str::<BTreeMap<String, &RawValue>>(value)
                .ok()
                .and_then(|entries| entries.get(*key).copied())
        };
        match within {
            Some(within) => value = within.get(),
            None => break,
        }
    }
    // `value` is a part of `text`.
    let offset = value.as_ptr().addr().saturating_sub(text.as_ptr().addr());
    let before = &text[..offset.min(text.len())];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const WHOLE: &str = r#"{
  "primary_shard": "gfx110X-all",
  "architecture_groups": {
    "gfx110X": {"display_name": "Radeon RX 7000", "architectures": ["gfx1100", "gfx1101"]},
    "instinct": {"architectures": ["gfx90a:xnack+", "gfx942"]}
  },
  "component_overrides": {
    "sparselt_lib": {"architecture_groups": ["instinct"]},
    "fft_lib": {"architecture_groups": {"all": {"architectures": ["gfx942", "gfx1100"]}}}
  },
  "validation": {"error_on_missing_architecture": true}
}"#;

    fn parse(text: &str) -> Result<Configuration, String> {
        Configuration::parse(Path::new("packaging.json"), text.to_owned())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn groups_for_all_components_and_for_one() {
        let configuration = parse(WHOLE).unwrap();
        let names = |component: &str| {
            let groups = configuration.groups_of(component).iter();
            groups.map(|group| group.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names("blas_lib"), ["gfx110X", "instinct"]);
        assert_eq!(names("sparselt_lib"), ["instinct"]);
        assert_eq!(names("fft_lib"), ["all"]);
        assert_eq!(configuration.groups[0].display_name, "Radeon RX 7000");
        assert_eq!(configuration.groups[1].display_name, "instinct");
        assert!(configuration.validation.error_on_missing_architecture);
        assert!(configuration.validation.error_on_duplicate_device_code);
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_text() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), format!("\u{feff}{WHOLE}")).unwrap();
        let configuration = Configuration::read(file.path()).unwrap();
        assert_eq!(configuration.groups.len(), 2);
        let wrong = format!("\u{feff}{}", WHOLE.replacen("gfx1101", "gfx110X", 1));
        fs::write(file.path(), wrong).unwrap();
        let error = Configuration::read(file.path()).unwrap_err().to_string();
        assert!(error.contains("line 4, column 80: `gfx110X`"), "{error}");
    }

    #[test]
    fn unknown_keys_are_told_wherever_they_are() {
        for (from, to, expected) in [
            ("{\n  \"pri", "{\"note\": [1],\n  \"pri", "line 1, column 10: unknown key `note`"),
            (
                "\"validation\": {",
                "\"validation\": {\"strict\": 1, ",
                "line 11, column 28: unknown key `validation.strict`",
            ),
            (
                "{\"display_name\"",
                "{\"priority\": 2, \"display_name\"",
                "line 4, column 29: unknown key `architecture_groups.gfx110X.priority`",
            ),
            (
                "{\"all\": {",
                "{\"all\": {\"x\": {}, ",
                "line 9, column 54: unknown key \
                 `component_overrides.fft_lib.architecture_groups.all.x`",
            ),
        ] {
            assert!(WHOLE.contains(from), "{from}");
            let configuration = parse(&WHOLE.replacen(from, to, 1)).unwrap();
            let said: Vec<String> = configuration.unknown_keys().map(|e| e.to_string()).collect();
            assert_eq!(said, [format!("packaging.json: {expected}")]);
            assert_eq!(configuration.groups.len(), 2);
        }
    }

    #[test]
    fn a_target_may_be_in_two_groups() {
        let configuration = parse(&WHOLE.replacen("\"gfx1101\"", "\"gfx942\"", 1)).unwrap();
        let both = configuration.groups.iter();
        assert!(
            both.map(|group| &group.architectures)
                .all(|targets| { targets.contains(&"gfx942".parse().unwrap()) })
        );
    }

    #[test]
    fn what_is_wrong_is_said_with_line_and_column() {
        let mut wrong = Vec::new();
        for (from, to, expected) in [
            ("primary_shard", "primary_shart", "line 2, column 20: unknown key `primary_shart`"),
            ("true}", "1}", "line 11, column 51: invalid type: integer `1`, expected a boolean"),
            (
                "\"gfx110X-all\"",
                "\"a/b\"",
                "line 2, column 20: expected the name of a shard's directory",
            ),
            ("\"gfx1101\"", "\"gfx110X\"", "line 4, column 80: `gfx110X` is not a GPU target"),
            (
                "\"gfx1101\"",
                "\"gfx1100\"",
                "line 4, column 80: gfx1100 is in group `gfx110X` already",
            ),
            ("[\"gfx1100\", \"gfx1101\"]", "[]", "line 4, column 68: expected at least one target"),
            ("\"instinct\": {", "\"gfx110X\": {", "line 5, column 13: key `gfx110X` appears twice"),
            (
                "\"instinct\": {",
                "\"GFX110x\": {",
                "line 5, column 16: groups `gfx110X` and `GFX110x` differ only by case",
            ),
            ("\"gfx110X\": {", "\"generic\": {", "line 4, column 16: the group's name `generic`"),
            (
                "\"gfx110X\": {",
                "\"lib_generic\": {",
                "line 4, column 20: the group's name `lib_generic`",
            ),
            ("[\"instinct\"]", "[]", "line 8, column 45: expected at least one group"),
            (
                "  \"validation\"",
                "  // strict\n  \"validation\"",
                "line 11, column 3: key must be a string; JSON has no comments",
            ),
            (
                "[\"instinct\"]",
                "[\"radeon\"]",
                "line 8, column 46: there is no group `radeon`, only gfx110X, instinct",
            ),
            (
                "[\"instinct\"]",
                "7",
                "line 8, column 45: invalid type: integer `7`, expected groups, or a list of group names",
            ),
            ("}\n}", "}\n", "line 12, column 0: EOF while parsing"),
        ] {
            assert!(WHOLE.contains(from), "{from}");
            let text = WHOLE.replacen(from, to, 1);
            let error = parse(&text).unwrap_err();
            let expected = format!("packaging.json: {expected}");
            if !error.starts_with(&expected) {
                wrong.push(format!("{error}\n{expected}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
