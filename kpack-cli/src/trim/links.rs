//! Whether the file that a symbolic link leads to may become a copy in the link's place.
//!
//! Linux and Windows know a program by its real path, so a copy would look for its libraries around the link. The dynamic
//! linker knows a library by the path where it found it, which is the link, so a copy finds the same libraries. But whoever
//! resolves links first, as many programs do before they load a library or read its files, finds what is around the real
//! file. So a copy must find as much as that.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};

use kpack_core::Error;
use kpack_core::platform::OsStrExt;
use kpack_doctor::internal::Root;
use kpack_split::elf::{self, BinaryError, Dynamic};
use kpack_split::host::Image;
use kpack_split::input::{binary_error, or_refused};
use kpack_tree::databases;
use object::elf::{DT_NEEDED, DT_RPATH, DT_RUNPATH};

/// How many libraries are looked for at most: a small file could name any number of libraries and directories.
const MOST_LOOKUPS: usize = 100_000;

/// Why a copy of the open `file` at `real` may not take the place of a `link` to it; `None` if it may.
///
/// # Errors
/// [`Error::Io`].
pub(super) fn why_it_stays(
    root: &Root,
    link: &Path,
    real: &Path,
    file: &File,
) -> Result<Option<String>, Error> {
    let file = file.try_clone().map_err(|error| Error::io(real, "read", error))?;
    let read = Image::read(file).map_err(|error| binary_error(real, error));
    // Objects and bundles are read by nobody who looks around them.
    let Ok(image) = or_refused(read)? else {
        return Ok(None);
    };
    let failed = |error: BinaryError| binary_error(real, error);
    if image.is_program().map_err(failed)? {
        let text = "it is a program, which looks for its libraries around its real path";
        return Ok(Some(text.to_owned()));
    }
    let directory = |path: &Path| path.parent().map(Path::to_owned).unwrap_or_default();
    let around = LinkEnds { root, link: directory(link), real: directory(real) };
    if let Some(image) = image.elf()
        && let Some(lost) = around.lost_library(image).map_err(failed)?
    {
        return Ok(Some(lost));
    }
    let lost = around.lost_database(&real.file_name().unwrap_or_default().to_string_lossy())?;
    Ok(lost.map(|lost| around.lacks(&lost)))
}

/// The directories of a link and of the file that it leads to.
struct LinkEnds<'a> {
    root: &'a Root,
    link: PathBuf,
    real: PathBuf,
}

impl LinkEnds<'_> {
    fn exists(&self, path: &Path) -> bool {
        self.root.inside(path).is_some_and(|inside| self.root.resolve(inside).is_ok())
    }

    /// Why a copy would not find the libraries that the real file finds by `$ORIGIN`.
    fn lost_library(&self, image: &elf::Image<File>) -> Result<Option<String>, BinaryError> {
        let dynamic = Dynamic::read(image)?;
        let strings = |tag| dynamic.strings(image, tag);
        // The dynamic linker ignores DT_RPATH beside the other.
        let runpath = strings(DT_RUNPATH)?;
        let lists = if runpath.is_empty() { strings(DT_RPATH)? } else { runpath };
        let parts = lists.iter().flat_map(|list| list.split(|byte| *byte == b':'));
        let directories = Vec::from_iter(parts.filter_map(after_origin));
        let names = strings(DT_NEEDED)?;
        if names.len().saturating_mul(directories.len()) > MOST_LOOKUPS {
            let text = format!("more than {MOST_LOOKUPS} libraries would have to be looked for");
            return Ok(Some(text));
        }
        for name in names {
            let places: Vec<PathBuf> = match after_origin(&name) {
                Some(place) => vec![place],
                None if name.contains(&b'/') => continue,
                None => directories.iter().map(|directory| directory.join(path(&name))).collect(),
            };
            let found = |from: &Path| places.iter().find(|place| self.exists(&from.join(place)));
            if let Some(place) = found(&self.real)
                && found(&self.link).is_none()
            {
                return Ok(Some(self.lacks(&self.real.join(place))));
            }
        }
        Ok(None)
    }

    /// A kernel database of the library `name` that lies around the real file, and not around the link.
    fn lost_database(&self, name: &str) -> Result<Option<PathBuf>, Error> {
        let name = name.to_lowercase();
        let prefix = self.real.parent();
        for above in [Some(&*self.real), prefix].into_iter().flatten() {
            let is_own = |database: &databases::Database| name.contains(database.name);
            let (installed, unlisted) = databases::installed(&[above], &is_own);
            if let Some(error) = unlisted.into_iter().next() {
                return Err(error);
            }
            for found in installed {
                let Ok(inside) = found.directory.strip_prefix(above) else {
                    continue;
                };
                let beside =
                    if above == self.real { Some(&*self.link) } else { self.link.parent() };
                if !beside.is_some_and(|beside| self.exists(&beside.join(inside))) {
                    return Ok(Some(found.directory));
                }
            }
        }
        Ok(None)
    }

    fn lacks(&self, lost: &Path) -> String {
        format!(
            "it finds {} relative to its real path, and a copy in {} would not",
            lost.display(),
            self.link.display()
        )
    }
}

/// The path after `$ORIGIN` in an entry of a search path, if that begins with it.
fn after_origin(entry: &[u8]) -> Option<PathBuf> {
    let rest = entry.strip_prefix(b"$ORIGIN").or_else(|| entry.strip_prefix(b"${ORIGIN}"))?;
    match rest.strip_prefix(b"/") {
        Some(rest) => Some(path(rest)),
        None => rest.is_empty().then(PathBuf::new),
    }
}

fn path(bytes: &[u8]) -> PathBuf {
    OsStr::from_bytes(bytes).into()
}
