//! Stores: artifacts as files that any HTTP server, S3 bucket or registry can hold, with an index of them.
//!
//! [`pack()`] writes an artifact as `NAME_COMPONENT_TARGET.tar.zst`, its digest beside it, and `index.json` last.
//! [`select()`] says which of these files a GPU needs. [`unpack()`] makes a tree of them again. It trusts
//! nothing but the index: until every file is as the index says, nothing has its final name. kpack opens no
//! network connection: `curl`, `aws`, `skopeo` and others carry the files.

mod extract;
mod frames;
mod index;
mod member;
mod pack;
mod path;
mod select;
mod tar_reader;
mod unpack;

pub use index::{Entry, FILE_NAME, GENERIC, Index, MAX_SIZE};
pub use pack::{IndexOptions, PackOptions, Packed, index, pack};
pub use select::{Choice, Part, in_url, select, there};
pub use unpack::{UnpackOptions, Unpacked, unpack};
