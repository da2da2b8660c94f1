//! `cargo xtask corpus`: real libraries with device code, fetched by package name.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use kpack_tests::apt;
use object::read::{ObjectSection, ReadCache};
use object::{Object, ObjectKind};
use walkdir::WalkDir;
use xshell::cmd;

use crate::process::NotRun;
use crate::{bootstrap, process, python, repository};

/// A library with device code.
#[derive(Debug)]
pub(crate) struct Library {
    /// The package that it is from.
    pub(crate) package: &'static str,
    /// The file.
    pub(crate) path: PathBuf,
}

impl Library {
    /// The name of the file.
    pub(crate) fn name(&self) -> String {
        repository::file_name(&self.path)
    }
}

/// The package whose library is the largest: 1.3 GB, of which 95% is device code.
pub(crate) const LARGEST: &str = "librocsparse0";

enum Source {
    Debian,
    PythonIndex,
}

const PACKAGES: [(&str, Source); 3] = [
    ("librocrand1", Source::Debian),
    (LARGEST, Source::Debian),
    ("bitsandbytes", Source::PythonIndex),
];

/// Fetches every package and lists its libraries.
///
/// # Errors
/// A package cannot be fetched or has no device code.
pub(crate) fn run() -> Result<()> {
    for library in libraries()? {
        let size = fs::metadata(&library.path)?.len();
        println!(
            "   {:<16} {:>7.1} MB  {}",
            library.package,
            size as f64 / 1e6,
            library.path.display()
        );
    }
    Ok(())
}

/// Every library with device code in the corpus. Packages already present are not fetched again.
///
/// # Errors
/// A package cannot be fetched or has no device code.
pub(crate) fn libraries() -> Result<Vec<Library>> {
    let corpus = repository::target_directory().join("corpus");
    let mut libraries = Vec::new();
    for (package, source) in &PACKAGES {
        let directory = corpus.join(package);
        fetch(package, &directory, |partial| match source {
            Source::Debian => debian(package, partial),
            Source::PythonIndex => python_index(package, partial),
        })?;
        let found = with_device_code(&directory)?;
        ensure!(
            !found.is_empty(),
            "{} has no library with device code; remove it to fetch it again",
            directory.display()
        );
        libraries.extend(found.into_iter().map(|path| Library { package, path }));
    }
    Ok(libraries)
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
    let lock = File::create(corpus.join("lock"))?;
    lock.lock()?;
    if directory.exists() {
        process::step(&format!("{package} is in {}", directory.display()));
        return Ok(());
    }
    process::step(&format!("Fetching {package}"));
    let partial = directory.with_file_name(format!("{package}.partial"));
    let _ = fs::remove_dir_all(&partial);
    fs::create_dir_all(&partial)?;
    download(&partial).map_err(|error| NotRun(format!("cannot fetch {package}: {error:#}")))?;
    Ok(fs::rename(&partial, directory)?)
}

/// Downloads the newest version of a Debian package from the configured archive and unpacks it.
fn debian(package: &str, directory: &Path) -> Result<()> {
    let _directory = process::shell().push_dir(directory);
    // As root, apt would download as its own user, which cannot write here.
    let download = || process::run!("apt-get -o APT::Sandbox::User=root download {package}");
    if let Err(error) = download() {
        println!("   {error:#}\n   Updating apt's lists and trying again");
        bootstrap::apt_get(&["update"])?;
        download()?;
    }
    let file = only_file(directory, "deb")?;
    process::run!("dpkg-deb -x {file} .")?;
    fs::remove_file(file)?;
    Ok(())
}

/// Downloads a wheel and unpacks it.
fn python_index(package: &str, directory: &Path) -> Result<()> {
    let file = download_wheel(package, directory)?;
    python::unpack(&file, directory)?;
    fs::remove_file(file)?;
    Ok(())
}

fn download_wheel(package: &str, directory: &Path) -> Result<PathBuf> {
    process::run!(
        "python3 -m pip download --quiet --no-deps --only-binary=:all: --dest {directory} {package}"
    )?;
    only_file(directory, "whl")
}

/// The newest wheel of a package in the Python package index. One already present is not fetched again.
///
/// # Errors
/// It cannot be fetched.
pub(crate) fn wheel(package: &str) -> Result<PathBuf> {
    let directory = repository::target_directory().join("corpus/wheels").join(package);
    fetch(package, &directory, |partial| download_wheel(package, partial).map(drop))?;
    only_file(&directory, "whl")
}

