//! Finds the directories that an artifact is read from: one, or the artifacts of an earlier split.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;

use super::report::Report;
use super::{Options, unlisted};
use crate::mark;
use crate::names;
use crate::rules::misplaced;
use crate::tree::{Role, Tree, is_artifact};
use kpack_core::{Error, ids};
use kpack_tree::{Entry, Selection};

/// The directories that an artifact is read from: one, which may be of an earlier split, or all
/// artifacts of an earlier split with their targets, the generic one first.
pub(super) type Sources = [(Option<TargetId>, PathBuf)];

#[derive(Default)]
pub(super) struct Trees {
    /// With the target whose artifact it is; what is to be split, or the generic artifact, first.
    pub(super) all: Vec<(Option<TargetId>, Tree)>,
    /// The generic artifact beside the input, if this run reads the artifact of a target only. It is
    /// looked at, and this run writes none.
    pub(super) generic_beside: Option<PathBuf>,
    /// The databases of the options, with the rules that an earlier split noted.
    pub(super) databases: Selection,
}

impl Trees {
    pub(super) fn read(
        sources: &Sources,
        options: &Options,
        report: &mut Report,
    ) -> Result<Self, Error> {
        let mut trees = Self { databases: options.databases.clone(), ..Self::default() };
        for (_, path) in sources {
            if let Some(noted) = mark::noted(path)? {
                trees.databases = trees.databases.and_rules_of(&noted);
            }
        }
        let only = match sources {
            [(_, path)] => detect_already_split(path, &options.artifact_prefix)?,
            _ => None,
        };
        if let Some((target, tree, generic)) = only {
            trees.all.push((Some(target), tree));
            trees.generic_beside = Some(generic);
        } else {
            for (target, path) in sources {
                let databases = match target {
                    Some(target) => mark::databases(path, &Role::Target(target.clone()))?,
                    None => trees.databases.clone(),
                };
                trees.all.push((target.clone(), read(path, &databases)?));
            }
        }
        for (target, tree) in &mut trees.all {
            tree.treat_spirv(options.storage.spirv);
            if let Some(target) = target
                && let Some((file, reason)) = misplaced(tree, &Role::Target(target.clone())).next()
            {
                let text = format!(
                    "{reason}; several artifacts have this name, so builds seem to be mixed; split each build \
                     into a separate output directory"
                );
                return Err(Error::rejected(ids::SPLIT_ARTIFACT, file.full(), text));
            }
            for prefix in &tree.missing {
                let path = tree.root.join(prefix);
                report.note(
                    ids::MISSING_PREFIX,
                    path,
                    "listed in artifact_manifest.txt, but missing; skipped",
                );
            }
            unlisted::add(tree, target.is_none(), report)?;
        }
        Ok(trees)
    }

    /// Whether a generic artifact is written.
    pub(super) fn has_generic(&self) -> bool {
        self.generic_beside.is_none()
    }

    /// The directory that the artifact of a target, or the generic one, is modelled on.
    pub(super) fn model(&self, target: Option<&TargetId>) -> &Path {
        let is_own = |own: &Option<TargetId>| own.as_ref().map(TargetId::plain).as_ref() == target;
        let own = self.all.iter().find(|(own, _)| is_own(own));
        let tree = own.or(self.all.first());
        tree.map_or(Path::new(""), |(_, tree)| &tree.root)
    }

    /// The entries with the targets whose artifacts they are in.
    pub(super) fn entries(&self) -> impl Iterator<Item = (Option<&TargetId>, &Entry)> {
        self.all
            .iter()
            .flat_map(|(target, tree)| tree.entries.iter().map(move |item| (target.as_ref(), item)))
    }

    /// The prefixes, each once.
    pub(super) fn prefixes(&self) -> Vec<String> {
        let all = self.all.iter().flat_map(|(_, tree)| &tree.prefixes);
        let mut known = BTreeSet::new();
        all.filter(|prefix| known.insert(*prefix)).cloned().collect()
    }
}

/// Reads an artifact directory. A file that cannot be classified is an error: nobody knows where it
/// belongs.
fn read(path: &Path, databases: &Selection) -> Result<Tree, Error> {
    let mut tree = Tree::read_with("", path, databases)?;
    match tree.rejected.pop() {
        Some(found) => Err(Error::rejected(found.id, found.file(), &*found.text)),
        None => Ok(tree),
    }
}

/// What there is for a target in a directory that an earlier split wrote, and the generic artifact
/// beside it. `None` for another directory: it is not named after a target, or has what belongs in
/// another artifact.
fn detect_already_split(
    path: &Path,
    prefix: &str,
) -> Result<Option<(TargetId, Tree, PathBuf)>, Error> {
    let real = path.canonicalize();
    let real = real.map_err(|e| Error::io(path, "open", e))?;
    let name = real.file_name().unwrap_or_default().to_string_lossy();
    let generic = real.with_file_name(names::artifact(prefix, None));
    let target = match names::parse(&name) {
        Some((component, Some(target))) if component == prefix => target,
        _ => return Ok(None),
    };
    if !is_artifact(&generic) {
        return Ok(None);
    }
    let role = Role::Target(target.clone());
    let tree = read(path, &mark::databases(path, &role)?)?;
    let is_split = misplaced(&tree, &role).next().is_none();
    Ok(is_split.then_some((target, tree, generic)))
}
