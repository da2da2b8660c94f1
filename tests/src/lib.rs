//! Support for tests that cross crates.
