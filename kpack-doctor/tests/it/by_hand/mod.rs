//! Python environments and packages that no installer made, with a library that is split, and what the doctor finds there.

#![allow(dead_code, reason = "not every test program uses all of it")]

use std::fs;
use std::path::Path;

use kpack_doctor::{Options, Report, examine};
use kpack_split::install::{InstallOptions, install};
use kpack_tests::fixture::{FatLibrary, Storage, code, rocm_split};
use kpack_tests::tree::{Tree, write};

/// What libraries have code for.
pub(crate) const TARGETS: [&str; 3] = ["gfx1100", "gfx942", "gfx1030"];

/// Where the packages of an environment are.
pub(crate) const PACKAGES: &str = "env/lib/python3.12/site-packages";

/// The archive of [`split_for_packages`] that code for gfx1100 is in.
pub(crate) const ARCHIVE: &str = "usr/lib/.kpack/vec_lib_gfx1100.kpack";

/// Writes a library `lib/NAME` that ROCm's tool split, below `directory`: the library, and an archive per target.
pub(crate) fn split(directory: &Path, name: &str, needed: Option<&Path>) {
    fs::create_dir_all(directory.join("lib")).unwrap();
    let codes = TARGETS.map(|target| code(target, "add"));
    let mut library = FatLibrary::new().wrapper(Storage::Plain, codes);
    if let Some(needed) = needed {
        library = library.flag("-Wl,--no-as-needed").flag(needed);
    }
    let file = format!("lib/{name}");
    library.build(&directory.join(&file)).unwrap();
    rocm_split(&library, directory, &file, "all").unwrap();
}

/// The fields of a wheel that has a device wheel for this GPU.
pub(crate) fn for_gfx1100(name: &str) -> String {
    format!(
        "Provides-Extra: device-gfx1100\nRequires-Dist: {name}-device-gfx1100==1; extra == 'device-gfx1100'\n"
    )
}

/// An environment that no installer made: a Python, and this distribution, which `installer` is said to have installed.
pub(crate) fn by_hand(tree: &Tree, packages: &str, name: &str, fields: &str, installer: &str) {
    let packages = tree.path(packages);
    let dist_info = packages.join(format!("{name}-1.dist-info"));
    fs::create_dir_all(&dist_info).unwrap();
    let text = format!("Metadata-Version: 2.1\nName: {name}\nVersion: 1\n{fields}");
    fs::write(dist_info.join("METADATA"), text).unwrap();
    fs::write(dist_info.join("INSTALLER"), installer).unwrap();
    let (levels, python) = if packages.ends_with("Lib/site-packages") {
        (2, "Scripts/python.exe")
    } else {
        (3, "bin/python")
    };
    let python = packages.ancestors().nth(levels).unwrap().join(python);
    write(&python, "");
    let library = packages.join("lib/libhost.so");
    if !library.exists() {
        split(&packages, "libhost.so", None);
        fs::remove_file(packages.join("lib/.kpack/all_gfx1100.kpack")).unwrap();
    }
    fs::write(dist_info.join("RECORD"), "lib/libhost.so,,\n").unwrap();
}

/// A library that kpack split, for two GPUs, below `usr` in this directory.
pub(crate) fn split_for_packages(directory: &Path) {
    let codes = ["gfx1100", "gfx942"].map(|target| code(target, "add"));
    let library = FatLibrary::new().wrapper(Storage::Plain, codes);
    library.build(&directory.join("usr/lib/libvec.so")).unwrap();
    let options = InstallOptions::new(directory.join("usr"), "vec", ["lib/libvec.so"]);
    install(&options, &()).unwrap();
}

/// What the doctor finds about a file of a system, for this GPU.
pub(crate) fn report_of(system: &Path, file: &Path, gpu: &str) -> Report {
    let mut options = for_gpu(gpu);
    options.system = system.to_owned();
    examine(&[file.to_owned()], &options).unwrap()
}

/// The options for this GPU.
pub(crate) fn for_gpu(gpu: &str) -> Options {
    let mut options = Options::default();
    options.targets = vec![gpu.parse().unwrap()];
    options
}

/// What the doctor says first of all about a library in a root of packages: its ID and its command; `None` if code loads.
pub(crate) fn of_package(root: &Path, gpu: &str) -> Option<(String, String)> {
    of_library(root, "usr/lib/libvec.so", gpu)
}

pub(crate) fn of_library(root: &Path, library: &str, gpu: &str) -> Option<(String, String)> {
    let report = report_of(root, &root.join(library), gpu);
    if report.loads == Some(true) {
        return None;
    }
    let cause = report.cause().unwrap();
    let command = cause.remedy.as_ref().map(|remedy| remedy.command.clone());
    Some((cause.finding.id.as_str().to_owned(), command.unwrap_or_default()))
}
