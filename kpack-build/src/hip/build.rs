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
use super::targets;
use crate::object_file;
use kpack_core::publish::{Directory, NewNames, Stage, check_names};
use kpack_core::staging::INCLUDE_DIRECTORIES;
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

/// Everything known before the first file is written.
pub(super) struct Build<'a> {
    hip: &'a Hip,
    name: &'a str,
    environment: &'a Environment,
    module: String,
    compiler: Compiler,
    targets: Vec<TargetId>,
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
        if hip.files.is_empty() {
            return Err(Error::usage(format!(
                "library `{name}` has no sources; add them with `file`"
            )));
        }
        let module = match &hip.module {
            Some(module) => module.clone(),
            None => environment.text("CARGO_PKG_NAME").unwrap_or_else(|| name.to_owned()),
        };
        check_names(&module, COMPONENT)?;
        check_names(name, COMPONENT)?;
        let targets = targets::targets(hip, environment)?;
        let package = environment.directory("CARGO_MANIFEST_DIR")?;
        let out_dir = match &hip.out_dir {
            Some(directory) => directory.clone(),
            None => environment.directory("OUT_DIR")?,
        };
        let own = flags::own(hip, environment)?;
        let wanted = Wanted::new(&targets, &own, environment);
        let compiler = match &hip.compiler {
            Some(compiler) => Compiler::at(compiler, &wanted),
            None => Compiler::find(&wanted)?,
        };
        let threads = environment.text("NUM_JOBS").and_then(|jobs| jobs.parse().ok());
        // The compiler runs in the package's directory.
        let directory = std::path::absolute(&out_dir)
            .map_err(|e| Error::io(&out_dir, "find", e))?
            .join(DIRECTORY)
            .join(name);
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
        let (file_name, compiled) = self.make(kind, &tree)?;
        stage.publish(&NewNames::new(&[self.name])).map_err(cannot_write)?;
        let mut library = Library {
            path: self.directory.join(file_name),
            kpack_dir: self.directory.join(".kpack"),
            module: self.module.clone(),
            directives: Vec::new(),
        };
        library.directives = self.directives(kind, compiled, &library);
        Ok(library)
    }

    /// Makes the library and the archives in the hidden directory. Returns the library's file name
    /// and what the compiler said.
    fn make(&self, kind: Kind, tree: &Directory) -> Result<(String, Compiled), Error> {
        let objects = self.hidden.join("objects");
        fs::create_dir_all(&objects).map_err(|e| self.cannot_write("make", &e))?;
        let mut build = self.compiler.build(self.environment, &objects);
        build.cargo_metadata(!self.hip.silent);
        let places = BuildDirectories { package: &self.package, out_dir: &self.out_dir };
        let flags =
            Flags::new(self.hip, build.clone(), &self.own, &self.targets, &self.compiler, &places)?;
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
        self.split(&jobs)?;
        let hosts: Vec<PathBuf> =
            jobs.iter().filter_map(|job| Some(self.hidden.join(job.object.file_name()?))).collect();
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
        let names: String =
            flags.include_directories.iter().map(|path| format!("{}\n", path.display())).collect();
        let path = self.hidden.join(INCLUDE_DIRECTORIES);
        fs::write(&path, names).map_err(|e| Error::io(&path, "write", e))?;
        Ok((file_name, compiled))
    }

    fn cannot_write(&self, action: &str, error: &io::Error) -> Error {
        Error::rejected(
            ids::SYSTEM,
            &self.directory,
            format!(
                "cannot {action} this directory: {error}. A build script writes into OUT_DIR, \
                 which is in Cargo's target directory; make that writable, or choose another \
                 one (CARGO_TARGET_DIR)"
            ),
        )
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
                source: if inside { relative } else { source.as_path() }.to_owned(),
                object: objects.join(name),
            });
        }
        jobs
    }

    fn split(&self, jobs: &[Job]) -> Result<(), Error> {
        if self.is_for_windows {
            return self.keep(jobs);
        }
        let objects = jobs.iter().map(|job| &job.object);
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
    fn keep(&self, jobs: &[Job]) -> Result<(), Error> {
        for Job { object, .. } in jobs {
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
        self.compiler.rocm.as_ref().map(|rocm| rocm.join("lib"))
    }

    /// The directives for Cargo.
    fn directives(&self, kind: Kind, compiled: Compiled, library: &Library) -> Vec<String> {
        let mut all = Vec::new();
        let mut say = |text: String| all.push(format!("cargo::{text}"));
        let sources: BTreeSet<&PathBuf> = self.hip.files.iter().chain(&compiled.included).collect();
        for path in sources {
            say(format!("rerun-if-changed={}", path.display()));
        }
        for name in self.environment.asked() {
            say(format!("rerun-if-env-changed={name}"));
        }
        for warning in compiled.warnings {
            say(format!("warning={warning}"));
        }
        say(format!("rustc-link-search=native={}", self.directory.display()));
        say(match kind {
            Kind::Static => format!("rustc-link-lib=static={}", self.name),
            Kind::Shared => format!("rustc-link-lib=dylib={}", self.name),
        });
        if kind == Kind::Static && !self.hip.without_standard_library {
            say("rustc-link-lib=dylib=stdc++".to_owned());
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
