//! Directories that are to be laid over each other, looked at as if they were one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Sets of directories, such as the artifacts of one component. What is not in any of them is only
/// where it is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Overlay {
    /// Each directory, with all of its set.
    sets: BTreeMap<PathBuf, Arc<[PathBuf]>>,
}

impl Overlay {
    /// Adds directories that belong over each other. Their paths have no symbolic links in them.
    pub(crate) fn add(&mut self, roots: Vec<PathBuf>) {
        let set: Arc<[PathBuf]> = roots.into();
        let own = set.iter().map(|root| (root.clone(), Arc::clone(&set)));
        self.sets.extend(own);
    }

    /// Every place that `path` could have been laid over, itself first. It need not be there.
    pub(crate) fn places(&self, path: &Path) -> Vec<PathBuf> {
        let mut places = vec![path.to_owned()];
        for root in path.ancestors() {
            if let Some(set) = self.sets.get(root)
                && let Ok(within) = path.strip_prefix(root)
            {
                let all = set.iter().map(|root| root.join(within));
                places.extend(all.filter(|place| place != path));
            }
        }
        places
    }
}
