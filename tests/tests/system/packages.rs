//! kpack's own packages, each installed as on a machine without anything of kpack: DEBs and RPMs into a
//! root of their own, the wheel into a virtual environment. Then the guide's example is built with it. The archive is
//! used in a root without anything.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use anyhow::{Context, Result, bail, ensure};
use kpack_tests::corpus;
use kpack_tests::lintian;
use kpack_tests::package_root::PackageRoot;
use kpack_tests::process::{target_directory, try_run, xtask};
use kpack_tests::python;
use kpack_tests::require::{self, checked, fetched};
use walkdir::WalkDir;

use crate::hip::project::{COMPILER, flags_without_rocm, has_tools, runtime};
use crate::support::{copy, root, run, work};

/// A program that calls the loader.
const PROGRAM: &str = "#include <rocm_kpack/kpack.h>
int main(void) {
    kpack_cache_t cache;
    if (kpack_cache_create(&cache)) return 1;
    kpack_cache_destroy(cache);
    return 0;
}
";

/// Its build, with the shared and the static library.
const PROJECT: &str = "cmake_minimum_required(VERSION 3.22)
project(program LANGUAGES C)
find_package(rocm-kpack REQUIRED)
add_executable(shared program.c)
target_link_libraries(shared PRIVATE rocm-kpack::rocm_kpack)
add_executable(static program.c)
target_link_libraries(static PRIVATE rocm-kpack::rocm_kpack_static)
";

#[test]
#[ignore = "needs root, clang and CPack, and builds kpack's packages"]
fn debian_packages() -> Result<()> {
    installed(System::Deb)
}

#[test]
#[ignore = "needs root, clang, CPack and rpm, and builds kpack's packages"]
fn rpm_packages() -> Result<()> {
    installed(System::Rpm)
}

/// Lintian finds no error and no warning in the DEBs, apart from what `packaging/debian/lintian` explains.
#[test]
#[ignore = "needs Lintian and CPack, and builds kpack's packages"]
fn lintian() -> Result<()> {
    if !(has_packages() && require::tool("lintian")) {
        return Ok(());
    }
    let files = made("deb")?;
    let of_nobody = ["bogus-mail-host", "bogus-mail-host-in-debian-changelog", "root-in-contact"];
    let has_no_publisher =
        fs::read_to_string(root().join("Cargo.toml"))?.contains("\ncontact = \"\"\n");
    lintian::lintian(files, if has_no_publisher { &of_nobody } else { &[] })
}

/// The wheel, for those who call the command, those whose project is built with scikit-build-core,
/// and those who call CMake.
#[test]
#[ignore = "needs clang, Python and CPack, and builds kpack's packages"]
fn wheel() -> Result<()> {
    if !has_packages() {
        return Ok(());
    }
    let (work, wheel) = (work("package-wheel"), the("whl")?);
    let environment = work.join("environment");
    let file = wheel.display().to_string();
    let python = python::environment(&environment, &["--no-index", &file])?;
    let kpack = environment.join("bin/kpack");
    let version = run!("{kpack} --version")?;

    let project = work.join("project");
    write_project(&project)?;
    fs::write(
        project.join("pyproject.toml"),
        format!(
            "[build-system]\n\
             requires = [\"scikit-build-core\", \"kpack-rocm @ file://{file}\"]\n\
             build-backend = \"scikit_build_core.build\"\n\
             [project]\nname = \"vec\"\nversion = \"1\"\n"
        ),
    )?;
    let made = work.join("vec");
    let mut pip = Command::new("pip3");
    pip.args(["wheel", "--no-deps", "--wheel-dir"]).args([&made, &project]);
    try_run(in_place_of_rocm(&mut pip))?;
    let vec = fs::read_dir(&made)?.next().context("pip made no wheel")??.path();
    python::unpack(&vec, &made)?;
    run!("{kpack} verify {made} --arch gfx1100 --arch gfx942")?;

    let prefix = run!("{python} -c 'import kpack; print(kpack.PREFIX)'")?;
    follow_guide(Path::new(prefix.trim()), &work.join("readme"))?;
    checked(&format!(
        "{} runs; the guide's example is built by scikit-build-core and by CMake",
        version.trim()
    ));
    Ok(())
}

