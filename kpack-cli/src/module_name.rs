//! The default name of a binary's module, the first part of its archives' names.

use std::path::Path;

use kpack_core::publish::name_part;

/// The name of a library without `lib` and what follows its name, or that of a program.
pub(crate) fn default_module(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let is_library = |stem: &&str| {
        let suffix = &name[stem.len()..];
        suffix == ".so" || suffix.starts_with(".so.") || is_one_of(suffix, &[".dll", ".pyd"])
    };
    let stems = || name.match_indices('.').map(|(dot, _)| &name[..dot]);
    let library = stems().find(is_library);
    let program = stems().find(|stem| is_one_of(&name[stem.len()..], &[".exe"]));
    let module = match library {
        Some(stem) => stem.strip_prefix("lib").filter(|rest| !rest.is_empty()).unwrap_or(stem),
        None => program.unwrap_or(&name),
    };
    name_part(module)
}

/// Whether a suffix is one of these, in capital or small letters: Windows compares names so.
fn is_one_of(suffix: &str, suffixes: &[&str]) -> bool {
    suffixes.iter().any(|one| suffix.eq_ignore_ascii_case(one))
}
