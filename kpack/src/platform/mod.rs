//! What differs between Linux and Windows: how paths are written in C strings, what the system knows about this
//! process and about files. Both sides have the same functions, and nothing else in this crate asks which one it is.

#![allow(unsafe_code)]

#[cfg_attr(not(windows), path = "linux/mod.rs")]
#[cfg_attr(windows, path = "windows.rs")]
mod system;

pub(crate) use system::{FileId, is_secure, loaded_objects, open, read_at, read_memory};
pub use system::{discover_binary_path, path_of, text_of};
