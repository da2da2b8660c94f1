//! ROCm's own loader for Windows and kpack's, under wine: what each takes from the archives of a DLL that kpack split.

use std::fs;
use std::path::{Path, PathBuf};
use std::slice;

use anyhow::{Context, Result, ensure};
use kpack_format::digest::{hex, sha256};
use kpack_tests::fixture::{FatLibrary, Storage, WindowsBuild, WindowsLinker, code};
use kpack_tests::windows;

use crate::process::{self, NotRun};
use crate::{corpus, repository};

/// The targets of the DLL, and the ISA of a GPU for each.
const TARGETS: [(&str, &str); 3] = [
    ("gfx1100", "gfx1100"),
    ("gfx90a:xnack+", "gfx90a:sramecc+:xnack+"),
    ("gfx942", "gfx942:sramecc+:xnack-"),
];

/// A loader, and the program that asks it.
struct Loader {
    path: PathBuf,
    program: PathBuf,
    scratch: PathBuf,
}

impl Loader {
    /// The lines that the program prints.
    fn says(&self, arguments: &[String]) -> Result<Vec<String>> {
        let mut wine = windows::wine(&self.program, &self.scratch);
        wine.arg(windows::path(&self.path)).args(arguments);
        let output = wine.output().context("wine")?;
        let text = String::from_utf8(output.stdout)?;
        ensure!(
            output.status.success(),
            "{}: {text}{}",
            self.path.display(),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(text.lines().map(|line| line.trim().to_owned()).collect())
    }

    /// The ISAs that it finds code for in a DLL, each with the code's size and SHA-256.
    fn loads(&self, library: &Path) -> Result<Vec<String>> {
        let isas = TARGETS.map(|(_, isa)| isa.to_owned());
        let mut loaded = self.says(&[&[windows::path(library)], &isas[..]].concat())?;
        loaded.retain(|line| !line.contains(" error "));
        Ok(loaded)
    }
}

/// Compares the two.
pub(super) fn check(helper: &Path, work: &Path) -> Result<String> {
    if !windows::available() {
        let what = "mingw-w64, wine or Rust's target x86_64-pc-windows-gnu is missing";
        return Err(NotRun(what.to_owned()).into());
    }
    let (wheel, theirs) = corpus::rocm_for_windows()?;
    fs::create_dir_all(work)?;
    process::step("Asking ROCm's loader for Windows, and kpack's, under wine");
    let program = work.join("windows.exe");
    let root = repository::root();
    let (source, include) = (root.join("tests/real/windows.c"), root.join("kpack-runtime/include"));
    let compiler = windows::COMPILER;
    process::run!("{compiler} -O2 -static -I {include} -o {program} {source}")?;
    let kind = ["--lib", "--crate-type", "cdylib"];
    let ours = windows::build(&[&["rustc", "-p", "kpack-runtime"], &kind[..]].concat());
    let [theirs, ours] = [theirs, ours].map(|directory| Loader {
        path: directory.join("rocm_kpack.dll"),
        program: program.clone(),
        scratch: work.to_owned(),
    });

    let library = work.join("prefix/bin/vec.dll");
    let objects = TARGETS.map(|(target, _)| code(target, "add"));
    let build = WindowsBuild { linker: WindowsLinker::Gnu, is_program: false, flags: &[] };
    FatLibrary::new()
        .wrapper(Storage::Plain, objects.clone())
        .build_for_windows(build, &library)?;
    let prefix = work.join("prefix");
    process::run!("{helper} install --quiet --prefix {prefix} --module vec bin/vec.dll")?;

    let expected = Vec::from_iter(TARGETS.iter().zip(&objects).map(|((_, isa), (_, bytes))| {
        format!("load {isa} 0 {} {}", bytes.len(), hex(&sha256(bytes)))
    }));
    let without_features: Vec<String> =
        expected.iter().filter(|line| !line.contains("gfx90a")).cloned().collect();
    let loads = [theirs.loads(&library)?, ours.loads(&library)?];
    ensure!(
        loads == [without_features.clone(), expected.clone()],
        "from archives with names of Windows, the loaders load {loads:#?}"
    );
    let archives = prefix.join("lib/.kpack");
    let archive = archives.join("vec_lib_gfx90a-xnack+.kpack");
    let path = windows::path(&archive);
    let opened = [theirs.says(slice::from_ref(&path))?, ours.says(&[path])?];
    ensure!(
        opened[0] == opened[1] && opened[0].len() == 1 && !opened[0][0].contains("error"),
        "the loaders read {opened:#?} from {}",
        archive.display()
    );
    // On NTFS, such a name leads to another stream of a file, so kpack looks for none; wine has such files.
    fs::rename(&archive, archives.join("vec_lib_gfx90a:xnack+.kpack"))?;
    let loads = [theirs.loads(&library)?, ours.loads(&library)?];
    ensure!(
        loads == [expected, without_features],
        "from an archive with a colon in its name, the loaders load {loads:#?}"
    );
    let version = process::run!("wine --version")?;
    Ok(format!(
        "{wheel} and kpack {} load the same code under {}; ROCm's finds no archive with `-` for `:` in its name",
        env!("CARGO_PKG_VERSION"),
        version.trim()
    ))
}
