//! Hides the loader's own interface in the shared library: a runtime that reads markers must get the
//! functions of its own loader.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    // Calls within the library stay in it, whatever else the process loads.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
}
