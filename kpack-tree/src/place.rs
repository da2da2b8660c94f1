//! What the path of a database file says: which target it is for, or how copies for all targets are merged.

use kpack_format::TargetId;

/// What the path of a database file says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// It belongs to a target.
    Target(TargetId),
    /// It is for all targets, whatever targets it contains or names.
    ForAll(ForAll),
    /// It names no target; the content may.
    Unnamed,
    /// It names several targets.
    Contradiction(TargetId, TargetId),
}

/// How to merge the copies of a file that several machines built for all targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForAll {
    /// Each has its own targets' entries.
    Merge(Merge),
    /// Copies must be equal.
    MustMatch(MustMatch),
}

/// The form of a file for all targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merge {
    /// An offload bundle, or a code object alone: an entry for each target.
    Bundle,
    /// A MessagePack map with targets as keys.
    ByTarget,
    /// A text with a line for each file that was built.
    Lines,
    /// rocFFT's kernel cache: a row for each kernel and target.
    KernelCache,
}

/// Why copies must be equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MustMatch {
    /// The file maps ranges of kernels to files. A key is the first number of a range, and every build
    /// numbers its kernels from 0, so the ranges of two builds overlap.
    Mapping,
    /// A library file that names the kernels for GPUs without their own. It is the same for all targets
    /// unless they name their kernels differently.
    Fallback,
}

/// Whether a name matches a pattern, in which each `*` stands for anything.
pub fn matches_pattern(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(rest) = parts.next().and_then(|start| name.strip_prefix(start)) else {
        return false;
    };
    let Some(end) = parts.next_back() else {
        return rest.is_empty();
    };
    let mut inside = rest.strip_suffix(end);
    for part in parts {
        inside = inside.and_then(|rest| rest.split_once(part)).map(|(_, rest)| rest);
    }
    inside.is_some()
}
