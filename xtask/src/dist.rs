//! `cargo xtask dist`: an install prefix with the helper, the loader, the shim, their packages for CMake and
//! pkg-config, the manual, and the documents.

mod files;
pub(crate) mod licences;
mod shim;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::build::{self, Profile};
use crate::glibc::{Cargo, Glibc};
use crate::{process, repository};
use files::{copy_file, copy_tree, link_file, write_file};

/// The version of all crates.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Build results to install.
#[derive(Debug)]
pub(crate) struct Built {
    /// The helper binary.
    pub(crate) helper: PathBuf,
    /// The directory of the loader.
    pub(crate) runtime: PathBuf,
    /// The shim to preload.
    pub(crate) shared_shim: PathBuf,
    /// The shim for linkers, as cargo builds it.
    pub(crate) static_shim: PathBuf,
}

impl Built {
    /// Builds everything.
    ///
    /// # Errors
    /// A build fails.
    pub(crate) fn new(profile: Profile) -> Result<Self> {
        Self::with(&Cargo::System, profile)
    }

    fn with(cargo: &Cargo, profile: Profile) -> Result<Self> {
        let helper = build::helper(cargo, profile)?;
        let loader = build::loader(cargo, profile)?;
        let [shared_shim, static_shim] = build::shim(cargo, profile)?;
        Ok(Self { helper, runtime: loader, shared_shim, static_shim })
    }

    /// Builds everything as the tests are built, including the shim, which otherwise has a profile of its own.
    fn for_tests() -> Result<Self> {
        let helper = build::helper(&Cargo::System, Profile::Dev)?;
        let loader = build::loader(&Cargo::System, Profile::Dev)?;
        let [shared_shim, static_shim] = build::shim_for_tests()?;
        Ok(Self { helper, runtime: loader, shared_shim, static_shim })
    }

    /// The shared library.
    pub(crate) fn loader(&self) -> PathBuf {
        self.runtime.join("librocm_kpack.so")
    }

    /// The static library.
    pub(crate) fn static_loader(&self) -> PathBuf {
        self.runtime.join("librocm_kpack.a")
    }

    /// The shim for linkers as it is installed, made in a directory.
    pub(crate) fn merged_shim(&self, directory: &Path) -> Result<PathBuf> {
        shim::merge(&self.static_shim, directory)
    }

    fn so_name(&self) -> Result<String> {
        so_name(&self.loader())
    }

    /// The name of a part's package. The loader's ends with the number of its SONAME, so that two
    /// versions of it can be installed side by side.
    pub(crate) fn package(&self, part: Part) -> Result<String> {
        Ok(match part {
            Part::Helper => "kpack".to_owned(),
            Part::Loader => self.so_name()?.replace(".so.", "").replace('_', "-"),
            Part::Development => "librocm-kpack-dev".to_owned(),
            Part::Join => "kpack-join".to_owned(),
        })
    }
}

/// What kpack consists of, a package each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The command, its CMake package, the shim and the documents.
    Helper,
    /// The shared library that HIP runtimes load.
    Loader,
    /// What programs are built with that call the loader.
    Development,
    /// What joins installed binaries, for a package with triggers.
    Join,
}

impl Part {
    pub(crate) const ALL: [Self; 4] = [Self::Helper, Self::Loader, Self::Development, Self::Join];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Helper => "helper",
            Self::Loader => "loader",
            Self::Development => "development",
            Self::Join => "join",
        }
    }
}

/// Fills `prefix` with all parts: `bin/kpack`, `lib/libkpack_hip.*`, `lib/librocm_kpack.*`, `include/rocm_kpack/`,
/// `lib/pkgconfig/`, `lib/cmake/`, `share/`. The loader and its packages go to `libdir` instead of `lib`. They run with
/// the glibc of this system and later ones, or from `glibc` on.
///
/// # Errors
/// A build fails, or a directory cannot be written.
pub(crate) fn install(
    prefix: &Path,
    libdir: &Path,
    profile: Profile,
    glibc: Option<Glibc>,
) -> Result<()> {
    ensure!(
        libdir.is_relative() && libdir.components().all(|c| matches!(c, Component::Normal(_))),
        "--libdir {} is not a path below the prefix",
        libdir.display()
    );
    let cargo = glibc.map_or(Ok(Cargo::System), Cargo::for_glibc)?;
    let built = Built::with(&cargo, profile)?;
    fill(prefix, libdir, &built)?;
    let shim = Path::new("lib").join(so_name(&built.shared_shim)?);
    let loader = libdir.join(built.so_name()?);
    cargo.report(prefix, &[Path::new("bin/kpack"), &*loader, &*shim])
}

