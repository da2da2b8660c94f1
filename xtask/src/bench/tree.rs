//! `cargo xtask bench tree`: compares the cost of splitting an artifact directory with archiving
//! it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use kpack_tests::fixture::library_file;
use serde_json::Value;
use xshell::cmd;

use super::{compare, measure};
use crate::{corpus, process, repository};

/// How to measure.
#[derive(Debug, Args)]
pub(crate) struct Tree {
    /// How often to run each of the two, alternately.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

/// Fat binaries in the tree.
const BINARIES: usize = 20;
/// Pairs of a code object and its library file in the tree.
const PAIRS: usize = 1000;
/// The limit for splitting, in wall times of the reference.
const BOUND: f64 = 1.5;

/// Splits the tree and archives it, alternately.
///
/// # Errors
/// A command fails, or the corpus cannot be fetched.
pub(super) fn run(options: &Tree) -> Result<()> {
    let helper = repository::build_helper()?;
    let work = repository::target_directory().join("bench-tree");
    let _ = fs::remove_dir_all(&work);
    let artifact = work.join("blas_lib");
    build(&helper, &work, &artifact)?;

    process::step(&format!(
        "tar | zstd -3 -T2 and kpack split, {} rounds",
        options.rounds
    ));
    let (mut zstd, mut kpack) = (Vec::new(), Vec::new());
    for round in 0..options.rounds {
        // Use new paths: file systems are slow to reuse space that was just freed.
        let reference = work.join(format!("{round}.tar.zst"));
        let mut command = Command::new("sh");
        command
            .args(["-c", "tar -C \"$1\" -c . | zstd -3 -T2 -q -o \"$2\"", "sh"])
            .args([&artifact, &reference]);
        zstd.push(measure(&mut command)?);

        let mut command = Command::new(&helper);
        command
            .args(["split", "--quiet", "--artifact-prefix", "blas_lib"])
            .arg("--artifact-dir")
            .arg(&artifact)
            .arg("--output-dir")
            .arg(work.join(format!("{round}.split")));
        kpack.push(measure(&mut command)?);
    }
    compare(
        ("tar | zstd -3 -T2", &mut zstd),
        ("kpack split", &mut kpack),
        BOUND,
    );
    fs::remove_dir_all(&work)?;
    Ok(())
}

/// Builds an artifact directory with real fat binaries in several modules, and a kernel database of
/// real code objects.
fn build(helper: &Path, work: &Path, artifact: &Path) -> Result<()> {
    let libraries: Vec<corpus::Library> = corpus::libraries()?
        .into_iter()
        .filter(|library| library.package != corpus::LARGEST)
        .collect();
    ensure!(!libraries.is_empty(), "the corpus is empty");
    process::step("Building an artifact directory");
    let mut manifest = String::new();
    for index in 0..BINARIES {
        // A module would store duplicates only once.
        let library = &libraries[index % libraries.len()];
        let prefix = format!("math-libs/module{}/stage", index / libraries.len());
        let directory = artifact.join(&prefix).join("lib");
        if !directory.exists() {
            fs::create_dir_all(&directory)?;
            manifest += &format!("{prefix}\n");
        }
        fs::copy(&library.path, directory.join(library.name()))
            .with_context(|| library.path.display().to_string())?;
    }
    let prefix = "math-libs/BLAS/rocBLAS/stage";
    manifest += &format!("{prefix}\n");
    let directory = artifact.join(prefix).join("lib/rocblas/library");
    fs::create_dir_all(&directory)?;
    let code_objects = code_objects(helper, &libraries, &work.join("code-objects"))?;
    for index in 0..PAIRS {
        let (target, code_object) = &code_objects[index % code_objects.len()];
        let stem = format!("TensileLibrary_Type_SS_Contraction_l_Ailk_Bljk_{index:04}_{target}");
        fs::copy(code_object, directory.join(format!("{stem}.co")))?;
        let names = vec![stem.as_str(); 40];
        fs::write(
            directory.join(format!("{stem}.dat")),
            library_file(target, &names)?,
        )?;
    }
    fs::write(artifact.join("artifact_manifest.txt"), manifest)?;
    let size = cmd!(process::shell(), "du -sh --apparent-size {artifact}")
        .quiet()
        .read()?;
    let (size, _) = size.split_once('\t').unwrap_or((&size, ""));
    println!(
        "   {BINARIES} fat binaries and {} database files: {size}",
        2 * PAIRS
    );
    Ok(())
}

/// Extracts the code objects of one library per package to files; returns them with their targets.
fn code_objects(
    helper: &Path,
    libraries: &[corpus::Library],
    directory: &Path,
) -> Result<Vec<(String, PathBuf)>> {
    fs::create_dir_all(directory.join("lib"))?;
    let mut files = BTreeMap::new();
    for library in libraries {
        files.entry(library.package).or_insert(library);
    }
    let mut names = Vec::new();
    for library in files.into_values() {
        let name = Path::new("lib").join(library.name());
        fs::copy(&library.path, directory.join(&name))?;
        names.push(name);
    }
    let install = cmd!(
        process::shell(),
        "{helper} install --json --prefix {directory} --module kernels {names...}"
    );
    let report: Value = serde_json::from_str(&process::output(install)?)?;
    let mut found = Vec::new();
    for archive in report["archives"].as_array().into_iter().flatten() {
        let (Some(path), Some(target)) = (archive["path"].as_str(), archive["target"].as_str())
        else {
            bail!("an archive without path or target: {archive}");
        };
        let list = process::run!("{helper} list --json {path}")?;
        let list: Value = serde_json::from_str(&list)?;
        for kernel in list["kernels"].as_array().into_iter().flatten() {
            let kernel = kernel["name"].as_str().context("a kernel without a name")?;
            let file = directory.join(format!("{}.co", found.len()));
            process::run!("{helper} extract {path} --kernel {kernel} --arch {target} -o {file}")?;
            found.push((target.to_owned(), file));
        }
    }
    ensure!(!found.is_empty(), "the corpus has no code objects");
    Ok(found)
}
