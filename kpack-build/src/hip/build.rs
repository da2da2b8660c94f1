//! Builds one library: compiles, splits, and archives or links it.
//!
//! Everything is made in a hidden directory next to the library's, which is renamed when complete.
//! If the build fails, the library and archives of the last build stay, so programs linked with it
//! keep working.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::names::Group;

use super::compile::{self, Compiled, Job};
use super::compiler::{Compiler, Wanted};
use super::environment::Environment;
use super::flags::{self, BuildDirectories, Flags};
use super::library::Library;
use super::options::Hip;
use super::rocm;
use super::targets::Targets;
use crate::object_file;
use kpack_core::publish::{Directory, NewNames, Stage, check_names};
use kpack_core::staging::{INCLUDE_DIRECTORIES, NATIVE_TARGETS};
use kpack_core::{DebugInfo, Error, ids};

/// The directory in `OUT_DIR` that holds one directory per library.
const DIRECTORY: &str = "kpack";
/// The component of archives made by build scripts.
const COMPONENT: &str = "lib";

/// The kind of library to build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Static,
    Shared,
}

/// What was built.
struct Made {
    /// Of the library.
    file_name: String,
    compiled: Compiled,
    /// The C++ standard library that the program needs besides.
    standard_library: Option<String>,
}

/// Everything known before the first file is written.
pub(super) struct Build<'a> {
    hip: &'a Hip,
    name: &'a str,
    environment: &'a Environment,
    module: String,
    compiler: Compiler,
    targets: Targets,
    /// The flags from the package and `HIPFLAGS`.
    own: Vec<OsString>,
    /// The package's directory, in which the compiler runs.
    package: PathBuf,
    out_dir: PathBuf,
    /// The library's final directory.
    directory: PathBuf,
    /// Where everything is made, in a hidden directory.
    hidden: PathBuf,
    threads: NonZeroUsize,
    /// Whether the program will run on Windows. Then the library keeps its device code, and the linked program is split.
    is_for_windows: bool,
}

impl<'a> Build<'a> {
    pub(super) fn new(
        hip: &'a Hip,
        name: &'a str,
        environment: &'a Environment,
    ) -> Result<Self, Error> {
        if hip.files.is_empty() && hip.objects.is_empty() {
            return Err(Error::usage(format!(
                "library `{name}` has no sources; add them with `file`"
            )));
        }
        let module = module(hip, name, environment)?;
        let targets = Targets::new(hip, environment)?;
        let package = environment.directory("CARGO_MANIFEST_DIR")?;
        let out_dir = out_dir(hip, environment)?;
        let always = flags::own(hip, environment, |_| false)?;
        let wanted = Wanted::new(targets.all(), &always, environment);
        let compiler = match &hip.compiler {
            Some(compiler) => Compiler::at(compiler, &wanted),
            None => Compiler::find(&wanted)?,
        };
        let own = flags::own(hip, environment, |flag| compiler.supports(flag, &wanted))?;
        let threads = environment.text("NUM_JOBS").and_then(|jobs| jobs.parse().ok());
        let directory = directory_in(&out_dir, name)?;
        Ok(Self {
            hip,
            name,
            environment,
            module,
            package,
            hidden: Stage::beside(&directory).join(name),
            directory,
            out_dir,
            targets,
            own,
            is_for_windows: flags::is_for_windows(environment),
            threads: threads.unwrap_or(NonZeroUsize::MIN),
            compiler,
        })
    }

