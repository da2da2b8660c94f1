//! Bundle entry IDs, which name the target of an entry.

use std::fmt;

use crate::TargetId;
use crate::target_id::SPIRV;

/// The entry ID of a code object for `target`: what compilers write, unless an archive has
/// [another one](crate::archive::TocEntry::entry_id).
pub fn code_object_id(target: &str) -> String {
    let architecture = if target == SPIRV { "spirv64" } else { "amdgcn" };
    format!("hipv4-{architecture}-amd-amdhsa--{target}")
}

/// A bundle entry ID, such as `hipv4-amdgcn-amd-amdhsa--gfx90a:xnack+`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EntryId {
    text: String,
    target: Option<TargetId>,
}

impl EntryId {
    /// Reads an ID: kind, triple and target (LLVM, "Clang Offload Bundler", "Bundle Entry ID").
    /// The triple's environment is mostly empty, so that the target follows the last `--`.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let host = text.split('-').next() == Some("host");
        let target = match text.rsplit_once("--") {
            _ if host => None,
            Some((_, target)) => Some(target),
            None => text.splitn(6, '-').nth(5),
        };
        let target = match target {
            Some(target) => Some(target.parse::<TargetId>().map_err(|error| error.to_string())?),
            None if host => None,
            None => return Err("expected a kind, a triple and a target".to_owned()),
        };
        Ok(Self { text: text.to_owned(), target })
    }

    /// The ID that a code object for `target` would have in a bundle.
    pub(super) fn of(target: TargetId) -> Self {
        Self { text: code_object_id(&target.to_string()), target: Some(target) }
    }

    /// The GPU target, or `None` for the host's entry. SPIR-V is the target `amdgcnspirv`.
    pub fn target(&self) -> Option<&TargetId> {
        self.target.as_ref()
    }

    /// The ID, if it is not `hipv4-amdgcn-amd-amdhsa--TARGET`: it cannot be told from the target then.
    pub fn unusual(&self) -> Option<&str> {
        let target = self.target.as_ref()?;
        let usual = format!("hipv4-amdgcn-amd-amdhsa--{target}");
        (self.text != usual).then_some(&self.text)
    }

    /// The ID as written in the bundle.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
