//! Verifies that a split binary finds each of its code objects through its marker.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::marker::{Marker, of_another_build};
use kpack_format::names::KernelName;

use super::archive::counted;
use super::resolver::{Obstacle, Place, Resolver};
use super::{Context, Options, Outcome, Report, Subject, means};
use crate::Error;
use crate::input::read_manifest;

/// The code objects that wrappers with one marker need, and where they are.
struct Resolution<'a> {
    path: &'a Path,
    marker: &'a Marker,
    kernel_name: &'a str,
    indices: &'a BTreeSet<u32>,
    options: &'a Options,
    resolver: Resolver,
    /// Number of code objects found for each index.
    count_by_index: BTreeMap<u32, usize>,
    /// Where they are, each with one index and target that leads there.
    places: BTreeMap<Place, (u32, String)>,
}

/// Looks up the code objects with these `indices`.
pub(super) fn verify(
    path: &Path,
    marker: &Marker,
    kernel_name: &str,
    indices: &BTreeSet<u32>,
    context: &Context<'_>,
    report: &mut Report,
) -> Result<(), Error> {
    let faults = report.count(Outcome::Fault);
    let resolver = Resolver::open(
        &context.archives,
        context.artifacts.overlay(),
        path,
        marker,
        kernel_name,
    )?;
    let mut this = Resolution {
        path,
        marker,
        kernel_name,
        indices,
        options: context.options,
        resolver,
        count_by_index: indices.iter().map(|index| (*index, 0)).collect(),
        places: BTreeMap::new(),
    };
    context.reached(kernel_name, &this.resolver);
    for (archive, reason) in &this.resolver.damaged {
        let text = format!("`{}` is damaged: {reason}", archive.display());
        report.fault(Subject::Resolution, path, text);
    }
    for (target, archive) in &this.resolver.other_builds {
        if this.options.wants(target) {
            let what = of_another_build(kernel_name);
            let text = format!("`{}`: {what}", archive.display());
            report.fault(Subject::Resolution, path, text);
        }
    }
    required_are_there(path, marker, &this.resolver, this.options, report)?;
    let mut targets = this.resolver.targets();
    targets.retain(|target| this.options.wants(target));
    for target in &targets {
        this.look_up(target, report);
    }
    this.nowhere(&targets, report);
    this.stale(report);
    this.read(context, report)?;
    let found: usize = this.count_by_index.values().sum();
    if report.count(Outcome::Fault) == faults && found > 0 {
        let text = format!(
            "{} for {}",
            counted(found, "code object"),
            targets.join(", ")
        );
        report.ok(Subject::Resolution, path, text);
    }
    Ok(())
}

