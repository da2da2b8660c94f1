//! Artifact directories: the output of a build system, and the input of a packager.
//!
//! An artifact directory lists its prefixes in `artifact_manifest.txt`. [`classify`]
//! finds out what is in a prefix, by the kernel databases of [`databases`] among other things.
//! [`split`] makes a generic artifact and one for each target; [`recombine`] merges those of several
//! machines. Both plan each artifact as an `output`, which a `Stage` publishes. [`verify`] checks binaries,
//! archives, manifests and trees; [`sizes`] reports where the bytes are. [`create`] makes
//! archives of files by name, for programs that load their kernels themselves.

#![forbid(unsafe_code)]

mod classifier;
pub mod classify;
mod code_ids;
mod content;
pub mod create;
mod data_file;
pub mod databases;
mod differences;
mod entry;
mod foreign;
mod gaps;
mod kernel_cache;
mod manifest_txt;
mod mark;
mod names;
mod output;
pub mod packaging;
pub mod recombine;
mod rules;
mod shared;
pub mod sizes;
pub mod split;
pub mod store;
mod tree;
pub mod verify;
mod writer;
