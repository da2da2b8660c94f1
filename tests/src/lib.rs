//! Support for tests that cross crates.

pub mod fixture;
pub mod require;
pub mod tree;
