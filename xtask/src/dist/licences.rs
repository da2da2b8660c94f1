//! The licences of a package: kpack's own, and those of everything that is linked into its binaries.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::files::{copy_file, write_file};
use crate::{process, repository};

/// How the names of files with licences begin, in lower case.
const LICENCE_FILES: [&str; 5] = ["licen", "copying", "copyright", "notice", "unlicense"];

/// What Rust's standard library is under, in a toolchain of rustup.
const STANDARD_LIBRARY: &str = "share/doc/rust/COPYRIGHT-library.html";

/// The licences of Rust's standard library, which a package must have.
///
/// # Errors
/// The toolchain comes without them.
pub(crate) fn of_standard_library() -> Result<PathBuf> {
    let sysroot = process::run!("rustc --print sysroot")?;
    in_toolchain(Path::new(sysroot.trim()))
}

fn in_toolchain(sysroot: &Path) -> Result<PathBuf> {
    let file = sysroot.join(STANDARD_LIBRARY);
    ensure!(
        file.is_file(),
        "{}: does not exist, so the licences of Rust's standard library are missing; build with a \
         current Rust from https://rustup.rs",
        file.display()
    );
    Ok(file)
}

/// Installs the licences of the C library of this machine, for a package with binaries that it is linked into.
///
/// # Errors
/// A file that is not there.
pub(crate) fn of_c_library(directory: &Path) -> Result<()> {
    for (from, name) in [
        ("/usr/share/doc/libc6-dev/copyright", "COPYRIGHT-glibc"),
        ("/usr/share/common-licenses/LGPL-2.1", "LGPL-2.1"),
    ] {
        copy_file(Path::new(from), &directory.join(name))?;
    }
    Ok(())
}

/// Installs `copyright`, for a package with the binaries of these crates, and the file that Rust's standard
/// library comes with, if the toolchain has it.
///
/// # Errors
/// A dependency without a licence, a file that cannot be written.
pub(super) fn install(directory: &Path, of_crates: &[&str]) -> Result<()> {
    let root = repository::root();
    let mut text = "kpack is licensed under either of these two licences, at your option.\n\
        Below them are the licences of what is linked into it, besides Rust's standard\n\
        library: see COPYRIGHT-rust-library.html, or the Rust that kpack was built with.\n"
        .to_owned();
    for name in ["LICENSE-MIT", "LICENSE-APACHE"] {
        let own = fs::read_to_string(root.join(name)).context(name)?;
        add(&mut text, &format!("kpack: {name}"), &own)?;
    }
    for (licence, crates) in third_party(of_crates)? {
        let crates: Vec<String> = crates.into_iter().collect();
        add(&mut text, &crates.join("\n"), &licence)?;
    }
    write_file(&directory.join("copyright"), text.as_bytes())?;
    match of_standard_library() {
        Ok(file) => copy_file(&file, &directory.join("COPYRIGHT-rust-library.html")),
        Err(missing) => {
            println!("   note: {missing}");
            Ok(())
        }
    }
}

fn add(text: &mut String, heading: &str, licence: &str) -> Result<()> {
    let line = "=".repeat(80);
    write!(text, "\n{line}\n{heading}\n{line}\n\n{}\n", licence.trim_matches('\n'))?;
    Ok(())
}

/// The texts of the licences of all crates that are linked into these, and for each text the files that
/// have it.
fn third_party(of_crates: &[&str]) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let version = process::run!("rustc -vV")?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("rustc names its host")?;
    let metadata = repository::metadata(&["--filter-platform", host])?;
    let mut licences: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in linked(&metadata, of_crates)? {
        let name = format!("{} {}", text(&package["name"])?, text(&package["version"])?);
        let files = licence_files(Path::new(text(&package["manifest_path"])?))?;
        ensure!(
            !files.is_empty(),
            "{name} comes without the text of its licence ({})",
            package["license"].as_str().unwrap_or("unknown")
        );
        for file in files {
            let source = format!("{name}: {}", repository::file_name(&file));
            let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            licences.entry(text).or_default().insert(source);
        }
    }
    Ok(licences)
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().context("cargo metadata prints another format")
}

fn list(value: &Value) -> Result<&[Value]> {
    let list = value.as_array().context("cargo metadata prints another format")?;
    Ok(list)
}

/// The values of a list by what identifies their package.
fn by_id(values: &Value) -> Result<BTreeMap<&str, &Value>> {
    list(values)?.iter().map(|value| Ok((text(&value["id"])?, value))).collect()
}

/// The crates of others that crates of the workspace are linked with.
fn linked<'a>(metadata: &'a Value, of_crates: &[&str]) -> Result<Vec<&'a Value>> {
    let packages = by_id(&metadata["packages"])?;
    let nodes = by_id(&metadata["resolve"]["nodes"])?;
    let mut open = Vec::new();
    for of_crate in of_crates {
        let mut own = packages.iter().filter(|(_, package)| package["source"].is_null());
        let first = own.find(|(_, package)| package["name"] == *of_crate);
        open.push(*first.with_context(|| format!("there is no crate {of_crate}"))?.0);
    }
    let mut seen = BTreeSet::new();
    let mut linked = Vec::new();
    while let Some(id) = open.pop() {
        let package = packages[id];
        let runs_in_compiler = |target: &Value| target["kind"][0] == "proc-macro";
        if !seen.insert(id) || list(&package["targets"])?.iter().any(runs_in_compiler) {
            continue;
        }
        if !package["source"].is_null() {
            linked.push(package);
        }
        for dependency in list(&nodes[id]["deps"])? {
            // Those for tests and build scripts say so.
            if list(&dependency["dep_kinds"])?.iter().any(|kind| kind["kind"].is_null()) {
                open.push(text(&dependency["pkg"])?);
            }
        }
    }
    Ok(linked)
}

fn licence_files(manifest: &Path) -> Result<Vec<PathBuf>> {
    let directory = manifest.parent().context("a manifest is in a directory")?;
    let files = repository::files(directory)?.into_iter();
    Ok(Vec::from_iter(files.filter(|file| {
        let name = repository::file_name(file).to_lowercase();
        file.is_file() && LICENCE_FILES.iter().any(|licence| name.starts_with(licence))
    })))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::in_toolchain;

    #[test]
    fn a_toolchain_of_a_distribution_lacks_the_licences_of_the_standard_library() {
        let missing = in_toolchain(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap_err();
        let missing = missing.to_string();
        assert!(missing.contains("COPYRIGHT-library.html: does not exist"), "{missing}");
        assert!(missing.ends_with("build with a current Rust from https://rustup.rs"), "{missing}");
    }
}
