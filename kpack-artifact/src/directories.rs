//! Artifact directories among others: where they are, and what each is by its name and the manifests in it.

use std::io;
use std::path::{Path, PathBuf};

use kpack_core::Error;
use kpack_core::publish::is_leftover;
use kpack_format::names::{Group, is_manifest};
use kpack_format::unstable::target_names;
use kpack_split::input::walk;
use kpack_split::leftover::{directories, is_leftover_entry};

use super::manifest_txt;
use super::names::{self, Role};

/// The directories in one directory, sorted by path, and what they are by their names.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Siblings {
    /// Artifact directories: path, component and role.
    pub artifacts: Vec<(PathBuf, String, Role)>,
    /// Leftovers of interrupted runs.
    pub leftovers: Vec<PathBuf>,
    /// Directories without a list of prefixes, or whose list is unreadable; hidden ones are somebody's work in progress.
    pub others: Vec<PathBuf>,
}

/// The same, without their roles.
#[derive(Default)]
pub(crate) struct SiblingPaths {
    pub(crate) artifacts: Vec<PathBuf>,
    /// Directories whose list is no file, or cannot be looked up: perhaps artifacts.
    pub(crate) unknown: Vec<PathBuf>,
    pub(crate) leftovers: Vec<PathBuf>,
    pub(crate) others: Vec<PathBuf>,
}

impl SiblingPaths {
    pub(crate) fn read(directory: &Path) -> Result<Self, Error> {
        let mut found = Self::default();
        for path in directories(directory)? {
            let list = path.join(manifest_txt::FILE_NAME).metadata();
            let kind = if is_leftover(path.file_name().unwrap_or_default()) {
                &mut found.leftovers
            } else {
                match list {
                    Ok(list) if list.is_file() => &mut found.artifacts,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => &mut found.others,
                    _ => &mut found.unknown,
                }
            };
            kind.push(path);
        }
        Ok(found)
    }
}

/// Whether a directory is an artifact directory: whether it lists its prefixes.
pub(crate) fn is_artifact(path: &Path) -> bool {
    path.join(manifest_txt::FILE_NAME).is_file()
}

/// How deep to look for artifact directories: a directory of shards contains directories of
/// artifacts.
const DEPTH: usize = 3;

/// The artifact directories at and below `path`, and the leftover directories of interrupted runs, which
/// are not looked into. `failed` gets what cannot be listed.
pub(crate) fn find_artifacts(
    path: &Path,
    failed: impl Fn(walkdir::Error) -> Result<(), Error>,
) -> Result<(Vec<PathBuf>, Vec<PathBuf>), Error> {
    let (mut found, mut leftovers) = (Vec::new(), Vec::new());
    let mut walk = walk(path).max_depth(DEPTH).into_iter();
    while let Some(entry) = walk.next() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                failed(error)?;
                continue;
            }
        };
        let is_leftover = entry.file_type().is_dir() && is_leftover_entry(&entry);
        if is_leftover || is_artifact(entry.path()) {
            let list = if is_leftover { &mut leftovers } else { &mut found };
            list.push(entry.into_path());
            walk.skip_current_dir();
        }
    }
    Ok((found, leftovers))
}

impl Siblings {
    /// Reads the names in `directory`.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn read(directory: &Path) -> Result<Self, Error> {
        let SiblingPaths { artifacts, unknown, leftovers, mut others } =
            SiblingPaths::read(directory)?;
        others.extend(unknown);
        others.sort();
        let with_role = artifacts.iter().map(|path| {
            let (component, role) = role(path, &artifacts);
            (path.clone(), component, role)
        });
        Ok(Self { artifacts: with_role.collect(), leftovers, others })
    }

    /// The artifacts of a component, the generic one first.
    pub(crate) fn of(&self, component: &str) -> Vec<(PathBuf, Role)> {
        let mut own: Vec<(PathBuf, Role)> = self
            .artifacts
            .iter()
            .filter(|(_, own, role)| own == component && *role != Role::Unsplit)
            .map(|(path, _, role)| (path.clone(), role.clone()))
            .collect();
        own.sort_by_key(|(_, role)| *role != Role::Generic);
        own
    }
}

