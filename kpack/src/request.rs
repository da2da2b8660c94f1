//! What a HIP runtime asks for.

use std::path::Path;

use crate::{Marker, TargetId};

/// The code object to look up.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The marker that the wrapper points to.
    pub marker: &'a Marker,
    /// The binary that it is in.
    pub binary: &'a Path,
    /// The index in the wrapper.
    pub co_index: u32,
    /// ISAs of the GPU, the preferred one first: its own, then the generic ones that it can run.
    pub isas: &'a [TargetId],
}