/// As [`install`], from what cargo compiles for tests anyway. The shim is then not small, which takes the linker longer to
/// optimise than all else takes.
///
/// # Errors
/// As [`install`].
pub(crate) fn install_for_tests(prefix: &Path) -> Result<()> {
    fill(prefix, Path::new("lib"), &Built::for_tests()?)
}

/// As [`install`], from existing build results.
pub(crate) fn fill(prefix: &Path, libdir: &Path, built: &Built) -> Result<()> {
    process::step(&format!("Installing kpack into {}", prefix.display()));
    for part in Part::ALL {
        fill_with(part, prefix, libdir, &built.package(part)?, built)?;
    }
    Ok(())
}

/// As [`fill`], with one part, whose documents are in the directory of its `package`.
pub(crate) fn fill_with(
    part: Part,
    prefix: &Path,
    libdir: &Path,
    package: &str,
    built: &Built,
) -> Result<()> {
    let documents = prefix.join("share/doc").join(package);
    match part {
        Part::Helper => {
            install_helper(prefix, &documents, built)?;
            licences::install(&documents, &["kpack-cli", "kpack-hip"])
        }
        Part::Loader => {
            let library = prefix.join(libdir);
            let full_name = format!("librocm_kpack.so.{VERSION}");
            copy_file(&built.loader(), &library.join(&full_name))?;
            link_file(&full_name, &library.join(built.so_name()?))?;
            licences::install(&documents, &["kpack-runtime"])
        }
        Part::Development => {
            install_development(prefix, libdir, built)?;
            licences::install(&documents, &["kpack-runtime"])
        }
        Part::Join => {
            let script = repository::root().join("packaging/join/join-installed");
            copy_file(&script, &prefix.join("libexec/kpack/join-installed"))?;
            copy_file(&repository::root().join("LICENSE-MIT"), &documents.join("copyright"))
        }
    }
}

/// Installs the command, its CMake package, the shim, what ROCm's build calls, its manual and the documents.
fn install_helper(prefix: &Path, documents: &Path, built: &Built) -> Result<()> {
    let root = repository::root();
    copy_file(&built.helper, &prefix.join("bin/kpack"))?;
    let shim = so_name(&built.shared_shim)?;
    copy_file(&built.shared_shim, &prefix.join("lib").join(&shim))?;
    link_file(&shim, &prefix.join("lib/libkpack_hip.so"))?;
    let scratch = process::shell().create_temp_dir()?;
    let static_shim = built.merged_shim(scratch.path())?;
    copy_file(&static_shim, &prefix.join("lib/libkpack_hip.a"))?;
    copy_tree(&root.join("cmake"), &prefix.join("lib/cmake/Kpack"))?;
    copy_tree(&root.join("therock"), &prefix.join("share/kpack/therock"))?;
    install_packagers_tools(prefix, &built.helper)?;
    install_manual(prefix, &built.helper)?;
    copy_tree(&root.join("docs"), &documents.join("docs"))?;
    for name in ["README.md", "LICENSE-APACHE", "LICENSE-MIT"] {
        copy_file(&root.join(name), &documents.join(name))?;
    }
    Ok(())
}

/// What [`install_packagers_tools`] installs for Debian packages, below the prefix.
pub(crate) const FOR_DEBIAN: [&str; 2] =
    ["bin/dh_kpack", "share/perl5/Debian/Debhelper/Sequence/kpack.pm"];
/// And for RPM packages.
pub(crate) const FOR_RPM: [&str; 1] = ["lib/rpm/macros.d/macros.kpack"];

