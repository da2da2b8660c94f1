//! `cargo xtask corpus`: fetches real libraries with device code, and shows how much splitting saves for them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use kpack_tests::corpus::{self, Library};
use kpack_tests::process::{target_directory, try_run};

use crate::build::{self, step};

/// Fetches every package and lists its libraries.
///
/// # Errors
/// A package cannot be fetched or has no device code.
pub(crate) fn list() -> Result<()> {
    for library in corpus::libraries()? {
        let size = fs::metadata(&library.path)?.len() as f64 / 1e6;
        println!("   {:<16} {size:>7.1} MB  {}", library.package, library.path.display());
    }
    Ok(())
}

/// Splits the largest library of each package and prints a table of sizes, in Markdown.
///
/// # Errors
/// A package cannot be fetched, or a library cannot be split.
pub(crate) fn sizes() -> Result<()> {
    let kpack = build::kpack("release")?;
    let mut table = "| library | package | before | host part | one target's archive | host + one archive | saved | host + all archives |\n\
        | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        .to_owned();
    for library in largest_of_each()? {
        table += &row(&kpack, &library)?;
    }
    println!("\n{table}");
    Ok(())
}

/// The largest library of each package.
///
/// # Errors
/// A package cannot be fetched.
pub(crate) fn largest_of_each() -> Result<Vec<Library>> {
    let mut largest: BTreeMap<&str, (u64, Library)> = BTreeMap::new();
    for library in corpus::libraries()? {
        let size = fs::metadata(&library.path)?.len();
        if largest.get(library.package).is_none_or(|(other, _)| size > *other) {
            largest.insert(library.package, (size, library));
        }
    }
    Ok(largest.into_values().map(|(_, library)| library).collect())
}

/// The archives beside split libraries.
pub(crate) fn archives(libraries: &Path) -> Result<Vec<PathBuf>> {
    let directory = libraries.join(".kpack");
    let entries = fs::read_dir(&directory).with_context(|| directory.display().to_string())?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "kpack"));
    files.sort();
    Ok(files)
}

/// The sizes of a library before and after a split.
fn row(kpack: &Path, library: &Library) -> Result<String> {
    let name = library.name();
    step(&format!("Splitting {name} of {}", library.package));
    let prefix = tempfile::tempdir_in(target_directory())?;
    let lib = prefix.path().join("lib");
    fs::create_dir(&lib)?;
    fs::copy(&library.path, lib.join(&name)).with_context(|| library.path.display().to_string())?;
    let mut split = Command::new(kpack);
    split.args(["split", "--quiet", "--module", "corpus", "--prefix"]).arg(prefix.path());
    try_run(split.arg(format!("lib/{name}")))?;
    let size = |path: &Path| Ok(fs::metadata(path)?.len());
    let [before, host] = [size(&library.path)?, size(&lib.join(&name))?];
    let archives = archives(&lib)?.iter().map(|path| size(path)).collect::<Result<Vec<_>>>()?;
    let least = archives.iter().min().copied().unwrap_or_default();
    let most = archives.iter().max().copied().unwrap_or_default();
    let megabytes = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
    let range = |[from, to]: [u64; 2]| {
        let [from, to] = [from, to].map(megabytes);
        if from == to { to } else { format!("{}–{to}", from.trim_end_matches(" MB")) }
    };
    Ok(format!(
        "| `{name}` | {} | {} | {} | {} | {} | {:.0}% | {} ({} targets) |\n",
        library.package,
        megabytes(before),
        megabytes(host),
        range([least, most]),
        range([least, most].map(|archive| host + archive)),
        100.0 * (1.0 - (host + most) as f64 / before as f64),
        megabytes(host + archives.iter().sum::<u64>()),
        archives.len(),
    ))
}
