//! Builds one library: compiles, splits, and archives or links it.
//!
//! Everything is made in a hidden directory next to the library's, which is renamed when complete.
//! If the build fails, the library and archives of the last build stay, so programs linked with it
//! keep working.

mod compile;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::names::Group;

use super::command;
use super::directives::{self, directive};
use super::directories::{self, BuildDirectories};
use super::environment::Environment;
use super::flags::{self, Flags};
use super::inputs;
use super::options::Hip;
use super::rocm;
use super::targets::Targets;
use super::toolchain::Toolchain;
use crate::object_file;
use compile::{Compilation, Compiled, Job};
use kpack_core::publish::{Directory, NewNames, Stage, check_names};
use kpack_core::staging::{INCLUDE_DIRECTORIES, NATIVE_TARGETS};
use kpack_core::{DebugInfo, Error, ids, shown};

/// The component of archives made by build scripts.
const COMPONENT: &str = "lib";

/// A host-only library and the archives of its device code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Library {
    path: PathBuf,
    kpack_dir: PathBuf,
    module: String,
    directives: Vec<String>,
}

impl Library {
    /// Path of the static or shared library.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of the archives.
    pub fn kpack_dir(&self) -> &Path {
        &self.kpack_dir
    }

    /// The module that the archives are named after.
    pub fn module(&self) -> &str {
        &self.module
    }

    /// The `cargo::` directives, one per line.
    pub fn directives(&self) -> &[String] {
        &self.directives
    }
}

/// The kind of library to build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Static,
    Shared,
}

/// What was built in the hidden directory.
struct BuiltFiles {
    /// Of the library.
    file_name: String,
    compiled: Compiled,
    /// The C++ standard library that the program needs besides.
    standard_library: Option<String>,
}

/// Everything known before the first file is written.
pub(super) struct LibraryBuild<'a> {
    hip: &'a Hip,
    name: &'a str,
    environment: &'a Environment,
    module: String,
    toolchain: Toolchain,
    targets: Targets,
    directories: BuildDirectories,
    /// Where everything is made.
    hidden: PathBuf,
}

impl<'a> LibraryBuild<'a> {
    pub(super) fn new(
        hip: &'a Hip,
        name: &'a str,
        environment: &'a Environment,
    ) -> Result<Self, Error> {
        let module = module(hip, name, environment)?;
        let targets = Targets::new(hip, environment)?;
        let directories = BuildDirectories::new(hip, name, environment)?;
        inputs::check(hip, &directories.package)?;
        let toolchain = Toolchain::choose(hip, environment, targets.all())?;
        let hidden = Stage::beside(&directories.output).join(name);
        Ok(Self { hip, name, environment, module, toolchain, targets, directories, hidden })
    }

    /// Builds the library. On failure the previous build stays.
    pub(super) fn run(&self, kind: Kind) -> Result<Library, Error> {
        let cannot_write = |error| self.directories.explain(error);
        let stage = Stage::lock(self.directories.above_output(), self.name)
            .map_err(cannot_write)?
            .without_flushes();
        // Recover from an interrupted build.
        stage.recover(self.name.as_ref()).map_err(cannot_write)?;
        let tree = stage.make(self.name).map_err(cannot_write)?;
        let built = self.make(kind, &tree)?;
        stage.publish(&NewNames::new(&[self.name])).map_err(cannot_write)?;
        let mut library = Library {
            path: self.directories.output.join(&built.file_name),
            kpack_dir: self.directories.output.join(".kpack"),
            module: self.module.clone(),
            directives: Vec::new(),
        };
        library.directives = self.directives(kind, built, &library);
        Ok(library)
    }

