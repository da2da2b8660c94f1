//! The install rules and their order: directories, components and configurations.

use std::fs;
use std::process::Command;

use crate::cmake::package::Package;
use crate::cmake::project::{Project, Run, define};
use kpack_tests::tree::copy_file;

with_each_package!(["cmake", "cc", "readelf", "ninja"] =>
    the_split_runs_after_the_copy,
    a_misplaced_split_is_an_error,
    configurations_are_chosen_when_installing,
    components_install_alone,
    everything_installed_is_split,
    a_split_of_everything_says_what_it_needs,
    absolute_directories_below_the_prefix_are_relative,
    archives_of_a_parallel_install_are_listed_once,
);

fn the_split_runs_after_the_copy(package: &Package) {
    for order in ["OLD", "NEW"] {
        let project = Project::new(package, "order");
        project.configure(&[&format!("-DSUBDIRECTORY_ORDER={order}")]).succeeds();
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
        copy_file(project.build.join("libveclib.so"), prefix.path.join("lib/libveclib.so"));
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
    project.install(&debug.path, &["--config", "Debug", "--component", "Unspecified"]).succeeds();
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
        project.install(&release.path, &["--config", spelling]).succeeds();
        release.is_split("lib/release/libvec.so");
        release.is_split("bin/vecapp");
        assert!(release.path.join("lib/.kpack/vecapp_lib_gfx942.kpack").exists());
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
        project.install(&prefix.path, &["--component", component]).succeeds();
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
    assert!(tools.path.join("lib/.kpack/veclib_tools_gfx1100.kpack").exists());
    install("extra").is_split("bin/extra");

    let all = project.prefix("all");
    project.install(&all.path, &[]).succeeds();
    let files = all.files();
    assert!(
        !files.iter().any(|file| file.contains("extra") || file.contains("unbuilt")),
        "{files:?}"
    );
    for binary in ["bin/vecapp", "lib/libveclib.so.1.2.3"] {
        all.is_split(binary);
    }
    all.verifies();
}

/// One call splits what the project's own rules install, in all directories and components.
fn everything_installed_is_split(package: &Package) {
    let project = Project::built(package, "everything");
    let all = project.prefix("all");
    let mut first = None;
    for _ in 0..2 {
        project.install(&all.path, &[]).succeeds();
        for binary in
            ["lib/libveclib.so.1.2.3", "lib/libown.so", "bin/vecapp", "libexec/vecapp-copy"]
        {
            all.is_split(binary);
        }
        let archives: Vec<String> =
            all.files().into_iter().filter(|file| file.ends_with("gfx942.kpack")).collect();
        assert_eq!(
            archives,
            ["lib/.kpack/own_runtime_gfx942.kpack", "lib/.kpack/vectools_lib_gfx942.kpack"]
        );
        all.verifies();
        all.runs_split("libexec/vecapp-copy");
        let contents = all.contents();
        assert_eq!(first.get_or_insert(contents.clone()), &contents);
    }
    let list = fs::read_to_string(project.build.join("install_manifest.txt")).unwrap();
    assert!(list.contains("lib/.kpack/vectools_lib_gfx942.kpack"), "{list}");

    // Each component has archives of its own, and one without device code has none.
    for (component, archive) in [
        ("runtime", Some("lib/.kpack/vectools_runtime_gfx942.kpack")),
        ("tools", Some("lib/.kpack/vectools_tools_gfx942.kpack")),
        ("dev", None),
    ] {
        let prefix = project.prefix(component);
        project.install(&prefix.path, &["--component", component]).succeeds();
        let files = prefix.files();
        match archive {
            Some(archive) => {
                assert!(files.iter().any(|file| file == archive), "{files:?}");
                prefix.verifies();
            }
            None => assert!(!files.iter().any(|file| file.contains(".kpack")), "{files:?}"),
        }
    }
}

fn a_split_of_everything_says_what_it_needs(package: &Package) {
    let project = Project::new(package, "everything");
    for (definition, message) in [
        ("-DPARALLEL=ON", "INSTALL_PARALLEL is on. Turn it off, or name the TARGETS"),
        ("-DSUBDIRECTORY_ORDER=OLD", "needs policy CMP0082"),
        ("-DARGUMENTS=RUNTIME_SHIM", "RUNTIME_SHIM needs TARGETS"),
        (
            "-DARGUMENTS=DESTINATION;lib",
            "does not accept the arguments \"DESTINATION lib\". Name the TARGETS",
        ),
    ] {
        project.configure(&[definition]).fails_with(message);
        fs::remove_dir_all(&project.build).unwrap();
    }
    project
        .configure(&["-DARGUMENTS=ARCHITECTURES;gfx1100;gfx942;gfx90a:xnack+;gfx1201"])
        .succeeds();
    project.build(&[]).succeeds();
    project
        .install(&project.prefix("prefix").path, &[])
        .says("gfx1201")
        .fails_with("The install is not complete");
    let linked = project.prefix("linked").path;
    let mut command = project.install_command(&linked);
    Run::of(command.env("CMAKE_INSTALL_MODE", "ABS_SYMLINK"))
        .fails_with("CMAKE_INSTALL_MODE is ABS_SYMLINK");
}

/// With INSTALL_PARALLEL, each directory has a process and a list of installed files of its own.
fn archives_of_a_parallel_install_are_listed_once(package: &Package) {
    let project = Project::new(package, "order");
    project.configure(&["-DSUBDIRECTORY_ORDER=NEW"]).succeeds();
    project.build(&[]).succeeds();
    let prefix = project.prefix("prefix");
    let script = project.scratch().join("local.cmake");
    fs::write(
        &script,
        "include(\"${DIRECTORY}/cmake_install.cmake\")\n\
         list(JOIN CMAKE_INSTALL_MANIFEST_FILES \"\\n\" files)\nmessage(\"${files}\")\n",
    )
    .unwrap();
    for _ in 0..2 {
        let mut listed = Vec::new();
        for directory in ["above", ".", "below"] {
            let mut install = Command::new("cmake");
            install.arg(define("DIRECTORY", project.build.join(directory)));
            install.arg(define("CMAKE_INSTALL_PREFIX", &prefix.path));
            install.args(["-DCMAKE_INSTALL_LOCAL_ONLY=1", "-P"]).arg(&script);
            let run = Run::of(&mut install).succeeds();
            let archives = run
                .output
                .lines()
                .filter(|line| line.starts_with('/') && line.contains("/.kpack/"));
            listed.extend(archives.map(str::to_owned));
        }
        listed.sort();
        let directory = prefix.path.join("lib/.kpack");
        let expected = [
            "order_lib.kpm",
            "order_lib_gfx1100.kpack",
            "order_lib_gfx90a:xnack+.kpack",
            "order_lib_gfx942.kpack",
        ];
        assert_eq!(listed, expected.map(|name| directory.join(name).display().to_string()));
    }
}

/// Nix, and the macros of many RPM distributions, set the directories of GNUInstallDirs to absolute paths.
fn absolute_directories_below_the_prefix_are_relative(package: &Package) {
    let project = Project::new(package, "order");
    project
        .configure(&[
            "-DSUBDIRECTORY_ORDER=NEW",
            "-DCMAKE_INSTALL_PREFIX=/not/used",
            "-DCMAKE_INSTALL_LIBDIR=/not/used/lib64",
            "-DCMAKE_INSTALL_BINDIR=/not/used/bin",
        ])
        .succeeds();
    project.build(&[]).succeeds();
    let prefix = project.prefix("prefix");
    project.install(&prefix.path, &[]).succeeds();
    prefix.is_split("bin/last");
    prefix.is_split("lib64/libsecond.so");
    assert!(prefix.path.join("lib64/.kpack/order_lib.kpm").exists());
    prefix.verifies();
    assert!(!fs::exists("/not").unwrap());

    let project = Project::new(package, "order");
    project
        .configure(&[
            "-DSUBDIRECTORY_ORDER=NEW",
            "-DCMAKE_INSTALL_PREFIX=/not/used",
            "-DCMAKE_INSTALL_LIBDIR=/not/below",
        ])
        .fails_with("choose a directory below CMAKE_INSTALL_PREFIX (/not/used)");
}
