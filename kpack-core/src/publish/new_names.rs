//! The names that output of a [`Stage`](super::Stage) gets.

use std::fmt;
use std::path::Path;

use crate::Error;

/// Asks whether the entry at a path may be replaced.
pub(super) type MayReplace<'a> = &'a dyn Fn(&Path) -> Result<(), Error>;

/// Names that output gets together: paths relative to the directory where it appears.
#[derive(Clone)]
pub struct NewNames<'a> {
    pub(super) names: Vec<&'a Path>,
    pub(super) last: &'a [&'a str],
    pub(super) replaced: Vec<&'a Path>,
    pub(super) directories: Vec<&'a Path>,
    pub(super) may_replace: MayReplace<'a>,
}

impl<'a> NewNames<'a> {
    /// These `names`, in the order in which they appear. The output replaces whatever has them.
    pub fn new<P: AsRef<Path>>(names: &'a [P]) -> Self {
        let names = names.iter().map(AsRef::as_ref).collect();
        let (replaced, directories) = (Vec::new(), Vec::new());
        Self { names, last: &[], replaced, directories, may_replace: &|_| Ok(()) }
    }

    /// And after them those in `last`, whose presence says that all others are there and complete.
    pub fn with_last(self, last: &'a [&'a str]) -> Self {
        Self { last, ..self }
    }

    /// Instead of what is at these paths, which is removed, since its contents have other names now.
    pub fn instead_of<P: AsRef<Path>>(self, replaced: &'a [P]) -> Self {
        Self { replaced: replaced.iter().map(AsRef::as_ref).collect(), ..self }
    }

    /// And these directories, even if nothing is in them.
    pub fn with_directories<P>(self, paths: impl IntoIterator<Item = &'a P>) -> Self
    where
        P: AsRef<Path> + 'a,
    {
        Self { directories: paths.into_iter().map(AsRef::as_ref).collect(), ..self }
    }

    /// Replaces only what `may_replace` allows, which is asked when something is there.
    pub fn where_allowed(self, may_replace: MayReplace<'a>) -> Self {
        Self { may_replace, ..self }
    }
}

impl fmt::Debug for NewNames<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { names, last, replaced, directories, .. } = self;
        f.debug_struct("NewNames")
            .field("names", names)
            .field("last", last)
            .field("replaced", replaced)
            .field("directories", directories)
            .finish_non_exhaustive()
    }
}
