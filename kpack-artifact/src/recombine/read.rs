//! Reads what the shards have of a component, and reports what is wrong with each artifact alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kpack_format::marker::Marker;
use kpack_format::{Selection, TargetId};

use super::shards::{ComponentArtifacts, DeviceArtifact, Shards};
use super::{Finding, Options, Severity};
use crate::mark;
use crate::names::{self, Role};
use crate::packaging::{TargetGroup, Validation};
use crate::tree::ArtifactTree;
use kpack_core::words::list;
use kpack_core::{Error, Reason, ids};
use kpack_split::input::Archives;
use kpack_tree::{Class, DatabaseSelection, Parsed};

/// One component of all shards, and where everything about it is read.
#[derive(Clone, Copy)]
pub(super) struct Component<'a> {
    pub(super) name: &'a str,
    pub(super) options: &'a Options,
    pub(super) shards: &'a Shards,
    /// The archives and digests of inputs.
    pub(super) archives: &'a Archives,
}

impl<'a> Component<'a> {
    /// The shards that have something of it.
    pub(super) fn shards(
        self,
    ) -> impl Iterator<Item = (&'a str, &'a ComponentArtifacts)> + use<'a> {
        self.shards.of(self.name)
    }

    pub(super) fn validation(self) -> &'a Validation {
        &self.options.configuration.validation
    }

    /// The targets of each group.
    pub(super) fn selections(self) -> Vec<Selection> {
        let groups = self.options.configuration.groups_of(self.name);
        groups.iter().map(|group| group.architectures.iter().collect()).collect()
    }

    /// A directory name: what the component is called for `suffix`.
    pub(super) fn artifact_name(self, suffix: &str) -> String {
        format!("{}_{suffix}", self.name)
    }

    /// What need not be parsed again.
    fn parsed(self) -> Parsed<'a> {
        Parsed { binaries: None, archives: Some(&self.archives.parsed) }
    }
}

/// What the shards have of a component.
pub(super) struct Inputs<'a> {
    pub(super) component: Component<'a>,
    /// The databases that were split, the same in all shards.
    pub(super) databases: DatabaseSelection,
    /// The generic artifacts, that whose host files are taken first.
    pub(super) generics: Vec<GenericArtifact>,
    /// The device code that groups take, by target: a tree for each shard that has some.
    pub(super) device: BTreeMap<TargetId, Vec<ArtifactTree>>,
    /// The targets of each shard, in order.
    pub(super) targets: Vec<(&'a str, BTreeSet<TargetId>)>,
    /// The groups, and which of these targets each takes.
    pub(super) groups: Vec<(&'a TargetGroup, BTreeSet<TargetId>)>,
}

/// A generic artifact of a shard.
pub(super) struct GenericArtifact {
    pub(super) tree: ArtifactTree,
    /// The markers of its split binaries, by path; none if there is one shard.
    pub(super) markers: BTreeMap<PathBuf, Vec<Marker>>,
}

/// Reads a component, with what is wrong with single artifacts.
pub(super) fn read(component: Component<'_>) -> Result<(Inputs<'_>, Vec<Finding>), Error> {
    let mut findings = Vec::new();
    let noted = databases_of(component, &mut findings)?;
    let (device, targets) = device_code(component, &mut findings)?;
    let databases = noted.unwrap_or_else(|| databases_in(device.values().flatten()));
    let generics = generics(component, &mut findings)?;
    let configured = component.options.configuration.groups_of(component.name);
    let mut groups = Vec::from_iter(configured.iter().map(|group| (group, BTreeSet::new())));
    let selections = component.selections();
    for target in targets.iter().flat_map(|(_, targets)| targets) {
        for position in Selection::groups_of(&selections, target) {
            groups[position].1.insert(target.clone());
        }
    }
    Ok((Inputs { component, databases, generics, device, targets, groups }, findings))
}

impl<'a> Inputs<'a> {
    /// The shards that have device code for a target that `is_one` accepts.
    pub(super) fn shards_with(&self, is_one: impl Fn(&TargetId) -> bool) -> BTreeSet<&'a str> {
        self.targets
            .iter()
            .filter(|(_, targets)| targets.iter().any(&is_one))
            .map(|(shard, _)| *shard)
            .collect()
    }
}

