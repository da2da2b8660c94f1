//! Verifies artifact directories: which ones belong together, and whether each contains exactly
//! what it should.

mod content;
mod for_all;
mod set;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use walkdir::WalkDir;

use super::{Options, Report, Subject};
use crate::Error;
use crate::artifact::manifest_txt;
use crate::artifact::tree::{Role, Siblings, Tree, is_artifact};
use crate::input::{Archives, Overlay};
use crate::leftover::is_leftover;
use crate::parallel;

/// The artifact directories to verify, and the ones next to them that belong to the same
/// components.
#[derive(Default)]
pub(super) struct Artifacts {
    /// Sorted by path.
    found: Vec<Artifact>,
    overlay: Overlay,
    /// Every set of artifacts of one component.
    sets: Vec<Set>,
    /// The roots of all sets.
    in_sets: BTreeSet<PathBuf>,
    /// The artifacts in each parent directory.
    siblings: BTreeMap<PathBuf, Siblings>,
    /// The install prefixes of artifact directories.
    prefixes: BTreeMap<PathBuf, Result<Vec<String>, String>>,
}

/// An artifact directory.
struct Artifact {
    /// The path as found, for messages.
    path: PathBuf,
    /// Whether to verify it as a whole, and not only a file in it.
    asked_for: bool,
    /// The path with symbolic links resolved.
    real: PathBuf,
}

/// The artifacts of one component, which are installed over each other; or one unsplit artifact.
pub(super) struct Set {
    pub(super) component: String,
    /// Their parent directory.
    parent: PathBuf,
    /// The resolved paths, the generic artifact first.
    pub(super) roots: Vec<PathBuf>,
    is_split: bool,
}

/// An artifact of a set, with its content.
struct Member {
    role: Role,
    asked_for: bool,
    tree: Tree,
}

impl Artifacts {
    /// Finds the artifact directories at and below `paths`, and those that contain `paths`.
    pub(super) fn find(paths: &[PathBuf]) -> Result<Self, Error> {
        let mut artifacts = Self::default();
        for path in paths {
            artifacts.around(path)?;
            let mut walk = WalkDir::new(path)
                .follow_root_links(true)
                .max_depth(DEPTH)
                .sort_by_file_name()
                .into_iter();
            while let Some(entry) = walk.next() {
                // Verification reports what cannot be listed.
                let Ok(entry) = entry else { continue };
                if entry.depth() > 0 && is_leftover(entry.file_name()) {
                    if entry.file_type().is_dir() {
                        walk.skip_current_dir();
                    }
                    continue;
                }
                if !is_artifact(entry.path()) {
                    continue;
                }
                artifacts.add(entry.path(), true)?;
                walk.skip_current_dir();
            }
        }
        artifacts.found.sort_by(|a, b| a.path.cmp(&b.path));
        artifacts.found.dedup_by(|a, b| {
            b.asked_for |= a.asked_for && a.real == b.real;
            a.real == b.real
        });
        Ok(artifacts)
    }

    /// Finds the artifact directory around `path`, which is not itself to be verified.
    fn around(&mut self, path: &Path) -> Result<(), Error> {
        let real = path
            .canonicalize()
            .map_err(|e| Error::io(path, "read", e))?;
        match real.ancestors().skip(1).find(|above| is_artifact(above)) {
            Some(artifact) => self.add(artifact, false),
            None => Ok(()),
        }
    }

    fn add(&mut self, path: &Path, asked_for: bool) -> Result<(), Error> {
        let real = path
            .canonicalize()
            .map_err(|e| Error::io(path, "find", e))?;
        self.found.push(Artifact {
            path: path.to_owned(),
            asked_for,
            real: real.clone(),
        });
        if self.prefixes.contains_key(&real) {
            return Ok(());
        }
        let prefixes = manifest_txt::read(&real).map_err(|e| e.in_one_line());
        self.prefixes.insert(real.clone(), prefixes);
        let parent = real.parent().unwrap_or(Path::new("/")).to_owned();
        if !self.siblings.contains_key(&parent) {
            let siblings = Siblings::read(&parent)?;
            self.siblings.insert(parent.clone(), siblings);
        }
        let siblings = &self.siblings[&parent];
        let own = siblings.artifacts.iter().find(|(path, ..)| *path == real);
        let (component, role) = match own {
            Some((_, component, role)) => (component.clone(), role),
            // It is hidden.
            None => (String::new(), &Role::Unsplit),
        };
        let is_split = *role != Role::Unsplit;
        let roots = match is_split {
            true => siblings.of(&component),
            false => vec![real.clone()],
        };
        if !self.in_sets.insert(real) {
            return Ok(());
        }
        self.in_sets.extend(roots.iter().cloned());
        if is_split {
            // All prefixes of all artifacts are installed into one.
            let prefixes = roots.iter().flat_map(|root| {
                let listed = manifest_txt::read(root).unwrap_or_default();
                listed.into_iter().map(move |prefix| root.join(prefix))
            });
            self.overlay.add(prefixes.collect());
            self.overlay.add(roots.clone());
        }
        self.sets.push(Set {
            component,
            parent,
            roots,
            is_split,
        });
        Ok(())
    }

