//! HIP kernels of a Rust crate, compiled and split by its build script.
//!
//! A build script runs before its crate is linked, so it can never split the linked program; but it
//! can split the objects that it compiles ([`object_file`](crate::object_file)), and hand the linker
//! a library of host code. The device code is in archives in `OUT_DIR`, and the program finds it
//! there as long as it is run by Cargo; staging makes a release of it that can be moved.

mod compile;
mod compiler;
mod environment;
mod library;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::archive::Scheme;
use kpack_format::marker::GFXARCH;

use crate::Error;
use crate::kpack_dir::check_names;
use crate::kpack_dir::{Staged, group_name};
use crate::object_file;
use compile::Job;
use environment::Environment;

pub use library::Library;

/// The directory in `OUT_DIR` in which each library has one of its own.
pub(crate) const DIRECTORY: &str = "kpack";
/// The component of what build scripts make.
pub(crate) const COMPONENT: &str = "lib";

/// Compiles HIP sources into a library without device code, and archives with it.
///
/// `build.rs`:
///
/// ```no_run
/// kpack_build::Hip::new()
///     .file("src/vector.hip")
///     .include("include")
///     .offload_archs(["gfx1100", "gfx942"])
///     .compile("vector");
/// ```
///
/// | variable | what for |
/// | --- | --- |
/// | `HIPCXX` | the compiler |
/// | `ROCM_PATH` | the ROCm installation: its compiler, headers, and library `amdhip64` |
/// | `HIPFLAGS` | further flags, separated by spaces |
/// | `KPACK_OFFLOAD_ARCH` | GPU targets where the script names none, separated by `;`, `,` or spaces |
#[derive(Debug, Clone, Default)]
pub struct Hip {
    files: Vec<PathBuf>,
    includes: Vec<PathBuf>,
    defines: Vec<(String, Option<String>)>,
    flags: Vec<OsString>,
    offload_archs: Vec<String>,
    standard: Option<String>,
    module: Option<String>,
    compiler: Option<PathBuf>,
    out_dir: Option<PathBuf>,
    silent: bool,
    without_runtime: bool,
    without_standard_library: bool,
    /// Instead of the process's own.
    environment: Option<BTreeMap<String, OsString>>,
}

/// What a build is to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Static,
    Shared,
}

impl Hip {
    /// A build with nothing to compile yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a source.
    pub fn file(&mut self, path: impl AsRef<Path>) -> &mut Self {
        self.files.push(path.as_ref().to_owned());
        self
    }

    /// Adds sources.
    pub fn files(&mut self, paths: impl IntoIterator<Item = impl AsRef<Path>>) -> &mut Self {
        for path in paths {
            self.file(path);
        }
        self
    }

    /// Adds a directory to look for headers in.
    pub fn include(&mut self, directory: impl AsRef<Path>) -> &mut Self {
        self.includes.push(directory.as_ref().to_owned());
        self
    }

    /// Adds directories to look for headers in.
    pub fn includes(&mut self, paths: impl IntoIterator<Item = impl AsRef<Path>>) -> &mut Self {
        for path in paths {
            self.include(path);
        }
        self
    }

