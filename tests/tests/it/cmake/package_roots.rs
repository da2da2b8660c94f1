//! Packages as users have them: installed with dpkg and rpm into a root of their own, and removed one by
//! one.

use std::path::PathBuf;

use kpack_tests::package_root::PackageRoot;
use kpack_tests::require;

use crate::cmake::package::Package;
use crate::cmake::packages::cpack;
use crate::cmake::project::{Project, ROCM_CMAKE, files_with_extension};

with_each_package!(["cmake", "cpack", "cc", "dpkg", "rpm", "rpmbuild", "ldconfig", "ldd"] =>
    a_gpus_debian_package_can_be_removed,
    a_gpus_rpm_package_can_be_removed,
);

/// The dynamic linker finds the library, and there is device code for these GPUs.
#[track_caller]
fn holds(root: &PackageRoot, archives: &[&str]) {
    let libraries = root.libraries().unwrap();
    assert!(libraries.contains("/opt/rocm/lib/libveclib.so.1"), "{libraries}");
    for target in ["gfx1100", "gfx942"] {
        let archive = format!("opt/rocm/lib/.kpack/veclib_lib_{target}.kpack");
        assert_eq!(root.file(&archive).exists(), archives.contains(&target));
    }
}

/// A project that makes packages with rocm-cmake, and a root to install them in. The host package adds
/// its directory to those of the dynamic linker.
fn packages<'a>(package: &'a Package, generator: &str) -> Option<(Project<'a>, PackageRoot)> {
    if !require::file(ROCM_CMAKE) || !require::root() {
        return None;
    }
    let project = Project::new(package, "rocm");
    project
        .configure(&[&format!("-DCPACK_GENERATOR={generator}"), "-DCMAKE_INSTALL_PREFIX=/opt/rocm"])
        .succeeds();
    project.build(&[]).succeeds();
    cpack(&project, generator);
    let root = PackageRoot::new(&project.scratch().join("root")).unwrap();
    Some((project, root))
}

/// The host package, and the packages for two GPUs.
fn host_and_devices(project: &Project<'_>, extension: &str) -> [PathBuf; 3] {
    let all = files_with_extension(&project.build, extension);
    let named = |wanted: &dyn Fn(&str) -> bool| {
        let found = all.iter().find(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            wanted(name)
        });
        found.unwrap_or_else(|| panic!("{all:?}")).clone()
    };
    [
        named(&|name| !name.contains("gfx") && !name.contains("dev")),
        named(&|name| name.contains("gfx1100")),
        named(&|name| name.contains("gfx942")),
    ]
}

fn a_gpus_debian_package_can_be_removed(package: &Package) {
    let Some((project, root)) = packages(package, "DEB") else {
        return;
    };
    let packages = host_and_devices(&project, ".deb");
    root.dpkg("-i", &packages).unwrap();
    holds(&root, &["gfx1100", "gfx942"]);

    root.dpkg("-r", &["vectools-runtime-gfx1100"]).unwrap();
    holds(&root, &["gfx942"]);
    root.dpkg("-P", &["vectools-runtime-gfx942"]).unwrap();
    holds(&root, &[]);
    root.dpkg("-i", &packages[1..2]).unwrap();
    holds(&root, &["gfx1100"]);
}

fn a_gpus_rpm_package_can_be_removed(package: &Package) {
    let Some((project, root)) = packages(package, "RPM") else {
        return;
    };
    let packages = host_and_devices(&project, ".rpm");
    root.rpm("-i", &packages).unwrap();
    holds(&root, &["gfx1100", "gfx942"]);

    root.rpm("-e", &["vectools-runtime-gfx1100"]).unwrap();
    holds(&root, &["gfx942"]);
    root.rpm("-i", &packages[1..2]).unwrap();
    holds(&root, &["gfx1100", "gfx942"]);
}
