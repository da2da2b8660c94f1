//! Wheels of the Python package index, without dependencies on other packages.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow, bail, ensure};
use kpack_tests::process::try_run;
use kpack_tests::require::{checked, fetched, skip};
use kpack_tests::{corpus, python};

use super::environment::{Environment, Installer};
use super::{files, has_tools, load, name, split, tools};
use crate::hip::check::Checker;
use crate::hip::reference::Reference;
use crate::hip::runtime::{Program, Runtime};
use crate::hip::stub_libraries;
use crate::support::{prefix, run, work};

/// The tests of a package.
macro_rules! package {
    ($module:ident, $package:literal) => {
        mod $module {
            use super::*;
            static SPLIT: OnceLock<Result<Split>> = OnceLock::new();
            package! {
                $package;
                sizes: Split::sizes;
                other_tools: Split::other_tools;
                pip: |split| split.installed(Installer::Pip);
                pip_target: |split| split.installed(Installer::PipTarget);
                uv_with_copies: |split| split.installed(Installer::Uv("copy"));
                uv_with_hard_links: |split| split.installed(Installer::Uv("hardlink"));
                uv_with_symbolic_links: |split| split.installed(Installer::Uv("symlink"));
                uv_target: |split| split.installed(Installer::UvTarget);
            }
        }
    };
    ($package:literal; $($name:ident: $check:expr;)*) => {
        $(
            #[test]
            #[ignore = "fetches a wheel, and tools for wheels"]
            fn $name() -> Result<()> {
                let check: fn(&Split) -> Result<String> = $check;
                let Some(fat) = has_tools().then(|| fetched(corpus::wheel($package))).flatten()
                else {
                    return Ok(());
                };
                let split = SPLIT.get_or_init(|| Split::new($package, fat));
                checked(&check(split.as_ref().map_err(|error| anyhow!("{error:#}"))?)?);
                Ok(())
            }
        )*
    };
}

package!(torch_scatter, "torch-scatter-rocm");
package!(pyg_lib, "pyg-lib-rocm");
package!(cyllama, "cyllama-rocm");
package!(bitsandbytes, "bitsandbytes");

/// What the dynamic linker says where a library needs another one in a newer version.
const TOO_OLD: &str = "' not found (required by";

/// A wheel, and what it is split into.
struct Split {
    package: &'static str,
    fat: PathBuf,
    output: PathBuf,
    work: PathBuf,
    libraries: Vec<Library>,
}

impl Split {
    fn new(package: &'static str, fat: PathBuf) -> Result<Self> {
        let work = work(package);
        let output = work.join("split");
        let libraries = Library::of(&fat, &work).or_else(|error| {
            let message = format!("{error:#}");
            let line = message.lines().find(|line| line.contains(TOO_OLD)).context(error)?;
            skip(&format!("{package}, loaded: this machine is too old for it: {line}"));
            anyhow::Ok(Vec::new())
        })?;
        split(&[&fat], &output)?;
        Ok(Self { package, fat, output, work, libraries })
    }

    fn host(&self) -> PathBuf {
        self.output.join(name(&self.fat))
    }

    fn devices(&self) -> Result<Vec<PathBuf>> {
        let mut devices = files(&self.output)?;
        devices.retain(|file| *file != self.host());
        Ok(devices)
    }

