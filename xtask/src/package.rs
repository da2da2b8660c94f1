//! `cargo xtask package`: what people install. CPack makes a DEB and an RPM of each part of kpack,
//! scikit-build-core a Python wheel of the helper. The wheel and an archive of the helper run on every Linux.

use std::env::consts::ARCH;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use walkdir::WalkDir;
use xshell::cmd;

use crate::build::{self, Profile};
use crate::dist::{self, Built, Part};
use crate::{process, repository};

/// Compresses archives, without the time.
const GZIP: &str = "gzip -n9";

/// A packaging system that CPack knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum System {
    Deb,
    Rpm,
}

impl System {
    const ALL: [Self; 2] = [Self::Deb, Self::Rpm];

    /// Its name as that of a CPack generator.
    fn generator(self) -> &'static str {
        match self {
            Self::Deb => "DEB",
            Self::Rpm => "RPM",
        }
    }

    /// Where its distributions have libraries, below `/usr`.
    fn libdir(self) -> PathBuf {
        match self {
            Self::Deb => format!("lib/{ARCH}-linux-gnu").into(),
            Self::Rpm => "lib64".into(),
        }
    }
}

/// What `[workspace.metadata.publisher]` in `Cargo.toml` says.
pub(crate) struct Publisher {
    pub(crate) repository: String,
    contact: String,
}

impl Publisher {
    pub(crate) fn read() -> Result<Self> {
        let metadata = repository::metadata(&["--no-deps"])?;
        let said = |key: &str| -> Result<String> {
            let value = &metadata["metadata"]["publisher"][key];
            let value = value.as_str().with_context(|| {
                format!("Cargo.toml: no string workspace.metadata.publisher.{key}")
            })?;
            Ok(value.to_owned())
        };
        Ok(Self { repository: said("repository")?, contact: said("contact")? })
    }

    /// Whom a package names.
    pub(crate) fn contact(&self) -> &str {
        match self.contact.as_str() {
            "" => "An unpublished build <root@localhost>",
            contact => contact,
        }
    }

    /// # Errors
    /// A line is still empty.
    fn ensure_complete(&self) -> Result<()> {
        let lines = [("repository", &self.repository), ("contact", &self.contact)];
        let empty =
            Vec::from_iter(lines.iter().filter(|(_, value)| value.is_empty()).map(|(key, _)| *key));
        ensure!(
            empty.is_empty(),
            "Cargo.toml: [workspace.metadata.publisher] has no {}; fill it in before you publish packages",
            empty.join(" and no ")
        );
        Ok(())
    }
}

/// Makes all packages in `target/package`. A `release` names its publisher.
///
/// # Errors
/// A build or a tool fails; or a release has no publisher.
pub(crate) fn run(release: bool, profile: Profile) -> Result<()> {
    let publisher = Publisher::read()?;
    if release {
        publisher.ensure_complete()?;
    }
    dist::licences::of_standard_library()?;
    let output = repository::empty_directory("package")?;
    let work = output.join("work");
    fs::create_dir_all(&work).with_context(|| work.display().to_string())?;
    let built = stripped(&Built::new(profile)?, &work, profile)?;
    // Only now: build scripts of C code run again where this variable has changed.
    if process::shell().var("SOURCE_DATE_EPOCH").is_err() {
        // The same commit gives the same packages.
        let time = process::run!("git log -1 --format=%ct")
            .context("set SOURCE_DATE_EPOCH where there is no git repository")?;
        process::shell().set_var("SOURCE_DATE_EPOCH", time.trim());
    }
    let mut files = Vec::new();
    for system in System::ALL {
        files.extend(pack(system, &built, &publisher, &output)?);
    }
    let portable = portable(&built, &work, profile)?;
    files.extend([wheel(&portable, &output)?, archive(&portable, &output)?]);
    process::step("Packages:");
    for file in &files {
        println!("   {}", file.display());
    }
    Ok(())
}

