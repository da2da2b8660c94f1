//! Modules: device code without host code, which a program loads itself (`hipModuleLoadData`).
//!
//! Each source is compiled for each target, and the code objects of a source become one bundle. The generated file
//! `modules.rs` has the bundles and the names of their kernels; the crate `kpack` includes it.
//!
//! As for libraries, everything is made in a hidden directory, which is renamed when complete. Code objects are kept
//! beside it, so that the next build compiles only what has changed, even if this one fails.

mod compile;
mod contents;
mod foreign;
mod generated;
mod names;
mod reuse;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use kpack_core::publish::{NewNames, Stage};
use kpack_core::staging::{INCLUDE_DIRECTORIES, MODULES_VARIABLE, NATIVE_TARGETS};
use kpack_core::{Error, shown};
use kpack_format::TargetId;

use super::directives;
use super::directories::BuildDirectories;
use super::environment::Environment;
use super::flags::Flags;
use super::inputs;
use super::options::Hip;
use super::skip;
use super::targets::{self, Targets};
use super::toolchain::Toolchain;
use compile::Compilation;
use contents::{Contents, Part};
use generated::BundleLocation;
use names::{ModuleName, Source};
use reuse::{ObjectCache, Pair};

/// The generated file.
const GENERATED: &str = "modules.rs";

/// Modules of device code, which a build script has compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Modules {
    directory: PathBuf,
    directives: Vec<String>,
}

impl Modules {
    /// The generated file `modules.rs`, which `kpack::include_modules!` includes.
    pub fn path(&self) -> PathBuf {
        self.directory.join(GENERATED)
    }

    /// The directory of the generated file and of the bundles, `NAME.hipfb`.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The `cargo::` directives, one per line.
    pub fn directives(&self) -> &[String] {
        &self.directives
    }
}

/// Everything known before the first file is written.
pub(super) struct ModulesBuild<'a> {
    hip: &'a Hip,
    name: &'a str,
    environment: &'a Environment,
    sources: Vec<Source<'a>>,
    /// The names of all modules, sorted.
    names: Vec<ModuleName>,
    directories: BuildDirectories,
}

/// What a build reports to Cargo.
#[derive(Default)]
struct Report {
    /// The files that it read.
    files: BTreeSet<PathBuf>,
    /// Header directories outside of the package and the system.
    include_directories: Vec<PathBuf>,
    /// The targets of this machine's GPUs, if the build compiles for them because no target is specified.
    native: Vec<TargetId>,
    warnings: Vec<String>,
}

impl<'a> ModulesBuild<'a> {
    pub(super) fn new(
        hip: &'a Hip,
        name: &'a str,
        environment: &'a Environment,
    ) -> Result<Self, Error> {
        names::check_module_of_rust(name)?;
        if let Some(object) = hip.objects.first() {
            return Err(Error::usage(format!(
                "modules `{name}` have no host code, so `object` cannot add {}; add device code with \
                 `code_object` or `bundle`",
                shown(object)
            )));
        }
        let sources = names::of_sources(&hip.files)?;
        let names = names::all(&sources, &hip.device_files)?;
        if names.is_empty() {
            return Err(Error::usage(format!(
                "modules `{name}` have no sources; add them with `file`, or device code with \
                 `code_object` or `bundle`"
            )));
        }
        let directories = BuildDirectories::new(hip, name, environment)?;
        Ok(Self { hip, name, environment, sources, names, directories })
    }

    /// Builds the modules. On failure the previous build stays.
    pub(super) fn run(&self) -> Result<Modules, Error> {
        let cannot_write = |error| self.directories.explain(error);
        let mut report = Report::default();
        let skipped = skip::reason(self.hip, self.environment);
        if skipped.is_none() {
            inputs::check(self.hip, &self.directories.package)?;
        }
        let stage = Stage::lock(self.directories.above_output(), self.name)
            .map_err(cannot_write)?
            .without_flushes();
        // Recover from an interrupted build.
        stage.recover(self.name.as_ref()).map_err(cannot_write)?;
        stage.make(self.name).map_err(cannot_write)?;
        let tree = Stage::beside(&self.directories.output).join(self.name);
        let write = |name: &str, bytes: &[u8]| {
            let path = tree.join(name);
            fs::write(&path, bytes).map_err(|e| cannot_write(Error::io(&path, "write", e)))
        };
        match &skipped {
            Some(reason) => {
                write(GENERATED, generated::skipped(self.name, &self.names, reason).as_bytes())?;
            }
            None => {
                let cache = ObjectCache::open(&stage, self.name).map_err(cannot_write)?;
                let contents = self.contents(&stage, &cache, &mut report)?;
                for module in contents.iter().filter(|module| module.has_code()) {
                    write(&module.file_name(), &module.bundle())?;
                }
                let location = match self.hip.out_dir {
                    Some(_) => BundleLocation::At(&self.directories.output),
                    None => BundleLocation::InOutDir,
                };
                let includes = report.include_directories.iter();
                let includes = includes.map(|path| format!("{}\n", path.display()));
                write(INCLUDE_DIRECTORIES, includes.collect::<String>().as_bytes())?;
                if !report.native.is_empty() {
                    let targets = report.native.iter().map(|target| format!("{target}\n"));
                    write(NATIVE_TARGETS, targets.collect::<String>().as_bytes())?;
                }
                write(GENERATED, generated::compiled(self.name, &contents, location)?.as_bytes())?;
            }
        }
        stage.publish(&NewNames::new(&[self.name])).map_err(cannot_write)?;
        Ok(Modules {
            directory: self.directories.output.clone(),
            directives: self.directives(&report),
        })
    }

