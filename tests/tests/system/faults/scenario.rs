//! The commands that are disturbed: what each needs, and what it promises at any moment.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use kpack_tests::fixture::{
    FatLibrary, Kind, Storage, Wheel, WindowsBuild, WindowsLinker, code, code_object, library_file,
};
use kpack_tests::windows;
use serde_json::json;

use super::place::Place;
use kpack_tests::process::try_run;

/// A command and its input.
pub(super) struct Scenario {
    /// Programs that make the input, besides a C compiler.
    pub(super) tools: &'static [&'static str],
    /// Makes the input in an empty directory, which later has the same path in every run.
    pub(super) prepare: fn(&Place) -> Result<()>,
    /// What is run, in that directory: words.
    pub(super) arguments: &'static str,
    /// The command that verifies what an undisturbed run made.
    pub(super) verify: &'static str,
    pub(super) promise: Promise,
}

/// What holds whenever the command is interrupted.
pub(super) enum Promise {
    /// Each of these binaries in `prefix` starts, has its host code, and finds its device code for `targets`: all that
    /// the binary of this name in `original` has, or these.
    Binaries { binaries: &'static [&'static str], targets: &'static [&'static str] },
    /// Each unit of a directory is as before the run or as after it.
    Units {
        directory: &'static str,
        /// A unit is the entries that share so many components of their paths.
        depth: usize,
        /// Units that get their names last: if one is as after the run, all units are.
        last: &'static [&'static str],
        /// Whether a unit that is replaced may be missing for a moment.
        may_be_missing: bool,
    },
}

const BOTH: Promise = Promise::Binaries { binaries: &BINARIES, targets: &[] };

const COMPONENTS: Promise = Promise::Units {
    directory: "out",
    depth: 1,
    last: &["blas_lib_generic"],
    may_be_missing: true,
};

pub(super) const SPLIT: Scenario = Scenario {
    tools: &[],
    prepare: |place| prefix(place, "first"),
    arguments: "split --prefix prefix --module vec --all",
    verify: "verify --quiet prefix --against original",
    promise: BOTH,
};

pub(super) const SPLIT_OF_ANOTHER_VERSION: Scenario = Scenario {
    tools: &[],
    prepare: |place| {
        prefix(place, "first")?;
        place.kpack("split --prefix prefix --module vec --all")?;
        prefix(place, "second")
    },
    arguments: "split --prefix prefix --module vec --all",
    verify: "verify --quiet prefix --against original",
    promise: BOTH,
};

pub(super) const SPLIT_WITH_DEBUG_FILES: Scenario = Scenario {
    tools: &["clang-19", "ld.lld-19"],
    prepare: |place| binaries(place, with_debug_information(place)?),
    arguments: "split --prefix prefix --module vec --all --strip-debug=debug",
    verify: "verify --quiet prefix --against original",
    promise: BOTH,
};

pub(super) const JOIN: Scenario = Scenario {
    tools: &[],
    prepare: |place| {
        prefix(place, "first")?;
        place.kpack("split --prefix prefix --module vec --all")
    },
    arguments: "join --prefix prefix --arch gfx1100",
    verify: "verify --quiet prefix",
    promise: Promise::Binaries { binaries: &BINARIES, targets: &["gfx1100"] },
};

pub(super) const SPLIT_OF_A_DLL: Scenario = Scenario {
    tools: &[windows::COMPILER],
    prepare: dll,
    arguments: "split --prefix prefix --module vec --all",
    verify: "verify --quiet prefix --against original",
    promise: Promise::Binaries { binaries: &[DLL], targets: &[] },
};

pub(super) const JOIN_OF_A_DLL: Scenario = Scenario {
    tools: &[windows::COMPILER],
    prepare: |place| {
        dll(place)?;
        place.kpack("split --prefix prefix --module vec --all")
    },
    arguments: "join --prefix prefix --arch gfx1100",
    verify: "verify --quiet prefix",
    promise: Promise::Binaries { binaries: &[DLL], targets: &["gfx1100"] },
};

