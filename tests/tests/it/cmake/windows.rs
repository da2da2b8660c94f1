//! DLLs and programs for Windows, cross-compiled with a toolchain file.

use std::process::Command;

use crate::cmake::package::Package;
use crate::cmake::project::{Project, Run, define};

with_each_package!(["cmake", "x86_64-w64-mingw32-gcc-posix", "ninja"] =>
    dlls_are_split_where_they_are_installed,
    what_windows_has_not_is_rejected,
);

fn dlls_are_split_where_they_are_installed(package: &Package) {
    let project = Project::new(package, "windows");
    let toolchain = toolchain(&project);
    project.configure(&["-GNinja", &toolchain]).succeeds();
    project.build(&[]).succeeds();
    let prefix = project.prefix("prefix");
    for _ in 0..2 {
        project.install(&prefix.path, &["--strip"]).succeeds();
        prefix.has_exactly(&[
            "bin/vec.dll",
            "bin/vecapp.exe",
            "lib/.kpack/vec_lib.kpm",
            "lib/.kpack/vec_lib_gfx1100.kpack",
            "lib/.kpack/vec_lib_gfx90a-xnack+.kpack",
            "lib/.kpack/vec_lib_gfx942.kpack",
            "lib/libvec.dll.a",
        ]);
        for binary in ["bin/vec.dll", "bin/vecapp.exe"] {
            let path = prefix.path.join(binary);
            Run::of(Command::new(&package.helper).arg("show").arg(path))
                .succeeds()
                .says("split binary");
        }
        prefix.verifies();
    }
}

fn what_windows_has_not_is_rejected(package: &Package) {
    for (argument, text) in [
        ("RUNTIME_SHIM", "there is no shim for Windows"),
        ("SPLIT_AT;compile", "does not split objects for Windows"),
    ] {
        let project = Project::new(package, "windows");
        let argument = format!("-DARGUMENTS={argument}");
        let run = project.configure(&["-GNinja", &toolchain(&project), &argument]);
        run.fails_with(text);
    }
}

fn toolchain(project: &Project<'_>) -> String {
    define("CMAKE_TOOLCHAIN_FILE", project.source.join("toolchain.cmake"))
}
