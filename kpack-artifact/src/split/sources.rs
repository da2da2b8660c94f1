//! Which directories an artifact is read from, and where the output must not go: into the input or in its place, however
//! the paths are spelled.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;

use super::Options;
use crate::directories::{Siblings, role_of};
use crate::names::Role;
use crate::{manifest_txt, names};
use kpack_core::Error;
use kpack_core::platform::id_of;
use kpack_core::publish::{hidden, resolve};
use kpack_core::{Finding, Severity, ids};
use kpack_split::leftover;

/// An artifact of a directory of artifact directories.
pub(super) struct BatchArtifact {
    /// Name and component.
    pub(super) prefix: String,
    pub(super) sources: Sources,
}

/// The directories that an artifact is read from: one, which may be of an earlier split, or all artifacts of an earlier
/// split with their targets, the generic one first.
pub(super) type Sources = Vec<(Option<TargetId>, PathBuf)>;

/// The one directory that the options name.
pub(super) fn of_directory(options: &Options) -> Result<Sources, Error> {
    let artifact = &options.artifact_dir;
    check_output(&options.output_dir, [(artifact.as_path(), options.artifact_prefix.as_str())])?;
    match artifact.join(manifest_txt::FILE_NAME).symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound && artifact.is_dir() => {
            let reason = format!(
                "not an artifact directory: it has no {}; for a plain install tree, use \
                 `kpack split --prefix DIR FILE...`",
                manifest_txt::FILE_NAME
            );
            return Err(Error::rejected(ids::NOT_AN_ARTIFACT, artifact, reason));
        }
        _ => refuse_group(artifact)?,
    }
    Ok(vec![(None, artifact.clone())])
}

/// The artifacts in `parent`, by prefix. Anything else in it is noted.
pub(super) fn in_parent(
    parent: &Path,
    output: &Path,
    findings: &mut Vec<Finding>,
) -> Result<Vec<BatchArtifact>, Error> {
    let own = id(parent).map_err(|e| Error::io(parent, "list", e))?;
    if is(&resolve(output)?, own) {
        return Err(Error::usage(format!(
            "{} is the directory of the artifacts and the output directory too",
            parent.display()
        )));
    }
    let listed = Siblings::read(parent)?;
    findings.extend(
        listed.leftovers.into_iter().map(|path| {
            Finding::new(Severity::Note, ids::LEFTOVER, path, leftover::TEXT.to_owned())
        }),
    );
    findings.extend(listed.others.into_iter().map(|path| {
        let text = format!("has no {}; skipped", manifest_txt::FILE_NAME);
        Finding::new(Severity::Note, ids::NOT_AN_ARTIFACT, path, text)
    }));
    let mut artifacts: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    // One whose list cannot be read fails when it is split, and the others are still split.
    let unreadable = listed.unreadable.into_iter().map(|(path, _)| path);
    for path in listed.artifacts.into_iter().chain(unreadable) {
        refuse_group(&path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let prefix = names::component(&name).to_owned();
        artifacts.entry(prefix).or_default().push(path);
    }
    if artifacts.is_empty() {
        return Err(Error::usage(format!(
            "{}: no directory in it has an {}",
            parent.display(),
            manifest_txt::FILE_NAME
        )));
    }
    let inputs = artifacts
        .iter()
        .flat_map(|(prefix, paths)| paths.iter().map(|path| (path.as_path(), prefix.as_str())));
    check_output(output, inputs)?;
    let artifacts = artifacts.into_iter();
    artifacts
        .map(|(prefix, paths)| {
            let sources = of_paths(&prefix, &paths)?;
            Ok(BatchArtifact { prefix, sources })
        })
        .collect()
}

/// Refuses the artifact of a group of targets: its manifests would be of no group. One in a batch stops all of it, because
/// it says that the batch is the output of a recombination, of which no artifact may be split.
fn refuse_group(artifact: &Path) -> Result<(), Error> {
    if role_of(artifact) != Role::Group {
        return Ok(());
    }
    let reason = "the artifact of a group of targets, which `kpack artifact recombine` made, so it is \
                  split already; split the artifacts that the machines built";
    Err(Error::rejected(ids::SPLIT_ARTIFACT, artifact, reason))
}

/// The directories of one artifact: one, or those of an earlier split, by their names.
fn of_paths(prefix: &str, paths: &[PathBuf]) -> Result<Sources, Error> {
    let [one, other, ..] = paths else {
        return Ok(paths.iter().map(|path| (None, path.clone())).collect());
    };
    let source = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let (component, target) = names::parse(&name)?;
        (component == prefix).then(|| (target, path.clone()))
    };
    let mut sources = paths.iter().map(source).collect::<Option<Vec<_>>>().ok_or_else(|| {
        Error::usage(format!(
            "{} and {} are both artifact {prefix}; split them into separate output directories. If `kpack artifact \
             recombine` wrote them, they are split already",
            one.display(),
            other.display()
        ))
    })?;
    sources.sort();
    Ok(sources)
}

