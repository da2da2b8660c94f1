//! An artifact of a set.

use std::path::Path;

use kpack_core::Error;

use crate::classify::Parsed;
use crate::mark;
use crate::tree::{Role, Tree};
use crate::verify::artifact_sets::Set;
use crate::verify::report::Report;

/// An artifact of a set, read.
pub(super) struct Member {
    pub(super) role: Role,
    pub(super) asked_for: bool,
    pub(super) tree: Tree,
}

impl Member {
    /// Reads the artifact at `path`; if that fails, returns the report of the fault.
    pub(super) fn read(
        set: &Set,
        role: &Role,
        root: &Path,
        path: Option<&Path>,
        parsed: Parsed<'_>,
    ) -> Result<Result<Self, Report>, Error> {
        let root = path.unwrap_or(root);
        let tree = mark::databases(root)
            .and_then(|databases| Tree::read_once(&set.component, root, &databases, parsed));
        match tree {
            Ok(tree) => Ok(Ok(Self { role: role.clone(), asked_for: path.is_some(), tree })),
            Err(error @ Error::Refused { .. }) => {
                let mut own = Report::default();
                if let Some(path) = path {
                    own.fault(error.id(), path, error.to_string());
                }
                Ok(Err(own))
            }
            Err(error) => Err(error),
        }
    }
}