    /// Whether `path` is in an artifact directory, or contains one.
    pub(super) fn covers(&self, path: &Path) -> bool {
        let real = path.canonicalize();
        let real = real.as_deref().unwrap_or(path);
        let mut artifacts = self.found.iter();
        artifacts
            .any(|artifact| real.starts_with(&artifact.real) || artifact.real.starts_with(real))
    }

    /// The artifacts that are overlaid on each other.
    pub(super) fn overlay(&self) -> &Overlay {
        &self.overlay
    }

    /// The sets of split artifacts.
    pub(super) fn sets(&self) -> impl Iterator<Item = &Set> + Clone {
        self.sets.iter().filter(|set| set.is_split)
    }

    /// Every path that may stand for `path` in an overlay, starting with itself.
    pub(super) fn places(&self, path: &Path) -> Vec<PathBuf> {
        let real = path.canonicalize();
        let mut places = self.overlay.places(real.as_deref().unwrap_or(path));
        if let Some(own) = places.first_mut() {
            *own = path.to_owned();
        }
        places
    }

    /// The artifact directory and the install prefix around a file, if any.
    pub(super) fn around_file(&self, file: &Path) -> Option<(PathBuf, PathBuf)> {
        let real = file.canonicalize().ok()?;
        real.ancestors().find_map(|artifact| {
            let within = real.strip_prefix(artifact).ok()?;
            let mut prefixes = self.prefixes.get(artifact)?.iter().flatten();
            let prefix = prefixes.find(|prefix| within.starts_with(prefix))?;
            Some((artifact.to_owned(), artifact.join(prefix)))
        })
    }

    /// Verifies the content of each artifact directory, and the artifacts of a component, or of
    /// neighbouring components, together.
    pub(super) fn verify(
        &self,
        options: &Options,
        archives: &Archives,
        report: &mut Report,
    ) -> Result<(), Error> {
        let asked_for = self.found.iter().filter(|artifact| artifact.asked_for);
        let asked_for: BTreeMap<&Path, &Path> = asked_for
            .map(|artifact| (&*artifact.real, &*artifact.path))
            .collect();
        let is_asked_for = |root: &PathBuf| asked_for.contains_key(&**root);
        let sets = self.sets.iter();
        let sets = sets.filter(|set| set.roots.iter().any(is_asked_for));
        let roots = sets.clone();
        let roots = roots.flat_map(|set| set.roots.iter().map(move |root| (set, root)));
        let read = parallel::try_map(roots.collect::<Vec<_>>(), |(set, root)| {
            self.read(set, root, asked_for.get(&**root).copied())
        })?;
        let mut contents: Vec<(&Path, Report)> = Vec::new();
        let mut read = read.into_iter();
        let mut sets: Vec<(&Set, Vec<Member>)> = sets.map(|set| (set, Vec::new())).collect();
        for (set, members) in &mut sets {
            for (root, read) in set.roots.iter().zip(&mut read) {
                match read {
                    Ok(member) => members.push(member),
                    Err(own) => contents.push((root, own)),
                }
            }
        }
        let members = sets.iter().flat_map(|(_, members)| {
            let asked_for = members.iter().filter(|member| member.asked_for);
            asked_for.map(move |member| (member, members))
        });
        contents.extend(parallel::map(
            members.collect::<Vec<_>>(),
            |(member, all)| (&*member.tree.root, member.verify(all)),
        ));
        contents.sort_by_key(|(path, _)| *path);
        report.extend(contents.into_iter().map(|(_, own)| own));
        let split = sets.iter().filter(|(set, _)| set.is_split);
        report.extend(parallel::try_map(
            split.collect::<Vec<_>>(),
            |(set, members)| {
                let mut own = Report::default();
                set.verify(members, archives, &mut own)?;
                set.files_for_all(members, options, &mut own)?;
                Ok::<_, Error>(own)
            },
        )?);
        set::owners(&sets, report)
    }

    /// Reads the artifact at `path`; if that fails, returns the report of the fault.
    fn read(
        &self,
        set: &Set,
        root: &Path,
        path: Option<&Path>,
    ) -> Result<Result<Member, Report>, Error> {
        match Tree::read(&set.component, path.unwrap_or(root)) {
            Ok(tree) => Ok(Ok(Member {
                role: self.role(set, root),
                asked_for: path.is_some(),
                tree,
            })),
            Err(error @ Error::Refused { .. }) => {
                let mut own = Report::default();
                if let Some(path) = path {
                    own.fault(Subject::Artifact, path, error.in_one_line());
                }
                Ok(Err(own))
            }
            Err(error) => Err(error),
        }
    }

    fn role(&self, set: &Set, root: &Path) -> Role {
        let siblings = self.siblings.get(&set.parent).into_iter();
        let mut beside = siblings.flat_map(|siblings| &siblings.artifacts);
        let own = beside.find(|(path, ..)| path == root);
        own.map_or(Role::Unsplit, |(_, _, role)| role.clone())
    }
}

/// How deep to look for artifact directories: a directory of shards contains directories of
/// artifacts.
const DEPTH: usize = 3;
