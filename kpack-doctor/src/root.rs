//! Paths in the root directory of this machine or of an image: absolute links lead into it, and nothing leads out.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};

use kpack_core::publish::Directory;
use kpack_core::{Error, files};

/// As many links as Linux follows in a path.
const MOST_LINKS: usize = 40;

/// Where absolute paths begin: in the root of an image, or on the drive that they name. The default is the machine's own.
#[derive(Debug, Default)]
pub struct Root(RootKind);

#[derive(Debug, Default)]
enum RootKind {
    #[default]
    Machine,
    /// An image, whose directory is held open.
    Image(Directory),
    /// A directory that does not exist, so it has no databases of packages.
    Absent(PathBuf),
}

impl Root {
    /// That of an image in a directory, or the machine's.
    ///
    /// # Errors
    /// [`Error::Io`] if there is no such directory.
    pub fn find(image: Option<&Path>) -> Result<Self, Error> {
        let real = image
            .map(|image| image.canonicalize().map_err(|error| Error::io(image, "find", error)));
        let image = real.transpose()?.map(|real| Directory::open(&real)).transpose()?;
        Ok(Self(image.map_or(RootKind::Machine, RootKind::Image)))
    }

    /// The root directory that has this path: the machine's own, or that of an image. If there is no such directory, nothing is
    /// in it.
    ///
    /// # Errors
    /// [`Error::Io`] if the directory cannot be opened.
    pub(crate) fn of_system(system: &Path) -> Result<Self, Error> {
        match Self::find(Some(system).filter(|system| *system != Path::new("/"))) {
            Err(Error::Io { source, .. }) if is_absent(&source) => {
                Ok(Self(RootKind::Absent(system.to_owned())))
            }
            found => found,
        }
    }

    /// The directory of an image, held open.
    pub fn image(&self) -> Option<&Directory> {
        match &self.0 {
            RootKind::Image(image) => Some(image),
            RootKind::Machine | RootKind::Absent(_) => None,
        }
    }

    /// The directory in which package managers have their databases.
    pub fn directory(&self) -> &Path {
        match &self.0 {
            RootKind::Machine => Path::new("/"),
            RootKind::Image(image) => image.path(),
            RootKind::Absent(path) => path,
        }
    }

    /// The directory that an absolute path begins at.
    fn of(&self, path: &Path) -> PathBuf {
        match &self.0 {
            RootKind::Machine => path.ancestors().last().unwrap_or(path).to_owned(),
            RootKind::Image(_) | RootKind::Absent(_) => self.directory().to_owned(),
        }
    }

