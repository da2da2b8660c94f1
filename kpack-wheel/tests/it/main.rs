//! The tests of wheels, in one program. Those of the commands are kpack-cli's.

mod wheel_variants;
mod wheel_vendored;
mod wheels;
