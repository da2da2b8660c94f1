//! The tests of the lookup and of modules, in one program.

mod archive;
mod common;
mod lookup;
mod marker;
mod modules;
mod program;
mod rules;