pub(super) const OBJECT: Scenario = Scenario {
    tools: &[],
    prepare: |place| {
        fat("add").kind(Kind::Object).build(&place.path("original/add.o"))?;
        fat("math").kind(Kind::StaticLibrary).build(&place.path("original/libmath.a"))
    },
    arguments: "object --module vec --output-dir host original/add.o original/libmath.a",
    verify: "verify --quiet host",
    promise: Promise::Units {
        directory: "host",
        depth: usize::MAX,
        last: &["add.o", "libmath.a"],
        may_be_missing: false,
    },
};

pub(super) const STAGE: Scenario = Scenario {
    tools: &[],
    prepare: |place| {
        for version in ["first", "second"] {
            cargo_build(place, version)?;
            if version == "first" {
                place.kpack("stage --output-dir dist --messages build.json")?;
            }
        }
        Ok(())
    },
    arguments: "stage --output-dir dist --messages build.json",
    verify: "verify --quiet dist",
    promise: STAGED,
};

pub(super) const STAGE_INTO_AN_EMPTY_DIRECTORY: Scenario = Scenario {
    tools: &[],
    prepare: |place| {
        fs::create_dir(place.path("dist"))?;
        cargo_build(place, "first")
    },
    arguments: "stage --output-dir dist --messages build.json",
    verify: "verify --quiet dist",
    promise: Promise::Units {
        directory: "dist",
        depth: 3,
        last: &[".kpack-stage"],
        may_be_missing: false,
    },
};

pub(super) const STAGE_PROGRAM: Scenario = Scenario {
    tools: &[],
    prepare: |place| staged(place, STAGE_BINARIES),
    arguments: STAGE_BINARIES,
    verify: "verify --quiet dist",
    promise: STAGED,
};

pub(super) const STAGE_PROGRAM_IN_PARTS: Scenario = Scenario {
    tools: &[],
    prepare: |place| staged(place, STAGE_IN_PARTS),
    arguments: STAGE_IN_PARTS,
    verify: "verify --quiet dist/gfx942",
    promise: STAGED,
};

const STAGE_BINARIES: &str = "stage prefix/bin/vec prefix/lib/libvec.so --output-dir dist";

const STAGE_IN_PARTS: &str = "stage prefix/bin/vec prefix/lib/libvec.so --output-dir dist --split";

const STAGED: Promise = Promise::Units {
    directory: "dist",
    depth: usize::MAX,
    last: &[".kpack-stage"],
    may_be_missing: false,
};

pub(super) const ARTIFACT_SPLIT: Scenario = Scenario {
    tools: &[],
    prepare: |place| artifact(place, "built", "first", &["gfx1100", "gfx942"]),
    arguments: SPLIT_BUILT,
    verify: "verify --quiet out --against built",
    promise: COMPONENTS,
};

pub(super) const ARTIFACT_SPLIT_OF_ANOTHER_VERSION: Scenario = Scenario {
    tools: &[],
    prepare: |place| {
        artifact(place, "built", "first", &["gfx1100", "gfx942"])?;
        place.kpack(SPLIT_BUILT)?;
        fs::remove_dir_all(place.path("built"))?;
        artifact(place, "built", "second", &["gfx1100", "gfx942"])
    },
    arguments: SPLIT_BUILT,
    verify: "verify --quiet out --against built",
    promise: COMPONENTS,
};

