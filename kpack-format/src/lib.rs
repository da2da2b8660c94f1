//! Reads and writes the file formats of kpack.
//!
//! This crate does not touch the file system and starts no process or thread. Readers take anything that is
//! [`Read`](std::io::Read) and [`Seek`](std::io::Seek), or a byte slice, and writers take anything that is
//! [`Write`](std::io::Write).
//!
//! Archives' tables of contents, manifests and markers are MessagePack, which `rmp-serde` reads and writes as serde types.
//! serde's `derive` is not used: it would double the CPU time that these crates add to each build script, and a derived
//! `Deserialize` takes a list in place of a map. An error about such a file has the offset and the keys of the value.
//!
//! No input makes these readers panic, read out of bounds, or allocate more than the input could contain, because
//! they check each size against the available bytes first.

#![forbid(unsafe_code)]

/// Implements `Error` and `From<io::Error>` for an error with a variant `Io`.
// thiserror would cost build scripts five more crates.
macro_rules! wraps_io {
    ($error:ident) => {
        impl std::error::Error for $error {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                match self {
                    Self::Io(error) => error.source(),
                    _ => None,
                }
            }
        }

        impl From<std::io::Error> for $error {
            fn from(error: std::io::Error) -> Self {
                Self::Io(error)
            }
        }
    };
}
use wraps_io;

/// Calls the module's function `malformed` with a formatted text.
macro_rules! malformed {
    ($offset:expr, $($text:tt)*) => { malformed($offset, format!($($text)*)) };
}

pub mod archive;
#[cfg_attr(feature = "compression", path = "backend/full.rs")]
#[cfg_attr(not(feature = "compression"), path = "backend/minimal.rs")]
mod backend;
mod code_id;
pub mod code_object;
pub mod digest;
mod exhaustion;
pub mod finding;
mod generic;
pub mod manifest;
pub mod marker;
pub mod names;
pub mod offload_binary;
pub mod offload_bundle;
mod reason;
mod selection;
pub mod target_id;
pub mod unstable;
mod wire;

pub use code_id::{CodeId, code_id};
pub use digest::Blake3;
pub use exhaustion::is_exhaustion;
pub use generic::{Delivery, Generic, RocmVersion};
pub use reason::{Details, Reason};
pub use selection::Selection;
pub use target_id::{FAMILIES, TargetId};

/// A little-endian number of at most eight bytes.
pub(crate) fn little_endian(bytes: &[u8]) -> u64 {
    let bytes = bytes.iter().rev();
    bytes.fold(0, |word, byte| word << 8 | u64::from(*byte))
}
