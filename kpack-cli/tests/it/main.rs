//! The tests of the linked binaries, trees, wheels and the command, in one program.

mod artifacts_cli;
mod artifacts_document;
#[path = "../../../kpack-artifact/tests/it/blas/mod.rs"]
mod blas;
#[path = "../../../kpack-doctor/tests/it/by_hand/mod.rs"]
mod by_hand;
mod cargo_build;
mod catalogue;
mod cli;
mod cli_split;
mod command;
mod concurrent;
mod crates;
mod create;
mod doctor;
mod doctor_unknown;
mod environments;
mod fat;
mod findings;
mod flipped_bits;
mod guesses;
mod images;
mod inspect;
mod install;
mod install_again;
mod install_files;
mod install_refused;
mod join;
mod json;
mod kernel_files;
mod large_code_objects;
mod launch;
#[path = "../../../kpack-split/tests/it/layouts/mod.rs"]
mod layouts;
mod little_memory;
mod lookup;
#[path = "../../../kpack-doctor/tests/it/machine/mod.rs"]
mod machine;
mod many_machines;
#[path = "../../../kpack-split/tests/it/markers/mod.rs"]
mod markers;
mod offload_images;
mod opened_once;
mod outputs;
#[path = "../../../kpack-store/tests/it/packed/mod.rs"]
mod packed;
mod pages;
#[path = "../../../kpack-artifact/tests/it/planned/mod.rs"]
mod planned;
mod presplit;
mod recombine_killed;
mod recombine_published;
mod reproducible;
mod rocm_splits;
mod rocm_splits_in_trees;
#[path = "../../../kpack-artifact/tests/it/shards/mod.rs"]
mod shards;
mod shared_bundles;
mod sizes;
mod spirv;
mod stage;
mod stage_application;
mod stage_build_paths;
mod stage_examined;
mod stage_output_dir;
mod stage_split;
mod stage_windows;
mod store;
mod store_faults;
mod strip_debug;
mod swapped;
mod target_names;
mod terminal;
mod therock;
mod therock_wheels;
mod trim;
mod trim_compiled;
mod trim_faults;
mod trim_links;
mod trim_lists;
mod variants;
#[path = "../../../kpack-artifact/tests/it/verified/mod.rs"]
mod verified;
mod verify;
mod verify_installed;
mod way_back;
mod wheel;
#[path = "../../../kpack-wheel/tests/it/wheels/mod.rs"]
mod wheels;
mod windows;
mod windows_binaries;
mod windows_layouts;
mod windows_names;
mod windows_rust;
mod windows_unusual;
