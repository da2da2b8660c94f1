//! Where a binary's device code is: marker, place of the binary, environment and rules lead to search paths,
//! these to archives, and these to the code object.
//!
//! The loader looks code objects up this way, and so do all tools. Nothing here reads the state of the
//! process: the environment and the paths of loaded objects are arguments.
//!
//! ```
//! use kpack::internal::Marker;
//! use kpack::internal::lookup::{self, BinaryOrigin, Environment, Rule, Rules};
//!
//! let archives = vec![".kpack/vec_lib_@GFXARCH@.kpack".to_owned()];
//! let marker = Marker::new("lib/libvec.so", archives);
//! let origin = BinaryOrigin::of("/opt/vec/lib/libvec.so".as_ref(), []);
//! let locations = Rules::KPACK.locations(&Environment::default(), &marker, &origin);
//! let candidates = Rules::KPACK.candidates(&locations, &["gfx942".to_owned()]);
//! let expected = lookup::Candidate {
//!     path: "/opt/vec/lib/.kpack/vec_lib_gfx942.kpack".into(),
//!     rule: Rule::Marker,
//! };
//! assert_eq!(candidates, [expected]);
//! ```

mod candidates;
mod environment;
mod rules;

pub use candidates::{BinaryOrigin, Candidate, InstalledArchive, Location, kernels, targets};
pub use environment::Environment;
pub use rules::{Answer, Listing, Rule, Rules};
