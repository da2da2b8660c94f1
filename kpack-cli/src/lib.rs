//! The command `kpack`.
//!
//! [`cli`] parses its arguments and prints its results. [`inspect`] describes a file, [`report`] draws the sizes of
//! modules and targets, [`stage`] makes a release of Rust programs from Cargo's messages about a build, and [`trim`]
//! removes device code for other GPUs from trees.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod cli;
pub mod create;
pub mod inspect;
mod module_name;
pub mod report;
pub mod stage;
pub mod trim;
