//! What is in the given paths: files with all of their names, and links that lead out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kpack_core::platform::{SharedInode, shared_inode, shared_inode_at};
use kpack_core::{Error, interrupt};
use kpack_doctor::internal::Root;
use kpack_tree::{DatabaseSelection, Node, Only, Parsed, Walk};

/// The files and links in some paths.
#[derive(Debug, Default)]
pub(super) struct TrimTree {
    /// What each given path has: nothing, if it is a file.
    pub(super) inventories: Vec<kpack_tree::Tree>,
    /// The names of each file, in order.
    pub(super) files: Vec<Vec<PathBuf>>,
    /// Symbolic links to files elsewhere, and those files.
    pub(super) links: Vec<(PathBuf, PathBuf)>,
    /// Directories with leftovers of interrupted runs.
    pub(super) leftovers: BTreeSet<PathBuf>,
    /// Why something could not be listed or read.
    pub(super) unread: Vec<Error>,
}

/// What was given: a directory or a file, without symbolic links; or a symbolic link to a file in another directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Given(pub(super) PathBuf, IsDirectory);

/// As it was found: somebody may have put something else there by now.
type IsDirectory = bool;

impl Given {
    /// The paths in `root`, without those within others.
    pub(super) fn find(root: &Root, paths: &[PathBuf]) -> Result<Vec<Self>, Error> {
        let mut found = Vec::new();
        for path in paths {
            let failed = |error| Error::io(path, "find", error);
            let mut real = root.resolve(path).map_err(failed)?;
            // A library's other names are links in its own directory. A link to a file elsewhere, which others may use, gets a
            // file of its own.
            if let (Some(parent), Some(name)) = (path.parent(), path.file_name())
                && real.is_file()
            {
                let directory = root.resolve(parent).map_err(failed)?;
                if real.parent() != Some(&*directory) {
                    real = directory.join(name);
                }
            }
            let is_directory = real.is_dir();
            found.push(Self(real, is_directory));
        }
        found.sort();
        found.dedup_by(|next, first| next.0.starts_with(&first.0));
        Ok(found)
    }

    pub(super) fn is_directory(&self) -> bool {
        self.1
    }

    /// The directory that notes are in.
    pub(super) fn directory(&self) -> &Path {
        if self.1 { &self.0 } else { self.0.parent().unwrap_or(&self.0) }
    }
}

impl TrimTree {
    /// Reads what is in the given paths, with kernel files of these `databases`.
    ///
    /// # Errors
    /// A signal asked the process to end.
    pub(super) fn read(
        root: &Root,
        given: &[Given],
        databases: &DatabaseSelection,
    ) -> Result<Self, Error> {
        let mut tree = Self::default();
        let mut shared: BTreeMap<SharedInode, usize> = BTreeMap::new();
        for Given(path, _) in given {
            let mut inventory = kpack_tree::Tree::default();
            let metadata = path.symlink_metadata().map_err(|e| Error::io(path, "read", e))?;
            if metadata.is_file() {
                let inode = shared_inode_at(path, shared_inode(&metadata))
                    .map_err(|e| Error::io(path, "read", e))?;
                tree.add_file(&mut shared, path.clone(), inode);
            } else if metadata.is_symlink() {
                tree.add_link(root, given, path.clone());
            } else {
                let parsed = Parsed::default();
                let walk = Walk { prefix: path, databases, parsed, only: Only::Inventory };
                inventory = walk.collect()?;
            }
            tree.unread.append(&mut inventory.unread);
            for leftover in &inventory.leftovers {
                tree.leftovers.extend(path.join(leftover).parent().map(Path::to_owned));
            }
            for entry in &inventory.entries {
                interrupt::check(path, "read")?;
                let path = path.join(&entry.path);
                match entry.node {
                    Node::File { .. } => {
                        tree.add_file(&mut shared, path, entry.shared_inode.as_deref().copied())
                    }
                    Node::Symlink => tree.add_link(root, given, path),
                    Node::Directory { .. } => {}
                }
            }
            tree.inventories.push(inventory);
        }
        tree.files.sort();
        Ok(tree)
    }

    fn add_file(
        &mut self,
        shared: &mut BTreeMap<SharedInode, usize>,
        path: PathBuf,
        inode: Option<SharedInode>,
    ) {
        let next = self.files.len();
        match inode.map(|inode| *shared.entry(inode).or_insert(next)).filter(|at| *at < next) {
            Some(at) => self.files[at].push(path),
            None => self.files.push(vec![path]),
        }
    }

    fn add_link(&mut self, root: &Root, given: &[Given], path: PathBuf) {
        match leads_out(root, given, &path) {
            Ok(Some(to)) => self.links.push((path, to)),
            Ok(None) => {}
            Err(error) => self.unread.push(error),
        }
    }
}

/// The file outside of the given paths that a link leads to, unless it does so by another link in them.
///
/// # Errors
/// [`Error::Io`]: what it leads to is not known.
fn leads_out(root: &Root, given: &[Given], link: &Path) -> Result<Option<PathBuf>, Error> {
    let is_given = |path: &Path| given.iter().any(|given| path.starts_with(&given.0));
    let failed = |error| Error::io(link, "follow", error);
    let (Some(inside), Some(real)) = (root.inside(link), root.follow(link)?) else {
        return Ok(None);
    };
    if is_given(&real) || !real.symlink_metadata().map_err(failed)?.is_file() {
        return Ok(None);
    }
    // Its next step, without following what that is.
    let target = link.read_link().map_err(failed)?;
    let next = inside.parent().unwrap_or(inside).join(target);
    let (Some(directory), Some(name)) = (next.parent(), next.file_name()) else {
        return Ok(None);
    };
    let directory = root.resolve(directory).map_err(failed)?;
    Ok((!is_given(&directory.join(name))).then_some(real))
}
