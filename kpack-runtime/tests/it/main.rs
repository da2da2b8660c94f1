//! The tests of the loader's C interface, in one program.

mod c_interface;
#[path = "../../../kpack/tests/it/common/mod.rs"]
mod common;
mod headers;
