//! What is in an artifact directory, by path.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::artifact::classify::{Class, Node, classify};
use crate::artifact::databases::Selection;
use crate::artifact::differences::{self, Difference};
use crate::artifact::manifest_txt;
use crate::inspect;
use crate::kpack_dir;

/// An artifact directory, read.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) root: PathBuf,
    pub(super) prefixes: Vec<String>,
    /// By path in the artifact directory. Parents of the prefixes are in it, too.
    pub(super) entries: BTreeMap<PathBuf, Item>,
}

/// An entry of a tree.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) from: PathBuf,
    pub(super) node: Node,
    pub(super) class: Class,
    /// The prefix that it is in, of those of the artifact.
    pub(super) prefix: String,
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

    /// Whether it is a manifest of kpacks.
    pub(super) fn is_manifest(&self) -> bool {
        matches!(self.node, Node::File { .. }) && kpack_dir::is_manifest(&self.from)
    }
}

impl Tree {
    /// Reads what is in the prefixes of the artifact directory `root`; a prefix that is not there
    /// is empty.
    pub(super) fn read(root: &Path) -> Result<Self, Error> {
        let mut entries = BTreeMap::new();
        let prefixes = manifest_txt::read(root)?;
        for prefix in &prefixes {
            let full = root.join(prefix);
            if !full.is_dir() {
                continue;
            }
            let item = |from: PathBuf, node, class| Item {
                from,
                node,
                class,
                prefix: prefix.clone(),
            };
            for above in Path::new(prefix).ancestors() {
                if above != Path::new("") {
                    let node = Node::Directory { empty: false };
                    let directory = item(root.join(above), node, Class::Host);
                    entries.entry(above.to_owned()).or_insert(directory);
                }
            }
            for entry in classify(&full, &Selection::Auto)?.entries {
                let path = Path::new(prefix).join(&entry.path);
                entries.insert(path, item(full.join(&entry.path), entry.node, entry.class));
            }
        }
        Ok(Self {
            root: root.to_owned(),
            prefixes,
            entries,
        })
    }

    /// In what this tree and another differ, manifests of kpacks apart; each with the path that it
    /// is about.
    pub(super) fn differences(
        &self,
        other: &Self,
        (own_name, other_name): (&str, &str),
    ) -> Result<Vec<(PathBuf, Difference)>, Error> {
        let mut found = Vec::new();
        let plain = |text: String| Difference {
            text,
            layout_only: false,
        };
        let counts = |item: &Item| !item.is_manifest();
        // Of a directory that one lacks, what is in it, which follows it, need not be said.
        let mut lacks = PathBuf::from("/");
        for (path, item) in self.entries.iter().filter(|(_, item)| counts(item)) {
            match other.entries.get(path) {
                Some(theirs) => {
                    let difference = difference(item, theirs)?;
                    found.extend(difference.map(|difference| (path.clone(), difference)));
                }
                None if path.starts_with(&lacks) => {}
                None => {
                    lacks.clone_from(path);
                    let text = format!("only shard {own_name} has it");
                    found.push((path.clone(), plain(text)));
                }
            }
        }
        let mut lacks = PathBuf::from("/");
        for (path, item) in &other.entries {
            let missing = counts(item) && !self.entries.contains_key(path);
            if missing && !path.starts_with(&lacks) {
                lacks.clone_from(path);
                let text = format!("only shard {other_name} has it");
                found.push((path.clone(), plain(text)));
            }
        }
        Ok(found)
    }
}

fn difference(one: &Item, other: &Item) -> Result<Option<Difference>, Error> {
    let plain = |text: String| Difference {
        text,
        layout_only: false,
    };
    let kind = |item: &Item| match item.node {
        Node::Directory { .. } => "a directory",
        Node::Symlink => "a symbolic link",
        Node::File { .. } => "a file",
    };
    if kind(one) != kind(other) {
        return Ok(Some(plain(format!(
            "{} against {}",
            kind(one),
            kind(other)
        ))));
    }
    match one.node {
        Node::Directory { .. } => Ok(None),
        Node::Symlink => {
            let target = |path: &Path| fs::read_link(path).map_err(|e| Error::io(path, "read", e));
            let (a, b) = (target(&one.from)?, target(&other.from)?);
            let text = || plain(format!("leads to {} against {}", a.display(), b.display()));
            Ok((a != b).then(text))
        }
        Node::File { .. } => {
            let (a, b) = (mode(&one.from)?, mode(&other.from)?);
            if a != b {
                return Ok(Some(plain(format!("mode {a:o} against {b:o}"))));
            }
            if one.class_is_kpack() && same_code(&one.from, &other.from)? {
                return Ok(None);
            }
            differences::explain(&one.from, &other.from)
        }
    }
}

impl Item {
    pub(super) fn class_is_kpack(&self) -> bool {
        use crate::artifact::classify::KPACK;
        matches!(&self.class, Class::Target { database, .. } if *database == KPACK)
    }
}

fn mode(path: &Path) -> Result<u32, Error> {
    let metadata = path.metadata().map_err(|e| Error::io(path, "read", e))?;
    Ok(metadata.permissions().mode() & 0o7777)
}

/// Whether two archives have the same code objects under the same names by their checksums,
/// however they are compressed.
fn same_code(one: &Path, other: &Path) -> Result<bool, Error> {
    let (a, b) = (inspect::open_archive(one)?, inspect::open_archive(other)?);
    let (a, b) = (a.toc(), b.toc());
    let (Some(ours), Some(theirs)) = (&a.checksums, &b.checksums) else {
        return Ok(false);
    };
    let named = |toc: &kpack_format::archive::Toc, sums: &[kpack_format::Sha256]| {
        let mut found = BTreeMap::new();
        for (kernel, targets) in &toc.kernels {
            for (target, entry) in targets {
                let sum = sums.get(entry.ordinal as usize).copied();
                found.insert((kernel.clone(), target.clone()), sum);
            }
        }
        found
    };
    Ok(a.group_name == b.group_name && named(a, ours) == named(b, theirs))
}
