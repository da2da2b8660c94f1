//! Flags for the compiler and the linker.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::compiler::Compiler;
use super::directories::BuildDirectories;
use super::environment::Environment;
use super::options::Hip;
use super::toolchain::Toolchain;
use kpack_core::Error;
use kpack_core::platform::OsStrExt;
use kpack_core::staging::workspaces;

/// Flags for a header directory, which follows joined or as the next argument.
const INCLUDES: [&str; 4] = ["-isystem", "-iquote", "-idirafter", "-I"];

/// Prefixes of compiler flags that also affect the link.
const OF_LINK: [&str; 35] = [
    "-B",
    "-L",
    "-Wl,",
    "-Xlinker",
    "-fsanitize",
    "-fuse-ld=",
    "-l",
    "-m32",
    "-m64",
    "-mabi=",
    "-march=",
    "-mcpu=",
    "-mfloat-abi=",
    "-mfpu=",
    "-mx32",
    "-nodefaultlibs",
    "-nostartfiles",
    "-nostdlib",
    "-pthread",
    "-rtlib=",
    "-shared-lib",
    "-static-lib",
    "-stdlib=",
    "-unwindlib=",
    "--gcc-install-dir=",
    "--gcc-toolchain=",
    "--gcc-triple=",
    "--ld-path=",
    "--rtlib=",
    "--stdlib=",
    "--sysroot",
    "--target=",
    "--unwindlib=",
    "-isysroot",
    "-target",
];

/// Flags among them that take the next argument as their value.
const WITH_VALUE: [&str; 7] = ["-B", "-L", "-Xlinker", "-l", "--sysroot", "-isysroot", "-target"];

/// Prefixes of flags for the host that clang rejects for a GPU.
const OF_HOST: [&str; 2] = ["-fcf-protection", "-mbranch-protection="];

/// The flags of one build.
pub(super) struct Flags {
    /// For every source, without its targets.
    pub(super) compile: Vec<OsString>,
    /// For device code alone, without its target.
    pub(super) device: Vec<OsString>,
    /// For linking a shared library, without its name and objects.
    pub(super) link: Vec<OsString>,
    /// Header directories outside of the package and the system.
    pub(super) include_directories: Vec<PathBuf>,
}

impl Flags {
    /// The flags of `cc` for the host (`build`), then those for GPUs, then the package's own. Later ones win.
    ///
    /// The profile is that of host code alone: without optimization, device code is some hundred times slower, and
    /// builtins that must be inlined do not compile.
    pub(super) fn new(
        hip: &Hip,
        mut build: cc::Build,
        toolchain: &Toolchain,
        directories: &BuildDirectories,
    ) -> Result<Self, Error> {
        let (compiler, own) = (&toolchain.compiler, &toolchain.own_flags[..]);
        for (name, value) in &hip.defines {
            build.define(name, value.as_deref());
        }
        if let Some(standard) = &hip.standard {
            build.std(standard);
        }
        if let Some(level) = hip.opt_level {
            build.opt_level(level);
        }
        if let Some(debug) = hip.debug {
            build.debug(debug);
        }
        let tool = build
            .includes(&hip.includes)
            .try_get_compiler()
            .map_err(|error| Error::Compiler(format!("no flags for `{compiler}`: {error}")))?;

        let mut compile: Vec<OsString> = vec!["-x".into(), "hip".into()];
        let mut device: Vec<OsString> =
            vec!["-x".into(), "hip".into(), "--cuda-device-only".into()];
        // Debuggers of GPUs need DWARF 5, which is clang's default. `cc` asks for an older one.
        for flag in tool.args().iter().filter(|flag| *flag != "-gdwarf-4") {
            if OF_HOST.iter().any(|name| flag.as_bytes().starts_with(name.as_bytes())) {
                compile.push("-Xarch_host".into());
            } else {
                device.push(flag.clone());
            }
            compile.push(flag.clone());
        }
        // clang takes few levels for one side alone, so one that the package sets is `cc`'s for both.
        device.push(format!("-O{}", hip.opt_level.unwrap_or(3)).into());
        if hip.opt_level.is_none() {
            compile.extend(["-Xarch_device", "-O3"].map(OsString::from));
        }
        if hip.debug != Some(true) {
            device.push("-g0".into());
            compile.extend(["-Xarch_device", "-g0"].map(OsString::from));
        }
        match hip.warnings {
            Some(true) => {
                compile
                    .extend(["-Xarch_host", "-Wall", "-Xarch_host", "-Wextra"].map(OsString::from));
                device.extend(["-Wall", "-Wextra"].map(OsString::from));
            }
            Some(false) => {
                compile.push("-w".into());
                device.push("-w".into());
            }
            None => {}
        }
        let mut both = Vec::new();
        let includes: Vec<PathBuf> = include_flags(&compile).chain(include_flags(own)).collect();
        // Keep paths of this build out of debug information, messages and assertions.
        for place in mapped(directories, &includes) {
            both.push(joined("-ffile-prefix-map=", &place, "=."));
        }
        both.push("-fdebug-compilation-dir=.".into());
        both.extend(compiler.rocm_flags());
        both.extend_from_slice(own);
        compile.extend_from_slice(&both);
        device.extend(both);

        let mut link: Vec<OsString> = vec!["-shared".into()];
        link.extend(of_link(tool.args()));
        link.extend(of_link(own));
        Ok(Self {
            compile,
            device,
            link,
            include_directories: includes
                .into_iter()
                .filter(|directory| directory.is_absolute() && !is_of_system(directory))
                .filter(|directory| !directory.starts_with(&directories.package))
                .collect(),
        })
    }
}

