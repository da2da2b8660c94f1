//! Given environments that real installers made of small wheels with ROCm's metadata, broken in one way each, when the
//! doctor examines them, then it names the cause and the command, and that command, run as it is printed, mends the
//! environment. Sound environments are called sound.
//!
//! Every row of the tables is one environment.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use kpack_tests::apt;
use kpack_tests::fixture::{FatLibrary, Storage, Wheel, code, stub_library};
use kpack_tests::package_root::PackageRoot;
use kpack_tests::process::{self, copy, run};
use kpack_tests::require;
use kpack_tests::sha256;
use kpack_tests::tree::{self, Tree, copy_file, write};
use walkdir::WalkDir;

use crate::by_hand::{
    ARCHIVE, TARGETS, by_hand, for_gfx1100, of_library, of_package, split, split_for_packages,
};
use crate::command::{NOBODY, for_every_user, kpack, said};

const FAMILY: &str = "gfx110x";
/// The versions of ROCm with the versions of torch that are built for them.
const RELEASES: [(&str, &str); 3] = [
    ("7.13.0", "2.9.0+rocm7.13.0"),
    ("7.14.0", "2.10.0+rocm7.14.0"),
    ("7.15.0a20260301", "2.11.0a0+rocm7.15.0a20260301"),
];

const HIP: &str = "libamdhip64.so.7";
const RUNTIME: &str = "_rocm_sdk_core/lib/libamdhip64.so.7";

/// What a row's environment is installed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tool {
    Pip,
    Uv,
    UvProject,
}
use Tool::{Pip, Uv, UvProject};