/// The archive, in a root with nothing else: no C library and no shell.
#[test]
#[ignore = "needs root and CPack, and builds kpack's packages"]
fn archive() -> Result<()> {
    if !(has_packages() && can_chroot()) {
        return Ok(());
    }
    let (root, archive, wheel) = (work("package-archive"), the("gz")?, the("whl")?);
    fs::create_dir_all(root.join("tmp"))?;
    run!("tar --extract --file {archive} --directory {root} --strip-components 1")?;
    let version = run!("chroot {root} /bin/kpack --version")?;
    let name = wheel.file_name().context("a wheel has a name")?;
    fs::copy(&wheel, root.join(name))?;
    let shown = run!("chroot {root} /bin/kpack wheel show {name}")?;
    ensure!(shown.starts_with("kpack-rocm"), "{shown}");
    checked(&format!("{} runs alone", version.trim()));
    Ok(())
}

/// The example, built as its packages say in a root with kpack's packages and sid's pkg-rocm-tools. That lists no gfx942,
/// so that package may be empty, and reads the field with the targets.
#[test]
#[ignore = "needs root, clang and CPack, builds kpack's packages, and fetches sid's pkg-rocm-tools"]
fn a_package_with_the_targets_of_debian() -> Result<()> {
    if !(has_packages() && can_chroot() && require::tools(&["dh", "unshare"])) {
        return Ok(());
    }
    let Some(tools) = fetched(corpus::package_of("sid", "pkg-rocm-tools")) else {
        return Ok(());
    };
    let (work, files) = (work("package-targets"), made("deb")?);
    let source = work.join("source");
    fs::create_dir(&source)?;
    copy(root().join("packaging/examples/vec"), source.join("vec-1.2.3"));
    for file in files.iter().chain([&tools]) {
        fs::copy(file, source.join(file.file_name().context("a package has a name")?))?;
    }
    fs::write(source.join("build"), BUILD)?;
    // Everything else of this machine is there, and what is installed is gone afterwards.
    let machine =
        "mount -t overlay -o lowerdir=/,upperdir=$1/upper,workdir=$1/scratch overlay $1/root
        mount --rbind /dev $1/root/dev
        mount -t proc proc $1/root/proc
        mkdir $1/root/source
        mount --bind $1/source $1/root/source
        chroot $1/root sh -eux /source/build";
    for directory in ["upper", "scratch", "root"] {
        fs::create_dir(work.join(directory))?;
    }
    run!("unshare --mount sh -euc {machine} sh {work}")?;

    let field = |package: &str, name: &str| -> Result<String> {
        let file = source.join(format!("{package}_1.2.3-1_amd64.deb"));
        Ok(run!("dpkg-deb --field {file} {name}")?.trim().to_owned())
    };
    for (package, targets) in [
        ("libvec1", "gfx1100 gfx90a"),
        ("libvec1-gfx1100", "gfx1100"),
        ("libvec1-gfx90a.xnack-on", "gfx90a"),
        ("libvec1-gfx942", ""),
        ("libvec-dev", ""),
    ] {
        let found = field(package, "X-Rocm-Gpu-Architecture")?;
        ensure!(found == targets, "{package} is for {found:?} (expected {targets:?})");
    }
    let recommends = field("libvec1", "Recommends")?;
    ensure!(!recommends.contains("gfx942") && recommends.contains("gfx1100"), "{recommends}");
    let reduced = fs::read_to_string(source.join("reduced"))?;
    ensure!(reduced == "gfx90a gfx1100", "rocm-target-arch --reduce prints {reduced:?}");
    checked(&format!("{} lists {reduced} for what needs the example", tools.display()));
    Ok(fs::remove_dir_all(work)?)
}

