//! Which findings of a merge are errors.

use serde::Deserialize;

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
