//! Writes the artifacts of a component under hidden names, then gives them their final ones.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::manifest_txt;
use super::mark;
use super::output::{EntrySource, Output};
use super::writer::{Writer, set_directories};
use kpack_core::Error;
use kpack_core::publish::{
    Directory, HiddenDirectory, Renames, StagedFile, check_output, check_output_directory,
    make_directories,
};
use kpack_core::report::Progress;

/// A hidden directory beside the final places of a component's artifacts, or of a project's wheels, in
/// which they are written. It is locked as long as this lives. Dropped before it is published, it is removed.
#[derive(Debug)]
pub struct Stage {
    hidden: HiddenDirectory,
    output: PathBuf,
}

impl Stage {
    /// Waits for the lock. What an interrupted run wrote is removed. The artifacts that it set aside
    /// stay until this run succeeds: they may be the only complete ones.
    pub fn lock(output: &Path, component: &str) -> Result<Self, Error> {
        let stage = Self {
            hidden: HiddenDirectory::lock(&output.join(component))?,
            output: output.to_owned(),
        };
        stage.hidden.empty(&is_new)?;
        Ok(stage)
    }

    /// The hidden directory, for temporary files.
    pub fn path(&self) -> &Path {
        self.hidden.path()
    }

    /// The directory where the artifact `name` is written.
    pub fn artifact(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// The final path of the artifact `name`.
    pub fn output(&self, name: &str) -> PathBuf {
        self.output.join(name)
    }

    /// Writes the entries of an artifact, except host binaries.
    pub(super) fn write(
        &self,
        name: &str,
        output: &Output,
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        let mut writer = self.writer(name)?;
        for (path, source) in &output.entries {
            match source {
                EntrySource::Host(_) => continue,
                EntrySource::Directory(_) => {
                    make_directories(&self.artifact(name).join(path))?;
                    continue;
                }
                EntrySource::Copy(from, edits) => {
                    progress.file(path);
                    progress.advance(writer.copy(path, from, edits)?);
                }
                EntrySource::Bytes(bytes, like) => {
                    progress.file(path);
                    writer.bytes(path, bytes, like)?;
                    progress.advance(bytes.len() as u64);
                }
            }
        }
        Ok(())
    }

    /// Writes files of the artifact `name`.
    pub(super) fn writer(&self, name: &str) -> Result<Writer, Error> {
        Writer::new(self.artifact(name))
    }

    /// Adds the list of prefixes and the mark to an artifact that is otherwise complete, and sets the
    /// modes and times of directories. Returns the number and the size of the files added. The list is
    /// newer than what it was made of: builds know by it that the artifact is up to date.
    pub(super) fn finish(&self, name: &str, output: &Output) -> Result<(u64, u64), Error> {
        let root = self.artifact(name);
        let prefixes = output.prefixes.iter();
        let prefixes = prefixes.filter(|prefix| root.join(prefix).is_dir());
        let list = manifest_txt::to_text(prefixes).into_bytes();
        let files =
            [(manifest_txt::FILE_NAME, list), (mark::FILE_NAME, mark::to_bytes(&output.databases))];
        let mut size = 0;
        for (name, bytes) in &files {
            let path = root.join(name);
            // All is flushed at once before it is published.
            let directory = Directory::open(&root)?.without_flushes();
            let (staged, ()) = StagedFile::write_in(directory, name.as_ref(), |staged| {
                let written = staged.file().write_all(bytes);
                written.map_err(|e| Error::io(&path, "write", e))
            })?;
            staged.commit()?;
            size += bytes.len() as u64;
        }
        set_directories(&root, output)?;
        Ok((files.len() as u64, size))
    }

    /// Gives the artifacts `names` their final names, and the generic one last, if one was written.
    ///
    /// What was there before goes first the same way: as long as there is a generic artifact, it is
    /// complete, and all others are. That also holds after a power failure. On failure, what was there
    /// before gets its names back. The artifacts `replaced`, whose contents are in those of other names now,
    /// are removed.
    pub fn publish(
        self,
        names: &[&str],
        generic: Option<&str>,
        replaced: &[&str],
    ) -> Result<(), Error> {
        for name in names.iter().chain(&generic) {
            let output = self.output(name);
            match self.artifact(name).is_dir() {
                true => check_output_directory(&output)?,
                // A wheel.
                false => check_output(&output)?,
            }
        }
        // After a power failure, no name may refer to content that was lost.
        self.hidden.directory().sync_file_system()?;
        let output = Directory::open(&self.output)?;
        let mut renames = Renames::default();
        if let Some(generic) = generic {
            renames.set_aside(&self.output(generic), &self.aside(generic))?;
            output.sync()?;
        }
        for name in names {
            let (new, path) = (self.artifact(name), self.output(name));
            match generic {
                Some(_) => {
                    renames.set_aside(&path, &self.aside(name))?;
                    renames.rename(&new, &path)?;
                }
                // The generic artifact stays, so there must be one of this name at any moment.
                None => renames.replace(&new, &path, &self.aside(name))?,
            }
        }
        for name in replaced {
            renames.set_aside(&self.output(name), &self.aside(name))?;
        }
        output.sync()?;
        if let Some(generic) = generic {
            renames.rename(&self.artifact(generic), &self.output(generic))?;
            output.sync()?;
        }
        renames.keep();
        self.hidden.empty(&|_| true)
    }

    /// A free name for what an artifact replaces. An interrupted run may have left others.
    fn aside(&self, name: &str) -> PathBuf {
        let mut path = self.path().join(format!("{SET_ASIDE}{name}"));
        while path.symlink_metadata().is_ok() {
            path.as_mut_os_string().push("_");
        }
        path
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // What was replaced is still here if it could not get its name back.
        let _ = self.hidden.empty(&is_new);
    }
}

/// Prefix of the names of replaced artifacts.
const SET_ASIDE: &str = "old.";

fn is_new(name: &OsStr) -> bool {
    !name.as_encoded_bytes().starts_with(SET_ASIDE.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fs;

    use super::*;

    const GENERIC: &str = "blas_lib_generic";
    const ONE: &str = "blas_lib_gfx1100";
    const OTHER: &str = "blas_lib_gfx942";

    /// Puts an artifact with `text` into the stage.
    fn write(stage: &Stage, name: &str, text: &str) {
        fs::create_dir(stage.artifact(name)).unwrap();
        fs::write(stage.artifact(name).join("version"), text).unwrap();
    }

    fn names(directory: &Path) -> Vec<OsString> {
        let mut names = Directory::open(directory).unwrap().names().unwrap();
        names.sort();
        names
    }

    #[test]
    fn the_generic_artifact_is_there_only_if_all_others_are() {
        let output = tempfile::tempdir().unwrap();
        let lock = || Stage::lock(output.path(), "blas_lib").unwrap();
        let version = || fs::read_to_string(output.path().join(GENERIC).join("version"));

        let stage = lock();
        write(&stage, GENERIC, "1");
        write(&stage, ONE, "1");
        stage.publish(&[ONE], Some(GENERIC), &[]).unwrap();
        assert_eq!(version().unwrap(), "1");

        // The second target's artifact cannot be renamed: it is not there. Everything is as before.
        let stage = lock();
        write(&stage, GENERIC, "2");
        write(&stage, ONE, "2");
        let published = stage.publish(&[ONE, OTHER], Some(GENERIC), &[]);
        assert!(matches!(published, Err(Error::Io { .. })));
        assert_eq!(version().unwrap(), "1");
        assert_eq!(names(output.path()), [GENERIC, ONE]);

        let stage = lock();
        for name in [GENERIC, ONE, OTHER] {
            write(&stage, name, "2");
        }
        stage.publish(&[ONE, OTHER], Some(GENERIC), &[]).unwrap();
        assert_eq!(version().unwrap(), "2");
        assert_eq!(names(output.path()), [GENERIC, ONE, OTHER]);
    }

    #[test]
    fn artifacts_that_an_interrupted_run_set_aside_stay_until_another_run_succeeds() {
        let output = tempfile::tempdir().unwrap();
        let hidden = HiddenDirectory::beside(&output.path().join("blas_lib"));
        // A run was killed after it had set the generic artifact aside and replaced another.
        for (name, text) in [("old.blas_lib_generic", "1"), ("old.blas_lib_gfx1100", "1")] {
            fs::create_dir_all(hidden.join(name)).unwrap();
            fs::write(hidden.join(name).join("version"), text).unwrap();
        }
        fs::write(hidden.join(".scratch"), "").unwrap();
        fs::create_dir(output.path().join(ONE)).unwrap();

        // The next run fails, before its first rename or after it.
        for names_to_publish in [&[][..], &[ONE, OTHER]] {
            let stage = Stage::lock(output.path(), "blas_lib").unwrap();
            write(&stage, GENERIC, "2");
            write(&stage, ONE, "2");
            match names_to_publish {
                [] => drop(stage),
                names => drop(stage.publish(names, Some(GENERIC), &[]).unwrap_err()),
            }
            assert_eq!(names(&hidden), ["old.blas_lib_generic", "old.blas_lib_gfx1100"]);
        }

        let stage = Stage::lock(output.path(), "blas_lib").unwrap();
        write(&stage, GENERIC, "2");
        write(&stage, ONE, "2");
        stage.publish(&[ONE], Some(GENERIC), &[]).unwrap();
        assert_eq!(names(output.path()), [GENERIC, ONE]);
    }
}
