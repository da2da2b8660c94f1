//! Support for tests that cross crates.

pub mod apt;
pub mod elflint;
pub mod fixture;
pub mod package_root;
pub mod process;
pub mod require;
pub mod tree;
pub mod windows;
