//! kpack's own packages, each installed as on a machine without anything of kpack: DEBs and RPMs into a
//! root of their own, the wheel into a virtual environment. Then the README's example is built with it. The archive is
//! used in a root without anything.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use kpack_tests::package_root::PackageRoot;
use walkdir::WalkDir;
use xshell::cmd;

use super::hip_project::HipTools;
use super::readme;
use super::runtime::Runtime;
use super::table::Table;
use crate::dist::{self, Part};
use crate::package::{Packaged, Packages, Publisher, System};
use crate::{process, python};

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

/// Installs and uses every package, and prints a table of what was checked.
///
/// # Errors
/// A tool is missing, the user is not root, or something did not hold.
pub(crate) fn check(packaged: &Packaged) -> Result<()> {
    let work = &packaged.work;
    let tools = HipTools::find()?;
    // In place of the HIP runtime; its loader is no matter here.
    let prefix = work.join("kpack");
    dist::fill(&prefix, Path::new("lib"), &packaged.built)?;
    let check =
        Check { tools: &tools, runtime: &Runtime::build(&work.join("hip"), &prefix)?, packaged };
    let mut table = Table::default();
    for packages in &packaged.systems {
        let generator = packages.system.generator();
        process::step(&format!("Installing and using the {generator} packages"));
        let work = work.join(generator.to_lowercase());
        table.add(format!("{generator} packages"), check.system(packages, &work));
    }
    if process::find_program("lintian").is_some() {
        table.add("Lintian", lintian(packaged));
    } else {
        table.not_checked(
            "Lintian",
            "it is not installed; `cargo xtask bootstrap package-check` installs it",
        );
    }
    process::step("Installing and using the Python wheel");
    table.add("Python wheel", check.wheel(&work.join("wheel")));
    process::step("Using the archive where there is no C library");
    table.add("archive", check.archive(&work.join("archive")));
    table.finish()
}

struct Check<'a> {
    tools: &'a HipTools,
    /// What the README's example is linked with.
    runtime: &'a Runtime,
    packaged: &'a Packaged,
}

