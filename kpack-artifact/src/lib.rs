//! Splits, merges and verifies artifact directories, which a build system writes and a packager reads.
//!
//! An artifact directory lists its prefixes in `artifact_manifest.txt`; a [`Walk`](kpack_tree::Walk) reads each.
//! [`split`] makes a generic artifact and one for each target; [`recombine`] merges those of several machines. Both
//! plan each artifact as an `output`, which a `Stage` publishes. [`verify`] checks trees, and lets `kpack-split` check
//! the binaries and archives in them. [`sizes`] adds up the bytes of each module and target.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod code_ids;
mod compare;
pub mod directories;
pub mod manifest_txt;
pub mod mark;
pub mod names;
mod output;
pub mod packaging;
pub mod recombine;
pub mod removal;
mod rules;
mod shared;
pub mod sizes;
pub mod split;
pub mod tree;
pub mod verify;
mod writer;