/// Builds the example in the root, without gfx942; then asks which targets a package has that needs it.
const BUILD: &str = r#"cd /source
dpkg -i pkg-rocm-tools_*.deb kpack_*.deb
cd vec-1.2.3
sed -i 's/^Build-Depends:/Build-Depends: pkg-rocm-tools,/' debian/control
printf 'override_dh_auto_configure:
	dh_auto_configure -- -DOFFLOAD_ARCHITECTURES="gfx1100;gfx90a:xnack+"
' >> debian/rules
dpkg-buildpackage -b -uc -us
dpkg -i ../libvec1_*.deb ../libvec1-gfx1100_*.deb ../libvec-dev_*.deb
mkdir -p /source/user/debian
cd /source/user
cp ../vec-1.2.3/debian/changelog debian
printf 'Source: user
Maintainer: user <user@example.org>
Build-Depends: libvec-dev

Package: user
Architecture: any
' > debian/control
rocm-target-arch --reduce > ../reduced
"#;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum System {
    Deb,
    Rpm,
}

impl System {
    fn extension(self) -> &'static str {
        match self {
            Self::Deb => "deb",
            Self::Rpm => "rpm",
        }
    }

    /// Where its distributions have libraries, below `/usr`.
    fn libdir(self) -> PathBuf {
        match self {
            Self::Deb => format!("lib/{}-linux-gnu", std::env::consts::ARCH).into(),
            Self::Rpm => "lib64".into(),
        }
    }
}

/// Whether packages can be made, and the guide's example be built.
fn has_packages() -> bool {
    has_tools() && require::tools(&["cpack", "dpkg-shlibdeps", "rpmbuild", "pod2man", "pip3"])
}

/// Whether packages can be installed into a root of their own.
fn can_chroot() -> bool {
    let permitted = require::is_root() && run!("chroot / /bin/true").is_ok();
    permitted || require::missing("chroot is not permitted")
}

/// The directory of the packages that `cargo xtask package` made.
fn packages() -> &'static Path {
    static PACKAGES: LazyLock<PathBuf> = LazyLock::new(|| {
        let made = try_run(xtask("package").args(["--profile", "dev"]));
        made.unwrap_or_else(|error| panic!("cargo xtask package: {error:#}"));
        target_directory().join("package")
    });
    &PACKAGES
}

/// The packages with this extension.
fn made(extension: &str) -> Result<Vec<PathBuf>> {
    let files = fs::read_dir(packages())?.flatten().map(|entry| entry.path());
    let files = files.filter(|file| file.extension().is_some_and(|found| found == extension));
    Ok(files.collect())
}

fn the(extension: &str) -> Result<PathBuf> {
    made(extension)?.pop().with_context(|| format!("no .{extension} file was made"))
}

/// The name that a package says it has.
fn name(system: System, package: &Path) -> Result<String> {
    let format = "%{NAME}";
    let name = match system {
        System::Deb => run!("dpkg-deb --field {package} Package"),
        System::Rpm => run!("rpm -qp --queryformat {format} {package}"),
    };
    Ok(name?.trim().to_owned())
}

