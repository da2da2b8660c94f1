//! The install rules and their order: directories, components and configurations.

use std::fs;

use crate::cmake::package::Package;
use crate::cmake::project::{Project, Run};

with_each_package!(["cmake", "cc", "readelf", "ninja"] =>
    the_split_runs_after_the_copy,
    a_misplaced_split_is_an_error,
    configurations_are_chosen_when_installing,
    components_install_alone,
);

fn the_split_runs_after_the_copy(package: &Package) {
    for order in ["OLD", "NEW"] {
        let project = Project::new(package, "order");
        project
            .configure(&[&format!("-DSUBDIRECTORY_ORDER={order}")])
            .succeeds();
        project.build(&[]).succeeds();
        let prefix = project.prefix("prefix");
        for _ in 0..2 {
            let mut command = project.install_command(&prefix.path);
            Run::of(command.env("CMAKE_INSTALL_PARALLEL_LEVEL", "4")).succeeds();
            prefix.has_exactly(&[
                "bin/last",
                "lib/.kpack/order_lib.kpm",
                "lib/.kpack/order_lib_gfx1100.kpack",
                "lib/.kpack/order_lib_gfx90a:xnack+.kpack",
                "lib/.kpack/order_lib_gfx942.kpack",
                "lib/libfirst.so",
                "lib/libsecond.so",
                "lib/libzeroth.so",
            ]);
            let libraries = ["lib/libzeroth.so", "lib/libfirst.so", "lib/libsecond.so"];
            for binary in libraries.into_iter().chain(["bin/last"]) {
                prefix.is_split(binary);
            }
            prefix.verifies();
        }
    }
}

/// On a second install the file exists, but an earlier run installed it.
fn a_misplaced_split_is_an_error(package: &Package) {
    let project = Project::built(package, "misplaced");
    let prefix = project.prefix("prefix");
    for _ in 0..2 {
        project.install(&prefix.path, &[]).fails_with(
            "has not been installed before the rule that splits it. Call kpack_split_installed() in \
             the directory that installs the target and after the command that does",
        );
        fs::create_dir_all(prefix.path.join("lib")).unwrap();
        fs::copy(
            project.build.join("libveclib.so"),
            prefix.path.join("lib/libveclib.so"),
        )
        .unwrap();
    }
}

fn configurations_are_chosen_when_installing(package: &Package) {
    let project = Project::new(package, "configurations");
    project.configure(&["-GNinja Multi-Config"]).succeeds();
    project.build(&["--config", "Debug"]).succeeds();
    project.build(&["--config", "Release"]).succeeds();
    let script = fs::read_to_string(project.build.join("cmake_install.cmake")).unwrap();
    assert!(!script.contains("$<"), "{script}");

    let debug = project.prefix("debug");
    project
        .install(
            &debug.path,
            &["--config", "Debug", "--component", "Unspecified"],
        )
        .succeeds();
    debug.has_exactly(&[
        "lib/.kpack/veclib_lib.kpm",
        "lib/.kpack/veclib_lib_gfx1100.kpack",
        "lib/.kpack/veclib_lib_gfx90a:xnack+.kpack",
        "lib/.kpack/veclib_lib_gfx942.kpack",
        "lib/debug/libvec-debug.so",
    ]);
    debug.is_split("lib/debug/libvec-debug.so");

    // CMake compares configurations without regard to case.
    for spelling in ["Release", "release"] {
        let release = project.prefix(spelling);
        project
            .install(&release.path, &["--config", spelling])
            .succeeds();
        release.is_split("lib/release/libvec.so");
        release.is_split("bin/vecapp");
        assert!(
            release
                .path
                .join("lib/.kpack/vecapp_lib_gfx942.kpack")
                .exists()
        );
        release.verifies();
    }

    // A generator with a single configuration filters in the same way.
    let single = Project::new(package, "configurations");
    single.configure(&["-DCMAKE_BUILD_TYPE=Debug"]).succeeds();
    single.build(&[]).succeeds();
    let prefix = single.prefix("prefix");
    single.install(&prefix.path, &[]).succeeds();
    prefix.is_split("lib/debug/libvec-debug.so");
    assert!(!prefix.path.join("bin").exists());
}

fn components_install_alone(package: &Package) {
    let project = Project::built(package, "components");
    let install = |component: &str| {
        let prefix = project.prefix(component);
        project
            .install(&prefix.path, &["--component", component])
            .succeeds();
        prefix
    };
    install("dev").has_exactly(&["include/vec.h", "lib/libveclib.so -> libveclib.so.1"]);
    let runtime = install("runtime");
    runtime.has_exactly(&[
        "lib/.kpack/veclib_runtime.kpm",
        "lib/.kpack/veclib_runtime_gfx1100.kpack",
        "lib/.kpack/veclib_runtime_gfx90a:xnack+.kpack",
        "lib/.kpack/veclib_runtime_gfx942.kpack",
        "lib/libveclib.so.1 -> libveclib.so.1.2.3",
        "lib/libveclib.so.1.2.3",
    ]);
    runtime.is_split("lib/libveclib.so.1.2.3");
    let tools = install("tools");
    tools.is_split("bin/vecapp");
    assert!(
        tools
            .path
            .join("lib/.kpack/veclib_tools_gfx1100.kpack")
            .exists()
    );
    install("extra").is_split("bin/extra");

    let all = project.prefix("all");
    project.install(&all.path, &[]).succeeds();
    let files = all.files();
    assert!(
        !files
            .iter()
            .any(|file| file.contains("extra") || file.contains("unbuilt")),
        "{files:?}"
    );
    for binary in ["bin/vecapp", "lib/libveclib.so.1.2.3"] {
        all.is_split(binary);
    }
    all.verifies();
}