impl Resolution<'_> {
    /// Finds the code objects for `target`, and reports missing ones.
    fn look_up(&mut self, target: &str, report: &mut Report) {
        let mut absent = Vec::new();
        for &index in self.indices {
            match self.resolver.find(index, target) {
                Some(place) => {
                    *self.count_by_index.entry(index).or_default() += 1;
                    let value = || (index, target.to_owned());
                    self.places.entry(place).or_insert_with(value);
                }
                None => absent.push(index),
            }
        }
        let mut other_builds = self.resolver.other_builds.iter();
        if absent.is_empty() || other_builds.any(|(of, _)| of == target) {
            return;
        }
        let text = match absent.len() == self.indices.len() {
            true => format!("the kpack for {target} has no code object of this binary"),
            false => {
                let indices: Vec<String> = absent.iter().map(u32::to_string).collect();
                let indices = indices.join(", ");
                format!("no code object for {target} at index {indices}")
            }
        };
        // Not every part of a binary need be compiled for every target. A target is required if the
        // marker has its code ID, or if the caller names it.
        let expected = self.marker.code_ids.get(target);
        let outcome = match expected {
            Some(id) if self.resolver.code_ids(target).contains(id) => Outcome::Note,
            Some(_) => Outcome::Fault,
            None if absent.iter().all(|index| self.may_lack(*index, target)) => Outcome::Note,
            None => Outcome::Fault,
        };
        report.add(outcome, Subject::Resolution, self.path, text);
    }

    /// Whether the caller does not require a code object for `target`: none is named, or another
    /// target of the processor that is named has it.
    fn may_lack(&self, index: u32, target: &str) -> bool {
        let targets = self.resolver.targets();
        let wanted = self.options.targets.iter();
        wanted.filter(|wanted| means(wanted, target)).all(|wanted| {
            let mut others = targets.iter().filter(|other| means(wanted, other));
            others.any(|other| self.resolver.find(index, other).is_some())
        })
    }

    /// Reports indices without a code object for any target.
    fn nowhere(&self, targets: &[String], report: &mut Report) {
        let empty = self.count_by_index.iter().filter(|(_, count)| **count == 0);
        if !self.resolver.other_builds.is_empty() {
            return;
        }
        let nowhere: Vec<String> = empty.map(|(index, _)| index.to_string()).collect();
        if nowhere.is_empty() || targets.is_empty() {
            return;
        }
        let text = format!("no kpack has a code object at index {}", nowhere.join(", "));
        // If only some targets are verified, another target's archive may have the code object.
        let outcome = match self.options.targets.is_empty() {
            true => Outcome::Fault,
            false => Outcome::Note,
        };
        report.add(outcome, Subject::Resolution, self.path, text);
    }

    /// Reports entries of this binary that no wrapper uses.
    fn stale(&self, report: &mut Report) {
        let entries = self.resolver.entries().into_iter();
        let stale = entries.filter(|(index, _)| !self.indices.contains(index));
        let stale: BTreeSet<String> = stale.map(|(index, _)| index.to_string()).collect();
        if !stale.is_empty() {
            let text = format!(
                "the kpacks have entries at index {} that no wrapper uses",
                Vec::from_iter(stale).join(", ")
            );
            report.note(Subject::Resolution, self.path, text);
        }
    }

    /// Reads the code objects found, except those in archives already verified.
    fn read(&mut self, context: &Context<'_>, report: &mut Report) -> Result<(), Error> {
        for (&place, (index, target)) in &self.places {
            let real = self.resolver.path(place).canonicalize();
            if real.is_ok_and(|real| context.whole.contains(&real)) {
                continue;
            }
            if let Some(reason) = self.resolver.damage(place, *index, target)? {
                let archive = self.resolver.path(place).display();
                let kernel = KernelName::new(self.kernel_name, *index);
                let text = format!("`{kernel}` for {target} in `{archive}`: {reason}");
                report.fault(Subject::Resolution, self.path, text);
            }
        }
        Ok(())
    }
}

/// Reports targets without an archive, if the manifest lists them or the caller names them.
fn required_are_there(
    path: &Path,
    marker: &Marker,
    resolver: &Resolver,
    options: &Options,
    report: &mut Report,
) -> Result<(), Error> {
    let found = || resolver.kpacks.targets();
    let missing = options.targets.iter();
    let missing = missing.filter(|wanted| !found().any(|target| means(wanted, target)));
    let required = found().filter(|target| options.wants(target));
    let required: Vec<String> = required
        .map(str::to_owned)
        .chain(missing.map(TargetId::to_string))
        .collect();
    let none_are_expected =
        || Ok(marker.code_ids.is_empty() && none_are_listed(&resolver.kpacks.manifests)?);
    if required.is_empty() && none_are_expected()? {
        let text = "its manifest lists no kpack: splitting left out all of its device code";
        report.note(Subject::Resolution, path, text);
    } else if required.is_empty() {
        let text = format!(
            "no kpack found; its search path is `{}`",
            marker.kpack_search_paths.join("`, `")
        );
        report.fault(Subject::Resolution, path, text);
    }
    for target in required {
        let text = match resolver.obstacle(&target) {
            Some(Obstacle::Missing(Some(place))) => format!(
                "the manifest lists a kpack for {target}, but `{}` is missing",
                place.display()
            ),
            Some(Obstacle::Missing(None)) => format!("no kpack for {target}"),
            _ => continue,
        };
        report.fault(Subject::Resolution, path, text);
    }
    Ok(())
}

/// Whether there are manifests, and all of them can be read and list no archive. Archives that were
/// lost are still listed.
fn none_are_listed(manifests: &[PathBuf]) -> Result<bool, Error> {
    for manifest in manifests {
        match read_manifest(manifest) {
            Ok(manifest) if manifest.kpack_files.is_empty() => {}
            Ok(_) | Err(Error::Refused { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(!manifests.is_empty())
}
