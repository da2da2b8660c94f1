//! Artifact directories: what a build system puts out and a packager puts together.
//!
//! An artifact directory lists its prefixes in `artifact_manifest.txt` ([`manifest_txt`]). What is
//! in a prefix is told apart by [`classify`], which knows the kernel databases of [`databases`].

pub mod classify;
mod content;
pub mod databases;
pub mod manifest_txt;
pub mod names;
pub mod packaging;
#[expect(dead_code, reason = "what writes artifacts follows")]
mod staged_tree;
pub mod target_name;
