//! Given a package outside this workspace that uses only `kpack`, when it is built, then its modules compile under strict
//! lints and in an older edition, wrong names and versions are clear errors, and nothing of it passes for a loader.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kpack_split::install::{InstallOptions, install};
use kpack_tests::outside::Outside;
use kpack_tests::process::{run, try_run};
use kpack_tests::tree::Tree;
use kpack_tests::windows;

const LIBRARY: &str = r#"//! Has modules.

#![deny(missing_docs, warnings, unreachable_pub)]

kpack::include_modules!("kernels");

/// A name.
pub const KERNEL: &std::ffi::CStr = kernels::AFFINE.kernel(c"affine_f32");

/// For C.
#[no_mangle]
pub extern "C" fn loads() -> bool {
    kernels::ALL.iter().any(|module| module.load("gfx90a").is_ok())
}
"#;

const MODULES: &str = r#"kpack::modules_v1! { // written by kpack-build
    kernels;
    AFFINE {
        name: "affine",
        size: 25607,
        bundle: include_bytes!(concat!(env!("OUT_DIR"), "/kpack/kernels/affine.hipfb")),
        targets: ["gfx90a"],
        kernels: [c"affine_f32"],
        list: "affine_f32",
    }
    REDUCE { skipped: "DOCS_RS is set", name: "reduce" }
}
"#;

/// Stands for `kpack-build`.
const BUILD: &str = r#"fn main() {
    let directory = format!("{}/kpack/kernels", std::env::var("OUT_DIR").unwrap());
    std::fs::create_dir_all(&directory).unwrap();
    for (from, to) in [("modules.rs", "modules.rs"), ("affine.hipfb", "affine.hipfb")] {
        println!("cargo::rerun-if-changed={from}");
        std::fs::copy(from, format!("{directory}/{to}")).unwrap();
    }
}
"#;

/// Says what it loads for each argument.
const PROGRAM: &str = r#"//! Has modules.

kpack::include_modules!("kernels");

fn main() {
    for gpu in std::env::args().skip(1) {
        match kernels::AFFINE.load(&gpu) {
            Ok(code) => println!("{}", code.target()),
            Err(error) => println!("{error}"),
        }
    }
}
"#;

/// The package, with these files.
fn package(name: &str, library: &str, modules: &str) -> PathBuf {
    let crate_directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let package = Path::new(env!("CARGO_TARGET_TMPDIR")).join("modules").join(name);
    fs::create_dir_all(package.join("src")).unwrap();
    let manifest = format!(
        "[package]\nname = \"{name}\"\nedition = \"2021\"\n\n[lib]\ncrate-type = [\"cdylib\", \"rlib\"]\n\n[dependencies]\nkpack = {{ path = {crate_directory:?} }}\n\n[workspace]\n"
    );
    let files = [
        ("Cargo.toml", manifest.as_str()),
        ("build.rs", BUILD),
        ("src/lib.rs", library),
        ("modules.rs", modules),
    ];
    for (file, text) in files {
        fs::write(package.join(file), text).unwrap();
    }
    let bundle = crate_directory.join("tests/it/modules/affine.hipfb");
    fs::copy(bundle, package.join("affine.hipfb")).unwrap();
    Outside::pin(&package).unwrap();
    package
}

#[test]
fn a_package_with_modules() {
    let outside = Outside::lock();
    let built = package("with-modules", LIBRARY, MODULES);
    run(outside.cargo(&["build", "--quiet"]).current_dir(&built));
    let library = outside.target().join("debug/libwith_modules.so");
    let symbols = run(Command::new("nm").args(["--dynamic", "--defined-only"]).arg(&library));
    let exported = Vec::from_iter(symbols.lines().filter_map(|line| line.rsplit(' ').next()));
    assert_eq!(exported, ["loads"]);
    let sections = run(Command::new("readelf").args(["--sections", "--wide"]).arg(&library));
    assert!(sections.contains(" .hipFatBinSegment "), "{sections}");
    // kpack doctor takes a library with this note for the loader.
    assert!(!sections.contains(".note.kpack_loader"), "{sections}");

    // Once in the metadata, and once in the object.
    let rlib = fs::read(outside.target().join("debug/libwith_modules.rlib")).unwrap();
    let bundle = fs::read(built.join("affine.hipfb")).unwrap();
    let copies = rlib.windows(bundle.len()).filter(|bytes| *bytes == bundle).count();
    assert_eq!(copies, 2);

    let other_version = MODULES.replace("modules_v1", "modules_v2");
    for (library, modules, expected) in [
        (
            &*LIBRARY.replace("affine_f32", "affine_f16"),
            MODULES,
            "module `affine` has no kernel of this name; it has affine_f32",
        ),
        (LIBRARY, &*MODULES.replace("list:", "names:"), "use the same version of both"),
        (LIBRARY, &*other_version, "could not find `modules_v2` in `kpack`"),
        (LIBRARY, &*other_version, "kpack::modules_v2! { // written by kpack-build"),
        (&*LIBRARY.replace("\"kernels\"", "\"kernel\""), MODULES, "/kpack/kernel/modules.rs"),
    ] {
        let package = package("with-modules", library, modules);
        let refused = try_run(outside.cargo(&["check", "--quiet"]).current_dir(&package));
        let message = refused.unwrap_err().to_string();
        assert!(message.contains(expected), "{expected:?} in {message}");
    }
}

#[test]
fn a_program_for_windows() {
    if !windows::available() {
        return;
    }
    let outside = Outside::lock();
    let package = package("windows-modules", "", MODULES);
    fs::write(package.join("src/main.rs"), PROGRAM).unwrap();
    let arguments = ["build", "--quiet", "--bins", "--target", windows::TARGET];
    run(outside.cargo(&arguments).current_dir(&package));
    let tree = Tree::new();
    let program = tree.path("bin/app.exe");
    fs::create_dir_all(program.parent().unwrap()).unwrap();
    let built = outside.target().join(windows::TARGET).join("debug/windows-modules.exe");
    fs::copy(built, &program).unwrap();
    let gpus = ["gfx90a:sramecc+:xnack-", "gfx90a", "gfx1100", "gfx1030"];
    let loads = || {
        let said = run(windows::wine(&program).args(gpus));
        Vec::from_iter(said.lines().map(str::to_owned))
    };
    let fat = loads();
    assert_eq!(fat[..3], ["gfx90a:xnack-", "gfx90a", "gfx11-generic"]);
    assert!(fat[3].contains("no code for gfx1030"), "{fat:?}");
    install(&InstallOptions::new(tree.root(), "app", ["bin/app.exe"]), &()).unwrap();
    let split = loads();
    assert_eq!(split[..3], fat[..3]);
    assert!(split[3].contains("no code object for gfx1030"), "{split:?}");
}
