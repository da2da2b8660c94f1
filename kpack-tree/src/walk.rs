//! Walks through a prefix: each entry is listed once, in order, and read in one of several threads.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kpack_core::Error;
use kpack_core::files::with_slashes;
use kpack_core::platform::{is_pseudo_file_system, shared_inode_at};
use kpack_core::{Finding, Severity, interrupt, parallel};
use kpack_split::input::{self, or_refused, walk_error};
use kpack_split::leftover::is_leftover_entry;
use walkdir::DirEntry;

use crate::classifier::{self, Parsed};
use crate::entry::{Classified, Node};
use crate::selection::DatabaseSelection;
use crate::tree::Tree;

/// What is read below a prefix.
#[derive(Clone, Copy)]
pub struct Walk<'a> {
    /// The directory.
    pub prefix: &'a Path,
    /// Which kernel files to recognise. Files of other databases are for the host.
    pub databases: &'a DatabaseSelection,
    /// What need not be parsed again.
    pub parsed: Parsed<'a>,
    /// What is listed and read.
    pub only: Only,
}

/// What a walk lists and reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Only {
    /// Everything. What is neither a file, a directory nor a symbolic link is refused.
    All,
    /// Everything except FIFOs, sockets and devices, which have no bytes.
    WithBytes,
    /// The files and symbolic links in the places of selected databases, without leftovers of interrupted runs.
    Databases,
    /// The names of everything that has bytes, and the content of what is in the place of a selected database; all else
    /// counts as the host's. Whatever can be listed and read is, so it works for trees that hold more than what was
    /// installed, up to the root of a system: what fails is [unread](Tree::unread), leftovers of interrupted runs
    /// are listed separately, and file systems that the kernel makes up, such as `/proc`, are not entered.
    Inventory,
}