/// Copies a binary to a directory, without what only a debugger or a further link needs.
fn strip(option: &str, from: &Path, directory: &Path, profile: Profile) -> Result<PathBuf> {
    let cargo = repository::cargo_home()?;
    let cargo = cargo.as_os_str().as_encoded_bytes();
    let to = directory.join(from.file_name().context("a file has a name")?);
    process::run!("strip --enable-deterministic-archives {option} -o {to} {from}")?;
    let bytes = fs::read(&to)?;
    ensure!(
        profile == Profile::Dev || !bytes.windows(cargo.len()).any(|window| window == cargo),
        "{} names directories of this machine (is RUSTFLAGS set?)",
        to.display()
    );
    Ok(to)
}

/// Copies of the binaries without what only a debugger or a further link needs.
fn stripped(built: &Built, work: &Path, profile: Profile) -> Result<Built> {
    let directory = work.join("stripped");
    fs::create_dir_all(&directory)?;
    let strip = |option: &str, from: &Path| strip(option, from, &directory, profile);
    strip("--strip-unneeded", &built.loader())?;
    strip("--strip-debug", &built.static_loader())?;
    Ok(Built {
        helper: strip("--strip-unneeded", &built.helper)?,
        shared_shim: strip("--strip-unneeded", &built.shared_shim)?,
        static_shim: strip("--strip-debug", &built.static_shim)?,
        runtime: directory,
    })
}

/// Lays the parts out and packs each.
fn pack(
    system: System,
    built: &Built,
    publisher: &Publisher,
    output: &Path,
) -> Result<Vec<PathBuf>> {
    let generator = system.generator();
    process::step(&format!("Making {generator} packages"));
    let extension = generator.to_lowercase();
    let work = output.join("work").join(&extension);
    let parts = work.join("parts");
    for part in Part::ALL {
        let package = match (system, part) {
            (System::Rpm, Part::Development) => "librocm-kpack-devel".to_owned(),
            _ => built.package(part)?,
        };
        let directory = parts.join(part.name());
        dist::fill_with(part, &directory, &system.libdir(), &package, built)?;
        if system == System::Deb {
            follow_debian(part, &directory, &package, publisher)?;
        }
    }
    let of_others: &[&str] = match system {
        System::Deb => &dist::FOR_RPM,
        System::Rpm => &dist::FOR_DEBIAN,
    };
    for file in of_others {
        let file = parts.join(Part::Helper.name()).join(file);
        fs::remove_file(&file).with_context(|| file.display().to_string())?;
        // Directories that are empty now.
        let directories = file.ancestors().skip(1);
        for directory in directories.take_while(|directory| *directory != parts) {
            if fs::remove_dir(directory).is_err() {
                break;
            }
        }
    }
    let (source, build) = (repository::root().join("packaging"), work.join("build"));
    let loader = built.package(Part::Loader)?;
    let libdir = system.libdir();
    let (repository, contact) = (&publisher.repository, publisher.contact());
    process::run!(
        "cmake -S {source} -B {build} -DKPACK_PARTS={parts} -DKPACK_LOADER={loader} -DKPACK_LIBDIR={libdir} -DKPACK_CONTACT={contact} -DKPACK_REPOSITORY={repository}"
    )?;
    let made = work.join("made");
    let configuration = build.join("CPackConfig.cmake");
    process::run!("cpack -G {generator} --config {configuration} -B {made}")?;
    let files = moved(&made, &extension, output)?;
    ensure!(
        files.len() == Part::ALL.len(),
        "cpack made {files:?}, expected a package of each part"
    );
    Ok(files)
}

