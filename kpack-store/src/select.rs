//! Chooses the artifacts that a GPU needs.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use kpack_format::digest::hex;
use kpack_format::{Selection, TargetId};
use sha2::{Digest as _, Sha256};

use super::index::{Entry, Index};
use kpack_core::words::list;
use kpack_core::{Error, Finding, Severity, ids, parallel};
use kpack_split::input;

/// Which artifacts.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Choice {
    /// The targets; if empty, all.
    pub architectures: Vec<TargetId>,
    /// The components; if empty, all.
    pub components: Vec<String>,
    /// Which part of each component.
    pub part: Part,
}

/// A part of components.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Part {
    /// Host files and device code.
    #[default]
    All,
    /// Host files
    Generic,
    /// Device code
    Device,
}

/// The chosen artifacts of the index at `path`.
///
/// # Errors
/// [`Error::Usage`] for a target that no artifact has code for, and a component that is not there.
pub fn select<'i>(path: &Path, index: &'i Index, choice: &Choice) -> Result<Vec<&'i Entry>, Error> {
    let all = &index.artifacts;
    let known: BTreeSet<&str> = all.iter().map(|entry| &*entry.component).collect();
    for component in &choice.components {
        if !known.contains(component.as_str()) {
            return Err(Error::usage(format!(
                "{} does not list the component `{component}`, only {}",
                path.display(),
                list(&known)
            )));
        }
    }
    let is_chosen = |entry: &&&Entry| {
        choice.components.is_empty() || choice.components.contains(&entry.component)
    };
    let own: Vec<&Entry> = all.iter().filter(|entry| is_chosen(&entry)).collect();
    let selection: Selection = choice.architectures.iter().collect();
    let targets: Vec<TargetId> = own.iter().flat_map(|e| e.device_targets()).collect();
    let missing = selection.unmatched(&targets.iter().collect::<Vec<_>>());
    if !missing.is_empty() {
        let there: BTreeSet<String> = own
            .iter()
            .filter(|entry| !entry.is_generic())
            .map(|entry| entry.target.clone())
            .collect();
        return Err(Error::usage(format!(
            "{} lists no artifact for {}, only for {}",
            path.display(),
            list(missing),
            list(&there)
        )));
    }
    let is_for = |entry: &&Entry| match (entry.is_generic(), choice.part) {
        (true, part) => part != Part::Device,
        (false, Part::Generic) => false,
        (false, _) => selection.is_empty() || entry.is_for(&selection),
    };
    Ok(own.into_iter().filter(is_for).collect())
}

/// For each of these artifacts, whether it is in `directory` as the index says; and a warning for each that is
/// another file, so that resuming its download would not help.
///
/// # Errors
/// [`Error::Io`].
pub fn there(directory: &Path, entries: &[&Entry]) -> Result<(Vec<bool>, Vec<Finding>), Error> {
    let checked = parallel::try_map(entries, |entry| {
        let path = directory.join(&entry.file);
        let size = match input::open(&path) {
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return Ok((false, None));
            }
            file => file?.metadata().map_err(|e| Error::io(&path, "read", e))?.len(),
        };
        if size < entry.size {
            return Ok((false, None));
        }
        if size == entry.size && sha256(&path)? == entry.sha256 {
            return Ok((true, None));
        }
        let text = "not the file that the index lists; remove it, so that it is downloaded again";
        let finding = Finding::new(Severity::Warning, ids::WRONG_DIGEST, path, text);
        Ok((false, Some(finding)))
    })?;
    let (there, findings): (Vec<bool>, Vec<_>) = checked.into_iter().unzip();
    Ok((there, findings.into_iter().flatten().collect()))
}

/// A file name in an URL: what some servers read as something else is percent-encoded.
pub fn in_url(name: &str) -> String {
    let mut url = String::new();
    for byte in name.bytes() {
        match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'.' | b'_' | b'~' => {
                url.push(byte.into());
            }
            byte => drop(write!(url, "%{byte:02X}")),
        }
    }
    url
}

/// The SHA-256 of a file, as the index has it.
fn sha256(path: &Path) -> Result<String, Error> {
    let mut hasher = Sha256::new();
    input::read_parts(path, &mut |part| hasher.update(part))?;
    Ok(hex(&hasher.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_that_servers_read_otherwise_are_encoded() {
        assert_eq!(in_url("blas_lib_gfx90a:xnack+.tar.zst"), "blas_lib_gfx90a%3Axnack%2B.tar.zst");
    }
}