pub(super) const ARTIFACT_RECOMBINE: Scenario = Scenario {
    tools: &[],
    prepare: |place| {
        for (shard, target) in [("one", "gfx1100"), ("two", "gfx942")] {
            artifact(place, "built", "first", &[target])?;
            let output = format!("shards/{shard}");
            place.kpack(&format!(
                "artifact split --batch-artifact-parent-dir built --output-dir {output}"
            ))?;
            fs::remove_dir_all(place.path("built"))?;
        }
        for shard in ["one", "two"] {
            let data = "blas_lib_generic/stage/share/data";
            fs::write(place.path("shards").join(shard).join(data), [1; 100_000])?;
        }
        let configuration = json!({
            "primary_shard": "one",
            "architecture_groups": {
                "radeon": {"display_name": "Radeon", "architectures": ["gfx1100"]},
                "instinct": {"display_name": "Instinct", "architectures": ["gfx942"]},
            }
        });
        Ok(fs::write(place.path("packaging.json"), configuration.to_string())?)
    },
    arguments: "artifact recombine --input-shards-dir shards --output-dir out --config packaging.json",
    verify: "verify --quiet out",
    promise: COMPONENTS,
};

pub(super) const ARTIFACT_PACK_OF_ANOTHER_VERSION: Scenario = Scenario {
    tools: &[],
    prepare: |place| {
        for version in ["first", "second"] {
            split_artifact(place, version)?;
            if version == "first" {
                place.kpack(PACK)?;
            }
        }
        Ok(())
    },
    arguments: PACK,
    verify: "artifact unpack --quiet out --output-dir unpacked",
    promise: Promise::Units {
        directory: "out",
        depth: 1,
        last: &["index.json"],
        may_be_missing: true,
    },
};

pub(super) const ARTIFACT_UNPACK_OF_ANOTHER_VERSION: Scenario = Scenario {
    tools: &[],
    prepare: |place| {
        for version in ["first", "second"] {
            split_artifact(place, version)?;
            place.kpack("artifact pack split --output-dir store")?;
            if version == "first" {
                place.kpack(UNPACK)?;
            }
        }
        Ok(())
    },
    arguments: UNPACK,
    verify: "verify --quiet unpacked",
    promise: Promise::Units {
        directory: "unpacked",
        depth: 1,
        last: &["index.json"],
        may_be_missing: true,
    },
};

pub(super) const WHEEL_SPLIT_OF_ANOTHER_VERSION: Scenario = Scenario {
    tools: &[],
    prepare: |place| {
        wheel(place, "first")?;
        place.kpack(SPLIT_WHEEL)?;
        wheel(place, "second")
    },
    arguments: SPLIT_WHEEL,
    verify: "wheel verify --quiet --against dist/vec-1.0-py3-none-manylinux_2_28_x86_64.whl out/vec-1.0-py3-none-manylinux_2_28_x86_64.whl out/vec_device_gfx1100-1.0-py3-none-manylinux_2_28_x86_64.whl out/vec_device_gfx942-1.0-py3-none-manylinux_2_28_x86_64.whl",
    promise: Promise::Units { directory: "out", depth: 1, last: &[WHEEL], may_be_missing: true },
};

const PACK: &str = "artifact pack split --output-dir out";

const UNPACK: &str = "artifact unpack store --output-dir unpacked";

const WHEEL: &str = "vec-1.0-py3-none-manylinux_2_28_x86_64.whl";

const SPLIT_WHEEL: &str =
    "wheel split --output-dir out dist/vec-1.0-py3-none-manylinux_2_28_x86_64.whl";

const SPLIT_BUILT: &str = "artifact split --batch-artifact-parent-dir built --output-dir out";

/// Splits the artifact of a version into `split`.
fn split_artifact(place: &Place, version: &str) -> Result<()> {
    artifact(place, "built", version, &["gfx1100", "gfx942"])?;
    place.kpack("artifact split --batch-artifact-parent-dir built --output-dir split")?;
    Ok(fs::remove_dir_all(place.path("built"))?)
}

/// The program and the library of a prefix.
const BINARIES: [&str; 2] = ["bin/vec", "lib/libvec.so"];

/// The library for Windows.
const DLL: &str = "bin/vec.dll";

/// Two wrappers with code for three targets. Only the first version has code for the third.
fn fat(version: &str) -> FatLibrary {
    let targets = match version {
        "second" => &["gfx1100", "gfx942"][..],
        _ => &["gfx1100", "gfx942", "gfx90a"],
    };
    fat_for(version, targets)
}