    /// What a path of the machine is called in it; `None` for one outside.
    pub fn inside<'p>(&self, path: &'p Path) -> Option<&'p Path> {
        match &self.0 {
            RootKind::Machine => Some(path),
            RootKind::Image(_) | RootKind::Absent(_) => path.strip_prefix(self.directory()).ok(),
        }
    }

    /// Opens the directory at `path`, which has no symbolic links in it.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Changed`] if it is not in the root.
    pub fn open(&self, path: &Path) -> Result<Directory, Error> {
        match self.image() {
            Some(image) => {
                let inside = path.strip_prefix(image.path());
                image.below(inside.map_err(|_| Error::changed(path))?)
            }
            None => Directory::open(path),
        }
    }

    /// Opens the file at `path`, which has no symbolic links in it.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Changed`] if it is no longer there.
    pub fn open_file(&self, path: &Path) -> Result<File, Error> {
        if self.image().is_none() {
            return files::open(path);
        }
        let directory = self.open(path.parent().unwrap_or(path))?;
        let name = path.file_name().unwrap_or_default();
        directory.open_file(name)?.ok_or_else(|| Error::changed(path))
    }

    /// The path without symbolic links of what `path` leads to, as a process sees it whose root directory this is. The
    /// result is absolute, and a path of the machine; `path` is absolute, unless this is an image's.
    ///
    /// # Errors
    /// There is nothing at the path, or there are too many links.
    pub fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        let mut root = self.of(path);
        let mut found = root.clone();
        let mut links = 0;
        let mut left = parts(path);
        while let Some(part) = left.pop() {
            if part == ".." {
                if found != root {
                    found.pop();
                }
                continue;
            }
            let next = found.join(&part);
            let metadata = next.symlink_metadata()?;
            if !metadata.is_symlink() {
                found = next;
                continue;
            }
            links += 1;
            if links > MOST_LINKS {
                return Err(io::Error::other("too many symbolic links"));
            }
            let target = next.read_link()?;
            if target.is_absolute() {
                root = self.of(&target);
                root.clone_into(&mut found);
            }
            left.extend(parts(&target));
        }
        Ok(found)
    }

    /// Where the file or directory is that has this name in the root; `None` if there is none.
    pub(crate) fn at(&self, name: &str) -> Option<PathBuf> {
        self.resolve(&Path::new("/").join(name)).ok()
    }

    /// Where a file is that a database lists: packages may list it as it was before `/lib` became a link.
    pub(crate) fn join(&self, listed: &str) -> PathBuf {
        let listed = listed.trim_start_matches('/');
        let (top, rest) = listed.split_once('/').unwrap_or((listed, ""));
        self.at(top).unwrap_or_else(|| self.directory().join(top)).join(rest)
    }

    /// Whether there is something at this path of the machine, and no link leads out of an image.
    ///
    /// # Errors
    /// Those of the system, unless nothing is there.
    pub(crate) fn has(&self, path: &Path) -> io::Result<bool> {
        match fs::canonicalize(path) {
            Err(error) if is_absent(&error) => Ok(false),
            found => {
                let found = found?;
                Ok(self.image().is_none_or(|image| found.starts_with(image.path())))
            }
        }
    }

    /// [Resolves](Self::resolve) a path of the machine; `None` if it leads to nothing, in circles, or out of an image.
    ///
    /// # Errors
    /// [`Error::Io`]: what it leads to is not known.
    pub fn follow(&self, path: &Path) -> Result<Option<PathBuf>, Error> {
        let Some(inside) = self.inside(path) else {
            return Ok(None);
        };
        match self.resolve(inside) {
            Ok(real) => Ok(Some(real)),
            Err(error) => match error.kind() {
                // The last is that of too many links: those of the system are of other kinds.
                ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::Other => Ok(None),
                _ => Err(Error::io(path, "follow", error)),
            },
        }
    }
}

/// Whether an error says that there is nothing at a path.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// The components to follow, the first one last.
fn parts(path: &Path) -> Vec<OsString> {
    let parts = path.components().rev().filter_map(|part| match part {
        Component::Normal(part) => Some(part.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    });
    parts.collect()
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_stay_in_the_root() {
        let directory = tempfile::tempdir().unwrap();
        let outside = directory.path().canonicalize().unwrap();
        let root = outside.join("root");
        fs::create_dir_all(root.join("opt/rocm-6.4/lib")).unwrap();
        fs::write(root.join("opt/rocm-6.4/lib/a.so"), "").unwrap();
        fs::write(outside.join("secret"), "").unwrap();
        symlink("/opt/rocm-6.4", root.join("opt/rocm")).unwrap();
        symlink("../../../../../../opt/rocm/lib", root.join("lib")).unwrap();
        symlink("../../secret", root.join("opt/out")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let image = Root::find(Some(&root)).unwrap();
        let at = |path: &str| image.resolve(Path::new(path));
        let library = root.join("opt/rocm-6.4/lib/a.so");
        assert_eq!(at("/opt/rocm/lib/a.so").unwrap(), library);
        assert_eq!(at("/lib/a.so").unwrap(), library);
        assert_eq!(at("/../lib/../lib/a.so").unwrap(), library);
        assert_eq!(at("/opt/out").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(at("/loop").is_err());
        assert_eq!(at("/").unwrap(), root);
        // Databases list files that are gone, too.
        assert_eq!(image.join("/lib/gone.so"), root.join("opt/rocm-6.4/lib/gone.so"));
        assert_eq!(image.join("none/gone.so"), root.join("none/gone.so"));
        assert_eq!(image.at("opt/out"), None);
        // Others resolve links as the machine does.
        for (path, is_there) in [("lib", false), ("opt/out", false), ("none", false), ("opt", true)]
        {
            assert_eq!(image.has(&root.join(path)).unwrap(), is_there, "{path}");
        }
    }
}