    /// Defines a macro, with or without a value.
    pub fn define<'a>(
        &mut self,
        name: impl Into<String>,
        value: impl Into<Option<&'a str>>,
    ) -> &mut Self {
        let value = value.into().map(str::to_owned);
        self.defines.push((name.into(), value));
        self
    }

    /// Adds a flag for the compiler.
    pub fn flag(&mut self, flag: impl AsRef<OsStr>) -> &mut Self {
        self.flags.push(flag.as_ref().to_owned());
        self
    }

    /// Adds flags for the compiler.
    pub fn flags(&mut self, flags: impl IntoIterator<Item = impl AsRef<OsStr>>) -> &mut Self {
        for flag in flags {
            self.flag(flag);
        }
        self
    }

    /// The C++ standard, such as `c++17`; otherwise the compiler's own.
    pub fn std(&mut self, standard: impl Into<String>) -> &mut Self {
        self.standard = Some(standard.into());
        self
    }

    /// Adds a GPU target, such as `gfx1100` or `gfx90a:xnack+`, or a list of them with semicolons, as
    /// CMake has it. Where none is added, `KPACK_OFFLOAD_ARCH` names them.
    pub fn offload_arch(&mut self, target: impl Into<String>) -> &mut Self {
        self.offload_archs.push(target.into());
        self
    }

    /// Adds GPU targets.
    pub fn offload_archs(
        &mut self,
        targets: impl IntoIterator<Item = impl Into<String>>,
    ) -> &mut Self {
        for target in targets {
            self.offload_arch(target);
        }
        self
    }

    /// The module that the archives are named after; by default the package. No other package that is
    /// linked into the same program may have it.
    pub fn module(&mut self, name: impl Into<String>) -> &mut Self {
        self.module = Some(name.into());
        self
    }

    /// The compiler, which otherwise is looked for: `HIPCXX`, in `ROCM_PATH`, on the `PATH`, in
    /// `/opt/rocm`.
    pub fn compiler(&mut self, path: impl AsRef<Path>) -> &mut Self {
        self.compiler = Some(path.as_ref().to_owned());
        self
    }

    /// Where to build, instead of `OUT_DIR`.
    pub fn out_dir(&mut self, directory: impl AsRef<Path>) -> &mut Self {
        self.out_dir = Some(directory.as_ref().to_owned());
        self
    }

    /// Whether Cargo is told what was built; it is by default. [`Library::directives`] has what
    /// would be said.
    pub fn cargo_metadata(&mut self, tell: bool) -> &mut Self {
        self.silent = !tell;
        self
    }

    /// Whether the program is linked with the HIP runtime, `amdhip64`; it is by default.
    pub fn link_runtime(&mut self, link: bool) -> &mut Self {
        self.without_runtime = !link;
        self
    }

    /// Whether the program is linked with the C++ standard library, `stdc++`; it is by default.
    pub fn link_standard_library(&mut self, link: bool) -> &mut Self {
        self.without_standard_library = !link;
        self
    }

    /// Variables to be read instead of the process's environment: for tests, and for building outside
    /// of a build script.
    pub fn environment(
        &mut self,
        variables: impl IntoIterator<Item = (impl Into<String>, impl Into<OsString>)>,
    ) -> &mut Self {
        let variables = variables.into_iter();
        let variables = variables.map(|(name, value)| (name.into(), value.into()));
        self.environment = Some(variables.collect());
        self
    }

    /// Makes the static library `lib<name>.a`.
    ///
    /// # Panics
    /// As [`try_compile`](Self::try_compile) fails.
    #[track_caller]
    pub fn compile(&self, name: &str) -> Library {
        match self.try_compile(name) {
            Ok(library) => library,
            Err(error) => panic!("\n\n{}\n", error.in_one_line()),
        }
    }

    /// Makes the static library `lib<name>.a`, and the archives with its device code.
    ///
    /// # Errors
    /// [`Error::Compiler`] where there is no compiler, or the sources do not compile;
    /// [`Error::Usage`] for what makes no sense; [`Error::Refused`] for objects that cannot be split
    /// before the link; [`Error::Io`].
    pub fn try_compile(&self, name: &str) -> Result<Library, Error> {
        self.build(name, Kind::Static)
    }

    /// Makes the shared library `lib<name>.so`.
    ///
    /// # Panics
    /// As [`try_shared`](Self::try_shared) fails.
    #[track_caller]
    pub fn shared(&self, name: &str) -> Library {
        match self.try_shared(name) {
            Ok(library) => library,
            Err(error) => panic!("\n\n{}\n", error.in_one_line()),
        }
    }

    /// Makes the shared library `lib<name>.so` and the archives with its device code. A program that
    /// Cargo runs finds it; one that was staged does with the run path `$ORIGIN/../lib`, which only
    /// its own package can give it.
    ///
    /// # Errors
    /// As [`try_compile`](Self::try_compile).
    pub fn try_shared(&self, name: &str) -> Result<Library, Error> {
        self.build(name, Kind::Shared)
    }

    fn build(&self, name: &str, kind: Kind) -> Result<Library, Error> {
        let environment = match &self.environment {
            Some(variables) => Environment::of(variables.clone()),
            None => Environment::of_process(),
        };
        let setup = Setup::new(self, name, &environment)?;
        let library = setup.build(kind, &environment)?;
        if !self.silent {
            library.emit();
        }
        Ok(library)
    }
}

