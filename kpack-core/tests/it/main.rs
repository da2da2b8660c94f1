//! The tests of what the tools share, in one program.

mod debug_sections;
mod transaction;
