//! The helper command `kpack`.

fn main() {}
