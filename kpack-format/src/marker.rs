//! `.rocm_kpack_ref`: what a split binary keeps in place of its device code.

/// The name of the section that holds the marker.
pub const SECTION_NAME: &str = ".rocm_kpack_ref";
/// A marker is never longer than this, in bytes.
pub const MAX_SIZE: usize = 64 * 1024;
/// Stands for the target ID in a search path.
pub const GFXARCH: &str = "@GFXARCH@";

/// Where a binary's device code is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// The binary's path in the install prefix; kernels are `<kernel_name>#<co_index>`. The early
    /// plain-text form does not tell it.
    pub kernel_name: Option<String>,
    /// Archives to look in, relative to the directory of the binary or absolute, with
    /// [`GFXARCH`] in place of the target ID. In the plain-text form: directories.
    pub kpack_search_paths: Vec<String>,
}

/// Why bytes are no marker.
#[derive(Debug, thiserror::Error)]
#[error("not a kpack marker: {0}")]
pub struct MarkerError(pub(crate) String);

impl Marker {
    /// The MessagePack form.
    pub fn to_bytes(&self) -> Vec<u8> {
        todo!()
    }

    /// Reads a marker of either form at the start of `bytes`; also tells how many bytes it
    /// occupies. What follows it is not looked at.
    pub fn read(bytes: &[u8]) -> Result<(Self, usize), MarkerError> {
        let _ = bytes;
        todo!()
    }
}
