//! The project without a HIP compiler: checked-in real code objects, linked by the C compiler.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use kpack_tests::fixture::{Storage, bundle};
use xshell::cmd;

use super::project::Project;
use super::reference::{CodeObject, Reference};
use super::runtime::{Program, Runtime};
use super::treatment::copy_tree;
use crate::{process, repository};

/// A translation unit: its name, the storage of its bundle, and its targets.
struct Unit {
    name: &'static str,
    storage: Storage,
    targets: &'static [&'static str],
}

const LIBRARY: [Unit; 3] = [
    Unit {
        name: "add",
        storage: Storage::Plain,
        targets: &["gfx1100", "gfx942", "gfx90a:xnack+", "gfx90a:xnack-"],
    },
    Unit {
        name: "multiply",
        storage: Storage::Zstd(2),
        // A GPU of the second target finds this kernel in one archive, and all others in the next.
        targets: &["gfx1100", "gfx942:xnack-"],
    },
    Unit {
        name: "dot",
        storage: Storage::Zstd(3),
        targets: &["gfx1101", "gfx11-generic", "gfx90a:xnack+", "gfx90a:xnack-"],
    },
];

const APP: [Unit; 1] = [Unit {
    name: "app",
    storage: Storage::Plain,
    targets: &["gfx1100", "gfx1101", "gfx90a:xnack+"],
}];

/// Builds the project below `work`, and splits it with `kpack install`.
///
/// # Errors
/// The C compiler is missing or fails, or an unsplit program does not run.
pub(super) fn build(runtime: &Runtime, helper: &Path, work: &Path) -> Result<Project> {
    process::step("Linking embedded code objects with cc");
    let build = work.join("build");
    let fat = work.join("fat");
    for directory in [&build, &fat.join("lib"), &fat.join("bin")] {
        fs::create_dir_all(directory)?;
    }
    let sources = repository::root().join("tests/e2e/embedded");
    let stub = runtime.prefix.join("lib");

    let library = PathBuf::from("lib/libvec.so.1.2");
    let objects = device_objects(&LIBRARY, &build)?;
    let (output, source) = (fat.join(&library), sources.join("vec.c"));
    cmd!(process::shell(),
        "cc -g -O2 -shared -fPIC -Wl,-soname,libvec.so.1 -o {output} {source} {objects...} -L{stub} -lamdhip64"
    )
    .run()?;
    for link in ["libvec.so.1", "libvec.so"] {
        std::os::unix::fs::symlink("libvec.so.1.2", fat.join("lib").join(link))?;
    }

    let mut programs = Vec::new();
    let objects = &device_objects(&APP, &build)?;
    for (name, flags) in [
        ("vecapp", ["-pie", "-fPIE"]),
        ("vecapp_nopie", ["-no-pie", "-fno-pie"]),
    ] {
        let executable = PathBuf::from("bin").join(name);
        let (output, source) = (fat.join(&executable), sources.join("app.c"));
        let (lib, run_path) = (fat.join("lib"), "$ORIGIN/../lib");
        cmd!(process::shell(),
            "cc -g -O2 {flags...} -o {output} {source} {objects...} -L{lib} -lvec -L{stub} -lamdhip64 -Wl,-rpath,{run_path}"
        )
        .run()?;
        programs.push(Program {
            executable,
            libraries: Vec::new(),
        });
    }

    let mut reference = Reference::default();
    for program in &programs {
        let scratch = work.join("fat-run");
        let observation = runtime.run(&fat, program, "gfx1100", &scratch)?;
        reference.add(&observation, |(binary, index), dumped| {
            let units: &[Unit] = if *binary == library { &LIBRARY } else { &APP };
            let unit = &units[usize::try_from(*index)?];
            ensure!(
                fs::read(dumped)? == fs::read(build.join(format!("{}.bundle", unit.name)))?,
                "wrapper {index} of {} does not point to the bundle of {}",
                binary.display(),
                unit.name
            );
            let code_objects = unit.code_objects()?.into_iter();
            Ok(code_objects
                .map(|(target, bytes)| (target, CodeObject::of(&bytes)))
                .collect())
        })?;
    }

    process::step("Splitting it with kpack install");
    let split = work.join("split");
    copy_tree(&fat, &split)?;
    super::install(helper, &split, reference.binaries())?;
    Ok(Project {
        fat,
        split,
        split_by: "kpack install",
        programs,
        reference,
        debugged: (library, "vec_add"),
    })
}

impl Unit {
    fn code_objects(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let directory = repository::root().join("tests/fixtures/code-objects");
        self.targets
            .iter()
            .map(|target| {
                let file = directory.join(format!("{}.{target}.hsaco", self.name));
                let bytes = fs::read(&file).with_context(|| file.display().to_string())?;
                Ok(((*target).to_owned(), bytes))
            })
            .collect()
    }
}

/// Assembles wrapper and bundle of each unit.
fn device_objects(units: &[Unit], build: &Path) -> Result<Vec<PathBuf>> {
    let object = |unit: &Unit| {
        let bundle = bundle(unit.storage, &unit.code_objects()?)?;
        assemble(unit.name, &bundle, build)
    };
    units.iter().map(object).collect()
}

/// Assembles the wrapper of a translation unit with its bundle, which stays in
/// `<build>/<unit>.bundle`.
pub(super) fn assemble(unit: &str, bundle: &[u8], build: &Path) -> Result<PathBuf> {
    let source = repository::root().join("tests/e2e/embedded/device.S");
    let file = build.join(format!("{unit}.bundle"));
    fs::write(&file, bundle)?;
    let object = build.join(format!("{unit}.o"));
    let name = format!("-DUNIT={unit}");
    let place = format!("-DBUNDLE=\"{}\"", file.display());
    process::run!("cc {name} {place} -c -o {object} {source}")?;
    Ok(object)
}
