//! Gives the shared library its own name, and hides the loader's interface in it: a runtime that
//! reads markers must get the functions of its own loader.

use std::path::PathBuf;

/// The number in `libkpack_hip.so.0`. Raise it when a binary that was linked with an older version can no longer
/// run with a newer one.
const SO_VERSION: u32 = 0;

/// What the shared library exports.
const VERSION_SCRIPT: &str = "{
    global:
        __hipRegisterFatBinary; __hipUnregisterFatBinary;
        __wrap___hipRegisterFatBinary; __wrap___hipUnregisterFatBinary;
    local: *;
};
";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libkpack_hip.so.{SO_VERSION}");
    let linker = std::env::var("RUSTC_LINKER").unwrap_or_default();
    if linker.contains("zig") {
        // Zig has no --exclude-libs. Of two version scripts it takes the last, which other linkers refuse: one is rustc's.
        let script = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default()).join("exports");
        std::fs::write(&script, VERSION_SCRIPT)
            .expect("the output directory of a build can be written to");
        println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", script.display());
    } else {
        println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    }
    // Calls within the library stay in it, whatever else the process loads. (It exports functions only, and Zig does not
    // know -Bsymbolic-functions.)
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
