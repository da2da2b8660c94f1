//! HIP kernels of a Rust crate, compiled and split by its build script.
//!
//! A build script runs before its crate is linked, so it cannot split the linked program. Instead
//! it splits the objects that it compiles ([`object_file`](crate::object_file)), and gives the
//! linker a host-only library. The device code goes into archives in `OUT_DIR`, where a program run
//! by Cargo finds it. `kpack stage` makes a relocatable release.

mod command;
mod compiler;
mod device_libraries;
mod directives;
mod directories;
mod environment;
mod flags;
mod inputs;
mod library;
mod make_rule;
mod modules;
mod options;
mod rocm;
mod skip;
mod targets;
mod toolchain;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use environment::Environment;
use kpack_core::parallel::lock;
use kpack_core::{Error, escaped};
use library::{Kind, LibraryBuild};
use modules::ModulesBuild;

pub use library::Library;
pub use modules::Modules;
pub use options::Hip;
pub use rocm::Rocm;

/// The directories that this process, a build script, has built. A library and modules of the same name would share one.
static BUILT: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

impl Hip {
    /// Makes the static library `lib<name>.a`.
    ///
    /// # Panics
    /// If [`try_compile`](Self::try_compile) fails.
    #[track_caller]
    pub fn compile(&self, name: &str) -> Library {
        match self.try_compile(name) {
            Ok(library) => library,
            Err(error) => panic!("\n\n{}\n", error.in_one_line()),
        }
    }

    /// Makes the static library `lib<name>.a` and the archives of its device code.
    ///
    /// If it fails, a build script may go on without the library. Cargo runs it again once a source or a variable has
    /// changed, not once a compiler is installed: `touch build.rs` then.
    ///
    /// # Errors
    /// [`Error::Compiler`] if there is no compiler or the sources do not compile; [`Error::Usage`] for invalid options, or a
    /// name that this build script has built; [`Error::Refused`] for objects that cannot be split before the link;
    /// [`Error::Io`].
    pub fn try_compile(&self, name: &str) -> Result<Library, Error> {
        self.build(name, Kind::Static)
    }

    /// Makes the shared library `lib<name>.so`.
    ///
    /// # Panics
    /// If [`try_shared`](Self::try_shared) fails.
    #[track_caller]
    pub fn shared(&self, name: &str) -> Library {
        match self.try_shared(name) {
            Ok(library) => library,
            Err(error) => panic!("\n\n{}\n", error.in_one_line()),
        }
    }

    /// Makes the shared library `lib<name>.so` and the archives of its device code. A program run
    /// by Cargo finds the library. A staged program needs the run path `$ORIGIN/../lib`, which only
    /// its own package can set.
    ///
    /// # Errors
    /// As [`try_compile`](Self::try_compile).
    pub fn try_shared(&self, name: &str) -> Result<Library, Error> {
        self.build(name, Kind::Shared)
    }

    /// Makes the modules of the sources, and of [`code_object`](Self::code_object) and [`bundle`](Self::bundle).
    ///
    /// # Panics
    /// If [`try_compile_modules`](Self::try_compile_modules) fails.
    #[track_caller]
    pub fn compile_modules(&self, name: &str) -> Modules {
        match self.try_compile_modules(name) {
            Ok(modules) => modules,
            Err(error) => panic!("\n\n{}\n", error.in_one_line()),
        }
    }

    /// Compiles each source for the device alone, for all targets, and makes a module of device code of each, which a
    /// program loads itself (`hipModuleLoadData`). `kpack::include_modules!("NAME")` of the crate `kpack` makes the Rust
    /// module `name`, with a static for each source: `AFFINE` for `affine.hip`. The program is linked with nothing, and
    /// needs no file but itself. Its dependency must be called `kpack`, because the generated code uses that name.
    ///
    /// What has not changed since the last build is not compiled again: the compiler's version, its arguments, and the
    /// content of all files that it read. If the build fails, the modules of the last one stay, and a build script may go
    /// on without new ones. Cargo runs it again once a source has changed.
    ///
    /// # Errors
    /// [`Error::Compiler`] if there is no compiler, or with all failures if sources do not compile; [`Error::Usage`] for
    /// invalid options and names that are no identifiers; [`Error::Refused`] for device code that is damaged or for
    /// another target; [`Error::Io`].
    pub fn try_compile_modules(&self, name: &str) -> Result<Modules, Error> {
        let environment = self.variables();
        self.reported(&environment, Modules::directives, || {
            self.check_is_new(name, &environment)?;
            let modules = ModulesBuild::new(self, name, &environment)?.run()?;
            self.add_built(modules.directory());
            Ok(modules)
        })
    }

    fn variables(&self) -> Environment {
        match &self.environment {
            Some(variables) => Environment::of(variables.clone()),
            None => Environment::of_process(),
        }
    }

    /// Checks that nothing else was built under this name, whose files would vanish.
    fn check_is_new(&self, name: &str, environment: &Environment) -> Result<(), Error> {
        if self.environment.is_some() {
            return Ok(());
        }
        let directory = directories::output(self, name, environment)?;
        if !lock(&BUILT).contains(&directory) {
            return Ok(());
        }
        Err(Error::usage(format!(
            "`{}` was already built by this build script, and would be replaced; choose another name",
            escaped(name)
        )))
    }

    fn add_built(&self, directory: &Path) {
        // A process with other variables is not a build script, and may build the same again.
        if self.environment.is_none() {
            lock(&BUILT).insert(directory.to_owned());
        }
    }

    fn build(&self, name: &str, kind: Kind) -> Result<Library, Error> {
        let environment = self.variables();
        self.reported(&environment, Library::directives, || {
            self.check_is_new(name, &environment)?;
            let library = match skip::reason(self, &environment) {
                Some(_) => library::skipped(self, name, &environment, kind)?,
                None => LibraryBuild::new(self, name, &environment)?.run(kind)?,
            };
            self.add_built(library.path().parent().unwrap_or(Path::new("")));
            Ok(library)
        })
    }

    /// Prints the lines for Cargo of what `build` makes. If it fails, the caller may go on without it, and Cargo must run
    /// the build script again once the sources have changed.
    fn reported<T>(
        &self,
        environment: &Environment,
        directives: impl FnOnce(&T) -> &[String],
        build: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let built = build();
        if !self.silent {
            match &built {
                Ok(built) => directives::print(directives(built)),
                Err(_) => {
                    let inputs = inputs::to_watch(self, environment);
                    directives::print(&directives::watch(inputs, environment));
                }
            }
        }
        built
    }
}
