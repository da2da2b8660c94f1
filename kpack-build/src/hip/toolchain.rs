//! The compiler of a build, and the flags that the package gives it.

use std::ffi::{OsStr, OsString};
use std::num::NonZeroUsize;

use kpack_core::Error;
use kpack_core::job_server::JobServer;
use kpack_format::TargetId;

use super::compiler::{self, Compiler, Requirements};
use super::environment::{Environment, words};
use super::options::{Flag, Hip};

/// What a build compiles with.
#[derive(Debug)]
pub(super) struct Toolchain {
    pub(super) compiler: Compiler,
    /// The flags from the package and `HIPFLAGS`.
    pub(super) own_flags: Vec<OsString>,
    /// How many programs may run at once, if Cargo's job server has tokens for them.
    pub(super) threads: NonZeroUsize,
    /// The job server. There is one per build, because this process has only one token of its own.
    pub(super) job_server: JobServer,
}

impl Toolchain {
    /// The compiler that the package, a variable or this machine names, for `targets`.
    ///
    /// # Errors
    /// [`Error::Compiler`] if there is none; [`Error::Usage`] for a variable that is not a list of words.
    pub(super) fn choose(
        hip: &Hip,
        environment: &Environment,
        targets: &[TargetId],
    ) -> Result<Self, Error> {
        environment.watch(&compiler::VARIABLES);
        let always = own_flags(hip, environment, |_| false)?;
        let requirements = Requirements::new(targets, &always, environment);
        let compiler = match &hip.compiler {
            Some(compiler) => Compiler::at(compiler, &requirements),
            None => Compiler::find(&requirements)?,
        };
        let own_flags = own_flags(hip, environment, |flag| compiler.supports(flag, &requirements))?;
        let threads = environment.text("NUM_JOBS").and_then(|jobs| jobs.parse().ok());
        Ok(Self {
            compiler,
            own_flags,
            threads: threads.unwrap_or(NonZeroUsize::MIN),
            job_server: JobServer::of_process(),
        })
    }
}

/// The flags from the package and `HIPFLAGS`, including those that `supports` accepts of the package's optional ones.
fn own_flags(
    hip: &Hip,
    environment: &Environment,
    supports: impl Fn(&OsStr) -> bool,
) -> Result<Vec<OsString>, Error> {
    let more = environment.get("HIPFLAGS").unwrap_or_default();
    let more = words("HIPFLAGS", &more)?;
    let of_package = hip.flags.iter().filter_map(|flag| match flag {
        Flag::Always(flag) => Some(flag),
        Flag::IfSupported(flag) => supports(flag).then_some(flag),
    });
    Ok(of_package.cloned().chain(more).collect())
}
