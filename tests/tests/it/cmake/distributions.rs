//! Packages as distributions make them, from `packaging/examples/vec`: with dpkg-buildpackage and rpmbuild, and
//! what installed kpack has for them. Then apt, dnf and dpkg choose and install them in roots of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kpack_tests::lintian::lintian;
use kpack_tests::package_root::PackageRoot;
use kpack_tests::page::{Page, Reader};
use kpack_tests::require;
use kpack_tests::tree::{Tree, write};
use tempfile::TempDir;

use crate::cmake::package::{self, dist_prefix};
use crate::cmake::packages::control;
use crate::cmake::project::{Run, files_with_extension};

/// The targets of the example, and what packages are called after them.
const TARGETS: [(&str, &str); 3] =
    [("gfx1100", "gfx1100"), ("gfx90a:xnack+", "gfx90a.xnack-on"), ("gfx942", "gfx942")];

/// What builds the example.
const COMPILER: [&str; 4] = ["cmake", "clang++-19", "ld.lld-19", "hipcc"];

/// A program in the environment of a machine where kpack is installed.
fn with_kpack(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", dist_prefix().join("bin").display()));
    command.env("PERL5LIB", dist_prefix().join("share/perl5"));
    for variable in ["MAKEFLAGS", "MAKELEVEL", "DESTDIR", "CFLAGS", "CXXFLAGS"] {
        command.env_remove(variable);
    }
    command
}

fn copy(from: &Path, to: &Path) {
    Run::of(Command::new("cp").arg("-r").args([from, to])).succeeds();
}

/// The example's source, in a scratch directory.
struct Source {
    scratch: TempDir,
}

impl Source {
    fn new() -> Self {
        let scratch = TempDir::with_prefix_in("vec-", package::scratch()).unwrap();
        let example = package::root().join("packaging/examples/vec");
        copy(&example, &scratch.path().join("vec-1.2.3"));
        Self { scratch }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Changes a file of the source.
    fn edit(&self, name: &str, edit: impl Fn(&str) -> String) {
        let file = self.path("vec-1.2.3").join(name);
        let text = fs::read_to_string(&file).unwrap();
        let edited = edit(&text);
        assert_ne!(text, edited, "{name}");
        fs::write(file, edited).unwrap();
    }

    fn debian(&self) -> Run {
        let mut build = with_kpack("dpkg-buildpackage");
        build.args(["-b", "-uc", "-us", "-d"]);
        Run::of(build.current_dir(self.path("vec-1.2.3")))
    }

    fn rpm(&self) -> Run {
        let archive = self.path("rpm/SOURCES/vec-1.2.3.tar.gz");
        fs::create_dir_all(archive.parent().unwrap()).unwrap();
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(self.scratch.path()).arg("-czf").arg(archive);
        Run::of(tar.arg("vec-1.2.3")).succeeds();
        let mut build = with_kpack("rpmbuild");
        build.args(["--nodeps", "-bb", "--define", "_lib lib64", "--define", "_libdir /usr/lib64"]);
        build.args(["--define", "clangxx clang++-19", "--define"]);
        build.arg(format!("_topdir {}", self.path("rpm").display()));
        build.arg("--load").arg(dist_prefix().join("lib/rpm/macros.d/macros.kpack"));
        Run::of(build.arg(self.path("vec-1.2.3/vec.spec")))
    }

    /// The package that says which GPUs a machine has, in the directory `repository`.
    fn gpu_package(&self, kind: &str, targets: &[&str]) {
        let mut make = Command::new(dist_prefix().join("bin/kpack-gpu-package"));
        make.arg(kind).arg("--output").arg(self.path("repository"));
        Run::of(make.args(targets)).succeeds();
    }

    /// The file of a Debian package.
    fn deb(&self, name: &str) -> PathBuf {
        let all = files_with_extension(self.scratch.path(), ".deb");
        let start = format!("{name}_");
        let named =
            |path: &&PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&start);
        all.iter().find(named).unwrap_or_else(|| panic!("{all:?}")).clone()
    }
}

fn kpack(arguments: &[&str], path: &Path) -> Run {
    let mut kpack = Command::new(dist_prefix().join("bin/kpack"));
    Run::of(kpack.args(&arguments[..1]).arg(path).args(&arguments[1..]))
}

fn has_debian_tools() -> bool {
    require::tools(&COMPILER) && require::tools(&["dpkg-buildpackage", "dh", "dpkg-deb", "lintian"])
}

