//! Gives the shared library a name of its own, and hides the loader's interface in it: a runtime that
//! reads markers must get the functions of its own loader.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libkpack_hip.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    // Calls within the library stay in it, whatever else the process loads.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
}
