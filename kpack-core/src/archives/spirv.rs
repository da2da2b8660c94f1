//! SPIR-V, which HIP runtimes compile for a GPU that has no code of its own. None of them reads it from an
//! archive.

/// What to do with the bundles of wrappers that have SPIR-V code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Spirv {
    /// Leave them in the binary, whole.
    #[default]
    Keep,
    /// Remove the SPIR-V, and split the rest.
    Drop,
    /// Move the SPIR-V to an archive like any other code.
    Archive,
}

impl Spirv {
    /// Each with its name and what it means.
    pub const ALL: [(Self, &str, &str); 3] = [
        (Self::Keep, "keep", "Leave bundles with SPIR-V in the binary, whole"),
        (Self::Drop, "drop", "Remove the SPIR-V code, and split the rest"),
        (
            Self::Archive,
            "archive",
            "Move it to an archive; only the shim and programs that call the loader find it there",
        ),
    ];
}
