//! The tests of what the doctor finds, in one program. Those of the command, of real installers and of variables are kpack-cli's.

mod applications;
mod by_hand;
mod environments;
mod machine;
mod machines;
mod packages;
