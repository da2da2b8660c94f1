//! Libraries of a wheel that something else than `kpack wheel split` split.

use std::fmt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::archive::{Sections, Wheel};
use super::members::{Member, of_unpacked};
use kpack_core::Error;
use kpack_core::publish::Directory;
use kpack_format::names::{is_archive, is_manifest};
use kpack_split::input::Lookup;
use kpack_tree::{Class, DatabaseSelection, Only, Parsed, Tree, Walk};

/// A library that another tool split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SplitElsewhere {
    /// Its path in `site-packages`.
    path: PathBuf,
    /// Where its markers say that archives are, if the wheel lacks some.
    missing: Vec<String>,
}

impl SplitElsewhere {
    /// Its path in `site-packages`.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the wheel lacks archives of it.
    pub(super) fn lacks_archives(&self) -> bool {
        !self.missing.is_empty()
    }
}

impl fmt::Display for SplitElsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "member `{}`: split by another tool", self.path.display())?;
        match self.missing.as_slice() {
            [] => write!(
                f,
                ", and its archives are in the wheel; `kpack wheel split` moves them to device wheels"
            ),
            missing => write!(
                f,
                ", and the wheel has no archives at `{}`; add those of the ROCm that it was built with: `kpack wheel split --archives PREFIX`",
                missing.join("`, `")
            ),
        }
    }
}

impl Wheel {
    /// The libraries that another tool split, in a wheel with these sections that is not a host wheel of kpack's. Unpacks only these
    /// libraries, and if there are any, the archives.
    ///
    /// # Errors
    /// [`Error::Refused`] for damage; [`Error::Io`].
    pub(super) fn split_elsewhere(
        &self,
        sections: &[Sections],
    ) -> Result<Vec<SplitElsewhere>, Error> {
        if self.pins()?.are_of_host() || !sections.iter().any(|own| own.marker) {
            return Ok(Vec::new());
        }
        let is_needed = |(member, own): &(&Member, &Sections)| {
            let name = Path::new(&member.name);
            own.marker || is_archive(name) || is_manifest(name)
        };
        let all = self.members.iter().zip(sections);
        let needed = Vec::from_iter(all.filter(is_needed).map(|(member, _)| member));
        #[expect(
            clippy::disallowed_methods,
            reason = "nobody else may write to a temporary directory"
        )]
        let tree =
            TempDir::new().map_err(|e| Error::io(&std::env::temp_dir(), "create files in", e))?;
        self.unpack_some(&needed, &Directory::open(tree.path())?)?;
        let (databases, parsed) = (&DatabaseSelection::default(), Parsed::default());
        let walk = Walk { prefix: tree.path(), databases, parsed, only: Only::All };
        let found = walk.collect().and_then(|found| self.split_elsewhere_in(&found));
        found.map_err(|error| of_unpacked(&self.path, &[tree.path()], error))
    }

    /// As [`split_elsewhere`](Self::split_elsewhere), in the `tree` where the wheel was unpacked.
    pub(super) fn split_elsewhere_in(&self, tree: &Tree) -> Result<Vec<SplitElsewhere>, Error> {
        let mut found = Vec::new();
        if self.pins()?.are_of_host() {
            return Ok(found);
        }
        let lookup = Lookup::default();
        for entry in &tree.entries {
            if *entry.class != Class::Split {
                continue;
            }
            let linked = entry.linked()?;
            let mut missing = Vec::new();
            for group in linked.markers()? {
                let files = lookup.find(&linked.loaded_as(), &group.marker)?.files;
                if files.is_empty() || files.iter().any(|kpack| kpack.size.is_none()) {
                    missing.extend(group.marker.kpack_search_paths);
                }
            }
            missing.dedup();
            found.push(SplitElsewhere { path: entry.path.to_path_buf(), missing });
        }
        Ok(found)
    }
}
