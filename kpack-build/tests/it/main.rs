//! The tests of `Hip` and of objects before the link, in one program.

mod hip;
mod object;
#[path = "../../../kpack-artifact/tests/it/verified/mod.rs"]
mod verified;
