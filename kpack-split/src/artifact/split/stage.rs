//! Artifacts under hidden names, in the output directory, and how they get their final ones.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use walkdir::WalkDir;

use super::Options;
use super::plan::{Item, Plan};
use super::report::Report;
use crate::Error;
use crate::artifact::classify::Node;
use crate::artifact::manifest_txt;
use crate::artifact::mark;
use crate::artifact::names::{self, GENERIC, Kind};
use crate::artifact::staged_tree::remove_tree;
use crate::store::{CreatedDirectories, Directory, Renames};

/// The name of a split artifact.
pub(super) fn artifact_name(prefix: &str, target: Option<&TargetId>) -> String {
    match target {
        None => format!("{prefix}_{GENERIC}"),
        Some(target) => format!("{prefix}_{target}"),
    }
}

/// The name of the directory that split artifacts are written in.
pub(super) fn hidden_name(prefix: &str) -> String {
    format!(".{prefix}.tmp")
}

/// A hidden directory with the artifacts to be, locked as long as this lives.
pub(super) struct Stage {
    path: PathBuf,
    output: PathBuf,
    prefix: String,
    lock: Directory,
    /// It, and the output directory, as far as they were made; without output they go again.
    _made: CreatedDirectories,
}

impl Stage {
    /// Waits for the lock, and removes what a run that was killed left behind.
    pub(super) fn lock(options: &Options) -> Result<Self, Error> {
        let output = options.output_dir.clone();
        let path = output.join(hidden_name(&options.artifact_prefix));
        let mut made = CreatedDirectories::default();
        let lock = loop {
            // What is in it is removed.
            if path.is_symlink() {
                let reason = "it is in the way: a symbolic link, where artifacts are to be written";
                return Err(Error::refused(&path, reason));
            }
            let lock = Directory::make(&path, &mut made)?;
            lock.lock()?;
            // Another run may have removed it when it was done, while this one waited.
            if Directory::open(&path).is_ok_and(|now| now.is(&lock)) {
                break lock;
            }
        };
        let stage = Self {
            path,
            output,
            prefix: options.artifact_prefix.clone(),
            lock,
            _made: made,
        };
        stage.empty(&|_| true)?;
        Ok(stage)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Where an artifact is written.
    pub(super) fn artifact(&self, target: Option<&TargetId>) -> PathBuf {
        self.path.join(artifact_name(&self.prefix, target))
    }

    /// Where an artifact will be.
    pub(super) fn output(&self, target: Option<&TargetId>) -> PathBuf {
        self.output.join(artifact_name(&self.prefix, target))
    }

    /// Refuses to replace what is no artifact, and names what an earlier run left for targets that
    /// there is nothing for now.
    pub(super) fn check(
        &self,
        targets: &[&TargetId],
        plan: &Plan,
        report: &mut Report,
    ) -> Result<(), Error> {
        let output = self.output(None);
        let has_files =
            |item: &Item| item.target.is_none() && !matches!(item.node, Node::Directory { .. });
        let is_empty = plan.generic.is_some() && !plan.items.iter().any(has_files);
        if !targets.is_empty() && is_empty && has_more_than_list(&output) {
            return Err(Error::refused(
                &output,
                "it would be replaced by an empty one, because the input has only device code \
                 that an earlier run split off",
            ));
        }
        let generic = plan.generic.iter().map(|_| None);
        let all = generic.chain(targets.iter().map(|target| Some(*target)));
        for output in all.map(|target| self.output(target)) {
            mark::check_replaceable(&output)?;
        }
        let entries = fs::read_dir(&self.output).map_err(|e| Error::io(&self.output, "list", e))?;
        for entry in entries {
            let name = entry
                .map_err(|e| Error::io(&self.output, "list", e))?
                .file_name();
            let is_left = match name.to_str().and_then(names::parse) {
                Some((prefix, Kind::Target(target))) => {
                    prefix == self.prefix && !targets.contains(&&target)
                }
                _ => false,
            };
            if is_left {
                report.warn(
                    self.output.join(name),
                    "stale: an earlier run wrote it, and this artifact has no code for its target",
                );
            }
        }
        Ok(())
    }

    /// Gives the artifacts their final names, the generic one last. What was there before goes
    /// first the same way: as long as there is a generic artifact, it is whole, and all others are.
    /// That holds over a power failure, too. Where it fails, what was there before has its names
    /// again.
    pub(super) fn commit(self, targets: &[&TargetId]) -> Result<(), Error> {
        self.sync_content()?;
        let output = Directory::open(&self.output)?;
        let mut renames = Renames::default();
        renames.set_aside(&self.output(None), &self.aside(None))?;
        output.sync()?;
        for target in targets.iter().map(|target| Some(*target)) {
            renames.set_aside(&self.output(target), &self.aside(target))?;
            renames.rename(&self.artifact(target), &self.output(target))?;
        }
        output.sync()?;
        renames.rename(&self.artifact(None), &self.output(None))?;
        output.sync()?;
        renames.keep();
        self.empty(&|_| true)
    }

    /// The same beside a generic artifact that stays.
    pub(super) fn commit_beside(self, targets: &[&TargetId]) -> Result<(), Error> {
        self.sync_content()?;
        let mut renames = Renames::default();
        for target in targets.iter().map(|target| Some(*target)) {
            let (new, output) = (self.artifact(target), self.output(target));
            renames.replace(&new, &output, &self.aside(target))?;
        }
        Directory::open(&self.output)?.sync()?;
        renames.keep();
        self.empty(&|_| true)
    }

    /// Makes what was written durable: a name must not survive a power failure that its content does
    /// not.
    pub(super) fn sync_content(&self) -> Result<(), Error> {
        self.lock.sync_file_system()
    }

    /// Where what an artifact replaces is meanwhile.
    fn aside(&self, target: Option<&TargetId>) -> PathBuf {
        let name = artifact_name(&self.prefix, target);
        self.path.join(format!("{OLD}{name}"))
    }

    /// Removes what is in it and has one of the names that `which` tells.
    fn empty(&self, which: &dyn Fn(&OsStr) -> bool) -> Result<(), Error> {
        for name in self.lock.names()?.iter().filter(|name| which(name)) {
            remove_tree(&self.path.join(name))?;
        }
        Ok(())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // What was replaced is still here where it could not get its name back.
        let is_new = |name: &OsStr| !name.as_encoded_bytes().starts_with(OLD.as_bytes());
        let _ = self.empty(&is_new);
        let _ = fs::remove_dir(&self.path);
    }
}

/// What the names of replaced artifacts begin with.
const OLD: &str = "old.";

/// Whether there are files in an artifact besides its list of prefixes, and below directories.
fn has_more_than_list(artifact: &Path) -> bool {
    let mut entries = WalkDir::new(artifact).min_depth(1).into_iter().flatten();
    entries.any(|entry| {
        let within = entry.path().strip_prefix(artifact);
        !entry.file_type().is_dir() && !within.is_ok_and(manifest_txt::is_of_artifact)
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    /// Puts an artifact into the stage.
    fn write(stage: &Stage, target: Option<&TargetId>) {
        let artifact = stage.artifact(target);
        fs::create_dir(&artifact).unwrap();
        fs::write(artifact.join(mark::FILE_NAME), "").unwrap();
    }

    fn names(directory: &Path) -> Vec<OsString> {
        let mut names = Directory::open(directory).unwrap().names().unwrap();
        names.sort();
        names
    }

    #[test]
    fn the_generic_artifact_is_there_only_if_all_others_are() {
        let output = tempfile::tempdir().unwrap();
        let options = Options::new("in", output.path(), "blas_lib");
        let (one, other): (TargetId, TargetId) =
            ("gfx1100".parse().unwrap(), "gfx942".parse().unwrap());
        let generic = output.path().join("blas_lib_generic");

        let stage = Stage::lock(&options).unwrap();
        write(&stage, None);
        write(&stage, Some(&one));
        stage.commit(&[&one]).unwrap();
        assert!(generic.is_dir());

        // What a run that was killed left behind goes.
        let stage = Stage::lock(&options).unwrap();
        fs::write(stage.path().join(".scratch"), "").unwrap();
        fs::create_dir_all(stage.path().join("old.blas_lib_gfx942/lib")).unwrap();
        drop(stage);

        // The second target's artifact cannot be renamed: it is not there. Everything is as before.
        fs::write(generic.join("version"), "1").unwrap();
        let stage = Stage::lock(&options).unwrap();
        write(&stage, None);
        write(&stage, Some(&one));
        assert!(matches!(
            stage.commit(&[&one, &other]),
            Err(Error::Io { .. })
        ));
        assert_eq!(fs::read(generic.join("version")).unwrap(), b"1");
        assert_eq!(
            names(output.path()),
            ["blas_lib_generic", "blas_lib_gfx1100"]
        );

        let stage = Stage::lock(&options).unwrap();
        for target in [None, Some(&one), Some(&other)] {
            write(&stage, target);
        }
        stage.commit(&[&one, &other]).unwrap();
        assert_eq!(
            names(output.path()),
            ["blas_lib_generic", "blas_lib_gfx1100", "blas_lib_gfx942"]
        );
    }
}
