//! HIP kernels of a Rust crate, compiled and split by its build script.
//!
//! A build script runs before its crate is linked, so it cannot split the linked program. Instead
//! it splits the objects that it compiles ([`object_file`](crate::object_file)), and gives the
//! linker a host-only library. The device code goes into archives in `OUT_DIR`, where a program run
//! by Cargo finds it. `kpack stage` makes a relocatable release.

mod build;
mod compile;
mod compiler;
mod environment;
mod flags;
mod library;
mod make_rule;
mod options;
mod rocm;
mod targets;

use build::{Build, Kind};
use environment::Environment;
use kpack_core::Error;

pub use library::Library;
pub use options::Hip;
pub use rocm::Rocm;

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
    /// # Errors
    /// [`Error::Compiler`] if there is no compiler or the sources do not compile; [`Error::Usage`]
    /// for invalid options; [`Error::Refused`] for objects that cannot be split before the link;
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

    fn build(&self, name: &str, kind: Kind) -> Result<Library, Error> {
        let environment = match &self.environment {
            Some(variables) => Environment::of(variables.clone()),
            None => Environment::of_process(),
        };
        let library = Build::new(self, name, &environment)?.run(kind)?;
        if !self.silent {
            library.emit();
        }
        Ok(library)
    }
}
