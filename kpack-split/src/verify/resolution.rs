//! Verifies that a split binary finds each of its code objects through its marker.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kpack_core::{Severity, ids};
use kpack_format::TargetId;
use kpack_format::marker::{Marker, of_another_build};
use kpack_format::names::KernelName;

use super::archive::of_kernel;
use super::context::{Context, Options, means};
use super::kernels::{self, KernelPlaces};
use super::report::VerifyReport;
use crate::input::{Kpacks, LinkedBinary, Obstacle, Resolver, or_refused, read_manifest};
use crate::split::variants;
use kpack_core::words::{counted, list};
use kpack_core::{Error, Reason};

/// The code objects that wrappers with one marker need, and where they are.
pub(super) struct Resolution<'a> {
    path: &'a Path,
    marker: &'a Marker,
    kernel_name: &'a str,
    indices: &'a BTreeSet<u32>,
    options: &'a Options,
    resolver: Resolver,
    places: KernelPlaces,
}

/// Looks up the code objects with these `indices`.
pub(super) fn verify(
    binary: &LinkedBinary,
    marker: &Marker,
    kernel_name: &str,
    indices: &BTreeSet<u32>,
    context: &Context<'_>,
    report: &mut VerifyReport,
) -> Result<(), Error> {
    let path = binary.path.as_path();
    let faults = report.count(Severity::Fault);
    let resolver = context.resolver(binary, marker, kernel_name)?;
    let mut this = Resolution {
        path,
        marker,
        kernel_name,
        indices,
        options: context.options,
        resolver,
        places: indices.iter().map(|index| (*index, BTreeMap::new())).collect(),
    };
    context.reached(kernel_name, &this.resolver);
    for kpack in this.resolver.kpacks.files.iter().filter(|kpack| kpack.listed == Some(true)) {
        context.list(&kpack.path, &kpack.target, kpack.size.is_some());
    }
    let there = this.resolver.kpacks.files.iter().filter(|kpack| kpack.size.is_some());
    let there = BTreeSet::from_iter(there.map(|kpack| kpack.target.as_str()));
    let built_for = marker
        .code_ids
        .keys()
        .filter_map(|target| Some((target.parse().ok()?, there.contains(target.as_str()))));
    context.needs(path, built_for);
    for (archive, reason) in &this.resolver.damaged {
        let text = reason.clone().after(format_args!("`{}` is damaged: ", archive.display()));
        report.add(context.severity_of_damage(archive), ids::DAMAGED_ARCHIVE, path, text);
    }
    for (target, archive) in this.resolver.other_builds() {
        if this.wants(target) {
            let what = of_another_build(kernel_name);
            let text = format!("`{}`: {what}", archive.display());
            report.fault(ids::STALE_ARCHIVE, path, Reason::from(text).target(target));
        }
    }
    this.required_are_there(report)?;
    let mut targets = this.resolver.targets();
    targets.retain(|target| this.wants(target));
    for target in &targets {
        this.look_up(target, report);
    }
    this.nowhere(&targets, report);
    if let Some(text) = this.resolver.sharing_note(indices.len()) {
        report.note(ids::MISSING_KERNEL, path, text);
    }
    this.stale(report);
    this.read(context, report)?;
    if context.options.against.is_none() {
        kernels::verify(binary, &this.places, &this.resolver, context, report)?;
    }
    let found: usize = this.places.values().map(BTreeMap::len).sum();
    if report.count(Severity::Fault) == faults && found > 0 {
        let through = Kpacks::found_through([&this.resolver.kpacks]);
        let (found, targets) = (counted(found, "code object"), list(&targets));
        let text = format!("{found} for {targets}{through}");
        report.ok(ids::CODE_FOUND, path, text);
    }
    Ok(())
}

