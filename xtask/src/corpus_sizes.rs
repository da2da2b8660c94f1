//! `cargo xtask corpus --sizes`: measures how much splitting saves for the libraries of the corpus.

use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

use anyhow::{Context, Result};

use crate::corpus::{self, Library};
use crate::{process, repository};

/// Splits the largest library of each package and prints the table, in Markdown.
///
/// # Errors
/// A package cannot be fetched, or a library cannot be split.
pub(crate) fn run() -> Result<()> {
    let helper = repository::build_helper()?;
    let mut rows: Vec<(Library, Sizes)> = Vec::new();
    for library in corpus::libraries()? {
        let before = fs::metadata(&library.path)?.len();
        match rows.last_mut() {
            Some((last, sizes)) if last.package == library.package => {
                if before > sizes.before {
                    *last = library;
                    sizes.before = before;
                }
            }
            _ => rows.push((library, Sizes::unsplit(before))),
        }
    }
    for (library, sizes) in &mut rows {
        process::step(&format!(
            "Splitting {} of {}",
            library.name(),
            library.package
        ));
        sizes.split(&helper, library)?;
    }
    let columns = [
        "library",
        "package",
        "before",
        "host part",
        "one target's archive",
        "with one target",
        "saved",
        "with all",
    ];
    println!(
        "\n| {} |\n| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        columns.join(" | ")
    );
    for (library, sizes) in &rows {
        println!(
            "| `{}` | {} | {} |",
            library.name(),
            library.package,
            sizes.cells().join(" | ")
        );
    }
    Ok(())
}

/// Sizes of a library's files, in bytes.
struct Sizes {
    before: u64,
    host: u64,
    archives: Vec<u64>,
}

impl Sizes {
    fn unsplit(before: u64) -> Self {
        Self {
            before,
            host: before,
            archives: Vec::new(),
        }
    }

    /// Splits a copy of the library and measures the results.
    fn split(&mut self, helper: &Path, library: &Library) -> Result<()> {
        let work = tempfile::tempdir_in(repository::target_directory())?;
        let (prefix, name) = (work.path(), library.name());
        fs::create_dir(prefix.join("lib"))?;
        let host = prefix.join("lib").join(&name);
        fs::copy(&library.path, &host).with_context(|| library.path.display().to_string())?;
        process::run!("{helper} install --quiet --prefix {prefix} --module corpus lib/{name}")?;
        self.host = fs::metadata(&host)?.len();
        for archive in repository::files_with_extension(&prefix.join("lib/.kpack"), "kpack")? {
            self.archives.push(fs::metadata(archive)?.len());
        }
        Ok(())
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
            format!("{:.0} %", saved * 100.0),
            format!("{} ({} targets)", megabytes(all..=all), self.archives.len()),
        ]
    }
}

/// `1.5 MB`, or `1.5–1.7 MB`.
fn megabytes(bytes: RangeInclusive<u64>) -> String {
    let [from, to] =
        [bytes.start(), bytes.end()].map(|bytes| format!("{:.1}", *bytes as f64 / 1e6));
    match from == to {
        true => format!("{to} MB"),
        false => format!("{from}–{to} MB"),
    }
}
