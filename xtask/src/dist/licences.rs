//! The licences of a package: kpack's own, and those of everything that is linked into its binaries.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use cargo_metadata::{
    CargoOpt, DependencyKind, Metadata, MetadataCommand, Package, PackageId, TargetKind,
};

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
    let metadata = MetadataCommand::new()
        .current_dir(repository::root())
        .features(CargoOpt::SomeFeatures(Vec::new()))
        .other_options(vec![
            "--locked".to_owned(),
            "--filter-platform".to_owned(),
            host.context("rustc names its host")?.to_owned(),
        ])
        .exec()?;
    let mut licences: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in linked(&metadata, of_crates)? {
        let files = licence_files(package)?;
        ensure!(
            !files.is_empty(),
            "{} {} comes without the text of its licence ({})",
            package.name,
            package.version,
            package.license.as_deref().unwrap_or("unknown")
        );
        for file in files {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let source = format!("{} {}: {name}", package.name, package.version);
            let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            licences.entry(text).or_default().insert(source);
        }
    }
    Ok(licences)
}

/// The crates of others that crates of the workspace are linked with.
fn linked<'a>(metadata: &'a Metadata, of_crates: &[&str]) -> Result<Vec<&'a Package>> {
    let resolve = metadata.resolve.as_ref().context("cargo resolves")?;
    let packages: BTreeMap<&PackageId, &Package> =
        metadata.packages.iter().map(|p| (&p.id, p)).collect();
    let nodes: BTreeMap<_, _> = resolve.nodes.iter().map(|node| (&node.id, node)).collect();
    let own = metadata.workspace_packages();
    let mut open = Vec::new();
    for of_crate in of_crates {
        let first = own.iter().find(|package| *package.name == *of_crate);
        let first = first.with_context(|| format!("there is no crate {of_crate}"))?;
        open.push(&first.id);
    }
    let mut seen = BTreeSet::new();
    let mut linked = Vec::new();
    while let Some(id) = open.pop() {
        let package = packages[id];
        let runs_in_compiler =
            |target: &cargo_metadata::Target| target.kind.contains(&TargetKind::ProcMacro);
        if !seen.insert(id) || package.targets.iter().any(runs_in_compiler) {
            continue;
        }
        if package.source.is_some() {
            linked.push(package);
        }
        let normal = nodes[id].deps.iter().filter(|dependency| {
            let mut kinds = dependency.dep_kinds.iter();
            kinds.any(|kind| kind.kind == DependencyKind::Normal)
        });
        open.extend(normal.map(|dependency| &dependency.pkg));
    }
    Ok(linked)
}

fn licence_files(package: &Package) -> Result<Vec<PathBuf>> {
    let directory = package.manifest_path.parent();
    let directory = directory.context("a manifest is in a directory")?;
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| directory.to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_lowercase();
        if entry.file_type()?.is_file() && LICENCE_FILES.iter().any(|l| name.starts_with(l)) {
            files.push(entry.path());
        }
    }
    Ok(files)
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
