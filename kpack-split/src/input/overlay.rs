//! Treats directories that will be overlaid as if they were one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Sets of directories to overlay, such as the artifacts of one component. Other directories stand
/// alone.
#[derive(Debug, Clone, Default)]
pub struct Overlay {
    /// Each directory, with all directories of its set.
    sets: BTreeMap<PathBuf, Arc<[PathBuf]>>,
}

impl Overlay {
    /// Adds a set of directories to overlay. Their paths must not contain symbolic links.
    pub fn add(&mut self, roots: Vec<PathBuf>) {
        let set: Arc<[PathBuf]> = roots.into();
        let own = set.iter().map(|root| (root.clone(), Arc::clone(&set)));
        self.sets.extend(own);
    }

    /// Whether all directories stand alone.
    pub(super) fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }

    /// Every path that overlays `path`, starting with itself. It need not exist.
    pub fn places(&self, path: &Path) -> Vec<PathBuf> {
        let mut places = vec![path.to_owned()];
        for root in path.ancestors() {
            if let Some(set) = self.sets.get(root)
                && let Ok(within) = path.strip_prefix(root)
            {
                for place in set.iter().map(|root| root.join(within)) {
                    if !places.contains(&place) {
                        places.push(place);
                    }
                }
            }
        }
        places
    }
}
