//! Installs the tools of the tasks with Debian's apt-get: only those that the named tasks need.

mod apt;

use std::collections::BTreeSet;
use std::env::consts::ARCH;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use kpack_tools::CROSS_TARGETS;
use kpack_tools::process::try_run;
use kpack_tools::programs::find_program;
use xshell::cmd;

use crate::{log, process};

/// A task that needs tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Needs {
    E2e,
    /// The tests of Linux, CMake, Rust and Python wheels.
    Test,
    /// Other tests: Windows, other processors, packages of distributions, ROCm, shells and a browser.
    TestAll,
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
    /// `cargo xtask test bootstrap`
    Bootstrap,
}

/// What `cargo xtask test --bootstrap` installs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Choice {
    /// What the tests of Linux, CMake, Rust and Python wheels need.
    Basic,
    /// What all tests need, about 3 GB more.
    All,
}

impl Choice {
    pub(crate) fn needs(self) -> Vec<Needs> {
        match self {
            Self::Basic => vec![Needs::Test],
            Self::All => vec![Needs::Test, Needs::TestAll],
        }
    }
}

/// The tools, a line each: a package of Debian 12; programs, files or modules of Python (`python3:NAME`) of it, which must be
/// there; the tasks that need it, or `all`; what it is for. What only some tests need and what takes much room is for `test-all`.
const TOOLS: &str = "\
gcc cc all links fixtures and the stub HIP runtime
g++ g++ e2e,test,real,wheels,packages,fuzz C++ standard library of the HIP project
make make e2e,test,real,package,packages a CMake generator under test
cmake cmake e2e,test,real,package,packages configures the HIP project, and makes packages
ninja-build ninja e2e,test builds the HIP project
clang-19 clang++-19,clang-19 e2e,test,real,faults,wheels,packages,thread-sanitizer the HIP compiler
clang-tools-19 clang-offload-bundler-19 e2e,test,wheels,packages compresses bundles
lld-19 ld.lld-19,lld-link-19 e2e,test,real,faults,wheels,packages links device code
llvm-19 llvm-strip-19,llvm-objcopy-19,llvm-dlltool-19,llvm-readobj-19 e2e,test,wheels,packages,corpus a strip under test, and llvm-objcopy, with which bundles are made
libclang-rt-19-dev /usr/lib/llvm-19/lib/clang/19/lib/linux/libclang_rt.tsan-@ARCH@.a thread-sanitizer ThreadSanitizer
binutils strip all GNU strip, objcopy, ld and gold
elfutils eu-strip,eu-elflint test,wheels,corpus a strip and a linter under test
patchelf patchelf test,wheels,corpus changes RPATH after the split
mold mold,ld.mold test a linker under test
ccache ccache test another compiler launcher
gdb gdb test finds separate debug files
pkg-config pkg-config test finds the loader as a library
strace strace test,faults,workflow shows when files are flushed, and stops programs
zstd zstd test,bench what `cargo xtask bench` compares with
xz-utils xz test compresses as Debian's packages do
gcc-aarch64-linux-gnu aarch64-linux-gnu-gcc,aarch64-linux-gnu-objcopy,aarch64-linux-gnu-strip real,test-all builds host binaries for AArch64
libc6-dev-arm64-cross /usr/aarch64-linux-gnu/lib/libc.so.6 real,test-all the C library of host binaries for AArch64
gcc-powerpc64le-linux-gnu powerpc64le-linux-gnu-gcc,powerpc64le-linux-gnu-objcopy,powerpc64le-linux-gnu-strip test-all builds host binaries for ppc64le
libc6-dev-ppc64el-cross /usr/powerpc64le-linux-gnu/lib/libc.so.6 test-all the C library of host binaries for ppc64le
qemu-user qemu-aarch64,qemu-ppc64le real,test-all runs host binaries for AArch64 and ppc64le
gcc-mingw-w64-x86-64-posix x86_64-w64-mingw32-gcc-posix,x86_64-w64-mingw32-gcc,x86_64-w64-mingw32-strip,x86_64-w64-mingw32-objcopy,x86_64-w64-mingw32-objdump test-all,faults,real,bench builds programs for Windows
g++-mingw-w64-x86-64-posix x86_64-w64-mingw32-g++-posix test-all links HIP programs for Windows, as clang does with the C++ library
wine wine test-all,real runs programs for Windows
hipcc hipcc test-all,real the distribution's own HIP compiler
rocm-device-libs /usr/lib/@ARCH@-linux-gnu/amdgcn/bitcode/ockl.bc test-all,real libraries that HIP compilers link into device code
libhsa-runtime-dev /usr/include/hsa/hsa.h e2e,wheels,bench headers of the HSA runtime
libamdhip64-dev /usr/include/hip/hip_runtime.h test-all,real,packages ROCm's headers and HIP runtime
librocrand-dev /usr/include/rocrand/rocrand_kernel.h test-all,real device functions of a real library
chromium chromium test-all shows the report's page
fish fish test-all a shell that completes commands
zsh zsh test-all a shell that completes commands
file file test-all,package,packages CPack's DEB generator
dpkg-dev dpkg-shlibdeps,dpkg-scanpackages,dpkg-buildpackage test-all,package,packages CPack's DEB generator
rpm rpmbuild,rpm test-all,package,packages CPack's RPM generator
perl pod2man package,packages the manual of dh_kpack
debhelper dh test-all,packages builds the example of a Debian package
lintian lintian test-all,packages checks Debian packages
dnf dnf test-all chooses RPM packages to install
createrepo-c createrepo_c test-all a repository of RPM packages
git git package,packages the time of the commit
python3 python3 e2e,test,real,wheels,containers,workflow,corpus,bench,package,packages makes and unpacks Python wheels
python3-jsonschema jsonschema test validates the output of --json
python3-pip pip3 e2e,test,real,wheels,workflow,corpus,bench,package,packages downloads and builds Python wheels
python3-venv python3:ensurepip test,wheels environments of pip and uv
libcap2-bin /sbin/setcap,/sbin/getcap test capabilities of files
buildah buildah containers builds images
debootstrap debootstrap containers,bootstrap makes the root of an image
skopeo skopeo containers copies images
umoci umoci containers unpacks images
podman podman containers pulls images
docker-registry docker-registry containers serves images
jq jq test selects findings on a page
curl curl test,containers fetches packed artifacts
rocm-cmake /usr/share/rocm/cmake/ROCMConfig.cmake test-all,real the install functions of ROCm's own libraries";