impl Check<'_> {
    /// DEBs or RPMs.
    fn system(&self, packages: &Packages, work: &Path) -> Result<String> {
        let root = PackageRoot::new(&work.join("root"))?;
        // Distributions build this directory into their dynamic linker, and this machine has another's.
        let libdir = format!("/usr/{}\n", packages.system.libdir().display());
        fs::write(root.file("etc/ld.so.conf.d/libdir.conf"), libdir)?;
        // First, since the package that joins runs kpack when it is installed.
        let dependencies = self.install_dependencies(packages, &root)?;
        match packages.system {
            System::Deb => root.dpkg("-i", &packages.files)?,
            System::Rpm => root.rpm("-i", &packages.files)?,
        }
        let files = all_installed(&packages.parts, &root)?;
        self.rules_of_system(packages, &root)?;

        let directory = root.file("");
        process::run!("chroot {directory} /usr/bin/kpack --version")?;
        self.build_with_loader(packages.system, &root, &work.join("program"))?;
        process::run!("chroot {directory} /tmp/shared")?;
        process::run!("chroot {directory} /tmp/static")?;
        self.readme(&root.file("usr"), &work.join("readme"))?;
        Ok(format!(
            "{files} files; all runs with {dependencies} alone; the README's example is built"
        ))
    }

    /// That each package has its licence under its own name, and that what is built with the loader may
    /// be installed with each later one.
    fn rules_of_system(&self, packages: &Packages, root: &PackageRoot) -> Result<()> {
        let format = "%{NAME}";
        for package in &packages.files {
            let name = match packages.system {
                System::Deb => cmd!(process::shell(), "dpkg-deb --field {package} Package"),
                System::Rpm => cmd!(process::shell(), "rpm -qp --queryformat {format} {package}"),
            };
            let name = process::output(name)?;
            let documents = root.file("usr/share/doc").join(name.trim());
            // The package that joins has nothing from Rust.
            let own: &[&str] = match name.trim() {
                "kpack-join" => &["copyright"],
                _ => &["copyright", "COPYRIGHT-rust-library.html"],
            };
            for licences in own {
                let file = documents.join(licences);
                ensure!(file.is_file(), "{} is missing", file.display());
            }
        }
        if packages.system == System::Deb {
            let loader = self.packaged.built.package(Part::Loader)?;
            let file = root.file(&format!("var/lib/dpkg/info/{loader}.shlibs"));
            let rule = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            ensure!(rule.contains(">="), "{}: {rule}", file.display());
        }
        Ok(())
    }

    /// Puts into the root what the packages say that they need, and nothing else.
    fn install_dependencies(&self, packages: &Packages, root: &PackageRoot) -> Result<String> {
        let mut names = BTreeSet::new();
        for package in &packages.files {
            let listed = match packages.system {
                System::Deb => cmd!(process::shell(), "dpkg-deb --field {package} Depends"),
                System::Rpm => cmd!(process::shell(), "rpm --query --package {package} --requires"),
            };
            // `libc6 (>= 2.34), libgcc-s1 (>= 4.2)`, or a line `libc.so.6(GLIBC_2.34)(64bit)`.
            for dependency in process::output(listed)?.split([',', '\n']) {
                let name = dependency.trim().split([' ', '(']).next();
                names.extend(name.filter(|name| name.starts_with("lib")).map(str::to_owned));
            }
        }
        names.remove(&self.packaged.built.package(Part::Loader)?);
        ensure!(!names.is_empty(), "the packages need no C library");
        for name in &names {
            let files = match packages.system {
                System::Deb => process::run!("dpkg --listfiles {name}")?,
                System::Rpm => process::run!("cc -print-file-name={name}")?,
            };
            let libraries = files.lines().map(Path::new);
            for library in libraries.filter(|file| is_library(file)) {
                let to = root.file("lib").join(library.file_name().context("it is a file")?);
                fs::copy(library, to).with_context(|| library.display().to_string())?;
            }
        }
        // The dynamic linker finds the libraries through its cache.
        let directory = root.file("");
        process::run!("chroot {directory} /sbin/ldconfig")?;
        Ok(names.into_iter().collect::<Vec<_>>().join(", "))
    }

    /// Builds a C program with the development package, and puts it into `/tmp` of the root.
    fn build_with_loader(&self, system: System, root: &PackageRoot, work: &Path) -> Result<()> {
        fs::create_dir_all(work)?;
        fs::write(work.join("program.c"), PROGRAM)?;
        fs::write(work.join("CMakeLists.txt"), PROJECT)?;
        // CMake on Debian does not look into `lib64`.
        let package = root.file("usr").join(system.libdir()).join("cmake/rocm-kpack");
        let build = work.join("build");
        process::run!(
            "cmake -S {work} -B {build} -Drocm-kpack_DIR={package} -DCMAKE_SKIP_RPATH=ON"
        )?;
        process::run!("cmake --build {build}")?;
        for program in ["shared", "static"] {
            fs::copy(build.join(program), root.file("tmp").join(program))?;
        }
        Ok(())
    }

    /// The archive, in a root with nothing else: no C library and no shell.
    fn archive(&self, root: &Path) -> Result<String> {
        fs::create_dir_all(root.join("tmp"))?;
        let archive = &self.packaged.archive;
        process::run!("tar --extract --file {archive} --directory {root} --strip-components 1")?;
        let version = process::run!("chroot {root} /bin/kpack --version")?;
        let wheel = &self.packaged.wheel;
        let name = wheel.file_name().context("a wheel has a name")?;
        fs::copy(wheel, root.join(name))?;
        let shown = process::run!("chroot {root} /bin/kpack wheel show {name}")?;
        ensure!(shown.starts_with("kpack-rocm"), "{shown}");
        Ok(format!("{} runs alone", version.trim()))
    }

    fn readme(&self, prefix: &Path, work: &Path) -> Result<String> {
        readme::check(self.tools, self.runtime, prefix, work)
    }

    /// The wheel, for those who call the command, those whose project is built with scikit-build-core,
    /// and those who call CMake.
    fn wheel(&self, work: &Path) -> Result<String> {
        let wheel = &self.packaged.wheel;
        let environment = work.join("environment");
        let file = wheel.display().to_string();
        let python = python::environment(&environment, &["--no-index", &file])?;
        let kpack = environment.join("bin/kpack");
        let version = process::run!("{kpack} --version")?;

        let project = work.join("project");
        readme::write_project(&project)?;
        fs::write(
            project.join("pyproject.toml"),
            format!(
                "[build-system]\n\
                 requires = [\"scikit-build-core\", \"kpack-rocm @ file://{}\"]\n\
                 build-backend = \"scikit_build_core.build\"\n\
                 [project]\nname = \"vec\"\nversion = \"1\"\n",
                wheel.display()
            ),
        )?;
        let made = work.join("vec");
        process::output(readme::with_stubs(
            cmd!(process::shell(), "pip3 wheel --no-deps --wheel-dir {made} {project}"),
            self.tools,
            self.runtime,
        ))?;
        let vec = fs::read_dir(&made)?.next().context("pip made no wheel")??.path();
        python::unpack(&vec, &made)?;
        process::run!("{kpack} verify {made} --arch gfx1100 --arch gfx942")?;

        let prefix = process::run!("{python} -c 'import kpack; print(kpack.PREFIX)'")?;
        self.readme(Path::new(prefix.trim()), &work.join("readme"))?;
        Ok(format!(
            "{} runs; the README's example is built by scikit-build-core and by CMake",
            version.trim()
        ))
    }
}

/// That Lintian finds no error and no warning in the DEBs, apart from what `packaging/debian/lintian` explains.
fn lintian(packaged: &Packaged) -> Result<String> {
    let of_debian = packaged.systems.iter();
    let of_debian = of_debian.filter(|packages| packages.system == System::Deb);
    let files = Vec::from_iter(of_debian.flat_map(|packages| &packages.files));
    let of_nobody = "bogus-mail-host,bogus-mail-host-in-debian-changelog,root-in-contact";
    let suppressed: &[&str] = match Publisher::read()?.is_nobody() {
        true => &["--suppress-tags", of_nobody],
        false => &[],
    };
    let count = files.len();
    process::run!(
        "lintian --allow-root --fail-on error,warning --tag-display-limit 0 {suppressed...} {files...}"
    )?;
    Ok(format!("{count} packages"))
}

/// That every file of every part is in the root, and their number.
fn all_installed(parts: &Path, root: &PackageRoot) -> Result<usize> {
    let mut files = 0;
    for part in Part::ALL {
        let tree = parts.join(part.name());
        for entry in WalkDir::new(&tree) {
            let entry = entry?;
            let installed = root.file("usr").join(entry.path().strip_prefix(&tree)?);
            if installed.symlink_metadata().is_err() {
                bail!("no package has {}", installed.display());
            }
            files += usize::from(!entry.file_type().is_dir());
        }
    }
    Ok(files)
}

/// Whether it is a shared library, by its name.
fn is_library(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    file.is_file() && (name.contains(".so.") || name.ends_with(".so"))
}