impl Walk<'_> {
    /// Reads everything into one tree.
    ///
    /// # Errors
    /// Except for an [inventory](Only::Inventory), [`Error::Io`] for what cannot be listed, which comes before all
    /// others, or not be read; [`Error::Refused`] for a damaged file of a database or archive in `.kpack`, and for what
    /// has no bytes.
    pub fn collect(&self) -> Result<Tree, Error> {
        if self.only == Only::Inventory && is_made_up(self.prefix) {
            return Ok(Tree::default());
        }
        let (mut entries, mut observations) = (Vec::new(), Vec::new());
        let (mut unread, mut leftovers, mut unlisted) = (Vec::new(), Vec::new(), Vec::new());
        let walk = input::walk(self.prefix)
            .min_depth(1)
            .into_iter()
            .filter_entry(|entry| self.enters(entry, &mut leftovers));
        // What is in a directory comes after it, errors first; those of a directory that is half listed do not name it.
        let mut directory = self.prefix.to_owned();
        let mut found = walk
            .filter_map(|entry| match entry {
                Ok(entry) => {
                    if entry.file_type().is_dir() {
                        entry.path().clone_into(&mut directory);
                    }
                    self.lists(&entry).then_some(entry)
                }
                Err(error) => {
                    unlisted.push(walk_error(&directory, error));
                    None
                }
            })
            .fuse();
        let read = |found| self.read(&found);
        // Each class once: many entries have the same.
        let mut classes = BTreeSet::new();
        let done = parallel::try_in_order(&mut found, read, |(classified, error)| {
            unread.extend(error);
            if let Some(Classified { mut entry, observations: mut own }) = classified {
                match classes.get(&entry.class) {
                    Some(known) => entry.class = Arc::clone(known),
                    None => drop(classes.insert(Arc::clone(&entry.class))),
                }
                entries.push(entry);
                observations.append(&mut own);
            }
        });
        // What cannot be listed is reported first, wherever it is, so list the rest.
        found.take_while(|_| interrupt::check(self.prefix, "list").is_ok()).for_each(drop);
        if self.only == Only::Inventory {
            unread.append(&mut unlisted);
        }
        unlisted.into_iter().next().map_or(done, Err)?;
        let mut tree = Tree { observations, leftovers, ..Tree::from(entries) };
        tree.leave_unread(unread);
        Ok(tree)
    }

    /// Reads one entry of a walk below the prefix. A directory is taken to be empty.
    ///
    /// # Errors
    /// As [`collect`](Self::collect), for this entry.
    pub fn entry(&self, found: &DirEntry) -> Result<Classified, Error> {
        classifier::classify_entry(self.prefix, self.databases, self.parsed, found)
    }

    /// The same, if its content is not read: a file that counts as the host's.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn unread(&self, found: &DirEntry) -> Result<Classified, Error> {
        classifier::unread_entry(self.prefix, found)
    }

    /// Whether to list an entry and what is in it.
    fn enters(&self, entry: &DirEntry, leftovers: &mut Vec<PathBuf>) -> bool {
        let has_leftovers = matches!(self.only, Only::All | Only::WithBytes);
        if !has_leftovers && is_leftover_entry(entry) {
            leftovers.push(self.within(entry).to_owned());
            return false;
        }
        let is_directory = entry.file_type().is_dir();
        !(self.only == Only::Inventory && is_directory && is_made_up(entry.path()))
    }

    /// Whether an entry is one of the result.
    fn lists(&self, entry: &DirEntry) -> bool {
        let kind = entry.file_type();
        match self.only {
            Only::All => true,
            Only::WithBytes | Only::Inventory => {
                kind.is_file() || kind.is_dir() || kind.is_symlink()
            }
            Only::Databases => {
                let owner = self.databases.recognise(&with_slashes(self.within(entry)));
                !kind.is_dir() && owner.is_some_and(|(owner, _)| owner.is_selected())
            }
        }
    }

    /// What was found out about an entry, and for an inventory, why that is not all.
    fn read(&self, found: &DirEntry) -> Result<(Option<Classified>, Option<Error>), Error> {
        interrupt::check(found.path(), "read")?;
        if self.only != Only::Inventory {
            return Ok((Some(self.entry(found)?), None));
        }
        let (read, error) = if self.is_of_database(found) {
            match or_refused(self.entry(found).and_then(with_names)) {
                Ok(Ok(read)) => return Ok((Some(read), None)),
                Ok(Err(refused)) => (Some(refused), None),
                Err(error) => (None, Some(error)),
            }
        } else {
            (None, None)
        };
        let mut entry = match self.unread(found).and_then(with_names) {
            Ok(entry) => entry,
            Err(failed) => return Ok((None, error.or(Some(failed)))),
        };
        entry.observations.extend(read.map(|refused| {
            let path = self.within(found);
            Finding::new(Severity::Fault, refused.id, path, refused.reason())
        }));
        Ok((Some(entry), error))
    }

    /// Whether something is in the place of a selected database, or a directory, which is not read.
    fn is_of_database(&self, found: &DirEntry) -> bool {
        let name = with_slashes(self.within(found));
        let kind = found.file_type();
        let inside = || self.databases.recognise(&format!("{name}/."));
        let place =
            self.databases.recognise(&name).or_else(|| kind.is_symlink().then(inside).flatten());
        kind.is_dir() || place.is_some_and(|(owner, _)| owner.is_selected())
    }

    /// The path of an entry in the prefix.
    fn within<'e>(&self, entry: &'e DirEntry) -> &'e Path {
        entry.path().strip_prefix(self.prefix).unwrap_or(entry.path())
    }
}

/// An entry that says on Windows, too, whether it is a file with several names. An inventory is for those who change
/// files, which must stay one file; all others do without opening each file there.
fn with_names(mut found: Classified) -> Result<Classified, Error> {
    let entry = &mut found.entry;
    if let Node::File { .. } = entry.node {
        let known = entry.shared_inode.as_deref().copied();
        let inode =
            shared_inode_at(entry.full(), known).map_err(|e| Error::io(entry.full(), "read", e))?;
        if inode != known {
            entry.shared_inode = inode.map(Box::new);
        }
    }
    Ok(found)
}

