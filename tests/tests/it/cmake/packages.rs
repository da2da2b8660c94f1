//! DEVICE_COMPONENTS: one package for the host and one for each target, installed into one prefix.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use kpack_tests::page::Page;
use kpack_tests::require;

use crate::cmake::package::{self, Package};
use crate::cmake::prefix::Prefix;
use crate::cmake::project::{Project, ROCM_CMAKE, Run, TARGETS, files_with_extension, output_of};

with_each_package!(["cmake", "cpack", "cc", "readelf", "dpkg-deb", "tar"] =>
    device_components_give_what_a_plain_install_gives,
    cpack_makes_debian_packages,
    cpack_makes_archives,
    names_and_versions_of_packages_are_followed,
    one_package_holds_everything,
    packages_of_rocm_cmake_are_split,
    the_example_of_the_guide_works,
);

/// The files that the project `packages` installs, apart from the kpacks.
const HOST: [&str; 5] = [
    "bin/vecapp",
    "lib/.kpack/veclib_lib.kpm",
    "lib/libveclib.so -> libveclib.so.1",
    "lib/libveclib.so.1 -> libveclib.so.1.2.3",
    "lib/libveclib.so.1.2.3",
];

fn kpack_of(target: &str) -> String {
    format!("lib/.kpack/veclib_lib_{target}.kpack")
}

fn has_host_and(prefix: &Prefix<'_>, targets: &[&str]) {
    let kpacks: Vec<String> = targets.iter().map(|target| kpack_of(target)).collect();
    let expected: Vec<&str> = HOST.into_iter().chain(kpacks.iter().map(String::as_str)).collect();
    prefix.has_exactly(&expected);
}

/// The packages in one prefix work.
fn works(prefix: &Prefix<'_>) {
    has_host_and(prefix, &TARGETS);
    prefix.is_split("lib/libveclib.so.1.2.3");
    prefix.is_split("bin/vecapp");
    prefix.verifies();
    prefix.runs_split("bin/vecapp");
}

fn device_components_give_what_a_plain_install_gives(package: &Package) {
    let project = Project::built(package, "packages");
    let all = project.prefix("all");
    for _ in 0..2 {
        project.install(&all.path, &[]).succeeds();
        works(&all);
    }

    // Install one component after the other, in any order.
    let one_by_one = project.prefix("one-by-one");
    for component in ["lib-gfx942", "lib", "lib-gfx90a.xnack-on", "lib-gfx1100"] {
        project.install(&one_by_one.path, &["--component", component]).succeeds();
    }
    assert_eq!(one_by_one.contents(), all.contents());

    // Install all at once.
    let at_once = project.prefix("at-once");
    std::thread::scope(|scope| {
        for component in ["lib", "lib-gfx942", "lib-gfx90a.xnack-on", "lib-gfx1100"] {
            let install = || {
                project.install(&at_once.path, &["--component", component]).succeeds();
            };
            scope.spawn(install);
        }
    });
    assert_eq!(at_once.contents(), all.contents());

    // Install each alone: the host files, or nothing but the kpack.
    let host = project.prefix("host");
    project.install(&host.path, &["--component", "lib"]).succeeds();
    has_host_and(&host, &[]);
    host.is_split_without_kpacks("bin/vecapp");
    let device = project.prefix("device");
    project.install(&device.path, &["--component", "lib-gfx90a.xnack-on"]).succeeds();
    device.has_exactly(&["lib/.kpack/veclib_lib_gfx90a:xnack+.kpack"]);
}

pub(crate) fn control(package: &Path, field: &str) -> String {
    let arguments = [OsStr::new("-f"), package.as_os_str(), OsStr::new(field)];
    output_of("dpkg-deb", &arguments).trim().to_owned()
}

pub(crate) fn cpack(project: &Project<'_>, generator: &str) {
    let mut command = Command::new("cpack");
    Run::of(command.current_dir(&project.build).args(["-G", generator])).succeeds();
}

fn unpack(packages: &[std::path::PathBuf], prefix: &Prefix<'_>) {
    std::fs::create_dir_all(&prefix.path).unwrap();
    for package in packages {
        let arguments = [OsStr::new("-x"), package.as_os_str(), prefix.path.as_os_str()];
        output_of("dpkg-deb", &arguments);
    }
}

fn cpack_makes_debian_packages(package: &Package) {
    let project = Project::built(package, "packages");
    cpack(&project, "DEB");
    let packages = files_with_extension(&project.build, ".deb");
    let described: Vec<[String; 3]> = packages
        .iter()
        .map(|package| ["Package", "Version", "Depends"].map(|field| control(package, field)))
        .collect();
    let depends = "vectools-lib (= 1.2.3)";
    assert_eq!(
        described,
        [
            ["vectools-lib-gfx1100", "1.2.3", depends],
            ["vectools-lib-gfx90a.xnack-on", "1.2.3", depends],
            ["vectools-lib-gfx942", "1.2.3", depends],
            ["vectools-lib", "1.2.3", ""],
        ]
    );

    let root = project.prefix("root");
    unpack(&packages, &root);
    let usr = project.prefix("root/usr");
    works(&usr);
    assert!(!usr.readelf("-SW", "bin/vecapp").contains(".symtab"), "CPACK_STRIP_FILES was on");

    // With the package of one target, the tree verifies for that target.
    let partly = project.prefix("partly");
    unpack(&[packages[1].clone(), packages[3].clone()], &partly);
    let usr = project.prefix("partly/usr");
    has_host_and(&usr, &["gfx90a:xnack+"]);
    let mut verify = Command::new(&package.helper);
    verify.arg("verify").arg(&usr.path).args(["--arch", "gfx90a:xnack+"]);
    Run::of(&mut verify).succeeds();
}