/// Which databases were split: what one shard has in the artifacts of targets must not be in
/// another's generic one. `None` if no artifact says so.
fn databases_of(
    component: Component<'_>,
    findings: &mut Vec<Finding>,
) -> Result<Option<DatabaseSelection>, Error> {
    let mut first: Option<(&str, DatabaseSelection)> = None;
    for (shard, artifacts) in component.shards() {
        for path in artifacts.paths() {
            let Some(own) = mark::noted(path)? else {
                continue;
            };
            let Some((known, databases)) = &first else {
                first = Some((shard, own));
                continue;
            };
            if own.names() != databases.names() {
                let what = format!("other databases were split than in shard {known}");
                let text = Reason::mismatch(&what, databases, &own)
                    .then("; split all shards with the same --split-databases and --kernel-files");
                findings.push(Finding::new(Severity::Fault, ids::SHARDS_DIFFER, path, text));
            }
        }
    }
    Ok(first.map(|(_, databases)| databases))
}

/// The databases that were split, to judge by what is in the artifacts of targets.
fn databases_in<'t>(device: impl Iterator<Item = &'t ArtifactTree>) -> DatabaseSelection {
    let classes = device.flat_map(|tree| &tree.entries).map(|item| &*item.class);
    DatabaseSelection::and_named(classes.filter_map(|class| match class {
        Class::Target { database, .. } => Some(&**database),
        _ => None,
    }))
}

/// Device code by target, and the targets of each shard.
type CodeByTarget<'a> = (BTreeMap<TargetId, Vec<ArtifactTree>>, Vec<(&'a str, BTreeSet<TargetId>)>);

/// Reads what each shard has for each target. Reports what is damaged or does not belong there, and what
/// no group takes, which is not read if it can be helped.
fn device_code<'a>(
    component: Component<'a>,
    findings: &mut Vec<Finding>,
) -> Result<CodeByTarget<'a>, Error> {
    let (mut device, mut targets_of): CodeByTarget<'_> = Default::default();
    let (selections, parsed) = (component.selections(), component.parsed());
    let is_taken = |target: &TargetId| !Selection::groups_of(&selections, target).is_empty();
    let named = || selections.iter().flat_map(Selection::iter);
    for (shard, artifacts) in component.shards() {
        let mut own: BTreeMap<TargetId, ArtifactTree> = BTreeMap::new();
        let mut targets = BTreeSet::new();
        for artifact in &artifacts.device {
            let path = artifact.path();
            let found = match artifact {
                // It has no variant that a group takes, either.
                DeviceArtifact::Target(target, _)
                    if !is_taken(target)
                        && !named().any(|named| named.processor() == target.processor()) =>
                {
                    targets.insert(target.clone());
                    findings.push(unlisted(component, target, path));
                    continue;
                }
                DeviceArtifact::Target(target, _) => {
                    let role = Role::Target(target.clone());
                    let tree = ArtifactTree::read(shard, path, &role, parsed)?;
                    findings.extend(tree.damage(&role, ""));
                    tree.by_target(Some(target))
                }
                DeviceArtifact::Group(_, tree) => {
                    let read;
                    let tree = match tree {
                        Some(tree) => &**tree,
                        // Whatever this attempt finds counts, also if nothing fails any more.
                        None => {
                            read = ArtifactTree::read(shard, path, &Role::Group, parsed)?;
                            &read
                        }
                    };
                    findings.extend(tree.damage(&Role::Group, ""));
                    tree.by_target(None)
                }
            };
            for (target, tree) in found {
                targets.insert(target.clone());
                if !is_taken(&target) {
                    findings.push(unlisted(component, &target, path));
                    continue;
                }
                // ROCm's tool writes an artifact for each variant.
                if let (Some(known), DeviceArtifact::Target(..)) = (own.get_mut(&target), artifact)
                {
                    let mut files = tree.entries.iter().filter(|item| !item.is_directory());
                    let both = files.find(|file| known.entries.contains(*file));
                    if let Some(file) = both {
                        let known = known.root.display();
                        let text = format!("is in {known} as well; remove one of them");
                        let id = ids::CONFLICTING_FILES;
                        findings.push(Finding::new(Severity::Fault, id, file.full(), text));
                    }
                    known.add_missing(tree);
                    continue;
                }
                own.insert(target, tree);
            }
        }
        for (target, tree) in own {
            device.entry(target).or_default().push(tree);
        }
        targets_of.push((shard, targets));
    }
    Ok((device, targets_of))
}