/// Installs the DEBs or the RPMs, and uses them.
fn installed(system: System) -> Result<()> {
    if !(has_packages() && can_chroot()) {
        return Ok(());
    }
    let work = work(&format!("package-{}", system.extension()));
    let files = made(system.extension())?;
    ensure!(files.len() == 4, "there are {files:?} (expected one for each part)");
    let root = PackageRoot::new(&work.join("root"))?;
    // Distributions build this directory into their dynamic linker, and this machine has another's.
    let libdir = format!("/usr/{}\n", system.libdir().display());
    fs::write(root.file("etc/ld.so.conf.d/libdir.conf"), libdir)?;
    // First, since the package that joins runs kpack when it is installed.
    let dependencies = install_dependencies(system, &files, &root)?;
    match system {
        System::Deb => root.dpkg("-i", &files)?,
        System::Rpm => root.rpm("-i", &files)?,
    }
    let parts = packages().join("work").join(system.extension()).join("parts");
    let count = all_installed(&parts, &root)?;
    rules_of_system(system, &files, &root)?;

    let directory = root.file("");
    run!("chroot {directory} /usr/bin/kpack --version")?;
    build_with_loader(system, &root, &work.join("program"))?;
    run!("chroot {directory} /tmp/shared")?;
    run!("chroot {directory} /tmp/static")?;
    follow_guide(&root.file("usr"), &work.join("readme"))?;
    checked(&format!(
        "{count} files; all runs with {dependencies} alone; the guide's example is built"
    ));
    Ok(())
}

/// Each package has its licence under its own name, and what is built with the loader may be installed with each
/// later one.
fn rules_of_system(system: System, files: &[PathBuf], root: &PackageRoot) -> Result<()> {
    for package in files {
        let name = name(system, package)?;
        let documents = root.file("usr/share/doc").join(&name);
        // The package that joins has nothing from Rust.
        let own: &[&str] = match name.as_str() {
            "kpack-join" => &["copyright"],
            _ => &["copyright", "COPYRIGHT-rust-library.html"],
        };
        for licences in own {
            let file = documents.join(licences);
            ensure!(file.is_file(), "{} is missing", file.display());
        }
        if system == System::Deb && is_loader(&name) {
            let file = root.file(&format!("var/lib/dpkg/info/{name}.shlibs"));
            let rule = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            ensure!(rule.contains(">="), "{}: {rule}", file.display());
        }
    }
    Ok(())
}

