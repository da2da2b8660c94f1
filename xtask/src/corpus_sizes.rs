//! `cargo xtask corpus`: fetches real libraries with device code; `--sizes` measures how much splitting saves for them.

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

use anyhow::{Context, Result};
use kpack_tests::corpus::{self, Library};
use tempfile::TempDir;

use crate::{build, process, repository};

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

/// Splits the largest library of each package and prints the table, in Markdown.
///
/// # Errors
/// A package cannot be fetched, or a library cannot be split.
pub(crate) fn run() -> Result<()> {
    let helper = build::helper(build::Profile::Release)?;
    let mut rows = Vec::new();
    for library in largest_of_each()? {
        rows.push((Sizes::of(&helper, &library)?, library));
    }
    let columns = [
        "library",
        "package",
        "before",
        "host part",
        "one target's archive",
        "host + one archive",
        "saved",
        "host + all archives",
    ];
    println!(
        "\n| {} |\n| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        columns.join(" | ")
    );
    for (sizes, library) in &rows {
        println!("| `{}` | {} | {} |", library.name(), library.package, sizes.cells().join(" | "));
    }
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

/// Splits a copy of a library, in `lib` of a directory in the target directory.
///
/// # Errors
/// It cannot be split.
pub(crate) fn split(helper: &Path, library: &Library) -> Result<TempDir> {
    let name = library.name();
    process::step(&format!("Splitting {name} of {}", library.package));
    let work = tempfile::tempdir_in(repository::target_directory())?;
    let prefix = work.path();
    fs::create_dir(prefix.join("lib"))?;
    fs::copy(&library.path, prefix.join("lib").join(&name))
        .with_context(|| library.path.display().to_string())?;
    process::run!("{helper} split --quiet --prefix {prefix} --module corpus lib/{name}")?;
    Ok(work)
}

/// Sizes of a library's files, in bytes.
struct Sizes {
    before: u64,
    host: u64,
    archives: Vec<u64>,
}

impl Sizes {
    fn of(helper: &Path, library: &Library) -> Result<Self> {
        let work = split(helper, library)?;
        let lib = work.path().join("lib");
        let archives = repository::files_with_extension(&lib.join(".kpack"), "kpack")?;
        let size = |path: &Path| Ok(fs::metadata(path)?.len());
        Ok(Self {
            before: size(&library.path)?,
            host: size(&lib.join(library.name()))?,
            archives: archives.iter().map(|path| size(path)).collect::<Result<_>>()?,
        })
    }

    /// The size of one target's archive, from smallest to largest.
    fn one_archive(&self) -> RangeInclusive<u64> {
        let smallest = self.archives.iter().min().copied().unwrap_or_default();
        smallest..=self.archives.iter().max().copied().unwrap_or_default()
    }

    fn cells(&self) -> [String; 6] {
        let archive = self.one_archive();
        let machine = self.host + archive.start()..=self.host + archive.end();
        let all = self.host + self.archives.iter().sum::<u64>();
        let saved = 1.0 - *machine.end() as f64 / self.before as f64;
        [
            megabytes(self.before..=self.before),
            megabytes(self.host..=self.host),
            megabytes(archive),
            megabytes(machine),
            format!("{:.0}%", saved * 100.0),
            format!("{} ({} targets)", megabytes(all..=all), self.archives.len()),
        ]
    }
}

/// `1.5 MB`, or `1.5–1.7 MB`.
fn megabytes(bytes: RangeInclusive<u64>) -> String {
    let [from, to] =
        [bytes.start(), bytes.end()].map(|bytes| format!("{:.1}", *bytes as f64 / 1e6));
    if from == to { format!("{to} MB") } else { format!("{from}–{to} MB") }
}