/// Whether a directory is in a file system that the kernel makes up. If that cannot be found out, listing the directory
/// fails as well, and names it.
fn is_made_up(directory: &Path) -> bool {
    is_pseudo_file_system(directory).unwrap_or(false)
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use kpack_core::ids;

    use super::*;
    use crate::entry::{Class, Node};

    fn walk<'a>(prefix: &'a Path, databases: &'a DatabaseSelection, only: Only) -> Walk<'a> {
        Walk { prefix, databases, parsed: Parsed::default(), only }
    }

    /// A directory that nobody can list: its path is longer than paths may be.
    fn unlisted(above: &Path) -> PathBuf {
        let name = "n".repeat(200);
        let long =
            |top: &str| -> PathBuf { (0..12).fold(above.join(top), |path, _| path.join(&name)) };
        let (first, second) = (long("deep"), long("deeper"));
        fs::create_dir_all(&first).unwrap();
        fs::create_dir_all(&second).unwrap();
        fs::rename(above.join("deeper"), first.join("deeper")).unwrap();
        first.join(second.strip_prefix(above).unwrap())
    }

    /// A directory of a database, in which `deep` is a directory that cannot be listed.
    fn database(root: &Path) -> PathBuf {
        let library = root.join("lib/rocblas/library");
        fs::create_dir_all(&library).unwrap();
        fs::write(library.join("TensileLibrary_lazy_gfx942.dat"), [0x80]).unwrap();
        unlisted(&library);
        library
    }

    #[test]
    fn what_cannot_be_listed_is_named() {
        let root = tempfile::tempdir().unwrap();
        let library = database(root.path());
        let databases = DatabaseSelection::default();
        for only in [Only::All, Only::WithBytes, Only::Databases] {
            let walk = walk(root.path(), &databases, only);
            let failed = walk.collect().unwrap_err();
            assert!(
                matches!(&failed, Error::Io { path, .. } if path.starts_with(library.join("deep"))),
                "{only:?}: {failed}"
            );
        }
    }

    #[test]
    fn an_inventory_names_what_cannot_be_listed_and_goes_on() {
        let root = tempfile::tempdir().unwrap();
        let library = database(root.path());
        fs::write(root.path().join("z"), "").unwrap();
        let databases = DatabaseSelection::default();
        let walk = walk(root.path(), &databases, Only::Inventory);
        let tree = walk.collect().unwrap();
        let is_named = |unread: &[Error]| matches!(unread, [Error::Io { path, .. }] if path.starts_with(library.join("deep")));
        assert!(is_named(&tree.unread), "{:?}", tree.unread);
        assert_eq!(&*tree.entries.last().unwrap().path, Path::new("z"));
        // It is not known to be empty.
        let directories = tree.entries.iter().filter(|entry| {
            matches!(entry.node, Node::Directory { empty: true }) && *entry.class == Class::Host
        });
        assert_eq!(directories.count(), 0);
        assert!(tree.entries.iter().any(|entry| matches!(*entry.class, Class::Target { .. })));
    }

    #[test]
    fn an_inventory_reads_files_of_databases_alone() {
        let root = tempfile::tempdir().unwrap();
        let library = root.path().join("lib/rocblas/library");
        fs::create_dir_all(&library).unwrap();
        let damaged = library.join("TensileLibrary_gfx942.co");
        fs::write(&damaged, b"__CLANG_OFFLOAD_BUNDLE__damaged").unwrap();
        fs::write(root.path().join("lib/other.co"), b"__CLANG_OFFLOAD_BUNDLE__damaged").unwrap();
        symlink("TensileLibrary_gfx942.co", library.join("TensileLibrary_gfx90a.co")).unwrap();
        fs::hard_link(&damaged, root.path().join("lib/again.co")).unwrap();
        let _socket = UnixListener::bind(root.path().join("lib/socket")).unwrap();
        fs::write(library.join(".x.dat.0123456789abcdef.tmp"), "").unwrap();
        let tree =
            walk(root.path(), &DatabaseSelection::default(), Only::Inventory).collect().unwrap();
        let leftover = Path::new("lib/rocblas/library/.x.dat.0123456789abcdef.tmp");
        assert_eq!(tree.leftovers, [leftover]);
        assert!(tree.unread.is_empty(), "{:?}", tree.unread);
        let [damage] = &tree.observations[..] else { panic!("{:?}", tree.observations) };
        let within = Path::new("lib/rocblas/library/TensileLibrary_gfx942.co");
        assert_eq!((damage.file(), damage.severity), (within, Severity::Fault));
        let of = |path: &str| tree.entries.iter().find(|entry| entry.path.ends_with(path)).unwrap();
        let shared = |path| of(path).shared_inode.clone().unwrap();
        assert_eq!(shared("again.co"), shared("TensileLibrary_gfx942.co"));
        assert!(matches!(*of("TensileLibrary_gfx90a.co").class, Class::Target { .. }));
        assert!(!tree.entries.iter().any(|entry| entry.path.ends_with("socket")));
        let refused =
            walk(root.path(), &DatabaseSelection::default(), Only::All).collect().unwrap_err();
        assert!(
            matches!(refused, Error::Refused { id, .. } if id == ids::DAMAGED_BUNDLE || id == ids::NOT_A_FILE)
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_inventory_enters_no_file_system_that_the_kernel_makes_up() {
        let databases = DatabaseSelection::default();
        let tree = walk(Path::new("/proc"), &databases, Only::Inventory).collect().unwrap();
        assert!(tree.entries.is_empty() && tree.unread.is_empty());
        assert!(!is_made_up(&std::env::temp_dir()));
    }
}
