//! Gives the shared library its SONAME.

/// The number in `librocm_kpack.so.0`. Raise it when a program that was linked with an older version can no
/// longer run with a newer one.
const SO_VERSION: u32 = 0;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A DLL has its name in its table of exports, and only names what it is said to export.
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "windows") {
        return;
    }
    // Not `rustc-cdylib-link-arg`, which would name every shared library that this crate is linked into.
    println!("cargo::rustc-link-arg=-Wl,-soname,librocm_kpack.so.{SO_VERSION}");
    // Calls within the library stay in it, whatever else the process loads. (It exports functions only, and Zig does not
    // know -Bsymbolic-functions.)
    println!("cargo::rustc-link-arg=-Wl,-Bsymbolic");
}
