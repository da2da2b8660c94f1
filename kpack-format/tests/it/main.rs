//! The tests of the formats, in one program.

mod archive;
mod code_object;
mod limits;
mod manifest_and_marker;
mod offload_bundle;
mod pinned;
mod target_id;
