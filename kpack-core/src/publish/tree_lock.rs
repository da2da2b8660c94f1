//! Locks on whole trees: two runs that change the same files exclude each other, whatever directories they were given.

use std::collections::BTreeMap;
use std::path::Path;

use super::directory::Directory;
use crate::Error;

/// Locks on directories and everything below them, until this is dropped. They leave no file behind.
///
/// The lock on a directory alone would not do: a run may be given the directory, another one a directory in it. So a run
/// also takes a shared lock on each directory above, so that a run waits that was given one of those. On Windows there is
/// only the lock on the directory itself.
#[derive(Debug)]
pub struct TreeLock {
    _locked: Vec<Directory>,
}

impl TreeLock {
    /// Waits for the locks on `directories`, whose paths are absolute and without symbolic links. Where the file system
    /// has no locks, or a directory above may not be read, this does without. Calls `waits` for a directory whose lock
    /// somebody else has for longer than a moment.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn wait<'d>(
        directories: impl IntoIterator<Item = &'d Directory>,
        waits: &dyn Fn(&Path),
    ) -> Result<Self, Error> {
        // In the order of their numbers, so that no two runs wait for each other; each once, since a process would wait
        // for itself, too.
        let mut wanted: BTreeMap<(u64, u64), (Directory, bool)> = BTreeMap::new();
        for directory in directories {
            for above in directory.path().ancestors().skip(1).filter(|path| *path != Path::new(""))
            {
                if let Ok(above) = Directory::open(above) {
                    wanted.entry(above.id()?).or_insert((above, false));
                }
            }
            wanted.insert(directory.id()?, (directory.again()?, true));
        }
        let mut locked = Vec::new();
        for (directory, is_whole) in wanted.into_values() {
            let lock = directory.wait_for_part(!is_whole, &|| waits(directory.path()))?;
            if lock.is_ok() {
                locked.push(directory);
            }
        }
        Ok(Self { _locked: locked })
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn trees_that_overlap_exclude_each_other_and_others_do_not() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("t/lib/deep")).unwrap();
        std::fs::create_dir_all(root.join("t/bin")).unwrap();
        let open = |path: &str| Directory::open(&root.join(path)).unwrap();
        for (one, other, waits) in [
            (&["t"][..], &["t"][..], true),
            (&["t"], &["t/lib/deep"], true),
            (&["t/lib/deep"], &["t"], true),
            (&["t/bin", "t/lib"], &["t/lib/deep", "t/bin"], true),
            (&["t/lib"], &["t/bin"], false),
            (&["t/lib", "t/lib/deep"], &["t/bin"], false),
        ] {
            let [one, other] =
                [one, other].map(|paths| Vec::from_iter(paths.iter().map(|p| open(p))));
            let lock = TreeLock::wait(&one, &|_| {}).unwrap();
            let (sender, receiver) = channel();
            thread::scope(|scope| {
                scope.spawn(move || {
                    let _lock = TreeLock::wait(&other, &|_| {}).unwrap();
                    sender.send(()).unwrap();
                });
                // On a machine that is busy, one that does not wait may take long, too.
                let patience = if waits { 100 } else { 60_000 };
                let found = receiver.recv_timeout(Duration::from_millis(patience));
                assert_eq!(found == Err(RecvTimeoutError::Timeout), waits, "{one:?}");
                drop(lock);
                if waits {
                    receiver.recv().unwrap();
                }
            });
        }
    }
}
