//! The command `kpack`, and what only it does.
//!
//! [`cli`] has its arguments and what it prints. [`inspect`] describes a file, [`report`] draws where the bytes are, [`doctor`] says why kernels do not
//! load on this machine, and [`stage`] makes a release of Rust programs from Cargo's messages about a build.

#![forbid(unsafe_code)]

pub mod cli;
pub mod doctor;
pub mod inspect;
pub mod report;
pub mod stage;
