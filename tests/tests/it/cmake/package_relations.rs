//! Dependencies between packages, and their descriptions.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use kpack_format::FAMILIES;

use crate::cmake::package::{Package, root};
use crate::cmake::packages::{control, cpack};
use crate::cmake::project::{Project, files_with_extension, output_of};

with_each_package!(["cmake", "cpack", "cc", "dpkg-deb", "rpm", "rpmbuild"] =>
    a_debian_host_package_recommends_its_device_packages,
    rpm_device_packages_supplement_their_host_package,
    packages_of_families_are_for_each_of_their_gpus,
    the_project_chooses_how_much_it_recommends,
    names_and_versions_of_rpm_packages_are_followed,
    every_package_has_a_summary_of_its_own,
    manifests_say_how_to_install_a_gpus_package,
);

/// The device packages of `packages`, in the order of ARCHITECTURES.
const DEVICES: [&str; 3] =
    ["vectools-lib-gfx1100", "vectools-lib-gfx942", "vectools-lib-gfx90a.xnack-on"];

/// The project `packages`, packaged with these definitions.
fn packed<'a>(package: &'a Package, generator: &str, definitions: &[&str]) -> Project<'a> {
    let project = Project::new(package, "packages");
    project.configure(definitions).succeeds();
    project.build(&[]).succeeds();
    cpack(&project, generator);
    project
}

/// The package file with this start of its name.
fn file(project: &Project<'_>, extension: &str, name: &str) -> PathBuf {
    let all = files_with_extension(&project.build, extension);
    let found = all.iter().find(|path| {
        let file = path.file_name().unwrap().to_str().unwrap();
        file.starts_with(name)
    });
    found.unwrap_or_else(|| panic!("{all:?}")).clone()
}

/// The lines that `rpm -qp` prints, without the requirements of rpm itself.
fn query(package: &Path, option: &str) -> Vec<String> {
    let arguments = ["-qp", option].map(OsStr::new);
    let all = output_of("rpm", &[&arguments[..], &[package.as_os_str()]].concat());
    all.lines().filter(|line| !line.starts_with("rpmlib(")).map(str::to_owned).collect()
}

/// The first line of a Debian package's description, and the others.
fn description(package: &Path) -> (String, String) {
    let text = control(package, "Description");
    let (summary, rest) = text.split_once('\n').unwrap_or((&text, ""));
    (summary.to_owned(), rest.trim().to_owned())
}

fn a_debian_host_package_recommends_its_device_packages(package: &Package) {
    let own = "-DCPACK_DEBIAN_LIB_PACKAGE_RECOMMENDS=vec-doc";
    let project = packed(package, "DEB", &[own]);
    let host = file(&project, ".deb", "vectools-1.2.3-Linux-lib.");
    let devices = DEVICES.map(|name| {
        let processor = name.split(['-', '.']).nth(2).unwrap();
        format!("{name} (= 1.2.3) | kpack-without-{processor}")
    });
    let devices = devices.join(", ");
    assert_eq!(control(&host, "Recommends"), format!("vec-doc, {devices}"));
    assert_eq!(control(&host, "Suggests"), "");
}

fn rpm_device_packages_supplement_their_host_package(package: &Package) {
    let project = packed(package, "RPM", &[]);
    let host = file(&project, ".rpm", "vectools-1.2.3-Linux-lib.");
    assert_eq!(query(&host, "--recommends"), [""; 0]);
    let device = file(&project, ".rpm", "vectools-1.2.3-Linux-lib-gfx1100");
    let requires = query(&device, "--requires");
    assert_eq!(requires, ["vectools-lib = 1.2.3-1"]);
    let device = file(&project, ".rpm", "vectools-1.2.3-Linux-lib-gfx90a");
    assert_eq!(
        query(&device, "--supplements"),
        ["(vectools-lib and kpack-gpu(gfx90a))", "(vectools-lib unless kpack-gpu-named)"]
    );
}

