//! Installs the tools for the tests and the end-to-end run with Debian's apt-get.

use anyhow::{Context, Result, bail, ensure};
use kpack_tests::require::is_root;
use xshell::cmd;

use crate::process;

/// A required tool: its programs or files, of which one must be there (`a|b`); its Debian package; and what it is
/// for.
type Tool = (&'static str, &'static str, &'static str);

/// Named for Debian 12.
const TOOLS: &[Tool] = &[
    ("cc", "gcc", "links fixtures and the stub HIP runtime"),
    ("g++", "g++", "C++ standard library of the HIP project"),
    ("make", "make", "a CMake generator under test"),
    ("cmake", "cmake", "configures the HIP project"),
    ("ninja", "ninja-build", "builds the HIP project"),
    ("clang++-19", "clang-19", "the HIP compiler"),
    (
        "clang-offload-bundler-19",
        "clang-tools-19",
        "compresses bundles; the reference for the contents of bundles",
    ),
    ("ld.lld-19", "lld-19", "links device code"),
    ("llvm-strip-19", "llvm-19", "a strip under test"),
    (
        "/usr/lib/llvm-19/lib/clang/19/lib/linux/libclang_rt.asan-x86_64.a|/usr/lib/llvm-19/lib/clang/19/lib/linux/libclang_rt.asan-aarch64.a",
        "libclang-rt-19-dev",
        "AddressSanitizer",
    ),
    ("strip", "binutils", "GNU strip, objcopy, ld and gold"),
    ("eu-strip", "elfutils", "a strip and a linter under test"),
    ("patchelf", "patchelf", "changes RPATH after the split"),
    ("mold", "mold", "a linker under test"),
    ("ccache", "ccache", "another compiler launcher"),
    ("gdb", "gdb", "finds separate debug files"),
    ("strace", "strace", "shows when files are flushed"),
    ("zstd", "zstd", "what `cargo xtask bench` compares with"),
    (
        "openssl",
        "openssl",
        "what `cargo xtask bench` compares with",
    ),
    (
        "aarch64-linux-gnu-gcc",
        "gcc-aarch64-linux-gnu",
        "builds host binaries for AArch64",
    ),
    (
        "/usr/aarch64-linux-gnu/lib/libc.so.6",
        "libc6-dev-arm64-cross",
        "the C library of host binaries for AArch64",
    ),
    (
        "qemu-aarch64",
        "qemu-user",
        "runs host binaries for AArch64",
    ),
    ("hipcc", "hipcc", "the distribution's own HIP compiler"),
    (
        "/usr/include/hip/hip_runtime.h",
        "libamdhip64-dev",
        "ROCm's headers and HIP runtime",
    ),
    (
        "/usr/include/rocrand/rocrand_kernel.h",
        "librocrand-dev",
        "device functions of a real library",
    ),
    ("fish", "fish", "a shell that completes commands"),
    ("zsh", "zsh", "a shell that completes commands"),
    ("file", "file", "CPack's DEB generator"),
    ("dpkg-shlibdeps", "dpkg-dev", "CPack's DEB generator"),
    ("rpmbuild", "rpm", "CPack's RPM generator"),
    ("dh", "debhelper", "builds the example of a Debian package"),
    ("lintian", "lintian", "checks Debian packages"),
    ("dnf", "dnf", "chooses RPM packages to install"),
    (
        "createrepo_c",
        "createrepo-c",
        "a repository of RPM packages",
    ),
    ("python3", "python3", "makes and unpacks Python wheels"),
    (
        "jsonschema",
        "python3-jsonschema",
        "validates the output of --json",
    ),
    ("pip3", "python3-pip", "downloads and builds Python wheels"),
    (
        "/usr/share/rocm/cmake/ROCMConfig.cmake|/usr/share/rocmcmakebuildtools/cmake/ROCmCMakeBuildToolsConfig.cmake",
        "rocm-cmake",
        "the install functions of ROCm's own libraries",
    ),
];

/// Installs missing tools and lists them.
///
/// # Errors
/// apt-get is missing or not permitted, or a package cannot be installed.
pub(crate) fn install_missing() -> Result<()> {
    let is_missing = |(names, ..): &&Tool| process::find_program(names).is_none();
    let missing: Vec<&Tool> = TOOLS.iter().filter(is_missing).collect();
    if missing.is_empty() {
        process::step("All tools are installed");
        return Ok(());
    }
    process::step("Installing the missing tools with apt-get:");
    for (_, package, purpose) in &missing {
        println!("   {package:<20} {purpose}");
    }
    let packages: Vec<&str> = missing.iter().map(|(_, package, _)| *package).collect();
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

    let still = missing.iter().copied().filter(is_missing);
    let still: Vec<&str> = still.map(|(_, package, _)| *package).collect();
    if !still.is_empty() {
        bail!(
            "apt-get installed {}, but the tools are still missing",
            still.join(" ")
        );
    }
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
