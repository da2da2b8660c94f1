//! What to split, and how.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use kpack_format::names::{GFXARCH, Group, SearchPath};

use kpack_core::publish::check_names;
use kpack_core::{Error, Storage};

/// What to split, and how.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// The module, such as `rocblas`: what the archives are named after.
    pub module: String,
    /// The component, such as `lib`: the second part of the archives' names.
    pub component: String,
    /// Where the host-only objects go; the archives go into `.kpack` in it.
    pub output_dir: PathBuf,
    /// Where the linked binary looks for archives: absolute, or relative to its directory, with
    /// `@GFXARCH@` for the target ID. If empty, it looks in `.kpack/` next to itself and in
    /// `../lib/.kpack/`.
    pub search_paths: Vec<String>,
    /// How code objects are stored.
    pub storage: Storage,
    /// Objects and static libraries. They are not modified unless they are in the output directory.
    pub files: Vec<PathBuf>,
    /// Whether the output must survive a power failure. A build can be repeated.
    pub(crate) flushes: bool,
}

impl Options {
    /// Options with defaults for everything else: component `lib`, archives without compression.
    pub fn new(
        module: impl Into<String>,
        output_dir: impl Into<PathBuf>,
        files: impl IntoIterator<Item = impl Into<PathBuf>>,
    ) -> Self {
        Self {
            module: module.into(),
            component: "lib".to_owned(),
            output_dir: output_dir.into(),
            search_paths: Vec::new(),
            storage: Storage::uncompressed(),
            files: files.into_iter().map(Into::into).collect(),
            flushes: true,
        }
    }

    pub(super) fn validate(&self) -> Result<(), Error> {
        check_names(&self.module, &self.component)?;
        if self.files.is_empty() {
            return Err(Error::usage("no object given"));
        }
        if let Some(path) =
            self.search_paths.iter().find(|path| !SearchPath::new(path.as_str()).names_target())
        {
            return Err(Error::usage(format!(
                "search path `{path}` has no {GFXARCH} where the target ID belongs"
            )));
        }
        let mut names = BTreeSet::new();
        for file in &self.files {
            let Some(name) = file.file_name() else {
                return Err(Error::usage(format!("`{}` is not a file name", file.display())));
            };
            if !names.insert(name) {
                return Err(Error::usage(format!(
                    "two files named `{}` would overwrite each other in {}; split them \
                     into different directories",
                    Path::new(name).display(),
                    self.output_dir.display()
                )));
            }
        }
        Ok(())
    }

    /// The search paths to put into the markers.
    pub(super) fn search_paths(&self, group: &Group) -> Vec<String> {
        if !self.search_paths.is_empty() {
            return self.search_paths.clone();
        }
        let archive = group.archive_pattern();
        let directories = [".kpack", "../lib/.kpack"];
        directories.map(|directory| format!("{directory}/{archive}")).to_vec()
    }
}
