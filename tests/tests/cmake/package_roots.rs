//! Packages as a machine has them: installed with dpkg and rpm into a root of their own, and removed
//! again one by one.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::package::Package;
use crate::packages::cpack;
use crate::project::{Project, Run, files_with_extension, one_file_is_there};

with_each_package!(["cmake", "cpack", "cc", "dpkg", "rpm", "rpmbuild", "ldconfig", "ldd"] =>
    a_gpus_debian_package_can_be_removed,
    a_gpus_rpm_package_can_be_removed,
);

/// What the maintainer scripts run.
const PROGRAMS: [&str; 3] = ["/bin/sh", "/bin/rm", "/sbin/ldconfig"];

/// A directory with as much of a system as the scripts of packages need.
struct Root {
    path: PathBuf,
}

impl Root {
    fn new(path: PathBuf) -> Self {
        let root = Self { path };
        for directory in [
            "etc/ld.so.conf.d",
            "tmp",
            "var/cache/ldconfig",
            "var/lib/rpm",
        ] {
            fs::create_dir_all(root.inside(directory)).unwrap();
        }
        fs::write(
            root.inside("etc/ld.so.conf"),
            "include /etc/ld.so.conf.d/*.conf\n",
        )
        .unwrap();
        for directory in ["info", "updates", "triggers"] {
            fs::create_dir_all(root.inside("var/lib/dpkg").join(directory)).unwrap();
        }
        fs::write(root.inside("var/lib/dpkg/status"), "").unwrap();
        for program in PROGRAMS {
            root.copy(program);
            for word in Run::of(Command::new("ldd").arg(program))
                .output
                .split_whitespace()
            {
                if word.starts_with('/') {
                    root.copy(word);
                }
            }
        }
        root
    }

    fn inside(&self, path: &str) -> PathBuf {
        self.path.join(path.trim_start_matches('/'))
    }

    fn copy(&self, file: &str) {
        let to = self.inside(file);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(file, &to).unwrap();
        fs::set_permissions(&to, Permissions::from_mode(0o755)).unwrap();
    }

    fn dpkg(&self, arguments: &[&str], packages: &[&Path]) {
        let mut dpkg = Command::new("dpkg");
        // The packages that the host's depend on are not there.
        dpkg.arg("--force-depends").arg("--root").arg(&self.path);
        Run::of(dpkg.args(arguments).args(packages)).succeeds();
    }

    fn rpm(&self, arguments: &[&str], packages: &[&Path]) {
        let mut rpm = Command::new("rpm");
        rpm.arg("--root")
            .arg(&self.path)
            .args(["--dbpath", "/var/lib/rpm"]);
        Run::of(rpm.arg("--nodeps").args(arguments).args(packages)).succeeds();
    }

    /// The dynamic linker finds the library.
    #[track_caller]
    fn finds_the_library(&self) {
        let mut ldconfig = Command::new("ldconfig");
        Run::of(ldconfig.arg("-r").arg(&self.path).arg("-p"))
            .succeeds()
            .says("/opt/rocm/lib/libveclib.so.1");
    }

    #[track_caller]
    fn has(&self, archives: &[&str]) {
        for target in ["gfx1100", "gfx942"] {
            let archive = format!("opt/rocm/lib/.kpack/veclib_lib_{target}.kpack");
            assert_eq!(self.inside(&archive).exists(), archives.contains(&target));
        }
    }
}

/// The packages of a project with rocm-cmake, whose host package adds its directory to those of the
/// dynamic linker; and a root to install them in.
fn packages<'a>(package: &'a Package, generator: &str) -> Option<(Project<'a>, Root)> {
    if !one_file_is_there(&["/usr/share/rocm/cmake/ROCMConfig.cmake"]) {
        return None;
    }
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        kpack_tests::require::skip("only root may install packages, even into a root of their own");
        return None;
    }
    let project = Project::new(package, "rocm");
    project
        .configure(&[
            &format!("-DCPACK_GENERATOR={generator}"),
            "-DCMAKE_INSTALL_PREFIX=/opt/rocm",
        ])
        .succeeds();
    project.build(&[]).succeeds();
    cpack(&project, generator);
    let root = Root::new(project.scratch().join("root"));
    Some((project, root))
}

/// The package of the host, and those of two GPUs.
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
    root.dpkg(&["-i"], &packages.each_ref().map(PathBuf::as_path));
    root.finds_the_library();
    root.has(&["gfx1100", "gfx942"]);

    root.dpkg(&["-r", "vectools-runtime-gfx1100"], &[]);
    root.has(&["gfx942"]);
    root.finds_the_library();
    // As well as it can be removed altogether, and installed again.
    root.dpkg(&["-P", "vectools-runtime-gfx942"], &[]);
    root.has(&[]);
    root.finds_the_library();
    root.dpkg(&["-i"], &[&packages[1]]);
    root.has(&["gfx1100"]);
    root.finds_the_library();
}

fn a_gpus_rpm_package_can_be_removed(package: &Package) {
    let Some((project, root)) = packages(package, "RPM") else {
        return;
    };
    let packages = host_and_devices(&project, ".rpm");
    root.rpm(&["-i"], &packages.each_ref().map(PathBuf::as_path));
    root.finds_the_library();
    root.has(&["gfx1100", "gfx942"]);

    root.rpm(&["-e", "vectools-runtime-gfx1100"], &[]);
    root.has(&["gfx942"]);
    root.finds_the_library();
    root.rpm(&["-i"], &[&packages[1]]);
    root.has(&["gfx1100", "gfx942"]);
    root.finds_the_library();
}