/// Installs what the packages of programs with GPU code are made with.
fn install_packagers_tools(prefix: &Path, kpack: &Path) -> Result<()> {
    let source = repository::root().join("packaging");
    let files = FOR_DEBIAN
        .map(|file| ("debian", file))
        .into_iter()
        .chain(FOR_RPM.map(|file| ("rpm", file)))
        .chain([(".", "bin/kpack-gpu-package")]);
    for (directory, file) in files {
        let name = Path::new(file).file_name().context("a file has a name")?;
        copy_file(&source.join(directory).join(name), &prefix.join(file))?;
    }
    let processors = process::run!("{kpack} documents processors")?;
    write_file(&prefix.join("share/kpack/processors"), processors.as_bytes())
}

/// The shells, and where each looks for completions of installed programs.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/kpack"),
    ("zsh", "share/zsh/vendor-completions/_kpack"),
    ("fish", "share/fish/vendor_completions.d/kpack.fish"),
];

/// Installs the manual pages and the completions, which the command prints.
fn install_manual(prefix: &Path, kpack: &Path) -> Result<()> {
    let script = repository::root().join("packaging/kpack-gpu-package");
    let pages = process::run!("{kpack} documents manual {script}")?;
    let pages: BTreeMap<String, String> = serde_json::from_str(&pages)?;
    let directory = prefix.join("share/man/man1");
    let pages = pages
        .iter()
        .map(|(name, page)| {
            let file = directory.join(name);
            write_file(&file, page.as_bytes()).map(|()| file)
        })
        .collect::<Result<Vec<PathBuf>>>()?;
    process::run!("gzip -n9 --force {pages...}")?;
    for (shell, file) in COMPLETIONS {
        let script = process::run!("{kpack} completions {shell}")?;
        write_file(&prefix.join(file), script.as_bytes())?;
    }
    // Where zsh looks on other distributions than Debian.
    let link = prefix.join("share/zsh/site-functions/_kpack");
    link_file("../vendor-completions/_kpack", &link)
}

/// Installs the loader's headers, its static library, and its CMake and pkg-config packages.
fn install_development(prefix: &Path, libdir: &Path, built: &Built) -> Result<()> {
    let source = repository::root().join("kpack-runtime");
    let library = prefix.join(libdir);
    let so_name = built.so_name()?;
    link_file(&so_name, &library.join("librocm_kpack.so"))?;
    copy_file(&built.static_loader(), &library.join("librocm_kpack.a"))?;
    copy_tree(&source.join("include/rocm_kpack"), &prefix.join("include/rocm_kpack"))?;

    // Relative path to the prefix, from a directory so many levels below it.
    let depth = libdir.components().count();
    let up = |below: usize| vec![".."; depth + below].join("/");
    let fill_in = |name: &str, to: &Path| -> Result<()> {
        let template = source.join("package").join(format!("{name}.in"));
        let text = fs::read_to_string(&template).with_context(|| template.display().to_string())?;
        let text = text
            .replace("@VERSION@", VERSION)
            .replace("@SONAME@", &so_name)
            .replace("@LIBDIR@", &libdir.display().to_string())
            .replace("@PKGCONFIG_TO_PREFIX@", &up(1))
            .replace("@CMAKE_TO_PREFIX@", &up(2));
        write_file(&to.join(name), text.as_bytes())
    };
    fill_in("rocm-kpack.pc", &library.join("pkgconfig"))?;
    let cmake = library.join("cmake/rocm-kpack");
    fill_in("rocm-kpack-config.cmake", &cmake)?;
    // Both packages share the version and its rules.
    copy_file(
        &repository::root().join("cmake/KpackConfigVersion.cmake"),
        &cmake.join("rocm-kpack-config-version.cmake"),
    )
}

/// The SONAME of a shared library.
fn so_name(library: &Path) -> Result<String> {
    let dynamic = process::run!("readelf --dynamic --wide {library}")?;
    let entry = dynamic.lines().find(|line| line.contains("(SONAME)"));
    let name = entry.and_then(|entry| entry.split_once('[')?.1.strip_suffix(']'));
    let name = name.with_context(|| format!("{} has no SONAME", library.display()))?;
    Ok(name.to_owned())
}
