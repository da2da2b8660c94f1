//! The tests of linked binaries, in one program. Those of the commands, and those that verify whole trees, are kpack-cli's.

mod elf_layouts;
mod layouts;
mod markers;
mod run_path;