/// Adds to the tree of a part what each package of Debian has, and what Lintian need not complain of.
fn follow_debian(part: Part, tree: &Path, package: &str, publisher: &Publisher) -> Result<()> {
    let write = |file: &str, text: &str| {
        let file = tree.join("share").join(file);
        let directory = file.parent().context("a file is in a directory")?;
        fs::create_dir_all(directory)?;
        fs::write(&file, text).with_context(|| file.display().to_string())?;
        anyhow::Ok(file)
    };
    let (version, contact) = (env!("CARGO_PKG_VERSION"), publisher.contact());
    let time = process::shell().var("SOURCE_DATE_EPOCH")?;
    let time = process::run!("date --utc --rfc-email --date @{time}")?;
    let changes = format!(
        "kpack ({version}) unstable; urgency=medium\n\n  * CHANGELOG.md in kpack's repository lists the changes.\n\n -- {contact}  {time}"
    );
    let mut compressed = vec![write(&format!("doc/{package}/changelog"), &changes)?];
    if part == Part::Helper {
        let script = tree.join("bin/dh_kpack");
        let page =
            process::run!("pod2man --section 1 --center kpack --release {version} {script}")?;
        compressed.push(write("man/man1/dh_kpack.1", &page)?);
    }
    process::run!("gzip -n9 {compressed...}")?;
    let name = part.name();
    let overrides = repository::root().join("packaging/debian/lintian").join(name);
    let overrides = fs::read_to_string(&overrides)?;
    write(&format!("lintian/overrides/{package}"), &overrides)?;
    // Debian's tools know libraries by their contents, and RPM's by their mode.
    for entry in WalkDir::new(tree) {
        let entry = entry?;
        let is_library = entry.file_name().to_string_lossy().contains(".so.");
        if entry.file_type().is_file() && is_library {
            fs::set_permissions(entry.path(), Permissions::from_mode(0o644))?;
        }
    }
    Ok(())
}

/// Lays out a helper that needs no C library of the machine, in a directory of parts.
fn portable(built: &Built, work: &Path, profile: Profile) -> Result<PathBuf> {
    let (work, helper) = (work.join("portable"), Part::Helper.name());
    fs::create_dir_all(&work)?;
    let built = Built {
        helper: strip("--strip-unneeded", &build::static_helper(profile)?, &work, profile)?,
        runtime: built.runtime.clone(),
        shared_shim: built.shared_shim.clone(),
        static_shim: built.static_shim.clone(),
    };
    let (parts, package) = (work.join("parts"), built.package(Part::Helper)?);
    let tree = parts.join(helper);
    dist::fill_with(Part::Helper, &tree, Path::new("lib"), &package, &built)?;
    dist::licences::of_c_library(&tree.join("share/doc").join(package))?;
    Ok(parts)
}

/// Makes an archive of the helper.
fn archive(parts: &Path, output: &Path) -> Result<PathBuf> {
    process::step("Making an archive");
    let name = format!("kpack-{}-{ARCH}-linux", env!("CARGO_PKG_VERSION"));
    let file = output.join(format!("{name}.tar.gz"));
    let (helper, time) = (Part::Helper.name(), process::shell().var("SOURCE_DATE_EPOCH")?);
    process::run!(
        "tar --create --file {file} --directory {parts} --transform s,^{helper},{name},S --sort name
            --mtime @{time} --owner 0 --group 0 --numeric-owner --use-compress-program {GZIP} {helper}"
    )?;
    Ok(file)
}

/// Makes the wheel of the helper.
fn wheel(parts: &Path, output: &Path) -> Result<PathBuf> {
    process::step("Making a Python wheel");
    process::shell().set_var("PIP_DISABLE_PIP_VERSION_CHECK", "1");
    process::shell().set_var("PIP_ROOT_USER_ACTION", "ignore");
    let source = repository::root().join("packaging");
    let work = output.join("work/wheel");
    let (built, tools) = (work.join("built"), work.join("tools"));
    process::run!(
        "pip3 wheel --no-deps --wheel-dir {built} {source} --config-settings=cmake.define.KPACK_PARTS={parts}"
    )?;
    let wheel = moved(&built, "whl", &work)?;
    // The command needs neither of these C libraries.
    let tags = format!("manylinux_2_17_{ARCH}.manylinux2014_{ARCH}.musllinux_1_1_{ARCH}");
    process::run!("pip3 install --quiet --target {tools} wheel")?;
    process::output(
        cmd!(process::shell(), "python3 -m wheel tags --remove --platform-tag {tags} {wheel...}")
            .env("PYTHONPATH", &tools),
    )?;
    let mut wheels = moved(&work, "whl", output)?;
    ensure!(wheels.len() == 1, "there are {wheels:?}, expected one wheel");
    Ok(wheels.remove(0))
}

/// Moves the files with an extension from one directory to another.
fn moved(from: &Path, extension: &str, to: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for made in repository::files_with_extension(from, extension)? {
        let file = to.join(made.file_name().context("a file has a name")?);
        fs::rename(made, &file)?;
        files.push(file);
    }
    Ok(files)
}
