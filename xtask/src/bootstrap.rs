//! Installs the tools of the tasks with Debian's apt-get: only those that the named tasks need.

use std::collections::BTreeSet;
use std::env::consts::ARCH;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use kpack_tests::require::{self, is_root};
use kpack_tests::windows;
use xshell::cmd;

use crate::{log, process};

/// A task that needs tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Needs {
    E2e,
    Test,
    Real,
    Wheels,
    Containers,
    Workflow,
    Corpus,
    Faults,
    Bench,
    Fuzz,
    ThreadSanitizer,
    Package,
    /// `cargo xtask test packages`
    Packages,
}

/// The tools, a line each: a package of Debian 12; a program or file of it, which must be there; the tasks that need it, or `all`;
/// what it is for.
const TOOLS: &str = "\
gcc cc all links fixtures and the stub HIP runtime
g++ g++ e2e,test,real,wheels,packages,fuzz C++ standard library of the HIP project
make make e2e,test,real,package,packages a CMake generator under test
cmake cmake e2e,test,real,package,packages configures the HIP project, and makes packages
ninja-build ninja e2e,test builds the HIP project
clang-19 clang++-19 e2e,test,faults,wheels,packages,thread-sanitizer the HIP compiler
clang-tools-19 clang-offload-bundler-19 e2e,test,wheels,packages compresses bundles
lld-19 ld.lld-19 e2e,test,faults,wheels,packages links device code
llvm-19 llvm-strip-19 e2e,test,wheels,packages,corpus a strip under test, and llvm-objcopy, with which bundles are made
libclang-rt-19-dev /usr/lib/llvm-19/lib/clang/19/lib/linux/libclang_rt.asan-@ARCH@.a e2e,thread-sanitizer AddressSanitizer and ThreadSanitizer
binutils strip all GNU strip, objcopy, ld and gold
elfutils eu-strip test,wheels,corpus a strip and a linter under test
patchelf patchelf test,wheels,corpus changes RPATH after the split
mold mold test a linker under test
ccache ccache test another compiler launcher
gdb gdb test finds separate debug files
pkg-config pkg-config test finds the loader as a library
strace strace test,faults,workflow shows when files are flushed, and stops programs
zstd zstd test,bench what `cargo xtask bench` compares with
gcc-aarch64-linux-gnu aarch64-linux-gnu-gcc test builds host binaries for AArch64
libc6-dev-arm64-cross /usr/aarch64-linux-gnu/lib/libc.so.6 test the C library of host binaries for AArch64
gcc-powerpc64le-linux-gnu powerpc64le-linux-gnu-gcc test builds host binaries for ppc64le
libc6-dev-ppc64el-cross /usr/powerpc64le-linux-gnu/lib/libc.so.6 test the C library of host binaries for ppc64le
qemu-user qemu-aarch64 test runs host binaries for AArch64 and ppc64le
gcc-mingw-w64-x86-64-posix x86_64-w64-mingw32-gcc-posix test,faults,real,bench builds programs for Windows
g++-mingw-w64-x86-64-posix x86_64-w64-mingw32-g++-posix test     links HIP programs for Windows, as clang does with the C++ library
wine wine test,real runs programs for Windows
hipcc hipcc test,real the distribution's own HIP compiler
libhsa-runtime-dev /usr/include/hsa/hsa.h e2e,wheels,bench headers of the HSA runtime
libamdhip64-dev /usr/include/hip/hip_runtime.h test,real,packages ROCm's headers and HIP runtime
librocrand-dev /usr/include/rocrand/rocrand_kernel.h test,real device functions of a real library
chromium chromium test shows the report's page
fish fish test a shell that completes commands
zsh zsh test a shell that completes commands
file file test,package,packages CPack's DEB generator
dpkg-dev dpkg-shlibdeps test,package,packages CPack's DEB generator
rpm rpmbuild test,package,packages CPack's RPM generator
perl pod2man package,packages the manual of dh_kpack
debhelper dh test,packages builds the example of a Debian package
lintian lintian test,packages checks Debian packages
dnf dnf test chooses RPM packages to install
createrepo-c createrepo_c test a repository of RPM packages
git git package,packages the time of the commit
python3 python3 e2e,test,real,wheels,containers,workflow,corpus,bench,package,packages makes and unpacks Python wheels
python3-jsonschema jsonschema test validates the output of --json
python3-pip pip3 e2e,test,real,wheels,workflow,corpus,bench,package,packages downloads and builds Python wheels
buildah buildah containers builds images
debootstrap debootstrap containers makes the root of an image
skopeo skopeo containers copies images
umoci umoci containers unpacks images
podman podman containers pulls images
docker-registry docker-registry containers serves images
jq jq test selects findings on a page
curl curl test,containers fetches packed artifacts
rocm-cmake /usr/share/rocm/cmake/ROCMConfig.cmake test,real the install functions of ROCm's own libraries";

