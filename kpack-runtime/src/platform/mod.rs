//! What differs between Linux and Windows: how paths are written in C strings, what the system knows about this
//! process and about files. Both sides have the same functions, and nothing else in this crate asks which one it is.

#![allow(unsafe_code)]

#[cfg_attr(not(windows), path = "linux/mod.rs")]
#[cfg_attr(windows, path = "windows.rs")]
mod system;

pub use system::discover_binary_path;
pub(crate) use system::{
    FileId, is_secure, loaded_objects, open, path_of, read_at, read_memory, text_of,
};
