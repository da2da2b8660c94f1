//! Artifact directories: the output of a build system, and the input of a packager.
//!
//! An artifact directory lists its prefixes in `artifact_manifest.txt`. [`classify`]
//! finds out what is in a prefix, by the kernel databases of [`databases`] among other things.
//! [`split`] makes a generic artifact and one for each target; [`recombine`] merges those of several
//! machines. Both plan each artifact as an `output`, which `stage` writes and publishes.

mod classifier;
pub mod classify;
mod code_ids;
mod content;
mod data_file;
pub mod databases;
pub(crate) mod differences;
mod entry;
mod foreign;
pub(crate) mod kernel_cache;
mod layout;
pub(crate) mod manifest_txt;
pub(crate) mod mark;
mod moved;
pub(crate) mod names;
mod output;
pub mod packaging;
pub(crate) mod pairs;
pub mod recombine;
pub(crate) mod rules;
pub(crate) mod shared;
pub mod split;
pub(crate) mod stage;
pub(crate) mod target_name;
pub(crate) mod tree;
mod writer;