fn unlisted(component: Component<'_>, target: &TargetId, path: &Path) -> Finding {
    let (severity, text) = if component.validation().error_on_unlisted_architecture {
        (Severity::Fault, format!("no group lists {target}; add it to one"))
    } else {
        (Severity::Warning, format!("skipped: no group lists {target}"))
    };
    Finding::new(severity, ids::UNEXPECTED_TARGET, path, text)
}

/// Reads the generic artifacts, the primary shard's first. Of a component that the primary shard has nothing of, the
/// first one by name stands for it.
fn generics(
    component: Component<'_>,
    findings: &mut Vec<Finding>,
) -> Result<Vec<GenericArtifact>, Error> {
    let mut generics = Vec::new();
    for (shard, path) in with_generic(component, findings) {
        let tree = ArtifactTree::read(shard, path, &Role::Generic, component.parsed())?;
        // Of other shards' device code than the primary one's, nothing would be taken.
        findings.extend(tree.damage(&Role::Generic, "; was all of it split?"));
        let mut markers = BTreeMap::new();
        for item in tree.entries.iter().filter(|item| *item.class == Class::Split) {
            let linked = item.linked()?;
            if let Err(error) = linked.image.check_loaded() {
                let text = format!("{error}; split again");
                let id = ids::DAMAGED_BINARY;
                findings.push(Finding::new(Severity::Fault, id, item.full(), text));
            }
            if component.shards().count() > 1 {
                let own = linked.markers()?.into_iter().map(|group| group.marker);
                markers.insert(item.path.to_path_buf(), own.collect());
            }
        }
        generics.push(GenericArtifact { tree, markers });
    }
    Ok(generics)
}

/// The shards with generic artifacts, that whose host files are taken first; none where there is no
/// such shard.
fn with_generic<'a>(
    component: Component<'a>,
    findings: &mut Vec<Finding>,
) -> Vec<(&'a str, &'a Path)> {
    let Component { name, options, .. } = component;
    let primary = &options.configuration.primary_shard;
    let missing = |severity, shard: &str, text| {
        let path = options.shards_dir.join(shard).join(component.artifact_name(names::GENERIC));
        Finding::new(severity, ids::MISSING_ARTIFACT, path, text)
    };
    let with: Vec<(&str, &Path)> = component
        .shards()
        .filter_map(|(shard, artifacts)| Some((shard, artifacts.generic.as_deref()?)))
        .collect();
    let is_built = component.shards().any(|(shard, _)| shard == primary);
    let stands_for_it = |shard: &str| shard == primary || !is_built;
    let first = with.first().copied();
    let Some((first, path)) = first.filter(|(shard, _)| stands_for_it(shard)) else {
        let others = list(component.shards().map(|(shard, _)| shard));
        let text = match first {
            Some(_) => format!(
                "missing, so there are no host files of {name}, which {others} built; choose a \
                 primary shard that has it, or specify the components to recombine"
            ),
            None => {
                format!("no shard has host files of {name}: {others} have device code only")
            }
        };
        findings.push(missing(Severity::Fault, primary, text));
        return Vec::new();
    };
    if first != primary {
        let text =
            format!("taking its host files: the primary shard {primary} has nothing of {name}");
        findings.push(Finding::new(Severity::Warning, ids::MISSING_ARTIFACT, path, text));
    }
    for (shard, _) in component.shards().filter(|(_, artifacts)| artifacts.generic.is_none()) {
        let text = format!(
            "missing, although shard {shard} has device code of {name}; its host files cannot be \
             compared with those of {first}"
        );
        findings.push(missing(Severity::Warning, shard, text));
    }
    with
}
