//! Installs the tools for the tests and the end-to-end run with Debian's apt-get.

use std::env::consts::ARCH;

use anyhow::{Context, Result, ensure};
use kpack_tests::require::is_root;
use kpack_tests::windows;
use xshell::cmd;

use crate::process;

/// The tools, a line each: a package of Debian 12; a program or file of it, which must be there; what it is for.
const TOOLS: &str = "\
gcc                    cc                       links fixtures and the stub HIP runtime
g++                    g++                      C++ standard library of the HIP project
make                   make                     a CMake generator under test
cmake                  cmake                    configures the HIP project
ninja-build            ninja                    builds the HIP project
clang-19               clang++-19               the HIP compiler
clang-tools-19         clang-offload-bundler-19 compresses bundles
lld-19                 ld.lld-19                links device code
llvm-19                llvm-strip-19            a strip under test
libclang-rt-19-dev     /usr/lib/llvm-19/lib/clang/19/lib/linux/libclang_rt.asan-@ARCH@.a AddressSanitizer
binutils               strip                    GNU strip, objcopy, ld and gold
elfutils               eu-strip                 a strip and a linter under test
patchelf               patchelf                 changes RPATH after the split
mold                   mold                     a linker under test
ccache                 ccache                   another compiler launcher
gdb                    gdb                      finds separate debug files
strace                 strace                   shows when files are flushed
zstd                   zstd                     what `cargo xtask bench` compares with
openssl                openssl                  what `cargo xtask bench` compares with
gcc-aarch64-linux-gnu  aarch64-linux-gnu-gcc    builds host binaries for AArch64
libc6-dev-arm64-cross  /usr/aarch64-linux-gnu/lib/libc.so.6 the C library of host binaries for AArch64
qemu-user              qemu-aarch64             runs host binaries for AArch64
gcc-mingw-w64-x86-64-posix x86_64-w64-mingw32-gcc-posix builds programs for Windows
wine                   wine                     runs programs for Windows
hipcc                  hipcc                    the distribution's own HIP compiler
libamdhip64-dev        /usr/include/hip/hip_runtime.h ROCm's headers and HIP runtime
librocrand-dev         /usr/include/rocrand/rocrand_kernel.h device functions of a real library
chromium               chromium                 shows the report's page
fish                   fish                     a shell that completes commands
zsh                    zsh                      a shell that completes commands
file                   file                     CPack's DEB generator
dpkg-dev               dpkg-shlibdeps           CPack's DEB generator
rpm                    rpmbuild                 CPack's RPM generator
debhelper              dh                       builds the example of a Debian package
lintian                lintian                  checks Debian packages
dnf                    dnf                      chooses RPM packages to install
createrepo-c           createrepo_c             a repository of RPM packages
python3                python3                  makes and unpacks Python wheels
python3-jsonschema     jsonschema               validates the output of --json
python3-pip            pip3                     downloads and builds Python wheels
buildah                buildah                  builds images
skopeo                 skopeo                   copies images
umoci                  umoci                    unpacks images
podman                 podman                   pulls images
docker-registry        docker-registry          serves images
curl                   curl                     fetches packed artifacts
rocm-cmake             /usr/share/rocm/cmake/ROCMConfig.cmake the install functions of ROCm's own libraries";

struct Tool {
    package: &'static str,
    name: String,
    purpose: String,
}

fn tools() -> impl Iterator<Item = Tool> {
    TOOLS.lines().map(|line| {
        let mut words = line.split_whitespace();
        Tool {
            package: words.next().unwrap_or_default(),
            name: words.next().unwrap_or_default().replace("@ARCH@", ARCH),
            purpose: Vec::from_iter(words).join(" "),
        }
    })
}

/// Installs missing tools and lists them, and Rust's standard library for Windows.
///
/// # Errors
/// apt-get is missing or not permitted, or a package cannot be installed.
pub(crate) fn install_missing() -> Result<()> {
    install_packages()?;
    if process::find_program("rustup").is_none() {
        println!("   rustup is missing; tests for Windows need Rust's {}", windows::TARGET);
        return Ok(());
    }
    let target = windows::TARGET;
    cmd!(process::shell(), "rustup target add {target}").run()?;
    Ok(())
}

fn install_packages() -> Result<()> {
    let is_missing = |tool: &Tool| process::find_program(&tool.name).is_none();
    let missing = Vec::from_iter(tools().filter(is_missing));
    if missing.is_empty() {
        process::step("All tools are installed");
        return Ok(());
    }
    process::step("Installing the missing tools with apt-get:");
    for tool in &missing {
        println!("   {:<20} {}", tool.package, tool.purpose);
    }
    let packages: Vec<&str> = missing.iter().map(|tool| tool.package).collect();
    ensure!(
        process::find_program("apt-get").is_some(),
        "apt-get is missing; install the tools in these Debian packages by other means: {}",
        packages.join(" ")
    );
    // A third-party archive that does not respond need not stop us: only the install itself must
    // succeed.
    if let Err(error) = apt_get(&["update"]) {
        println!("   apt-get update failed; continuing with the existing lists: {error:#}");
    }
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(&packages);
    apt_get(&arguments)?;

    let still = missing.iter().filter(|tool| is_missing(tool));
    let still = Vec::from_iter(still.map(|tool| tool.package));
    ensure!(
        still.is_empty(),
        "apt-get installed {}, but the tools are still missing",
        still.join(" ")
    );
    Ok(())
}

/// Runs apt-get as root, through sudo if needed. The variable goes through `env` since sudo drops
/// the environment.
pub(crate) fn apt_get(arguments: &[&str]) -> Result<()> {
    let sudo: &[&str] = if is_root() {
        &[]
    } else {
        ensure!(
            process::find_program("sudo").is_some(),
            "apt-get needs root, and sudo is missing; run `apt-get {}` as root",
            arguments.join(" ")
        );
        &["sudo"]
    };
    let command: Vec<&str> = sudo
        .iter()
        .chain(&["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"])
        .chain(arguments)
        .copied()
        .collect();
    let (first, rest) = command.split_first().context("a command is never empty")?;
    cmd!(process::shell(), "{first} {rest...}").run()?;
    Ok(())
}
