//! `SPLIT_AT compile`: what is linked never had device code, and what is installed is the same.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::package::Package;
use crate::project::{Project, Run, define, programs_are_there};

with_each_package!(["cmake", "cc", "readelf", "ninja", "clang++-19", "ld.lld-19"] =>
    the_install_is_that_of_linked_binaries,
    other_launchers_come_behind,
    what_cannot_be_split_stops_the_compilation,
);

const COMPILER: &str = "-DCMAKE_CXX_COMPILER=clang++-19";

/// The archives and manifests of an install.
fn archives(prefix: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(prefix.join("lib/.kpack")).unwrap();
    let mut files: Vec<_> = entries
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    files
}

fn the_install_is_that_of_linked_binaries(package: &Package) {
    let project = Project::new(package, "hip");
    let install = |name: &str, split_at: &str| {
        let split_at = format!("-DKPACK_SPLIT_AT={split_at}");
        project
            .configure(&[COMPILER, &split_at, "-DMORE="])
            .succeeds();
        project.build(&["--clean-first"]).succeeds();
        let prefix = project.prefix(name);
        project.install(&prefix.path, &[]).succeeds();
        prefix.verifies();
        prefix
    };
    let linked = install("linked", "install");
    linked.is_split("lib/libveclib.so");
    let compiled = install("compiled", "compile");
    compiled.is_split("lib/libveclib.so");
    assert_eq!(archives(&linked.path), archives(&compiled.path));

    // The build tree's own library works where it is; the installed one has left it.
    let built = project.build.join("libveclib.so");
    Run::of(Command::new(&package.helper).arg("verify").arg(&built)).succeeds();
    let place = project.build.to_str().unwrap().as_bytes();
    let bytes = fs::read(compiled.path.join("lib/libveclib.so")).unwrap();
    assert!(!bytes.windows(place.len()).any(|window| window == place));

    // A second install changes nothing, also where CMake does not copy the library again.
    let before = (archives(&compiled.path), bytes);
    project.install(&compiled.path, &[]).succeeds();
    let after = fs::read(compiled.path.join("lib/libveclib.so")).unwrap();
    assert_eq!((archives(&compiled.path), after), before);

    // By argument, and in halves.
    project
        .configure(&[
            COMPILER,
            "-DKPACK_SPLIT_AT=install",
            "-DMORE=SPLIT_AT;compile;DEVICE_COMPONENTS",
        ])
        .succeeds();
    project.build(&["--clean-first"]).succeeds();
    let halves = project.prefix("halves");
    for component in [
        "Unspecified",
        "lib-gfx1100",
        "lib-gfx942",
        "lib-gfx90a.xnack-on",
    ] {
        project
            .install(&halves.path, &["--component", component])
            .succeeds();
    }
    assert_eq!(archives(&halves.path), archives(&linked.path));
    halves.verifies();
}

/// ccache and the like are launchers that must see the compiler, and not the helper.
fn other_launchers_come_behind(package: &Package) {
    let project = Project::new(package, "hip");
    let log = project.scratch().join("log");
    let launcher = project.scratch().join("launcher");
    let script = format!(
        "#!/bin/sh\necho \"$1\" >> '{}'\nexec \"$@\"\n",
        log.display()
    );
    fs::write(&launcher, script).unwrap();
    fs::set_permissions(&launcher, fs::Permissions::from_mode(0o755)).unwrap();
    for generator in ["Ninja", "Unix Makefiles"] {
        let project = Project::new(package, "hip");
        let _ = fs::remove_file(&log);
        let other = define("CMAKE_CXX_COMPILER_LAUNCHER", &launcher);
        project
            .configure(&[
                "-G",
                generator,
                COMPILER,
                &other,
                "-DKPACK_SPLIT_AT=compile",
                "-DMORE=",
            ])
            .succeeds();
        project.build(&[]).succeeds();
        let log = fs::read_to_string(&log).unwrap();
        assert!(
            log.lines().count() >= 2 && log.lines().all(|line| line.contains("clang++")),
            "{log}"
        );
        let prefix = project.prefix("prefix");
        project.install(&prefix.path, &[]).succeeds();
        prefix.is_split("lib/libveclib.so");
    }
}

fn what_cannot_be_split_stops_the_compilation(package: &Package) {
    let project = Project::new(package, "hip");
    let flags = [
        "-DKPACK_SPLIT_AT=compile",
        "-DMORE=",
        "-DCMAKE_CXX_FLAGS=-fgpu-rdc",
    ];
    project
        .configure(&[&[COMPILER], flags.as_slice()].concat())
        .succeeds();
    project
        .build(&[])
        .fails_with("it was compiled with -fgpu-rdc");
    // It is not taken for built in the next run.
    project
        .build(&[])
        .fails_with("it was compiled with -fgpu-rdc");

    let project = Project::new(package, "hip");
    project
        .configure(&[COMPILER, "-DKPACK_SPLIT_AT=linking", "-DMORE="])
        .fails_with("SPLIT_AT is \"linking\"; it can be compile or install");
    if programs_are_there(&["ninja"]) {
        let project = Project::new(package, "hip");
        project
            .configure(&[
                "-G",
                "Ninja Multi-Config",
                COMPILER,
                "-DKPACK_SPLIT_AT=compile",
                "-DMORE=",
            ])
            .succeeds();
        project.build(&["--config", "Release"]).succeeds();
        let prefix = project.prefix("prefix");
        project
            .install(&prefix.path, &["--config", "Release"])
            .succeeds();
        prefix.is_split("lib/libveclib.so");
    }
}
