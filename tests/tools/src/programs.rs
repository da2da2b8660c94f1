//! What is installed on this machine, and who runs here.

use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

/// Where the first of some programs, `a|b`, is: at its path, in `PATH`, or among the programs that Debian installs for
/// LLVM 19 without a version in the name.
pub fn find_program(names: &str) -> Option<PathBuf> {
    names.split('|').find_map(|name| find(name, Some("/usr/lib/llvm-19/bin")))
}

/// Where a program is: at its path, in `PATH`, or in one more directory.
pub fn find(program: &str, more: Option<&str>) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut directories = env::split_paths(&path).chain(more.map(PathBuf::from));
    directories.find_map(|directory| Some(directory.join(program)).filter(|file| file.is_file()))
}

/// Whether this process runs as root.
///
/// # Panics
/// There is no `/proc`.
pub fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}
