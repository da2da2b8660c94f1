//! Names of modules, which are identifiers in the generated code.

use std::path::{Path, PathBuf};

use kpack_core::{Error, escaped, shown};

use crate::hip::options::DeviceFile;

/// Words that no module of Rust can be named (The Rust Reference, "Keywords").
const KEYWORDS: [&str; 53] = [
    "Self", "_", "abstract", "as", "async", "await", "become", "box", "break", "const", "continue",
    "crate", "do", "dyn", "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if",
    "impl", "in", "let", "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub",
    "ref", "return", "self", "static", "struct", "super", "trait", "true", "try", "type", "typeof",
    "unsafe", "unsized", "use", "virtual", "where", "while", "yield",
];

/// The list of all modules in the generated code.
const ALL: &str = "ALL";

/// The name of a module of device code: that of its source, without the extension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ModuleName(String);

/// A source, and the name of its module.
pub(super) struct Source<'a> {
    pub(super) name: ModuleName,
    pub(super) path: &'a Path,
}

impl ModuleName {
    pub(super) fn new(name: &str) -> Result<Self, Error> {
        let name = Self(name.to_owned());
        match name.problem() {
            None => Ok(name),
            Some(problem) => Err(Error::usage(format!(
                "module `{}` {problem}; choose another name",
                escaped(name.as_str())
            ))),
        }
    }

    /// The module of a source.
    fn of(source: &Path) -> Result<Self, Error> {
        let stem = source.file_stem().unwrap_or_default();
        let name = Self(stem.to_string_lossy().into_owned());
        match name.problem() {
            None => Ok(name),
            Some(problem) => Err(Error::usage(format!(
                "source {}: `{}` {problem}; rename the file",
                shown(source),
                escaped(name.as_str())
            ))),
        }
    }

    fn problem(&self) -> Option<String> {
        let identifier = self.identifier();
        if !is_identifier(&identifier) || identifier == "_" {
            return Some(
                "is no identifier in Rust (expected letters of ASCII, digits and `_`, and no digit \
                 at the start)"
                    .to_owned(),
            );
        }
        (identifier == ALL).then(|| format!("becomes `{ALL}`, which lists all modules"))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of the static in the generated code.
    pub(super) fn identifier(&self) -> String {
        self.0.to_ascii_uppercase()
    }
}

/// Checks the name of the module of Rust that is generated.
pub(super) fn check_module_of_rust(name: &str) -> Result<(), Error> {
    // The generated code calls a macro of the crate `kpack`.
    if is_identifier(name) && !KEYWORDS.contains(&name) && name != "kpack" {
        return Ok(());
    }
    Err(Error::usage(format!(
        "compile_modules(\"{}\"): the name becomes a module of Rust (expected an identifier: letters \
         of ASCII, digits and `_`, no digit at the start, no keyword, and not `kpack`); choose another name",
        escaped(name)
    )))
}

fn is_identifier(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The sources with their names, which differ.
pub(super) fn of_sources(files: &[PathBuf]) -> Result<Vec<Source<'_>>, Error> {
    let mut sources: Vec<Source<'_>> = Vec::new();
    for path in files {
        let name = ModuleName::of(path)?;
        let identifier = name.identifier();
        if let Some(other) = sources.iter().find(|other| other.name.identifier() == identifier) {
            return Err(Error::usage(format!(
                "sources {} and {} would both become the module `{identifier}`; rename one of them",
                shown(other.path),
                shown(path)
            )));
        }
        sources.push(Source { name, path });
    }
    Ok(sources)
}

/// The names of all modules, each once and sorted: a build script may list a directory, in any order.
pub(super) fn all(
    sources: &[Source<'_>],
    device_files: &[DeviceFile],
) -> Result<Vec<ModuleName>, Error> {
    let mut names: Vec<ModuleName> = sources.iter().map(|source| source.name.clone()).collect();
    for file in device_files {
        let name = ModuleName::new(&file.module)?;
        let identifier = name.identifier();
        match names.iter().find(|known| known.identifier() == identifier) {
            Some(known) if *known == name => {}
            Some(known) => {
                return Err(Error::usage(format!(
                    "modules `{}` and `{}` would both become `{identifier}`; rename one of them",
                    known.as_str(),
                    name.as_str()
                )));
            }
            None => names.push(name),
        }
    }
    names.sort_by_key(ModuleName::identifier);
    Ok(names)
}