/// Everything that is known before the first file is written.
struct Setup<'a> {
    hip: &'a Hip,
    name: &'a str,
    module: String,
    targets: Vec<TargetId>,
    compiler: PathBuf,
    /// The package's directory, in which the compiler runs.
    package: PathBuf,
    /// Where everything goes.
    directory: PathBuf,
    flags: Vec<OsString>,
    threads: NonZeroUsize,
}

impl<'a> Setup<'a> {
    fn new(hip: &'a Hip, name: &'a str, environment: &Environment) -> Result<Self, Error> {
        if hip.files.is_empty() {
            return Err(Error::usage(format!(
                "library `{name}` has no sources: name them with `file`"
            )));
        }
        let module = match &hip.module {
            Some(module) => module.clone(),
            None => environment
                .text("CARGO_PKG_NAME")
                .unwrap_or_else(|| name.to_owned()),
        };
        check_names(&module, COMPONENT)?;
        check_names(name, COMPONENT)?;
        let targets = targets(hip, environment)?;
        let package = environment.directory("CARGO_MANIFEST_DIR")?;
        let out_dir = match &hip.out_dir {
            Some(directory) => directory.clone(),
            None => environment.directory("OUT_DIR")?,
        };
        let compiler = match &hip.compiler {
            Some(compiler) => compiler.clone(),
            None => compiler::find(environment)?,
        };
        let threads = environment
            .text("NUM_JOBS")
            .and_then(|jobs| jobs.parse().ok());
        let mut setup = Self {
            hip,
            name,
            module,
            targets,
            compiler,
            package,
            directory: out_dir.join(DIRECTORY).join(name),
            flags: Vec::new(),
            threads: threads.unwrap_or(NonZeroUsize::MIN),
        };
        setup.flags = setup.common_flags(environment);
        Ok(setup)
    }

    /// The flags of every source.
    fn common_flags(&self, environment: &Environment) -> Vec<OsString> {
        let hip = self.hip;
        let mut flags: Vec<OsString> = vec!["-x".into(), "hip".into(), "-fPIC".into()];
        let target = environment.text("TARGET");
        if let Some(target) =
            target.filter(|target| environment.text("HOST").as_ref() != Some(target))
        {
            flags.push(format!("--target={target}").into());
        }
        let level = environment
            .text("OPT_LEVEL")
            .unwrap_or_else(|| "0".to_owned());
        flags.push(format!("-O{level}").into());
        if environment
            .text("DEBUG")
            .is_some_and(|debug| debug != "false" && debug != "0" && debug != "none")
        {
            flags.push("-g".into());
        }
        // No path of this build in debug information and messages.
        let mut map = |from: &Path| {
            let mut flag = OsString::from("-ffile-prefix-map=");
            flag.push(from);
            flag.push("=.");
            flags.push(flag);
        };
        map(&self.directory);
        map(&self.package);
        flags.push("-fdebug-compilation-dir=.".into());
        if let Some(standard) = &hip.standard {
            flags.push(format!("-std={standard}").into());
        }
        for target in &self.targets {
            flags.push(format!("--offload-arch={target}").into());
        }
        if let Some(rocm) = environment.get("ROCM_PATH") {
            let mut flag = OsString::from("--rocm-path=");
            flag.push(rocm);
            flags.push(flag);
        }
        for directory in &hip.includes {
            flags.push("-I".into());
            flags.push(directory.into());
        }
        for (name, value) in &hip.defines {
            flags.push(match value {
                Some(value) => format!("-D{name}={value}").into(),
                None => format!("-D{name}").into(),
            });
        }
        flags.extend(hip.flags.iter().cloned());
        let more = environment.get("HIPFLAGS").unwrap_or_default();
        let more = more.to_string_lossy().into_owned();
        flags.extend(more.split_whitespace().map(OsString::from));
        flags
    }

