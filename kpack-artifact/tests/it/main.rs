//! The tests of artifact trees, in one program. Those of the commands are kpack-cli's.

mod artifact_again;
mod artifact_databases;
mod artifact_layouts;
mod artifact_oddities;
mod artifact_paths;
mod artifact_split;
mod artifact_strays;
mod artifact_targets;
mod artifact_unknown;
mod artifact_variants;
mod blas;
mod kernel_cache;
#[path = "../../../kpack-split/tests/it/layouts/mod.rs"]
mod layouts;
mod leftovers;
#[path = "../../../kpack-split/tests/it/markers/mod.rs"]
mod markers;
mod planned;
mod recombine;
mod recombine_compiled;
mod recombine_duplicates;
mod recombine_facts;
mod recombine_host_files;
mod recombine_input;
mod recombine_merged;
mod recombine_overlay;
mod recombine_windows;
mod shards;
mod verified;
mod verify_databases;
mod verify_incomplete;
mod verify_trees;
