//! What tasks and tests share: where programs are, how they run, and which commands the documents show.

pub mod documents;
pub mod process;
pub mod programs;
pub mod python;

/// The target of rustc for programs for Windows, which mingw-w64 links.
pub const WINDOWS: &str = "x86_64-pc-windows-gnu";
/// That of programs for Linux on AArch64.
pub const AARCH64: &str = "aarch64-unknown-linux-gnu";
/// All targets that tests compile Rust for, besides this machine's.
pub const CROSS_TARGETS: [&str; 2] = [WINDOWS, AARCH64];
