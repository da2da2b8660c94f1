//! Checks that a compiler can make device code for the targets of a build.
//!
//! The check compiles an empty source: only the compiler knows which processors it supports and
//! where it looks for ROCm's device libraries.

use std::env::consts::ARCH;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use kpack_format::TargetId;

use super::compiler::Compiler;

/// Prefixes of flags that select the device libraries to link.
const OF_DEVICE_LIBRARIES: [&str; 6] = [
    "-nogpulib",
    "-nocudalib",
    "--no-offloadlib",
    "--rocm-",
    "--hip-",
    "-mcode-object-version=",
];

/// The code that a compiler must be able to make.
pub(super) struct Wanted<'a> {
    targets: &'a [TargetId],
    /// The flags of the build that affect device libraries.
    flags: Vec<OsString>,
}

impl<'a> Wanted<'a> {
    /// Code for `targets` with the package's flags.
    pub(super) fn new(targets: &'a [TargetId], own: &[OsString]) -> Self {
        let matters = |flag: &&OsString| {
            let text = flag.to_string_lossy();
            OF_DEVICE_LIBRARIES
                .iter()
                .any(|name| text.starts_with(name))
        };
        Self {
            targets,
            flags: own.iter().filter(matters).cloned().collect(),
        }
    }

    /// The targets, for messages.
    pub(super) fn names(&self) -> String {
        names(self.targets)
    }
}

/// The directory of device libraries to pass to `compiler`; `None` if it finds them or needs none.
///
/// # Errors
/// The reason why the compiler does not fit.
pub(super) fn libraries(
    compiler: &Compiler,
    wanted: &Wanted<'_>,
) -> Result<Option<PathBuf>, String> {
    let compiles = |targets: &[TargetId], more: Option<OsString>| {
        compiles(compiler, targets, wanted.flags.iter().cloned().chain(more))
    };
    let fails = |more: Option<OsString>| {
        let each = wanted.targets.iter().cloned();
        Vec::from_iter(each.filter(|target| !compiles(std::slice::from_ref(target), more.clone())))
    };
    if compiles(wanted.targets, None) {
        return Ok(None);
    }
    let unknown = fails(Some("-nogpulib".into()));
    if !unknown.is_empty() {
        return Err(format!("it cannot compile for {}", names(&unknown)));
    }
    let mut without = wanted.targets.to_vec();
    for directory in of_distributions().filter(|directory| directory.is_dir()) {
        let flag = flag(&directory);
        if compiles(wanted.targets, Some(flag.clone())) {
            return Ok(Some(directory));
        }
        without = fails(Some(flag));
    }
    Err(format!(
        "it finds no ROCm device library for {}",
        names(&without)
    ))
}

/// The flag for a directory of device libraries.
pub(super) fn flag(directory: &Path) -> OsString {
    let mut flag = OsString::from("--rocm-device-lib-path=");
    flag.push(directory);
    flag
}

/// Directories of ROCm's device libraries in distributions. Their clang looks only in `/opt/rocm`
/// and next to itself.
fn of_distributions() -> impl Iterator<Item = PathBuf> {
    let parents = [
        format!("/usr/lib/{ARCH}-linux-gnu"),
        "/usr/lib64".to_owned(),
        "/usr/lib".to_owned(),
    ];
    parents
        .into_iter()
        .map(|parent| Path::new(&parent).join("amdgcn/bitcode"))
}

fn compiles(
    compiler: &Compiler,
    targets: &[TargetId],
    flags: impl Iterator<Item = OsString>,
) -> bool {
    let mut command = compiler.command();
    command.args(["-x", "hip", "--cuda-device-only", "-fsyntax-only"]);
    command.arg("-nogpuinc").args(compiler.rocm_flag());
    command.args(
        targets
            .iter()
            .map(|target| format!("--offload-arch={target}")),
    );
    command.args(flags).arg("/dev/null");
    command
        .stdin(Stdio::null())
        .output()
        .is_ok_and(|output| output.status.success())
}

fn names(targets: &[TargetId]) -> String {
    let names: Vec<String> = targets.iter().map(TargetId::to_string).collect();
    names.join(", ")
}
