//! Verifies artifact directories: whether each contains exactly what it should.

mod content;
mod for_all;
mod member;
mod set;

use std::path::Path;

use kpack_core::Error;
use kpack_core::parallel;

use super::artifact_sets::Set;
use super::context::Context;
use super::report::Report;
use member::Member;

/// Verifies the content of each artifact directory, and the artifacts of a component, or of
/// neighbouring components, together.
pub(super) fn verify(context: &Context<'_>, report: &mut Report) -> Result<(), Error> {
    let (options, archives) = (context.options, &context.lookup.archives);
    let asked_for = |root: &Path| context.artifacts.asked_for(root);
    let is_asked_for = |set: &&Set| set.roots.iter().any(|(root, _)| asked_for(root).is_some());
    let sets: Vec<&Set> = context.artifacts.sets.iter().filter(is_asked_for).collect();
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
        let mut of_set = Report::default();
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
    set::owners(&read, report)
}