struct Tool {
    package: &'static str,
    programs: String,
    tasks: &'static str,
    purpose: String,
}

impl Tool {
    fn all() -> impl Iterator<Item = Self> {
        TOOLS.lines().map(|line| {
            let mut words = line.split_whitespace();
            Self {
                package: words.next().unwrap_or_default(),
                programs: words.next().unwrap_or_default().replace("@ARCH@", ARCH),
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

    fn programs(&self) -> impl Iterator<Item = &str> {
        self.programs.split(',')
    }

    fn is_missing(&self) -> bool {
        self.programs().any(|program| match program.strip_prefix("python3:") {
            Some(module) => !has_module(module),
            None => find_program(program).is_none(),
        })
    }
}

/// Whether Python has a module: in which directory it is depends on Python's version.
fn has_module(module: &str) -> bool {
    let import = format!("import {module}");
    try_run(Command::new("python3").args(["-c", &import])).is_ok()
}

/// Installs the missing tools of these tasks, or of all, after a list of them and their sizes.
///
/// # Errors
/// apt-get is missing or not permitted, a package cannot be installed, or another would have to go.
pub(crate) fn install_missing(tasks: &[Needs]) -> Result<()> {
    install_packages(tasks)?;
    let cross_too = [Needs::TestAll, Needs::Real];
    if tasks.is_empty() || tasks.iter().any(|task| cross_too.contains(task)) {
        install_standard_libraries()?;
    }
    Ok(())
}

/// The programs and files that this choice does not install: a test that lacks one is skipped.
pub(crate) fn optional(choice: Choice) -> Vec<String> {
    let tools = Tool::all().filter(|tool| !tool.is_for(&choice.needs()));
    let programs = tools.flat_map(|tool| Vec::from_iter(tool.programs().map(str::to_owned)));
    let cross = CROSS_TARGETS.iter().filter(|_| choice == Choice::Basic);
    programs.chain(cross.map(|target| (*target).to_owned())).collect()
}

/// The tests that were skipped because of a missing tool, in a line, and how to install it.
pub(crate) fn skipped(why: &str, tests: &BTreeSet<String>) -> String {
    let names = Vec::from_iter(tests.iter().map(String::as_str)).join(", ");
    let tool = why.split('`').nth(1).unwrap_or_default();
    match option_for(tool) {
        Some(option) => format!("{} tests; {option} installs it: {names}", tests.len()),
        None => names,
    }
}

/// The option that installs what a test misses, if one does.
fn option_for(missing: &str) -> Option<&'static str> {
    let is_named = |choice: Choice| {
        let mut tools = Tool::all().filter(|tool| tool.is_for(&choice.needs()));
        tools.any(|tool| tool.programs().any(|program| program == missing))
    };
    if is_named(Choice::Basic) {
        Some("--bootstrap")
    } else if is_named(Choice::All) || CROSS_TARGETS.iter().any(|target| missing.ends_with(target))
    {
        Some("--bootstrap=all")
    } else {
        None
    }
}

/// Rust's standard libraries for Windows and AArch64.
fn install_standard_libraries() -> Result<()> {
    let sysroot = process::run!("rustc --print sysroot")?;
    let libraries = Path::new(sysroot.trim()).join("lib/rustlib");
    let missing = CROSS_TARGETS.into_iter().filter(|target| !libraries.join(target).is_dir());
    let missing = Vec::from_iter(missing);
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(" and ");
    if find_program("rustup").is_none() {
        println!(
            "   rustup is missing, which installs Rust's {names}: tests of such programs need it"
        );
        return Ok(());
    }
    process::step(&format!("Installing Rust's standard library for {names} (150 MB on disk each)"));
    log::run(cmd!(process::shell(), "rustup target add {missing...}"))
}

fn install_packages(tasks: &[Needs]) -> Result<()> {
    let missing =
        Vec::from_iter(Tool::all().filter(|tool| tool.is_for(tasks) && tool.is_missing()));
    if missing.is_empty() {
        process::step("All tools are installed");
        return Ok(());
    }
    let packages = Vec::from_iter(missing.iter().map(|tool| tool.package));
    process::step("Looking up the missing tools with apt-get");
    let (apt, plan) = apt::plan(&packages)?;
    process::step("Installing the missing tools with apt-get:");
    for tool in &missing {
        println!("   {:<28} {}", tool.package, tool.purpose);
    }
    let apt::Sizes { download, installed } = apt.sizes(&plan)?;
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
    apt.install(&packages)?;

    let still = missing.iter().filter(|tool| tool.is_missing());
    let still = Vec::from_iter(still.map(|tool| tool.package));
    ensure!(
        still.is_empty(),
        "apt-get installed {}, but the tools are still missing",
        still.join(" ")
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Choice, Needs, Tool, find_program, has_module, option_for, optional, skipped};
    use clap::ValueEnum as _;
    use kpack_tools::CROSS_TARGETS;

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
        let all = packages(Needs::TestAll);
        for heavy in ["wine", "chromium", "lintian", "dnf", "fish", "zsh", "hipcc"] {
            assert!(all.contains(&heavy) && !packages(Needs::Test).contains(&heavy), "{heavy}");
        }
        assert!(!packages(Needs::Test).contains(&"podman") && !all.contains(&"podman"));
        assert!(!packages(Needs::Package).contains(&"clang-19"));
        assert!(Tool::all().all(|tool| tool.is_for(&[])));
    }

    #[test]
    fn a_missing_tool_is_skipped_or_fails_its_test() {
        let [basic, all] = [Choice::Basic, Choice::All].map(optional);
        for (tool, option) in [("wine", "--bootstrap=all"), ("strace", "--bootstrap")] {
            assert_eq!(option_for(tool), Some(option), "{tool}");
            assert_eq!(basic.iter().any(|name| name == tool), option.ends_with("all"));
            assert!(!all.iter().any(|name| name == tool));
        }
        for target in CROSS_TARGETS {
            let [basic, all] = [&basic, &all].map(|tools| tools.iter().any(|name| name == target));
            assert!(basic && !all, "{target}");
            let library = format!("/lib/rustlib/{target}");
            assert_eq!(option_for(&library), Some("--bootstrap=all"));
        }
        assert_eq!(option_for("only root can do this"), None);
        let tests = ["one", "two"].map(str::to_owned).into();
        let line = skipped("`wine` is missing", &tests);
        assert_eq!(line, "2 tests; --bootstrap=all installs it: one, two");
        assert_eq!(skipped("no GPU", &tests), "one, two");
    }

    #[test]
    fn modules_of_python_are_found_in_any_version() {
        if find_program("python3").is_some() {
            assert!(has_module("json") && !has_module("no_such_module"));
        }
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
}
