//! Gives the shared library its own name, and hides the loader's interface in it: a runtime that
//! reads markers must get the functions of its own loader.

/// The number in `libkpack_hip.so.0`. Raise it when a binary that was linked with an older version can no longer
/// run with a newer one.
const SO_VERSION: u32 = 0;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libkpack_hip.so.{SO_VERSION}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    // Calls within the library stay in it, whatever else the process loads. (It exports functions only, and Zig does not
    // know -Bsymbolic-functions.)
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