fn fat_for(version: &str, targets: &[&str]) -> FatLibrary {
    let code = |kernel: &str| {
        let kernel = format!("{version} {kernel}");
        Vec::from_iter(targets.iter().map(|target| code(target, &kernel)))
    };
    FatLibrary::new().wrapper(Storage::Plain, code("add")).wrapper(Storage::Plain, code("mul"))
}

/// Two wrappers with code for two targets, as a compiler makes it.
fn with_debug_information(place: &Place) -> Result<FatLibrary> {
    let code = |kernel: &str, target: &str| {
        let source = format!("__attribute__((global)) void {kernel}(float *out) {{ *out = 1; }}\n");
        fs::write(place.path("kernel.hip"), source)?;
        let mut arguments = Vec::from_iter(COMPILE.split(' '));
        let architecture = format!("--offload-arch={target}");
        arguments.push(&architecture);
        place.run("clang-19", &arguments)?;
        anyhow::Ok((target.to_owned(), fs::read(place.path("kernel.co"))?))
    };
    let mut library = FatLibrary::new();
    for kernel in ["add", "mul"] {
        let codes = [code(kernel, "gfx1100")?, code(kernel, "gfx942")?];
        library = library.wrapper(Storage::Plain, codes);
    }
    Ok(library)
}

/// Arguments of the compiler.
const COMPILE: &str = "-x hip -nogpulib -nogpuinc -O1 -g -Xoffload-linker --build-id --cuda-device-only \
    --no-gpu-bundle-output -o kernel.co kernel.hip";

/// A version's unsplit binaries, in `prefix` and in `original`.
fn prefix(place: &Place, version: &str) -> Result<()> {
    binaries(place, fat(version))
}

/// The first version of a program and a library, staged, and the second one.
fn staged(place: &Place, arguments: &str) -> Result<()> {
    prefix(place, "first")?;
    place.kpack(arguments)?;
    prefix(place, "second")
}

fn binaries(place: &Place, library: FatLibrary) -> Result<()> {
    for (binary, kind) in BINARIES.into_iter().zip([Kind::Pie, Kind::Shared]) {
        let original = place.path("original").join(binary);
        library.clone().kind(kind).build(&original)?;
        copied(place, binary)?;
    }
    Ok(())
}

/// A DLL with more device code than a page.
fn dll(place: &Place) -> Result<()> {
    let code = |kernel: u8| -> Result<Vec<(&str, Vec<u8>)>> {
        let code = |target| Ok((target, code_object(target, &[kernel; 9000])?));
        ["gfx1100", "gfx942"].into_iter().map(code).collect()
    };
    let library = FatLibrary::new().wrapper(Storage::Plain, code(1)?);
    let library = library.wrapper(Storage::Zstd(2), code(2)?);
    let build = WindowsBuild { linker: WindowsLinker::Gnu, is_program: false, flags: &[] };
    library.build_for_windows(build, &place.path("original").join(DLL))?;
    copied(place, DLL)
}

/// Copies an unsplit binary to `prefix`.
fn copied(place: &Place, binary: &str) -> Result<()> {
    let installed = place.path("prefix").join(binary);
    fs::create_dir_all(installed.parent().context("it is in a directory")?)?;
    // Another file in the place of the old one, as installers write it.
    let _ = fs::remove_file(&installed);
    fs::copy(place.path("original").join(binary), installed)?;
    Ok(())
}