    /// A device wheel is its archives, the host's description and licences, and little more; and the
    /// host is about as small as a zip file of it.
    fn sizes(&self) -> Result<String> {
        let work = self.work.join("unpacked");
        let mut sizes = Vec::new();
        for wheel in self.devices()? {
            let unpacked = work.join(name(&wheel));
            python::unpack(&wheel, &unpacked)?;
            let is_theirs = |path: &Path| {
                path.extension().is_some_and(|found| found == "kpack")
                    || path.ends_with("METADATA")
                    || path.iter().any(|part| part == "licenses")
            };
            let files = tree(&unpacked).filter(|(path, _)| is_theirs(path));
            let files: u64 = files.map(|(_, size)| size).sum();
            let size = wheel.metadata()?.len();
            ensure!(
                size <= files + 4096,
                "{} has {size} bytes; its archives, description and licences {files}",
                name(&wheel)
            );
            sizes.push(size);
        }
        let (host, unpacked) = (self.host(), work.join("host"));
        python::unpack(&host, &unpacked)?;
        let plain = work.join("plain.zip");
        let script = "import sys, zipfile, pathlib\n\
             root = pathlib.Path(sys.argv[2])\n\
             with zipfile.ZipFile(sys.argv[1], 'w', zipfile.ZIP_DEFLATED, compresslevel=6) as file:\n\
             \x20   for path in sorted(root.rglob('*')):\n\
             \x20       file.write(path, path.relative_to(root))\n";
        let mut zip = tools().program("python", &["-c", script]);
        try_run(zip.arg(&plain).arg(unpacked))?;
        let plain = plain.metadata()?.len();
        fs::remove_dir_all(&work)?;
        let (host, plain) = (host.metadata()?.len(), plain);
        // Members that did not change stay as their builder compressed them.
        ensure!(
            host <= plain + plain / 100,
            "the host wheel has {host} bytes, and a zip file of the same tree {plain}"
        );
        let megabytes = |bytes: u64| format!("{:.1}", bytes as f64 / 1e6);
        let (least, most) = (sizes.iter().min(), sizes.iter().max());
        Ok(format!(
            "{} MB: host {}, {} device wheels {}–{}; all {}",
            megabytes(self.fat.metadata()?.len()),
            megabytes(host),
            sizes.len(),
            megabytes(*least.context("no device wheel")?),
            megabytes(*most.context("no device wheel")?),
            megabytes(host + sizes.iter().sum::<u64>())
        ))
    }

    /// What other tools say of the wheels, they must say of the fat wheel already.
    fn other_tools(&self) -> Result<String> {
        let unpacked = self.work.join("by-wheel");
        let work = unpacked.to_str().context("a path that is not UTF-8")?;
        let tools = tools();
        let devices = self.devices()?;
        let mut said = Vec::new();
        // auditwheel has nothing to look at in a device wheel.
        let commands: [(&str, &[&str], bool); 4] = [
            ("wheel", &["unpack", "--dest", work], true),
            // Device wheels add files to the host's packages, and have no modules.
            ("check-wheel-contents", &["--ignore", "W010"], true),
            ("twine", &["check", "--strict"], true),
            ("auditwheel", &["show"], false),
        ];
        for (program, arguments, of_devices) in commands {
            let run = |wheel: &Path| {
                try_run(tools.program(program, arguments).arg(wheel)).with_context(|| name(wheel))
            };
            let Err(known) = run(&self.fat) else {
                run(&self.host())?;
                if of_devices {
                    devices.iter().try_for_each(|wheel| run(wheel).map(drop))?;
                }
                said.push(program.to_owned());
                continue;
            };
            let codes = |error: &anyhow::Error| -> BTreeSet<String> {
                let text = format!("{error:#}");
                let words = text.split_whitespace().map(|word| word.trim_end_matches(':'));
                words.filter(|word| is_code(word)).map(str::to_owned).collect()
            };
            let known = codes(&known);
            for wheel in devices.iter().filter(|_| of_devices).chain([&self.host()]) {
                if let Err(error) = run(wheel) {
                    let new: Vec<_> = codes(&error).difference(&known).cloned().collect();
                    if !new.is_empty() {
                        return Err(error);
                    }
                }
            }
            said.push(format!("{program} (as of the fat wheel)"));
        }
        fs::remove_dir_all(&unpacked)?;
        Ok(said.join(", "))
    }

