//! Names of findings. Their texts are in `kpack-core`, which the loader does without.

use std::fmt;

/// The name of a kind of finding, such as `stale-archive`. Names are stable: programs may compare them, and
/// `kpack explain NAME` says what one means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(&'static str);

impl Id {
    /// The ID with this name: lower-case words with hyphens.
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// The name.
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// No archive is where the marker and the search paths lead.
pub const MISSING_ARCHIVE: Id = Id::new("missing-archive");
/// An archive is there, and cannot be read.
pub const DAMAGED_ARCHIVE: Id = Id::new("damaged-archive");
/// The archives have no code for the GPU.
pub const MISSING_TARGET: Id = Id::new("missing-target");
/// An archive has code for the GPU, but not this kernel's.
pub const MISSING_KERNEL: Id = Id::new("missing-kernel");
/// An archive has the code of another build.
pub const STALE_ARCHIVE: Id = Id::new("stale-archive");