    /// Makes the library and the archives in the hidden directory.
    fn make(&self, kind: Kind, tree: &Directory) -> Result<BuiltFiles, Error> {
        let objects = self.hidden.join("objects");
        fs::create_dir_all(&objects).map_err(|e| self.directories.cannot_write(&e))?;
        let compiler = &self.toolchain.compiler;
        let mut build = compiler.build(self.environment, &objects);
        build.cargo_metadata(!self.hip.silent);
        let flags = Flags::new(self.hip, build.clone(), &self.toolchain, &self.directories)?;
        let jobs = self.jobs(&objects);
        let compilation = Compilation {
            toolchain: &self.toolchain,
            flags: &flags.compile,
            package: &self.directories.package,
            variables: self.environment.all(),
        };
        let compiled = compilation.run(&jobs)?;
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
        let file_name = file_name(self.name, kind, self.environment);
        match kind {
            Kind::Static => {
                compile::archive(build.out_dir(&self.hidden).clone(), self.name, &hosts)?;
            }
            Kind::Shared => self.link(&file_name, &hosts, &flags.link)?,
        }
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
            Kind::Static => flags::standard_library(self.hip, self.environment, compiler, &flags),
            // The compiler has linked it.
            Kind::Shared => None,
        };
        Ok(BuiltFiles { file_name, compiled, standard_library })
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
            let from = self.directories.package.join(object);
            fs::copy(&from, &to).map_err(|e| Error::io(&from, "copy", e))?;
            Ok(to)
        };
        self.hip.objects.iter().enumerate().map(copy).collect()
    }

    /// One job for each source. Objects, and so kernels, are named after the sources' paths in the
    /// package.
    fn jobs(&self, objects: &Path) -> Vec<Job> {
        let mut names = BTreeSet::new();
        let mut jobs = Vec::new();
        for source in &self.hip.files {
            let relative = source.strip_prefix(&self.directories.package).unwrap_or(source);
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
        if self.environment.is_for_windows() || objects.is_empty() {
            return self.keep(objects);
        }
        let mut options = object_file::Options::new(&self.module, &self.hidden, objects);
        options.component = COMPONENT.to_owned();
        options.storage.jobs = self.toolchain.threads;
        options.storage.spirv = self.hip.spirv;
        options.flushes = false;
        if self.hip.strip_debug {
            options.storage.debug = DebugInfo::Strip;
        }
        // Build scripts are compiled without optimisation, which makes zstd slow. Staging
        // compresses.
        let output = &self.directories.output;
        let Some(directory) = output.to_str() else {
            return Err(Error::rejected(
                ids::UNREPRESENTABLE_PATH,
                output,
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

    fn link(&self, file_name: &str, hosts: &[PathBuf], flags: &[OsString]) -> Result<(), Error> {
        let flag = if self.environment.is_for_windows() {
            let mut flag = OsString::from("-Wl,--out-implib,");
            flag.push(self.hidden.join(format!("lib{}.dll.a", self.name)));
            flag
        } else {
            format!("-Wl,-soname,{file_name}").into()
        };
        let mut arguments = vec!["-o".into(), self.hidden.join(file_name).into(), flag];
        arguments.extend(hosts.iter().map(OsString::from));
        arguments.extend_from_slice(flags);
        if !self.hip.without_runtime {
            if let Some(runtime) = self.runtime() {
                arguments.extend(["-L".into(), runtime.into()]);
            }
            arguments.push("-lamdhip64".into());
        }
        let what = format!("cannot link `{file_name}`");
        let mut compiler = self.toolchain.compiler.command();
        command::run(compiler.args(arguments).current_dir(&self.directories.package), &what)?;
        Ok(())
    }

    /// The directory of the HIP runtime.
    fn runtime(&self) -> Option<PathBuf> {
        let rocm = self.toolchain.compiler.rocm.as_ref()?;
        Some(rocm::libraries(rocm, self.environment).unwrap_or_else(|| rocm.join("lib")))
    }

    /// The directives for Cargo.
    fn directives(&self, kind: Kind, built: BuiltFiles, library: &Library) -> Vec<String> {
        let compiled = built.compiled;
        let added = self.hip.files.iter().chain(&self.hip.objects);
        let sources: BTreeSet<&PathBuf> = added.chain(&compiled.included).collect();
        let mut all = directives::watch(sources, self.environment);
        let warnings = self.targets.warning().into_iter().chain(compiled.warnings);
        all.extend(warnings.map(|text| directives::warning(&text)));
        let mut say = |text: String| all.push(directive(text));
        say(format!("rustc-link-search=native={}", self.directories.output.display()));
        say(match kind {
            Kind::Static => format!("rustc-link-lib=static={}", self.name),
            Kind::Shared => format!("rustc-link-lib=dylib={}", self.name),
        });
        if let Some(name) = built.standard_library {
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
    let directory = directories::output(hip, name, environment)?;
    Ok(Library {
        path: directory.join(file_name(name, kind, environment)),
        kpack_dir: directory.join(".kpack"),
        module,
        directives: directives::watch([""; 0], environment),
    })
}

/// The name of the file of the library `name`.
fn file_name(name: &str, kind: Kind, environment: &Environment) -> String {
    match kind {
        Kind::Static => format!("lib{name}.a"),
        Kind::Shared if environment.is_for_windows() => format!("{name}.dll"),
        Kind::Shared => format!("lib{name}.so"),
    }
}

/// The module that the archives of the library `name` are named after.
///
/// # Errors
/// [`Error::Usage`] for what no library can be made of.
fn module(hip: &Hip, name: &str, environment: &Environment) -> Result<String, Error> {
    if let Some(file) = hip.device_files.first() {
        let method = if file.target.is_some() { "code_object" } else { "bundle" };
        return Err(Error::usage(format!(
            "library `{name}`: `{method}` adds {} to a module, and a library has none; use `compile_modules`, or add a \
             compiled object with `object`",
            shown(&file.path)
        )));
    }
    if hip.files.is_empty() && hip.objects.is_empty() {
        return Err(Error::usage(format!("library `{name}` has no sources; add them with `file`")));
    }
    let module = match &hip.module {
        Some(module) => module.clone(),
        None => environment.text("CARGO_PKG_NAME").unwrap_or_else(|| name.to_owned()),
    };
    check_names(&module, COMPONENT)?;
    check_names(name, COMPONENT)?;
    Ok(module)
}