struct Tool {
    package: &'static str,
    name: String,
    tasks: &'static str,
    purpose: String,
}

impl Tool {
    fn all() -> impl Iterator<Item = Self> {
        TOOLS.lines().map(|line| {
            let mut words = line.split_whitespace();
            Self {
                package: words.next().unwrap_or_default(),
                name: words.next().unwrap_or_default().replace("@ARCH@", ARCH),
                tasks: words.next().unwrap_or_default(),
                purpose: Vec::from_iter(words).join(" "),
            }
        })
    }

    /// Whether one of these tasks needs it. No task means all.
    fn is_for(&self, tasks: &[Needs]) -> bool {
        let names = || self.tasks.split(',');
        let named = |task: &Needs| {
            let value = task.to_possible_value();
            names().any(|name| value.as_ref().is_some_and(|value| value.matches(name, false)))
        };
        tasks.is_empty() || self.tasks == "all" || tasks.iter().any(named)
    }

    fn is_missing(&self) -> bool {
        require::find_program(&self.name).is_none()
    }
}

/// What apt-get would do.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    /// What it would fetch, `NAME=VERSION`: new packages, and new versions of installed ones.
    fetched: Vec<String>,
    /// The installed packages among them, `NAME OLD -> NEW`.
    upgraded: Vec<String>,
}

impl Plan {
    /// From what `apt-get install --simulate` prints.
    fn parse(printed: &str) -> Self {
        let mut plan = Self::default();
        for line in printed.lines() {
            let words = Vec::from_iter(line.split_whitespace());
            let (name, old, new) = match words.as_slice() {
                ["Inst", name, old, new, ..] if old.starts_with('[') => (name, Some(old), new),
                ["Inst", name, new, ..] => (name, None, new),
                _ => continue,
            };
            let new = new.trim_start_matches('(');
            plan.fetched.push(format!("{name}={new}"));
            if let Some(old) = old {
                let old = old.trim_matches(['[', ']']);
                plan.upgraded.push(format!("{name} {old} -> {new}"));
            }
        }
        plan
    }
}

/// Bytes of packages.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Sizes {
    download: u64,
    installed: u64,
}

impl Sizes {
    /// The sum of what `apt-cache show` prints.
    fn parse(printed: &str) -> Self {
        let mut sum = Self::default();
        let mut seen = BTreeSet::new();
        for package in printed.split("\n\n") {
            let field = |key: &str| {
                let mut lines = package.lines();
                lines
                    .find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))
                    .unwrap_or_default()
            };
            // Two archives may have the same version.
            if seen.insert(["Package", "Version", "Architecture"].map(field)) {
                sum.download += field("Size").parse::<u64>().unwrap_or(0);
                sum.installed += 1024 * field("Installed-Size").parse::<u64>().unwrap_or(0);
            }
        }
        sum
    }

    fn of(packages: &[String]) -> Result<Self> {
        if packages.is_empty() {
            return Ok(Self::default());
        }
        Ok(Self::parse(&process::run!("apt-cache show --no-all-versions {packages...}")?))
    }
}

/// Installs the missing tools of these tasks, or of all, after a list of them and their sizes. apt-get upgrades an installed
/// package only if a new one needs it, because a machine that lacks some updates is the usual case: a new `perl` demands
/// `perl-base` in its own version. It removes none.
///
/// # Errors
/// apt-get is missing or not permitted, a package cannot be installed, or another would have to go.
pub(crate) fn install_missing(tasks: &[Needs]) -> Result<()> {
    install_packages(tasks)?;
    let windows_too = [Needs::Test, Needs::Real];
    if tasks.is_empty() || tasks.iter().any(|task| windows_too.contains(task)) {
        install_standard_library()?;
    }
    Ok(())
}

/// Rust's standard library for Windows.
fn install_standard_library() -> Result<()> {
    let target = windows::TARGET;
    let sysroot = process::run!("rustc --print sysroot")?;
    if Path::new(sysroot.trim()).join("lib/rustlib").join(target).is_dir() {
        return Ok(());
    }
    if require::find_program("rustup").is_none() {
        println!("   rustup is missing; tests for Windows need Rust's {target}");
        return Ok(());
    }
    process::step(&format!("Installing Rust's standard library for {target} (125 MB on disk)"));
    log::run(cmd!(process::shell(), "rustup target add {target}"))
}

