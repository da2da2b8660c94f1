//! The linkers that tests link with.

use std::process::Command;

use crate::require;

/// The installed linkers, by their names for `-fuse-ld`.
pub fn installed() -> Vec<&'static str> {
    let all = [("bfd", "ld.bfd"), ("gold", "ld.gold"), ("lld", "ld.lld-19"), ("mold", "ld.mold")];
    let here = all.into_iter().filter(|(_, program)| require::tool(program));
    here.map(|(linker, _)| linker).collect()
}

/// A compiler that links with a linker: gcc does not find Debian's lld, but clang does.
pub fn driver(linker: &str) -> Command {
    let mut driver = Command::new(if linker == "lld" { "clang-19" } else { "cc" });
    driver.arg(format!("-fuse-ld={linker}"));
    driver
}
