//! Artifact directories among others: where they are, and what each is by its name and the manifests in it.

use std::io;
use std::path::{Path, PathBuf};

use kpack_core::publish::is_leftover;
use kpack_core::{Error, Finding, Severity, ids};
use kpack_format::names::{Group, is_manifest};
use kpack_format::unstable::target_names;
use kpack_split::input::walk;
use kpack_split::leftover::{directories, is_leftover_entry};

use super::manifest_txt;
use super::names::{self, Role};

/// The directories in one directory, sorted by path, by what they are.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Siblings {
    /// Artifact directories.
    pub artifacts: Vec<PathBuf>,
    /// Directories whose list of prefixes cannot be read, and why. None has the name of an artifact.
    pub unreadable: Vec<(PathBuf, io::Error)>,
    /// Leftovers of interrupted runs.
    pub leftovers: Vec<PathBuf>,
    /// Directories without a list of prefixes; hidden ones are somebody's work in progress.
    pub others: Vec<PathBuf>,
}

impl Siblings {
    /// Looks for the list of prefixes in each directory in `directory`.
    ///
    /// # Errors
    /// [`Error::Io`] if `directory` cannot be listed, or the list of one that is named like an artifact of a generic
    /// part or a target cannot be read: output without that artifact would look complete.
    pub fn read(directory: &Path) -> Result<Self, Error> {
        let mut found = Self::default();
        for path in directories(directory)? {
            if is_leftover(path.file_name().unwrap_or_default()) {
                found.leftovers.push(path);
                continue;
            }
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let is_named = names::parse(&name).is_some();
            let list = path.join(manifest_txt::FILE_NAME);
            match list.metadata() {
                Ok(list) if list.is_file() => found.artifacts.push(path),
                Ok(_) => found.unreadable.push((path, io::Error::other("it is not a file"))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => found.others.push(path),
                Err(error) if is_named => return Err(Error::io(&list, "read", error)),
                Err(error) => found.unreadable.push((path, error)),
            }
        }
        Ok(found)
    }

    /// The component and role of each artifact, by its name, its manifests and the artifacts beside it.
    pub fn roles(&self) -> impl Iterator<Item = (&Path, String, Role)> {
        self.artifacts.iter().map(|path| {
            let (component, role) = role(path, &self.artifacts);
            (path.as_path(), component, role)
        })
    }

    /// Says of each directory whose list cannot be read that it is skipped, and why.
    pub fn skipped(&self) -> impl Iterator<Item = Finding> {
        self.unreadable.iter().map(|(path, error)| {
            let text = format!("skipped: its {} cannot be read: {error}", manifest_txt::FILE_NAME);
            Finding::new(Severity::Note, ids::SYSTEM, path, text)
        })
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
    use kpack_tests::tree::{unlistable, write};

    use super::*;

    #[test]
    fn an_artifact_that_cannot_be_listed_does_not_hide_others() {
        let parent = tempfile::tempdir().unwrap();
        let artifact = parent.path().join("blas_lib_instinct");
        unlistable(&artifact.join("stage"));
        let other = parent.path().join("fft_lib_generic");
        fs::create_dir(&other).unwrap();
        for path in [&artifact, &other] {
            fs::write(path.join(manifest_txt::FILE_NAME), "").unwrap();
        }
        let found = Siblings::read(parent.path()).unwrap();
        let roles = found.roles().map(|(_, component, role)| (component, role));
        let expected = [("blas_lib_instinct", Role::Unsplit), ("fft_lib", Role::Generic)];
        assert!(roles.eq(expected.map(|(name, role)| (name.to_owned(), role))));
    }

    /// Given artifacts in one directory, each with the manifests in it, then this is the component and role of each.
    #[test]
    fn what_an_artifact_is_by_its_name_and_manifests() {
        let parent = tempfile::tempdir().unwrap();
        let target = |target: &str| Role::Target(target.parse().unwrap());
        let rows = [
            ("blas_lib_all", None, "blas_lib", Role::Group),
            ("blas_lib_generic", Some("rocblas_lib.kpm"), "blas_lib", Role::Generic),
            // A group may be called after one of its targets.
            ("blas_lib_gfx1100", Some("rocblas_lib.gfx1100.kpm"), "blas_lib", Role::Group),
            ("blas_lib_gfx942", Some("rocblas_lib.kpm"), "blas_lib", target("gfx942")),
            ("fft_lib", None, "fft_lib", Role::Unsplit),
            // Without a generic artifact beside it, only its manifests tell.
            ("fft_lib_all", None, "fft_lib_all", Role::Unsplit),
            ("fft_lib_gfx90a", None, "fft_lib", target("gfx90a")),
            ("fft_lib_mi", Some("rocfft_lib.mi.kpm"), "fft_lib", Role::Group),
            ("fft_lib_other", Some("rocfft_lib.mi.kpm"), "fft_lib_other", Role::Unsplit),
        ];
        for (name, manifest, ..) in &rows {
            write(parent.path().join(name).join(manifest_txt::FILE_NAME), "stage\n");
            if let Some(manifest) = manifest {
                write(parent.path().join(name).join("stage/lib/.kpack").join(manifest), "");
            }
        }
        let found = Siblings::read(parent.path()).unwrap();
        let found = Vec::from_iter(found.roles().map(|(_, component, role)| (component, role)));
        let expected = rows.map(|(_, _, component, role)| (component.to_owned(), role));
        assert_eq!(found, expected);
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
        let found = Siblings::read(parent.path()).unwrap();
        let names = |paths: &[PathBuf]| {
            let names = paths.iter().map(|path| path.file_name().unwrap().to_str().unwrap());
            names.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(&found.artifacts), "artifact");
        assert_eq!(names(&found.leftovers), leftover);
        assert_eq!(names(&found.others), "dangling none");
        let skipped = found.skipped().map(|note| {
            let name = note.file().file_name().unwrap().display().to_string();
            name + " " + note.text.strip_prefix("skipped: its artifact_manifest.txt ").unwrap()
        });
        let expected = [
            "directory cannot be read: it is not a file",
            "loop cannot be read: Too many levels of symbolic links (os error 40)",
        ];
        assert_eq!(Vec::from_iter(skipped), expected);
    }
}
