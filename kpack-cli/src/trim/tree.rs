//! What is in the given paths: files with all of their names, and links that lead out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kpack_core::platform::id_of;
use kpack_core::{Error, interrupt};
use kpack_split::input::{walk, walk_error};
use kpack_split::leftover::is_leftover_entry;

use super::place::Root;

/// The files and links in some paths.
#[derive(Debug, Default)]
pub(super) struct Tree {
    /// The names of each file, in order.
    pub(super) files: Vec<Vec<PathBuf>>,
    /// Symbolic links to files elsewhere, and those files.
    pub(super) links: Vec<(PathBuf, PathBuf)>,
    /// Directories with leftovers of interrupted runs.
    pub(super) leftovers: BTreeSet<PathBuf>,
    /// Why something could not be listed.
    pub(super) unread: Vec<Error>,
}

/// What was given: a directory or a file, without symbolic links; or a symbolic link to a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Given(pub(super) PathBuf);

impl Given {
    /// The paths in `root`, without those within others.
    pub(super) fn find(root: &Root, paths: &[PathBuf]) -> Result<Vec<Self>, Error> {
        let mut found = Vec::new();
        for path in paths {
            let failed = |error| Error::io(path, "find", error);
            let mut real = root.resolve(path).map_err(failed)?;
            // A link to a file, which others may use, gets a file of its own.
            if let (Some(parent), Some(name)) = (path.parent(), path.file_name())
                && real.is_file()
            {
                real = root.resolve(parent).map_err(failed)?.join(name);
            }
            found.push(Self(real));
        }
        found.sort();
        found.dedup_by(|next, first| next.0.starts_with(&first.0));
        Ok(found)
    }

    /// The directory that notes are in.
    pub(super) fn directory(&self) -> &Path {
        if self.0.is_dir() { &self.0 } else { self.0.parent().unwrap_or(&self.0) }
    }
}

impl Tree {
    /// Lists what is in the given paths.
    ///
    /// # Errors
    /// A signal asked the process to end.
    pub(super) fn read(root: &Root, given: &[Given]) -> Result<Self, Error> {
        let mut files: BTreeMap<(u64, u64), Vec<PathBuf>> = BTreeMap::new();
        let mut tree = Self::default();
        for Given(path) in given {
            for entry in walk(path).follow_root_links(false) {
                interrupt::check(path, "list")?;
                let added = entry.map_err(|error| walk_error(path, error)).and_then(|entry| {
                    let (kind, path) = (entry.file_type(), entry.path());
                    if is_leftover_entry(&entry) {
                        tree.leftovers.extend(path.parent().map(Path::to_owned));
                    } else if kind.is_file() {
                        let metadata = entry.metadata().map_err(|error| walk_error(path, error))?;
                        let id = id_of(path, &metadata).map_err(|e| Error::io(path, "read", e))?;
                        files.entry(id).or_default().push(entry.into_path());
                    } else if kind.is_symlink() {
                        let to = leads_out(root, given, path);
                        tree.links.extend(to.map(|to| (entry.into_path(), to)));
                    }
                    Ok(())
                });
                tree.unread.extend(added.err());
            }
        }
        tree.files = files.into_values().collect();
        tree.files.sort();
        Ok(tree)
    }
}

/// The file outside of the given paths that a link leads to, unless it does so by another link in them.
fn leads_out(root: &Root, given: &[Given], link: &Path) -> Option<PathBuf> {
    let is_given = |path: &Path| given.iter().any(|given| path.starts_with(&given.0));
    let inside = root.inside(link)?;
    let real = root.resolve(inside).ok()?;
    if is_given(&real) || !real.metadata().ok()?.is_file() {
        return None;
    }
    // Its next step, without following what that is.
    let target = link.read_link().ok()?;
    let next = inside.parent()?.join(target);
    let directory = root.resolve(next.parent()?).ok()?;
    (!is_given(&directory.join(next.file_name()?))).then_some(real)
}
