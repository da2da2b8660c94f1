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

/// A call of the operating system failed.
pub const SYSTEM: Id = Id::new("system");
/// An argument is invalid.
pub const USAGE: Id = Id::new("usage");
/// A bundle cannot be read.
pub const DAMAGED_BUNDLE: Id = Id::new("damaged-bundle");
/// A marker cannot be read.
pub const DAMAGED_MARKER: Id = Id::new("damaged-marker");
/// `ROCM_KPACK_DISABLE` turns the loader off.
pub const LOADER_DISABLED: Id = Id::new("loader-disabled");
/// A variable sends the loader to other archives than markers name.
pub const SEARCH_PATHS_SET: Id = Id::new("search-paths-set");
/// No GPU was found on the machine.
pub const NO_GPU: Id = Id::new("no-gpu");
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
