//! `cargo xtask api`: the public API of the library crates, compared with the listing beside each.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use public_api::Builder;
use xshell::cmd;

use crate::{log, process, repository};

/// The packages, and the names of their libraries.
const CRATES: [(&str, &str); 9] = [
    ("kpack-format", "kpack_format"),
    ("kpack-core", "kpack_core"),
    ("kpack-build", "kpack_build"),
    ("kpack-runtime", "rocm_kpack"),
    ("kpack-split", "kpack_split"),
    ("kpack-tree", "kpack_tree"),
    ("kpack-artifact", "kpack_artifact"),
    ("kpack-store", "kpack_store"),
    ("kpack-wheel", "kpack_wheel"),
];

/// The release of Rust whose listings these are. Another one may write JSON that `public-api` cannot read.
const RUST: &str = "1.95";

/// Rustdoc, which writes JSON only where unstable options are allowed. If that were also set for cargo,
/// dependencies would be compiled again.
const RUSTDOC: &str = "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n";

/// Compares the listings, or with `update` writes them again.
///
/// # Errors
/// The public API of a crate changed. [`NotRun`](process::NotRun) with another release of Rust.
pub(crate) fn run(update: bool) -> Result<()> {
    let rustc = process::run!("rustc --version")?;
    if !update && !rustc.starts_with(&format!("rustc {RUST}.")) {
        let found = rustc.trim();
        let reason = format!("the listings are those of Rust {RUST}, and this is {found}");
        bail!(process::NotRun(reason));
    }
    let rustdoc = repository::target_directory().join("rustdoc-json");
    fs::write(&rustdoc, RUSTDOC)?;
    process::run!("chmod +x {rustdoc}")?;
    process::step("Listing the public API of the library crates");
    let packages = CRATES.iter().flat_map(|(package, _)| ["--package", package]);
    let command = cmd!(
        process::shell(),
        "cargo doc --quiet --locked --no-deps --lib --all-features {packages...}"
    )
    .env("RUSTDOC", rustdoc)
    .env("RUSTDOCFLAGS", "-Zunstable-options --output-format json");
    log::run(command)?;
    let mut changed = Vec::new();
    for (package, library) in CRATES {
        let found = list(library)?;
        let path = repository::root().join(package).join("public-api.txt");
        if update {
            fs::write(&path, found).with_context(|| path.display().to_string())?;
        } else if !is_same(&path, &found)? {
            changed.push(package);
        }
    }
    ensure!(
        changed.is_empty(),
        "the public API of {} changed; if you mean it, run `cargo xtask api --update`, and add a line to CHANGELOG.md",
        changed.join(" and ")
    );
    Ok(())
}

/// The public items of a crate, one a line, without what the compiler derives.
fn list(library: &str) -> Result<String> {
    let json = repository::target_directory().join(format!("doc/{library}.json"));
    let api = Builder::from_rustdoc_json(&json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()
        .with_context(|| format!("{}: another format than that of Rust {RUST}", json.display()))?;
    Ok(api.to_string())
}

/// Whether the file has this listing; prints the lines that differ.
fn is_same(path: &Path, found: &str) -> Result<bool> {
    let expected = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let (old, new): (BTreeSet<_>, BTreeSet<_>) =
        (expected.lines().collect(), found.lines().collect());
    for (sign, lines) in [('-', old.difference(&new)), ('+', new.difference(&old))] {
        lines.for_each(|line| println!("{sign} {line}"));
    }
    Ok(old == new)
}
