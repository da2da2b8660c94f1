//! A root directory for installing packages, like the root of a machine.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process::try_run;
use crate::require::is_root;

/// Programs that the maintainer scripts of packages run.
const PROGRAMS: [&str; 4] = ["/bin/sh", "/bin/cat", "/bin/rm", "/sbin/ldconfig"];

/// A root with the parts of a system that maintainer scripts need. dpkg and rpm run these scripts
/// in it (`chroot`), which requires root.
#[derive(Debug)]
pub struct PackageRoot {
    path: PathBuf,
}

impl PackageRoot {
    /// Makes it.
    ///
    /// # Errors
    /// The user is not root, or the directory cannot be written.
    pub fn new(path: &Path) -> Result<Self> {
        ensure!(is_root(), "only root may install packages into a root of their own");
        let root = Self { path: path.to_owned() };
        let dpkg = ["info", "updates", "triggers"].map(|name| format!("var/lib/dpkg/{name}"));
        let others = ["etc/ld.so.conf.d", "tmp", "var/cache/ldconfig", "var/lib/rpm"];
        for directory in dpkg.iter().map(String::as_str).chain(others) {
            fs::create_dir_all(root.file(directory))?;
        }
        fs::write(root.file("var/lib/dpkg/status"), "")?;
        let included = "include /etc/ld.so.conf.d/*.conf\n";
        fs::write(root.file("etc/ld.so.conf"), included)?;
        for program in PROGRAMS {
            root.add_program(Path::new(program), program)?;
        }
        Ok(root)
    }

    /// Copies a program, and the libraries that it needs.
    ///
    /// # Errors
    /// A file cannot be copied.
    pub fn add_program(&self, program: &Path, to: &str) -> Result<()> {
        self.copy(program, to)?;
        // Statically linked programs have no libraries to list.
        let listed = Command::new("ldd").arg(program).output()?;
        for word in String::from_utf8_lossy(&listed.stdout).split_whitespace() {
            if word.starts_with('/') {
                self.copy(Path::new(word), word)?;
            }
        }
        Ok(())
    }

    /// A file in it.
    pub fn file(&self, path: &str) -> PathBuf {
        self.path.join(path.trim_start_matches('/'))
    }

    fn copy(&self, file: &Path, to: &str) -> Result<()> {
        let to = self.file(to);
        fs::create_dir_all(to.parent().context("a file has a directory")?)?;
        fs::copy(file, &to).with_context(|| file.display().to_string())?;
        fs::set_permissions(&to, Permissions::from_mode(0o755))?;
        Ok(())
    }

    /// Runs dpkg: `-i` packages, `-r` names. The root has no system packages to depend on.
    ///
    /// # Errors
    /// dpkg fails; the error has its output.
    pub fn dpkg<P: AsRef<Path>>(&self, action: &str, what: &[P]) -> Result<()> {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg("--force-depends").arg("--root").arg(&self.path);
        try_run(dpkg.arg(action).args(what.iter().map(P::as_ref)))?;
        Ok(())
    }

    /// Runs rpm, likewise.
    ///
    /// # Errors
    /// rpm fails; the error has its output.
    pub fn rpm<P: AsRef<Path>>(&self, action: &str, what: &[P]) -> Result<()> {
        let mut rpm = Command::new("rpm");
        rpm.arg("--root").arg(&self.path);
        rpm.args(["--dbpath", "/var/lib/rpm", "--nodeps"]);
        try_run(rpm.arg(action).args(what.iter().map(P::as_ref)))?;
        Ok(())
    }

    /// The libraries that the dynamic linker of this root finds, as ldconfig lists them.
    ///
    /// # Errors
    /// ldconfig fails; the error has its output.
    pub fn libraries(&self) -> Result<String> {
        let mut ldconfig = Command::new("/sbin/ldconfig");
        try_run(ldconfig.arg("-r").arg(&self.path).arg("-p"))
    }
}
