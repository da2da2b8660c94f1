//! `find_package(Kpack)`: the helper that it finds, and its message if there is none.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use kpack_tests::process;

use crate::cmake::package::{self, Package};
use crate::cmake::project::{Project, Run, define, output_of};

with_each_package!(["cmake", "cc", "make"] =>
    the_helper_is_an_executable_target,
    a_helper_can_be_named,
    a_wrong_helper_is_refused,
    a_cross_build_uses_the_helper_of_this_machine,
);

#[test]
fn the_package_can_be_moved() {
    if !kpack_tests::require::tools(&["cmake", "make"]) {
        return;
    }
    let package = Package::installed();
    let project = Project::new(&package, "helper");
    let moved = project.scratch().join("moved to/here");
    fs::create_dir_all(moved.parent().unwrap()).unwrap();
    Run::of(Command::new("cp").arg("-R").arg(package::dist_prefix()).arg(&moved)).succeeds();
    project
        .configure_bare(&[&define("CMAKE_PREFIX_PATH", &moved)])
        .succeeds()
        .says(&format!("helper at {}", moved.join("bin/kpack").display()));

    // Without its helper, the package looks on the PATH. On this one there is none, whatever this machine has installed.
    fs::remove_file(moved.join("bin/kpack")).unwrap();
    let path = project.scratch().join("path");
    fs::create_dir(&path).unwrap();
    for tool in ["cmake", "make"] {
        symlink(output_of("which", &[tool.as_ref()]).trim(), path.join(tool)).unwrap();
    }
    let mut command = Command::new("cmake");
    command.arg("-S").arg(&project.source).arg("-B").arg(&project.build);
    command.arg("-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF").env("PATH", &path);
    Run::of(&mut command).fails_with("The helper kpack is neither at");
}

#[test]
fn the_version_is_that_of_the_crates() {
    let text = fs::read_to_string(package::root().join("cmake/KpackConfigVersion.cmake")).unwrap();
    let expected = format!("set(PACKAGE_VERSION \"{}\")", env!("CARGO_PKG_VERSION"));
    assert!(text.contains(&expected), "KpackConfigVersion.cmake should have {expected}");
}

fn the_helper_is_an_executable_target(package: &Package) {
    let project = Project::new(package, "helper");
    project.configure(&[]).succeeds().says(&format!("helper at {}", package.helper.display()));
    project.build(&[]).succeeds().says("install");
}

fn a_helper_can_be_named(package: &Package) {
    let project = Project::new(package, "helper");
    let helper = project.scratch().join("my kpack");
    fs::copy(&package.helper, &helper).unwrap();
    let named = define("Kpack_EXECUTABLE", &helper);
    project.configure(&[&named]).succeeds().says(&format!("helper at {}", helper.display()));
}

fn a_wrong_helper_is_refused(package: &Package) {
    let project = Project::new(package, "helper");
    let refuse = |helper: &Path, message: &str| {
        project.configure(&[&define("Kpack_EXECUTABLE", helper)]).fails_with(message);
    };
    refuse(Path::new("/nowhere/kpack"), "expected the absolute path of a file");
    refuse(Path::new("/bin/sh"), "does not run on this machine");
    refuse(Path::new("/bin/echo"), "is not the helper");

    let older = project.scratch().join("kpack");
    process::script(&older, "echo kpack 0.0.1");
    refuse(&older, "has version 0.0.1, its CMake package in");
}

/// CMake must not look for the helper in the root of the target machine.
fn a_cross_build_uses_the_helper_of_this_machine(package: &Package) {
    let project = Project::new(package, "helper");
    let root = project.scratch().join("root");
    fs::create_dir_all(root.join("usr/bin")).unwrap();
    let toolchain = project.scratch().join("toolchain.cmake");
    let make = output_of("which", &["make".as_ref()]);
    let text = format!(
        "set(CMAKE_MAKE_PROGRAM {})\nset(CMAKE_SYSTEM_NAME Linux)\nset(CMAKE_SYSTEM_PROCESSOR aarch64)\n\
         set(CMAKE_FIND_ROOT_PATH \"{}\")\nset(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM ONLY)\n",
        make.trim(),
        root.display()
    );
    fs::write(&toolchain, text).unwrap();
    let toolchain = define("CMAKE_TOOLCHAIN_FILE", &toolchain);
    project.configure(&[&toolchain]).succeeds();

    // The package has no helper beside it; the helper is on the PATH.
    let copy = project.scratch().join("package/lib/cmake/Kpack");
    fs::create_dir_all(copy.parent().unwrap()).unwrap();
    Run::of(Command::new("cp").arg("-R").arg(&package.directory).arg(&copy)).succeeds();
    let path = format!(
        "{}:{}",
        package.helper.parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    let mut command = Command::new("cmake");
    command.arg("-S").arg(&project.source).arg("-B").arg(project.scratch().join("from-path"));
    command.arg(define("Kpack_DIR", &copy)).arg(&toolchain).env("PATH", path);
    Run::of(&mut command).succeeds().says(&format!("helper at {}", package.helper.display()));
}
