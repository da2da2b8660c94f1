//! The tests of stores, in one program. Those of the commands are kpack-cli's.

mod damaged;
mod packed;
mod trees;