    fn build(&self, kind: Kind, environment: &Environment) -> Result<Library, Error> {
        let objects = self.directory.join("objects");
        // What an earlier run left, so that no archive has more than this one makes.
        match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(self.cannot_write("empty", error));
            }
            _ => {}
        }
        fs::create_dir_all(&objects).map_err(|e| self.cannot_write("make", e))?;

        let jobs = self.jobs(&objects);
        let included = compile::run(&self.compiler, &jobs, &self.package, self.threads)?;
        self.split(&jobs)?;
        let hosts: Vec<PathBuf> = jobs
            .iter()
            .map(|job| {
                self.directory
                    .join(job.object.file_name().unwrap_or_default())
            })
            .collect();
        let runtime = environment
            .get("ROCM_PATH")
            .map(|rocm| Path::new(&rocm).join("lib"));
        let path = match kind {
            Kind::Static => self.archive(&hosts)?,
            Kind::Shared => self.link(&hosts, runtime.as_deref())?,
        };
        // The objects with device code are as large as all that comes of them.
        let _ = fs::remove_dir_all(&objects);
        let mut library = Library {
            path,
            kpack_dir: self.directory.join(".kpack"),
            module: self.module.clone(),
            directives: Vec::new(),
        };
        library.directives = self.directives(kind, &included, runtime, environment, &library);
        Ok(library)
    }

    fn cannot_write(&self, action: &str, error: std::io::Error) -> Error {
        Error::refused(
            &self.directory,
            format!(
                "cannot {action} this directory: {error}. A build script writes into OUT_DIR, which Cargo makes in its target directory; see that it can be written, or choose another one (CARGO_TARGET_DIR)"
            ),
        )
    }

    /// One for each source. Objects, and with them kernels, are named after the sources' paths in the
    /// package.
    fn jobs(&self, objects: &Path) -> Vec<Job> {
        let mut names = BTreeSet::new();
        let mut jobs = Vec::new();
        for source in &self.hip.files {
            let relative = source.strip_prefix(&self.package).unwrap_or(source);
            let inside = relative.is_relative();
            let text = match inside {
                true => relative.to_string_lossy().replace('/', "_"),
                false => relative
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned(),
            };
            let mut name = format!("{text}.o");
            let mut number = 2;
            while !names.insert(name.clone()) {
                name = format!("{text}-{number}.o");
                number += 1;
            }
            let object = objects.join(&name);
            let dependencies = object.with_extension("d");
            let mut arguments = self.flags.clone();
            arguments.extend(["-MD".into(), "-MF".into(), dependencies.clone().into()]);
            arguments.extend(["-c".into(), "-o".into(), object.clone().into()]);
            arguments.push(if inside { relative } else { source.as_path() }.into());
            jobs.push(Job {
                source: source.clone(),
                object,
                dependencies,
                arguments,
            });
        }
        jobs
    }

    fn split(&self, jobs: &[Job]) -> Result<(), Error> {
        let objects = jobs.iter().map(|job| &job.object);
        let mut options = object_file::Options::new(&self.module, &self.directory, objects);
        options.component = COMPONENT.to_owned();
        options.jobs = self.threads;
        // Build scripts are compiled without optimisation, and so would zstd be. Staging compresses.
        options.scheme = Scheme::None;
        let directory = std::path::absolute(&self.directory)
            .map_err(|e| Error::io(&self.directory, "find", e))?;
        let Some(directory) = directory.to_str() else {
            return Err(Error::refused(
                &self.directory,
                "its name is no UTF-8, which a marker has to be",
            ));
        };
        let group = group_name(&self.module, COMPONENT);
        options.search_paths = vec![format!("{directory}/.kpack/{group}_{GFXARCH}.kpack")];
        object_file::split(&options, &())?;
        Ok(())
    }

    fn archive(&self, hosts: &[PathBuf]) -> Result<PathBuf, Error> {
        let mut objects = Vec::new();
        for path in hosts {
            let file = File::open(path).map_err(|e| Error::io(path, "open", e))?;
            let name = path.file_name().unwrap_or_default();
            objects.push((name.to_string_lossy().into_owned(), file));
        }
        let path = self.directory.join(format!("lib{}.a", self.name));
        let (staged, ()) = Staged::write(&path, |output| {
            object_file::create(&objects, output).map_err(|e| crate::input::elf_error(&path, e))
        })?;
        staged.commit()?;
        Ok(path)
    }

    fn link(&self, hosts: &[PathBuf], runtime: Option<&Path>) -> Result<PathBuf, Error> {
        let file_name = format!("lib{}.so", self.name);
        let path = self.directory.join(&file_name);
        let mut arguments: Vec<OsString> = vec!["-shared".into(), "-o".into(), path.clone().into()];
        arguments.push(format!("-Wl,-soname,{file_name}").into());
        arguments.extend(hosts.iter().map(OsString::from));
        if !self.hip.without_runtime {
            if let Some(runtime) = runtime {
                arguments.extend(["-L".into(), runtime.into()]);
            }
            arguments.push("-lamdhip64".into());
        }
        let what = format!("`{file_name}` cannot be linked");
        compile::run_one(&self.compiler, &arguments, &self.package, &what)?;
        Ok(path)
    }

    /// What Cargo is told.
    fn directives(
        &self,
        kind: Kind,
        included: &[PathBuf],
        runtime: Option<PathBuf>,
        environment: &Environment,
        library: &Library,
    ) -> Vec<String> {
        let mut all = Vec::new();
        let mut say = |text: String| all.push(format!("cargo::{text}"));
        let sources: BTreeSet<&PathBuf> = self.hip.files.iter().chain(included).collect();
        for path in sources {
            say(format!("rerun-if-changed={}", path.display()));
        }
        for name in environment.asked() {
            say(format!("rerun-if-env-changed={name}"));
        }
        say(format!(
            "rustc-link-search=native={}",
            self.directory.display()
        ));
        say(match kind {
            Kind::Static => format!("rustc-link-lib=static={}", self.name),
            Kind::Shared => format!("rustc-link-lib=dylib={}", self.name),
        });
        if kind == Kind::Static && !self.hip.without_standard_library {
            say("rustc-link-lib=dylib=stdc++".to_owned());
        }
        if !self.hip.without_runtime {
            if let Some(runtime) = runtime {
                say(format!("rustc-link-search=native={}", runtime.display()));
            }
            say("rustc-link-lib=dylib=amdhip64".to_owned());
        }
        say(format!(
            "metadata=kpack_dir={}",
            library.kpack_dir.display()
        ));
        say(format!("metadata=kpack_module={}", self.module));
        all
    }
}

/// The GPU targets to compile for.
fn targets(hip: &Hip, environment: &Environment) -> Result<Vec<TargetId>, Error> {
    const VARIABLE: &str = "KPACK_OFFLOAD_ARCH";
    let lists = match hip.offload_archs.is_empty() {
        true => Vec::from_iter(
            environment
                .get(VARIABLE)
                .map(|list| list.to_string_lossy().into_owned()),
        ),
        false => hip.offload_archs.clone(),
    };
    let mut targets: Vec<TargetId> = Vec::new();
    for name in lists.iter().flat_map(|list| list.split([';', ',', ' '])) {
        if name.is_empty() {
            continue;
        }
        let target = name.parse().map_err(|e| {
            Error::usage(format!(
                "GPU target `{name}`: {e}. Targets are such as gfx1100 or gfx90a:xnack+"
            ))
        })?;
        if !targets.contains(&target) {
            targets.push(target);
        }
    }
    if targets.is_empty() {
        return Err(Error::usage(format!(
            "no GPU target to compile for: name some in build.rs, `.offload_arch(\"gfx1100\")`, or in the environment, {VARIABLE}=\"gfx1100;gfx942\". `rocminfo` tells that of a GPU"
        )));
    }
    Ok(targets)
}