    /// A processor that each library has code for.
    fn processor(&self) -> Result<String> {
        for device in self.devices()? {
            let device = name(&device);
            let named = device.split_once("_device_").and_then(|(_, rest)| rest.split_once('-'));
            let (processor, _) = named.context("the name of a device wheel")?;
            let has = |target: &str| target.split(':').next() == Some(processor);
            if self.libraries.iter().all(|library| library.reference.targets().into_iter().any(has))
            {
                return Ok(processor.to_owned());
            }
        }
        bail!("no device wheel is for all libraries")
    }

    /// Installs the host with one device wheel, verifies that, and loads all its device code.
    fn installed(&self, installer: Installer) -> Result<String> {
        let directory = self.work.join(format!("{installer:?}").replace(['(', ')', '"'], ""));
        let environment = Environment::new(tools(), installer, &directory)?;
        let processor = self.processor()?;
        let requirements =
            [self.package.to_owned(), format!("{}-device-{processor}", self.package)];
        // What they depend on is no matter here.
        environment.install_each(&self.output, &requirements, &["--no-deps"])?;
        let packages = &environment.packages;
        let kpack = prefix().join("bin/kpack");
        run!("{kpack} verify {packages} --arch {processor}")?;
        let mut loaded = 0;
        for library in &self.libraries {
            for target in library.reference.targets() {
                if target.split(':').next() == Some(&processor) {
                    loaded += library.loads(packages, target)?;
                }
            }
        }
        ensure!(loaded > 0 || self.libraries.is_empty(), "no code object was loaded");
        fs::remove_dir_all(directory)?;
        Ok(match loaded {
            0 => format!("verified for {processor}"),
            _ => format!("verified and loaded for {processor}: {loaded} code objects"),
        })
    }
}

/// check-wheel-contents' names of findings, as `W005`.
fn is_code(word: &str) -> bool {
    word.len() == 4
        && word.starts_with('W')
        && word.bytes().skip(1).all(|byte| byte.is_ascii_digit())
}

/// A library with device code, and what the unsplit one has for each wrapper.
struct Library {
    runtime: Runtime,
    program: [Program; 1],
    reference: Reference,
}

impl Library {
    /// All libraries of a fat wheel.
    fn of(fat: &Path, work: &Path) -> Result<Vec<Self>> {
        let prefix = work.join("fat");
        python::unpack(fat, &prefix)?;
        let scratch = work.join("scratch");
        let mut libraries = Vec::new();
        for file in corpus::with_device_code(&prefix)? {
            let stubs = work.join("stubs").join(name(&file));
            let runtime = stub_libraries::build(&file, &stubs)?;
            let program = Program {
                executable: load().to_owned(),
                libraries: vec![file.strip_prefix(&prefix)?.to_owned()],
            };
            let mut reference = Reference::default();
            let seen = runtime.run(&prefix, &program, "gfx90a", &scratch)?;
            reference.add(&seen)?;
            libraries.push(Self { runtime, program: [program], reference });
        }
        ensure!(!libraries.is_empty(), "{} has no device code", fat.display());
        fs::remove_dir_all(prefix)?;
        Ok(libraries)
    }

    /// How many code objects are loaded for a GPU, all of them those of the unsplit library.
    fn loads(&self, packages: &Path, target: &str) -> Result<usize> {
        let checker = Checker {
            runtime: &self.runtime,
            programs: &self.program,
            reference: &self.reference,
            // Other tests use the same library.
            scratch: packages.with_extension("scratch"),
        };
        let loaded = checker.observe(packages, target)?;
        fs::remove_dir_all(checker.scratch)?;
        Ok(loaded)
    }
}

/// The files below a directory, and their sizes.
fn tree(directory: &Path) -> impl Iterator<Item = (PathBuf, u64)> {
    let entries = walkdir::WalkDir::new(directory).into_iter().flatten();
    let files = entries.filter(|entry| entry.file_type().is_file());
    files.filter_map(|entry| Some((entry.path().to_owned(), entry.metadata().ok()?.len())))
}