/// The libraries of a HIP runtime of ROCm that reads markers, with ROCm's own loader: those in a wheel that
/// needs them.
///
/// # Errors
/// It cannot be fetched.
pub(crate) fn rocm() -> Result<PathBuf> {
    let directory = rocm_of("rocm-7.14", "manylinux_2_28_x86_64")?;
    Ok(directory.join("vapoursynth_dfttest2_hip.libs"))
}

/// The name of a wheel with ROCm's loader for Windows, and the directory of that.
///
/// # Errors
/// It cannot be fetched.
pub(crate) fn rocm_for_windows() -> Result<(String, PathBuf)> {
    let directory = rocm_of("rocm-7.14-windows", "win_amd64")?;
    let libraries = directory.join("vapoursynth/plugins/dfttest2_hip");
    Ok((ROCM.to_owned(), libraries))
}

/// The wheel with ROCm's libraries.
const ROCM: &str = "vapoursynth-dfttest2-hip==11.1.0";

/// A directory of the corpus with what that wheel for a platform has.
fn rocm_of(name: &str, platform: &str) -> Result<PathBuf> {
    let directory = repository::target_directory().join("corpus").join(name);
    fetch("ROCm 7.14", &directory, |partial| {
        let _directory = process::shell().push_dir(partial);
        // The wheel is for another Python, and is only unpacked.
        process::run!(
            "python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --platform {platform} {ROCM}"
        )?;
        let file = only_file(partial, "whl")?;
        python::unpack(&file, partial)?;
        Ok(fs::remove_file(file)?)
    })?;
    Ok(directory)
}

/// A root with a HIP runtime and other libraries of one of Debian's suites, and all libraries that they
/// need.
///
/// # Errors
/// A package cannot be fetched.
pub(crate) fn suite(suite: &str) -> Result<PathBuf> {
    let directory = repository::target_directory().join("corpus").join(suite);
    let (release, packages) = match suite {
        "trixie" => ("", "libamdhip64-5 librocblas0"),
        "sid" => ("", "libamdhip64-6"),
        _ => ("sid", "libamdhip64-7"),
    };
    fetch(&format!("the HIP runtime of Debian {suite}"), &directory, |partial| {
        let _directory = process::shell().push_dir(partial);
        let apt = partial.join("apt");
        for directory in ["lists/partial", "archives/partial"] {
            fs::create_dir_all(apt.join(directory))?;
        }
        fs::write(apt.join("status"), "")?;
        let source = |suite: &str| {
            format!(
                "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian {suite} main\n"
            )
        };
        let sources = [suite, release].into_iter().filter(|suite| !suite.is_empty());
        fs::write(apt.join("sources.list"), sources.map(source).collect::<String>())?;
        let configuration = apt.join("apt.conf");
        fs::write(&configuration, apt::CONFIGURATION.replace('@', &apt.display().to_string()))?;
        let apt_get = |arguments: &str| {
            let arguments = arguments.split(' ');
            let command = cmd!(process::shell(), "apt-get {arguments...}");
            process::output(command.env("APT_CONFIG", &configuration))
        };
        apt_get("update")?;
        apt_get(&format!("install --yes --download-only --target-release {suite} {packages}"))?;
        // Only libraries: rocBLAS has gigabytes of other files.
        let unpack = "for deb in apt/archives/*.deb; do
            dpkg-deb --fsys-tarfile $deb | tar -x --wildcards --no-wildcards-match-slash './usr/lib/x86_64-linux-gnu/*.so*' 2>/dev/null || :
        done";
        process::run!("sh -c {unpack}")?;
        Ok(fs::remove_dir_all(apt)?)
    })?;
    Ok(directory)
}

fn only_file(directory: &Path, extension: &str) -> Result<PathBuf> {
    let mut files = repository::files_with_extension(directory, extension)?;
    let file = files.pop();
    file.with_context(|| format!("no .{extension} file was downloaded"))
}

/// The shared objects with device code in a tree; links are not followed.
///
/// # Errors
/// A file cannot be read.
pub(crate) fn with_device_code(directory: &Path) -> Result<Vec<PathBuf>> {
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
