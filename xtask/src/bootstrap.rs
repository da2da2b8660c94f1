//! Installs the tools for the tests and the end-to-end run with Debian's apt-get.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use kpack_tests::require::is_root;
use xshell::cmd;

use crate::process;

/// A required tool, how to detect it, and its Debian package.
struct Tool {
    needed: Needed,
    package: &'static str,
    purpose: &'static str,
}

enum Needed {
    Program(&'static str),
    /// One of these files or directories.
    File(&'static [&'static str]),
}

const fn program(name: &'static str, package: &'static str, purpose: &'static str) -> Tool {
    Tool {
        needed: Needed::Program(name),
        package,
        purpose,
    }
}

const fn file(
    paths: &'static [&'static str],
    package: &'static str,
    purpose: &'static str,
) -> Tool {
    Tool {
        needed: Needed::File(paths),
        package,
        purpose,
    }
}

/// Named for Debian 12.
const TOOLS: &[Tool] = &[
    program("cc", "gcc", "links fixtures and the stub HIP runtime"),
    program("g++", "g++", "C++ standard library of the HIP project"),
    program("make", "make", "a CMake generator under test"),
    program("cmake", "cmake", "configures the HIP project"),
    program("ninja", "ninja-build", "builds the HIP project"),
    program("clang++-19", "clang-19", "the HIP compiler"),
    program(
        "clang-offload-bundler-19",
        "clang-tools-19",
        "compresses bundles; the reference for the contents of bundles",
    ),
    program("ld.lld-19", "lld-19", "links device code"),
    program("llvm-strip-19", "llvm-19", "a strip under test"),
    file(
        &[
            "/usr/lib/llvm-19/lib/clang/19/lib/linux/libclang_rt.asan-x86_64.a",
            "/usr/lib/llvm-19/lib/clang/19/lib/linux/libclang_rt.asan-aarch64.a",
        ],
        "libclang-rt-19-dev",
        "AddressSanitizer",
    ),
    program("strip", "binutils", "GNU strip, objcopy, ld and gold"),
    program("eu-strip", "elfutils", "a strip and a linter under test"),
    program("patchelf", "patchelf", "changes RPATH after the split"),
    program("mold", "mold", "a linker under test"),
    program("ccache", "ccache", "another compiler launcher"),
    program("gdb", "gdb", "finds separate debug files"),
    program("strace", "strace", "shows when files are flushed"),
    program("zstd", "zstd", "the reference of `cargo xtask bench split`"),
    program(
        "aarch64-linux-gnu-gcc",
        "gcc-aarch64-linux-gnu",
        "builds host binaries for AArch64",
    ),
    file(
        &["/usr/aarch64-linux-gnu/lib/libc.so.6"],
        "libc6-dev-arm64-cross",
        "the C library of host binaries for AArch64",
    ),
    program(
        "qemu-aarch64",
        "qemu-user",
        "runs host binaries for AArch64",
    ),
    program("hipcc", "hipcc", "the distribution's own HIP compiler"),
    file(
        &["/usr/include/hip/hip_runtime.h"],
        "libamdhip64-dev",
        "ROCm's headers and HIP runtime",
    ),
    file(
        &["/usr/include/rocrand/rocrand_kernel.h"],
        "librocrand-dev",
        "device functions of a real library",
    ),
    program("fish", "fish", "a shell that completes commands"),
    program("zsh", "zsh", "a shell that completes commands"),
    program("file", "file", "CPack's DEB generator"),
    program("dpkg-shlibdeps", "dpkg-dev", "CPack's DEB generator"),
    program("rpmbuild", "rpm", "CPack's RPM generator"),
    program("python3", "python3", "makes and unpacks Python wheels"),
    program("pip3", "python3-pip", "downloads and builds Python wheels"),
    file(
        &[
            "/usr/share/rocm/cmake/ROCMConfig.cmake",
            "/usr/share/rocmcmakebuildtools/cmake/ROCmCMakeBuildToolsConfig.cmake",
        ],
        "rocm-cmake",
        "the install functions of ROCm's own libraries",
    ),
];

impl Tool {
    fn is_there(&self) -> bool {
        match self.needed {
            Needed::Program(name) => process::find_program(name).is_some(),
            Needed::File(paths) => paths.iter().any(|path| Path::new(path).exists()),
        }
    }
}

/// Installs missing tools and lists them.
///
/// # Errors
/// apt-get is missing or not permitted, or a package cannot be installed.
pub(crate) fn install_missing() -> Result<()> {
    let missing: Vec<&Tool> = TOOLS.iter().filter(|tool| !tool.is_there()).collect();
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

    let still: Vec<&str> = missing
        .iter()
        .filter(|tool| !tool.is_there())
        .map(|tool| tool.package)
        .collect();
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