fn cpack_makes_archives(package: &Package) {
    let project = Project::built(package, "packages");
    cpack(&project, "TGZ");
    let archives = files_with_extension(&project.build, ".tar.gz");
    let names: Vec<&str> =
        archives.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "vectools-1.2.3-Linux-lib-gfx1100.tar.gz",
            "vectools-1.2.3-Linux-lib-gfx90a.xnack-on.tar.gz",
            "vectools-1.2.3-Linux-lib-gfx942.tar.gz",
            "vectools-1.2.3-Linux-lib.tar.gz",
        ]
    );
    let root = project.prefix("root");
    std::fs::create_dir_all(&root.path).unwrap();
    for archive in &archives {
        let arguments =
            [OsStr::new("-xf"), archive.as_os_str(), OsStr::new("-C"), root.path.as_os_str()];
        output_of("tar", &arguments);
    }
    works(&root);
}

/// A project that wants one package gets one that works.
fn one_package_holds_everything(package: &Package) {
    let project = Project::new(package, "packages");
    project.configure(&["-DCPACK_DEB_COMPONENT_INSTALL=OFF"]).succeeds();
    project.build(&[]).succeeds();
    cpack(&project, "DEB");
    let packages = files_with_extension(&project.build, ".deb");
    assert_eq!(packages.len(), 1, "{packages:?}");
    unpack(&packages, &project.prefix("root"));
    works(&project.prefix("root/usr"));
}

/// The host's package has its own name, epoch and release.
fn names_and_versions_of_packages_are_followed(package: &Package) {
    let project = Project::new(package, "packages");
    project
        .configure(&[
            "-DCPACK_DEBIAN_LIB_PACKAGE_NAME=libvec1",
            "-DCPACK_DEBIAN_PACKAGE_RELEASE=4",
            "-DCPACK_DEBIAN_PACKAGE_EPOCH=2",
        ])
        .succeeds();
    project.build(&[]).succeeds();
    cpack(&project, "DEB");
    let packages = files_with_extension(&project.build, ".deb");
    let device = packages.iter().find(|path| path.to_str().unwrap().contains("xnack")).unwrap();
    assert_eq!(control(device, "Package"), "libvec1-gfx90a.xnack-on");
    assert_eq!(control(device, "Depends"), "libvec1 (= 2:1.2.3-4)");
    assert_eq!(control(packages.last().unwrap(), "Version"), "2:1.2.3-4");
}

fn packages_of_rocm_cmake_are_split(package: &Package) {
    if !require::file(ROCM_CMAKE) {
        return;
    }
    let project = Project::new(package, "rocm");
    project.configure(&["-DCPACK_GENERATOR=DEB", "-DCMAKE_INSTALL_PREFIX=/usr"]).succeeds();
    project.build(&[]).succeeds();

    let prefix = project.prefix("prefix");
    project.install(&prefix.path, &[]).succeeds();
    prefix.is_split("lib/libveclib.so.1.2.3");
    prefix.is_split("bin/vecapp");
    prefix.verifies();

    cpack(&project, "DEB");
    let packages = files_with_extension(&project.build, ".deb");
    let mut named: Vec<[String; 2]> = packages
        .iter()
        .map(|package| ["Package", "Depends"].map(|field| control(package, field)))
        .collect();
    named.sort();
    let names: Vec<&str> = named.iter().map(|[name, _]| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "vectools",
            "vectools-dev",
            "vectools-runtime-gfx1100",
            "vectools-runtime-gfx90a.xnack-on",
            "vectools-runtime-gfx942",
        ]
    );
    for [name, depends] in &named[2..] {
        assert!(depends.starts_with("vectools (= 1.2.3"), "{name} depends on {depends}");
    }
    let root = project.prefix("root");
    unpack(&packages, &root);
    let usr = project.prefix("root/usr");
    usr.is_split("lib/libveclib.so.1.2.3");
    usr.is_split("bin/vecapp");
    usr.verifies();
}

/// The first example of `docs/cmake.md`, as a reader would paste it.
fn the_example_of_the_guide_works(package: &Package) {
    if !require::tools(&["clang++-19", "ld.lld-19"]) {
        return;
    }
    let guide = Page::read("docs/cmake.md");
    let block = |language: &str| guide.blocks(language).remove(0);
    let mut project = Project::new(package, "guide");
    project.source = project.scratch().join("source");
    std::fs::create_dir(&project.source).unwrap();
    std::fs::write(project.source.join("CMakeLists.txt"), block("cmake")).unwrap();
    std::fs::write(project.source.join("vec.cpp"), block("cpp")).unwrap();
    // A HIP header of the tests, and no runtime.
    let header = package::root().join("tests/e2e/hip");
    let flags = format!("-DCMAKE_CXX_FLAGS=-nogpuinc -nogpulib -I{}", header.display());
    let compiler = "-DCMAKE_CXX_COMPILER=clang++-19";
    project.configure(&[compiler, &flags, "-DHIP_RUNTIME=m"]).succeeds();
    project.build(&[]).succeeds();

    let prefix = project.prefix("prefix");
    project.install(&prefix.path, &[]).succeeds();
    prefix.is_split("lib/libvec.so");
    prefix.verifies();
    cpack(&project, "DEB");
    let names: Vec<String> = files_with_extension(&project.build, ".deb")
        .iter()
        .map(|package| control(package, "Package"))
        .collect();
    for name in &names {
        assert!(block("sh").contains(name), "the guide does not mention {name}");
    }
    assert_eq!(names.len(), 3, "{names:?}");
}
