//! Packs artifacts into files for any HTTP server, S3 bucket or registry, with an index of them.
//!
//! [`pack()`] writes an artifact as `NAME_COMPONENT_TARGET.tar.zst`, a file with its digest, and `index.json` last.
//! [`select()`] lists the files that a GPU needs. [`unpack()`] makes a tree of them again. It trusts only the index,
//! and the tree gets its name when every file matches the index. [`check_shards`] compares unpacked shards with their
//! index before they are merged. kpack opens no network connection; `curl`, `aws`, `skopeo` and others transfer the
//! files.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod archive;
mod extract;
mod index;
mod member;
mod pack;
mod path;
mod select;
mod shards;
mod tar_reader;
mod unpack;

pub use index::{Entry, FILE_NAME, GENERIC, Index, MAX_SIZE};
pub use pack::{IndexOptions, PackOptions, Packed, index, pack};
pub use select::{Choice, Part, in_url, select, there};
pub use shards::check_shards;
pub use unpack::{UnpackOptions, Unpacked, unpack};
