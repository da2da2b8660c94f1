//! The public API of the library crates, compared with the listing beside each: `cargo xtask api`.
//!
//! A program of its own, so that only this task compiles `public-api`.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use kpack_tools::process::{
    NOT_RUN, cargo, repository, target_directory, try_run, unstable_rustdoc,
};
use public_api::Builder;

/// The packages, and the names of their libraries.
const CRATES: [(&str, &str); 11] = [
    ("kpack-format", "kpack_format"),
    ("kpack-core", "kpack_core"),
    ("kpack-build", "kpack_build"),
    ("kpack", "kpack"),
    ("kpack-runtime", "rocm_kpack"),
    ("kpack-split", "kpack_split"),
    ("kpack-tree", "kpack_tree"),
    ("kpack-artifact", "kpack_artifact"),
    ("kpack-store", "kpack_store"),
    ("kpack-wheel", "kpack_wheel"),
    ("kpack-doctor", "kpack_doctor"),
];

/// The release of Rust whose listings these are. Another one may write JSON that `public-api` cannot read.
const RUST: &str = "1.95";

fn main() -> ExitCode {
    let update = env::args().any(|argument| argument == "--update");
    match run(update) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Compares the listings, or with `update` writes them again.
fn run(update: bool) -> Result<ExitCode> {
    let rustc = try_run(Command::new("rustc").arg("--version"))?;
    if !update && !rustc.starts_with(&format!("rustc {RUST}.")) {
        println!("the listings are those of Rust {RUST}, and this is {}", rustc.trim());
        return Ok(ExitCode::from(NOT_RUN));
    }
    let mut command =
        cargo(&["doc", "--quiet", "--locked", "--no-deps", "--lib", "--all-features"]);
    command.args(CRATES.iter().flat_map(|(package, _)| ["--package", package]));
    command.env("RUSTDOC", unstable_rustdoc()?);
    command.env("RUSTDOCFLAGS", "-Zunstable-options --output-format json");
    try_run(command.current_dir(repository()))?;
    let mut changed = Vec::new();
    for (package, library) in CRATES {
        let found = list(library)?;
        let path = repository().join(package).join("public-api.txt");
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
    Ok(ExitCode::SUCCESS)
}

/// The public items of a crate, one a line, without what the compiler derives.
fn list(library: &str) -> Result<String> {
    let json = target_directory().join(format!("doc/{library}.json"));
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
