//! `SPLIT_AT compile`: the linker sees no device code, and the installed files are the same.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use kpack_tests::bytes;
use kpack_tests::tree::files_in;
use kpack_tests::{process, require};

use crate::cmake::package::Package;
use crate::cmake::project::{Project, Run, define};

with_each_package!(["cmake", "cc", "readelf", "ninja", "clang++-19", "ld.lld-19"] =>
    the_install_is_that_of_linked_binaries,
    other_launchers_run_after_kpack,
    what_cannot_be_split_stops_the_compilation,
    sources_without_device_code_compile_as_before,
    fat_and_split_objects_are_merged,
    a_build_tree_is_cleaned_and_compiled_again,
    later_settings_do_not_undo_the_split,
);

const COMPILER: &str = "-DCMAKE_CXX_COMPILER=clang++-19";

/// The archives and manifests of an install.
fn archives(prefix: &Path) -> BTreeMap<String, Vec<u8>> {
    files_in(&prefix.join("lib/.kpack"))
}

fn the_install_is_that_of_linked_binaries(package: &Package) {
    let project = Project::new(package, "hip");
    let install = |name: &str, split_at: &str| {
        let split_at = format!("-DKPACK_SPLIT_AT={split_at}");
        project.configure(&[COMPILER, &split_at, "-DMORE="]).succeeds();
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

    // The library in the build tree works there; the installed one does not refer to the build tree.
    let built = project.build.join("libveclib.so");
    Run::of(Command::new(&package.helper).arg("verify").arg(&built)).succeeds();
    let place = project.build.to_str().unwrap().as_bytes();
    let bytes = fs::read(compiled.path.join("lib/libveclib.so")).unwrap();
    assert!(!bytes::contains(&bytes, place));

    // A second install changes nothing, even if CMake does not copy the library again.
    let before = (archives(&compiled.path), bytes);
    project.install(&compiled.path, &[]).succeeds();
    let after = fs::read(compiled.path.join("lib/libveclib.so")).unwrap();
    assert_eq!((archives(&compiled.path), after), before);

    // SPLIT_AT as an argument, and with components.
    project
        .configure(&[
            COMPILER,
            "-DKPACK_SPLIT_AT=install",
            "-DMORE=SPLIT_AT;compile;DEVICE_COMPONENTS",
        ])
        .succeeds();
    project.build(&["--clean-first"]).succeeds();
    let halves = project.prefix("halves");
    for component in ["Unspecified", "lib-gfx1100", "lib-gfx942", "lib-gfx90a.xnack-on"] {
        project.install(&halves.path, &["--component", component]).succeeds();
    }
    assert_eq!(archives(&halves.path), archives(&linked.path));
    halves.verifies();
}

/// Launchers such as ccache must see the compiler, not the helper.
fn other_launchers_run_after_kpack(package: &Package) {
    let project = Project::new(package, "hip");
    let log = project.scratch().join("log");
    let launcher = project.scratch().join("launcher");
    process::script(&launcher, &format!("echo \"$1\" >> '{}'\nexec \"$@\"", log.display()));
    for generator in ["Ninja", "Unix Makefiles"] {
        let project = Project::new(package, "hip");
        let _ = fs::remove_file(&log);
        let other = define("CMAKE_CXX_COMPILER_LAUNCHER", &launcher);
        project
            .configure(&["-G", generator, COMPILER, &other, "-DKPACK_SPLIT_AT=compile", "-DMORE="])
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
    let flags = ["-DKPACK_SPLIT_AT=compile", "-DMORE=", "-DCMAKE_CXX_FLAGS=-fgpu-rdc"];
    project.configure(&[&[COMPILER], flags.as_slice()].concat()).succeeds();
    project.build(&[]).fails_with("was compiled with -fgpu-rdc");
    // The next run does not take it for built.
    project.build(&[]).fails_with("was compiled with -fgpu-rdc");

    let project = Project::new(package, "hip");
    project
        .configure(&[COMPILER, "-DKPACK_SPLIT_AT=linking", "-DMORE="])
        .fails_with("SPLIT_AT is \"linking\" (expected compile or install)");
    if require::tool("ninja") {
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
        project.install(&prefix.path, &["--config", "Release"]).succeeds();
        prefix.is_split("lib/libveclib.so");
    }
}

const COMPILE: &str = "-DKPACK_SPLIT_AT=compile";

fn sources_without_device_code_compile_as_before(package: &Package) {
    for more in ["-DPRECOMPILED=ON", "-DUNITY=ON", "-DIPO=ON"] {
        let project = Project::new(package, "linked");
        project.configure(&[COMPILER, COMPILE, more]).succeeds();
        project.build(&[]).succeeds();
        let prefix = project.prefix("prefix");
        project.install(&prefix.path, &[]).succeeds();
        prefix.is_split("lib/libveclib.so");
        prefix.verifies();
    }
    if require::tool("ccache") {
        let project = Project::new(package, "linked");
        let ccache = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache", COMPILER, COMPILE];
        project.configure(&ccache).succeeds();
        let prefix = project.prefix("prefix");
        // The second build comes from the cache.
        for _ in 0..2 {
            let mut build = Command::new("cmake");
            build.arg("--build").arg(&project.build).arg("--clean-first");
            build.env("CCACHE_DIR", project.scratch().join("cache"));
            Run::of(&mut build).succeeds();
            project.install(&prefix.path, &[]).succeeds();
            prefix.verifies();
        }
    }
}

/// The install merges the device code of fat and split objects. A build tree has both after `SPLIT_AT`
/// changes, since Makefiles do not recompile when a launcher changes.
fn fat_and_split_objects_are_merged(package: &Package) {
    let project = Project::new(package, "linked");
    let install = |name: &str, more: &[&str]| {
        let options = [["-G", "Unix Makefiles", COMPILER].as_slice(), more].concat();
        project.configure(&options).succeeds();
        project.build(&[]).succeeds();
        let prefix = project.prefix(name);
        project.install(&prefix.path, &[]).succeeds();
        prefix.is_split("lib/libveclib.so");
        prefix.verifies();
        archives(&prefix.path)
    };
    let linked = install("linked", &["-DKPACK_SPLIT_AT=install"]);
    fs::remove_dir_all(&project.build).unwrap();
    assert_eq!(install("mixed", &[COMPILE]), linked);
    let archive = project.build.join("CMakeFiles/kernels.dir/kernels.hip.cpp.o.kpack");
    assert!(!archive.exists());
    // Only changed sources are compiled with the new launcher.
    assert_eq!(install("changed", &[COMPILE, "-DSPLIT_KERNELS=ON"]), linked);
    fs::remove_dir_all(&project.build).unwrap();
    assert_eq!(install("split", &[COMPILE, "-DSPLIT_KERNELS=ON"]), linked);
    assert!(archive.is_dir());
    let back = ["-DKPACK_SPLIT_AT=install", "-DSPLIT_KERNELS=OFF"];
    assert_eq!(install("back", &back), linked);
}

fn a_build_tree_is_cleaned_and_compiled_again(package: &Package) {
    for generator in ["Ninja", "Unix Makefiles"] {
        let project = Project::new(package, "linked");
        let options = ["-G", generator, COMPILER, COMPILE, "-DSPLIT_KERNELS=ON"];
        project.configure(&options).succeeds();
        project.build(&[]).succeeds();
        let directory = project.build.join("CMakeFiles/kernels.dir");
        let object = directory.join("kernels.hip.cpp.o");
        let kpacks = directory.join("kernels.hip.cpp.o.kpack");
        let archive = kpacks.join(".kpack/veclib_lib_gfx942.kpack");
        fs::remove_file(&archive).unwrap();
        let prefix = project.prefix("prefix");
        let failed = project.install(&prefix.path, &[]);
        failed.fails_with("remove them first, or build with --clean-first");
        fs::remove_file(&object).unwrap();
        project.build(&[]).succeeds();
        project.install(&prefix.path, &[]).succeeds();
        prefix.verifies();
        project.build(&["--target", "clean"]).succeeds();
        assert!(!object.exists() && !kpacks.exists(), "{generator}");
        assert!(project.build.join("CMakeFiles").is_dir());
    }
}

fn later_settings_do_not_undo_the_split(package: &Package) {
    let project = Project::new(package, "linked");
    project
        .configure(&[COMPILER, COMPILE, "-DLATE=ON"])
        .fails_with("CXX_COMPILER_LAUNCHER of \"veclib\" was set after this call");
    let both = ["-DLATE=OFF", "-DSPLIT_KERNELS=ON", "-DINSTALL_KERNELS=ON"];
    project
        .configure(&[&[COMPILER, COMPILE], both.as_slice()].concat())
        .fails_with("the objects of \"kernels\" refer to their archives in the build tree");
}
