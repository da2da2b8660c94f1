//! Verifies artifact directories: whether each contains exactly what it should.

mod content;
mod for_all;
mod set;

use std::path::Path;

use kpack_core::Error;
use kpack_core::parallel;

use super::TreeContext;
use super::VerifyReport;
use super::artifact_sets::ArtifactSet;
use crate::names::Role;
use crate::tree::ArtifactTree;
use kpack_tree::Parsed;

/// The artifacts of a component that could be read.
pub(super) type ReadSet<'a> = (&'a ArtifactSet, Vec<Member>);

/// Verifies the content of each artifact directory, and the artifacts of a component, or of
/// neighbouring components, together. Returns what was read.
pub(super) fn verify<'a>(
    context: &TreeContext<'a>,
    report: &mut VerifyReport,
) -> Result<Vec<ReadSet<'a>>, Error> {
    let (options, archives) = (context.files.options, &context.files.lookup.archives);
    let asked_for = |root: &Path| context.artifacts.asked_for(root);
    let is_asked_for =
        |set: &&ArtifactSet| set.roots.iter().any(|(root, _)| asked_for(root).is_some());
    let sets: Vec<&ArtifactSet> = context.artifacts.sets.iter().filter(is_asked_for).collect();
    let mut contents = Vec::new();
    let (mut read, mut together) = (Vec::new(), Vec::new());
    for (set, members, own, of_set) in parallel::try_map(sets, |set| {
        let mut members = Vec::new();
        let mut own = Vec::new();
        for (root, role) in &set.roots {
            match Member::read(set, role, root, asked_for(root), context.known())? {
                Ok(member) => members.push(member),
                Err(fault) => own.push((root.clone(), fault)),
            }
        }
        let asked_for = members.iter().filter(|member| member.asked_for);
        own.extend(parallel::map(asked_for.collect::<Vec<_>>(), |member| {
            (member.tree.root.clone(), member.verify())
        }));
        let mut of_set = VerifyReport::default();
        if set.is_split() {
            set.verify(&members, archives, &mut of_set)?;
            set.files_for_all(&members, options, &mut of_set)?;
            set.databases(&members, context, &mut of_set);
        }
        Ok::<_, Error>((set, members, own, of_set))
    })? {
        contents.extend(own);
        read.push((set, members));
        together.push(of_set);
    }
    contents.sort_by(|(a, _), (b, _)| a.cmp(b));
    report.extend(contents.into_iter().map(|(_, own)| own));
    report.extend(together);
    set::owners(&read, report)?;
    Ok(read)
}

/// An artifact of a set, read.
pub(super) struct Member {
    pub(super) role: Role,
    pub(super) asked_for: bool,
    pub(super) tree: ArtifactTree,
}

impl Member {
    /// Reads the artifact at `path`; if that fails, returns the report of the fault.
    pub(super) fn read(
        set: &ArtifactSet,
        role: &Role,
        root: &Path,
        path: Option<&Path>,
        parsed: Parsed<'_>,
    ) -> Result<Result<Self, VerifyReport>, Error> {
        let root = path.unwrap_or(root);
        match ArtifactTree::read(&set.component, root, role, parsed) {
            Ok(tree) => Ok(Ok(Self { role: role.clone(), asked_for: path.is_some(), tree })),
            Err(error @ Error::Refused { .. }) => {
                let mut own = VerifyReport::default();
                if let Some(path) = path {
                    own.fault(error.id(), path, error.to_string());
                }
                Ok(Err(own))
            }
            Err(error) => Err(error),
        }
    }
}
