//! `index.json`: the artifacts of a store, with what each must be.

use std::collections::BTreeSet;
use std::path::Path;

use kpack_format::names::{fold_case, in_package_name};
use kpack_format::unstable::target_names;
use kpack_format::{Selection, TargetId};
use serde::{Deserialize, Serialize};

use kpack_artifact::names::{self, is_file_name};
use kpack_core::{Error, Reason, ids};
use kpack_split::input;

/// The name of the index in a store, and in a directory that was unpacked from one.
pub const FILE_NAME: &str = "index.json";

/// The target of generic artifacts.
pub const GENERIC: &str = names::GENERIC;

/// The size up to which an index is read: it lists 300,000 artifacts.
pub const MAX_SIZE: u64 = 64 << 20;

/// What `format` says.
const FORMAT: &str = "kpack-index";

/// The version that this code writes and reads.
const VERSION: u32 = 1;

/// The end of the names of packed artifacts.
const ENDING: &str = ".tar.zst";

/// The index of a store. The list is sorted by file name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Index {
    format: String,
    version: u32,
    /// The build, such as `12345-linux`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The machine that built them; of the result of a merge, none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<String>,
    /// The targets that the machine built for.
    #[serde(default)]
    pub built_for: Vec<String>,
    /// The artifacts.
    pub artifacts: Vec<Entry>,
}

/// A packed artifact.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Entry {
    /// The name of its file. Unlike a target, it has no `:`, which is illegal in tags of images and on some
    /// systems.
    pub file: String,
    /// Its component, such as `blas_lib`.
    pub component: String,
    /// Its target, the name of its group of targets, or `generic`.
    pub target: String,
    /// The targets of a group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<String>,
    /// Size of the file in bytes.
    pub size: u64,
    /// The SHA-256 of the file.
    pub sha256: String,
    /// Size in bytes of the files in it, unpacked.
    pub unpacked: u64,
    /// Number of files, links and directories in it, without the list of prefixes.
    pub files: u64,
    /// The databases that were split, as `kpack artifact split` noted them; absent if it was not kpack that split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub databases: Option<Vec<String>>,
}

impl Index {
    /// An index of these artifacts.
    pub(super) fn new(
        run: Option<String>,
        shard: Option<String>,
        built_for: Vec<String>,
        mut artifacts: Vec<Entry>,
    ) -> Self {
        artifacts.sort_by(|a, b| a.file.cmp(&b.file));
        Self { format: FORMAT.to_owned(), version: VERSION, run, shard, built_for, artifacts }
    }

    /// The same, with other artifacts.
    pub(super) fn with(&self, artifacts: Vec<Entry>) -> Self {
        Self { artifacts, ..self.clone() }
    }

    /// Reads the index in the file `path`.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Refused`] for text that is no index of this version, and for an index that
    /// contradicts itself.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let metadata = input::open(path)?.metadata();
        let size = metadata.map_err(|e| Error::io(path, "read", e))?.len();
        check_size(path, size)?;
        Self::parse(path, &input::read_text(path)?)
    }

    /// Reads the index `text`, which is that of `path`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn parse(path: &Path, text: &str) -> Result<Self, Error> {
        let refuse = |text: Reason| Error::rejected(ids::BAD_INDEX, path, text);
        // The version decides what else there is to read.
        #[derive(Deserialize)]
        struct Head {
            format: String,
            version: u32,
        }
        let head: Head = serde_json::from_str(text).map_err(|e| {
            refuse(format!("not an index of kpack: {e}; pass the index.json").into())
        })?;
        if head.format != FORMAT {
            let expected = format!("the format {FORMAT}");
            return Err(refuse(Reason::mismatch("not an index of kpack", expected, head.format)));
        }
        if head.version != VERSION {
            let text = Reason::mismatch("unsupported version", VERSION, head.version);
            return Err(refuse(text.then("; use a later kpack")));
        }
        let index: Self =
            serde_json::from_str(text).map_err(|e| refuse(format!("damaged: {e}").into()))?;
        index.check().map_err(|text| refuse(text.into()))?;
        Ok(index)
    }

    /// Whether its names can be used as they are, and belong to one artifact each.
    fn check(&self) -> Result<(), String> {
        for name in [&self.run, &self.shard].into_iter().flatten() {
            if !is_file_name(name) {
                return Err(format!("`{name}`: expected letters, digits and `._+:-`"));
            }
        }
        let mut known = BTreeSet::new();
        for entry in &self.artifacts {
            entry.check().map_err(|text| format!("artifact `{}`: {text}", entry.file))?;
            // Where names differ only by case, some systems have one file for both.
            if !known.insert(fold_case(&entry.file)) {
                return Err(format!(
                    "two artifacts are called `{}`, or differ from that only by case; the publisher \
                     has to pack them again",
                    entry.file
                ));
            }
        }
        Ok(())
    }

    /// [As JSON](Self::to_bytes), if that is an index that [`read`](Self::read) accepts at `path`.
    pub(super) fn to_checked_bytes(&self, path: &Path) -> Result<Vec<u8>, Error> {
        let bytes = self.to_bytes();
        check_size(path, bytes.len() as u64)?;
        Self::parse(path, &String::from_utf8_lossy(&bytes))?;
        Ok(bytes)
    }

    /// As JSON, with a newline.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }
}

