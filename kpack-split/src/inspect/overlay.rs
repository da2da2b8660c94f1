//! Directories that are to be laid over each other, looked at as if they were one.

use std::path::{Path, PathBuf};

/// Sets of directories, such as the artifacts of one component. What is not in any of them is only
/// where it is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Overlay {
    sets: Vec<Vec<PathBuf>>,
}

impl Overlay {
    /// Adds directories that belong over each other. Their paths have no symbolic links in them.
    pub(crate) fn add(&mut self, roots: Vec<PathBuf>) {
        self.sets.push(roots);
    }

    /// Every place that `path` could have been laid over, itself first. It need not be there.
    pub(crate) fn places(&self, path: &Path) -> Vec<PathBuf> {
        let mut places = vec![path.to_owned()];
        for set in &self.sets {
            let within = set.iter().find_map(|root| path.strip_prefix(root).ok());
            if let Some(within) = within {
                let all = set.iter().map(|root| root.join(within));
                places.extend(all.filter(|place| place != path));
            }
        }
        places
    }
}