/// The component and role of an artifact directory, by its name, its manifests and those `beside` it.
/// The component of one that is not split is its whole name.
fn role(path: &Path, beside: &[PathBuf]) -> (String, Role) {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let parsed = names::parse(&name);
    if let Some((component, None)) = parsed {
        return (component.to_owned(), Role::Generic);
    }
    // A group may be called after one of its targets; its own manifests say so.
    let manifests = manifest_names(path);
    for (at, _) in name.rmatch_indices('_') {
        let (component, suffix) = (&name[..at], &name[at + 1..]);
        let has_generic = || {
            let generic = names::artifact(component, None);
            beside.iter().any(|path| path.ends_with(&generic))
        };
        if manifests.iter().any(|name| is_part(name, suffix))
            || target_names::exact(suffix).is_none() && has_generic()
        {
            return (component.to_owned(), Role::Group);
        }
    }
    match parsed {
        Some((component, Some(target))) => (component.to_owned(), Role::Target(target)),
        _ => (name.into_owned(), Role::Unsplit),
    }
}

/// The role of an artifact directory, by its name and the manifests in it.
pub(crate) fn role_of(artifact: &Path) -> Role {
    let real = artifact.canonicalize();
    role(real.as_deref().unwrap_or(artifact), &[]).1
}

/// Whether the manifest with this name is the part of a group: `rocblas_lib.gfx110X.kpm`.
fn is_part(manifest: &str, group: &str) -> bool {
    manifest.ends_with(&Group::from("").fragment(group))
}

/// The names of the manifests in an artifact directory. What cannot be listed fails the artifact when it is read, and
/// must not fail those beside it.
fn manifest_names(artifact: &Path) -> Vec<String> {
    walk(artifact)
        .into_iter()
        .flatten()
        .filter(|entry| is_manifest(entry.path()))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use kpack_core::publish::hidden;

    use super::*;

    #[test]
    fn an_artifact_that_cannot_be_listed_does_not_hide_others() {
        let parent = tempfile::tempdir().unwrap();
        let artifact = parent.path().join("blas_lib_instinct");
        // A directory whose path is longer than paths may be.
        let long = |top: &str| {
            (0..12).fold(artifact.join(top), |path: PathBuf, _| path.join("n".repeat(200)))
        };
        fs::create_dir_all(long("deep")).unwrap();
        fs::create_dir_all(long("deeper")).unwrap();
        fs::rename(artifact.join("deeper"), long("deep").join("deeper")).unwrap();
        let other = parent.path().join("fft_lib_generic");
        fs::create_dir(&other).unwrap();
        // On disks, only root may list this one.
        fs::create_dir_all(parent.path().join("lost+found").join(manifest_txt::FILE_NAME)).unwrap();
        for path in [&artifact, &other] {
            fs::write(path.join(manifest_txt::FILE_NAME), "").unwrap();
        }
        let found = Siblings::read(parent.path()).unwrap();
        let roles = found.artifacts.iter().map(|(_, component, role)| (&component[..], role));
        let expected = [("blas_lib_instinct", &Role::Unsplit), ("fft_lib", &Role::Generic)];
        assert_eq!(Vec::from_iter(roles), expected);
        assert_eq!(found.others, [parent.path().join("lost+found")]);
    }

    #[test]
    fn what_a_directory_is_by_its_list() {
        let parent = tempfile::tempdir().unwrap();
        let leftover = hidden("blas_lib").into_string().unwrap();
        for (name, list) in [
            ("artifact", Some("missing/../list")),
            ("loop", Some(manifest_txt::FILE_NAME)),
            ("directory", Some("missing")),
            ("dangling", Some("nothing")),
            ("none", None),
            (&leftover, None),
        ] {
            let directory = parent.path().join(name);
            fs::create_dir_all(directory.join("missing")).unwrap();
            fs::write(directory.join("list"), "").unwrap();
            if let Some(target) = list {
                symlink(target, directory.join(manifest_txt::FILE_NAME)).unwrap();
            }
        }
        let found = SiblingPaths::read(parent.path()).unwrap();
        let names = |paths: &[PathBuf]| {
            let names = paths.iter().map(|path| path.file_name().unwrap().to_str().unwrap());
            names.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(&found.artifacts), "artifact");
        assert_eq!(names(&found.unknown), "directory loop");
        assert_eq!(names(&found.leftovers), leftover);
        assert_eq!(names(&found.others), "dangling none");
    }
}
