//! Which glibc binaries need, and builds that need an older one than this system has.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Error, Result, ensure};
use xshell::cmd;

use crate::{log, process, repository};
use kpack_tools::python;

/// What builds for an older glibc: Zig has the symbols of each version. These two are known to work together.
const ZIG: &str = "ziglang==0.17.1";
const CARGO_ZIGBUILD: &str = "cargo-zigbuild@0.24.1";

/// A version of glibc, such as 2.28.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Glibc {
    major: u32,
    minor: u32,
}

impl FromStr for Glibc {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parsed = text.split_once('.').and_then(|(major, minor)| {
            Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
        });
        parsed.with_context(|| format!("{text}: not a version of glibc, such as 2.28"))
    }
}

impl fmt::Display for Glibc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The oldest glibc that a binary runs with; `None` if it needs none.
///
/// # Errors
/// It is not a linked binary.
pub(crate) fn needed_by(binary: &Path) -> Result<Option<Glibc>> {
    Ok(newest(&process::run!("objdump -T {binary}")?))
}

/// The newest version of glibc among the symbols that `objdump -T` prints.
fn newest(symbols: &str) -> Option<Glibc> {
    let words = symbols.split(|c: char| c.is_whitespace() || "()".contains(c));
    words
        .filter_map(|word| word.strip_prefix("GLIBC_")?.parse().ok().or_else(|| of_patch(word)))
        .max()
}

/// Of a version with three numbers, such as 2.2.5, the first two.
fn of_patch(word: &str) -> Option<Glibc> {
    let (version, _) = word.strip_prefix("GLIBC_")?.rsplit_once('.')?;
    version.parse().ok()
}

/// Cargo, which links with this system's glibc, or with the symbols of an older one.
#[derive(Debug)]
pub(crate) enum Cargo {
    System,
    Zig { bound: Glibc, cargo_zigbuild: PathBuf, python: PathBuf },
}

impl Cargo {
    /// Installs what builds for an older glibc into the target directory, unless it is there.
    ///
    /// # Errors
    /// crates.io or PyPI does not answer.
    pub(crate) fn for_glibc(bound: Glibc) -> Result<Self> {
        let directory = repository::target_directory().join("zig");
        let python = directory.join("python/bin/python");
        let cargo_zigbuild = directory.join("bin/cargo-zigbuild");
        if !python.exists()
            || cmd!(process::shell(), "{python} -m ziglang version").quiet().read().is_err()
        {
            process::step("Installing Zig from PyPI (about 100 MB)");
            python::environment(&directory.join("python"), &[ZIG])?;
        }
        if !cargo_zigbuild.exists() {
            process::step("Installing cargo-zigbuild");
            let install = cmd!(process::shell(), "cargo install --locked --debug {CARGO_ZIGBUILD}");
            log::run(install.arg("--root").arg(&directory))?;
        }
        Ok(Self::Zig { bound, cargo_zigbuild, python })
    }

    /// A command of cargo, `build` or `rustc`, with its flags.
    pub(crate) fn run(&self, command: &str, flags: &[String], more: &[&str]) -> Result<()> {
        let shell = process::shell();
        match self {
            Self::System => log::run(cmd!(shell, "cargo {command} {flags...} {more...}"))?,
            Self::Zig { bound, cargo_zigbuild, python } => {
                let target = format!("{}.{bound}", repository::explicit_target()?);
                let command = cmd!(
                    shell,
                    "{cargo_zigbuild} {command} {flags...} --target {target} {more...}"
                );
                log::run(command.env("CARGO_ZIGBUILD_PYTHON_PATH", python))?;
            }
        }
        Ok(())
    }

    /// The directory that has a directory for each profile.
    pub(crate) fn output(&self) -> Result<PathBuf> {
        let directory = repository::target_directory();
        Ok(match self {
            Self::System => directory,
            Self::Zig { .. } => directory.join(repository::explicit_target()?),
        })
    }

    /// Says which glibc the binaries need that it made, by their paths in `prefix`.
    ///
    /// # Errors
    /// It is a newer one than was asked for.
    pub(crate) fn report(&self, prefix: &Path, binaries: &[&Path]) -> Result<()> {
        for binary in binaries {
            let name = binary.display();
            let needed = needed_by(&prefix.join(binary))?;
            let text =
                needed.map_or("no glibc".to_owned(), |needed| format!("glibc {needed} or later"));
            println!("   {name} needs {text}");
            if let (Self::Zig { bound, .. }, Some(needed)) = (self, needed) {
                ensure!(needed <= *bound, "{name} needs glibc {needed}, but --glibc is {bound}");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_newest_symbol_decides() {
        let symbols = "\
            0000000000000000      DF *UND*  0000000000000000 (GLIBC_2.2.5) read\n\
            0000000000000000      DF *UND*  0000000000000000  GLIBC_2.34  dlsym\n\
            0000000000000000      DF *UND*  0000000000000000 (GLIBC_2.9)  pipe2\n\
            0000000000001000 g    DF .text  0000000000000010  GLIBCXX_9.99 other\n";
        assert_eq!(newest(symbols).unwrap().to_string(), "2.34");
        assert_eq!(newest("DF .text kpack_open"), None);
        assert_eq!(newest("(GLIBC_2.2.5) read").unwrap().to_string(), "2.2");
        assert!("2.9".parse::<Glibc>().unwrap() < "2.28".parse().unwrap());
        assert!("2".parse::<Glibc>().is_err());
    }

    #[test]
    fn a_binary_says_what_it_needs() {
        let directory = process::shell().create_temp_dir().unwrap();
        let (source, library) = (directory.path().join("a.c"), directory.path().join("liba.so"));
        // 2.17 is the oldest version that has this function.
        fs::write(
            &source,
            "char *secure_getenv(const char *); char *a() { return secure_getenv(\"A\"); }",
        )
        .unwrap();
        process::run!("cc -shared -fPIC -nostartfiles -o {library} {source}").unwrap();
        assert_eq!(needed_by(&library).unwrap().unwrap().to_string(), "2.17");
        let error = needed_by(&source).unwrap_err().to_string();
        assert!(error.contains("objdump"), "{error}");
        // A build that was to run with an older one is an error.
        let report = |bound: &str| {
            let bound = bound.parse().unwrap();
            let cargo =
                Cargo::Zig { bound, cargo_zigbuild: PathBuf::new(), python: PathBuf::new() };
            cargo.report(directory.path(), &[Path::new("liba.so")])
        };
        report("2.17").unwrap();
        let error = report("2.16").unwrap_err().to_string();
        assert_eq!(error, "liba.so needs glibc 2.17, but --glibc is 2.16");
    }
}