    /// Builds the library. On failure the previous build stays.
    pub(super) fn run(&self, kind: Kind) -> Result<Library, Error> {
        let cannot_write = |error| match error {
            Error::Io { action, source, .. } => self.cannot_write(action, &source),
            error => error,
        };
        let above = self.directory.parent().unwrap_or(Path::new(""));
        let stage = Stage::lock(above, self.name).map_err(|error| match error {
            Error::Io { source, .. } => self.cannot_write("make", &source),
            error => error,
        })?;
        let stage = stage.without_flushes();
        // Recover from an interrupted build.
        stage.recover(self.name.as_ref()).map_err(cannot_write)?;
        let tree = stage.make(self.name).map_err(cannot_write)?;
        let made = self.make(kind, &tree)?;
        stage.publish(&NewNames::new(&[self.name])).map_err(cannot_write)?;
        let mut library = Library {
            path: self.directory.join(&made.file_name),
            kpack_dir: self.directory.join(".kpack"),
            module: self.module.clone(),
            directives: Vec::new(),
        };
        library.directives = self.directives(kind, made, &library);
        Ok(library)
    }

    /// Makes the library and the archives in the hidden directory.
    fn make(&self, kind: Kind, tree: &Directory) -> Result<Made, Error> {
        let objects = self.hidden.join("objects");
        fs::create_dir_all(&objects).map_err(|e| self.cannot_write("make", &e))?;
        let mut build = self.compiler.build(self.environment, &objects);
        build.cargo_metadata(!self.hip.silent);
        let places = BuildDirectories { package: &self.package, out_dir: &self.out_dir };
        let flags = Flags::new(self.hip, build.clone(), &self.own, &self.compiler, &places)?;
        let jobs = self.jobs(&objects);
        let compiled = compile::run(
            build.clone(),
            &self.compiler,
            &flags.compile,
            &jobs,
            &self.package,
            self.environment,
            self.threads,
        )?;
        // A marker without code would be a fault.
        let (fat, without_code): (Vec<Job>, Vec<Job>) =
            jobs.into_iter().partition(|job| !job.targets.is_empty());
        let mut parts: Vec<PathBuf> = fat.into_iter().map(|job| job.object).collect();
        parts.extend(self.take_objects(&objects)?);
        self.split(&parts)?;
        let without_code = Vec::from_iter(without_code.into_iter().map(|job| job.object));
        self.keep(&without_code)?;
        let all = parts.iter().chain(&without_code);
        let hosts: Vec<PathBuf> =
            all.filter_map(|object| Some(self.hidden.join(object.file_name()?))).collect();
        let file_name = match kind {
            Kind::Static => {
                compile::archive(build.out_dir(&self.hidden).clone(), self.name, &hosts)?;
                format!("lib{}.a", self.name)
            }
            Kind::Shared => self.link(&hosts, &flags.link)?,
        };
        // The library and the archives hold all of their content now.
        tree.remove_tree("objects".as_ref())?;
        for host in &hosts {
            fs::remove_file(host).map_err(|e| Error::io(host, "remove", e))?;
        }
        let directories = flags.include_directories.iter().map(|path| path.display().to_string());
        self.leave(INCLUDE_DIRECTORIES, directories)?;
        if let Some(targets) = self.targets.native() {
            self.leave(NATIVE_TARGETS, targets.iter().map(TargetId::to_string))?;
        }
        let standard_library = match kind {
            Kind::Static => {
                flags::standard_library(self.hip, self.environment, &self.compiler, &flags)
            }
            // The compiler has linked it.
            Kind::Shared => None,
        };
        Ok(Made { file_name, compiled, standard_library })
    }

    /// Leaves a file with these lines for `kpack stage`.
    fn leave(&self, name: &str, lines: impl Iterator<Item = String>) -> Result<(), Error> {
        let path = self.hidden.join(name);
        let lines: String = lines.map(|line| format!("{line}\n")).collect();
        fs::write(&path, lines).map_err(|e| Error::io(&path, "write", e))
    }

    /// Copies the objects that the package adds, so that they are split like those of its sources.
    fn take_objects(&self, directory: &Path) -> Result<Vec<PathBuf>, Error> {
        let copy = |(number, object): (usize, &PathBuf)| {
            let name = object.file_name().unwrap_or_default().to_string_lossy();
            let to = directory.join(format!("added-{number}-{name}"));
            let from = self.package.join(object);
            fs::copy(&from, &to).map_err(|e| Error::io(&from, "copy", e))?;
            Ok(to)
        };
        self.hip.objects.iter().enumerate().map(copy).collect()
    }

