//! What is in an artifact directory, by path.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Error;
use crate::artifact::classify::{Class, KPACK, Node, classify};
use crate::artifact::databases::Selection;
use crate::artifact::manifest_txt;
use crate::artifact::shared::{Shared, Whole, shared, whole};
use kpack_format::names::is_manifest;

/// An artifact directory, read.
#[derive(Debug)]
pub(super) struct Tree {
    /// The shard that it is of.
    pub(super) shard: String,
    pub(super) root: PathBuf,
    pub(super) prefixes: Vec<String>,
    /// By path in the artifact directory. Parents of the prefixes are in it, too.
    pub(super) entries: BTreeMap<PathBuf, Item>,
    /// Files that are not whole, and why.
    pub(super) damaged: Vec<(PathBuf, String)>,
}

/// An entry of a tree.
#[derive(Debug, Clone)]
pub(super) struct Item {
    /// The shard that it is of.
    pub(super) shard: Arc<str>,
    pub(super) from: PathBuf,
    pub(super) node: Node,
    pub(super) class: Class,
    /// The prefix that it is in, of those of the artifact.
    pub(super) prefix: Arc<str>,
}

impl Item {
    pub(super) fn is_directory(&self) -> bool {
        matches!(self.node, Node::Directory { .. })
    }

    /// Size in bytes; 0 of what is no file.
    pub(super) fn size(&self) -> u64 {
        match self.node {
            Node::File { size, .. } => size,
            _ => 0,
        }
    }

    /// How it is made up, where it is a file for all targets that each shard has a part of. `path` is
    /// its path in the artifact.
    pub(super) fn shared(&self, path: &Path) -> Option<Shared> {
        let within = path.strip_prefix(&*self.prefix).ok()?;
        shared(within).filter(|_| matches!(self.node, Node::File { .. }))
    }

    /// Which file for all targets it is, of those that cannot be put together. `path` is its path in
    /// the artifact.
    pub(super) fn whole(&self, path: &Path) -> Option<Whole> {
        let within = path.strip_prefix(&*self.prefix).ok()?;
        whole(within).filter(|_| !self.is_directory())
    }

    /// Whether it is an archive of kernels.
    pub(super) fn class_is_kpack(&self) -> bool {
        matches!(&self.class, Class::Target { database, .. } if *database == KPACK)
    }

    /// Whether it is a manifest of kpacks.
    pub(super) fn is_manifest(&self) -> bool {
        matches!(self.node, Node::File { .. }) && is_manifest(&self.from)
    }
}

impl Tree {
    /// Reads what is in the prefixes of `shard`'s artifact directory `root`; a prefix that is not there
    /// is empty.
    pub(super) fn read(shard: &str, root: &Path, databases: &Selection) -> Result<Self, Error> {
        let name: Arc<str> = shard.into();
        let mut entries = BTreeMap::new();
        let mut damaged = Vec::new();
        let prefixes = manifest_txt::read(root)?;
        for prefix in &prefixes {
            let full = root.join(prefix);
            if !full.is_dir() {
                continue;
            }
            let within: Arc<str> = prefix.as_str().into();
            let item = |from: PathBuf, node, class| Item {
                shard: Arc::clone(&name),
                from,
                node,
                class,
                prefix: Arc::clone(&within),
            };
            for above in Path::new(prefix).ancestors() {
                if above != Path::new("") {
                    let node = Node::Directory { empty: false };
                    let directory = item(root.join(above), node, Class::Host);
                    entries.entry(above.to_owned()).or_insert(directory);
                }
            }
            let content = classify(&full, databases)?;
            let wrong = content.damaged.into_iter();
            damaged.extend(wrong.map(|finding| (full.join(finding.path), finding.text)));
            for entry in content.entries {
                let path = Path::new(prefix).join(&entry.path);
                entries.insert(path, item(full.join(&entry.path), entry.node, entry.class));
            }
        }
        Ok(Self {
            shard: shard.to_owned(),
            root: root.to_owned(),
            prefixes,
            entries,
            damaged,
        })
    }
}