    /// The modules' device code, compiled or kept from the build before or given.
    fn contents(
        &self,
        stage: &Stage,
        cache: &ObjectCache,
        report: &mut Report,
    ) -> Result<Vec<Contents>, Error> {
        let mut contents: Vec<Contents> = self.names.iter().cloned().map(Contents::new).collect();
        let mut add = |name: &ModuleName, part: Part| {
            let module = contents.iter_mut().find(|module| module.name == *name);
            module.map_or(Ok(()), |module| module.add(part))
        };
        // Before the compiler, which takes longer.
        let mut given = Vec::new();
        for file in &self.hip.device_files {
            report.files.insert(file.path.clone());
            let parts = foreign::read(file, &self.directories.package, &mut report.warnings)?;
            given.push((ModuleName::new(&file.module)?, parts));
        }
        // The targets that device code of others should be for: those that are named, or else compiled for.
        let mut targets = if self.sources.is_empty() {
            // The GPUs of this machine say nothing of the code.
            targets::named(self.hip, self.environment)?
        } else {
            let targets = Targets::new(self.hip, self.environment)?;
            for (name, part) in self.compile(stage, cache, &targets, report)? {
                add(&name, part)?;
            }
            targets.all().to_vec()
        };
        targets.retain(|target| !target.is_spirv());
        for (name, parts) in given {
            for part in parts {
                add(&name, part)?;
            }
        }
        for module in &contents {
            // The compiler makes code for all targets, unless `file_for` says otherwise, which is a decision.
            let is_given = !self.sources.iter().any(|source| source.name == module.name);
            report.warnings.extend(module.warnings(if is_given { &targets } else { &[] }));
        }
        Ok(contents)
    }

    /// Compiles what has changed. Returns the code of all sources for all targets.
    fn compile(
        &self,
        stage: &Stage,
        cache: &ObjectCache,
        targets: &Targets,
        report: &mut Report,
    ) -> Result<Vec<(ModuleName, Part)>, Error> {
        report.warnings.extend(targets.warning());
        report.native = targets.native().unwrap_or_default().to_vec();
        let of_gpus = self.of_gpus(targets, report)?;
        let toolchain = Toolchain::choose(self.hip, self.environment, &of_gpus)?;
        let hidden = Stage::beside(&self.directories.output);
        let mut build = toolchain.compiler.build(self.environment, &hidden);
        build.cargo_metadata(!self.hip.silent);
        let flags = Flags::new(self.hip, build, &toolchain, &self.directories)?;
        report.include_directories.clone_from(&flags.include_directories);
        let compilation = Compilation {
            toolchain: &toolchain,
            flags: &flags.device,
            package: &self.directories.package,
            variables: self.environment.all(),
            directory: stage.directory(),
            cache,
        };
        let pairs: Vec<Pair<'_>> = self
            .sources
            .iter()
            .flat_map(|source| {
                targets.of(source.path).into_iter().map(move |target| (source, target))
            })
            .filter(|(_, target)| !target.is_spirv())
            .map(|(source, target)| Pair { source, target })
            .collect();
        let libraries = compilation.device_libraries(&of_gpus);
        // The headers of another ROCm may be the same.
        report.files.extend(libraries.directories.iter().cloned());
        let compiled = compilation.run(self.name, &pairs, &libraries)?;
        let mut parts = Vec::new();
        let mut warned = BTreeSet::new();
        for (pair, object) in pairs.iter().zip(compiled) {
            report.files.insert(pair.source.path.to_owned());
            report.files.extend(object.inputs);
            // Most warnings are the same for all targets.
            if warned.insert(object.warnings.clone()) {
                report.warnings.extend(object.warnings);
            }
            let origin = shown(pair.source.path).to_string();
            parts.push((pair.source.name.clone(), Part::new(origin, &pair.target, object.code)?));
        }
        cache.remove_others(&pairs)?;
        Ok(parts)
    }

    /// The targets to compile for. Programs load modules for their GPU, not SPIR-V.
    fn of_gpus(&self, targets: &Targets, report: &mut Report) -> Result<Vec<TargetId>, Error> {
        let (spirv, of_gpus): (Vec<TargetId>, Vec<TargetId>) =
            targets.all().iter().cloned().partition(TargetId::is_spirv);
        let Some(spirv) = spirv.first() else {
            return Ok(of_gpus);
        };
        let name = self.name;
        if of_gpus.is_empty() {
            return Err(Error::usage(format!(
                "modules `{name}`: {spirv} is the only target, and a program loads modules for its \
                 GPU, not SPIR-V; name the targets of GPUs"
            )));
        }
        report.warnings.push(format!(
            "modules `{name}` have no code for {spirv}, because a program loads modules for its GPU"
        ));
        Ok(of_gpus)
    }

    /// The directives for Cargo. The program is linked with nothing, so a variable tells `kpack stage` of the modules.
    fn directives(&self, report: &Report) -> Vec<String> {
        let mut all = directives::watch(&report.files, self.environment);
        all.extend(report.warnings.iter().map(|text| directives::warning(text)));
        let directory = self.directories.output.display();
        let variable = format!("rustc-env={MODULES_VARIABLE}{}={directory}", self.name);
        all.push(directives::directive(variable));
        all
    }
}