/// What breaks an environment after its installation.
#[derive(Debug, Clone, Copy)]
enum Break {
    /// Runs the installer with these arguments, before anything else breaks.
    Run(&'static [&'static str]),
    /// Removes this file of `site-packages`.
    Remove(&'static str),
    /// Cuts this file of `site-packages` to 100 bytes.
    Cut(&'static str),
    /// Cuts this file of `site-packages` in half.
    Halve(&'static str),
    /// Writes this text to this file of `site-packages`.
    Write(&'static str, &'static str),
    /// Lets only its owner read this file of `site-packages`, and another user run the doctor.
    Forbid(&'static str),
    /// Examines the environment from outside, where it is not active.
    Leave,
    /// Trims the environment to this GPU.
    Trim(&'static str),
    /// Sets a variable for the doctor. `STUBS` stands for a directory with another HIP runtime.
    Set(&'static str, &'static str),
}
use Break::{Cut, Forbid, Halve, Leave, Remove, Run, Set, Trim, Write};

/// An environment, how it is broken, and what the doctor has to say.
struct Row {
    name: &'static str,
    tool: Tool,
    install: &'static [&'static str],
    breaks: &'static [Break],
    arch: &'static str,
    /// The ID of the cause; `None` for a sound environment.
    id: Option<&'static str>,
    /// The command, with `INDEX` for the index, `WHEELS` for the directory of wheels, `ENV` for the environment, and `SITE`
    /// for its `site-packages`; `None` if there is none.
    command: Option<&'static str>,
}

/// torch with everything that a gfx1100 needs.
const FULL: &[&str] = &[
    "torch[device-gfx1100]==2.10.0+rocm7.14.0",
    "rocm[device-gfx1100]==7.14.0",
    "amd-torch-device-gfx110x==2.10.0+rocm7.14.0",
];
const SOUND: Row = Row {
    name: "",
    tool: Pip,
    install: FULL,
    breaks: &[],
    arch: "gfx1100",
    id: None,
    command: None,
};

/// Environments of pip.
const OF_PIP: &[Row] = &[
    Row {
        name: "the device wheels were forgotten",
        install: &["torch==2.10.0+rocm7.14.0"],
        id: Some("device-wheel-missing"),
        command: Some(
            "pip install 'rocm[device-gfx1100]==7.14.0' 'torch[device-gfx1100]==2.10.0+rocm7.14.0' 'amd-torch-device-gfx110x==2.10.0+rocm7.14.0' --index-url INDEX",
        ),
        ..SOUND
    },
    Row {
        name: "ROCm's device wheel is missing",
        breaks: &[Run(&["uninstall", "-y", "rocm-sdk-device-gfx1100"])],
        id: Some("device-wheel-missing"),
        command: Some("pip install 'rocm[device-gfx1100]==7.14.0' --index-url INDEX"),
        ..SOUND
    },
    Row {
        name: "torch's device wheel is missing",
        breaks: &[Run(&["uninstall", "-y", "amd-torch-device-gfx1100"])],
        id: Some("device-wheel-missing"),
        command: Some("pip install 'torch[device-gfx1100]==2.10.0+rocm7.14.0' --index-url INDEX"),
        ..SOUND
    },
    Row {
        name: "the device wheels are for another GPU",
        install: &["torch[device-gfx942]==2.10.0+rocm7.14.0"],
        id: Some("device-wheel-other-gpu"),
        command: Some(
            "pip install 'rocm[device-gfx1100]==7.14.0' 'torch[device-gfx1100]==2.10.0+rocm7.14.0' 'amd-torch-device-gfx110x==2.10.0+rocm7.14.0' --index-url INDEX",
        ),
        ..SOUND
    },
    Row {
        name: "the device wheel is of an older version",
        breaks: &[Run(&[
            "install",
            "-q",
            "--no-deps",
            "amd-torch-device-gfx1100==2.9.0+rocm7.13.0",
        ])],
        id: Some("device-wheel-version"),
        command: Some("pip install 'torch[device-gfx1100]==2.10.0+rocm7.14.0' --index-url INDEX"),
        ..SOUND
    },
    Row {
        name: "ROCm's device wheel is of an older version",
        breaks: &[Run(&["install", "-q", "--no-deps", "rocm-sdk-device-gfx1100==7.13.0"])],
        id: Some("device-wheel-version"),
        command: Some(
            "pip install 'rocm[device-gfx1100]==7.14.0' 'torch[device-gfx1100]==2.10.0+rocm7.14.0' --index-url INDEX",
        ),
        ..SOUND
    },
    Row {
        name: "torch was downgraded without its device wheels",
        breaks: &[Run(&["install", "-q", "--no-deps", "torch==2.9.0+rocm7.13.0"])],
        id: Some("device-wheel-version"),
        command: Some(
            "pip install 'torch[device-gfx1100]==2.9.0+rocm7.13.0' 'amd-torch-device-gfx110x==2.9.0+rocm7.13.0' --index-url INDEX",
        ),
        ..SOUND
    },
    Row {
        name: "the family's wheel is missing",
        install: &["torch[device-gfx1100]==2.10.0+rocm7.14.0"],
        id: Some("family-wheel-missing"),
        command: Some(
            "pip install 'torch[device-gfx1100]==2.10.0+rocm7.14.0' 'amd-torch-device-gfx110x==2.10.0+rocm7.14.0' --index-url INDEX",
        ),
        ..SOUND
    },
    Row {
        name: "an archive was deleted",
        breaks: &[Remove("torch/lib/.kpack/all_gfx1100.kpack")],
        id: Some("device-wheel-damaged"),
        command: Some(
            "pip install --force-reinstall --no-deps 'amd-torch-device-gfx1100==2.10.0+rocm7.14.0' --index-url INDEX",
        ),
        ..SOUND
    },
    Row {
        name: "an archive was truncated",
        breaks: &[Cut("_rocm_sdk_libraries/lib/.kpack/all_gfx1100.kpack")],
        id: Some("device-wheel-damaged"),
        command: Some(
            "pip install --force-reinstall --no-deps 'rocm-sdk-device-gfx1100==7.14.0' --index-url INDEX",
        ),
        ..SOUND
    },
    Row {
        name: "the wheel with the HIP runtime is missing",
        breaks: &[Run(&["uninstall", "-y", "rocm-sdk-core"])],
        id: Some("host-wheel-missing"),
        command: Some(
            "pip install 'rocm[device-gfx1100]==7.14.0' 'torch[device-gfx1100]==2.10.0+rocm7.14.0' --index-url INDEX",
        ),
        ..SOUND
    },
    Row {
        name: "the HIP runtime is too old to read markers",
        breaks: &[Run(&["install", "-q", "--no-deps", "rocm-sdk-core==7.2.0"])],
        id: Some("device-wheel-version"),
        command: Some(
            "pip install 'rocm[device-gfx1100]==7.14.0' 'torch[device-gfx1100]==2.10.0+rocm7.14.0' --index-url INDEX",
        ),
        ..SOUND
    },
    Row {
        name: "one of two GPUs has no code",
        arch: "gfx1100,gfx942",
        id: Some("device-wheel-other-gpu"),
        command: Some(
            "pip install 'rocm[device-gfx942]==7.14.0' 'torch[device-gfx942]==2.10.0+rocm7.14.0' --index-url INDEX",
        ),
        ..SOUND
    },
    Row {
        name: "nobody builds for the GPU",
        arch: "gfx1034",
        id: Some("no-device-wheel"),
        ..SOUND
    },
    Row {
        name: "the loader is switched off",
        breaks: &[Set("ROCM_KPACK_DISABLE", "1")],
        id: Some("loader-disabled"),
        ..SOUND
    },
    Row {
        name: "a variable leads to another HIP runtime",
        breaks: &[Set("LD_LIBRARY_PATH", "STUBS")],
        id: Some("two-runtimes"),
        ..SOUND
    },
    Row {
        name: "a variable leads away from the archives",
        breaks: &[Set("ROCM_KPACK_PATH", "/nowhere")],
        id: Some("search-paths-set"),
        ..SOUND
    },
];

/// Further environments of pip.
const MORE_OF_PIP: &[Row] = &[
    Row {
        name: "two archives were deleted",
        breaks: &[
            Remove("torch/lib/.kpack/all_gfx1100.kpack"),
            Remove("_rocm_sdk_libraries/lib/.kpack/all_gfx1100.kpack"),
        ],
        id: Some("device-wheel-damaged"),
        command: Some(
            "pip install --force-reinstall --no-deps 'amd-torch-device-gfx1100==2.10.0+rocm7.14.0' 'rocm-sdk-device-gfx1100==7.14.0' --index-url INDEX",
        ),
        ..SOUND
    },
    Row {
        name: "a library was truncated",
        breaks: &[Halve("torch/lib/libtorch_hip.so")],
        id: Some("device-wheel-damaged"),
        command: Some(
            "pip install --force-reinstall --no-deps 'torch==2.10.0+rocm7.14.0' --index-url INDEX",
        ),
        ..SOUND
    },
    Row {
        name: "the wheel with ROCm's libraries is missing, which an extra asks for",
        breaks: &[Run(&["uninstall", "-y", "rocm-sdk-libraries"])],
        id: Some("host-wheel-missing"),
        command: Some("pip install 'torch[device-gfx1100]==2.10.0+rocm7.14.0' --index-url INDEX"),
        ..SOUND
    },
    Row {
        name: "an archive that another user may not read",
        breaks: &[Forbid("torch/lib/.kpack/all_gfx1100.kpack")],
        id: Some("device-wheel-damaged"),
        command: Some(
            "pip install --force-reinstall --no-deps 'amd-torch-device-gfx1100==2.10.0+rocm7.14.0' --index-url INDEX",
        ),
        ..SOUND
    },
    Row {
        name: "an environment that is not active",
        install: &["torch==2.10.0+rocm7.14.0"],
        breaks: &[Leave],
        id: Some("device-wheel-missing"),
        command: Some(
            "pip --python ENV install 'rocm[device-gfx1100]==7.14.0' 'torch[device-gfx1100]==2.10.0+rocm7.14.0' 'amd-torch-device-gfx110x==2.10.0+rocm7.14.0' --index-url INDEX",
        ),
        ..SOUND
    },
    Row {
        name: "a nightly build without its device wheels",
        install: &["torch==2.11.0a0+rocm7.15.0a20260301"],
        id: Some("device-wheel-missing"),
        command: Some(
            "pip install 'rocm[device-gfx1100]==7.15.0a20260301' 'torch[device-gfx1100]==2.11.0a0+rocm7.15.0a20260301' 'amd-torch-device-gfx110x==2.11.0a0+rocm7.15.0a20260301' --index-url INDEX",
        ),
        ..SOUND
    },
    Row {
        name: "a wheel from a directory, without its device wheels",
        install: &["WHEELS/torch-2.10.0+rocm7.14.0-py3-none-linux_x86_64.whl"],
        id: Some("device-wheel-missing"),
        command: Some(
            "pip install 'rocm[device-gfx1100]==7.14.0' 'torch[device-gfx1100]==2.10.0+rocm7.14.0' 'amd-torch-device-gfx110x==2.10.0+rocm7.14.0' --find-links WHEELS --index-url INDEX",
        ),
        ..SOUND
    },
    Row {
        name: "a package of conda",
        install: &["torch==2.10.0+rocm7.14.0"],
        breaks: &[
            Write("torch-2.10.0+rocm7.14.0.dist-info/INSTALLER", "conda\n"),
            Write("rocm-7.14.0.dist-info/INSTALLER", "conda\n"),
        ],
        id: Some("device-wheel-missing"),
        ..SOUND
    },
    Row {
        name: "a wheel with its own runtime, without its device wheel",
        install: &["vec==2.0"],
        id: Some("device-wheel-missing"),
        command: Some("pip install 'vec[device-gfx1100]==2.0' --index-url INDEX"),
        ..SOUND
    },
    Row {
        name: "a wheel with its own runtime, which reads no markers",
        install: &["vec[device-gfx1100]==1.0"],
        id: Some("runtime-ignores-markers"),
        command: Some("kpack join --prefix SITE/vec --arch gfx1100 lib/libvec.so"),
        ..SOUND
    },
];

/// Sound environments of pip.
const SOUND_OF_PIP: &[Row] = &[
    Row { name: "everything for gfx1100", ..SOUND },
    Row {
        name: "a GPU without a family's wheel",
        install: &["torch[device-gfx942]==2.10.0+rocm7.14.0"],
        arch: "gfx942",
        ..SOUND
    },
    Row {
        name: "code for all GPUs",
        install: &["torch[device-all]==2.10.0+rocm7.14.0"],
        arch: "gfx1100,gfx942,gfx1030",
        ..SOUND
    },
    Row {
        name: "a nightly build",
        install: &[
            "torch[device-gfx1100]==2.11.0a0+rocm7.15.0a20260301",
            "amd-torch-device-gfx110x==2.11.0a0+rocm7.15.0a20260301",
        ],
        ..SOUND
    },
    Row {
        name: "a wheel with its own runtime, which a tool renamed",
        install: &["vec[device-gfx942]==2.0"],
        arch: "gfx942",
        ..SOUND
    },
    Row {
        name: "a package of conda that is complete",
        breaks: &[Write("torch-2.10.0+rocm7.14.0.dist-info/INSTALLER", "conda\n")],
        ..SOUND
    },
    Row { name: "everything, in an environment that is not active", breaks: &[Leave], ..SOUND },
    Row {
        name: "packages of a distribution beside it, which have no RECORD",
        breaks: &[
            Write("six-1.16.0.egg-info", "Metadata-Version: 1.2\nName: six\nVersion: 1.16.0\n"),
            Write("apt-2.9.dist-info/METADATA", "Metadata-Version: 2.1\nName: apt\nVersion: 2.9\n"),
        ],
        ..SOUND
    },
    Row {
        name: "an older release",
        install: &["torch[device-gfx1030]==2.9.0+rocm7.13.0"],
        arch: "gfx1030",
        ..SOUND
    },
];

/// Environments of uv.
const OF_UV: &[Row] = &[
    Row {
        name: "uv, the device wheels were forgotten",
        tool: Uv,
        install: &["torch==2.10.0+rocm7.14.0"],
        id: Some("device-wheel-missing"),
        command: Some(
            "uv pip install 'rocm[device-gfx1100]==7.14.0' 'torch[device-gfx1100]==2.10.0+rocm7.14.0' 'amd-torch-device-gfx110x==2.10.0+rocm7.14.0' --index-url INDEX",
        ),
        ..SOUND
    },
    Row {
        name: "uv, an archive was deleted",
        tool: Uv,
        breaks: &[Remove("torch/lib/.kpack/all_gfx1100.kpack")],
        id: Some("device-wheel-damaged"),
        command: Some(
            "uv pip install --reinstall --no-deps 'amd-torch-device-gfx1100==2.10.0+rocm7.14.0' --index-url INDEX",
        ),
        ..SOUND
    },
    Row {
        name: "a project of uv, the device wheels were forgotten",
        tool: UvProject,
        install: &["torch==2.10.0+rocm7.14.0"],
        id: Some("device-wheel-missing"),
        command: Some(
            "uv add 'rocm[device-gfx1100]==7.14.0' 'torch[device-gfx1100]==2.10.0+rocm7.14.0' 'amd-torch-device-gfx110x==2.10.0+rocm7.14.0'",
        ),
        ..SOUND
    },
    Row {
        name: "a project of uv, the device wheels are for another GPU",
        tool: UvProject,
        install: &["torch[device-gfx942]==2.10.0+rocm7.14.0"],
        id: Some("device-wheel-other-gpu"),
        command: Some(
            "uv add 'rocm[device-gfx1100]==7.14.0' 'torch[device-gfx1100]==2.10.0+rocm7.14.0' 'amd-torch-device-gfx110x==2.10.0+rocm7.14.0'",
        ),
        ..SOUND
    },
    Row {
        name: "a project of uv, an archive was deleted",
        tool: UvProject,
        breaks: &[Remove("torch/lib/.kpack/all_gfx1100.kpack")],
        id: Some("device-wheel-damaged"),
        command: Some(
            "uv pip install --reinstall --no-deps 'amd-torch-device-gfx1100==2.10.0+rocm7.14.0' --index-url INDEX",
        ),
        ..SOUND
    },
    Row {
        name: "uv, libraries that are links into its cache",
        tool: Uv,
        install: &[
            "--link-mode",
            "symlink",
            "torch[device-gfx1100]==2.10.0+rocm7.14.0",
            "rocm[device-gfx1100]==7.14.0",
            "amd-torch-device-gfx110x==2.10.0+rocm7.14.0",
        ],
        id: Some("rocm-loader"),
        command: Some(
            "uv pip install --reinstall --no-deps --link-mode copy 'rocm-sdk-libraries==7.14.0' 'torch==2.10.0+rocm7.14.0' --index-url INDEX",
        ),
        ..SOUND
    },
    Row { name: "uv, everything", tool: Uv, ..SOUND },
    Row { name: "a project of uv, everything", tool: UvProject, ..SOUND },
];

/// torch with everything that a gfx1100 and a gfx942 need.
const BOTH: &[&str] = &[
    "torch[device-gfx1100,device-gfx942]==2.10.0+rocm7.14.0",
    "rocm[device-gfx1100,device-gfx942]==7.14.0",
    "amd-torch-device-gfx110x==2.10.0+rocm7.14.0",
];

/// Environments that were trimmed to another GPU.
const TRIMMED: &[Row] = &[
    Row {
        name: "split libraries",
        install: BOTH,
        breaks: &[Trim("gfx942")],
        id: Some("missing-archive"),
        command: Some(
            "pip install --force-reinstall --no-deps 'amd-torch-device-gfx1100==2.10.0+rocm7.14.0' 'rocm-sdk-device-gfx1100==7.14.0' --index-url INDEX",
        ),
        ..SOUND
    },
    Row {
        name: "split libraries, in an environment that is not active",
        install: BOTH,
        breaks: &[Trim("gfx942"), Leave],
        id: Some("missing-archive"),
        command: Some(
            "pip --python ENV install --force-reinstall --no-deps 'amd-torch-device-gfx1100==2.10.0+rocm7.14.0' 'rocm-sdk-device-gfx1100==7.14.0' --index-url INDEX",
        ),
        ..SOUND
    },
    Row {
        name: "a fat library",
        install: &["fat==1.0"],
        breaks: &[Trim("gfx942")],
        id: Some("missing-target"),
        command: Some("pip install --force-reinstall --no-deps 'fat==1.0' --index-url INDEX"),
        ..SOUND
    },
    Row {
        name: "a fat library from a directory of wheels",
        install: &[
            "--no-deps",
            "WHEELS/fat-1.0-py3-none-linux_x86_64.whl",
            "rocm-sdk-core==7.14.0",
        ],
        breaks: &[Trim("gfx942")],
        id: Some("missing-target"),
        command: Some(
            "pip install --force-reinstall --no-deps 'fat==1.0' --find-links WHEELS --index-url INDEX",
        ),
        ..SOUND
    },
    Row {
        name: "a fat library, trimmed twice",
        install: &["fat==1.0"],
        breaks: &[Trim("gfx942,gfx1030"), Trim("gfx942")],
        arch: "gfx1030",
        id: Some("missing-target"),
        command: Some("pip install --force-reinstall --no-deps 'fat==1.0' --index-url INDEX"),
        ..SOUND
    },
];

/// The same with uv.
const TRIMMED_OF_UV: &[Row] = &[
    Row {
        name: "uv, split libraries",
        tool: Uv,
        install: BOTH,
        breaks: &[Trim("gfx942")],
        id: Some("missing-archive"),
        command: Some(
            "uv pip install --reinstall --no-deps 'amd-torch-device-gfx1100==2.10.0+rocm7.14.0' 'rocm-sdk-device-gfx1100==7.14.0' --index-url INDEX",
        ),
        ..SOUND
    },
    Row {
        name: "uv, a fat library",
        tool: Uv,
        install: &["fat==1.0"],
        breaks: &[Trim("gfx942")],
        id: Some("missing-target"),
        command: Some("uv pip install --reinstall --no-deps 'fat==1.0' --index-url INDEX"),
        ..SOUND
    },
    Row {
        name: "a project of uv, split libraries",
        tool: UvProject,
        install: BOTH,
        breaks: &[Trim("gfx942")],
        id: Some("missing-archive"),
        command: Some(
            "uv pip install --reinstall --no-deps 'amd-torch-device-gfx1100==2.10.0+rocm7.14.0' 'rocm-sdk-device-gfx1100==7.14.0' --index-url INDEX",
        ),
        ..SOUND
    },
];

/// The wheels, a simple index of them, and what pip installed from there. The directory is named after the wheels, after pip
/// and after this file, so that a later run installs only what is new.
static WHEELS: LazyLock<PathBuf> = LazyLock::new(|| {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("environments");
    fs::create_dir_all(&root).unwrap();
    let new = root.join(format!("new-{}", std::process::id()));
    let _ = fs::remove_dir_all(&new);
    build_wheels(&new);
    let wheels = tree::files_in(&new.join("wheels")).into_iter();
    let wheels = wheels.map(|(name, bytes)| format!("{} {name}\n", sha256(&bytes)));
    let made_by = sha256(include_bytes!("environments.rs"));
    let made_of = format!("{:?}\n{made_by}\n{}", *PIP, String::from_iter(wheels));
    let kept = root.join(sha256(made_of.as_bytes()));
    // Another process may be about to make the same.
    let lock = File::create(root.join("lock")).unwrap();
    lock.lock().unwrap();
    if !kept.exists() {
        // Not the wheels that another process is building.
        for entry in fs::read_dir(&root).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let builder = name.strip_prefix("new-").map(|id| Path::new("/proc").join(id));
            if name != "lock" && !builder.is_some_and(|builder| builder.exists()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        fs::rename(&new, &kept).unwrap();
    }
    let _ = fs::remove_dir_all(new);
    kept
});

fn index() -> String {
    format!("file://{}/simple", WHEELS.display())
}

/// A library without code that exports or imports this.
fn stub(directory: &Path, name: &str, code: &str, needed: &[&str]) -> Vec<u8> {
    let output = directory.join(name);
    let needed = Vec::from_iter(needed.iter().map(|needed| directory.join(needed)));
    stub_library(&output, code, &Vec::from_iter(needed.iter().map(PathBuf::as_path)));
    fs::read(output).unwrap()
}

/// The files of a library `lib/NAME` that ROCm's tool split, below `directory`: the library, and an archive per target.
fn split_files(directory: &Path, name: &str, needed: Option<&Path>) -> Vec<(String, Vec<u8>)> {
    split(directory, name, needed);
    let entries = WalkDir::new(directory).into_iter().map(|entry| entry.unwrap());
    let files = entries.filter(|entry| entry.file_type().is_file()).map(|entry| {
        let name = entry.path().strip_prefix(directory).unwrap().to_str().unwrap().to_owned();
        (name, fs::read(entry.path()).unwrap())
    });
    files.collect()
}

fn build_wheels(root: &Path) {
    let wheels = root.join("wheels");
    let write = |wheel: Wheel| drop(wheel.write(&wheels).unwrap());
    let name = |name: &str, version: &str| format!("{name}-{version}-py3-none-linux_x86_64.whl");
    let with = |wheel: Wheel, files: &[(String, Vec<u8>)], directory: &str, part: &str| {
        let own = files.iter().filter(|(path, _)| path.contains(part));
        own.fold(wheel, |wheel, (path, bytes)| {
            let name = format!("{directory}/{path}");
            let wheel = wheel.row(&format!("{name},,{}", bytes.len()));
            wheel.member_with_mode(&name, 0o755, bytes.clone())
        })
    };
    let stubs = root.join("stubs");
    let loader_code = "int kpack_load_code_object(void) { return 1; }";
    let loader = stub(&stubs, "librocm_kpack.so.0", loader_code, &[]);
    let hip = "int kpack_load_code_object(void);\nint (*loads)(void) = kpack_load_code_object;";
    let runtime = stub(&stubs, HIP, hip, &["librocm_kpack.so.0"]);
    for (rocm, torch) in RELEASES {
        let blas = split_files(&root.join(format!("blas-{rocm}")), "librocblas.so.5", None);
        let needed = stubs.join(HIP);
        let libtorch =
            split_files(&root.join(format!("torch-{rocm}")), "libtorch_hip.so", Some(&needed));
        let mut meta = Wheel::new(&name("rocm", rocm))
            .member("rocm_marker.py", "")
            .field("Requires-Dist", &format!("rocm-sdk-core=={rocm}"))
            .field("Provides-Extra", "libraries")
            .field("Requires-Dist", &format!("rocm-sdk-libraries=={rocm}; extra == \"libraries\""));
        let mut host = Wheel::new(&name("torch", torch))
            .member("torch/__init__.py", "")
            .field("Requires-Dist", &format!("rocm[libraries]=={rocm}"))
            .field("Provides-Extra", "device-all");
        host = with(host, &libtorch, "torch", ".so");
        for target in TARGETS {
            let extra = format!("device-{target}");
            meta = meta.field("Provides-Extra", &extra).field(
                "Requires-Dist",
                &format!("rocm-sdk-device-{target}=={rocm}; extra == \"{extra}\""),
            );
            host = host.field("Provides-Extra", &extra);
            for extra in [&*extra, "device-all"] {
                let required = format!("amd-torch-device-{target}=={torch}; extra == \"{extra}\"");
                host = host.field("Requires-Dist", &required);
            }
            let device = Wheel::new(&name(&format!("rocm_sdk_device_{target}"), rocm));
            write(with(device, &blas, "_rocm_sdk_libraries", &format!("_{target}.kpack")));
            let device = Wheel::new(&name(&format!("amd_torch_device_{target}"), torch))
                .field("Requires-Dist", &format!("torch=={torch}"))
                .field("Requires-Dist", &format!("rocm-sdk-device-{target}=={rocm}"));
            write(with(device, &libtorch, "torch", &format!("_{target}.kpack")));
        }
        let family = format!("amd-torch-device-{FAMILY}=={torch}; extra == \"device-all\"");
        write(host.field("Requires-Dist", &family));
        write(meta);
        write(
            Wheel::new(&name(&format!("amd_torch_device_{FAMILY}"), torch))
                .field("Requires-Dist", &format!("torch=={torch}"))
                .member("torch/lib/aotriton.images/amd-gfx110x/flash/fwd.aks2", "kernels"),
        );
        let core = Wheel::new(&name("rocm_sdk_core", rocm))
            .member_with_mode(RUNTIME, 0o755, runtime.clone())
            .member_with_mode("_rocm_sdk_core/lib/librocm_kpack.so.0", 0o755, loader.clone());
        write(core);
        let libraries = Wheel::new(&name("rocm_sdk_libraries", rocm));
        write(with(libraries, &blas, "_rocm_sdk_libraries", ".so"));
    }
    // A wheel with a library that is not split.
    let fat = root.join("libfat.so");
    let codes = TARGETS.map(|target| code(target, "add"));
    let library = FatLibrary::new().wrapper(Storage::Plain, codes).flag("-Wl,--no-as-needed");
    library.flag(stubs.join(HIP)).build(&fat).unwrap();
    let bytes = fs::read(fat).unwrap();
    let row = format!("fat/libfat.so,,{}", bytes.len());
    let wheel = Wheel::new(&name("fat", "1.0")).field("Requires-Dist", "rocm-sdk-core==7.14.0");
    write(wheel.row(&row).member_with_mode("fat/libfat.so", 0o755, bytes));
    // A wheel with a HIP runtime of its own, which a tool renamed.
    for (version, code) in [("1.0", ""), ("2.0", hip)] {
        let libraries = root.join(format!("vec-libs-{version}"));
        stub(&libraries, "librocm_kpack-7e7d63d3.so.0", loader_code, &[]);
        let needed = ["librocm_kpack-7e7d63d3.so.0"];
        let name_of_runtime = "libamdhip64-00ca863d.so.7.14";
        stub(&libraries, name_of_runtime, code, &needed[..usize::from(!code.is_empty())]);
        let needed = libraries.join(name_of_runtime);
        let vec = split_files(&root.join(format!("vec-{version}")), "libvec.so", Some(&needed));
        let mut host = Wheel::new(&name("vec", version))
            .field("Requires-Dist", "rocm-sdk-windows==1; sys_platform == 'win32'")
            .field("Requires-Dist", "rocm-sdk-old==1; python_version < '3'");
        for target in TARGETS {
            let extra = format!("device-{target}");
            let required = format!("vec-device-{target}=={version}; extra == \"{extra}\"");
            host = host.field("Provides-Extra", &extra).field("Requires-Dist", &required);
            let device = Wheel::new(&name(&format!("vec_device_{target}"), version));
            write(with(device, &vec, "vec", &format!("_{target}.kpack")));
        }
        for library in [name_of_runtime, "librocm_kpack-7e7d63d3.so.0"] {
            let bytes = fs::read(libraries.join(library)).unwrap();
            host = host.member_with_mode(&format!("vec.libs/{library}"), 0o755, bytes);
        }
        write(with(host, &vec, "vec", ".so"));
    }
    // A runtime of before the split.
    let old = stub(&root.join("old"), HIP, "", &[]);
    let core = Wheel::new(&name("rocm_sdk_core", "7.2.0"));
    write(core.member_with_mode(RUNTIME, 0o755, old));
    let mut pages: Vec<(String, String)> = Vec::new();
    for entry in fs::read_dir(&wheels).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        let project = file.split('-').next().unwrap().replace('_', "-");
        pages.push((project, file));
    }
    let simple = root.join("simple");
    for (project, _) in &pages {
        let files = pages.iter().filter(|(other, _)| other == project);
        let links = files.map(|(_, file)| {
            format!("<a href=\"../../wheels/{}\">{file}</a>", file.replace('+', "%2B"))
        });
        let page = format!("<!DOCTYPE html><html><body>{}</body></html>", String::from_iter(links));
        tree::write(simple.join(project).join("index.html"), page);
    }
}

/// An environment in a tree, and what runs in it.
struct Venv {
    tree: Tree,
    tool: Tool,
    variables: Vec<(String, String)>,
    /// Whether it is not active, and `pip` is that of all environments.
    is_left: bool,
    /// Whether another user runs the doctor.
    is_of_others: bool,
}

/// What pip installed when it ran with each of such arguments.
type Installed = BTreeMap<Vec<Vec<String>>, Arc<OnceLock<PathBuf>>>;
static INSTALLED: Mutex<Installed> = Mutex::new(BTreeMap::new());

impl Venv {
    fn new(tool: Tool) -> Self {
        let venv = Self::empty(tool);
        let mut python = Command::new("python3");
        run(python.args(["-m", "venv", "--without-pip"]).arg(venv.root()));
        venv.with_pip()
    }

    /// An environment in which the tool has run with each of these arguments. pip takes a while, so of rows with the same
    /// arguments all but one get a copy, and in a later run all.
    fn installed(tool: Tool, runs: &[Vec<String>]) -> Self {
        let install = || {
            let venv = Self::new(tool);
            for arguments in runs {
                venv.install(&Vec::from_iter(arguments.iter().map(String::as_str)));
            }
            venv
        };
        if tool != Pip {
            return install();
        }
        let made = {
            let mut all = INSTALLED.lock().unwrap();
            Arc::clone(all.entry(runs.to_owned()).or_default())
        };
        let original = made.get_or_init(|| {
            let name = format!("installed-{}", sha256(format!("{runs:?}").as_bytes()));
            let original = WHEELS.join(&name);
            if !original.exists() {
                // It gets its name only once it is complete.
                let unfinished = WHEELS.join(format!("{name}-{}", std::process::id()));
                copy(install().root(), &unfinished);
                let _ = fs::rename(unfinished, &original);
            }
            original
        });
        let venv = Self::empty(tool);
        copy(original, venv.root());
        venv.with_pip()
    }

    fn empty(tool: Tool) -> Self {
        let tree = Tree::new();
        let venv = Self { tree, tool, variables: Vec::new(), is_left: false, is_of_others: false };
        fs::create_dir(venv.tree.path("home")).unwrap();
        if tool == UvProject {
            let project =
                "[project]\nname = \"app\"\nversion = \"1\"\nrequires-python = \">=3.9\"\n";
            fs::write(venv.tree.path("pyproject.toml"), project).unwrap();
        }
        venv
    }

    /// Writes the environment's own pip, if it is one of pip.
    fn with_pip(self) -> Self {
        let venv = self;
        if venv.tool == Pip {
            let script = format!(
                "exec '{}/bin/python' '{}' \"$@\"",
                venv.root().display(),
                PIP.runner.display()
            );
            process::script(venv.root().join("bin/pip"), &script);
            let configuration = format!("[global]\nindex-url = {}\n", index());
            fs::write(venv.root().join("pip.conf"), configuration).unwrap();
        }
        venv
    }

    fn root(&self) -> PathBuf {
        self.tree.path(".venv")
    }

    fn site_packages(&self) -> PathBuf {
        let mut pythons = fs::read_dir(self.root().join("lib")).unwrap();
        pythons.next().unwrap().unwrap().path().join("site-packages")
    }

    /// A command in the active environment, with nothing of the user's own.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env_clear().current_dir(self.tree.root());
        command.env("HOME", self.tree.path("home")).env("VIRTUAL_ENV", self.root());
        let kpack = Path::new(env!("CARGO_BIN_EXE_kpack")).parent().unwrap();
        let mut path = vec![self.root().join("bin"), kpack.to_owned()];
        if self.tool != Pip {
            path.push(UV.as_ref().unwrap().parent().unwrap().to_owned());
            command.env("UV_DEFAULT_INDEX", index()).env("UV_PYTHON_DOWNLOADS", "never");
        }
        path.extend(["/usr/bin".into(), "/bin".into()]);
        if self.is_left {
            path[0] = PIP.directory.clone();
            command.env_remove("VIRTUAL_ENV").current_dir(self.tree.path("home"));
        }
        command.env("PATH", std::env::join_paths(path).unwrap());
        command.env("PIP_DISABLE_PIP_VERSION_CHECK", "1");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    fn install(&self, arguments: &[&str]) {
        let program = if self.tool == Pip { "pip" } else { "uv" };
        let mut command = self.command("sh");
        command.args(["-c", "exec \"$@\"", "sh", program]);
        run(command.args(arguments));
    }

    fn doctor(&self, arguments: &[&str]) -> Output {
        let others = self.is_of_others.then(for_every_user);
        let own = Path::new(env!("CARGO_BIN_EXE_kpack"));
        let mut command = self.command(others.as_ref().map_or(own, |(kpack, _)| kpack));
        if others.is_some() {
            use std::os::unix::process::CommandExt;
            command.uid(NOBODY).gid(NOBODY);
        }
        if self.is_left {
            command.arg("doctor").arg(self.root());
        } else {
            command.arg("doctor");
        }
        command.args(arguments).output().unwrap()
    }
}

/// The pip that all environments share.
#[derive(Debug)]
struct SharedPip {
    /// The directory of the program.
    directory: PathBuf,
    /// What `pip --python PYTHON` runs by that Python. Without `--python`, half of the start is saved.
    runner: PathBuf,
    /// Printed, it is part of what is installed with it.
    #[expect(dead_code, reason = "it is printed")]
    version: String,
}

static PIP: LazyLock<SharedPip> = LazyLock::new(|| {
    let script = "import os, pip, sys; print(sys.executable, os.path.dirname(pip.__file__), sys.version, pip.__version__, sep='\\n')";
    let said = run(Command::new("python3").args(["-c", script]));
    let lines = Vec::from_iter(said.lines());
    let directory = Path::new(lines[0]).parent().unwrap().to_owned();
    let runner = Path::new(lines[1]).join("__pip-runner__.py");
    SharedPip { directory, runner, version: lines[2..].join(" ") }
});

/// uv, from the PATH, or from a virtual environment of the tests' own.
static UV: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
    let directories = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&directories).map(|directory| directory.join("uv"));
    if let Some(uv) = found.find(|path| path.is_file()) {
        return Some(uv);
    }
    let own = Path::new(env!("CARGO_TARGET_TMPDIR")).join("uv");
    let uv = own.join("bin/uv");
    if !uv.is_file() {
        let pip = own.join("bin/pip");
        let made = Command::new("python3").args(["-m", "venv"]).arg(&own).status();
        let installed = made.is_ok_and(|status| status.success())
            && Command::new(pip).args(["install", "--quiet", "uv"]).status().unwrap().success();
        if !installed {
            return None;
        }
    }
    Some(uv)
});

