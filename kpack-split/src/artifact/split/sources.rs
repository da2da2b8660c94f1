//! The directories that an artifact is read from: one, or those that it was split into before.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::names::is_manifest;

use super::Options;
use super::report::Report;
use super::stage::artifact_name;
use super::strays;
use crate::Error;
use crate::artifact::classify::{self, Class, Classification, Node};
use crate::artifact::databases::Selection;
use crate::artifact::manifest_txt;
use crate::artifact::names::{self, Kind};

/// What is below a prefix, or in none.
pub(super) struct Read {
    /// In the artifact directory; empty for what is in no prefix.
    pub(super) prefix: String,
    pub(super) root: PathBuf,
    pub(super) owner: Owner,
    pub(super) classification: Classification,
}

/// Where what was read goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Owner {
    /// Wherever it belongs.
    Classes,
    /// To this target, whose artifact it is in already.
    Target(TargetId),
    /// To the generic artifact: it is in no prefix.
    Generic,
}

/// The directories that an artifact is read from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Sources {
    /// What is to be split, or the generic artifact of what was.
    pub(super) whole: Option<PathBuf>,
    /// The artifacts of targets that were split off before.
    pub(super) targets: Vec<(TargetId, PathBuf)>,
    /// The generic artifact beside the input, if this run reads only artifacts of targets. It is looked
    /// at, and this run writes none.
    generic_elsewhere: Option<PathBuf>,
}

impl Sources {
    /// One directory.
    pub(super) fn one(path: &Path) -> Self {
        Self {
            whole: Some(path.to_owned()),
            ..Self::default()
        }
    }

    /// Detects directories that an earlier run split. A single directory named after a target was split
    /// if its generic artifact is beside it. Several directories must have been split: if one named
    /// after a target has host files, they come from different builds and are rejected.
    pub(super) fn told_apart(self, prefix: &str) -> Result<Self, Error> {
        if let (Some(path), true) = (&self.whole, self.targets.is_empty()) {
            let real = path
                .canonicalize()
                .map_err(|e| Error::io(path, "open", e))?;
            let name = real.file_name().unwrap_or_default().to_string_lossy();
            let generic = real.with_file_name(artifact_name(prefix, None));
            let has_generic = generic.join(manifest_txt::FILE_NAME).is_file();
            if let Some(target) = target_of(&name, prefix).filter(|_| has_generic)
                && host_file(path)?.is_none()
            {
                return Ok(Self {
                    whole: None,
                    targets: vec![(target, path.clone())],
                    generic_elsewhere: Some(generic),
                });
            }
            return Ok(self);
        }
        for (target, path) in &self.targets {
            if let Some(file) = host_file(path)? {
                let text = format!(
                    "it is for the host, and {} is one of several artifacts of one name; expected \
                     only what was split off for {target}. Split each into an output directory of \
                     its own",
                    path.display()
                );
                return Err(Error::refused(&file, text));
            }
        }
        Ok(self)
    }

    /// Whether a generic artifact is written.
    pub(super) fn has_generic(&self) -> bool {
        self.generic_elsewhere.is_none()
    }

    /// The directories that an artifact was split into, by their names; `None` where these say
    /// something else.
    pub(super) fn split_before(prefix: &str, paths: &[PathBuf]) -> Option<Self> {
        let mut sources = Self::default();
        for path in paths {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            match target_of(&name, prefix) {
                Some(target) => sources.targets.push((target, path.clone())),
                None if name == artifact_name(prefix, None) => sources.whole = Some(path.clone()),
                None => return None,
            }
        }
        Some(sources)
    }

    /// All of them, that of the generic artifact first.
    pub(super) fn all(&self) -> impl Iterator<Item = &Path> {
        let targets = self.targets.iter().map(|(_, path)| path);
        self.whole.iter().chain(targets).map(PathBuf::as_path)
    }

    /// The generic artifact of what was split before.
    pub(super) fn generic(&self) -> Option<&Path> {
        self.generic_elsewhere.as_deref().or(self.whole.as_deref())
    }

    /// The directory that the artifact of a target, or the generic one, is like.
    pub(super) fn like(&self, target: Option<&TargetId>) -> &Path {
        let mut targets = self.targets.iter();
        let own = targets.find(|(own, _)| Some(own) == target);
        let own = own.map(|(_, path)| path.as_path());
        own.or_else(|| self.all().next()).unwrap_or(Path::new(""))
    }

    /// Reads what is in them.
    pub(super) fn read(&self, options: &Options, report: &mut Report) -> Result<Vec<Read>, Error> {
        let mut all = Vec::new();
        if let Some(path) = &self.whole {
            let read = read(path, &Owner::Classes, &options.databases, report)?;
            all.extend(read);
        }
        for (target, path) in &self.targets {
            let owner = Owner::Target(target.clone());
            all.extend(read(path, &owner, &Selection::Auto, report)?);
        }
        Ok(all)
    }
}

fn target_of(name: &str, prefix: &str) -> Option<TargetId> {
    match names::parse(name) {
        Some((component, Kind::Target(target))) if component == prefix => Some(target),
        _ => None,
    }
}

fn read(
    path: &Path,
    owner: &Owner,
    databases: &Selection,
    report: &mut Report,
) -> Result<Vec<Read>, Error> {
    let mut all = Vec::new();
    for prefix in manifest_txt::read(path)? {
        let Some(root) = manifest_txt::directory(path, &prefix)? else {
            report.note(path.join(prefix), "listed, but not there; skipped");
            continue;
        };
        let classification = classify::classify(&root, databases)?;
        all.push(Read {
            prefix,
            root,
            owner: owner.clone(),
            classification,
        });
    }
    let prefixes: Vec<String> = all.iter().map(|read| read.prefix.clone()).collect();
    let strays = strays::read(path, &prefixes, report)?;
    all.push(Read {
        prefix: String::new(),
        root: path.to_owned(),
        owner: match owner {
            Owner::Classes => Owner::Generic,
            owner => owner.clone(),
        },
        classification: Classification {
            entries: strays,
            ..Classification::default()
        },
    });
    Ok(all)
}

/// A file of an artifact directory that is for the host: that of a target has none.
fn host_file(path: &Path) -> Result<Option<PathBuf>, Error> {
    for prefix in manifest_txt::read(path)? {
        let Some(root) = manifest_txt::directory(path, &prefix)? else {
            continue;
        };
        let entries = classify::classify(&root, &Selection::Auto)?.entries;
        let host = entries.into_iter().find(|entry| {
            matches!(entry.class, Class::Host | Class::Fat | Class::Split)
                && !matches!(entry.node, Node::Directory { .. })
                && !is_manifest(&entry.path)
        });
        if let Some(host) = host {
            return Ok(Some(root.join(host.path)));
        }
    }
    Ok(None)
}

/// The prefixes of what was read, each once, in order.
pub(super) fn prefixes<'a>(reads: impl IntoIterator<Item = &'a Read>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let reads = reads.into_iter().filter(|read| !read.prefix.is_empty());
    let new = reads.filter(|read| seen.insert(&read.prefix));
    new.map(|read| read.prefix.clone()).collect()
}