/// Refuses an output directory that would put output into one of `inputs`, or replace what holds
/// one: artifact directories with their prefixes.
fn check_output<'a>(
    output_dir: &Path,
    inputs: impl IntoIterator<Item = (&'a Path, &'a str)> + Clone,
) -> Result<(), Error> {
    let output = resolve(output_dir)?;
    for (input, _) in inputs.clone() {
        let own = id(input).map_err(|e| Error::io(input, "open", e))?;
        if output.ancestors().any(|above| is(above, own)) {
            return Err(Error::usage(format!(
                "output directory {} is in the artifact directory {}, which is only read",
                output_dir.display(),
                input.display()
            )));
        }
        let Some(name) = name_in(&output, input)? else {
            continue;
        };
        if inputs.clone().into_iter().any(|(_, prefix)| is_written(&name, prefix)) {
            return Err(Error::usage(format!(
                "the artifact directory {} is where its own output would be, at {}; name another \
                 output directory",
                input.display(),
                output_dir.join(name).display()
            )));
        }
    }
    Ok(())
}

/// Which directory `path` leads to.
fn id(path: &Path) -> io::Result<(u64, u64)> {
    id_of(path, &path.metadata()?)
}

/// Whether `path` is this directory. One may have several paths: where it is mounted twice.
fn is(path: &Path, directory: (u64, u64)) -> bool {
    id(path).is_ok_and(|own| own == directory)
}

/// The name of what holds `input` in the directory `output`, if that does.
fn name_in(output: &Path, input: &Path) -> Result<Option<OsString>, Error> {
    let Ok(output) = id(output) else {
        return Ok(None);
    };
    let input = input.canonicalize().map_err(|e| Error::io(input, "open", e))?;
    let holds = |path: &&Path| path.parent().is_some_and(|parent| is(parent, output));
    let name = input.ancestors().find(holds).and_then(Path::file_name);
    Ok(name.map(ToOwned::to_owned))
}

/// Whether splitting an artifact replaces or removes entries with this name.
fn is_written(name: &OsString, prefix: &str) -> bool {
    *name == hidden(prefix)
        || names::parse(&name.to_string_lossy()).is_some_and(|(component, _)| component == prefix)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Checks an output directory against the artifact directory `in/blas_lib`, in a tree that also
    /// has a link to it, and one in the place of the output.
    fn check(output: &str) -> Result<(), String> {
        let tree = tempfile::tempdir().unwrap();
        let at = |path: &str| tree.path().join(path);
        fs::create_dir_all(at("in/blas_lib/stage/lib")).unwrap();
        fs::create_dir_all(at("out/blas_lib_generic/deep/blas_lib")).unwrap();
        symlink("in/blas_lib/stage", at("link")).unwrap();
        symlink("nowhere", at("dangling")).unwrap();
        let input = match output {
            "out" => at("out/blas_lib_generic/deep/blas_lib"),
            _ => at("in/blas_lib"),
        };
        let checked = check_output(&at(output), [(input.as_path(), "blas_lib")]);
        checked.map_err(|error| match error {
            Error::Usage(text) => text.replace(tree.path().to_str().unwrap(), "TREE"),
            error => panic!("{error:?}"),
        })
    }

    #[test]
    fn output_does_not_go_into_the_input_in_any_spelling() {
        for output in [
            "in/blas_lib",
            "in/blas_lib/",
            "in/blas_lib/stage/new/deep",
            "in/../in/./blas_lib/x",
            "link",
            "link/lib/x",
            "link/..",
        ] {
            let text = check(output).unwrap_err();
            assert!(text.contains("is in the artifact directory"), "{text}");
        }
        for output in ["in", "in/out", "elsewhere", "link/../../other"] {
            assert_eq!(check(output), Ok(()), "{output}");
        }
    }

    #[test]
    fn output_does_not_replace_what_holds_the_input() {
        let text = check("out").unwrap_err();
        assert!(
            text.ends_with("at TREE/out/blas_lib_generic; name another output directory"),
            "{text}"
        );
    }

    #[test]
    fn a_way_through_what_is_not_there_is_refused() {
        let text = check("missing/../in/blas_lib").unwrap_err();
        assert!(text.contains("`..` follows"), "{text}");
        let text = check("dangling/x").unwrap_err();
        assert!(text.contains("is a dangling symbolic link"), "{text}");
    }
}
