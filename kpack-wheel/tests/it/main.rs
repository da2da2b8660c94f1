//! The tests of wheels, in one program. Those of the commands are kpack-cli's.

mod damaged;
mod sets;
mod split;
mod wheel_variants;
mod wheel_vendored;
mod wheels;