/// The C++ standard library to link, decided as the crate `cc` does.
pub(super) fn standard_library(
    hip: &Hip,
    environment: &Environment,
    compiler: &Compiler,
    flags: &Flags,
) -> Option<String> {
    if let Some(named) = &hip.cpp_link_stdlib {
        return named.clone();
    }
    if let Some(named) = environment.for_target("CXXSTDLIB") {
        return Some(named.to_string_lossy().into_owned()).filter(|name| !name.is_empty());
    }
    // The macros that a header of the standard library defines say which one it is.
    let mut command = compiler.command();
    command.args(&flags.compile).args(["-x", "c++", "-E", "-dM", "-include", "cstddef"]);
    let output = command.arg("/dev/null").stdin(Stdio::null()).stderr(Stdio::null()).output();
    let macros = output.map(|output| output.stdout).unwrap_or_default();
    let is_libcxx = String::from_utf8_lossy(&macros).contains("#define _LIBCPP_VERSION ");
    Some(if is_libcxx { "c++" } else { "stdc++" }.to_owned())
}

/// The directories whose paths are mapped away in the compiler's output: the package, its
/// workspaces, the build directory, and header directories elsewhere. The longest come last, since
/// the last match wins.
fn mapped(directories: &BuildDirectories, includes: &[PathBuf]) -> Vec<PathBuf> {
    let mut all = vec![directories.package.clone(), directories.out_dir.clone()];
    all.extend(workspaces(&directories.package));
    for directory in includes {
        if directory.is_absolute() && !all.iter().any(|place| directory.starts_with(place)) {
            all.push(directory.clone());
        }
    }
    all.sort_by_key(|path| (path.as_os_str().len(), path.clone()));
    all.dedup();
    all
}

/// Whether a directory belongs to the system, so its path is the same on all machines.
pub(super) fn is_of_system(directory: &Path) -> bool {
    ["/usr", "/opt"].iter().any(|root| directory.starts_with(root))
}

/// The header directories in flags.
pub(super) fn include_flags(flags: &[OsString]) -> impl Iterator<Item = PathBuf> {
    let mut flags = flags.iter();
    std::iter::from_fn(move || {
        loop {
            let flag = flags.next()?.to_string_lossy();
            let Some(rest) = INCLUDES.iter().find_map(|name| flag.strip_prefix(name)) else {
                continue;
            };
            return match rest {
                "" => flags.next().map(PathBuf::from),
                joined => Some(PathBuf::from(joined)),
            };
        }
    })
}

/// The flags that affect a link.
fn of_link(flags: &[OsString]) -> Vec<OsString> {
    let mut found = Vec::new();
    let mut flags = flags.iter();
    while let Some(flag) = flags.next() {
        let text = flag.to_string_lossy();
        if text.starts_with("-X") && text != "-Xlinker" {
            // The next argument is for another program or a single pass: `-Xarch_device -march=…`.
            flags.next();
            continue;
        }
        if OF_LINK.iter().any(|name| text.starts_with(name)) {
            found.push(flag.clone());
            if WITH_VALUE.contains(&&*text) {
                found.extend(flags.next().cloned());
            }
        }
    }
    found
}

fn joined(front: &str, path: &Path, end: impl AsRef<OsStr>) -> OsString {
    let mut flag = OsString::from(front);
    flag.push(path);
    flag.push(end);
    flag
}

#[cfg(test)]
mod tests {
    use super::{include_flags, of_link};
    use std::ffi::OsString;

    fn flags(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn what_matters_to_a_link() {
        let all = flags(
            "-O3 --sysroot /s -fuse-ld=lld -DX -L /l -Wl,-z,now -I/i -target t -mcpu=x -mllvm -y -Xarch_device -march=z -Xlinker -v --sysroot=/t -Wall",
        );
        assert_eq!(
            of_link(&all),
            flags(
                "--sysroot /s -fuse-ld=lld -L /l -Wl,-z,now -target t -mcpu=x -Xlinker -v --sysroot=/t"
            )
        );
    }

    #[test]
    fn directories_that_flags_name() {
        let all = flags("-O3 -I/a -I /b -isystem /c -iquote/d -DX=-I/e -idirafter /f");
        let found = include_flags(&all).map(|path| path.display().to_string());
        assert_eq!(Vec::from_iter(found), ["/a", "/b", "/c", "/d", "/f"]);
    }
}
