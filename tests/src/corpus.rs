//! Real libraries with device code, and HIP runtimes, fetched by package name into `corpus` of cargo's target directory.
//! What is there is not fetched again.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use object::read::{ObjectSection, ReadCache};
use object::{Object, ObjectKind};
use walkdir::WalkDir;

use crate::process::{target_directory, try_run};
use crate::{apt, python};

/// A library with device code.
#[derive(Debug)]
pub struct Library {
    /// The package that it is from.
    pub package: &'static str,
    /// The file.
    pub path: PathBuf,
}

impl Library {
    /// The name of the file.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// The package whose library is the largest: 1.3 GB, of which 95% is device code.
pub const LARGEST: &str = "librocsparse0";

enum Source {
    Debian,
    PythonIndex,
}

const PACKAGES: [(&str, Source); 3] = [
    ("librocrand1", Source::Debian),
    (LARGEST, Source::Debian),
    ("bitsandbytes", Source::PythonIndex),
];

fn directory() -> PathBuf {
    target_directory().join("corpus")
}

/// Every library with device code in the corpus.
///
/// # Errors
/// A package cannot be fetched or has no device code.
pub fn libraries() -> Result<Vec<Library>> {
    let libraries = PACKAGES.iter().map(|(package, _)| self::package(package));
    Ok(libraries.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// The libraries with device code of one of its packages.
///
/// # Errors
/// It cannot be fetched or has no device code.
pub fn package(package: &str) -> Result<Vec<Library>> {
    let known = PACKAGES.iter().find(|(known, _)| *known == package);
    let (package, source) = known.with_context(|| format!("{package} is not in the corpus"))?;
    let directory = directory().join(package);
    fetch(package, &directory, |partial| match source {
        Source::Debian => debian(package, partial),
        Source::PythonIndex => python_index(package, &[], partial),
    })?;
    let found = with_device_code(&directory)?;
    ensure!(
        !found.is_empty(),
        "{} has no library with device code; remove it to fetch it again",
        directory.display()
    );
    Ok(found.into_iter().map(|path| Library { package, path }).collect())
}

/// Fetches a package into `directory`, unless it is there. Only a complete package gets its final name.
fn fetch(
    package: &str,
    directory: &Path,
    download: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    let corpus = directory.parent().context("a package is in a directory")?;
    fs::create_dir_all(corpus)?;
    // Another task may be fetching the same.
    let lock = File::create(corpus.join(format!("{package}.lock")))?;
    lock.lock()?;
    if directory.exists() {
        return Ok(());
    }
    println!("Fetching {package}");
    let partial = directory.with_file_name(format!("{package}.partial"));
    let _ = fs::remove_dir_all(&partial);
    fs::create_dir_all(&partial)?;
    download(&partial).with_context(|| format!("cannot fetch {package}"))?;
    Ok(fs::rename(&partial, directory)?)
}

/// Downloads the newest version of a Debian package from the configured archive and unpacks it.
fn debian(package: &str, directory: &Path) -> Result<()> {
    let mut download = Command::new("apt-get");
    // As root, apt would download as its own user, which cannot write here.
    download.args(["-o", "APT::Sandbox::User=root", "download", package]).current_dir(directory);
    try_run(&mut download).context("does `apt-get update` help?")?;
    let file = only_file(directory, "deb")?;
    try_run(Command::new("dpkg-deb").arg("-x").args([&file, directory]))?;
    Ok(fs::remove_file(file)?)
}

/// Downloads a wheel and unpacks it.
fn python_index(requirement: &str, options: &[&str], directory: &Path) -> Result<()> {
    let file = download_wheel(requirement, options, directory)?;
    python::unpack(&file, directory)?;
    Ok(fs::remove_file(file)?)
}

fn download_wheel(requirement: &str, options: &[&str], directory: &Path) -> Result<PathBuf> {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest"]);
    try_run(pip.arg(directory).args(options).arg(requirement))?;
    only_file(directory, "whl")
}

/// The newest wheel of a package in the Python package index.
///
/// # Errors
/// It cannot be fetched.
pub fn wheel(package: &str) -> Result<PathBuf> {
    let directory = directory().join("wheels").join(package);
    fetch(package, &directory, |partial| download_wheel(package, &[], partial).map(drop))?;
    only_file(&directory, "whl")
}

/// The DLLs with device code of bitsandbytes.
///
/// # Errors
/// They cannot be fetched.
pub fn dlls() -> Result<Vec<PathBuf>> {
    let directory = directory().join("bitsandbytes-windows");
    fetch("bitsandbytes-windows", &directory, |partial| {
        python_index("bitsandbytes", &["--platform", "win_amd64"], partial)
    })?;
    let files = fs::read_dir(directory.join("bitsandbytes"))?.flatten().map(|entry| entry.path());
    let is_ours = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.contains("_rocm") && name.ends_with(".dll")
    };
    let mut found = Vec::from_iter(files.filter(is_ours));
    found.sort();
    ensure!(!found.is_empty(), "{} has no DLL for ROCm", directory.display());
    Ok(found)
}

/// The libraries of a HIP runtime of ROCm that reads markers, with ROCm's own loader: those in a wheel that
/// needs them.
///
/// # Errors
/// It cannot be fetched.
pub fn rocm() -> Result<PathBuf> {
    let directory = rocm_of("rocm-7.14", "manylinux_2_28_x86_64")?;
    Ok(directory.join("vapoursynth_dfttest2_hip.libs"))
}

/// The name of a wheel with ROCm's loader for Windows, and the directory of that.
///
/// # Errors
/// It cannot be fetched.
pub fn rocm_for_windows() -> Result<(String, PathBuf)> {
    let directory = rocm_of("rocm-7.14-windows", "win_amd64")?;
    let libraries = directory.join("vapoursynth/plugins/dfttest2_hip");
    Ok((ROCM.to_owned(), libraries))
}

/// The wheel with ROCm's libraries.
const ROCM: &str = "vapoursynth-dfttest2-hip==11.1.0";

/// A directory of the corpus with what that wheel for a platform has.
fn rocm_of(name: &str, platform: &str) -> Result<PathBuf> {
    let directory = directory().join(name);
    fetch(name, &directory, |partial| {
        // The wheel is for another Python, and is only unpacked.
        python_index(ROCM, &["--python-version", "3.12", "--platform", platform], partial)
    })?;
    Ok(directory)
}

/// A root with a HIP runtime and other libraries of one of Debian's suites, and all libraries that they
/// need.
///
/// # Errors
/// A package cannot be fetched.
pub fn suite(suite: &str) -> Result<PathBuf> {
    let directory = directory().join(suite);
    let (release, packages) = match suite {
        "trixie" => ("", "libamdhip64-5 librocblas0"),
        "sid" => ("", "libamdhip64-6"),
        _ => ("sid", "libamdhip64-7"),
    };
    fetch(suite, &directory, |partial| {
        let suites = [suite, release].into_iter().filter(|suite| !suite.is_empty());
        let (apt, apt_get) = isolated_apt(partial, suites)?;
        apt_get(&format!("install --yes --download-only --target-release {suite} {packages}"))?;
        // Only libraries: rocBLAS has gigabytes of other files.
        let unpack = "for deb in apt/archives/*.deb; do
            dpkg-deb --fsys-tarfile $deb | tar -x --wildcards --no-wildcards-match-slash './usr/lib/x86_64-linux-gnu/*.so*' 2>/dev/null || :
        done";
        try_run(Command::new("sh").args(["-c", unpack]).current_dir(partial))?;
        Ok(fs::remove_dir_all(apt)?)
    })?;
    Ok(directory)
}

/// The file of a package of one of Debian's suites.
///
/// # Errors
/// It cannot be fetched.
pub fn package_of(suite: &str, package: &str) -> Result<PathBuf> {
    let name = format!("{suite}-{package}");
    let directory = directory().join(&name);
    fetch(&name, &directory, |partial| {
        let (apt, apt_get) = isolated_apt(partial, [suite].into_iter())?;
        apt_get(&format!("download {package}"))?;
        Ok(fs::remove_dir_all(apt)?)
    })?;
    only_file(&directory, "deb")
}

/// The directory of an apt for some of Debian's suites, which knows of no installed package, and a function that runs it
/// in the parent of that directory.
fn isolated_apt<'a>(
    parent: &Path,
    suites: impl Iterator<Item = &'a str>,
) -> Result<(PathBuf, impl Fn(&str) -> Result<String>)> {
    let apt = parent.join("apt");
    for directory in ["lists/partial", "archives/partial"] {
        fs::create_dir_all(apt.join(directory))?;
    }
    fs::write(apt.join("status"), "")?;
    let source = |suite: &str| {
        format!(
            "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian {suite} main\n"
        )
    };
    fs::write(apt.join("sources.list"), suites.map(source).collect::<String>())?;
    let configuration = apt.join("apt.conf");
    fs::write(&configuration, apt::CONFIGURATION.replace('@', &apt.display().to_string()))?;
    let parent = parent.to_owned();
    let apt_get = move |arguments: &str| {
        let mut command = Command::new("apt-get");
        command.args(arguments.split(' ')).env("APT_CONFIG", &configuration);
        try_run(command.current_dir(&parent))
    };
    apt_get("update")?;
    Ok((apt, apt_get))
}

/// A tar file with a minimal Debian 12.
///
/// # Errors
/// It cannot be fetched.
pub fn debian_12() -> Result<PathBuf> {
    let directory = directory().join("debian-12");
    fetch("debian-12", &directory, |partial| {
        let script = "debootstrap --variant=minbase --include=ca-certificates bookworm root http://deb.debian.org/debian
            tar --create --numeric-owner --directory root --file root.tar .
            rm -r root";
        try_run(Command::new("sh").args(["-euc", script]).current_dir(partial)).map(drop)
    })?;
    Ok(directory.join("root.tar"))
}

fn only_file(directory: &Path, extension: &str) -> Result<PathBuf> {
    let mut files = fs::read_dir(directory)?.flatten().map(|entry| entry.path());
    let file = files.find(|file| file.extension().is_some_and(|found| found == extension));
    file.with_context(|| format!("no .{extension} file was downloaded"))
}

/// The shared objects with device code in a tree; links are not followed.
///
/// # Errors
/// A file cannot be read.
pub fn with_device_code(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in WalkDir::new(directory).sort_by_file_name() {
        let entry = entry?;
        if entry.file_type().is_file() && has_device_code(entry.path())? {
            found.push(entry.into_path());
        }
    }
    Ok(found)
}

fn has_device_code(path: &Path) -> Result<bool> {
    let cache = ReadCache::new(File::open(path)?);
    let Ok(file) = object::File::parse(&cache) else {
        return Ok(false);
    };
    Ok(file.kind() == ObjectKind::Dynamic
        && file.sections().any(|section| section.name() == Ok(".hip_fatbin")))
}
