//! The root of an image, as that of this process. The kernel then resolves each path in it, so that absolute links lead
//! into it, and nothing leads out: libraries, archives, markers and databases may name any path.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use kpack::internal::Environment;
use kpack_core::{Error, parallel, shown};

use crate::remedy::Remedy;

/// The root directory that this process has entered, as the caller named it.
static ENTERED: OnceLock<PathBuf> = OnceLock::new();

/// Makes `root` the root directory of this process, and its current one. From then on, what this module examines is in
/// there, and no variable of this process counts, since they are not those of the image.
///
/// # Errors
/// [`Error::Io`] if there is no such directory, or the system does not allow it.
pub fn enter(root: &Path) -> Result<(), Error> {
    // Their number comes from files that an image could replace, so it is read before.
    parallel::processors();
    change_root(root)?;
    // A second one would be inside the first.
    let _ = ENTERED.set(root.to_owned());
    Ok(())
}

#[cfg(not(windows))]
fn change_root(root: &Path) -> Result<(), Error> {
    use rustix::io::Errno;
    use rustix::process::{chdir, chroot};
    use rustix::thread::UnshareFlags;

    let failed = |errno: Errno| Error::io(root, "enter", errno.into());
    // Whatever the rights are, a wrong path is a wrong path.
    if !root.metadata().map_err(|e| Error::io(root, "find", e))?.is_dir() {
        return Err(failed(Errno::NOTDIR));
    }
    if chroot(root) == Err(Errno::PERM) {
        // Whoever is not root may do so in a user namespace.
        #[expect(
            deprecated,
            reason = "it can only harm if the threads of a process share descriptors"
        )]
        let _ = rustix::thread::unshare(UnshareFlags::NEWUSER);
        chroot(root).map_err(|errno| match errno {
            Errno::PERM => {
                let text = "only root can use it as a root directory here; run this as root";
                Error::usage(format!("{}: {text}", shown(root)))
            }
            errno => failed(errno),
        })?;
    }
    chdir("/").map_err(failed)
}

#[cfg(windows)]
fn change_root(root: &Path) -> Result<(), Error> {
    let text = "on Windows, a directory cannot be used as the root of an image";
    Err(Error::usage(format!("{}: {text}", shown(root))))
}

/// A variable of this process, unless it has entered an image.
pub(super) fn variable(name: &str) -> Option<OsString> {
    if ENTERED.get().is_some() { None } else { env::var_os(name) }
}

/// The variables that loaders heed.
pub(super) fn loader_variables() -> Environment {
    if ENTERED.get().is_some() { Environment::default() } else { Environment::of_process() }
}

/// A command for an image says so, since it would change this machine.
pub(super) fn mark(remedy: &mut Remedy) {
    if let Some(root) = ENTERED.get() {
        let mut caution = format!("run this inside the image {}, not here", shown(root));
        if let Some(other) = &remedy.caution {
            caution = format!("{caution}; {other}");
        }
        remedy.caution = Some(caution);
    }
}