/// An artifact with a fat library, a database, a symbolic link and an empty directory.
fn artifact(place: &Place, directory: &str, version: &str, targets: &[&str]) -> Result<()> {
    let artifact = place.path(directory).join("blas_lib");
    let prefix = artifact.join("stage");
    fat_for(version, targets).build(&prefix.join("lib/librocblas.so"))?;
    std::os::unix::fs::symlink("librocblas.so", prefix.join("lib/librocblas.so.5"))?;
    fs::create_dir_all(prefix.join("share/empty"))?;
    let database = prefix.join("lib/rocblas/library");
    fs::create_dir_all(&database)?;
    for target in targets {
        let stem = format!("TensileLibrary_Type_SS_{target}");
        let object = code_object(target, version.as_bytes())?;
        fs::write(database.join(format!("{stem}.co")), object)?;
        let library = library_file(target, &[&stem])?;
        fs::write(database.join(format!("{stem}.dat")), library)?;
    }
    Ok(fs::write(artifact.join("artifact_manifest.txt"), "stage\n")?)
}

/// A version's wheel, with a fat binary and a text.
fn wheel(place: &Place, version: &str) -> Result<()> {
    let library = place.path("lib.so");
    fat_for(version, &["gfx1100", "gfx942"]).build(&library)?;
    let wheel = Wheel::new(WHEEL).member("vec/__init__.py", version).member_with_mode(
        "vec/_vec.so",
        0o755,
        fs::read(library)?,
    );
    wheel.write(&place.path("dist")).map(drop)
}

/// What Cargo leaves of a build: a program that was linked with its build script's split object, and what
/// Cargo printed about it, in `build.json`.
fn cargo_build(place: &Place, version: &str) -> Result<()> {
    let out = "target/release/build/vec-0123/out";
    let kernels = format!("{out}/kpack/vec");
    fat(version).kind(Kind::Object).build(&place.path("vec.o"))?;
    let _ = fs::remove_dir_all(place.path(&kernels));
    let mut object = place.command(&[], "object --module vec vec.o --output-dir");
    object.arg(&kernels).arg("--search-path");
    let pattern = format!("{kernels}/.kpack/vec_lib_@GFXARCH@.kpack");
    try_run(object.arg(place.path(&pattern)))?;
    fs::write(place.path(&format!("{kernels}/include-directories.txt")), "")?;
    let main = "void fixture_report(void);\nint main(void) { fixture_report(); return 0; }\n";
    fs::write(place.path("main.c"), main)?;
    let program = place.path("target/release/vec");
    let object = format!("{kernels}/vec.o");
    place.run("cc", &["-o", "target/release/vec", "main.c", &object])?;
    let lines = [
        json!({
            "reason": "build-script-executed", "package_id": "path+file:///vec#0.1.0",
            "linked_libs": ["static=kernels"],
            "linked_paths": [format!("native={}", place.path(&kernels).display())],
            "cfgs": [], "env": [], "out_dir": place.path(out),
        }),
        json!({
            "reason": "compiler-artifact", "package_id": "path+file:///vec#0.1.0",
            "manifest_path": place.path("vec/Cargo.toml"),
            "target": {"kind": ["bin"], "crate_types": ["bin"], "name": "vec",
                       "src_path": "/vec/src/main.rs", "edition": "2024", "doc": true,
                       "doctest": false, "test": true},
            "profile": {"opt_level": "3", "debuginfo": 0, "debug_assertions": false,
                        "overflow_checks": false, "test": false},
            "features": [], "filenames": [program], "executable": program, "fresh": false,
        }),
        json!({"reason": "build-finished", "success": true}),
    ];
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    Ok(fs::write(place.path("build.json"), text)?)
}

impl Scenario {
    /// How deep the directories go that it writes to without replacing them; `None` if it replaces all.
    pub(super) fn depth_of_directories(&self) -> Option<usize> {
        match self.promise {
            Promise::Binaries { .. } => Some(usize::MAX),
            Promise::Units { depth: 0, .. } => None,
            Promise::Units { .. } => Some(0),
        }
    }

    /// The directory that its promise is about.
    pub(super) fn directory(&self) -> &Path {
        Path::new(match self.promise {
            Promise::Binaries { .. } => "prefix",
            Promise::Units { directory, .. } => directory,
        })
    }
}
