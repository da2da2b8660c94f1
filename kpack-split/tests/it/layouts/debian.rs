//! Newer linkers of Debian: downloaded by apt, unpacked, and run with the C library of their own suite.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use kpack_tests::apt;
use kpack_tests::process::try_run as run;
use kpack_tests::require;

/// A directory for the compiler's option `-B`, with GNU ld of a suite. Reports the skipped test if it cannot be had.
pub(crate) fn linker(suite: &str) -> Result<Option<PathBuf>> {
    if !cfg!(target_arch = "x86_64") || !require::tools(&["apt-get", "dpkg-deb"]) {
        return Ok(None);
    }
    let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("debian-linkers");
    fs::create_dir_all(&all)?;
    // Another process may be fetching the same.
    let lock = File::create(all.join("lock"))?;
    lock.lock()?;
    let directory = all.join(suite);
    if !directory.exists() {
        let partial = all.join(format!("{suite}.partial"));
        let _ = fs::remove_dir_all(&partial);
        if let Err(error) = fetch(suite, &partial) {
            require::skip(&format!("cannot fetch the linker of Debian {suite}: {error:#}"));
            return Ok(None);
        }
        fs::rename(&partial, &directory)?;
    }
    Ok(Some(directory))
}

fn fetch(suite: &str, directory: &Path) -> Result<()> {
    let apt = directory.join("apt");
    for directory in ["lists/partial", "archives/partial"] {
        fs::create_dir_all(apt.join(directory))?;
    }
    fs::write(apt.join("status"), "")?;
    let source = format!(
        "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian {suite} main\n"
    );
    fs::write(apt.join("sources.list"), source)?;
    let configuration = apt.join("apt.conf");
    fs::write(&configuration, apt::CONFIGURATION.replace('@', &apt.display().to_string()))?;
    let apt_get = |arguments: &[&str]| {
        run(Command::new("apt-get").args(arguments).env("APT_CONFIG", &configuration))
    };
    apt_get(&["update", "--error-on=any"])?;
    apt_get(&["install", "--yes", "--download-only", "binutils-x86-64-linux-gnu"])?;
    for entry in fs::read_dir(apt.join("archives"))? {
        let package = entry?.path();
        if package.extension().is_some_and(|extension| extension == "deb") {
            run(Command::new("dpkg-deb").arg("-x").arg(package).arg(directory))?;
        }
    }
    fs::remove_dir_all(apt)?;
    let linker = directory.join("ld.bfd");
    fs::write(
        &linker,
        "#!/bin/sh\n\
         here=$(dirname \"$0\")\n\
         libraries=$here/usr/lib/x86_64-linux-gnu\n\
         exec \"$libraries/ld-linux-x86-64.so.2\" --library-path \"$libraries\" \
         \"$here/usr/bin/x86_64-linux-gnu-ld.bfd\" \"$@\"\n",
    )?;
    fs::set_permissions(&linker, fs::Permissions::from_mode(0o755))?;
    run(Command::new(&linker).arg("--version")).map(drop)
}