impl Entry {
    /// The name of the artifact's directory.
    pub fn artifact(&self) -> String {
        format!("{}_{}", self.component, self.target)
    }

    /// Whether it has the host files of its component.
    pub fn is_generic(&self) -> bool {
        self.target == GENERIC
    }

    /// The targets that it has device code for: a group's, or its own, or those of the family that it is
    /// called after.
    pub fn device_targets(&self) -> Vec<TargetId> {
        if self.is_generic() {
            return Vec::new();
        }
        if self.targets.is_empty() {
            return target_names::of_build(&self.target).into_iter().collect();
        }
        let targets = self.targets.iter();
        targets.filter_map(|name| target_names::exact(name)).collect()
    }

    /// Whether someone who chose these targets needs its device code.
    pub(super) fn is_for(&self, selection: &Selection) -> bool {
        let mut targets = self.device_targets().into_iter();
        targets.any(|target| selection.matches(&target))
    }

    fn check(&self) -> Result<(), String> {
        for name in [&self.component, &self.target] {
            if !is_file_name(name) {
                return Err(format!("`{name}`: expected letters, digits and `._+:-`"));
            }
        }
        let expected = file_name(&self.component, &self.target);
        let is_own = self.file == expected || self.file == self.artifact() + ENDING;
        if !is_own || !is_portable(&self.file) {
            return Err(format!(
                "the name is not that of an artifact of {} for {} (expected {expected})",
                self.component, self.target
            ));
        }
        let unknown = |name: &&String| target_names::exact(name).is_none();
        if let Some(name) = self.targets.iter().find(unknown) {
            return Err(format!("`{name}`: expected a GPU target"));
        }
        let is_digit = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
        if self.sha256.len() != 64 || !self.sha256.bytes().all(is_digit) {
            return Err("`sha256`: expected 64 hexadecimal digits in lower case".to_owned());
        }
        Ok(())
    }
}

/// The name of the file of an artifact.
pub(super) fn file_name(component: &str, target: &str) -> String {
    format!("{component}_{}{ENDING}", in_package_name(target))
}

/// The component and target of the artifact in the file `name`, and the targets that it is for; `None` if it
/// is no name of an artifact.
pub(super) fn parse_file_name(name: &str) -> Option<(String, String)> {
    let stem = name.strip_suffix(ENDING)?;
    if let Some((component, target)) = names::parse(stem) {
        let canonical = target.map_or_else(|| GENERIC.to_owned(), |target| target.to_string());
        // A family's name has several spellings, and this one is in the file's name.
        let at = component.len() + 1;
        let spelled = &stem[at..];
        let target =
            if in_package_name(&canonical) == spelled { canonical } else { spelled.to_owned() };
        return Some((component.to_owned(), target));
    }
    let (component, target) = stem.rsplit_once('_')?;
    (!component.is_empty() && !target.is_empty()).then(|| (component.to_owned(), target.to_owned()))
}

fn check_size(path: &Path, size: u64) -> Result<(), Error> {
    if size <= MAX_SIZE {
        return Ok(());
    }
    let text = format!("it has {size} bytes (expected at most {MAX_SIZE})");
    Err(Error::rejected(ids::BAD_INDEX, path, text))
}

/// Whether every system and registry can hold a file of this name.
pub(super) fn is_portable(name: &str) -> bool {
    is_file_name(name) && !name.contains(':') && name.len() <= 255
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_say_component_and_target() {
        for (name, expected) in [
            ("blas_lib_generic.tar.zst", Some(("blas_lib", "generic"))),
            ("blas_lib_gfx942.tar.zst", Some(("blas_lib", "gfx942"))),
            ("blas_lib_gfx12_0.tar.zst", Some(("blas_lib", "gfx12_0"))),
            ("blas_lib_gfx94X-dcgpu.tar.zst", Some(("blas_lib", "gfx94X-dcgpu"))),
            ("blas_lib_gfx942.tar.xz", None),
            ("_gfx942.tar.zst", None),
            ("index.json", None),
        ] {
            let expected = expected.map(|(c, t)| (c.to_owned(), t.to_owned()));
            assert_eq!(parse_file_name(name), expected, "{name}");
        }
        assert_eq!(file_name("blas_lib", "gfx90a:xnack+"), "blas_lib_gfx90a.xnack-on.tar.zst");
    }

    #[test]
    fn families_of_builds_are_for_their_processors() {
        let is_for = |target: &str, arch: &str| {
            let entry = Entry { target: target.to_owned(), ..Entry::default() };
            let arch: TargetId = arch.parse().unwrap();
            entry.is_for(&[arch].into_iter().collect())
        };
        for (target, arch, expected) in [
            ("gfx94X-dcgpu", "gfx942", true),
            ("gfx94X-dcgpu", "gfx90a", false),
            ("gfx110X-all", "gfx1100", true),
            ("gfx110X", "gfx1102", true),
            ("gfx950-dcgpu", "gfx950", true),
            ("gfx90a", "gfx90a:xnack+", true),
            ("generic", "gfx90a", false),
            ("instinct", "gfx90a", false),
        ] {
            assert_eq!(is_for(target, arch), expected, "{target} {arch}");
        }
    }
}