/// With the package of one GPU, the installed tree is complete for it.
#[test]
fn a_debian_package_for_each_gpu() {
    if !has_debian_tools() {
        return;
    }
    let source = Source::new();
    source.debian().succeeds();
    let mut recommends = Vec::new();
    for (target, name) in TARGETS {
        let device = source.deb(&format!("libvec1-{name}"));
        let processor = name.split('.').next().unwrap();
        recommends.push(format!("libvec1-{name} (= 1.2.3-1) | kpack-without-{processor}"));
        assert_eq!(control(&device, "Depends"), "libvec1 (= 1.2.3-1)");
        assert_eq!(control(&device, "Multi-Arch"), "same");
        let root = source.path(name);
        for package in [source.deb("libvec1"), device] {
            Run::of(Command::new("dpkg-deb").arg("-x").arg(package).arg(&root)).succeeds();
        }
        kpack(&["verify", "--arch", target], &root.join("usr")).succeeds();
        let archives =
            files_with_extension(&root.join("usr/lib/x86_64-linux-gnu/.kpack"), ".kpack");
        assert_eq!(archives.len(), 1, "{archives:?}");
    }
    assert_eq!(control(&source.deb("libvec1"), "Recommends"), recommends.join(", "));
    let manifest = source.path("gfx942/usr/lib/x86_64-linux-gnu/.kpack/libvec1_lib.kpm");
    kpack(&["show"], &manifest).says("install hint: apt install libvec1-@GFXARCH@");

    // The changelog closes no report that the package is missing, and packages have the field of Debian's ROCm packages.
    let changes = files_with_extension(source.scratch.path(), ".changes");
    lintian(changes, &["initial-upload-closes-no-bugs", "unknown-field"]).unwrap();
}

/// The build has split the binaries: dh_kpack only moves the archives.
#[test]
fn dh_kpack_takes_archives_of_the_build() {
    if !has_debian_tools() {
        return;
    }
    let source = Source::new();
    source.edit("CMakeLists.txt", |text| {
        let package = dist_prefix().join("lib/cmake/Kpack");
        let find = format!(
            "find_package(Kpack REQUIRED PATHS {})\nkpack_install(MODULE vec TARGETS vec",
            package.display()
        );
        text.replace("install(TARGETS vec", &find)
    });
    source.edit("debian/libvec1.install", |text| format!("{text}usr/lib/*/.kpack\n"));
    source.debian().succeeds();
    for (_, name) in TARGETS {
        let device = source.deb(&format!("libvec1-{name}"));
        Run::of(Command::new("dpkg-deb").arg("-c").arg(device)).says("/.kpack/vec_lib_gfx");
    }
}

/// Files for several processors, such as AOTriton's images, are for each machine with one of these.
#[test]
fn a_package_of_a_family_is_for_each_of_its_processors() {
    if !has_debian_tools() {
        return;
    }
    let source = Source::new();
    source.edit("debian/control", |text| {
        let device = text.split("\n\n").find(|part| part.starts_with("Package: libvec1-gfx1100"));
        format!("{text}\n{}\n", device.unwrap().replace("gfx1100", "gfx110x"))
    });
    source.debian().fails_with(
        "libvec1-gfx110x is empty: list the files for gfx110x in debian/libvec1-gfx110x.install",
    );
    let install = source.path("vec-1.2.3/debian/libvec1-gfx110x.install");
    fs::write(install, "vec.h usr/share/vec/amd-gfx110x\n").unwrap();
    source.debian().succeeds();
    assert_eq!(control(&source.deb("libvec1-gfx110x"), "Depends"), "libvec1 (= 1.2.3-1)");
    let recommends = control(&source.deb("libvec1"), "Recommends");
    let own = "libvec1-gfx110x (= 1.2.3-1) | kpack-without-gfx110x";
    assert!(recommends.contains(own), "{recommends}");
    for (gpu, has) in [("gfx1101", true), ("gfx1151", false)] {
        source.gpu_package("--deb", &[gpu]);
        let start = format!("kpack-gpu-{gpu}_");
        let made = files_with_extension(&source.path("repository"), ".deb");
        let is_own = |path: &&PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with(&start)
        };
        let lacks = control(made.iter().find(is_own).unwrap(), "Provides");
        let lacks =
            |name: &str| lacks.split(", ").any(|own| own == format!("kpack-without-{name}"));
        assert_eq!(lacks("gfx110x"), !has, "{gpu}");
        assert!(!lacks("gfx11") && lacks("gfx120x"), "{gpu}");
    }
}