impl Resolution<'_> {
    /// Whether the caller wants what is for `target`.
    fn wants(&self, target: &str) -> bool {
        let kpacks = self.resolver.kpacks.targets().map(str::to_owned);
        self.options.wants(target, kpacks.chain(self.resolver.targets()))
    }

    /// Finds the code objects for `target`, and reports missing ones.
    fn look_up(&mut self, target: &str, report: &mut VerifyReport) {
        let mut absent = Vec::new();
        for &index in self.indices {
            match self.resolver.find(index, target) {
                Some(place) => {
                    self.places.entry(index).or_default().insert(target.to_owned(), place);
                }
                None => absent.push(index),
            }
        }
        if absent.is_empty() || self.resolver.other_builds().any(|(of, _)| of == target) {
            return;
        }
        let text = if absent.len() == self.indices.len() {
            format!("the archive for {target} has no code object of this binary")
        } else {
            format!("no code object for {target} at index {}", list(&absent))
        };
        // Not every part of a binary need be compiled for every target. A target is required if the
        // marker has its code ID, or if the caller names it.
        let expected = self.marker.code_ids.get(target);
        let outcome = match expected {
            Some(id) if self.resolver.code_ids(target).contains(id) => Severity::Note,
            Some(_) => Severity::Fault,
            None if absent.iter().all(|index| self.may_lack(*index, target)) => Severity::Note,
            None => Severity::Fault,
        };
        if outcome == Severity::Note
            && let Some(plain) = self.only_for_less_specific(&absent, target)
        {
            let text = format!(
                "{text}, only for {plain}; ROCm 7.13 and 7.14 do not look in that archive if there is one for {target}; split \
                 the original with `--complete-variants`"
            );
            let reason = Reason::from(text).target(target);
            report.add(Severity::Warning, ids::INCOMPLETE_VARIANT, self.path, reason);
            return;
        }
        let reason = match absent[..] {
            [index] => Reason::from(text).kernel(KernelName::new(self.kernel_name, index)),
            _ => text.into(),
        };
        report.add(outcome, ids::MISSING_KERNEL, self.path, reason.target(target));
    }

    /// A less specific target than `target` with code for one of these `indices`.
    fn only_for_less_specific(&self, indices: &[u32], target: &str) -> Option<TargetId> {
        let target: TargetId = target.parse().ok()?;
        variants::less_specific(&target).find(|plain| {
            let plain = plain.to_string();
            indices.iter().any(|index| self.resolver.find(*index, &plain).is_some())
        })
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
    fn nowhere(&self, targets: &[String], report: &mut VerifyReport) {
        let empty = self.places.iter().filter(|(_, places)| places.is_empty());
        let nowhere = list(empty.map(|(index, _)| index));
        if nowhere.is_empty() || targets.is_empty() || self.resolver.other_builds().next().is_some()
        {
            return;
        }
        let text = format!("no archive has a code object at index {nowhere}");
        // Another target's archive may have it: one that is not verified, or not installed.
        let expected = self.marker.code_ids.keys().map(String::as_str);
        let mut expected = expected.chain(self.resolver.kpacks.targets());
        let is_elsewhere = expected.any(|target| !targets.iter().any(|own| own == target));
        let outcome = if self.options.targets.is_empty() && !is_elsewhere {
            Severity::Fault
        } else {
            Severity::Note
        };
        report.add(outcome, ids::MISSING_KERNEL, self.path, text);
    }

    /// Reports entries of this binary that no wrapper uses.
    fn stale(&self, report: &mut VerifyReport) {
        let entries = self.resolver.entries().into_iter();
        let stale: BTreeSet<u32> = entries
            .filter(|(index, _)| !self.indices.contains(index))
            .map(|(index, _)| index)
            .collect();
        if !stale.is_empty() {
            let stale = list(stale);
            let text = format!("the archives have entries at index {stale} that no wrapper uses");
            report.note(ids::UNUSED_KERNELS, self.path, text);
        }
    }

    /// Reads the code objects found, except those in archives already verified.
    fn read(&mut self, context: &Context<'_>, report: &mut VerifyReport) -> Result<(), Error> {
        // Several wrappers and targets may share one: the first of them is named.
        let places = self.places.iter().rev().flat_map(|(index, places)| {
            places.iter().rev().map(move |(target, place)| (*place, (*index, target.as_str())))
        });
        for (place, (index, target)) in BTreeMap::from_iter(places) {
            let real = self.resolver.path(place).canonicalize();
            if real.is_ok_and(|real| context.whole.contains(&real)) {
                continue;
            }
            if let Some(reason) =
                self.resolver.damage(place, index, target, &context.lookup.archives)?
            {
                let archive = self.resolver.path(place);
                let kernel = KernelName::new(self.kernel_name, index).to_string();
                let text = of_kernel(reason, &kernel, target)
                    .after(format_args!("`{}`: ", archive.display()));
                let severity = context.severity_of_damage(archive);
                report.add(severity, ids::DAMAGED_ARCHIVE, self.path, text);
            }
        }
        Ok(())
    }

    /// Reports targets without an archive, if the manifest lists them or the caller names them.
    fn required_are_there(&self, report: &mut VerifyReport) -> Result<(), Error> {
        let kpacks = &self.resolver.kpacks;
        let missing = self
            .options
            .targets
            .iter()
            .filter(|wanted| !kpacks.targets().any(|own| means(wanted, own)));
        let required: Vec<String> = kpacks
            .targets()
            .filter(|own| self.wants(own))
            .map(str::to_owned)
            .chain(missing.map(TargetId::to_string))
            .collect();
        if required.is_empty() {
            let is_expected =
                self.marker.code_ids.is_empty() && none_are_listed(&kpacks.manifests)?;
            let paths = self.marker.kpack_search_paths.join("`, `");
            let advice = kpacks.advice_without_any().map(|advice| format!("; {advice}"));
            let advice = advice.unwrap_or_default();
            let (outcome, text) = if is_expected {
                (
                    Severity::Note,
                    "the manifest lists no archive: splitting left out all of its device code"
                        .to_owned(),
                )
            } else {
                (Severity::Fault, format!("no archive found; its search path is `{paths}`{advice}"))
            };
            report.add(outcome, ids::MISSING_ARCHIVE, self.path, text);
        }
        for target in required {
            let (id, text) = match self.resolver.obstacle(&target) {
                Some(Obstacle::Missing(Some(place))) => {
                    let place = place.display();
                    let text = format!(
                        "the manifest lists an archive for {target}, but `{place}` is missing"
                    );
                    (ids::MISSING_ARCHIVE, text)
                }
                Some(Obstacle::Missing(None)) => {
                    (ids::MISSING_TARGET, format!("no archive for {target}"))
                }
                _ => continue,
            };
            report.fault(id, self.path, Reason::from(text).target(target));
        }
        Ok(())
    }
}

/// Whether there are manifests, and all of them can be read and list no archive. Archives that were
/// lost are still listed.
fn none_are_listed(manifests: &[PathBuf]) -> Result<bool, Error> {
    for manifest in manifests {
        let manifest = or_refused(read_manifest(manifest))?;
        if manifest.map_or(true, |manifest| !manifest.kpack_files.is_empty()) {
            return Ok(false);
        }
    }
    Ok(!manifests.is_empty())
}