/// Files such as AOTriton's images, which no archive has.
fn packages_of_families_are_for_each_of_their_gpus(package: &Package) {
    let project = packed(package, "DEB;RPM", &["-DFAMILY=gfx110x"]);
    let host = file(&project, ".deb", "vectools-1.2.3-Linux-lib.");
    let own = "vectools-lib-gfx110x (= 1.2.3) | kpack-without-gfx110x";
    let recommends = control(&host, "Recommends");
    assert!(recommends.contains(own), "{recommends}");
    let family = file(&project, ".deb", "vectools-1.2.3-Linux-lib-gfx110x");
    assert_eq!(control(&family, "Depends"), "vectools-lib (= 1.2.3)");
    let family = file(&project, ".rpm", "vectools-1.2.3-Linux-lib-gfx110x");
    assert_eq!(query(&family, "--requires"), ["vectools-lib = 1.2.3-1"]);
    assert_eq!(
        query(&family, "--supplements"),
        ["(vectools-lib and kpack-gpu(gfx110x))", "(vectools-lib unless kpack-gpu-named)"]
    );
    let files = query(&family, "--list");
    assert!(files.iter().any(|file| file.ends_with("/amd-gfx110x/CMakeLists.txt")));

    // As the packages that name a machine's GPU provide them.
    let families =
        FAMILIES.iter().map(|(name, pattern)| if name.contains('_') { *pattern } else { *name });
    let families = Vec::from_iter(families);

    let macros = fs::read_to_string(root().join("packaging/rpm/macros.kpack"));
    let list = format!("\n%_kpack_families {}\n", families.join(" "));
    assert!(macros.unwrap().contains(&list), "expected {list}");
    for name in ["gfx1100", "gfx11xx", "navi", "gfx99x", "gfx4"] {
        let project = Project::new(package, "packages");
        let expected = families.join(", ");
        let said = format!("FAMILY is \"{name}\" (expected a family of GPUs: {expected}).");
        project.configure(&[&format!("-DFAMILY={name}")]).fails_with(&said);
    }
}

fn the_project_chooses_how_much_it_recommends(package: &Package) {
    let project = packed(package, "DEB;RPM", &["-DKPACK_DEVICE_PACKAGES=suggest"]);
    let host = file(&project, ".deb", "vectools-1.2.3-Linux-lib.");
    assert_eq!(control(&host, "Recommends"), "");
    assert!(control(&host, "Suggests").contains("vectools-lib-gfx942 (= 1.2.3)"));
    let host = file(&project, ".rpm", "vectools-1.2.3-Linux-lib.");
    assert_eq!(query(&host, "--recommends"), [""; 0]);
    assert_eq!(query(&host, "--suggests").len(), DEVICES.len());

    let project = packed(package, "DEB;RPM", &["-DKPACK_DEVICE_PACKAGES=none"]);
    let host = file(&project, ".deb", "vectools-1.2.3-Linux-lib.");
    assert_eq!(control(&host, "Recommends") + &control(&host, "Suggests"), "");
    let host = file(&project, ".rpm", "vectools-1.2.3-Linux-lib.");
    assert_eq!(query(&host, "--suggests"), [""; 0]);

    let project = Project::new(package, "packages");
    project
        .configure(&["-DKPACK_DEVICE_PACKAGES=some"])
        .fails_with("KPACK_DEVICE_PACKAGES is \"some\" (expected recommend, suggest or none).");
}

