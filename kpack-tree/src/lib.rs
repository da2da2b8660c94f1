//! A tree of files with GPU code as data: an install prefix, a part of an artifact directory, an environment or an image.
//!
//! A [`Walk`] lists what is below a prefix and reads it once, in several threads. Of each [`Entry`] it says what it is,
//! and where it [belongs](Class): to the host or to one target, by its path, which the kernel databases in [`databases`]
//! explain, and by its content. A [`Tree`] is all of them, in order; [`gaps`] says what its databases lack. Nothing is
//! written here.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod check;
mod classifier;
mod content;
mod data_file;
pub mod databases;
mod entry;
mod entry_path;
mod foreign;
pub mod gaps;
pub mod kernel_cache;
pub mod kernel_files;
pub mod place;
mod selection;
mod tensile;
mod tree;
mod walk;

pub use classifier::Parsed;
pub use entry::{Class, Classified, Entry, KPACK, Node, Origin};
pub use entry_path::EntryPath;
pub use selection::{DatabaseSelection, Known, Owner};
pub use tree::Tree;
pub use walk::{Only, Walk};