    fn cannot_write(&self, action: &str, error: &io::Error) -> Error {
        cannot_write(&self.directory, action, error)
    }

    /// One job for each source. Objects, and so kernels, are named after the sources' paths in the
    /// package.
    fn jobs(&self, objects: &Path) -> Vec<Job> {
        let mut names = BTreeSet::new();
        let mut jobs = Vec::new();
        for source in &self.hip.files {
            let relative = source.strip_prefix(&self.package).unwrap_or(source);
            let inside = relative.is_relative();
            let text = if inside {
                relative.to_string_lossy().replace('/', "_")
            } else {
                relative.file_name().unwrap_or_default().to_string_lossy().into_owned()
            };
            let mut name = format!("{text}.o");
            let mut number = 2;
            while !names.insert(name.clone()) {
                name = format!("{text}-{number}.o");
                number += 1;
            }
            jobs.push(Job {
                targets: self.targets.of(source),
                source: if inside { relative } else { source.as_path() }.to_owned(),
                object: objects.join(name),
            });
        }
        jobs
    }

    fn split(&self, objects: &[PathBuf]) -> Result<(), Error> {
        if self.is_for_windows || objects.is_empty() {
            return self.keep(objects);
        }
        let mut options = object_file::Options::new(&self.module, &self.hidden, objects);
        options.component = COMPONENT.to_owned();
        options.storage.jobs = self.threads;
        options.storage.spirv = self.hip.spirv;
        options.flushes = false;
        if self.hip.strip_debug {
            options.storage.debug = DebugInfo::Strip;
        }
        // Build scripts are compiled without optimisation, which makes zstd slow. Staging
        // compresses.
        let Some(directory) = self.directory.to_str() else {
            return Err(Error::rejected(
                ids::UNREPRESENTABLE_PATH,
                &self.directory,
                "the name is not UTF-8, as markers must be; rename it",
            ));
        };
        let group = Group::new(&self.module, COMPONENT);
        options.search_paths = vec![format!("{directory}/.kpack/{}", group.archive_pattern())];
        object_file::split(&options, &())?;
        Ok(())
    }

    /// Takes the objects as they are.
    fn keep(&self, objects: &[PathBuf]) -> Result<(), Error> {
        for object in objects {
            let to = self.hidden.join(object.file_name().unwrap_or_default());
            fs::rename(object, &to).map_err(|e| Error::io(&to, "rename", e))?;
        }
        Ok(())
    }

    fn link(&self, hosts: &[PathBuf], flags: &[OsString]) -> Result<String, Error> {
        let (file_name, flag) = if self.is_for_windows {
            let mut flag = OsString::from("-Wl,--out-implib,");
            flag.push(self.hidden.join(format!("lib{}.dll.a", self.name)));
            (format!("{}.dll", self.name), flag)
        } else {
            let file_name = format!("lib{}.so", self.name);
            let flag = format!("-Wl,-soname,{file_name}").into();
            (file_name, flag)
        };
        let mut arguments = vec!["-o".into(), self.hidden.join(&file_name).into(), flag];
        arguments.extend(hosts.iter().map(OsString::from));
        arguments.extend_from_slice(flags);
        if !self.hip.without_runtime {
            if let Some(runtime) = self.runtime() {
                arguments.extend(["-L".into(), runtime.into()]);
            }
            arguments.push("-lamdhip64".into());
        }
        let what = format!("cannot link `{file_name}`");
        compile::run_one(
            self.compiler.command().args(arguments).current_dir(&self.package),
            &what,
        )?;
        Ok(file_name)
    }

    /// The directory of the HIP runtime.
    fn runtime(&self) -> Option<PathBuf> {
        let rocm = self.compiler.rocm.as_ref()?;
        Some(rocm::libraries(rocm, self.environment).unwrap_or_else(|| rocm.join("lib")))
    }