fn install_packages(tasks: &[Needs]) -> Result<()> {
    let missing =
        Vec::from_iter(Tool::all().filter(|tool| tool.is_for(tasks) && tool.is_missing()));
    if missing.is_empty() {
        process::step("All tools are installed");
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().map(|tool| tool.package).collect();
    ensure!(
        require::find_program("apt-get").is_some(),
        "apt-get is missing; install the tools in these Debian packages by other means: {}",
        packages.join(" ")
    );
    process::step("Looking up the missing tools with apt-get");
    // A third-party archive that does not respond need not stop us: only the install itself must
    // succeed.
    if let Err(error) = apt_get(&["update"]) {
        println!("   apt-get update failed; continuing with the existing lists: {error:#}");
    }
    let mut arguments = vec!["install", "--yes", "--no-install-recommends", "--no-remove"];
    arguments.extend(&packages);
    let simulated = &arguments;
    let plan = Plan::parse(&process::run!("apt-get --simulate {simulated...}")?);
    process::step("Installing the missing tools with apt-get:");
    for tool in &missing {
        println!("   {:<28} {}", tool.package, tool.purpose);
    }
    let Sizes { download, installed } = Sizes::of(&plan.fetched)?;
    println!(
        "   with what they need: {} packages, {} MB to download, {} MB on disk",
        plan.fetched.len(),
        download / 1_000_000,
        installed / 1_000_000
    );
    if !plan.upgraded.is_empty() {
        println!("   upgraded, because new packages need it:");
        for package in &plan.upgraded {
            println!("   {package}");
        }
    }
    apt_get(&arguments)?;

    let still = missing.iter().filter(|tool| tool.is_missing());
    let still = Vec::from_iter(still.map(|tool| tool.package));
    ensure!(
        still.is_empty(),
        "apt-get installed {}, but the tools are still missing",
        still.join(" ")
    );
    Ok(())
}

/// Waits for another apt-get: a machine that has just started often installs updates, and another task may install its tools.
const WAIT_FOR_LOCK: &str = "--option=DPkg::Lock::Timeout=600";

/// Runs apt-get as root, through sudo if needed. The variable goes through `env` since sudo drops
/// the environment.
pub(crate) fn apt_get(arguments: &[&str]) -> Result<()> {
    let sudo: &[&str] = if is_root() {
        &[]
    } else {
        ensure!(
            require::find_program("sudo").is_some(),
            "apt-get needs root, and sudo is missing; run `apt-get {}` as root",
            arguments.join(" ")
        );
        &["sudo"]
    };
    let command: Vec<&str> = sudo
        .iter()
        .chain(&["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", WAIT_FOR_LOCK])
        .chain(arguments)
        .copied()
        .collect();
    let (first, rest) = command.split_first().context("a command is never empty")?;
    log::run(cmd!(process::shell(), "{first} {rest...}"))
}

#[cfg(test)]
mod tests {
    use super::{Needs, Plan, Sizes, Tool};
    use clap::ValueEnum as _;

    #[test]
    fn each_task_installs_only_its_own_tools() {
        let packages = |task: Needs| {
            let tools = Tool::all().filter(|tool| tool.is_for(&[task]));
            Vec::from_iter(tools.map(|tool| tool.package))
        };
        let e2e = packages(Needs::E2e);
        assert!(
            ["clang-19", "cmake", "lld-19", "llvm-19"].iter().all(|tool| e2e.contains(tool)),
            "{e2e:?}"
        );
        for other in ["wine", "chromium", "podman", "lintian", "dnf", "fish", "zsh", "hipcc"] {
            assert!(!e2e.contains(&other), "{e2e:?}");
        }
        assert!(!packages(Needs::Test).contains(&"podman"));
        assert!(!packages(Needs::Package).contains(&"clang-19"));
        assert!(Tool::all().all(|tool| tool.is_for(&[])));
    }

    /// A misspelt task would leave its tool out.
    #[test]
    fn each_row_names_tasks() {
        for tool in Tool::all().filter(|tool| tool.tasks != "all") {
            for name in tool.tasks.split(',') {
                assert!(Needs::from_str(name, false).is_ok(), "{}: {name}", tool.package);
            }
        }
    }

    #[test]
    fn what_apt_get_would_upgrade_is_listed() {
        let printed = "Reading package lists...\n\
            Inst perl-base [5.36.0-7] (5.36.0-7+deb12u2 Debian:12.11/oldstable [amd64]) []\n\
            Inst perl (5.36.0-7+deb12u2 Debian:12.11/oldstable [amd64])\n\
            Conf perl-base (5.36.0-7+deb12u2 Debian:12.11/oldstable [amd64])\n";
        let plan = Plan::parse(printed);
        assert_eq!(plan.fetched, ["perl-base=5.36.0-7+deb12u2", "perl=5.36.0-7+deb12u2"]);
        assert_eq!(plan.upgraded, ["perl-base 5.36.0-7 -> 5.36.0-7+deb12u2"]);
    }

    #[test]
    fn sizes_are_summed_once_for_each_version() {
        let one = "Package: a\nVersion: 1\nInstalled-Size: 2\nSize: 700\n";
        let other = "Package: b\nVersion: 1\nInstalled-Size: 3\nSize: 1\n";
        let sum = Sizes::parse(&[one, one, other].join("\n"));
        assert_eq!(sum, Sizes { download: 701, installed: 5 * 1024 });
    }
}