fn names_and_versions_of_rpm_packages_are_followed(package: &Package) {
    let project = packed(
        package,
        "RPM",
        &[
            "-DCPACK_RPM_LIB_PACKAGE_NAME=libvec1",
            "-DCPACK_RPM_PACKAGE_RELEASE=4",
            "-DCPACK_RPM_PACKAGE_EPOCH=2",
            "-DCPACK_RPM_LIB_PACKAGE_PROVIDES=vec",
        ],
    );
    let device = file(&project, ".rpm", "vectools-1.2.3-Linux-lib-gfx90a");
    assert_eq!(
        query(&device, "--qf=%{NAME} %{EPOCH}:%{VERSION}-%{RELEASE}"),
        ["libvec1-gfx90a.xnack-on 2:1.2.3-4"]
    );
    assert_eq!(query(&device, "--requires"), ["libvec1 = 2:1.2.3-4"]);
    let host = file(&project, ".rpm", "vectools-1.2.3-Linux-lib.");
    assert_eq!(query(&host, "--qf=%{NAME}"), ["libvec1"]);
    assert!(query(&host, "--provides").contains(&"vec".to_owned()));
    assert_eq!(query(&device, "--supplements")[0], "(libvec1 and kpack-gpu(gfx90a))");
}

fn every_package_has_a_summary_of_its_own(package: &Package) {
    // A project without a summary.
    let project = packed(package, "DEB;RPM", &[]);
    let device = "vectools-1.2.3-Linux-lib-gfx1100";
    let summary = "vectools lib - device code for gfx1100";
    assert_eq!(
        description(&file(&project, ".deb", device)),
        (summary.to_owned(), "GPU code of component lib for gfx1100.".to_owned())
    );
    let device = file(&project, ".rpm", device);
    assert_eq!(query(&device, "--qf=%{SUMMARY}"), [summary]);

    // A project with a summary and descriptions of its components: these stay as CPack makes them.
    let project = packed(
        package,
        "DEB;RPM",
        &[
            "-DCPACK_PACKAGE_DESCRIPTION_SUMMARY=Vector tools",
            "-DCPACK_COMPONENT_LIB_DESCRIPTION=Adds and multiplies.",
        ],
    );
    let summary = "Vector tools - device code for gfx90a:xnack+";
    let device = "vectools-1.2.3-Linux-lib-gfx90a";
    assert_eq!(description(&file(&project, ".deb", device)).0, summary);
    let device = file(&project, ".rpm", device);
    assert_eq!(query(&device, "--qf=%{SUMMARY}"), [summary]);
    assert_eq!(
        description(&file(&project, ".deb", "vectools-1.2.3-Linux-lib.")),
        ("Vector tools".to_owned(), "Adds and multiplies.".to_owned())
    );
}

/// The names of packages are known when cpack runs. A manifest that no package holds has no hint.
fn manifests_say_how_to_install_a_gpus_package(package: &Package) {
    let hint = |project: &Project<'_>, directory: &str| {
        let manifests = walkdir::WalkDir::new(project.build.join(directory)).into_iter();
        let manifest = manifests
            .map(|entry| entry.unwrap().into_path())
            .find(|path| path.ends_with("lib/.kpack/veclib_lib.kpm"))
            .unwrap();
        let shown = output_of(&package.helper, &[OsStr::new("show"), manifest.as_os_str()]);
        let line = shown.lines().find_map(|line| line.strip_prefix("install hint: "));
        line.map(str::to_owned)
    };
    let own = "-DCPACK_RPM_LIB_PACKAGE_NAME=libvec1";
    let project = packed(package, "TGZ;DEB;RPM", &[own]);
    let staged = |generator: &str| hint(&project, &format!("_CPack_Packages/Linux/{generator}"));
    assert_eq!(staged("DEB").unwrap(), "apt install vectools-lib-@GFXARCH@");
    let rpm = staged("RPM").unwrap();
    assert!(rpm.ends_with(" install libvec1-@GFXARCH@"), "{rpm}");
    assert_eq!(staged("TGZ"), None);

    // One package has an unrelated name.
    let other = "-DCPACK_DEBIAN_LIB-GFX942_PACKAGE_NAME=vec-for-mi300";
    let project = packed(package, "DEB", &[other]);
    assert_eq!(hint(&project, "_CPack_Packages/Linux/DEB"), None);
}