    /// The directives for Cargo.
    fn directives(&self, kind: Kind, made: Made, library: &Library) -> Vec<String> {
        let compiled = made.compiled;
        let mut all = Vec::new();
        let mut say = |text: String| all.push(format!("cargo::{text}"));
        let added = self.hip.files.iter().chain(&self.hip.objects);
        let sources: BTreeSet<&PathBuf> = added.chain(&compiled.included).collect();
        for path in sources {
            say(format!("rerun-if-changed={}", path.display()));
        }
        for name in self.environment.asked() {
            say(format!("rerun-if-env-changed={name}"));
        }
        for warning in self.targets.warning().into_iter().chain(compiled.warnings) {
            say(format!("warning={warning}"));
        }
        say(format!("rustc-link-search=native={}", self.directory.display()));
        say(match kind {
            Kind::Static => format!("rustc-link-lib=static={}", self.name),
            Kind::Shared => format!("rustc-link-lib=dylib={}", self.name),
        });
        if let Some(name) = made.standard_library {
            // As in `static:-bundle=stdc++`.
            let kind = if name.contains('=') { "" } else { "dylib=" };
            say(format!("rustc-link-lib={kind}{name}"));
        }
        if !self.hip.without_runtime {
            if let Some(runtime) = self.runtime() {
                say(format!("rustc-link-search=native={}", runtime.display()));
            }
            say("rustc-link-lib=dylib=amdhip64".to_owned());
        }
        say(format!("metadata=kpack_dir={}", library.kpack_dir.display()));
        say(format!("metadata=kpack_module={}", self.module));
        all
    }
}

/// The library of a build that compiles nothing. It does not exist, so the program is linked with nothing.
pub(super) fn skipped(
    hip: &Hip,
    name: &str,
    environment: &Environment,
    kind: Kind,
) -> Result<Library, Error> {
    let module = module(hip, name, environment)?;
    let directory = directory_in(&out_dir(hip, environment)?, name)?;
    let ending = match kind {
        Kind::Static => "a",
        Kind::Shared => "so",
    };
    let asked = environment.asked().into_iter();
    Ok(Library {
        path: directory.join(format!("lib{name}.{ending}")),
        kpack_dir: directory.join(".kpack"),
        module,
        directives: asked.map(|name| format!("cargo::rerun-if-env-changed={name}")).collect(),
    })
}

/// The module that the archives of the library `name` are named after.
fn module(hip: &Hip, name: &str, environment: &Environment) -> Result<String, Error> {
    let module = match &hip.module {
        Some(module) => module.clone(),
        None => environment.text("CARGO_PKG_NAME").unwrap_or_else(|| name.to_owned()),
    };
    check_names(&module, COMPONENT)?;
    check_names(name, COMPONENT)?;
    Ok(module)
}

/// The build directory.
pub(super) fn out_dir(hip: &Hip, environment: &Environment) -> Result<PathBuf, Error> {
    hip.out_dir.clone().map_or_else(|| environment.directory("OUT_DIR"), Ok)
}

/// The final directory of what is built under `name`. The compiler runs in the package's directory, so it is absolute.
pub(super) fn directory_in(out_dir: &Path, name: &str) -> Result<PathBuf, Error> {
    let absolute = std::path::absolute(out_dir).map_err(|e| Error::io(out_dir, "find", e))?;
    Ok(absolute.join(DIRECTORY).join(name))
}

/// The error for output that cannot be written into `OUT_DIR`.
pub(super) fn cannot_write(directory: &Path, action: &str, error: &io::Error) -> Error {
    Error::rejected(
        ids::SYSTEM,
        directory,
        format!(
            "cannot {action} this directory: {error}. A build script writes into OUT_DIR, \
             which is in Cargo's target directory; make that writable, or choose another \
             one (CARGO_TARGET_DIR)"
        ),
    )
}