/// As after a run that failed in another package.
#[test]
fn dh_kpack_can_run_again() {
    if !has_debian_tools() {
        return;
    }
    let source = Source::new();
    source.edit("debian/rules", |text| format!("{text}\nexecute_after_dh_kpack:\n\tdh_kpack\n"));
    source.debian().succeeds();
    let (_, name) = TARGETS[0];
    let device = source.deb(&format!("libvec1-{name}"));
    assert_eq!(control(&device, "Depends"), "libvec1 (= 1.2.3-1)");
    Run::of(Command::new("dpkg-deb").arg("-c").arg(device))
        .says("/.kpack/libvec1_lib_gfx1100.kpack");
    let recommends = control(&source.deb("libvec1"), "Recommends");
    assert_eq!(recommends.split(", ").count(), TARGETS.len(), "{recommends}");
}

#[test]
fn a_gpu_package_is_for_gpus() {
    for (target, said) in [
        (
            "gfx11-generic",
            "gfx11-generic is not a GPU, but code for several of them; name the machine's own, one of gfx1100 gfx1101",
        ),
        ("amdgcnspirv", "amdgcnspirv is not a GPU"),
    ] {
        let mut make = Command::new(dist_prefix().join("bin/kpack-gpu-package"));
        make.args(["--output", "/nonexistent", "--deb", "gfx1100", target]);
        Run::of(&mut make).fails_with(said);
    }
}

/// The commands of the page for those who run a repository.
#[test]
fn a_repository_has_a_package_for_each_gpu() {
    if !require::tools(&["dpkg-deb"]) {
        return;
    }
    let tree = Tree::new();
    let kpack = dist_prefix().join("bin/kpack");
    let page = Page::read("docs/packages.md");
    Reader::new(tree.root(), &kpack).run(&page.commands("for gpu in"));
    let mut list = Command::new(kpack.with_file_name("kpack-gpu-package"));
    let listed = Run::of(list.arg("--list")).succeeds().output;
    let made = files_with_extension(&tree.path("repository"), ".deb");
    assert_eq!(made.len(), listed.lines().count());
}

#[test]
fn dh_kpack_refuses_empty_and_forgotten_packages() {
    if !has_debian_tools() {
        return;
    }
    let source = Source::new();
    source.edit("debian/libvec1.install", |_| "usr/include\n".to_owned());
    source.debian().fails_with(
        "libvec1 has device packages in debian/control, but no binary with GPU code: list its files in debian/libvec1.install",
    );

    let source = Source::new();
    source.edit("debian/control", |text| text.replace("libvec1-gfx942", "libvec1-gfx1201"));
    source.debian().fails_with("no device code for gfx1201");

    let source = Source::new();
    source.edit("debian/control", |text| {
        let (before, rest) = text.split_once("Package: libvec1-gfx942\n").unwrap();
        format!("{before}{}", rest.split_once("\n\n").unwrap().1)
    });
    source.debian().fails_with("has device code for gfx942; expected only gfx1100, gfx90a:xnack+");
}

