//! Support for tests that cross crates.

pub mod apt;
pub mod bytes;
pub mod conformance;
pub mod corpus;
pub mod elflint;
pub mod fixture;
pub mod linker;
pub mod lintian;
pub mod outside;
pub mod package_root;
pub mod page;
pub mod process;
pub mod python;
pub mod removed;
pub mod require;
pub mod runtime;
pub mod steps;
pub mod tree;
pub mod windows;

use sha2::Digest as _;

/// The SHA-256 of `bytes`, as `sha256sum` prints it: for what others read.
pub fn sha256(bytes: &[u8]) -> String {
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