/// An environment in which pip has run with these arguments.
fn installed_by_pip(arguments: &[&str]) -> Venv {
    let arguments = Vec::from_iter(arguments.iter().map(|word| (*word).to_owned()));
    Venv::installed(Pip, &[arguments])
}

fn check(rows: &[Row]) {
    let mut wrong = Vec::new();
    for row in rows {
        if let Err(text) = check_row(row) {
            wrong.push(format!("{}: {text}", row.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

fn check_row(row: &Row) -> Result<(), String> {
    let install: &[&str] = match row.tool {
        Pip => &["install", "-q"],
        Uv => &["pip", "install", "-q"],
        UvProject => &["add", "-q"],
    };
    let wheels = WHEELS.join("wheels");
    let install = install.iter().chain(row.install);
    let install =
        Vec::from_iter(install.map(|word| word.replace("WHEELS", wheels.to_str().unwrap())));
    let runs = row.breaks.iter().filter_map(|broken| match broken {
        Run(arguments) => Some(Vec::from_iter(arguments.iter().map(|word| (*word).to_owned()))),
        _ => None,
    });
    let mut venv = Venv::installed(row.tool, &Vec::from_iter([install].into_iter().chain(runs)));
    for broken in row.breaks {
        match broken {
            Run(_) => {}
            Remove(file) => fs::remove_file(venv.site_packages().join(file)).unwrap(),
            Leave => venv.is_left = true,
            Trim(gpu) => {
                let mut trim = venv.command(env!("CARGO_BIN_EXE_kpack"));
                run(trim.args(["trim", "--quiet", "--arch", gpu]).arg(venv.root()));
            }
            Forbid(file) => {
                let path = venv.site_packages().join(file);
                fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
                let root = venv.tree.root();
                fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
                venv.is_of_others = true;
            }
            Write(file, text) => {
                let path = venv.site_packages().join(file);
                write(&path, text);
            }
            Halve(file) => {
                let path = venv.site_packages().join(file);
                let bytes = fs::read(&path).unwrap();
                fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
            }
            Cut(file) => {
                let path = venv.site_packages().join(file);
                let bytes = fs::read(&path).unwrap();
                // uv's files are links to its cache.
                fs::remove_file(&path).unwrap();
                fs::write(&path, &bytes[..100]).unwrap();
            }
            Set(name, value) => {
                let stubs = WHEELS.join("stubs");
                let value = value.replace("STUBS", stubs.to_str().unwrap());
                venv.variables.push(((*name).to_owned(), value));
            }
        }
    }
    let arguments = ["--arch", row.arch];
    let first = venv.doctor(&arguments);
    let said = text_of(&first);
    let Some(id) = row.id else {
        let expected = format!("GPU code will load for {}\n", row.arch.replace(',', ", "));
        return if first.status.code() == Some(0) && said == expected {
            Ok(())
        } else {
            Err(format!("expected `{expected}`, found:\n{said}"))
        };
    };
    let lines = Vec::from_iter(said.lines());
    if first.status.code() != Some(1)
        || !lines[0].contains(" not ")
        || !lines.get(1).is_some_and(|line| line.ends_with(&format!(" [{id}]")))
    {
        return Err(format!("expected [{id}], found:\n{said}"));
    }
    let Some(command) = row.command else {
        let json = venv.doctor(&[&arguments[..], &["--json"]].concat());
        let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
        return if json["remedy"].is_null() {
            Ok(())
        } else {
            Err(format!("no command expected, found:\n{said}"))
        };
    };
    let expected = [
        ("INDEX", PathBuf::from(index())),
        ("WHEELS", wheels),
        ("ENV", venv.root()),
        ("SITE", venv.site_packages()),
    ];
    let expected = expected.iter().fold(command.to_owned(), |command, (name, path)| {
        command.replace(name, path.to_str().unwrap())
    });
    if lines.get(2) != Some(&&*expected) {
        return Err(format!("expected the command\n{expected}\nfound:\n{said}"));
    }
    let mended = venv.command("sh").args(["-ec", &expected]).output().unwrap();
    if !mended.status.success() {
        return Err(format!("`{expected}` fails: {}", text_of(&mended)));
    }
    let second = venv.doctor(&arguments);
    let works = format!("GPU code will load for {}\n", row.arch.replace(',', ", "));
    if second.status.code() != Some(0) || text_of(&second) != works {
        return Err(format!("after `{expected}`:\n{}", text_of(&second)));
    }
    Ok(())
}

#[test]
fn environments_of_pip() {
    if require::tools(&["python3", "cc"]) {
        check(OF_PIP);
    }
}

#[test]
fn more_environments_of_pip() {
    if require::tools(&["python3", "cc"]) && require::root() {
        check(MORE_OF_PIP);
    }
}

#[test]
fn sound_environments_of_pip() {
    if require::tools(&["python3", "cc"]) {
        check(SOUND_OF_PIP);
    }
}

#[test]
fn trimmed_environments_of_pip() {
    if require::tools(&["python3", "cc"]) {
        check(TRIMMED);
    }
}

#[test]
fn trimmed_environments_of_uv() {
    if require::tools(&["python3", "cc"]) {
        match &*UV {
            Some(_) => check(TRIMMED_OF_UV),
            None => require::skip("there is no uv, and it cannot be installed"),
        }
    }
}

#[test]
fn environments_of_uv() {
    if require::tools(&["python3", "cc"]) {
        match &*UV {
            Some(_) => check(OF_UV),
            None => require::skip("there is no uv, and it cannot be installed"),
        }
    }
}

/// Given packages that dpkg installed, without the one for the GPU, or with one whose archive was deleted, then the doctor
/// names the package and its version. With that installed, code loads.
#[test]
fn packages_of_dpkg() {
    let tools = ["dpkg", "dpkg-deb", "apt-get", "dpkg-scanpackages", "cc"];
    if !require::tools(&tools) || !require::root() {
        return;
    }
    let tree = Tree::new();
    split_for_packages(&tree.path("built"));
    let package = |name: &str, fields: &str, files: &[&str]| {
        let directory = tree.path(name);
        for file in files {
            let to = directory.join(file);
            copy_file(tree.path("built").join(file), to);
        }
        fs::create_dir_all(directory.join("DEBIAN")).unwrap();
        let control = format!(
            "Package: {name}\nVersion: 1:2.0-1\nArchitecture: amd64\nMaintainer: A <a@example.org>\nDescription: vectors\n{fields}"
        );
        fs::write(directory.join("DEBIAN/control"), control).unwrap();
        let deb = tree.path(&format!("{name}.deb"));
        run(Command::new("dpkg-deb").args(["--root-owner-group", "-b"]).arg(directory).arg(&deb));
        deb
    };
    let recommends = "Recommends: vec-gfx1100 (= 1:2.0-1) | kpack-without-gfx1100, vec-gfx942 (= 1:2.0-1) | kpack-without-gfx942\n";
    fat_for_packages(&tree.path("built"));
    let fat = package("fat", "", &[FAT]);
    let host = package("vec", recommends, &["usr/lib/libvec.so", "usr/lib/.kpack/vec_lib.kpm"]);
    let device = package("vec-gfx1100", "", &[ARCHIVE]);
    let other = package("vec-gfx942", "", &["usr/lib/.kpack/vec_lib_gfx942.kpack"]);
    let root = PackageRoot::new(&tree.path("root")).unwrap();
    root.dpkg("-i", &[&host, &other, &fat]).unwrap();
    let apt = Apt::new(&tree, &root, &[&device, &host, &fat]);
    let found = |gpu| of_package(&tree.path("root"), gpu);
    let expected = |id: &str, command: &str| Some((id.to_owned(), command.to_owned()));
    assert_eq!(found("gfx942"), None);
    let command = "apt-get install 'vec-gfx1100=1:2.0-1'";
    assert_eq!(found("gfx1100"), expected("device-package-missing", command));
    apt.run(command);
    assert_eq!(found("gfx1100"), None);

    fs::remove_file(root.file(ARCHIVE)).unwrap();
    let command = "apt-get install --reinstall 'vec-gfx1100=1:2.0-1'";
    assert_eq!(found("gfx1100"), expected("device-package-damaged", command));
    // What another GPU lacks keeps nothing from loading for this one.
    assert_eq!(found("gfx942"), None);
    apt.run(command);
    assert_eq!(found("gfx1100"), None);

    // The manifest, which lists the archive, is in the package of the library.
    let command = "apt-get install --reinstall 'vec=1:2.0-1' 'vec-gfx1100=1:2.0-1'";
    trim_root(&tree);
    assert_eq!(found("gfx942"), None);
    assert_eq!(found("gfx1100"), expected("missing-archive", command));
    apt.run(command);
    assert_eq!(found("gfx1100"), None);
    let fat = |gpu| of_library(&tree.path("root"), FAT, gpu);
    let command = "apt-get install --reinstall 'fat=1:2.0-1'";
    assert_eq!(fat("gfx1100"), expected("missing-target", command));
    apt.run(command);
    assert_eq!(fat("gfx1100"), None);
    // Neither package has code for that GPU, trimmed or not.
    trim_root(&tree);
    for found in [found("gfx1030"), fat("gfx1030")] {
        assert_eq!(found, expected("missing-target", ""));
    }
}

/// A library that is not split.
const FAT: &str = "usr/lib/libfat.so";

fn fat_for_packages(directory: &Path) {
    let codes = ["gfx1100", "gfx942"].map(|target| code(target, "add"));
    FatLibrary::new().wrapper(Storage::Plain, codes).build(&directory.join(FAT)).unwrap();
}

/// Trims the root of packages in a tree.
fn trim_root(tree: &Tree) {
    let said = said(tree, &["trim", "--arch", "gfx942", "--root", "root", "/usr"]);
    assert!(said.contains("exit code 0"), "{said}");
}

/// apt for a root of packages, with a repository of its own and nothing of this machine.
struct Apt(PathBuf);

impl Apt {
    fn new(tree: &Tree, root: &PackageRoot, packages: &[&Path]) -> Self {
        let (repository, state) = (tree.path("repository"), tree.path("apt"));
        fs::create_dir_all(&repository).unwrap();
        fs::create_dir_all(&state).unwrap();
        for package in packages {
            fs::copy(package, repository.join(package.file_name().unwrap())).unwrap();
        }
        let mut scan = Command::new("dpkg-scanpackages");
        let index = scan.args(["--multiversion", "."]).current_dir(&repository).output().unwrap();
        fs::write(repository.join("Packages"), index.stdout).unwrap();
        let list = format!("deb [trusted=yes] file:{} ./\n", repository.display());
        fs::write(state.join("sources.list"), list).unwrap();
        let root = root.file("/");
        let common = apt::CONFIGURATION.replace('@', state.to_str().unwrap());
        let own = format!(
            "Dir::State::status \"{root}/var/lib/dpkg/status\";\nDPkg::Options {{ \"--root={root}\"; \"--force-depends\"; }};\n\
             Dir::Etc::Main \"/dev/null\";\nDir::Etc::Parts \"/dev/null\";\nDir::Log \"{state}\";\n\
             APT::Get::Assume-Yes \"true\";\nAPT::Architecture \"amd64\";\n",
            root = root.display(),
            state = state.display()
        );
        let configuration = state.join("apt.conf");
        fs::write(&configuration, common + &own).unwrap();
        let apt = Self(configuration);
        apt.run("apt-get update");
        apt
    }

    /// Runs a command as it is printed.
    fn run(&self, command: &str) {
        run(Command::new("sh").args(["-ec", command]).env("APT_CONFIG", &self.0));
    }
}

/// Given packages that rpm installed, when an archive was deleted, then the doctor names the package and its version.
#[test]
fn packages_of_rpm() {
    let tools = ["rpm", "rpmbuild", "dnf", "createrepo_c", "cc"];
    if !require::tools(&tools) || !require::root() {
        return;
    }
    let tree = Tree::new();
    split_for_packages(&tree.path("built"));
    fat_for_packages(&tree.path("built"));
    let spec = format!(
        "Name: vec\nVersion: 2.0\nRelease: 1\nSummary: vectors\nLicense: MIT\nEpoch: 1\nAutoReqProv: no\nRecommends: vec-gfx1100 = 1:2.0-1\n%description\nvectors\n\
         %package gfx1100\nSummary: code\n%description gfx1100\ncode\n\
         %install\ncp -a {}/. %{{buildroot}}\n\
         %package gfx942\nSummary: code\n%description gfx942\ncode\n%package -n fat\nSummary: fat\nAutoReqProv: no\n%description -n fat\nfat\n\
         %files\n/usr/lib/libvec.so\n/usr/lib/.kpack/vec_lib.kpm\n%files gfx1100\n/{ARCHIVE}\n\
         %files gfx942\n/usr/lib/.kpack/vec_lib_gfx942.kpack\n%files -n fat\n/{FAT}\n",
        tree.path("built").display()
    );
    fs::write(tree.path("vec.spec"), spec).unwrap();
    let mut rpmbuild = Command::new("rpmbuild");
    rpmbuild.arg("-bb").arg("--define").arg(format!("_topdir {}", tree.path("top").display()));
    rpmbuild.args(["--define", "__os_install_post %{nil}", "--define", "debug_package %{nil}"]);
    run(rpmbuild.arg(tree.path("vec.spec")));
    let entries = WalkDir::new(tree.path("top/RPMS")).into_iter().map(|entry| entry.unwrap());
    let packages = entries.filter(|entry| entry.file_type().is_file());
    let packages = Vec::from_iter(packages.map(|entry| entry.into_path()));
    let root = PackageRoot::new(&tree.path("root")).unwrap();
    root.rpm("-i", &packages).unwrap();
    assert_eq!(of_package(&tree.path("root"), "gfx1100"), None);
    fs::remove_file(root.file(ARCHIVE)).unwrap();
    let found = || of_package(&tree.path("root"), "gfx1100");
    let expected = |id: &str, command: &str| Some((id.to_owned(), command.to_owned()));
    let command = "dnf reinstall vec-gfx1100-1:2.0-1";
    assert_eq!(found(), expected("device-package-damaged", command));
    run(Command::new("createrepo_c").arg("-q").arg(tree.path("top/RPMS")));
    let dnf = |command: &str| {
        // The command as it is printed, for this root.
        let script = format!(
            "dnf() {{ command dnf -q -y --releasever=1 --repo=vec --setopt=gpgcheck=0 \
             --installroot='{root}' --repofrompath='vec,{tree}/top/RPMS' \"$@\"; }}; {command}",
            root = root.file("/").display(),
            tree = tree.root().display()
        );
        run(Command::new("sh").args(["-ec", &script]).env("HOME", tree.root()));
    };
    // Where this root has its database.
    fs::write(tree.path(".rpmmacros"), "%_dbpath /var/lib/rpm\n").unwrap();
    dnf(command);
    assert_eq!(found(), None);

    trim_root(&tree);
    assert_eq!(of_package(&tree.path("root"), "gfx942"), None);
    let command = "dnf reinstall vec-1:2.0-1 vec-gfx1100-1:2.0-1";
    assert_eq!(found(), expected("missing-archive", command));
    dnf(command);
    assert_eq!(found(), None);
    let fat = || of_library(&tree.path("root"), FAT, "gfx1100");
    let command = "dnf reinstall fat-1:2.0-1";
    assert_eq!(fat(), expected("missing-target", command));
    dnf(command);
    assert_eq!(fat(), None);

    root.rpm("-e", &["vec-gfx1100"]).unwrap();
    let command = "dnf install vec-gfx1100-1:2.0-1";
    assert_eq!(found(), expected("device-package-missing", command));
    dnf(command);
    assert_eq!(found(), None);
    root.rpm("-e", &["vec-gfx1100"]).unwrap();
    write(root.file("etc/os-release"), "NAME=x\nID_LIKE=\"suse opensuse\"\n");
    let command = "zypper install 'vec-gfx1100=1:2.0-1'";
    assert_eq!(found(), expected("device-package-missing", command));
    // What is still in the write-ahead log of the database is not known, so nothing is said.
    let places = ["usr/lib/sysimage/rpm", "var/lib/rpm"].map(|place| root.file(place));
    let database =
        places.iter().map(|place| place.join("rpmdb.sqlite")).find(|path| path.is_file());
    fs::write(database.unwrap().with_extension("sqlite-wal"), "x").unwrap();
    assert_eq!(found().unwrap().0, "missing-archive");
}

pub(crate) fn text_of(output: &Output) -> String {
    String::from_utf8([&*output.stdout, &output.stderr].concat()).unwrap()
}

/// Given an environment with the code for all GPUs, when it is asked what the machine does not need, then the command
/// that it prints removes that, and no more.
#[test]
fn what_a_machine_does_not_need_is_listed_and_removed() {
    if !require::tools(&["python3", "cc"]) {
        return;
    }
    let venv = installed_by_pip(&["install", "-q", "torch[device-all]==2.10.0+rocm7.14.0"]);
    let said = text_of(&venv.doctor(&["--unused", "--arch", "gfx1100"]));
    let unused = [
        "amd-torch-device-gfx1030",
        "amd-torch-device-gfx942",
        "rocm-sdk-device-gfx1030",
        "rocm-sdk-device-gfx942",
    ];
    let command = format!("pip uninstall --yes {}", unused.join(" "));
    assert_eq!(said.lines().last(), Some(&*command), "{said}");
    assert!(!said.contains("gfx110x") && said.contains(" not needed for gfx1100\n"), "{said}");
    run(venv.command("sh").args(["-ec", &command]));
    let said = text_of(&venv.doctor(&["--unused", "--arch", "gfx1100"]));
    assert_eq!(said, "every device wheel is for gfx1100\n");
    assert_eq!(text_of(&venv.doctor(&["--arch", "gfx1100"])), "GPU code will load for gfx1100\n");
}

/// Given a trimmed environment, then its note names no index and no password. When another version was installed, which
/// never had an archive, or a package was removed, then nobody says that trim removed the archive.
#[test]
fn a_note_of_another_version_is_not_repeated() {
    if !require::tools(&["python3", "cc"]) {
        return;
    }
    let mut install = vec!["install", "-q"];
    install.extend(BOTH);
    install.push("fat==1.0");
    let venv = installed_by_pip(&install);
    let secret = "[global]\nindex-url = https://user:secret@index.invalid/simple?token=secret\n";
    fs::write(venv.root().join("pip.conf"), secret).unwrap();
    let info = |name: &str| venv.site_packages().join(format!("{name}.dist-info"));
    let origin = "{\"url\": \"https://user:secret@host.invalid/fat.whl\", \"archive_info\": {}}";
    fs::write(info("fat-1.0").join("direct_url.json"), origin).unwrap();
    let mut trim = venv.command(env!("CARGO_BIN_EXE_kpack"));
    run(trim.args(["trim", "--arch", "gfx942"]).arg(venv.root()));
    let note = fs::read_to_string(venv.root().join(".kpack-trimmed")).unwrap();
    assert!(!note.contains("secret") && !note.contains("invalid"), "{note}");
    let doctor = || text_of(&venv.doctor(&["--verbose", "--arch", "gfx1100"]));
    let command = "run `pip install --force-reinstall --no-deps amd-torch-device-gfx1100==2.10.0+rocm7.14.0 rocm-sdk-device-gfx1100==7.14.0`";
    let said = doctor();
    assert!(!said.contains("secret"), "{said}");
    let removed = "`kpack trim` removed the code for gfx1100";
    let explained = |said: &str| {
        let faults =
            said.lines().filter(|line| line.starts_with("FAULT ") && line.contains(removed));
        faults.count()
    };
    assert_eq!(explained(&said), 3, "{said}");
    assert!(said.replace('\'', "").contains(command), "{said}");
    let json = text_of(&venv.doctor(&["--json", "--arch", "gfx1100"]));
    // An index may have another project of that name.
    let from = "install fat again from https://****@host.invalid/fat.whl";
    assert!(json.contains(from) && !json.contains("fat=="), "{json}");

    let library = venv.site_packages().join("fat/libfat.so");
    let library = library.to_str().unwrap();
    for arguments in [&["show", library][..], &["verify", "--arch", "gfx1100", library]] {
        let mut kpack = venv.command(env!("CARGO_BIN_EXE_kpack"));
        let said = text_of(&kpack.args(arguments).output().unwrap());
        assert!(
            said.contains("`kpack trim` removed the code for ") && said.contains(from),
            "{said}"
        );
        assert!(!said.contains("fat=="), "{said}");
        assert!(!said.contains("secret"), "{said}");
    }

    let device = info("rocm_sdk_device_gfx1100-7.14.0");
    let metadata = fs::read_to_string(device.join("METADATA")).unwrap();
    let metadata = metadata.replace("Version: 7.14.0", "Version: 7.14.1");
    write(info("rocm_sdk_device_gfx1100-7.14.1").join("METADATA"), metadata);
    fs::remove_dir_all(device).unwrap();
    fs::remove_dir_all(info("amd_torch_device_gfx1100-2.10.0+rocm7.14.0")).unwrap();
    let said = doctor();
    assert_eq!(explained(&said), 1, "{said}");
    assert!(!said.replace('\'', "").contains("--force-reinstall --no-deps rocm"), "{said}");
}

/// Given no environment, when the extra for a GPU is asked for, then an installer can install it at once.
#[test]
fn the_extra_for_a_gpu_is_printed_for_installers() {
    if !require::tools(&["python3", "cc"]) {
        return;
    }
    let venv = Venv::new(Pip);
    let said = text_of(&venv.doctor(&["--print-extra", "--arch", "gfx942"]));
    assert_eq!(said, "device-gfx942\n");
    let said = text_of(&venv.doctor(&["--print-extra", "--arch", "gfx942,gfx1100"]));
    assert_eq!(said, "device-gfx1100,device-gfx942\n");
    let install =
        "pip install -q \"torch[$(kpack doctor --print-extra --arch gfx942)]==2.10.0+rocm7.14.0\"";
    run(venv.command("sh").args(["-ec", install]));
    assert_eq!(text_of(&venv.doctor(&["--arch", "gfx942"])), "GPU code will load for gfx942\n");
}

/// Given an environment that is not active, when only its own configuration names an index, then the doctor says so, and
/// gives a shell no line to run. In the active one, it gives the line alone.
#[test]
fn an_index_that_only_the_examined_environment_names_is_not_trusted() {
    if !require::tools(&["python3", "cc"]) {
        return;
    }
    let venv = installed_by_pip(&["install", "-q", "torch==2.10.0+rocm7.14.0"]);
    let root = venv.root();
    let root = root.to_str().unwrap();
    let doctor = |arguments: &[&str]| {
        let mut command = venv.command(env!("CARGO_BIN_EXE_kpack"));
        command.env_remove("VIRTUAL_ENV").current_dir(venv.tree.path("home"));
        command.args(["doctor", "--arch", "gfx1100", root]).args(arguments).output().unwrap()
    };
    let said = text_of(&doctor(&[]));
    let start = format!("pip --python {root} install 'rocm[device-gfx1100]==7.14.0'");
    let note = format!("note: only {root}/pip.conf names the index {}", index());
    assert!(said.contains(&start) && said.contains(&note), "{said}");
    assert_eq!(text_of(&doctor(&["--fix"])), "");
    let fix = text_of(&venv.doctor(&["--arch", "gfx1100", "--fix"]));
    assert!(fix.starts_with("pip install ") && fix.lines().count() == 1, "{fix}");

    // A password is never printed; pip finds the URL in its configuration.
    let secret = "[global]\nindex-url =\n  https://user:secret@index.invalid/simple?token=secret\n";
    fs::write(venv.root().join("pip.conf"), secret).unwrap();
    for said in [text_of(&doctor(&["-v"])), text_of(&doctor(&["--json"]))] {
        assert!(!said.contains("secret"), "{said}");
        assert!(said.contains("https://****@index.invalid/simple?****"), "{said}");
    }
}

/// Given links in an environment to a FIFO and a device, then the doctor does not even open what they lead to: that alone
/// can change a device, or wake who writes to a FIFO.
#[test]
fn what_is_no_file_is_not_opened() {
    if !require::tracing() {
        return;
    }
    let tree = Tree::new();
    run(Command::new("mkfifo").arg(tree.path("pipe")));
    let device = PathBuf::from("/dev/zero");
    let packages = "env/lib/python3.12/site-packages";
    by_hand(&tree, packages, "host", &for_gfx1100("host"), "pip\n");
    by_hand(&tree, packages, "other", "", "pip\n");
    let rows = "lib/libpipe.so,,\nlib/libzero.so,,\nlib/.kpack/pipe.kpack,,\n";
    fs::write(tree.path(&format!("{packages}/host-1.dist-info/RECORD")), rows).unwrap();
    for (link, to) in [
        ("lib/libpipe.so", &tree.path("pipe")),
        ("lib/libzero.so", &device),
        ("lib/.kpack/pipe.kpack", &tree.path("pipe")),
        ("host-1.dist-info/direct_url.json", &tree.path("pipe")),
        ("host-1.dist-info/INSTALLER", &device),
        ("other-1.dist-info/RECORD", &device),
    ] {
        let link = tree.path(&format!("{packages}/{link}"));
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(to, link).unwrap();
    }
    let mut strace = Command::new("strace");
    // The descriptors are printed with what they lead to.
    strace.args(["-f", "-y", "-e", "trace=open,openat,openat2", "-o", "trace"]);
    strace.args([env!("CARGO_BIN_EXE_kpack"), "doctor", "env", "--arch", "gfx1100", "-v"]);
    let output = strace.current_dir(tree.root()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for name in ["pipe.kpack", "other-1.dist-info/RECORD"] {
        assert!(text.contains(&format!("{name}: not a regular file")), "{name}: {text}");
    }
    let trace = fs::read_to_string(tree.path("trace")).unwrap();
    let opened =
        trace.lines().filter(|call| call.contains("/pipe>") || call.contains("</dev/zero"));
    assert_eq!(Vec::from_iter(opened), [""; 0], "{text}");
    assert!(trace.contains("/host-1.dist-info/METADATA>"), "{trace}");
}

/// Given another environment that is active, then uv is told which one is meant.
#[test]
fn uv_is_told_of_an_environment_that_it_would_not_find() {
    let tree = Tree::new();
    by_hand(&tree, ".venv/lib/python3.12/site-packages", "host", &for_gfx1100("host"), "uv");
    fs::write(tree.path(".venv/pyvenv.cfg"), "home = /usr/bin\n").unwrap();
    let doctor = |active: Option<PathBuf>| {
        let mut command = crate::command::command(&tree, &["doctor", ".venv", "--arch", "gfx1100"]);
        command.env_remove("VIRTUAL_ENV").env_remove("CONDA_PREFIX").current_dir(tree.root());
        text_of(&command.envs(active.map(|path| ("VIRTUAL_ENV", path))).output().unwrap())
    };
    let root = tree.path(".venv").display().to_string();
    for (active, start) in [
        (None, "uv pip install 'host".to_owned()),
        (Some(tree.path(".venv")), "uv pip install 'host".to_owned()),
        (Some(tree.path("other")), format!("uv pip install --python {root} 'host")),
    ] {
        let said = doctor(active);
        assert!(said.lines().nth(2).unwrap().starts_with(&start), "{said}");
    }
    // A directory beside a lock is the project's environment only if uv calls it so.
    fs::write(tree.path("uv.lock"), "version = [[[\n").unwrap();
    fs::write(tree.path("pyproject.toml"), "[project]\nname = 'x'\n").unwrap();
    assert!(doctor(None).contains("\nuv add 'host[device-gfx1100]==1'\n"), "{}", doctor(None));
    fs::rename(tree.path(".venv"), tree.path("env")).unwrap();
    let said = said(&tree, &["doctor", "env", "--arch", "gfx1100"]);
    assert!(said.contains("\nuv pip install --python "), "{said}");
    // The workspace itself needs nothing.
    fs::rename(tree.path("env"), tree.path(".venv")).unwrap();
    fs::write(tree.path("pyproject.toml"), "[tool.uv.workspace]\nmembers = ['x']\n").unwrap();
    let said = doctor(None);
    let workspace = tree.root().display();
    let help = format!(
        "\nwhat to do: in the `pyproject.toml` of the member of {workspace} that needs the GPU code, \
         ask for the extras of these GPUs alone, and run `uv sync`\n"
    );
    assert!(said.contains(&help), "{said}");
}

/// Given a project that is not the user's own place, when only its files name an index, then the doctor says so.
#[test]
fn an_index_that_only_a_project_of_uv_names_is_not_trusted() {
    let tree = Tree::new();
    let packages = "app/.venv/lib/python3.12/site-packages";
    by_hand(&tree, packages, "host", &for_gfx1100("host"), "uv");
    fs::write(tree.path("app/uv.lock"), "\0[[package]]\nname = '--index-url=x'\n").unwrap();
    let configuration = "[[tool.uv.index]]\nname = 'x'\nurl = 'https://u:p@index.invalid/a?k=p'\n";
    fs::write(tree.path("app/pyproject.toml"), format!("[project]\nname = 'x'\n{configuration}"))
        .unwrap();
    fs::create_dir(tree.path("home")).unwrap();
    let doctor = |from: &str, arguments: &[&str]| {
        let mut command = crate::command::command(&tree, &["doctor"]);
        command.arg(tree.path("app/.venv")).args(["--arch", "gfx1100"]).args(arguments);
        command.env_remove("VIRTUAL_ENV").env("HOME", tree.path("home"));
        text_of(&command.current_dir(tree.path(from)).output().unwrap())
    };
    let said = doctor("home", &[]);
    let app = tree.path("app").display().to_string();
    let lines = Vec::from_iter(said.lines());
    assert_eq!(lines[2], format!("uv add --project {app} 'host[device-gfx1100]==1'"));
    let note = format!(
        "note: only {app}/pyproject.toml names the index https://****@index.invalid/a?****, "
    );
    assert!(lines[3].starts_with(&note), "{said}");
    assert_eq!(doctor("home", &["--fix"]), "");
    assert_eq!(doctor("app", &["--fix"]), "uv add 'host[device-gfx1100]==1'\n");
    // What uv's lock asks for would come back.
    by_hand(&tree, packages, "host-device-gfx942", "", "uv");
    let said = doctor("app", &["--unused"]);
    let help = format!(
        "\nwhat to do: in {app}/pyproject.toml, ask for the extras of these GPUs instead of all, and run `uv sync`\n"
    );
    assert!(said.contains("host-device-gfx942") && said.contains(&help), "{said}");
    assert!(!said.contains("uninstall"), "{said}");
}

/// Given a directory of `pip install --target` or `--user`, then the doctor looks into it, also without a path, and does not
/// take a link to a Python in `~/.local/bin` for its own.
#[test]
fn directories_that_installers_of_environments_do_not_know() {
    let tree = Tree::new();
    by_hand(&tree, "env/lib/python3.12/site-packages", "host", &for_gfx1100("host"), "pip\n");
    fs::rename(tree.path("env/lib/python3.12/site-packages"), tree.path("target")).unwrap();
    let packages = "home/.local/lib/python3.12/site-packages";
    by_hand(&tree, packages, "host", &for_gfx1100("host"), "pip\n");
    let python = tree.path("home/.local/bin/python");
    fs::remove_file(&python).unwrap();
    std::os::unix::fs::symlink("/bin/sh", &python).unwrap();
    let doctor = |path: &[&str], variable: Option<(&str, &str)>| {
        let arguments = [&["doctor", "--arch", "gfx1100"], path].concat();
        let mut command = crate::command::command(&tree, &arguments);
        for name in ["VIRTUAL_ENV", "CONDA_PREFIX", "ROCM_PATH", "PYTHONPATH"] {
            command.env_remove(name);
        }
        command.env("HOME", tree.path("none"));
        command.envs(variable.map(|(name, path)| (name, tree.path(path))));
        text_of(&command.output().unwrap())
    };
    for (path, variable, root) in [
        (&["target"][..], None, "target"),
        (&["target/lib/libhost.so"], None, "target"),
        (&["home/.local"], None, "home/.local"),
        (&[], Some(("PYTHONPATH", "target")), "target"),
        (&[], Some(("HOME", "home")), "home/.local"),
    ] {
        let said = doctor(path, variable);
        let cause = format!(
            "/{root}: host 1 needs host-device-gfx1100==1 on gfx1100, which is not installed"
        );
        assert!(said.contains(&cause), "{path:?}: {said}");
        assert!(
            said.contains("what to do: kpack prints no command for a directory without Python"),
            "{said}"
        );
    }
}

/// Given an active environment without device code, then the verdict says that it is about another place.
#[test]
fn the_verdict_says_that_the_active_environment_is_not_what_it_is_about() {
    let tree = Tree::new();
    fs::create_dir_all(tree.path("env/lib/python3.12/site-packages")).unwrap();
    split(&tree.path("rocm"), "libvec.so", None);
    let mut command = crate::command::command(&tree, &["doctor", "--arch", "gfx1100"]);
    command.env_remove("PYTHONPATH").env("HOME", tree.path("none"));
    command.env("VIRTUAL_ENV", tree.path("env")).env("ROCM_PATH", tree.path("rocm"));
    let said = text_of(&command.output().unwrap());
    let root = tree.root().display();
    let verdict = format!(
        "GPU code will load for gfx1100, in {root}/rocm; the active environment, {root}/env, has no device code\n"
    );
    assert_eq!(said, verdict);
}

/// Given extras of the active environment, then `--print-extra` names them without a path, with that of the family.
#[test]
fn the_extras_of_the_active_environment_with_the_family() {
    let tree = Tree::new();
    let fields = for_gfx1100("host")
        + "Provides-Extra: device-gfx110x\nRequires-Dist: host-device-gfx110x==1; extra == 'device-gfx110x'\n";
    by_hand(&tree, "env/lib/python3.12/site-packages", "host", &fields, "pip\n");
    let mut command =
        crate::command::command(&tree, &["doctor", "--print-extra", "--arch", "gfx1100"]);
    let output = command.env("VIRTUAL_ENV", tree.path("env")).output().unwrap();
    assert_eq!(text_of(&output), "device-gfx1100,device-gfx110x\n");
}

#[test]
fn unused_wheels_are_looked_for_in_one_environment() {
    let tree = Tree::new();
    let output = kpack(&tree, &["doctor", "--unused", "one", "two"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

/// Given a package without RECORD, then a directory that kpack cannot read is named, and what is no file is not examined.
#[test]
fn directories_of_unlisted_files_that_cannot_be_read_are_named() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let tree = Tree::new();
    let packages = "env/lib/python3.12/site-packages";
    by_hand(&tree, packages, "host", "", "pip\n");
    fs::remove_file(tree.path(&format!("{packages}/host-1.dist-info/RECORD"))).unwrap();
    write(tree.path("env/pyvenv.cfg"), "");
    run(Command::new("mkfifo").arg(tree.path(&format!("{packages}/f.kpack"))));
    let closed = tree.path(&format!("{packages}/lib"));
    fs::set_permissions(tree.root(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    let (kpack, _directory) = for_every_user();
    let mut command = Command::new(kpack);
    command.current_dir(tree.root()).args(["doctor", "env", "--arch", "gfx1100"]);
    let output = command.uid(NOBODY).gid(NOBODY).output();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o755)).unwrap();
    let Ok(output) = output else { return };
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        said.contains("site-packages/lib: Permission denied") && said.contains("cannot tell"),
        "{said}"
    );
    assert!(!said.contains("damaged"), "{said}");
}