/// A machine says once which GPU it has, and apt installs no code for others.
#[test]
fn apt_installs_the_code_of_the_machines_gpus() {
    if !has_debian_tools() || !require::tools(&["apt-get", "dpkg-scanpackages"]) {
        return;
    }
    let source = Source::new();
    source.debian().succeeds();
    let repository = source.path("repository");
    fs::create_dir(&repository).unwrap();
    for package in files_with_extension(source.scratch.path(), ".deb") {
        copy(&package, &repository);
    }
    source.gpu_package("--deb", &["gfx942"]);
    source.gpu_package("--deb", &["gfx1100"]);
    source.gpu_package("--deb", &["gfx1100", "gfx90a:xnack+"]);
    let mut scan = Command::new("dpkg-scanpackages");
    let scanned = scan.arg(".").current_dir(&repository).output().unwrap();
    assert!(scanned.status.success());
    fs::write(repository.join("Packages"), scanned.stdout).unwrap();

    let root = source.path("root");
    for directory in
        ["etc/apt", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "var/lib/dpkg"]
    {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    let list = format!("deb [trusted=yes] file:{} ./\n", repository.display());
    fs::write(root.join("etc/apt/sources.list"), list).unwrap();
    let status = root.join("var/lib/dpkg/status");
    // The libraries that libvec1 needs.
    let system = fs::read_to_string("/var/lib/dpkg/status").unwrap();
    fs::write(&status, &system).unwrap();
    let apt = |arguments: &[&str]| {
        let mut apt = Command::new("apt-get");
        apt.arg("-o").arg(format!("Dir={}", root.display()));
        apt.arg("-o").arg(format!("Dir::State::status={}", status.display()));
        apt.args(["-o", "APT::Sandbox::User=root", "-o", "APT::Install-Recommends=true"]);
        apt.args(["-o", "APT::Architecture=amd64", "-qq"]);
        Run::of(apt.args(arguments)).succeeds().output
    };
    apt(&["update"]);
    let installs = |packages: &[&str]| {
        let output = apt(&[&["-s", "install"], packages].concat());
        let mut names: Vec<String> = output
            .lines()
            .filter_map(|line| line.strip_prefix("Inst libvec1-"))
            .map(|rest| rest.split(' ').next().unwrap().to_owned())
            .collect();
        names.sort();
        names
    };
    assert_eq!(installs(&["libvec1"]), ["gfx1100", "gfx90a.xnack-on", "gfx942"]);
    assert_eq!(installs(&["libvec1", "kpack-gpu-gfx942"]), ["gfx942"]);
    assert_eq!(installs(&["libvec1", "kpack-gpu-gfx1100-gfx90a"]), ["gfx1100", "gfx90a.xnack-on"]);

    // Installed before.
    let package = files_with_extension(&repository, "kpack-gpu-gfx942_0.1.0_all.deb").remove(0);
    let fields = Run::of(Command::new("dpkg-deb").arg("-f").arg(package)).succeeds().output;
    fs::write(&status, format!("{system}\n{fields}Status: install ok installed\n")).unwrap();
    assert_eq!(installs(&["libvec1"]), ["gfx942"]);
    // A GPU is added: the package of the set replaces that of the one.
    let output = apt(&["-s", "install", "kpack-gpu-gfx1100-gfx90a"]);
    assert!(output.contains("Remv kpack-gpu-gfx942"), "{output}");
}

/// The RPM twin, and its resolver.
#[test]
fn dnf_installs_the_code_of_the_machines_gpus() {
    if !require::tools(&COMPILER)
        || !require::tools(&["rpmbuild", "rpm", "dnf", "createrepo_c"])
        || !require::root()
    {
        return;
    }
    let source = Source::new();
    // Files for several processors, such as AOTriton's images.
    source.edit("vec.spec", |text| {
        text.replace("%global targets gfx1100", "%global targets gfx1100 gfx110x")
            .replace("%files devel", "%files -n vec-gfx110x\n%{_datadir}/vec\n\n%files devel")
            .replace("%check", "install -D vec.h %{buildroot}%{_datadir}/vec/amd-gfx110x\n\n%check")
    });
    source.rpm().succeeds();
    let repository = source.path("repository");
    fs::create_dir(&repository).unwrap();
    for package in files_with_extension(&source.path("rpm/RPMS/x86_64"), ".rpm") {
        copy(&package, &repository);
    }
    for targets in [&["gfx942"][..], &["gfx1100"], &["gfx1100", "gfx90a"]] {
        source.gpu_package("--rpm", targets);
    }
    // In place of the system's libraries, which libvec needs.
    let spec = source.path("system.spec");
    let needed = Run::of(
        Command::new("rpm")
            .args(["-qp", "--requires"])
            .args(files_with_extension(&repository, "/vec-1.2.3-1.x86_64.rpm")),
    );
    let provides =
        needed.output.lines().filter(|line| !line.starts_with("rpmlib(") && !line.starts_with('/'));
    let provides: String = provides.map(|line| format!("Provides: {line}\n")).collect();
    fs::write(
        &spec,
        format!("Name: system\nVersion: 1\nRelease: 1\nSummary: x\nLicense: MIT\n{provides}%description\nx\n%files\n"),
    )
    .unwrap();
    let mut build = Command::new("rpmbuild");
    build.args(["-bb", "--define"]).arg(format!("_topdir {}", source.path("system").display()));
    build.arg("--define").arg(format!("_rpmdir {}", repository.display()));
    Run::of(build.arg(spec)).succeeds();
    Run::of(Command::new("createrepo_c").arg("-q").arg(&repository)).succeeds();

    let installed = |root: &str, steps: &[&[&str]]| {
        let root = source.path(root);
        for packages in steps {
            let mut dnf = Command::new("dnf");
            dnf.args(["-q", "-y", "--releasever=1", "--repo=vec", "--setopt=gpgcheck=0"]);
            dnf.arg(format!("--installroot={}", root.display()));
            dnf.arg(format!("--repofrompath=vec,{}", repository.display()));
            Run::of(dnf.arg("install").args(*packages)).succeeds();
        }
        let mut rpm = Command::new("rpm");
        let run =
            Run::of(rpm.arg("--root").arg(&root).args(["-qa", "--qf", "%{NAME}\n"])).succeeds();
        let mut names: Vec<String> = run
            .output
            .lines()
            .filter_map(|name| name.strip_prefix("vec-"))
            .map(str::to_owned)
            .collect();
        names.sort();
        (names, root)
    };
    let all = ["gfx1100", "gfx110x", "gfx90a.xnack-on", "gfx942"];
    let (names, root) = installed("all", &[&["vec"]]);
    assert_eq!(names, all);
    kpack(&["verify", "--arch", "all"], &root.join("usr")).succeeds();
    let (names, root) = installed("one", &[&["kpack-gpu-gfx942"], &["vec"]]);
    assert_eq!(names, ["gfx942"]);
    kpack(&["verify", "--arch", "gfx942"], &root.join("usr")).succeeds();
    assert_eq!(
        installed("set", &[&["vec", "kpack-gpu-gfx1100-gfx90a"]]).0,
        ["gfx1100", "gfx110x", "gfx90a.xnack-on"]
    );
    assert_eq!(
        installed("two", &[&["vec", "kpack-gpu-gfx1100", "kpack-gpu-gfx942"]]).0,
        ["gfx1100", "gfx110x", "gfx942"]
    );
}

#[test]
fn an_rpm_host_package_without_gpu_code_is_an_error() {
    if !require::tools(&COMPILER) || !require::tools(&["rpmbuild"]) {
        return;
    }
    let source = Source::new();
    source.edit("CMakeLists.txt", |text| text.replace("-xhip ", "-DEMPTY "));
    source.edit("vec.cpp", |_| {
        "extern \"C\" int vec_add(float *, const float *) { return 1; }\n".to_owned()
    });
    source.rpm().fails_with("%kpack_split: no binary in");
}

/// One package owns the trigger. It joins what is installed, whatever comes first.
#[test]
fn a_trigger_joins_for_the_machines_gpus() {
    if !has_debian_tools() || !require::root() {
        return;
    }
    let source = Source::new();
    source.debian().succeeds();
    let tree = source.path("join");
    let joining = package::root().join("packaging/join");
    for directory in ["DEBIAN", "usr/libexec/kpack"] {
        fs::create_dir_all(tree.join(directory)).unwrap();
    }
    copy(&dist_prefix().join("libexec/kpack/join-installed"), &tree.join("usr/libexec/kpack"));
    copy(&joining.join("postinst"), &tree.join("DEBIAN"));
    let triggers = fs::read_to_string(joining.join("triggers.in")).unwrap();
    let triggers = triggers.replace("@KPACK_LIBDIR@", "lib/x86_64-linux-gnu");
    fs::write(tree.join("DEBIAN/triggers"), triggers).unwrap();
    fs::write(
        tree.join("DEBIAN/control"),
        "Package: kpack-join\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: x\n",
    )
    .unwrap();
    let deb = source.path("kpack-join.deb");
    Run::of(Command::new("dpkg-deb").args(["--root-owner-group", "-b"]).args([&tree, &deb]))
        .succeeds();

    let root = PackageRoot::new(&source.path("root")).unwrap();
    root.add_program(&dist_prefix().join("bin/kpack"), "/usr/bin/kpack").unwrap();
    root.add_program(Path::new("/bin/sed"), "/bin/sed").unwrap();
    // As the administrator writes it.
    write(root.file("etc/kpack/targets"), "# the cards\ngfx942\ngfx1100, gfx90a\n");
    let library = root.file("usr/lib/x86_64-linux-gnu/libvec.so.1.2.3");
    let host = source.deb("libvec1");
    let device = |name: &str| source.deb(&format!("libvec1-{name}"));
    root.dpkg("-i", &[deb, host.clone()]).unwrap();
    kpack(&["show"], &library).says("split binary");
    // The package of a GPU comes later.
    root.dpkg("-i", &[device("gfx942")]).unwrap();
    kpack(&["show"], &library).says("joined binary").says("gfx942");
    root.dpkg("-i", &[device("gfx90a.xnack-on")]).unwrap();
    kpack(&["show"], &library).says("gfx90a:xnack+").says("gfx942");
    // An upgrade brings split binaries.
    root.dpkg("-i", &[host]).unwrap();
    kpack(&["show"], &library).says("joined binary").says("gfx90a:xnack+");
    // What is damaged is an error of dpkg.
    let archive = root.file("usr/lib/x86_64-linux-gnu/.kpack/libvec1_lib_gfx942.kpack");
    let bytes = fs::read(&archive).unwrap();
    fs::write(&archive, &bytes[..bytes.len() / 2]).unwrap();
    let error = root.dpkg("-i", &[device("gfx1100")]).unwrap_err();
    assert!(format!("{error:#}").contains("libvec1_lib_gfx942.kpack"), "{error:#}");
}
