//! Archives that are near a binary, but not where its marker leads: whoever copies an application may copy them to another
//! place.

use std::path::{Path, PathBuf};

use kpack::internal::Environment;
use kpack::internal::lookup::Rules;
use kpack_core::{Error, files};
use kpack_format::TargetId;
use kpack_format::names::{SearchPath, is_archive};
use kpack_split::input::{LinkedBinary, Lookup, MarkerGroup, Resolver};

use super::code::CodeForGpu;

/// An archive in the wrong place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MisplacedArchive {
    pub(crate) from: PathBuf,
    /// Where the marker leads.
    pub(crate) to: PathBuf,
    /// What to rename, and to what, so that it is there: the archive, or its directory; `None` if that would take more.
    pub(crate) moved: Option<(PathBuf, PathBuf)>,
}

/// Where copies of archives end up, from the binary's directory.
const PLACES: [&str; 9] = [
    ".kpack",
    ".",
    "../.kpack",
    "..",
    "../lib/.kpack",
    "../lib64/.kpack",
    "lib/.kpack",
    "lib",
    "bin/.kpack",
];

/// Searches near a binary for the archive with its code for `gpu`, which `resolver` does not find.
pub(crate) fn find(
    linked: &LinkedBinary,
    group: &MarkerGroup,
    kernel_name: &str,
    resolver: &Resolver,
    gpu: &TargetId,
) -> Result<Option<MisplacedArchive>, Error> {
    let loaded_as = linked.loaded_as();
    let Some(directory) = loaded_as.parent().and_then(|path| path.canonicalize().ok()) else {
        return Ok(None);
    };
    let searched = resolver.kpacks.searched.iter();
    let patterns = Vec::from_iter(searched.filter_map(|path| {
        Some((path, path.file_name()?, SearchPath::new(path).split()?.directory))
    }));
    for place in PLACES {
        let Ok(near) = directory.join(place).canonicalize() else { continue };
        for (pattern, name, expected) in &patterns {
            let here = near.join(name);
            if expected.canonicalize().is_ok_and(|expected| expected == near) {
                continue;
            }
            let mut environment = Environment::default();
            environment.path = vec![here];
            // Only what the loader would load is worth moving.
            let lookup = Lookup::new(Rules::KPACK, environment);
            let other =
                Resolver::open(&lookup, &linked.image, &loaded_as, &group.marker, kernel_name)?;
            if CodeForGpu::of(group, &other, gpu)? != CodeForGpu::Here {
                continue;
            }
            let own = other.kpacks.files.iter().find(|kpack| gpu.may_run(&kpack.target));
            let Some(from) = own.map(|kpack| kpack.path.clone()) else { continue };
            let to = expected.join(from.file_name().unwrap_or_default());
            let moved = rename(&from, &to, pattern);
            return Ok(Some(MisplacedArchive { from, to, moved }));
        }
    }
    Ok(None)
}

/// The one rename that brings an archive to its place.
fn rename(from: &Path, to: &Path, pattern: &Path) -> Option<(PathBuf, PathBuf)> {
    let (old, new) = (from.parent()?, to.parent()?);
    if new.is_dir() {
        return Some((from.to_owned(), to.to_owned()));
    }
    // The whole directory, unless archives of others are in there.
    let is_own = |path: &PathBuf| {
        let group = SearchPath::new(pattern).split().and_then(|pattern| pattern.group());
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        !is_archive(path) || group.is_some_and(|group| group.target_of(&name).is_some())
    };
    let is_alone = files::list(old).is_ok_and(|listed| listed.iter().all(is_own));
    let may_be_moved = old.ends_with(".kpack") && new.parent()?.is_dir() && is_alone;
    may_be_moved.then(|| (old.to_owned(), new.to_owned()))
}
