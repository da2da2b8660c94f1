//! Support for tests that cross crates.

pub mod fixture;
