//! The artifacts in a directory of artifact directories.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::unstable::target_names;

use super::output_dir;
use crate::tree::is_of_group;
use crate::{manifest_txt, names};
use kpack_core::Error;
use kpack_core::publish::{is_leftover, resolve};
use kpack_core::{Finding, Severity, ids};
use kpack_split::leftover::{self, directories};

pub(super) struct BatchArtifact {
    /// Name and component.
    pub(super) prefix: String,
    pub(super) sources: Vec<(Option<TargetId>, PathBuf)>,
}

/// The artifacts in `parent`, by prefix. Anything else in it is noted.
pub(super) fn find(
    parent: &Path,
    output: &Path,
    findings: &mut Vec<Finding>,
) -> Result<Vec<BatchArtifact>, Error> {
    let own = output_dir::id(parent).map_err(|e| Error::io(parent, "list", e))?;
    if output_dir::is(&resolve(output)?, own) {
        return Err(Error::usage(format!(
            "{} is the directory of the artifacts and the output directory too",
            parent.display()
        )));
    }
    let mut artifacts: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for path in artifact_directories(parent, findings)? {
        refuse_group(&path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let prefix = artifact_prefix(&name).to_owned();
        artifacts.entry(prefix).or_default().push(path);
    }
    if artifacts.is_empty() {
        return Err(Error::usage(format!(
            "{}: no directory in it has an {}",
            parent.display(),
            manifest_txt::FILE_NAME
        )));
    }
    let inputs = artifacts.iter().flat_map(|(prefix, paths)| {
        let paths = paths.iter();
        paths.map(|path| (path.as_path(), prefix.as_str()))
    });
    output_dir::check_output(output, inputs)?;
    let artifacts = artifacts.into_iter();
    artifacts
        .map(|(prefix, paths)| {
            let sources = sources(&prefix, &paths)?;
            Ok(BatchArtifact { prefix, sources })
        })
        .collect()
}

/// The directories in `parent` that list prefixes, in order. The others are noted.
fn artifact_directories(parent: &Path, findings: &mut Vec<Finding>) -> Result<Vec<PathBuf>, Error> {
    let mut paths = directories(parent)?;
    paths.retain(|path| {
        let list = path.join(manifest_txt::FILE_NAME).metadata();
        let (id, text) = if is_leftover(path.file_name().unwrap_or_default()) {
            (ids::LEFTOVER, leftover::TEXT.to_owned())
        } else if list.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            let text = format!("has no {}; skipped", manifest_txt::FILE_NAME);
            (ids::NOT_AN_ARTIFACT, text)
        } else {
            // One that cannot be read fails when it is split.
            return true;
        };
        findings.push(Finding::new(Severity::Note, id, path, text));
        false
    });
    Ok(paths)
}

/// Refuses the artifact of a group of targets: its manifests would be of no group.
pub(super) fn refuse_group(artifact: &Path) -> Result<(), Error> {
    if !is_of_group(artifact) {
        return Ok(());
    }
    let reason = "the artifact of a group of targets, which `kpack artifact recombine` made, so it is \
                  split already; split the artifacts that the machines built";
    Err(Error::rejected(ids::SPLIT_ARTIFACT, artifact, reason))
}

/// The directories of one artifact: one, or those of an earlier split, by their names.
fn sources(prefix: &str, paths: &[PathBuf]) -> Result<Vec<(Option<TargetId>, PathBuf)>, Error> {
    let [one, other, ..] = paths else {
        return Ok(paths.iter().map(|path| (None, path.clone())).collect());
    };
    let source = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let (component, target) = names::parse(&name)?;
        (component == prefix).then(|| (target, path.clone()))
    };
    let sources: Option<Vec<_>> = paths.iter().map(source).collect();
    let mut sources = sources.ok_or_else(|| {
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

/// The name and component of an artifact directory. A target, or a family of targets, may follow them.
pub(crate) fn artifact_prefix(name: &str) -> &str {
    if let Some((component, _)) = names::parse(name) {
        return component;
    }
    match name.rsplit_once('_') {
        Some((prefix, last)) if target_names::of_build(last).is_some() => prefix,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_no_part_of_the_prefix() {
        assert_eq!(artifact_prefix("blas_lib"), "blas_lib");
        assert_eq!(artifact_prefix("blas_lib_generic"), "blas_lib");
        // The families that TheRock builds for.
        for build in [
            "gfx90X-dcgpu",
            "gfx94X-dcgpu",
            "gfx950-dcgpu",
            "gfx101X-dgpu",
            "gfx103X-dgpu",
            "gfx110X-all",
            "gfx115X-igpu",
            "gfx120X-all",
            "gfx1250-dcgpu",
        ] {
            assert_eq!(artifact_prefix(&format!("blas_lib_{build}")), "blas_lib");
        }
        assert_eq!(artifact_prefix("blas_lib_gfx90a:xnack+"), "blas_lib");
        assert_eq!(artifact_prefix("blas_lib_amdgcnspirv"), "blas_lib");
        assert_eq!(artifact_prefix("core_hip_run"), "core_hip_run");
    }
}