/// Whether a package is the loader's, whose name ends with the number of the SONAME.
fn is_loader(name: &str) -> bool {
    name.strip_prefix("librocm-kpack").is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Puts into the root what the packages say that they need, and nothing else.
fn install_dependencies(system: System, files: &[PathBuf], root: &PackageRoot) -> Result<String> {
    let mut names = BTreeSet::new();
    for package in files {
        let listed = match system {
            System::Deb => run!("dpkg-deb --field {package} Depends"),
            System::Rpm => run!("rpm --query --package {package} --requires"),
        };
        // `libc6 (>= 2.34), libgcc-s1 (>= 4.2)`, or a line `libc.so.6(GLIBC_2.34)(64bit)`.
        for dependency in listed?.split([',', '\n']) {
            let name = dependency.trim().split([' ', '(']).next();
            names.extend(name.filter(|name| name.starts_with("lib")).map(str::to_owned));
        }
    }
    names.retain(|name| !is_loader(name));
    ensure!(!names.is_empty(), "the packages need no C library");
    for name in &names {
        let files = match system {
            System::Deb => run!("dpkg --listfiles {name}")?,
            System::Rpm => run!("cc -print-file-name={name}")?,
        };
        let libraries = files.lines().map(Path::new);
        for library in libraries.filter(|file| is_library(file)) {
            let to = root.file("lib").join(library.file_name().context("it is a file")?);
            fs::copy(library, to).with_context(|| library.display().to_string())?;
        }
    }
    // The dynamic linker finds the libraries through its cache.
    let directory = root.file("");
    run!("chroot {directory} /sbin/ldconfig")?;
    Ok(names.into_iter().collect::<Vec<_>>().join(", "))
}

/// Builds a C program with the development package, and puts it into `/tmp` of the root.
fn build_with_loader(system: System, root: &PackageRoot, work: &Path) -> Result<()> {
    fs::create_dir_all(work)?;
    fs::write(work.join("program.c"), PROGRAM)?;
    fs::write(work.join("CMakeLists.txt"), PROJECT)?;
    // CMake on Debian does not look into `lib64`.
    let package = root.file("usr").join(system.libdir()).join("cmake/rocm-kpack");
    let build = work.join("build");
    run!("cmake -S {work} -B {build} -Drocm-kpack_DIR={package} -DCMAKE_SKIP_RPATH=ON")?;
    run!("cmake --build {build}")?;
    for program in ["shared", "static"] {
        fs::copy(build.join(program), root.file("tmp").join(program))?;
    }
    Ok(())
}

/// Every file of every part is in the root; returns their number.
fn all_installed(parts: &Path, root: &PackageRoot) -> Result<usize> {
    let mut files = 0;
    for entry in WalkDir::new(parts).min_depth(1) {
        let entry = entry?;
        let within = entry.path().strip_prefix(parts)?;
        let installed = root.file("usr").join(within.components().skip(1).collect::<PathBuf>());
        if installed.symlink_metadata().is_err() {
            bail!("no package has {}", installed.display());
        }
        files += usize::from(!entry.file_type().is_dir());
    }
    ensure!(files > 0, "{} is empty", parts.display());
    Ok(files)
}

/// Whether it is a shared library, by its name.
fn is_library(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    file.is_file() && (name.contains(".so.") || name.ends_with(".so"))
}

/// Follows the guide's example for CMake in `work`, as a reader would paste it, with kpack in a prefix.
fn follow_guide(kpack: &Path, work: &Path) -> Result<()> {
    /// The install prefix of kpack in the guide.
    const PREFIX: &str = "$HOME/kpack";
    let example = write_project(work)?;
    let script = block(&example, "sh")?;
    ensure!(script.contains(PREFIX), "the commands in docs/cmake.md do not name {PREFIX}");
    let script = script.replace(PREFIX, &kpack.display().to_string());
    let mut shell = Command::new("sh");
    shell.args(["-euc", &script]).current_dir(work);
    let shown = try_run(in_place_of_rocm(&mut shell))?;
    let (_, described) = example
        .split_once("`out` now contains")
        .context("docs/cmake.md does not say what is installed")?;
    let named = described.lines().take(2).flat_map(|line| line.split('`'));
    let named = Vec::from_iter(named.filter(|name| name.starts_with("lib/")));
    ensure!(named.len() == 4, "docs/cmake.md names {named:?}, not 4 installed files");
    for name in named {
        ensure!(work.join("out").join(name).exists(), "docs/cmake.md says that there is {name}");
    }
    ensure!(
        shown.contains("gfx1100") && shown.contains("gfx942"),
        "`kpack show` does not name the targets:\n{shown}"
    );
    Ok(())
}

/// Writes the example's files into `work`, and returns that section of the guide.
fn write_project(work: &Path) -> Result<String> {
    let guide = fs::read_to_string(root().join("docs/cmake.md"))?;
    let (_, example) =
        guide.split_once("## Your first package").context("docs/cmake.md has no first package")?;
    fs::create_dir_all(work)?;
    fs::write(work.join("CMakeLists.txt"), block(example, "cmake")?)?;
    fs::write(work.join("vec.cpp"), block(example, "cpp")?)?;
    Ok(example.to_owned())
}

/// Has a command use, in place of ROCm, clang, the header of the HIP project, and the stub runtime.
fn in_place_of_rocm(command: &mut Command) -> &mut Command {
    command.env("CXX", COMPILER).env("CXXFLAGS", flags_without_rocm());
    command.env("CMAKE_LIBRARY_PATH", runtime().prefix.join("lib"))
}

/// The first block of code in `language`.
fn block<'a>(text: &'a str, language: &str) -> Result<&'a str> {
    let start = format!("```{language}\n");
    text.split_once(&start)
        .and_then(|(_, rest)| rest.split_once("```"))
        .map(|(block, _)| block)
        .with_context(|| format!("the document has no {language} block where one is expected"))
}
