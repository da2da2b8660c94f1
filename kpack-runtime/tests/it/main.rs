//! The tests of the loader and its C interface, in one program.

mod archive;
mod c_interface;
mod common;
mod headers;
mod lookup;
mod marker;
mod rules;
